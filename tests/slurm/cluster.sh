#!/bin/sh
# Starts or stops a SLURM cluster of this one machine, for tests: munge, slurmctld and slurmd with a
# private configuration below a folder, on the loopback interface. Needs root, and Debian's packages
# slurm-wlm and munge. Nothing outside of the folder is written.
#
#     tests/slurm/cluster.sh start FOLDER [PORT]   # then: export SLURM_CONF=FOLDER/slurm.conf
#     tests/slurm/cluster.sh stop FOLDER
set -eu
action=${1:?start or stop}
folder=$(realpath -m "${2:?a folder}")
port=${3:-16817}

cgroup_plugin() { # "disabled" came with 23.11; v1 before it touches nothing unless it is asked to
    case $(slurmd -V) in
        *\ 1*|*\ 2[0-2].*|*\ 23.02*) echo cgroup/v1 ;;
        *) echo disabled ;;
    esac
}

start() {
    mkdir -p "$folder/state" "$folder/spool"
    chmod 755 "$folder" # munged refuses to work in folders that others can write to
    node=$(hostname -s)
    cat > "$folder/slurm.conf" <<EOF
ClusterName=gcdbench
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
AuthType=auth/munge
# a job that is requeued waits until its credential has expired
AuthInfo=socket=$folder/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
# no cgroups: containers seldom let them be used
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=2
# SLURM's default: several processes of a cell agree on a stop every few steps only
KillWait=30
MinJobAge=900
NodeName=$node NodeAddr=127.0.0.1 CPUs=2 RealMemory=1024 State=UNKNOWN
PartitionName=test Nodes=$node Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:2
EOF
    echo "CgroupPlugin=$(cgroup_plugin)" > "$folder/cgroup.conf"
    dd if=/dev/urandom of="$folder/munge.key" bs=1024 count=1 2> /dev/null
    chmod 400 "$folder/munge.key"
    munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" \
        --pid-file="$folder/munged.pid" --log-file="$folder/munged.log" \
        --seed-file="$folder/munged.seed"
    export SLURM_CONF="$folder/slurm.conf"
    slurmctld -f "$SLURM_CONF"
    slurmd -f "$SLURM_CONF" -N "$node"
    for _ in $(seq 60); do
        if sinfo --noheader --format=%T 2> /dev/null | grep -q -e idle -e mixed; then
            return
        fi
        sleep 1
    done
    echo "the node did not come up; see the logs in $folder" >&2
    return 1
}

stop() {
    for daemon in slurmd slurmctld munged; do
        if [ -s "$folder/$daemon.pid" ]; then
            end "$(cat "$folder/$daemon.pid")"
        fi
    done
}

end() { # a daemon that does not go by itself within some seconds is killed
    for _ in $(seq 20); do
        kill "$1" 2> /dev/null || return 0
        sleep 0.5
    done
    kill -KILL "$1" 2> /dev/null || true
}

case $action in
    start) start ;;
    stop) stop ;;
    *) echo "start or stop, not $action" >&2; exit 2 ;;
esac

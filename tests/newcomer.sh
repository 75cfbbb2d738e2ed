#!/usr/bin/env bash
# A new user's path with the real commands, timed: clone, README's first command, the page in a browser, a
# plug-in on the leaderboard, features of other code, a tracker offline, a pack that is verified.
# usage: tests/newcomer.sh FOLDER [--quick]      FOLDER must not exist; it gets 8 GB
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
folder=$1 quick=${2:-}
mkdir "$folder"
unset PYTHONPATH
began=$SECONDS

step() {  # name, command: say how long it took
    local start=$SECONDS
    echo "== $1"
    bash -euo pipefail -c "$2"
    printf 'TIME %-44s %5.1f min\n' "$1" "$(((SECONDS - start) * 10 / 6))e-2" | tee -a "$folder/times.txt"
}

step "clone" "git clone -q '$source' '$folder/gcdbench'"
cd "$folder/gcdbench"
first=$(awk '/^```/ {inside = !inside; next} inside && /^python3 -m venv.*gcdbench run/ {print; exit}' README.md)
step "install" "${first%% && .venv/bin/python*}"
step "command 1 after it $quick" "${first##*pip install -q -c constraints.txt . && } $quick"
export PATH="$PWD/.venv/bin:$PATH"
name=drawshift${quick:+-quick}
photograph='for width in 390 1280 1920; do
    chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=$width,1400 \
        --screenshot='"$folder"'/page-$width.png "file://$PWD/results/runs/leaderboard/'"$name"'.html" 2>/dev/null
done'
step "page in a browser, three widths" "$photograph"
step "write and check a plug-in" "gcdbench new-method myidea && gcdbench check myidea.py"
step "plug-in on the leaderboard (quick)" \
    "gcdbench run --suite drawshift --methods myidea simgcd --plugin myidea.py --quick --datasets line+solid"
step "features of other code" "python - <<'PYTHON' && gcdbench evaluate --features f.npz
import numpy as np
labels = np.repeat(np.arange(10), 50)
rng = np.random.RandomState(0)
features = rng.randn(10, 32)[labels] * 2 + rng.randn(500, 32)
np.savez('f.npz', features=features, labels=labels, labelled=(labels < 5) & (rng.rand(500) < 0.5))
PYTHON"
step "tracker, offline" "pip install -q '.[wandb]' -c constraints.txt && WANDB_MODE=offline gcdbench run --suite drawshift \
    --methods uno --quick --datasets line+solid --tracker wandb && ls -d results/runs/*/*/*/wandb/offline-run-*"
step "pack and verify" "gcdbench results pack --methods myidea --plugin myidea.py --out myidea.zip &&
    gcdbench results verify myidea.zip --plugin myidea.py"
echo "all in $(((SECONDS - began) / 60)) minutes"
cat "$folder/times.txt"

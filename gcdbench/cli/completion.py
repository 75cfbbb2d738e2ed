"""Shell completion: scripts that call ``gcdbench completion words ...`` for the candidates.

Verbs and flags come from the parser, names from the registry; torch is never imported.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gcdbench.core import registry
from gcdbench.errors import UserError

SCRIPTS = {
    "bash": """# put this into ~/.bashrc:  eval "$(gcdbench completion bash)"
_gcdbench() {
    local IFS=$'\\n'
    local words=("${COMP_WORDS[@]:1:COMP_CWORD}")
    COMPREPLY=($(gcdbench completion words "${words[@]}" 2>/dev/null))
}
complete -o default -F _gcdbench gcdbench
""",
    "zsh": """# put this into ~/.zshrc, after compinit:  eval "$(gcdbench completion zsh)"
_gcdbench() {
    local -a found
    found=("${(@f)$(gcdbench completion words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then compadd -a found; else _files; fi
}
compdef _gcdbench gcdbench
""",
    "fish": """# put this into ~/.config/fish/config.fish:  gcdbench completion fish | source
function __gcdbench
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    gcdbench completion words $words[2..-1] "$current" 2>/dev/null
end
complete -c gcdbench -a '(__gcdbench)'
""",
}


def candidates(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Return what the last of the words, which may be empty, can be completed to.

    >>> plain = argparse.ArgumentParser(add_help=False)
    >>> _ = plain.add_argument("--suite"), plain.add_argument("--seeds")
    >>> candidates(plain, ["--su"])
    ['--suite']
    """
    *before, current = words or [""]
    parser, before = descend(parser, before)
    if current.startswith("-"):
        found: Iterable[str] = flags(parser)
    else:
        action = _expected(parser, before)
        found = _values(action, words, current) if action is not None else ()
    return sorted(name for name in found if name.startswith(current))


def descend(
    parser: argparse.ArgumentParser, words: Sequence[str]
) -> tuple[argparse.ArgumentParser, list[str]]:
    """Return the parser of the verb and action that the words name, and the words after these."""
    left: list[str] = []
    for word in words:
        found = verbs(parser)
        if found is not None and word in found.choices and not left:
            parser = found.choices[word]
        else:
            left.append(word)
    return parser, left


def verbs(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[Any] | None:
    """Return the action that holds the verbs of a parser, or the actions of a verb."""
    # argparse has no public way to ask a parser for its arguments
    found = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return next(found, None)


def flags(parser: argparse.ArgumentParser) -> list[str]:
    """Return the long flags of a parser."""
    shown = [a for a in parser._actions if a.help != argparse.SUPPRESS]
    return [flag for a in shown for flag in a.option_strings if flag.startswith("--")]


def _expected(parser: argparse.ArgumentParser, before: Sequence[str]) -> argparse.Action | None:
    """Return the argument that the next word is a value of."""
    by_flag = {flag: a for a in parser._actions for flag in a.option_strings}
    given = 0
    for place in range(len(before) - 1, -1, -1):
        action = by_flag.get(before[place])
        if action is None:
            given += 1
            continue
        several = action.nargs in ("+", "*")
        if several or (given == 0 and action.nargs != 0):
            return action
        break
    positional = [a for a in parser._actions if not a.option_strings]
    number = sum(1 for _ in _positional_words(by_flag, before))
    if not positional:
        return None
    last = positional[-1]
    if number < len(positional):
        return positional[number]
    return last if last.nargs in ("+", "*") else None


def _positional_words(by_flag: dict[str, argparse.Action], before: Sequence[str]) -> Iterable[str]:
    takes = 0.0
    for word in before:
        action = by_flag.get(word)
        if action is not None:
            several = action.nargs in ("+", "*")
            takes = float("inf") if several else 0 if action.nargs == 0 else 1
        elif takes:
            takes -= 1
        else:
            yield word


def _values(action: argparse.Action, words: Sequence[str], current: str) -> Iterable[str]:
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    complete = _NAMES.get(action.dest)
    return complete(words, current) if complete is not None else ()


def _suites(words: Sequence[str], current: str) -> Iterable[str]:
    from gcdbench.core.suites import suites

    return suites()


def _method_specs(words: Sequence[str], current: str) -> Iterable[str]:
    """Return methods; after ``simgcd+`` the techniques, after ``hilo-`` those of the method."""
    begun = re.fullmatch(r"(([a-z0-9_]+).*[+-])[a-z0-9_]*", current)
    if begun is None:
        return registry.available("method")
    if begun[1].endswith("+"):
        return [begun[1] + name for name in registry.available("technique")]
    info = registry.available("method").get(begun[2])
    return [begun[1] + name for name in (info.constants.get("techniques", ()) if info else ())]


def _datasets(words: Sequence[str], current: str) -> Iterable[str]:
    """Return the plug-ins for ``data info|verify|make-ssb-c``, else the datasets of suites."""
    from gcdbench.core.suites import Suite, suites

    if words[0] == "data" and "--datasets" not in words:
        return registry.available("dataset")

    given = dict(itertools.pairwise(words)).get("--suite")
    try:
        found = [Suite.load(given)] if given else map(Suite.load, suites())
        return [name for suite in found for name in suite.datasets]
    except UserError:
        return ()


def _plots(words: Sequence[str], current: str) -> Iterable[str]:
    from gcdbench.cli.plot import names

    return names()


def _shown(words: Sequence[str], current: str) -> Iterable[str]:
    kind = words[1] if len(words) > 1 else ""
    return registry.available(kind) if kind in registry.KINDS else ()


_NAMES: dict[str, Callable[[Sequence[str], str], Iterable[str]]] = {
    "suite": _suites,
    "methods": _method_specs,
    "datasets": _datasets,
    "kinds": _plots,
    "name": _shown,
    "target": lambda words, current: [
        *registry.available("method"),
        *registry.available("technique"),
    ],
    "base": lambda words, current: registry.available("method"),
    "dataset": lambda words, current: registry.available("dataset"),
}

"""The key of a cell: a hash of all that can change its numbers, by content.

Settings, split and weights are hashed as they are. The code that counts is the import closure of
what trains and scores the cell, as far as its method, techniques and dataset reach it, without
comments and docstrings. A module counts by what it says and by what it imports, not by its name: a
renamed module leaves the hash as it is, and so does a change that was shown to leave all numbers as
they are (``gcdbench.experiment.same_numbers``). How scores are computed from predictions is not
part of the key (``gcdbench results rescore`` applies a new version to old records). Nothing here
imports torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gcdbench.core import hub_weights, registry
from gcdbench.core.method_spec import MethodSpec
from gcdbench.core.paths import PACKAGE
from gcdbench.core.settings import BACKBONES, BackboneConfig
from gcdbench.errors import UserError
from gcdbench.experiment.same_numbers import as_before

# the modules that train and score every cell; methods, techniques and datasets are added by name
ROOTS = ("training/assemble.py", "training/trainer.py", "training/evaluator.py")
SCORING = "training/scoring/scores.py"  # predictions to scores: has its own version, not in the key
FOLDS = "data/tuning/folds.py"  # makes the problems on which settings are chosen
COUNTED = ("training", "ops", "nn", "data")  # folders whose code can change numbers
FACADE = "gcdbench.plugin"  # re-exports names; the modules that define them are hashed


def key_of(settings: Mapping[str, Any], fingerprints: Mapping[str, str]) -> str:
    """Return the key of the cell with these settings and fingerprints."""
    parts = {"settings": settings, "fingerprints": fingerprints}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


@cache
def weights_hash(backbone: BackboneConfig) -> str:
    """Return the hash of the weight file, or the hub's name for weights that timm fetches."""
    if backbone.weights is not None and backbone.from_hub:
        kept = hub_weights.local_file(backbone.weights)
        return file_hash(kept) if kept else hub_weights.published_hash(backbone.weights)
    if backbone.weights is not None:
        path = Path(backbone.weights)
        if not path.is_file():
            raise UserError(f"backbone.weights: no file {path}")
        return file_hash(path)
    if backbone.name == "embedded":
        return file_hash(PACKAGE / "nn" / "weights" / "embedded.safetensors")
    return f"timm:{BACKBONES.get(backbone.name, backbone.name)}"


def file_hash(path: Path) -> str:
    """Return a file's sha256."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def code_hash(spec: MethodSpec, dataset: str, *, folds: bool = False) -> str:
    """Return the hash of the code that makes the numbers of a method on a dataset, or a fold."""
    files = _plugin_files(spec, dataset, registry.file_plugins())
    return _code_hash((*files, PACKAGE / FOLDS) if folds else files)


@cache
def _plugin_files(
    spec: MethodSpec, dataset: str, added: frozenset[tuple[str, str, Path]]
) -> tuple[Path, ...]:
    """Return the files of a method, its techniques and a dataset, with these files added."""
    plugins = [registry.get("method", spec.method), registry.get("dataset", dataset)]
    plugins += [registry.get("technique", name) for name in spec.techniques]
    return tuple(info.path for info in plugins)


@cache
def _code_hash(plugins: tuple[Path, ...]) -> str:
    roots = [*(PACKAGE / name for name in ROOTS), *plugins]
    return _hash_of(roots, outside=(PACKAGE / SCORING,))


def code_of(*names: str) -> str:
    """Return the hash of some modules of the package and of all that they import."""
    return _hash_of(PACKAGE / name for name in names)


@cache
def score_version() -> str:
    """Return the hash of the code that computes scores from predictions."""
    return code_of(SCORING)[:16]


def forget_code() -> None:
    """Clear the caches, so that all code is read again: it may have changed on disk."""
    for cached in (_code_hash, _plugin_files, score_version, _module, _is_module):
        cached.cache_clear()


def _hash_of(roots: Iterable[Path], outside: Iterable[Path] = ()) -> str:
    modules = closure(roots, outside)
    parts = []
    for module in modules.values():
        imports = "".join(
            f"{name}={modules[target].digest if target in modules else ''}\n"
            for name, target in module.imports
        )
        parts.append(hashlib.sha256(f"{module.text}\n{imports}".encode()).hexdigest())
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()


@dataclass(frozen=True)
class Module:
    """A Python file as the key sees it."""

    text: str  # without comments, docstrings, blank lines and the names of our modules
    imports: tuple[tuple[str, Path | None], ...]  # name -> the counted file that it comes from
    digest: str  # of the text


def closure(roots: Iterable[Path], outside: Iterable[Path] = ()) -> dict[Path | None, Module]:
    """Return the files that the roots import, directly or not, and the roots themselves."""
    found: dict[Path | None, Module] = {}
    left, passed = [path.resolve() for path in roots], {path.resolve() for path in outside}
    while left:
        path = left.pop()
        if path not in found and path not in passed:
            found[path] = _module(path)
            left += [target for _, target in found[path].imports if target is not None]
    return found


_IMPORT = re.compile(
    r"^[ \t]*(?:from (\.*[\w.]*) import (\([^)]*\)|[^\n]+)|import ([\w.]+)(?: as \w+)?[ \t]*)$",
    re.M,
)


@cache
def _module(path: Path) -> Module:
    """Read a file; every import of hashed code is replaced by the names that it imports."""
    imports: list[tuple[str, Path | None]] = []

    def replaced(found: re.Match[str]) -> str:
        origin, names, plain = found.groups()
        known = [(plain, _locate(plain, path))] if plain else list(_targets(origin, names, path))
        ours = (plain or origin).startswith(("gcdbench.", ".")) or plain == "gcdbench"
        if not ours and all(target is None for _, target in known):
            return found[0]
        imports.extend(known)
        return ""

    text = _IMPORT.sub(replaced, without_comments(path.read_text(encoding="utf-8")))
    text = "\n".join(line.rstrip() for line in text.splitlines() if line.strip())
    if path.is_relative_to(PACKAGE):
        text = as_before(path.relative_to(PACKAGE).as_posix(), text)
    return Module(text, tuple(imports), hashlib.sha256(text.encode()).hexdigest())


def _targets(origin: str, names: str, importer: Path) -> Iterator[tuple[str, Path | None]]:
    """Yield the names of ``from origin import names``, and the file that each comes from."""
    for part in names.strip("()").replace("\n", " ").split(","):
        name = part.split(" as ")[0].strip()
        if not name:
            continue
        if origin == FACADE:
            yield name, _handed_on().get(name)
        else:
            inner = f"{origin}{name}" if origin.endswith(".") else f"{origin}.{name}"
            yield name, _locate(inner, importer) or _locate(origin, importer)


def _handed_on() -> dict[str, Path | None]:
    """Return the names that the facade re-exports, with the files that define them."""
    return dict(_module((PACKAGE / "plugin.py").resolve()).imports)


def _locate(module: str, importer: Path) -> Path | None:
    """Return the file of a module of this package or of the importer's own package, or None."""
    if module.startswith("."):
        level = len(module) - len(module.lstrip("."))
        base = importer.parents[level - 1]
        return _file(base, module.lstrip(".").split(".")) if module.strip(".") else None
    parts = module.split(".")
    if parts[0] == PACKAGE.name:
        return _file(PACKAGE, parts[1:]) if parts[1:2] and parts[1] in COUNTED else None
    if importer.is_relative_to(PACKAGE):
        return None
    for folder in importer.parents:  # the package of a third-party plug-in
        if folder.name == parts[0] and (folder / "__init__.py").is_file():
            return _file(folder, parts[1:])
    return None


def _file(folder: Path, parts: list[str]) -> Path | None:
    path = folder.joinpath(*parts)
    for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
        if parts and _is_module(file):
            return file.resolve()
    return None


@cache
def _is_module(path: Path) -> bool:
    return path.is_file()


# A regular expression in place of the standard library's tokenizer, because it is faster: every
# plan and report waits for it.
_TOKEN = re.compile(
    r""""{3}(?:\\.|[^\\])*?"{3}|'{3}(?:\\.|[^\\])*?'{3}"""  # strings over several lines
    r"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|#[^\n]*|[()\[\]{}]""",
    re.S,
)


def without_comments(text: str) -> str:
    """Return Python source without comments, docstrings and other strings that do nothing.

    >>> without_comments('x = 1  # one' + chr(10) + '"a remark"' + chr(10) + 'y = "kept"')
    'x = 1  \\n\\ny = "kept"'
    """
    kept, end, depth = [], 0, 0
    for token in _TOKEN.finditer(text):
        first = token[0][0]
        if first in "([{":
            depth += 1
        elif first in ")]}":
            depth -= 1
        elif first == "#" or (depth == 0 and _is_statement(text, token)):
            kept.append(text[end : token.start()])
            end = token.end()
    return "".join([*kept, text[end:]])


def _is_statement(text: str, string: re.Match[str]) -> bool:
    """Return whether a string outside of brackets is a statement of its own (it has no effect)."""
    before = text.rfind("\n", 0, string.start()) + 1
    after = text.find("\n", string.end())
    rest = text[string.end() : after if after >= 0 else len(text)].lstrip()
    alone = not text[before : string.start()].strip() and (not rest or rest[0] == "#")
    return alone and not text[:before].endswith("\\\n")

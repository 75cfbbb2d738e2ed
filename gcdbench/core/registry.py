"""Find methods, techniques and datasets by name, without importing them.

A plug-in is one file with one class. What the command line and the plan need to know about it
(summary, config fields with their defaults and sources, literal class attributes) is read from the
file's syntax tree, so that listing, planning and reporting never import torch. The class itself is
imported when a cell is run. Three places are searched: the project's own folders, the entry points
of installed packages, and files given with ``--plugin``.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import io
import re
import sys
import tokenize
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcdbench.core.paths import PACKAGE, bundled
from gcdbench.errors import UserError, unknown

# kind -> (base class that marks a plug-in, folder, module prefix, entry-point group)
KINDS = {
    "method": ("Method", bundled("methods"), "gcdbench.methods", "gcdbench.methods"),
    "technique": (
        "Technique",
        bundled("methods") / "techniques",
        "gcdbench.methods.techniques",
        "gcdbench.techniques",
    ),
    "dataset": (
        "Dataset",
        PACKAGE / "data" / "datasets",
        "gcdbench.data.datasets",
        "gcdbench.datasets",
    ),
}
# what the code of a plug-in may raise; also what would otherwise end the process without a word
ENDINGS = (Exception, SystemExit, GeneratorExit)
NAME = re.compile(r"[a-z][a-z0-9_]*")
_FILE_PLUGIN = "gcdbench_plugin_"  # how the module of a file given with --plugin is named
_plugins: dict[str, dict[str, PluginInfo]] = {kind: {} for kind in KINDS}


@dataclass(frozen=True)
class PluginInfo:
    """What can be known about a plug-in without importing it."""

    kind: str
    name: str
    path: Path
    module: str
    class_name: str
    doc: str
    config: type
    constants: dict[str, Any]  # class attributes that are literals

    @functools.cached_property
    def notes(self) -> dict[str, str]:
        """The comment after each config field: where its default comes from."""
        return _comments(self.path, KINDS[self.kind][0])

    @property
    def is_file_plugin(self) -> bool:
        """Whether the plug-in is a file that was given with ``--plugin``."""
        return self.module.startswith(_FILE_PLUGIN)

    @property
    def summary(self) -> str:
        """First line of the plug-in's docstring."""
        return self.doc.strip().splitlines()[0] if self.doc.strip() else ""


def config_fields(info: PluginInfo) -> dict[str, dict[str, Any]]:
    """Return the settings of a plug-in by name: default, whether it is required, its source."""
    return {
        f.name: {
            "default": None if f.default is dataclasses.MISSING else f.default,
            "required": f.default is dataclasses.MISSING,
            "source": info.notes.get(f.name, ""),
        }
        for f in dataclasses.fields(info.config)
    }


def view_kinds(method: str, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the kinds of views of a method: its setting ``views`` if it has one, or its constant.

    >>> view_kinds("simgcd", {}), view_kinds("uno", {"views": ["plain", "plain", "small"]})
    (('plain', 'plain'), ('plain', 'plain', 'small'))
    """
    declared = get("method", method).constants.get("views", ("plain", "plain"))
    return tuple(config.get("views", declared))


def available(kind: str) -> dict[str, PluginInfo]:
    """Return all readable plug-ins of a kind by name; broken ones are left out (see ``broken``)."""
    return {name: info for name, info in _scan(kind).items() if isinstance(info, PluginInfo)}


def bundled_names(kind: str) -> list[str]:
    """Return the names of the project's own plug-ins of a kind."""
    _, folder, _, _ = KINDS[kind]
    return sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))


def broken(kind: str) -> dict[str, str]:
    """Return the plug-ins of a kind that cannot be read, with the reason."""
    return {name: str(info) for name, info in _scan(kind).items() if isinstance(info, UserError)}


def get(kind: str, name: str) -> PluginInfo:
    """Return the plug-in of a name."""
    info = _plugins[kind].get(name) or _bundled(kind, name) or _scan(kind).get(name)
    if info is None:
        raise unknown(kind, name, _scan(kind))
    if isinstance(info, UserError):
        raise info
    return info


def exists(kind: str, name: str) -> bool:
    """Tell whether there is a plug-in of a name; it is not read, and may be broken."""
    path = KINDS[kind][1] / f"{name}.py"
    own = NAME.fullmatch(name) is not None and path.is_file()
    return name in _plugins[kind] or own or name in _scan(kind)


def file_plugins() -> frozenset[tuple[str, str, Path]]:
    """Return kind, name and path of the plug-ins that were given as files."""
    return frozenset(
        (kind, name, info.path) for kind, named in _plugins.items() for name, info in named.items()
    )


def load(kind: str, name: str) -> type:
    """Import a plug-in and return its class."""
    info = get(kind, name)
    try:
        module = _import(info)
    except ENDINGS as error:
        message = f"{info.path}: cannot be imported ({type(error).__name__}: {error})"
        raise UserError(message) from error
    loaded: type = getattr(module, info.class_name)
    return loaded


def add_plugin(path: Path) -> PluginInfo:
    """Register the method, technique or dataset of a file under the file's name."""
    if not path.is_file():
        raise UserError(f"--plugin {path}: no such file")
    for kind, (base, *_) in KINDS.items():
        if _plugin_class(_parse(path), base) is not None:
            module = f"{_FILE_PLUGIN}{path.stem}"
            info = _read(kind, path.stem, path.resolve(), module)
            taken = _scan(kind).get(info.name)
            if isinstance(taken, PluginInfo) and taken.path != info.path:
                raise UserError(
                    f"--plugin {path}: the name {info.name!r} is taken by {taken.path}; "
                    "rename the file"
                )
            _plugins[kind][info.name] = info
            return info
    bases = ", ".join(base for base, *_ in KINDS.values())
    raise UserError(f"--plugin {path}: defines no class derived from {bases}")


def _scan(kind: str) -> dict[str, PluginInfo | UserError]:
    *_, group = KINDS[kind]
    found: dict[str, PluginInfo | UserError] = {}
    for name in bundled_names(kind):
        if (info := _bundled(kind, name)) is not None:
            found[name] = info
    for point in entry_points(group):
        if point.name not in found:
            found[point.name] = _read_entry_point(kind, point)
    return found | _plugins[kind]


def _bundled(kind: str, name: str) -> PluginInfo | UserError | None:
    """Read the plug-in of a name from the project's own folder, if it is there."""
    _, folder, prefix, _ = KINDS[kind]
    path = folder / f"{name}.py"
    if name.startswith("_") or not path.is_file():
        return None
    return _try_read(kind, name, path, f"{prefix}.{name}", path.stat().st_mtime_ns)


@functools.cache
def entry_points(group: str) -> tuple[importlib.metadata.EntryPoint, ...]:
    """Return the entry points of a group; cached, because a file of every package is opened."""
    return tuple(importlib.metadata.entry_points(group=group))


def _read_entry_point(kind: str, point: importlib.metadata.EntryPoint) -> PluginInfo | UserError:
    try:
        spec = importlib.util.find_spec(point.module)
    except ENDINGS as error:  # a third party's package may fail in any way while it is looked up
        return UserError(f"entry point {point.name} = {point.value}: {error}")
    if spec is None or not spec.origin:
        return UserError(f"entry point {point.name} = {point.value}: module not found")
    return _try_read(kind, point.name, Path(spec.origin), point.module, 0)


@functools.cache
def _try_read(kind: str, name: str, path: Path, module: str, stamp: int) -> PluginInfo | UserError:
    try:
        return _read(kind, name, path, module)
    except UserError as error:
        return error


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    except SyntaxError as error:
        raise UserError(f"{path}, line {error.lineno}: not valid Python ({error.msg})") from error
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from error


def _read(kind: str, name: str, path: Path, module: str) -> PluginInfo:
    if not NAME.fullmatch(name):
        raise UserError(f"{path}: a {kind}'s name has lower-case letters, digits and _ only")
    tree, base = _parse(path), KINDS[kind][0]
    node = _plugin_class(tree, base)
    if node is None:
        raise UserError(f"{path}: defines no class derived from {base}")
    doc = ast.get_docstring(tree) or ast.get_docstring(node) or ""
    config = _read_config(node, path)
    return PluginInfo(kind, name, path, module, node.name, doc, config, _constants(node))


def _plugin_class(tree: ast.Module, base: str) -> ast.ClassDef | None:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names = {
                b.id if isinstance(b, ast.Name) else getattr(b, "attr", "") for b in node.bases
            }
            if base in names:
                return node
    return None


def _constants(node: ast.ClassDef) -> dict[str, Any]:
    """Return the class attributes whose values are literals (also ``frozenset({...})``)."""
    found = {}
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value:
            name, value = item.target.id, item.value
        elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
            name, value = item.targets[0].id, item.value
        else:
            continue
        if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "frozenset":
            value = value.args[0] if value.args else ast.Tuple(elts=[], ctx=ast.Load())
        try:
            found[name] = ast.literal_eval(value)
        except ValueError:
            continue
    return found


def _config_class(node: ast.ClassDef) -> ast.ClassDef | None:
    """Return the class Config inside of a plug-in's class."""
    inner = (item for item in node.body if isinstance(item, ast.ClassDef))
    return next((item for item in inner if item.name == "Config"), None)


def _read_config(node: ast.ClassDef, path: Path) -> type:
    """Build the nested Config dataclass alone, from its source."""
    item = _config_class(node)
    if item is None:
        return dataclasses.make_dataclass("Config", [], frozen=True)
    names: dict[str, Any] = {"dataclass": dataclass, "field": dataclasses.field, **vars(typing)}
    flags = __import__("__future__").annotations.compiler_flag
    tree = ast.Module(body=[item], type_ignores=[])
    names["__name__"] = "typing"  # the module in which dataclass looks for ClassVar
    try:
        exec(compile(tree, str(path), "exec", flags=flags, dont_inherit=True), names)
    except ENDINGS as error:
        message = f"{path}, line {item.lineno}: Config needs literal defaults ({error})"
        raise UserError(message) from error
    config: type = names["Config"]
    if not dataclasses.is_dataclass(config):
        raise UserError(f"{path}, line {item.lineno}: Config must be a frozen dataclass")
    return config


def _comments(path: Path, base: str) -> dict[str, str]:
    """Return the comments after the fields of a plug-in's Config."""
    outer = _plugin_class(_parse(path), base)
    node = None if outer is None else _config_class(outer)
    if node is None:
        return {}
    lines = path.read_text(encoding="utf-8")
    by_line = {
        token.start[0]: token.string.lstrip("# ").strip()
        for token in tokenize.generate_tokens(io.StringIO(lines).readline)
        if token.type == tokenize.COMMENT
    }
    return {
        item.target.id: by_line.get(item.end_lineno or 0, "")
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


def _import(info: PluginInfo) -> Any:
    if info.is_file_plugin:
        loaded = sys.modules.get(info.module)
        if loaded is not None and loaded.__file__ == str(info.path):
            return loaded
        spec = importlib.util.spec_from_file_location(info.module, info.path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[info.module] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[info.module]
            raise
        return module
    return importlib.import_module(info.module)

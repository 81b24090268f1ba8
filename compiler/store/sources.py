"""Digest of the Python sources that running a module executes, found without executing them."""

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import resolve_name
from pathlib import Path

from vidc.compiler.store.digest import sha256_json


def source_digest(entries: Iterable[str]) -> str:
    """Digest of the entry modules and of all they import, transitively, from their own package.

    Imports inside functions count, those under ``if TYPE_CHECKING`` do not. A module imported by
    a computed name is not seen: name it as an entry. Data files are not sources. Each module is
    read once a process.

    Raises:
        ModuleNotFoundError: there is no such entry.
    """
    return sha256_json(source_modules(entries))


def source_modules(entries: Iterable[str]) -> dict[str, str]:
    """Returns the digest of each module that ``source_digest`` covers, by name; raises as it."""
    return {name: module.digest for name, module in _closure(entries).items()}


@dataclass(frozen=True)
class _Module:
    digest: str
    imports: frozenset[str]
    """What it imports from its own top-level package: modules, and names that may be modules."""


def _closure(entries: Iterable[str]) -> dict[str, _Module]:
    found: dict[str, _Module] = {}
    waiting = list(entries)
    for entry in waiting:
        if _read(entry) is None:
            raise ModuleNotFoundError(f"no source of a module {entry!r}", name=entry)
    while waiting:
        name = waiting.pop()
        module = _read(name)
        if module is not None and name not in found:
            found[name] = module
            waiting += module.imports
            package = name.rpartition(".")[0]
            if package:
                waiting.append(package)
    return found


@cache
def _read(name: str) -> _Module | None:
    """The module's source; None where there is no such module or, as for a folder, no source."""
    spec = _spec(name)
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    source = Path(spec.origin).read_bytes()
    is_python = spec.origin.endswith(".py")
    imports = _imports(ast.parse(source, spec.origin), spec) if is_python else frozenset()
    return _Module(hashlib.sha256(source).hexdigest(), imports)


@cache
def _spec(name: str) -> ModuleSpec | None:
    """The module's spec, without importing its packages as ``importlib.util.find_spec`` does."""
    parent = name.rpartition(".")[0]
    path = None
    if parent:
        package = _spec(parent)
        if package is None or package.submodule_search_locations is None:
            return None
        path = list(package.submodule_search_locations)
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path)
        if spec is not None:
            return spec
    return None


def _imports(tree: ast.Module, spec: ModuleSpec) -> frozenset[str]:
    is_package = spec.submodule_search_locations is not None
    package = spec.name if is_package else spec.name.rpartition(".")[0]
    imported: set[str] = set()
    for node in _executed(tree):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            imported.add(module)
            imported.update(f"{module}.{alias.name}" for alias in node.names)
    top = spec.name.partition(".")[0]
    return frozenset(name for name in imported if name.partition(".")[0] == top)


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node of a tree but those that only a type checker reads."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)

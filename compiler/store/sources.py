"""Digests of the Python sources that a result depends on, and versions of installed packages."""

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from importlib.util import resolve_name
from pathlib import Path

from vidc.compiler.store.digest import sha256_json
from vidc.plugins.errors import UnavailableError


def source_digest(entries: Iterable[str]) -> str:
    """Returns the digest of modules and all their transitive imports from their own package.

    Imports are found by parsing the sources; nothing is executed. Imports inside functions count,
    those under ``if TYPE_CHECKING`` do not. Imports by a computed name are not found: name such a
    module as an entry. Data files do not count. Each module is read once per process.

    Raises:
        ModuleNotFoundError: an entry does not exist.
    """
    return sha256_json(source_modules(entries))


def source_modules(entries: Iterable[str]) -> dict[str, str]:
    """Returns the digest of each module that ``source_digest`` covers, by name; raises the same."""
    return {name: module.digest for name, module in _closure(entries).items()}


def class_modules(kind: type) -> tuple[str, ...]:
    """Returns entries for ``source_digest`` that cover a class and its bases.

    There is one for each top-level package, since ``source_digest`` follows imports within a
    package only. Modules of Python's standard library are left out.
    """
    found: dict[str, str] = {}
    for each in kind.__mro__:
        found.setdefault(each.__module__.partition(".")[0], each.__module__)
    return tuple(m for top, m in found.items() if top not in sys.stdlib_module_names)


def versions(*packages: str, extra: str = "build") -> dict[str, str]:
    """Returns the versions of distributions by name, each looked up once per process.

    Args:
        packages: names.
        extra: extra of vidc that installs them.

    Raises:
        UnavailableError: ``VIDC-ENV-BUILD``, a distribution is not installed.
    """
    return {package: _version(package, extra) for package in packages}


def installed(package: str) -> str | None:
    """Returns the version of a distribution, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _version(package: str, extra: str) -> str:
    found = installed(package)
    if found is None:
        from vidc.plugins.installation import install_extra

        raise UnavailableError(
            "VIDC-ENV-BUILD",
            f"this build needs the package {package}, which is not installed",
            install_extra(extra),
        )
    return found


@dataclass(frozen=True)
class _Module:
    digest: str
    imports: frozenset[str]
    """Imports from its own top-level package: modules, and names that may be modules."""


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
    """Reads a module; None if it does not exist or has no source, such as a folder."""
    spec = _spec(name)
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    source = Path(spec.origin).read_bytes()
    is_python = spec.origin.endswith(".py")
    imports = _imports(ast.parse(source, spec.origin), spec) if is_python else frozenset()
    return _Module(hashlib.sha256(source).hexdigest(), imports)


@cache
def _spec(name: str) -> ModuleSpec | None:
    """Returns a module's spec without importing its packages, unlike ``find_spec``."""
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
    """Yields every node of a tree except those under ``if TYPE_CHECKING``."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)

"""Counts packages, import cycles, lines and docstrings of vidc's four packages.

``python tests/support/structure.py`` prints the figures; ``tests/test_structure.py`` checks them.
"""

import ast
import json
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("compiler", "exporters", "plugins", "runtime")
SOURCES = {".py", ".cu", ".cuh", ".cpp", ".h", ".j2", ".map"}
LAYERS = (
    ("cli",),
    ("bench", "analyze", "debug", "doctor", "inspect"),
    ("build",),
    ("validate",),
    ("backends",),
    ("quantize",),
    ("report", "config"),
    ("store",),
)
"""The packages of ``compiler``, from the top down: each may import those in later rows alone."""
RIDDLE = re.compile(r"(What|Whether|Of|How)\b")


@dataclass(frozen=True)
class Module:
    """One Python file: its dotted name, its folder, and the modules of vidc that it imports."""

    name: str
    file: Path
    imports: frozenset[str]

    @property
    def package(self) -> str:
        """The folder. A module in a folder that has subpackages is a package of its own."""
        folder = self.file.parent
        lies_beside_packages = any(folder.glob("*/__init__.py"))
        place = self.file.with_suffix("") if lies_beside_packages else folder
        return place.relative_to(ROOT).as_posix()


class Structure:
    """The tree as it stands on disk."""

    @cached_property
    def files(self) -> dict[Path, int]:
        """Lines of every source file, as ``wc -l`` counts them."""
        found = (f for p in PACKAGES for f in (ROOT / p).rglob("*") if f.suffix in SOURCES)
        return {file: file.read_bytes().count(b"\n") for file in sorted(found)}

    @cached_property
    def modules(self) -> dict[str, Module]:
        """Every Python module by its dotted name."""
        names = {_dotted(file): file for file in self.files if file.suffix == ".py"}
        return {
            name: Module(name, file, frozenset(_imports(file, names) - {name}))
            for name, file in names.items()
        }

    @cached_property
    def package_imports(self) -> dict[str, set[str]]:
        """The packages that each package imports, itself left out."""
        found: dict[str, set[str]] = {module.package: set() for module in self.modules.values()}
        for module in self.modules.values():
            others = {self.modules[name].package for name in module.imports}
            found[module.package] |= others - {module.package}
        return found

    def circles(self) -> list[set[str]]:
        """Groups of packages that reach one another by imports."""
        reach = {
            package: _reachable(package, self.package_imports) for package in self.package_imports
        }
        groups: list[set[str]] = []
        for package, reached in reach.items():
            group = {package} | {other for other in reached if package in reach[other]}
            if len(group) > 1 and group not in groups:
                groups.append(group)
        return groups

    def upward(self) -> list[str]:
        """Imports inside ``compiler`` that do not point to a lower layer."""
        rank = {name: row for row, names in enumerate(LAYERS) for name in names}
        found = []
        for module in self.modules.values():
            for name in module.imports:
                here, there = _layer(module.name), _layer(name)
                if here is None or there is None or here == there:
                    continue
                if here not in rank or there not in rank or rank[there] <= rank[here]:
                    found.append(f"{module.name} imports {name}")
        return sorted(found)

    def docstrings(self) -> Iterator[tuple[str, str]]:
        """Yields each docstring's place, as ``file:line``, and its text."""
        for module in self.modules.values():
            tree = ast.parse(module.file.read_text())
            for node in ast.walk(tree):
                if isinstance(
                    node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
                ):
                    text = ast.get_docstring(node)
                    if text:
                        line = node.body[0].lineno
                        yield f"{module.file.relative_to(ROOT)}:{line}", text

    def figures(self) -> dict[str, object]:
        """The figures that the project holds itself to."""
        texts = [text for _, text in self.docstrings()]
        longest = max(self.files, key=self.files.__getitem__)
        return {
            "packages": len({file.parent for file in self.files if file.name == "__init__.py"}),
            "largest circle of packages": max(map(len, self.circles()), default=1),
            "lines": {
                package: sum(n for f, n in self.files.items() if f.is_relative_to(ROOT / package))
                for package in PACKAGES
            }
            | {"all": sum(self.files.values())},
            "files": len(self.files),
            "median lines of a file": statistics.median(self.files.values()),
            "longest file": f"{longest.relative_to(ROOT)}: {self.files[longest]}",
            "docstrings": len(texts),
            "docstrings that open with What, Whether, Of or How": sum(
                RIDDLE.match(text) is not None for text in texts
            ),
        }


def _dotted(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(("vidc", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def _imports(file: Path, names: Mapping[str, Path]) -> set[str]:
    """The modules in ``names`` that a file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                member = f"{node.module}.{alias.name}"
                found.add(member if member in names else node.module)
    return found & names.keys()


def _layer(name: str) -> str | None:
    """The package of ``compiler`` that a module belongs to."""
    parts = name.split(".")
    return parts[2] if parts[:2] == ["vidc", "compiler"] and len(parts) > 2 else None


def _reachable(start: str, edges: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = [*edges[start]]
    while waiting:
        package = waiting.pop()
        if package not in seen:
            seen.add(package)
            waiting += edges[package]
    return seen


if __name__ == "__main__":
    print(json.dumps(Structure().figures(), indent=2))

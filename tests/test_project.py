"""Rules of the project that no single package can check."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "compiler": {"compiler", "exporters", "plugins", "runtime", "configs"},
    "exporters": {"exporters", "plugins"},
    "runtime": {"runtime", "plugins"},
    "plugins": {"plugins"},
    "configs": {"configs"},
}
NOT_IN_THE_RUNTIME = {
    "vidc.compiler",
    "vidc.exporters",
    "diffusers",
    "transformers",
    "onnx",
    "onnxscript",
    "modelopt",
}


def sources() -> Iterator[tuple[str, Path]]:
    for package in MAY_IMPORT:
        for file in sorted((ROOT / package).rglob("*.py")):
            yield package, file


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_imports_point_one_way():
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for package, file in sources()
        for name in imported(file)
        if name.startswith("vidc.") and name.split(".")[1] not in MAY_IMPORT[package]
    ]
    assert wrong == []


def test_no_package_is_imported_by_its_folder():
    files = [file for folder in (*MAY_IMPORT, "tests") for file in (ROOT / folder).rglob("*.py")]
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in imported(file)
        if name.split(".")[0] in MAY_IMPORT
    ]
    assert wrong == []


def test_the_runtime_is_thin():
    code = """
import json, sys
import vidc.runtime
import torch
print(json.dumps({"modules": sorted(sys.modules), "cuda": torch.cuda.is_initialized()}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    loaded = json.loads(done.stdout)
    heavy = [
        module
        for module in loaded["modules"]
        for name in NOT_IN_THE_RUNTIME
        if module == name or module.startswith(f"{name}.")
    ]
    assert heavy == []
    assert not loaded["cuda"]


CODE = re.compile(r'"(VIDC(?:-[A-Z0-9]+)+)"')


@pytest.fixture(scope="module")
def catalog():
    return tomllib.loads((ROOT / "configs" / "errors.toml").read_text())


def test_every_code_is_explained_and_every_explained_code_is_used(catalog):
    files = [file for _, file in sources()]
    files += [file for end in ("cpp", "cu", "cuh", "h") for file in ROOT.glob(f"plugins/*/*.{end}")]
    used = {code for file in files for code in CODE.findall(file.read_text())}
    assert used - catalog.keys() == set(), "used but not in configs/errors.toml"
    assert catalog.keys() - used == set(), "in configs/errors.toml but not used"


def test_an_explanation_has_a_title_and_a_text(catalog):
    for code, entry in catalog.items():
        assert entry.keys() == {"title", "explain"}, code
        assert entry["title"].strip(), code
        assert entry["explain"].strip(), code


DOCUMENTS = [
    *(ROOT / n for n in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "examples/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SHIPPED = {*MAY_IMPORT, "docs", "tests", "benchmarks", "examples"}
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
QUOTED = re.compile(r"`([^`\s]+)`")


def is_path(text: str) -> bool:
    """Returns True if a quoted word is meant as a file or folder of this repository."""
    return re.fullmatch(r"[\w./-]+", text) is not None and text.split("/")[0] in SHIPPED


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_paths_in_documents_lead_somewhere(document):
    text = document.read_text()
    links = [link for link in LINK.findall(text) if "://" not in link]
    lost = [link for link in links if not (document.parent / link).exists()]
    paths = [quoted for quoted in QUOTED.findall(text) if is_path(quoted)]
    lost += [path for path in paths if not (ROOT / path).exists()]
    assert lost == []


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "SECURITY.md"])
def test_the_first_words_about_bundles_say_that_they_run_native_code(page):
    start = " ".join((ROOT / page).read_text().partition("```")[0].split())
    assert "Loading a bundle built with AOTInductor or TensorRT runs native code from it" in start


def test_the_architecture_names_every_package():
    named = set(QUOTED.findall((ROOT / "docs" / "architecture.md").read_text()))
    packages = {
        file.parent.relative_to(ROOT).as_posix()
        for _, file in sources()
        if file.name == "__init__.py"
    }
    assert packages - named == set()

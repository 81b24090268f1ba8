"""The built wheel: exactly the packages, and it works in an environment of its own."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("compiler", "exporters", "plugins", "runtime", "configs")
WEIGHTS = "vidc/configs/demo/"
"""Of the demo model: a checkout has them, a wheel does not."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--wheel-dir", folder, ROOT],
        check=True, capture_output=True,
    )  # fmt: skip
    (built,) = folder.glob("*.whl")
    return built


def tracked(package: str) -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", package],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return {f"vidc/{name}" for name in listed.stdout.splitlines()}


def test_holds_the_packages_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    held = {name for name in names if ".dist-info/" not in name}
    expected = set().union(*(tracked(package) for package in PACKAGES))
    weights = {name for name in expected if name.startswith(WEIGHTS)}
    assert weights
    assert held == expected - weights
    assert "vidc/__init__.py" not in names


def test_is_pure(wheel):
    assert wheel.name.endswith("-py3-none-any.whl")


def test_works_in_a_clean_environment(wheel, tmp_path):
    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, "--no-deps", wheel], check=True, capture_output=True)
    subprocess.run([*install, "click"], check=True, capture_output=True)
    for arguments in (["--version"], ["--help"], ["explain", "VIDC-BUNDLE-ALTERED"]):
        done = subprocess.run(
            [tmp_path / "clean" / "bin" / "vidc", *arguments],
            cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout

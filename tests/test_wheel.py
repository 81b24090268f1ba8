"""The built wheel: exactly the packages, and it works in an environment of its own."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("compiler", "exporters", "plugins", "runtime", "configs")
WEIGHTS, ITS_PACKAGE = "vidc/configs/demo/", "vidc/configs/demo-package/"
"""Folder of the demo model's weights, which a checkout and a wheel of their own hold."""


def build(source: Path, folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--wheel-dir", folder, source],
        check=True, capture_output=True,
    )  # fmt: skip
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    return build(ROOT / "configs" / "demo-package", tmp_path_factory.mktemp("weights"))


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
    apart = {name for name in expected if name.startswith((WEIGHTS, ITS_PACKAGE))}
    assert apart
    assert held == expected - apart
    assert "vidc/__init__.py" not in names


def test_the_weights_are_a_wheel_of_their_own(weights):
    names = set(zipfile.ZipFile(weights).namelist())
    expected = {name for name in tracked("configs") if name.startswith(WEIGHTS)}
    assert expected
    assert {name for name in names if ".dist-info/" not in name} == expected


def test_is_pure(wheel):
    assert wheel.name.endswith("-py3-none-any.whl")


def test_works_in_a_clean_environment(wheel, weights, tmp_path):
    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, "--no-deps", wheel, weights], check=True, capture_output=True)
    subprocess.run([*install, "click"], check=True, capture_output=True)
    for arguments in (["--version"], ["--help"], ["explain", "VIDC-BUNDLE-ALTERED"]):
        done = subprocess.run(
            [tmp_path / "clean" / "bin" / "vidc", *arguments],
            cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout
    where = "from importlib.resources import files; print(files('vidc.configs').joinpath('demo'))"
    done = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True)
    assert {path.name for path in Path(done.stdout.strip()).iterdir()} == {
        path.name for path in (ROOT / "configs" / "demo").iterdir()
    }

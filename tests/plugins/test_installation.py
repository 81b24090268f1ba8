"""Install commands: they work for the way in which vidc was installed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vidc.plugins.installation import Installation, install_extra, install_packages

PYTHON = Path("/env/bin/python")
RECORDS = {
    "pipx_metadata.json": '{"main_package": {"package_or_url": "vidc[build]"}}',
    "uv-receipt.toml": '[tool]\nrequirements = [{ name = "vidc", extras = ["build"] }]\n',
}
"""Records as pipx and uv write them, shortened."""


def wheel(url):
    return json.dumps({"url": url, "archive_info": {}})


def folder(editable):
    return json.dumps({"url": "file:///src/my%20vidc", "dir_info": {"editable": editable}})


GIT = json.dumps(
    {"url": "https://host/vidc.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}
)


@pytest.mark.parametrize(
    ("direct_url", "words"),
    [
        (None, "install 'vidc[hub]'"),
        (wheel("file:///w/vidc-1-py3-none-any.whl"), "install '/w/vidc-1-py3-none-any.whl[hub]'"),
        (wheel("https://host/v.whl"), "install 'vidc[hub] @ https://host/v.whl'"),
        (folder(False), "install '/src/my vidc[hub]'"),
        (folder(True), "install --editable '/src/my vidc[hub]'"),
        (GIT, "install 'vidc[hub] @ git+https://host/vidc.git@c0ffee'"),
    ],
)
def test_an_extra_comes_from_where_vidc_came_from(tmp_path, direct_url, words):
    found = Installation.of(tmp_path, PYTHON, "pip", direct_url)
    assert found.extra("hub") == f"/env/bin/python -m pip {words}"


@pytest.mark.parametrize(
    ("record", "installer", "extra", "package", "without"),
    [
        ("", "uv", "uv pip install -p {0} 'vidc[hub]'", "uv pip install -p {0} --pre 'click>=99'",
         "uv pip uninstall -p {0} click"),
        ("pipx_metadata.json", "pip", "pipx install --force 'vidc[hub]'",
         "pipx inject vidc --pip-args=--pre 'click>=99'", "pipx runpip vidc uninstall -y click"),
        ("uv-receipt.toml", "uv", "uv tool install --force 'vidc[hub]'",
         "uv pip install -p {0} --pre 'click>=99'", "uv pip uninstall -p {0} click"),
        ("conda-meta", "pip", "/env/bin/python -m pip install 'vidc[hub]'",
         "/env/bin/python -m pip install --pre 'click>=99'",
         "/env/bin/python -m pip uninstall -y click"),
    ],
)  # fmt: skip
def test_the_program_that_installed_vidc_installs_more(
    tmp_path, record, installer, extra, package, without
):
    if record:
        (tmp_path / record).write_text(
            RECORDS.get(record, "").replace("[build]", "").replace('"build"', "")
        )
    found = Installation.of(tmp_path, PYTHON, installer, None)
    assert found.extra("hub") == extra.format(tmp_path)
    assert found.packages("click>=99", options=["--pre"]) == package.format(tmp_path)
    assert found.without("click") == without.format(tmp_path)


@pytest.mark.parametrize("record", RECORDS)
def test_extras_of_before_are_kept(tmp_path, record):
    (tmp_path / record).write_text(RECORDS[record])
    found = Installation.of(tmp_path, PYTHON, "uv", None)
    assert found.extra("hub").endswith("install --force 'vidc[build,hub]'")
    assert found.extra("build").endswith("install --force 'vidc[build]'")


def test_pip_of_this_environment_needs_no_path(tmp_path, monkeypatch):
    pip = tmp_path / "pip"
    pip.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = Installation.of(tmp_path, tmp_path / "python", "pip", None)
    assert found.extra("") == "pip install vidc"


def test_commands_for_the_running_vidc_run():
    for command in (install_extra("sign"), install_packages("click>=8")):
        done = subprocess.run(
            f"{command} --dry-run --no-deps --no-build-isolation",
            shell=True, capture_output=True, text=True, check=False,
            env={"PATH": str(Path(sys.executable).parent)},
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_setuptools_can_be_imported_afterwards():
    """It refuses to be imported after a search for pip through ``sys.meta_path``."""
    code = "from vidc.plugins.installation import install_extra as f; f('x'); import setuptools"
    subprocess.run([sys.executable, "-c", code], check=True)

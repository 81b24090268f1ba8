"""Commands of README and documentation that need no GPU, run from top to bottom of each page.

A build takes minutes, so ``make test`` lets a small bundle stand in for what a page has built and
resolves the build's settings with ``--plan``; the deep test builds.
"""

import re
import shutil
import subprocess

import pytest
from documents import ROOT, Block, blocks
from PIL import Image

NOT_RUN = {"make", "pip", "pre-commit"}
"""Programs that install, or run tests: their targets and extras are checked elsewhere."""
RUN = [block for block in blocks("bash", "python") if block.needs is None]
PAGES = sorted({block.page for block in RUN})


def of_page(page: str) -> list[Block]:
    return [block for block in RUN if block.page == page]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with what a checkout has, and a picture."""
    for name in ("benchmarks", "configs", "examples", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "out").mkdir()
    Image.new("RGB", (128, 128), "green").save(tmp_path / "picture.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(vidc, words):
    if words[0] != "vidc":
        subprocess.run(words, check=True, timeout=120)
        return
    redirected = words.index(">") if ">" in words else len(words)
    status, out, err = vidc(*words[1:redirected])
    assert status == 0, f"{words}: {out}{err}"


def test_some_pages_run_on_a_cpu():
    assert {"README.md", "SECURITY.md", "docs/get-started.md", "docs/quantize.md"} <= {*PAGES}


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_run(page, here, project, vidc, monkeypatch):
    monkeypatch.setenv("VIDC_CACHE", str(here / "cache"))
    for block in of_page(page):
        if block.language == "python":
            continue
        for words in block.commands:
            if words[0] in NOT_RUN:
                continue
            if words[:2] in (["vidc", "build"], ["vidc", "calibrate"]):
                plan = words[: words.index(">")] if ">" in words else words
                if "--calibration" not in words:  # The folder is made by the command before.
                    run(vidc, [*plan, "--plan"])
                continue
            bundle = next((word for word in words if re.fullmatch(r"out/[\w-]+", word)), None)
            if bundle and not (here / bundle).exists():
                shutil.copytree(project.bundle, bundle)
            if words[:2] == ["vidc", "run"] and {"--image", "--actions"} & {*words}:
                continue  # Bundles of other families; the deep test builds them.
            run(vidc, words)


@pytest.mark.parametrize("block", [b for b in RUN if b.language == "python"], ids=lambda b: b.page)
def test_python_of_a_page_runs(block, here, project):
    shutil.copytree(project.bundle, "out/demo")
    if "6d0f…" in block.code:
        pytest.skip("shows two calls that refuse a bundle")
    exec(compile(block.code, block.page, "exec"), {})


@pytest.mark.deep
def test_commands_of_get_started_build_what_they_show(here, vidc, monkeypatch):
    monkeypatch.setenv("VIDC_CACHE", str(here / "cache"))
    for block in of_page("docs/get-started.md"):
        for words in block.commands if block.language == "bash" else []:
            if words[0] not in NOT_RUN:
                run(vidc, words)
    assert {"demo.mp4", "world.mp4"} <= {path.name for path in (here / "out").iterdir()}
    assert (here / "clip.mp4").exists()

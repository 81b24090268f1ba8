"""The documentation site: it builds without a warning and without a network."""

import re
import shutil
import subprocess
import sys
import tomllib
from html import unescape
from pathlib import Path

import pytest

for name in ("sphinx", "myst_parser", "furo", "sphinx_click"):
    pytest.importorskip(name, reason="needs vidc[docs]")

ROOT = Path(__file__).parents[2]
GUIDE_WORDS = 1200
GUIDES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "evidence" not in path.parts]

BUILD = """
import socket, sys

def refuse(*_):
    raise OSError("the documentation asks for the network")

socket.socket.connect = socket.getaddrinfo = refuse
from sphinx.cmd.build import main
sys.exit(main(sys.argv[1:]))
"""


def build(source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    options = ["-W", "--keep-going", "-q", "-b", "html", "-d", f"{folder}.doctrees"]
    return subprocess.run(
        [sys.executable, "-c", BUILD, *options, str(source), str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = build(ROOT / "docs", folder)
    assert done.returncode == 0, done.stderr
    return folder


def text(page: Path) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page.read_text())).split())


def test_builds_without_a_warning_or_a_network(site):
    pages = {page.relative_to(site).with_suffix("").as_posix() for page in site.rglob("*.html")}
    sources = {
        path.relative_to(ROOT / "docs").with_suffix("").as_posix()
        for path in (ROOT / "docs").rglob("*.md")
    }
    assert len(sources) > 20
    assert sources <= pages


def test_pages_load_nothing_from_elsewhere(site):
    loaded = re.compile(r"<(?:script|img|link)[^>]+(?:src|href)=\"(?:https?:)?//")
    assert [page.name for page in site.rglob("*.html") if loaded.search(page.read_text())] == []


def test_links_lead_to_pages_and_anchors_that_exist(site):
    lost = []
    for page in site.rglob("*.html"):
        for link in re.findall(r'href="([^"]+)"', page.read_text()):
            path, _, anchor = re.sub(r"\?v=\w+", "", unescape(link)).partition("#")
            if "://" in path or path.startswith("mailto:"):
                continue
            target = page if not path else (page.parent / path)
            if not target.exists() or (anchor and f'id="{anchor}"' not in target.read_text()):
                lost.append(f"{page.relative_to(site)}: {link}")
    assert lost == []


def test_reference_has_every_error_code_command_and_manifest_field(site):
    from vidc.compiler.cli.group import command_names
    from vidc.runtime.manifest import Manifest

    errors = (site / "reference/errors.html").read_text()
    codes = tomllib.loads((ROOT / "configs" / "errors.toml").read_text())
    assert [code for code in codes if f'id="{code.lower()}"' not in errors] == []
    commands = text(site / "reference/cli.html")
    assert [name for name in command_names() if f"vidc {name}" not in commands] == []
    manifest = text(site / "reference/manifest.html")
    assert [name for name in Manifest.__annotations__ if name not in manifest.split()] == []


def test_explanations_have_no_raw_markup(site):
    errors = (site / "reference/errors.html").read_text()
    assert "`" not in text(site / "reference/errors.html")
    assert '<span class="pre">vidc</span> <span class="pre">export</span>' in errors


def test_a_code_in_a_text_links_to_its_explanation(site):
    page = (site / "ship.html").read_text()
    assert 'href="reference/errors.html#vidc-session-busy"' in page


@pytest.mark.parametrize(
    ("planted", "warning"),
    [
        ("[nowhere](nowhere.md)", "nowhere.md"),
        ("[no heading](index.md#no-such-heading)", "no-such-heading"),
        ("`VIDC-NO-SUCH-CODE`", "VIDC-NO-SUCH-CODE"),
        ("```{explain} VIDC-NO-SUCH-CODE\n```", "VIDC-NO-SUCH-CODE"),
    ],
)
def test_a_broken_link_or_code_stops_the_build(tmp_path, planted, warning):
    source = tmp_path / "docs"
    source.mkdir()
    shutil.copytree(ROOT / "docs" / "static", source / "static")
    conf = (ROOT / "docs" / "conf.py").read_text()
    extensions = str(ROOT / "docs" / "extensions")
    (source / "conf.py").write_text(
        conf.replace('str(Path(__file__).parent / "extensions")', repr(extensions))
    )
    (source / "index.md").write_text(f"# Page\n\n{planted}\n")
    done = build(source, tmp_path / "site")
    assert done.returncode != 0
    assert warning in done.stderr


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_guides_are_short(guide):
    assert len(guide.read_text().split()) <= GUIDE_WORDS

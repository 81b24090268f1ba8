"""Code blocks and commands of README and documentation."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "examples/*.md", "docs/**/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"
)
_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
_QUOTED = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_NEEDS = re.compile(r"# needs (.+)\n")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: the file, relative to the repository's root.
        language: such as ``bash``.
        code: the text between the fences.
    """

    page: str
    language: str
    code: str

    @property
    def needs(self) -> str | None:
        """Returns what its first line names after "needs"; None if it runs on any CPU."""
        found = _NEEDS.match(self.code)
        return found[1] if found else None

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command, without comments; variables stay before the command."""
        lines = self.code.replace("\\\n", " ").splitlines()
        words = (shlex.split(line, comments=True) for line in lines)
        return [command for command in words if command]


def blocks(*languages: str) -> Iterator[Block]:
    """Yields the blocks of all pages in one of the languages."""
    for path in PAGES:
        for language, code in _FENCED.findall(path.read_text()):
            if language in languages:
                yield Block(path.relative_to(ROOT).as_posix(), language, code)


def quoted_commands() -> Iterator[tuple[str, list[str]]]:
    """Yields the page and the words of each command of vidc that stands inside a sentence."""
    for path in PAGES:
        text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
        for quoted in _QUOTED.findall(text):
            words = quoted.split()
            if words[:1] == ["vidc"] and len(words) > 1:
                yield path.relative_to(ROOT).as_posix(), shlex.split(quoted, comments=True)

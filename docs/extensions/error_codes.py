"""Pages made of `configs/errors.toml`: the list of all codes, single entries, and links to them."""

import tomllib
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective
from sphinx.util.logging import getLogger

LOG = getLogger(__name__)
PAGE = "reference/errors"
CATALOG = Path(__file__).parents[2] / "configs" / "errors.toml"


@cache
def catalog() -> dict[str, dict[str, str]]:
    """Returns ``title`` and ``explain`` of every code, sorted."""
    return dict(sorted(tomllib.loads(CATALOG.read_text()).items()))


def explained(code: str) -> list[nodes.Node]:
    """Returns the paragraphs of a code's explanation, with words in backquotes as literals."""
    texts = catalog()[code]["explain"].strip().split("\n\n")
    return [nodes.paragraph("", "", *_inline(" ".join(text.split()))) for text in texts]


def _inline(text: str) -> list[nodes.Node]:
    kinds = (nodes.Text, lambda word: nodes.literal("", word))
    return [kinds[index % 2](part) for index, part in enumerate(text.split("`")) if part]


class ErrorCodes(SphinxDirective):
    """``error-codes``: every code with its explanation, by area."""

    def run(self) -> list[nodes.Node]:
        """Returns one section for each area."""
        self.env.note_dependency(str(CATALOG))
        sections = []
        for area, codes in groupby(catalog(), key=lambda code: code.split("-")[1]):
            section = nodes.section("", nodes.title("", area.title()), ids=[f"area-{area.lower()}"])
            section += nodes.definition_list("", *(self._item(code) for code in codes))
            sections.append(section)
        return sections

    def _item(self, code: str) -> nodes.Node:
        term = nodes.term(
            "", "", nodes.strong("", code), nodes.Text(f": {catalog()[code]['title']}")
        )
        term["ids"].append(code.lower())
        return nodes.definition_list_item("", term, nodes.definition("", *explained(code)))


class Explain(SphinxDirective):
    """``explain CODE``: the explanation of one code."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Returns the code, its title and its explanation; an unknown code stops the build."""
        self.env.note_dependency(str(CATALOG))
        (code,) = self.arguments
        if code not in catalog():
            raise self.error(f"configs/errors.toml has no code {code}")
        title = nodes.Text(f": {catalog()[code]['title']}.")
        return [nodes.paragraph("", "", nodes.literal("", code), title), *explained(code)]


class LinkCodes(SphinxPostTransform):
    """Links each code in a text to its explanation."""

    default_priority = 400

    def run(self, **_: Any) -> None:
        """Wraps literals that are a code in references; an unknown code stops a strict build."""
        for literal in [*self.document.findall(nodes.literal)]:
            code = literal.astext()
            if not code.startswith("VIDC-") or isinstance(literal.parent, nodes.reference):
                continue
            if code not in catalog():
                LOG.warning("no error code %s", code, location=literal)
                continue
            page = self.app.builder.get_relative_uri(self.env.docname, PAGE)
            target = nodes.reference("", "", refuri=f"{page}#{code.lower()}", internal=True)
            literal.replace_self(target)
            target += literal


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directives and the links."""
    app.add_directive("error-codes", ErrorCodes)
    app.add_directive("explain", Explain)
    app.add_post_transform(LinkCodes)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

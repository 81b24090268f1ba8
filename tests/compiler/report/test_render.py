import re
from importlib.resources import files

from vidc.compiler.report.render import sentence


def test_only_the_first_letter_of_a_sentence_changes():
    assert sentence("block to block, VAE included") == "Block to block, VAE included"
    assert sentence("VAE decode") == "VAE decode"
    assert sentence("") == ""


def test_paper_is_never_dark():
    style = files("vidc.compiler.report").joinpath("base.html.j2").read_text(encoding="utf-8")
    dark = re.findall(r"@media ([^{]*prefers-color-scheme: dark[^{]*)", style)
    assert [query.strip() for query in dark] == ["screen and (prefers-color-scheme: dark)"]

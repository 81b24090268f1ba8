"""Configuration of the documentation site: `make docs` writes it to out/docs."""

import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "vidc"
author = "The vidc authors"
project_copyright = "2026, The vidc authors"
release = metadata.version("vidc")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "error_codes",
]
exclude_patterns = ["extensions", "static"]
smartquotes = False  # They make a dash of the two hyphens of an option.
default_role = "code"  # Of the commands' help texts.
html_theme = "furo"
html_title = f"vidc {release}"
html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["wide.css"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# The site is built without a network, so names of other projects cannot be looked up.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!vidc\.).*")]
# Classes that appear in signatures and are no part of the interface.
nitpick_ignore = [
    ("py:class", "vidc.runtime.engines.Engine"),
    ("py:class", "vidc.runtime.graphs.Runners"),
    ("py:class", "vidc.runtime.programs.base.Resources"),
    ("py:class", "vidc.runtime.video._Format"),
]

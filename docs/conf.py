"""Sphinx's settings for `make docs`: the guide, and the API reference from the docstrings. Warnings are errors there."""

from __future__ import annotations

import re
from typing import Any

import cableway

project = "cableway"
author = "the cableway contributors"
version = release = cableway.__version__
project_copyright = author

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
include_patterns = ["index.md", "guide/**", "reference/**"]
exclude_patterns = ["guide/README.md"]  # the index of the folder; here index.md is
root_doc = "index"
default_role = "py:obj"  # `put` in a docstring is a link where there is such a name, else code
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

smartquotes = False  # they would turn those of code, too

html_theme = "furo"
html_title = f"cableway {release}"
html_show_sphinx = False
html_copy_source = False
pygments_style = "friendly"


def setup(app: Any) -> None:
    """Examples are files of the repository and no pages: their links become their paths."""

    def name_examples(app: Any, page: str, source: list[str]) -> None:
        source[0] = re.sub(r"\[[^]]+\]\(\.\./(examples/[^)]*)\)", r"`docs/\1`", source[0])

    app.connect("source-read", name_examples)

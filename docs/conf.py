"""The settings of Sphinx, which builds the documentation.

    python -m sphinx -W --keep-going -n -c docs . build/site

Sphinx is used because its reference comes from the docstrings, and because it can fail on every
warning. MyST reads the pages as GitHub does: they are Markdown with plain relative links. furo is a
theme that reads well on a phone and in the dark, and loads nothing from the network. The source
folder is that of the checkout, so that README.md, CONTRIBUTING.md and examples/README.md are pages
of the site as well, and links between files work in both places.
"""

import re

from sphinx.application import Sphinx

import ddp_invariants

project = "ddp-invariants"
version = release = ddp_invariants.__version__
html_title = project
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "CODE_OF_CONDUCT.md",
    "CHANGELOG.md",
    "docs/**",
    "examples/README.md",
]
# Folders that hold no page are not even walked through.
exclude_patterns = [".*", "build", "dist", "tests", "ddp_invariants", "properties", "**.egg-info"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4  # A link to a heading is written as for GitHub.

html_theme = "furo"
html_copy_source = False
html_show_copyright = False
html_additional_pages = {"index": "redirect.html"}
templates_path = ["templates"]

# Docstrings are written for readers of the code: a name between single backticks is code.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# The reference is about the public names. Types of internal modules, of torch and of the standard
# library appear in signatures, and have no page here.
nitpick_ignore_regex = [("py:.*", ".*")]


_LISTS = {"docs/index": "", "docs/rules": "rules/", "docs/reports/README": ""}
"""The pages whose lists of links make the site's contents, and how their links begin."""


def _add_contents(_app: Sphinx, page: str, source: list[str]) -> None:
    """Add the tables of contents to a page that lists others, a table for each heading.

    GitHub would show them as code, so they are not in the file.
    """
    if page not in _LISTS:
        return
    for section in source[0].split("\n## ")[1:]:
        links = re.findall(rf"\]\(({_LISTS[page]}[^)#]+)\.md\)", section)
        if links:
            title = section.partition("\n")[0]
            entries = "\n".join(links)
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{entries}\n```\n"


def setup(app: Sphinx) -> None:
    """Connect the functions above."""
    app.connect("source-read", _add_contents)

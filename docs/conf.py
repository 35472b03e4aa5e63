"""Sphinx's settings for the site. `make site` copies this folder, and builds from the copy."""

import sys
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from ipython_pygments_lexers import IPython3Lexer
from latex2mathml.converter import convert
from pygments.lexer import bygroups, inherit
from pygments.token import Keyword, Operator, Text

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

project = "tutorial-dl"
author = "The tutorial-dl authors"
copyright = "the tutorial-dl authors; BSD 3-clause licence"
extensions = ["myst_nb", "linking"]
root_doc = "index"
templates_path = []
exclude_patterns = ["examples", "_extra"]

html_theme = "furo"
html_title = "tutorial-dl"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_logo = html_favicon = "_static/mark.svg"
html_search_scorer = str(HERE / "_static/scorer.js")
html_extra_path = ["_extra"]  # the text of all files of both packages
html_show_sphinx = html_copy_source = html_show_sourcelink = False
html_math_renderer = "mathml"  # Sphinx's own comes from another machine
highlight_language = "none"
smartquotes = False  # so that `--batch-size` keeps both hyphens

myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # the notebooks have been run
nb_ipywidgets_js = {}
nb_merge_streams = True
nb_mime_priority_overrides = [("html", "image/png", 5)]

nitpicky = True
# Types in signatures are those of other packages, too.
nitpick_ignore_regex = [(r"py:.*", r".*")]
python_maximum_signature_line_length = 72
toc_object_entries = False
# Notebooks hold magics and shell lines, end cells in figures that pages show as pictures, and may
# skip a level of headings. (ref.python: two classes have one name, and a signature names one.)
suppress_warnings = [
    "misc.highlighting_failure", "mystnb.unknown_mime_type", "myst.header", "ref.python",
]  # fmt: skip


class CellLexer(IPython3Lexer):
    """What follows a line such as %%px is Python; IPython's lexer leaves it without colours."""

    tokens: ClassVar = {
        "root": [
            (r"(%%)(px|mpi|time|timeit)([^\n]*\n)", bygroups(Operator, Keyword, Text)),
            (r"(%%)(writefile)( \S+\.py\n)", bygroups(Operator, Keyword, Text)),
            inherit,
        ]
    }


def _inline(translator, node):
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block(translator, node):
    formula = convert(node.astext(), display="block")
    translator.body.append(f'<div class="math">{formula}</div>')
    raise nodes.SkipNode


def setup(app):
    for language in ("ipython3", "python"):
        app.add_lexer(language, CellLexer)
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}

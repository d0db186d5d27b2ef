"""Sphinx configuration. `make docs` builds, checks the links and runs the code in the pages."""

import sys
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

sys.path.insert(0, str(Path(__file__).parent))
import generate
import results_page

import longtail

project, author, copyright = "longtail", "the longtail authors", "the longtail authors"
version = release = longtail.__version__

extensions = ["myst_parser"]
myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_block"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "_generated"]

html_theme = "furo"
html_title = "longtail"
html_static_path = ["_static"]
html_css_files = ["longtail.css"]
html_show_sourcelink = False
html_math_renderer = "mathml"


def _inline_math(self, node: nodes.math) -> None:
    self.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block_math(self, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def write_pages(app) -> None:
    results_page.write(Path(app.srcdir))  # before the table of contents, which names the pages that are there
    generate.write_pages(Path(app.srcdir))


def setup(app) -> None:
    # Browsers set MathML by themselves: no script, no font, no network.
    app.add_html_math_renderer("mathml", (_inline_math, None), (_block_math, None))
    app.connect("builder-inited", write_pages)

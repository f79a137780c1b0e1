"""Sphinx extension: headings of the root page in the PDF.

sphinx-jupyterbook-latex flattens the root page and sets its headings as bold lines, each smaller than the one before.
Here they are sections without numbers, as the HTML has them.
"""

from typing import Any

from sphinx.application import Sphinx
from sphinx.writers.latex import LaTeXTranslator
from sphinx_jupyterbook_latex.nodes import RootHeader, depart_RootHeader, visit_RootHeader


def open_section(translator: LaTeXTranslator, node: RootHeader) -> None:
    """Begin the heading; its children write the text."""
    translator.body.append("\n\\section*{")


def close_section(translator: LaTeXTranslator, node: RootHeader) -> None:
    """End the heading."""
    translator.body.append("}\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Replace the LaTeX visitors of the node, keep its HTML ones."""
    app.setup_extension("sphinx_jupyterbook_latex")
    app.add_node(
        RootHeader,
        override=True,
        latex=(open_section, close_section),
        html=(visit_RootHeader, depart_RootHeader),
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}

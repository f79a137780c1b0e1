"""Sphinx extension: what the theme's pages lack or have too much of."""

import re
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.domains.std import StandardDomain
from sphinx.environment import BuildEnvironment
from sphinx.writers.html5 import HTML5Translator

from ci.failure import BuildError

ICONS = re.compile(r'\s*<script src="[^"]*/fontawesome/[^"]*/js/all\.min\.js[^"]*"></script>')
UNUSED = re.compile(
    r'\s*<link rel="preload"[^>]*/fa-(?:brands|regular)-400\.woff2"[^>]*>'  # loaded where an icon needs them
    r"|\s*<link [^>]*/sphinx-design\.min\.css[^>]*>"  # no page has a card, a grid or a tab
    r'|\s*<script src="[^"]*/design-tabs\.js[^"]*"></script>'
)
SCROLLING = ('<div class="pst-scrollable-table-container"', '<div class="math ')
"""What scrolls on a narrow screen, so that keys must reach it."""


class NumberedDomain(StandardDomain):
    """The domain of figure and table numbers, which reads the page of a target once and not for every reference to it.

    Reading one page took longer than all else that is done about a reference, and most references lead to few pages.
    """

    def _resolve_numref_xref(self, env: BuildEnvironment, *about: Any) -> nodes.Element | None:
        known = self.__dict__.setdefault("_remembering", _Remembering(env))
        return super()._resolve_numref_xref(known, *about)


class _Remembering:
    """The environment, with pages to look at that nobody changes."""

    def __init__(self, env: BuildEnvironment) -> None:
        self._env = env
        self.get_doctree = cache(env.get_doctree)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


def open_citation(translator: HTML5Translator, node: nodes.citation) -> None:
    """Begin an entry of the bibliography, as an item of its list: docutils gives it a role that lists cannot hold."""
    start = len(translator.body)
    HTML5Translator.visit_citation(translator, node)
    opened = translator.body[start:]
    translator.body[start:] = [part.replace('role="doc-biblioentry"', 'role="listitem"') for part in opened]


def close_citation(translator: HTML5Translator, node: nodes.citation) -> None:
    """End the entry."""
    HTML5Translator.depart_citation(translator, node)


def mend_pages(app: Sphinx, problem: Exception | None) -> None:
    """Leave out 1.7 MB a page, above all the theme's icons, which come as fonts and once more as a script; let keys
    scroll tables and formulae.

    Raises:
        BuildError: a page without that script, so that the theme has changed.
    """
    if problem or app.builder.format != "html":
        return
    for path in sorted(Path(app.outdir).rglob("*.html")):
        page = path.read_text(encoding="utf-8")
        if "/fontawesome/" in page and not path.is_relative_to(Path(app.outdir) / "_static"):
            lighter, count = ICONS.subn("", page)
            if count != 1:
                raise BuildError(f"{path.name} loads the script of its icons {count} times: look at ci/pages.py")
            lighter = UNUSED.sub("", lighter)
            for box in SCROLLING:
                lighter = lighter.replace(box, box.replace("<div", '<div tabindex="0"'))
            path.write_text(lighter, encoding="utf-8")
    for script in Path(app.outdir).glob("_static/vendor/fontawesome/*/js/*"):
        script.unlink()


def setup(app: Sphinx) -> dict[str, Any]:
    """Put all of it in place."""
    app.add_domain(NumberedDomain, override=True)
    app.add_node(nodes.citation, override=True, html=(open_citation, close_citation))
    app.connect("build-finished", mend_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""How much a page makes its reader load, and how much it may.

Counted is the page with everything that it names and that lies beside it: scripts, style sheets, pictures, fonts loaded
ahead. What scripts load later, such as the fonts of formulae, only a browser sees; `ci.browse` counts that as well.
"""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup

LIMIT = 3.0
"""Megabytes of a page, ..."""
LIMITS = {"explorer": 5.0}
"""... and of one that holds every head."""
LOADED = {"stylesheet", "preload", "modulepreload", "icon"}
MATHJAX = "mathjax/startup.js"


def limit(name: str) -> float:
    """Megabytes that the page `name` may have."""
    return LIMITS.get(name, LIMIT)


def files(path: Path, page: BeautifulSoup) -> set[Path]:
    """The page's own file and those that it names, each once."""
    named = [tag.get("src") or tag.get("data") for tag in page.select("[src], object[data]")]
    named += [tag.get("href") for tag in page.select("link[href]") if LOADED & set(tag.get("rel", []))]
    parts = [urlsplit(address) for address in named if address]
    found = {path, *((path.parent / unquote(part.path)).resolve() for part in parts if not part.scheme and part.path)}
    for start in [file for file in found if file.as_posix().endswith(MATHJAX)]:  # it loads the rest of itself
        found |= {file for file in start.parent.rglob("*.js") if "extensions" not in file.parts}
    return {file for file in found if file.is_file()}


def of(path: Path, page: BeautifulSoup) -> float:
    """Megabytes of all `files`."""
    return sum(file.stat().st_size for file in files(path, page)) / 1e6


def told(name: str, megabytes: float) -> list[str]:
    """That a page is too heavy, if it is."""
    allowed = limit(name)
    return [f"{name} weighs {megabytes:.2f} MB, more than {allowed:.0f}"] if megabytes > allowed else []

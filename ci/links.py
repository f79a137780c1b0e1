"""Every link and every file that a finished page loads from the book itself must be there, anchors included."""

from collections.abc import Collection
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ADDRESSES = ("href", "src", "data", "poster")


class _Page(HTMLParser):
    """Anchors of a page, and the addresses on it."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.addresses: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value or "")
            elif name in ADDRESSES:
                self.addresses.append((value or "").strip())


def faults(html: Path, coming: Collection[str] = ()) -> list[str]:
    """Links and loads of the pages in `html` that lead nowhere or out of it, one a line; files in `coming` will be."""
    html = html.resolve()

    @cache
    def read(path: Path) -> _Page:
        return _Page(path.read_text(encoding="utf-8"))

    found = []
    for path in sorted(html.rglob("*.html")):
        if path.is_relative_to(html / "_static"):  # the theme's templates
            continue
        for address in dict.fromkeys(read(path).addresses):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            where = f"HTML: {path.relative_to(html)} leads to {address!r}"
            if not target.is_relative_to(html):
                found.append(f"{where}, which lies outside the book")
            elif target.relative_to(html).as_posix() in coming:
                continue
            elif not target.is_file():
                found.append(f"{where}, which does not exist")
            elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in read(target).anchors:
                found.append(f"{where}, which has no such anchor")
    return found

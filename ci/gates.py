"""What a finished book must satisfy before it replaces the previous one. Every check returns its faults, one a line."""

import re
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path

from bs4 import BeautifulSoup, NavigableString, Tag

from ci import links, weight
from ci.render import DOCUMENT
from ci.version import Build

OVERFULL_PT = 20.0
PLACEHOLDERS = re.compile(
    r"\?\?|<Figure|<IPython|<matplotlib|<pandas|DataFrame\b.*\bat 0x|\{\{ | \}\}|\b(?:TODO|TBD|FIXME)\b|lorem ipsum",
    re.I,
)
RAW_TEX = re.compile(r"\\[a-zA-Z]{2,}\b|\\begin\{|\$\$|(?<!\\)\$[^$\s][^$\n]*\$")
LOADING_LINKS = {"stylesheet", "preload", "modulepreload", "preconnect", "dns-prefetch", "icon", "manifest", "prefetch"}
FOREIGN = re.compile(r"^(?:https?:)?//", re.I)
STYLE_LOADS = re.compile(r"@import\s+(?:url\()?\s*['\"]?([^'\")\s;]+)|url\(\s*['\"]?([^'\")]+)", re.I)
IDENTIFIER = re.compile(r"^(?:fig|tab)-[a-z0-9-]+$")


def read_pages(html: Path, expected: list[str]) -> dict[str, BeautifulSoup]:
    """The pages of `expected` that are there, by name."""
    paths = {name: html / "book" / f"{name}.html" for name in expected}
    return {
        name: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        for name, path in paths.items()
        if path.is_file()
    }


def html_faults(
    html: Path, pages: Mapping[str, BeautifulSoup], expected: list[str], build: Build, coming: Collection[str] = ()
) -> list[str]:
    """All faults of the HTML in `html`, which lacks as yet the files in `coming`."""
    found = [f"HTML: the page {name} is missing" for name in expected if name not in pages]
    for name, page in pages.items():
        found += page_faults(page, name, build) + provenance_faults(page, name)
        heavy = weight.told(name, weight.of(html / "book" / f"{name}.html", page))
        found += [f"HTML: {fault}" for fault in heavy]
    found += links.faults(html, coming)
    for sheet in sorted(html.rglob("*.css")):
        found += style_faults(sheet.read_text(encoding="utf-8"), sheet.name)
    return found


def latex_faults(latex: Path, pages: Mapping[str, BeautifulSoup], build: Build) -> list[str]:
    """All faults of the LaTeX run in `latex`, and where it differs from the HTML."""
    log = (latex / f"{DOCUMENT}.log").read_text(encoding="utf-8", errors="replace")
    aux = (latex / f"{DOCUMENT}.aux").read_text(encoding="utf-8")
    pdf = latex / f"{DOCUMENT}.pdf"
    numbers = {label: number for page in pages.values() for label, number in html_numbers(page).items()}
    listings = " ".join(block.get_text() for page in pages.values() for block in page.select("pre, code"))
    found = log_faults(log)
    found += pdf_faults(pdf_text(pdf), [title(page) for page in pages.values()], build, listings)
    return found + number_faults(numbers, latex_numbers(aux)) + font_faults(pdf_fonts(pdf))


def title(page: BeautifulSoup) -> str:
    """The text of the page's first heading, without its number and link mark."""
    heading = page.select_one("article h1")
    if heading is None:
        return ""
    for extra in heading.select(".headerlink, .section-number"):
        extra.extract()
    return heading.get_text().strip()


def page_faults(page: BeautifulSoup, name: str, build: Build) -> list[str]:
    """Faults of one HTML page: its stamp, alt texts, what it loads, and raw TeX or placeholders in its text."""
    found = []
    article = page.select_one("article") or page
    if build.stamp not in article.get_text():
        found.append(f"HTML: {name} does not say which build it is")
    if build.rehearsal and not article.select(".admonition.warning"):
        found.append(f"HTML: {name} does not warn that it is of a rehearsal")
    for picture in article.select("img"):
        alt, source = picture.get("alt", "").strip(), picture.get("src", "")
        if len(alt) < 10 or Path(source).name in alt:
            found.append(f"HTML: {name}: the picture {source} has no alt text that describes it")
    loads = [(tag.name, tag.get("src") or tag.get("data") or "") for tag in page.select("[src], object[data]")]
    loads += [("link", tag.get("href", "")) for tag in page.select("link") if LOADING_LINKS & set(tag.get("rel", []))]
    loads += [("style", url) for tag in page.select("style") for url in style_loads(tag.get_text())]
    found += [f"HTML: {name}: <{tag}> loads {url} from elsewhere" for tag, url in loads if FOREIGN.match(url)]
    text = visible_text(article)
    for pattern, what in ((PLACEHOLDERS, "placeholder"), (RAW_TEX, "raw TeX")):
        found += [f"HTML: {name}: {what} {match[0]!r}" for match in pattern.finditer(text)]
    return found


def visible_text(article: Tag) -> str:
    """The text that readers see as text: no formulae, no code."""
    hidden = {
        id(text)
        for element in article.select(".math, pre, code, script, style, noscript")
        for text in element.find_all(string=True)
    }
    texts = article.find_all(string=lambda text: type(text) is NavigableString)
    return " ".join(text for text in texts if id(text) not in hidden)


def provenance_faults(page: BeautifulSoup, name: str) -> list[str]:
    """Numbered figures and tables under which no provenance can be opened."""
    told = {block.get("data-of") for block in page.select("details.provenance") if block.select("dd")}
    numbered = [element["id"] for element in page.select("figure[id], table[id]") if IDENTIFIER.match(element["id"])]
    return [f"HTML: {name}: {label} has no provenance" for label in numbered if label not in told]


def style_loads(sheet: str) -> list[str]:
    """The addresses that a style sheet loads."""
    return [first or second for first, second in STYLE_LOADS.findall(sheet)]


def style_faults(sheet: str, name: str) -> list[str]:
    """Style sheets that load anything from elsewhere."""
    return [f"HTML: {name} loads {url} from elsewhere" for url in style_loads(sheet) if FOREIGN.match(url)]


def log_faults(log: str) -> list[str]:
    """What LaTeX says but does not fail for: missing glyphs, undefined references, boxes far too wide."""
    log = log.replace("\r", "")
    found = [f"LaTeX: {line}" for line in sorted(set(re.findall(r"^Missing character: .*", log, re.MULTILINE)))]
    found += [
        f"LaTeX: {match[0].strip()}"
        for match in re.finditer(
            r"^(?:LaTeX|Package \w+) Warning: (?:Reference|Citation|Hyper reference).*undefined", log, re.M
        )
    ]
    for width, where in re.findall(r"^Overfull \\hbox \(([\d.]+)pt too wide\) ?(.*)", log, re.MULTILINE):
        if float(width) > OVERFULL_PT:
            found.append(f"LaTeX: a line is {width} pt too wide {where}")
    return found


def pdf_text(pdf: Path) -> str:
    """The text of the PDF, as a reader would copy it."""
    return subprocess.run(["pdftotext", "-layout", str(pdf), "-"], capture_output=True, text=True, check=True).stdout


def pdf_faults(text: str, titles: list[str], build: Build, listings: str = "") -> list[str]:
    """Faults in the text of the PDF: chapters or stamps that are missing, placeholders, raw TeX, unmapped glyphs.

    What also stands in the `listings`, the code and the printed output of the pages, may stand in the PDF.
    """
    found = []
    flat = " ".join(text.split())
    found += [f"PDF: the chapter {heading!r} is missing" for heading in titles if heading not in flat]
    if (count := flat.count(build.stamp)) != len(titles):
        found.append(f"PDF: {count} of {len(titles)} chapters say which build they are")
    for pattern, what in (
        (PLACEHOLDERS, "placeholder"),
        (RAW_TEX, "raw TeX"),
        (re.compile("\ufffd"), "unmapped glyph"),
    ):
        for match in pattern.finditer(flat):
            if match[0] not in listings:
                context = flat[max(0, match.start() - 30) : match.end() + 30]
                found.append(f"PDF: {what} near {context!r}")
    return found


def pdf_fonts(pdf: Path) -> str:
    """The table of fonts that `pdffonts` prints."""
    return subprocess.run(["pdffonts", str(pdf)], capture_output=True, text=True, check=True).stdout


def font_faults(table: str) -> list[str]:
    """Fonts that are bitmaps (Type 3) or not embedded."""
    found = []
    for row in table.splitlines()[2:]:
        name = row.split()[0]
        if re.search(r"\sType 3\s", row):
            found.append(f"PDF: the font {name} is a bitmap (Type 3)")
        elif re.search(r"\sno +(?:yes|no) +(?:yes|no) +\d+ +\d+$", row):
            found.append(f"PDF: the font {name} is not embedded")
    return found


def html_numbers(page: BeautifulSoup) -> dict[str, str]:
    """Number of every labelled figure, table and equation of one HTML page."""
    numbers = {}
    for element in page.select("figure[id], table[id]"):
        number = element.select_one(".caption-number")
        if number and IDENTIFIER.match(element["id"]):
            numbers[element["id"]] = number.get_text().split()[-1]
    for element in page.select("div.math[id]"):
        number = element.select_one(".eqno")
        if number:
            numbers[element["id"].removeprefix("equation-")] = number.get_text().strip("()#¶ \n")
    return numbers


def latex_numbers(aux: str) -> dict[str, str]:
    """Number of every labelled figure, table and equation, from LaTeX's own record."""
    entries = re.findall(r"\\newlabel\{(?:equation:)?[^{}]*?:((?:fig|tab|eq)-[a-z0-9-]+)\}\{\{([^{}]*)\}", aux)
    return dict(entries)


def number_faults(html: dict[str, str], latex: dict[str, str]) -> list[str]:
    """Labels whose number differs between HTML and PDF, or that one of them lacks."""
    return [
        f"{label} is {html.get(label, 'absent')} in the HTML and {latex.get(label, 'absent')} in the PDF"
        for label in sorted(html.keys() | latex.keys())
        if html.get(label) != latex.get(label)
    ]

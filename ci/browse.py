"""What only a browser sees: `python -m ci.browse [FOLDER]` opens every page in headless Chromium, without a network.

Each page is opened from the disk, at the width of a laptop in the light theme and of a phone in the dark one. It may
ask no host for anything, must set all its mathematics, must not be wider than the screen nor heavier than `ci.weight`
allows, and axe-core (WCAG 2.1 A and AA) may find nothing serious or critical in it.
"""

import argparse
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Error, Page, sync_playwright

from ci import weight
from ci.failure import BuildError, told

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SCREENS = (("light", 1280, 900), ("dark", 390, 844))
GRAVE = {"serious", "critical"}
SETTLED = "async () => { if (window.MathJax?.startup?.promise) await MathJax.startup.promise; }"
UNSET = "() => [...document.querySelectorAll('.math')].filter(e => !e.querySelector('mjx-container')).length"
ERRONEOUS = "() => [...document.querySelectorAll('mjx-merror')].map(e => e.textContent)"
WIDTH = "() => document.documentElement.scrollWidth - window.innerWidth"
PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
AXE = """async () => {
  const rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"];
  const found = await axe.run(document, {resultTypes: ["violations"], runOnly: rules});
  return found.violations.map(v => ({id: v.id, impact: v.impact, where: v.nodes.map(n => n.target.join(' '))}));
}"""


@dataclass(frozen=True)
class Visit:
    """What one visit of one page showed.

    Attributes:
        faults: one a line.
        bytes: loaded, by the page and everything it asked for.
        paint: milliseconds to the first contentful paint, `None` where the browser told none.
    """

    faults: list[str]
    bytes: int
    paint: float | None


def chromium() -> str | None:
    """The browser of this machine."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


def axe_source() -> Path:
    """The script of axe-core, from the package that ships it."""
    return Path(find_spec("axe_playwright_python").origin).parent / "axe.min.js"


def visits(html: Path, program: str, names: list[str] | None = None) -> dict[str, list[Visit]]:
    """Every page below `html` (or only `names`), by name, with a visit for each of `SCREENS`."""
    paths = [
        path
        for path in sorted(html.rglob("*.html"))
        if not path.is_relative_to(html / "_static")
        and 'http-equiv="refresh"' not in path.read_text(encoding="utf-8").lower()
    ]
    wanted = {path.relative_to(html).as_posix(): path for path in paths}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        try:
            return {
                name: [_visit(browser, path, name, *screen) for screen in SCREENS]
                for name, path in wanted.items()
                if names is None or name in names
            }
        finally:
            browser.close()


def faults(seen: dict[str, list[Visit]]) -> list[str]:
    """The faults of all `visits`, each once."""
    return list(dict.fromkeys(fault for page in seen.values() for visit in page for fault in visit.faults))


def _visit(browser: Browser, path: Path, name: str, scheme: Any, width: int, height: int) -> Visit:
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    context.set_default_timeout(180_000)  # a busy machine is no fault of the page
    try:
        page = context.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        context.route("http*://**", lambda route: route.abort())
        page.goto(path.resolve().as_uri(), wait_until="load")
        found = _page_faults(page, asked)
        loaded = _weight(asked)
        found += weight.told(Path(name).stem, loaded / 1e6)
        return Visit([f"{name} ({scheme}): {fault}" for fault in found], loaded, page.evaluate(PAINT))
    finally:
        context.close()


def _page_faults(page: Page, asked: list[str]) -> list[str]:
    try:
        page.evaluate(SETTLED)
    except Error as problem:
        return [f"its mathematics cannot be set: {problem.message.splitlines()[0]}"]
    found = []
    if unset := page.evaluate(UNSET):
        found.append(f"{unset} formulae are not set")
    found += [f"a formula is wrong: {text}" for text in page.evaluate(ERRONEOUS)]
    if (over := page.evaluate(WIDTH)) > 1:
        found.append(f"it is {over} px wider than the screen")
    page.add_script_tag(path=axe_source())
    for violation in page.evaluate(AXE):
        if violation["impact"] in GRAVE:
            found.append(f"axe-core: {violation['id']} ({violation['impact']}) at {', '.join(violation['where'][:3])}")
    foreign = [url for url in asked if url.partition(":")[0] not in {"file", "data", "blob"}]
    return found + [f"it asks for {url}" for url in dict.fromkeys(foreign)]


def _weight(asked: list[str]) -> int:
    paths = {
        Path(url.partition("?")[0].partition("#")[0].removeprefix("file://")) for url in asked if url[:5] == "file:"
    }
    return sum(path.stat().st_size for path in paths if path.is_file())


@told
def main(words: list[str] | None = None) -> None:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Open every page in headless Chromium and look for faults.")
    parser.add_argument("html", type=Path, nargs="?", default=Path("_build/html"))
    arguments = parser.parse_args(words)
    program = chromium()
    if program is None:
        raise BuildError(f"no browser found ({', '.join(PROGRAMS)}): on Debian, apt-get install chromium")
    if not (arguments.html / "index.html").is_file():
        raise BuildError(f"there is no book in {arguments.html}: run 'make book' first")
    seen = visits(arguments.html.resolve(), program)
    BuildError.unless_empty(faults(seen))
    print(f"{len(seen)} pages, each on {len(SCREENS)} screens: nothing wrong")


if __name__ == "__main__":
    sys.exit(main())

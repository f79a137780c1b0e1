"""The book as readers and authors meet it: how heavy a page is, how soon it shows, how soon an edit shows, and kills.

Needs the finished book (`make book`); weights and times of pages need Chromium.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from benchmarks.row import Row
from ci import browse, build, links, render, weight

ROOT = build.ROOT
SAMPLE = ROOT / "tests" / "ci" / "sample"
EXPLORER = "book/explorer.html"
SENTENCE = "One sentence more."
KILLS = 20
MISSING = Row("pages, and an edit", None, None, "", "needs the finished book: `make book`")
BUILD = """
import json, pathlib, sys
from ci import build
tree, profile, output, pdf = json.loads(sys.argv[1])
build.build_book(pathlib.Path(tree), profile, pathlib.Path(output), pdf=pdf)
"""


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as temporary:
        book = [*_pages(), *_edit(Path(temporary))] if (ROOT / "_build" / "built.json").is_file() else [MISSING]
        return [*book, _kills(Path(temporary))]


def _pages() -> list[Row]:
    html, program = (ROOT / "_build" / "html").resolve(), browse.chromium()
    if program is None:
        return [Row("weight and paint of pages", None, None, "", "needs Chromium")]
    seen = browse.visits(html, program)
    weights = {name: max(visit.bytes for visit in page) / 1e6 for name, page in seen.items() if name[:5] == "book/"}
    explorer = weights.pop(EXPLORER, None)
    heaviest = max(weights, key=weights.__getitem__)
    paint = max(visit.paint or 0.0 for page in seen.values() for visit in page) / 1000
    faults = sum(len(visit.faults) for page in seen.values() for visit in page)
    return [
        Row("heaviest chapter", weights[heaviest], weight.LIMIT, "MB", f"{heaviest}, with all that it loads"),
        Row("explorer", explorer, weight.LIMITS["explorer"], "MB", EXPLORER),
        Row("slowest first paint", paint, 1.0, "s", "of all pages, from this disk"),
        Row("faults that a browser sees", faults, 0, "", "two screens a page, axe-core included"),
    ]


def _building(tree: Path, profile: str, output: Path, *, pdf: bool) -> subprocess.Popen:
    """A build in a process of its own, as make would start one."""
    arguments = json.dumps([str(tree), profile, str(output), pdf])
    command = [sys.executable, "-c", BUILD, arguments]
    return subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL)


def _edit(folder: Path) -> list[Row]:
    """Seconds from an edit of one chapter's prose to fresh pages, and to the PDF; everything else unchanged."""
    tree, output = folder / "tree", folder / "out"
    for name in ("book", "_config.yml", "_toc.yml", "CITATION.cff", "requirements.lock"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        tree.mkdir(exist_ok=True)
        copy(ROOT / name, tree / name)
    shutil.copytree(ROOT / "_build" / "executed", output / "executed", ignore=shutil.ignore_patterns(".*"))
    page = tree / "book" / "theory.md"
    page.write_text(page.read_text(encoding="utf-8") + f"\n{SENTENCE}\n", encoding="utf-8")
    profile = json.loads((ROOT / "_build" / "built.json").read_text(encoding="utf-8"))["profile"]
    build.execute_book(tree, build.identify(tree, profile), output, only_remembered=True)
    pdf, fresh, start = not render.missing_pdf_tools(), output / "html" / "book" / "theory.html", time.perf_counter()
    running = _building(tree, profile, output, pdf=pdf)
    while running.poll() is None and not fresh.is_file():
        time.sleep(0.05)
    shown = time.perf_counter() - start
    status = running.wait()
    whole = time.perf_counter() - start
    faults = int(status != 0 or SENTENCE not in fresh.read_text(encoding="utf-8"))
    return [
        Row("an edit of prose to fresh pages", shown, 20.0, "s", "one chapter, warm, from a new process"),
        Row("the same, until all is done", whole, None, "s", "with the PDF" if pdf else "no LaTeX: without the PDF"),
        Row("edits that were not shown", faults, 0, "", "the sentence stands on the page"),
    ]


def _kills(folder: Path) -> Row:
    """How often a build of a small book that was killed left broken pages, or a next build that fails."""
    tree, output = folder / "sample", folder / "sample-out"
    shutil.copytree(SAMPLE, tree)
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    (tree / "_config.yml").write_text(yaml.safe_dump(config | {"abstract": "Short."}), encoding="utf-8")
    shutil.copyfile(ROOT / "CITATION.cff", tree / "CITATION.cff")
    (tree / "requirements.lock").write_text("")
    start = time.perf_counter()
    _building(tree, "smoke", output, pdf=False).wait()
    seconds = time.perf_counter() - start
    page, chance, broken = tree / "book" / "second.md", random.Random(0), 0
    for number in range(KILLS):
        page.write_text(page.read_text(encoding="utf-8") + f"\nSentence {number}.\n", encoding="utf-8")
        running = _building(tree, "smoke", output, pdf=False)
        try:
            running.wait(chance.uniform(0.0, seconds))
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        broken += bool(links.faults(output / "html")) or not (output / "html" / "index.html").is_file()
    build.build_book(tree, "smoke", output, pdf=False)
    shown = (output / "html" / "book" / "second.html").read_text(encoding="utf-8")
    broken += f"Sentence {KILLS - 1}." not in shown
    return Row("broken books after kills", broken, 0, "", f"{KILLS} builds killed at random moments, then one finished")

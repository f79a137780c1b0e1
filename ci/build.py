"""Build the book: `python -m ci.build --profile pocket`.

Chapters are executed (or remembered), their values and tables put in place, and the staged pages built to HTML and PDF
with warnings as errors. What comes out is looked over by `ci.gates` before it replaces the previous book.
"""

import argparse
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
from filelock import FileLock

from ci import citation, depend, gates, launch, provenance, render, stage
from ci.execute import execute, is_notebook, library_code, remembered, with_outputs
from ci.failure import BuildError
from ci.publish import swap
from ci.text import prose_faults, substitute
from ci.version import REHEARSAL, Build, accelerator, identify

PDF = f"{render.DOCUMENT}.pdf"
MACHINE = "machine.json"
CODE = Path(__file__).resolve().parent
ROOT = CODE.parent


def execute_book(root: Path, build: Build, output: Path, scheduler: str = "", *, only_remembered: bool = False) -> dict:
    """Execute what must be executed, two chapters at a time, or one on an accelerator; returns the folder of each.

    Args:
        scheduler: address of a Dask cluster for the chapters that can use one.
        only_remembered: execute nothing.

    Raises:
        BuildError: see `execute`.
    """
    for rest in (output / "executed").glob(".*"):  # of a build that was killed
        shutil.rmtree(rest)
    where = {"scheduler": scheduler} if scheduler else None
    arguments = {"profile": build.profile}, output / "executed", build.machine, where
    results = (output if build.rehearsal else root) / "results"  # those of stand-ins lie apart
    run = partial(execute, results=results, only_remembered=only_remembered)
    sources = [source for source in stage.pages(root) if is_notebook(source)]
    folders = {source: remembered(root, source, *arguments[:3]) for source in sources}
    missing = [source for source, folder in folders.items() if not folder.is_dir()]
    for source in folders.keys() - set(missing):
        os.utime(folders[source])  # the oldest are forgotten first
    alone = only_remembered or accelerator()  # which two chapters would have to share
    together = 1 if alone else min(2, len(missing), len(_cores()))
    if together < 2:
        for source in missing:
            run(root, source, *arguments)
        return folders
    # Processes, as papermill changes the folder of its own.
    processes = get_context("spawn")
    share = (os.getpid(), processes.Value("i", 0), together)
    with ProcessPoolExecutor(together, processes, _share, share) as pool:
        running = [pool.submit(run, root, source, *arguments) for source in missing]
        try:
            for future in as_completed(running):
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return folders


def _cores() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _share(parent: int, begun: Synchronized, together: int) -> None:
    """Keep one of `together` processes to its share of the cores, and do not let it outlive `parent`.

    Args:
        begun: how many of them have begun.
    """
    with begun.get_lock():
        place, begun.value = begun.value, begun.value + 1
    own = _cores()[place % together :: together]
    os.environ["OMP_NUM_THREADS"] = str(len(own))
    if hasattr(os, "sched_setaffinity"):  # a chapter starts as many processes as it has cores
        os.sched_setaffinity(0, own)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def note_machine(build: Build, output: Path) -> None:
    """Write down which machine has executed the chapters, for `executed_elsewhere`."""
    made = {"profile": build.profile, "device": build.device, "python": build.python}
    (output / "executed" / MACHINE).write_text(json.dumps(made) + "\n", encoding="utf-8")


def executed_elsewhere(build: Build, output: Path) -> Build:
    """`build` as the build of what another machine has executed.

    Raises:
        BuildError: nothing was executed, or another profile.
    """
    path = output / "executed" / MACHINE
    if not path.is_file():
        raise BuildError(f"there is nothing executed in {path.parent}: run 'make executed', or bring it here")
    made = json.loads(path.read_text(encoding="utf-8"))
    if made["profile"] != build.profile:
        raise BuildError(f"{path.parent} holds the profile {made['profile']}, not {build.profile}")
    return replace(build, device=made["device"], python=made["python"])


def stage_book(root: Path, build: Build, output: Path, pdf: bool, executed: Mapping[Path, Path]) -> Path:
    """Write the staging folder from the executed chapters; returns it."""
    staging = output / "staging"
    shutil.rmtree(staging, ignore_errors=True)
    (staging / "book").mkdir(parents=True)
    downloads = staging / "downloads"
    (downloads / "notebooks").mkdir(parents=True)
    repository = stage.repository(root)
    notebooks = {source: with_outputs(source, folder / f"{source.stem}.ipynb") for source, folder in executed.items()}
    recorded = {source: stage.recorded(notebook, source.stem)[0] for source, notebook in notebooks.items()}
    shared = {f"{source.stem}/{key}": value for source, own in recorded.items() for key, value in own.items()}
    shared["build_bibtex"] = citation.bibtex(root / "CITATION.cff", build)
    shared["build_cff"] = (root / "CITATION.cff").read_text(encoding="utf-8").strip()

    documents, faults, origins = {}, [], {}
    for source, notebook in notebooks.items():
        name, figures = source.stem, executed[source] / "figures"
        about = build.about | {"execution": executed[source].name, "library": depend.digest(library_code(source))[:20]}
        links = stage.page_links(repository, name, build, notebook=True, pdf=pdf)
        try:
            found = provenance.records(notebook, figures, about, source.name)
            values = shared | build.values | recorded[source]
            fill = partial(substitute, values=values, where=source.name)
            folders = staging / "book" / "figures", downloads / "data"
            data = stage.copy_figures(figures, *folders, build.facts, fill)
            staged = stage.staged_notebook(notebook, build, source.name, shared, links, data, found)
            kept = stage.download(notebook, values, build, source.name)
        except BuildError as problem:
            faults.append(str(problem))
            continue
        documents[source.name] = "\n\n".join(cell.source for cell in staged.cells if cell.cell_type == "markdown")
        origins[stage.title(staged.cells[0].source)] = found
        nbformat.write(staged, staging / "book" / f"{name}.ipynb")
        kept = launch.prepared(kept, repository, build.commit) if repository else kept
        nbformat.write(kept, downloads / "notebooks" / f"{name}.ipynb")
    values = shared | build.values | {"provenance": provenance.appendix(origins)}
    for source in (source for source in stage.pages(root) if source not in executed):
        documents[source.name] = source.read_text(encoding="utf-8")
        faults += prose_faults(documents[source.name], source.name)
        try:
            markdown = substitute(documents[source.name], values, source.name)
        except BuildError as problem:
            faults.append(str(problem))
            continue
        links = stage.page_links(repository, source.stem, build, notebook=False, pdf=pdf)
        page = stage.stamped(markdown, build, source.name, links)
        (staging / "book" / source.name).write_text(page, encoding="utf-8")
    BuildError.unless_empty(faults + stage.reference_faults(documents))
    labelled = {label: record for found in origins.values() for label, record in found.items()}
    (downloads / "provenance.json").write_text(json.dumps(labelled, indent=1) + "\n", encoding="utf-8")
    shutil.copyfile(root / "book" / "references.bib", staging / "book" / "references.bib")
    shutil.copyfile(root / "_toc.yml", staging / "_toc.yml")
    shutil.copytree(CODE / "latex", staging / "latex")
    (staging / "latex" / "abstract.txt").write_text(stage.abstract(root, shared | build.values), encoding="utf-8")
    shutil.copytree(CODE / "html", staging / "html")
    render.copy_mathjax(staging / "html" / "mathjax")
    (staging / "_config.yml").write_text(stage.configuration(root, build), encoding="utf-8")
    return staging


def digest(root: Path, staging: Path) -> str:
    """SHA-256 of everything that the rendering reads: staged files, this code, the lock."""
    named = {f"staging/{path.relative_to(staging)}": path for path in staging.rglob("*") if path.is_file()}
    named |= {f"ci/{path.name}": path for path in CODE.glob("*.py")} | {"lock": root / "requirements.lock"}
    return depend.digest(named)


def loopback() -> bool:
    """Whether the Hub that chapters would ask is one of this machine."""
    return urlsplit(os.environ.get("HF_ENDPOINT", "")).hostname == "127.0.0.1"


def build_book(
    root: Path, profile: str, output: Path, pdf: bool, scheduler: str = "", *, only_render: bool = False
) -> None:
    """Build into `output`: `html/` and, if `pdf`, `fingerprint-not-blueprint.pdf` and the LaTeX that it was made from.

    With `only_render` nothing is executed: the chapters were, here or on another machine. The pages are there as soon
    as they pass their checks, the PDF when it does; `built.json` says that all is done.
    """
    started = time.monotonic()
    build = identify(root, profile)
    build = executed_elsewhere(build, output) if only_render else build
    executed = execute_book(root, build, output, scheduler, only_remembered=only_render)
    staging = stage_book(root, build, output, pdf, executed)
    expected = [source.stem for source in stage.pages(root)]
    built = output / "built.json"
    state = {**asdict(build), "inputs": digest(root, staging), "pdf": pdf}
    wanted = [output / "html" / "index.html", *([output / name for name in (PDF, render.SOURCES)] if pdf else [])]
    if built.is_file() and json.loads(built.read_text()) == state and all(path.is_file() for path in wanted):
        print("nothing has changed since the last build", file=sys.stderr)
        return
    built.unlink(missing_ok=True)
    print("building " + ("HTML and PDF …" if pdf else "HTML …"), file=sys.stderr, flush=True)
    with ThreadPoolExecutor(2) as pool:
        html = pool.submit(render.jupyter_book, staging, output / "work-html", "html", build.epoch)
        latex = pool.submit(render.jupyter_book, staging, output / "work-pdf", "pdflatex", build.epoch) if pdf else None
        pages = gates.read_pages(html.result(), expected)
        BuildError.unless_empty(gates.html_faults(html.result(), pages, expected, build, coming=[PDF] if pdf else []))
        swap(html.result(), output / "html")
        print(f"the pages are new after {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        if latex:
            BuildError.unless_empty(gates.latex_faults(latex.result(), pages, build))
            render.bundle(latex.result(), output / render.SOURCES, build.epoch)
            for place in ((output / "html").resolve(), output):  # every page links to the one among them
                shutil.copyfile(latex.result() / PDF, place / f".{PDF}")
                os.replace(place / f".{PDF}", place / PDF)
    built.write_text(json.dumps(state))


def main(words: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Build the book to HTML and PDF.")
    parser.add_argument("--profile", default="pocket", help="smoke, pocket or paper")
    parser.add_argument("--output", type=Path, default=ROOT / "_build", help="where the book goes")
    parser.add_argument(
        "--pdf", choices=["wanted", "required"], default="wanted", help="'required': fail without LaTeX"
    )
    parser.add_argument("--scheduler", default="", metavar="ADDRESS", help="Dask cluster for the chapters' long work")
    parser.add_argument(
        "--step", choices=["all", "execute", "render"], default="all", help="one half of the build, to be done here"
    )
    arguments = parser.parse_args(words)
    missing = render.missing_pdf_tools()
    how = f"no PDF: {', '.join(missing)} not found; on Debian, run 'make latex' as root"
    try:
        if not (ROOT / "book" / "profiles" / f"{arguments.profile}.yml").is_file():
            raise BuildError(f"there is no profile {arguments.profile!r}; say PROFILE=smoke, pocket or paper")
        if arguments.profile == REHEARSAL and not loopback():
            raise BuildError("the profile rehearsal needs the stand-ins for the Hub: say 'make rehearse'")
        if missing and arguments.pdf == "required" and arguments.step != "execute":
            raise BuildError(how)
        arguments.output.mkdir(parents=True, exist_ok=True)
        output = arguments.output.resolve()
        with FileLock(output / ".lock"):
            if arguments.step == "execute":
                build = identify(ROOT, arguments.profile)
                execute_book(ROOT, build, output, arguments.scheduler)
                note_machine(build, output)
                print(f"executed: {output / 'executed'}")
                return 0
            only_render = arguments.step == "render"
            build_book(ROOT, arguments.profile, output, not missing, arguments.scheduler, only_render=only_render)
    except BuildError as problem:
        print(f"the book was not built:\n{problem}", file=sys.stderr)
        return 1
    print(f"HTML: {arguments.output / 'html' / 'index.html'}")
    print(how if missing else f"PDF:  {arguments.output / PDF}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

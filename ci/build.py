"""Build the book: `python -m ci.build --profile pocket`.

Chapters are executed (or remembered), their values and tables put in place, and the staged pages built to HTML and PDF
with warnings as errors. What comes out is looked over by `ci.gates` before it replaces the previous book.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from filelock import FileLock

from ci import citation, gates, launch, render, stage
from ci.execute import execute, is_notebook, with_outputs
from ci.failure import BuildError
from ci.text import substitute
from ci.version import Build, identify

CODE = Path(__file__).resolve().parent
ROOT = CODE.parent


def stage_book(root: Path, build: Build, output: Path, pdf: bool, scheduler: str = "") -> Path:
    """Execute what must be executed, given the address of a Dask cluster there, and write the staging folder."""
    staging = output / "staging"
    shutil.rmtree(staging, ignore_errors=True)
    (staging / "book").mkdir(parents=True)
    downloads = staging / "downloads"
    (downloads / "notebooks").mkdir(parents=True)
    repository = stage.repository(root)
    sources = stage.pages(root)
    where = {"scheduler": scheduler} if scheduler else None
    executed = {
        source.stem: execute(root, source, {"profile": build.profile}, output / "executed", build.device, where)
        for source in sources
        if is_notebook(source)
    }
    notebooks = {
        source.stem: with_outputs(source, executed[source.stem] / f"{source.stem}.ipynb")
        for source in sources
        if source.stem in executed
    }
    recorded = {name: stage.recorded(notebook, name)[0] for name, notebook in notebooks.items()}
    shared = {f"{name}/{key}": value for name, values in recorded.items() for key, value in values.items()}
    shared["build_bibtex"] = citation.bibtex(root / "CITATION.cff", build)
    shared["build_cff"] = (root / "CITATION.cff").read_text(encoding="utf-8").strip()

    documents = {}
    faults = []
    for source in sources:
        name = source.stem
        links = stage.page_links(repository, name, build, notebook=name in notebooks, pdf=pdf)
        try:
            if name not in notebooks:
                markdown = substitute(source.read_text(encoding="utf-8"), shared | build.values, source.name)
                documents[source.name] = markdown
                page = stage.stamped(markdown, build, source.name, links)
                (staging / "book" / source.name).write_text(page, encoding="utf-8")
                continue
            data = stage.copy_figures(executed[name] / "figures", staging / "book" / "figures", downloads / "data")
            staged = stage.staged_notebook(notebooks[name], build, source.name, shared, links, data)
            kept = stage.download(notebooks[name], shared | build.values | recorded[name], build, source.name)
        except BuildError as problem:
            faults.append(str(problem))
            continue
        documents[source.name] = "\n\n".join(cell.source for cell in staged.cells if cell.cell_type == "markdown")
        nbformat.write(staged, staging / "book" / f"{name}.ipynb")
        kept = launch.prepared(kept, repository, build.commit) if repository else kept
        nbformat.write(kept, downloads / "notebooks" / f"{name}.ipynb")
    BuildError.unless_empty(faults + stage.reference_faults(documents))
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
    total = hashlib.sha256()
    for name, path in sorted(named.items()):
        total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
    return total.hexdigest()


def publish(made: Path, target: Path) -> None:
    """Move `made` into the place of `target`."""
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.is_dir():
        os.replace(target, old)
    os.replace(made, target)
    shutil.rmtree(old, ignore_errors=True)


def build_book(root: Path, profile: str, output: Path, pdf: bool, scheduler: str = "") -> None:
    """Build into `output`: `html/` and, if `pdf`, `fingerprint-not-blueprint.pdf` and its LaTeX source."""
    build = identify(root, profile)
    staging = stage_book(root, build, output, pdf, scheduler)
    expected = [source.stem for source in stage.pages(root)]
    built = output / "built.json"
    state = {"inputs": digest(root, staging), "pdf": pdf}
    wanted = [output / "html" / "index.html", *([output / f"{render.DOCUMENT}.pdf"] if pdf else [])]
    if built.is_file() and json.loads(built.read_text()) == state and all(path.is_file() for path in wanted):
        print("nothing has changed since the last build", file=sys.stderr)
        return
    built.unlink(missing_ok=True)
    print("building " + ("HTML and PDF …" if pdf else "HTML …"), file=sys.stderr, flush=True)
    with ThreadPoolExecutor(2) as pool:
        html = pool.submit(render.jupyter_book, staging, output / "work-html", "html", build.epoch)
        latex = pool.submit(render.jupyter_book, staging, output / "work-pdf", "pdflatex", build.epoch) if pdf else None
        html_folder = html.result()
        latex_folder = latex.result() if latex else None
    if latex_folder:  # a copy, for every page links to it
        shutil.copyfile(latex_folder / f"{render.DOCUMENT}.pdf", html_folder / f"{render.DOCUMENT}.pdf")
    BuildError.unless_empty(gates.faults(html_folder, latex_folder, expected, build))
    publish(html_folder, output / "html")
    if latex_folder:
        render.bundle(latex_folder, output / f"{render.DOCUMENT}-latex.tar.gz", build.epoch)
        os.replace(latex_folder / f"{render.DOCUMENT}.pdf", output / f"{render.DOCUMENT}.pdf")
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
    arguments = parser.parse_args(words)
    missing = render.missing_pdf_tools()
    how = f"no PDF: {', '.join(missing)} not found; on Debian, run 'make latex' as root"
    try:
        if not (ROOT / "book" / "profiles" / f"{arguments.profile}.yml").is_file():
            raise BuildError(f"there is no profile {arguments.profile!r}; say PROFILE=smoke, pocket or paper")
        if missing and arguments.pdf == "required":
            raise BuildError(how)
        arguments.output.mkdir(parents=True, exist_ok=True)
        with FileLock(arguments.output / ".lock"):
            build_book(ROOT, arguments.profile, arguments.output.resolve(), not missing, arguments.scheduler)
    except BuildError as problem:
        print(f"the book was not built:\n{problem}", file=sys.stderr)
        return 1
    print(f"HTML: {arguments.output / 'html' / 'index.html'}")
    print(how if missing else f"PDF:  {arguments.output / render.DOCUMENT}.pdf")
    return 0


if __name__ == "__main__":
    sys.exit(main())

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

from ci import gates, render, stage
from ci.execute import execute, is_notebook, with_outputs
from ci.failure import BuildError
from ci.text import substitute
from ci.version import Build, identify

CODE = Path(__file__).resolve().parent
ROOT = CODE.parent


def stage_book(root: Path, build: Build, output: Path, scheduler: str = "") -> Path:
    """Execute what must be executed, given the address of a Dask cluster there, and write the staging folder."""
    staging = output / "staging"
    shutil.rmtree(staging, ignore_errors=True)
    (staging / "book").mkdir(parents=True)
    documents = {}
    faults = []
    for source in stage.pages(root):
        if not is_notebook(source):
            markdown = substitute(source.read_text(encoding="utf-8"), build.values, source.name)
            documents[source.name] = markdown
            (staging / "book" / source.name).write_text(stage.stamped(markdown, build, source.name), encoding="utf-8")
            continue
        where = {"scheduler": scheduler} if scheduler else None
        executed = execute(root, source, {"profile": build.profile}, output / "executed", build.device, where)
        notebook = with_outputs(source, executed / f"{source.stem}.ipynb")
        try:
            staged = stage.staged_notebook(notebook, build, source.name)
        except BuildError as problem:
            faults.append(str(problem))
            continue
        documents[source.name] = "\n\n".join(cell.source for cell in staged.cells if cell.cell_type == "markdown")
        nbformat.write(staged, staging / "book" / f"{source.stem}.ipynb")
        stage.copy_figures(executed / "figures", staging / "book" / "figures")
    BuildError.unless_empty(faults + stage.reference_faults(documents))
    shutil.copyfile(root / "book" / "references.bib", staging / "book" / "references.bib")
    shutil.copyfile(root / "_toc.yml", staging / "_toc.yml")
    shutil.copytree(CODE / "latex", staging / "latex")
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
    """Build into `output`: `html/` and, if `pdf`, `fingerprint-not-blueprint.pdf`."""
    build = identify(root, profile)
    staging = stage_book(root, build, output, scheduler)
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
    BuildError.unless_empty(gates.faults(html_folder, latex_folder, expected, build))
    publish(html_folder, output / "html")
    if latex_folder:
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

"""Run chapters: the cells of a text notebook to their outputs, remembered by everything that the outputs depend on.

Prose is no part of that: only code cells are executed, and `with_outputs` puts what they gave beside today's prose.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

import jupytext
from nbformat import NotebookNode, read, write
from nbformat.v4 import new_code_cell

from ci import depend
from ci.failure import BuildError

KEPT = 10
"""Executions of one chapter that are remembered."""
IMPORTED = """\
import json, pathlib, sys
pathlib.Path({path!r}).write_text(json.dumps([name for name in sys.modules if name.startswith("qkspectra")]))"""
"""Runs last in the kernel: the modules of the library that were imported there."""


def data_files(book: Path) -> list[Path]:
    """The files of `book/` that chapters may read: everything but pages, their other halves and what they write."""
    return [
        path
        for path in sorted(book.rglob("*"))
        if path.is_file()
        and path.suffix not in {".md", ".ipynb", ".bib"}
        and not {"figures", "results", ".ipynb_checkpoints"} & set(path.relative_to(book).parts)
    ]


def is_notebook(source: Path) -> bool:
    """Whether the page has cells to run; a page without a kernel is plain text."""
    head, fence, _ = source.read_text(encoding="utf-8").partition("\n---\n")
    return bool(fence) and head.startswith("---\n") and "\nkernelspec:" in head


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The cells that run, in order."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def library_code(source: Path) -> dict[str, Path]:
    """The files of the library that the code cells of `source` reach, and what ships beside them."""
    folder = depend.library()
    modules = depend.reachable([cell.source for cell in code_cells(jupytext.read(source))], folder)
    return {path.relative_to(folder).as_posix(): path for path in (*modules.values(), *depend.shipped(folder))}


def cache_key(root: Path, source: Path, parameters: dict[str, str], machine: str) -> str:
    """SHA-256 over code cells, parameters, what they reach of the library, data, lock, and the machine in words."""
    code = [[cell.metadata.get("tags", []), cell.source] for cell in code_cells(jupytext.read(source))]
    files = {path.relative_to(root).as_posix(): path for path in data_files(root / "book")}
    files["lock"] = root / "requirements.lock"
    about = [source.stem, code, parameters, machine]
    about += [depend.digest(library_code(source)), depend.digest(files)]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def remembered(root: Path, source: Path, parameters: dict[str, str], cache: Path, machine: str) -> Path:
    """Where an execution is remembered: a folder that is there once `execute` has succeeded with these arguments."""
    return cache / f"{source.stem}-{cache_key(root, source, parameters, machine)[:20]}"


def execute(
    root: Path,
    source: Path,
    parameters: dict[str, str],
    cache: Path,
    machine: str,
    where: dict[str, str] | None = None,
    *,
    results: Path | None = None,
    only_remembered: bool = False,
) -> Path:
    """The folder with the executed cells, `<chapter>.ipynb`, and `figures/`, run now or remembered from an equal run.

    Args:
        root, source: the checkout, and the chapter's text notebook.
        parameters: which every chapter declares.
        cache: where executions are remembered.
        machine: what they run on.
        where: parameters that say where work is done, not what comes out of it: given to the chapters that declare
            them, and no part of what an execution is remembered by.
        results: the store that lasts from build to build, by default `root/results`.
        only_remembered: execute nothing.

    Raises:
        BuildError: a parameter that the notebook does not declare, a cell that fails, or an edit while cells ran;
            nothing is remembered then. With `only_remembered`, a chapter that would have to run.
    """
    name, about = source.stem, (root, source, parameters, cache, machine)
    kept = remembered(*about)
    if kept.is_dir():
        os.utime(kept)
        return kept
    if only_remembered:
        raise BuildError(f"{source.name} was not executed in this state of the tree on {machine}: run 'make executed'")
    cache.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    print(f"executing {name} …", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=cache) as temporary:
        work = Path(temporary) / "work"
        work.mkdir()
        for path in data_files(root / "book"):
            copy = work / path.relative_to(root / "book")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        store = results or root / "results"  # addressed by content: equal results are computed once
        store.mkdir(parents=True, exist_ok=True)
        (work / "results").symlink_to(store.resolve())
        run_notebook(source, work / f"{name}.ipynb", parameters, work, where)
        if remembered(*about) != kept:
            raise BuildError(f"{source.name}: something that it depends on was edited while it ran: build again")
        finished = Path(temporary) / "finished"
        finished.mkdir()
        os.replace(work / f"{name}.ipynb", finished / f"{name}.ipynb")
        if (work / "figures").is_dir():
            os.replace(work / "figures", finished / "figures")
        if not kept.exists():
            os.replace(finished, kept)
    for old in sorted(cache.glob(f"{name}-*"), key=lambda folder: folder.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old)
    print(f"executing {name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return kept


def with_outputs(source: Path, executed: Path) -> NotebookNode:
    """The text notebook `source` with the outputs of its executed cells."""
    notebook = jupytext.read(source)
    done = [cell for cell in read(executed, as_version=4).cells if "injected-parameters" not in cell.metadata["tags"]]
    for cell, ran in zip(code_cells(notebook), done, strict=True):
        cell.outputs, cell.execution_count = ran.outputs, ran.execution_count
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # otherwise drawn at random
    return notebook


def run_notebook(
    source: Path, target: Path, parameters: dict[str, str], folder: Path, where: dict[str, str] | None = None
) -> None:
    """Run the cells of `source` in `folder`; `target` appears only when every one has succeeded.

    Of the parameters in `where` those are given that the notebook declares.

    Raises:
        BuildError: an undeclared parameter, a failing cell, with the cell's own error, or a module of the library that
            `depend.reachable` has missed.
    """
    import papermill
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    notebook = jupytext.read(source)
    notebook.cells = code_cells(notebook)
    reachable = depend.reachable([cell.source for cell in notebook.cells], depend.library())
    with tempfile.TemporaryDirectory(prefix="notebook-") as temporary:
        prepared, output, imported = (Path(temporary) / name for name in ("in.ipynb", "out.ipynb", "imported.json"))
        notebook.cells.append(new_code_cell(IMPORTED.format(path=str(imported))))
        jupytext.write(notebook, prepared)
        declared = papermill.inspect_notebook(prepared)
        if unknown := sorted(set(parameters) - set(declared)):
            raise BuildError(f"{source.name} declares no parameter {', '.join(unknown)}: it would be ignored")
        try:
            papermill.execute_notebook(
                prepared,
                output,
                parameters=parameters | {key: value for key, value in (where or {}).items() if key in declared},
                cwd=folder,
                kernel_name="python3",
                progress_bar=False,
                config=Config(KernelManager={"transport": "ipc"}),  # sockets of this user, not ports of the machine
            )
        except PapermillExecutionError as problem:
            trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(problem.traceback or []))
            raise BuildError(f"{source.name}: a cell fails with {problem.ename}: {problem.evalue}\n{trace}") from None
        missed = set(json.loads(imported.read_text())) & depend.modules(depend.library()).keys() - reachable.keys()
        if missed:
            raise BuildError(
                f"{source.name} reaches {', '.join(sorted(missed))} other than by an import statement, "
                "so a change there would not run it again: import it plainly"
            )
        done = read(output, as_version=4)
        done.cells.pop()
        staged = target.with_suffix(".part")
        write(done, staged)
        os.replace(staged, target)

"""Run chapters: text notebook to executed notebook, remembered by everything the result depends on."""

import hashlib
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from ci.failure import BuildError

KEPT = 10
"""Executions of one chapter that are remembered."""


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


def cache_key(root: Path, source: Path, parameters: dict[str, str], device: str) -> str:
    """SHA-256 over notebook, parameters, library, data, lock, interpreter and device."""
    files = [source, root / "requirements.lock", *(root / "lib").rglob("*.py"), *data_files(root / "book")]
    digest = hashlib.sha256()
    digest.update(json.dumps([parameters, device, platform.python_version()], sort_keys=True).encode())
    for path in sorted(files):
        digest.update(f"\0{path.relative_to(root)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def execute(root: Path, source: Path, parameters: dict[str, str], cache: Path, device: str) -> Path:
    """The folder that holds the executed `<chapter>.ipynb` and its `figures/`, run now or remembered from an equal run.

    Raises:
        BuildError: a parameter that the notebook does not declare, or a cell that fails; nothing is remembered then.
    """
    name = source.stem
    kept = cache / f"{name}-{cache_key(root, source, parameters, device)[:20]}"
    if kept.is_dir():
        return kept
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
        (root / "results").mkdir(exist_ok=True)
        (work / "results").symlink_to(root / "results")  # a store addressed by content: equal results are computed once
        run_notebook(source, work / f"{name}.ipynb", parameters, work)
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


def run_notebook(source: Path, target: Path, parameters: dict[str, str], folder: Path) -> None:
    """Run `source` in `folder`; `target` appears only when every cell has succeeded.

    Raises:
        BuildError: an undeclared parameter, or a failing cell, with the cell's own error.
    """
    import jupytext
    import papermill
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    notebook = jupytext.read(source)
    with tempfile.TemporaryDirectory(prefix="notebook-") as temporary:
        prepared, output = Path(temporary) / "in.ipynb", Path(temporary) / "out.ipynb"
        jupytext.write(notebook, prepared)
        declared = papermill.inspect_notebook(prepared)
        if unknown := sorted(set(parameters) - set(declared)):
            raise BuildError(f"{source.name} declares no parameter {', '.join(unknown)}: it would be ignored")
        try:
            papermill.execute_notebook(
                prepared,
                output,
                parameters=parameters,
                cwd=folder,
                kernel_name="python3",
                progress_bar=False,
                config=Config(KernelManager={"transport": "ipc"}),  # sockets of this user, not ports of the machine
            )
        except PapermillExecutionError as problem:
            trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(problem.traceback or []))
            raise BuildError(f"{source.name}: a cell fails with {problem.ename}: {problem.evalue}\n{trace}") from None
        staged = target.with_suffix(".part")
        shutil.copyfile(output, staged)
        os.replace(staged, target)

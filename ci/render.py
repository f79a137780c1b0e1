"""Run Jupyter Book over the staging folder, once for HTML and once for PDF."""

import gzip
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from ci.failure import BuildError

PDF_TOOLS = ("latexmk", "xelatex", "pdftotext", "pdffonts")
DOCUMENT = "fingerprint-not-blueprint"
SOURCES = f"{DOCUMENT}-latex.tar.gz"
MATHJAX = (
    "startup.js",
    "core.js",
    "input/tex.js",
    "input/tex/extensions",
    "output/chtml.js",
    "output/chtml/fonts",
    "a11y/assistive-mml.js",
)


def missing_pdf_tools() -> list[str]:
    """The programs that the PDF needs and this machine lacks."""
    return [tool for tool in PDF_TOOLS if not shutil.which(tool)]


def copy_mathjax(target: Path) -> None:
    """Put the part of MathJax that the pages load beside them, so that formulae need no network."""
    found = importlib.util.find_spec("sphinx-mathjax-offline")
    if not found or not found.submodule_search_locations:
        raise BuildError("the package sphinx-mathjax-offline is not installed: run 'make env'")
    source = Path(found.submodule_search_locations[0]) / "static" / "mathjax"
    for part in MATHJAX:
        (target / part).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (source / part).is_dir() else shutil.copyfile
        copy(source / part, target / part)


def bundle(latex: Path, target: Path, epoch: int) -> None:
    """Pack what LaTeX needs to make the PDF, and nothing it made, into one archive; equal sources give equal bytes."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime, member.mode = epoch, 0o644
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    made = {
        f"{DOCUMENT}{suffix}" for suffix in (".aux", ".fdb_latexmk", ".fls", ".log", ".out", ".pdf", ".toc", ".xdv")
    }
    part = target.with_name(f".{target.name}.part")
    with (
        part.open("wb") as stream,
        gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in sorted(latex.iterdir()):
            if path.name not in made and path.is_file():
                archive.add(path, f"{DOCUMENT}/{path.name}", filter=plain)
    os.replace(part, target)


def jupyter_book(staging: Path, output: Path, builder: str, epoch: int) -> Path:
    """Build with warnings as errors; returns the folder with the pages or with the LaTeX run.

    Raises:
        BuildError: what Jupyter Book reports.
    """
    if importlib.metadata.version("jupyter-book").partition(".")[0] != "1":
        raise BuildError("jupyter-book 1 is needed, later ones read other files: run 'make env'")
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    program = Path(sys.executable).with_name("jupyter-book")
    command = [str(program), "build", str(staging), "--path-output", str(output)]
    command += ["-W", "-n", "--keep-going", "--all", "--builder", builder]
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch), "FORCE_SOURCE_DATE": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parent.parent)  # for the extension ci.rootpage
    log = output / "build.log"
    with log.open("wb") as stream:
        finished = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, env=environment, check=False)
    if finished.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        telling = [line for line in lines if "WARNING" in line or "ERROR" in line or line.startswith("!")]
        raise BuildError("\n".join([*(telling or lines[-30:]), f"the {builder} build failed; its log is {log}"]))
    return output / "_build" / ("html" if builder == "html" else "latex")

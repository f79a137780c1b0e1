"""The published site: one folder a version, `latest`, `switcher.json`. `python -m ci.publish` adds what was built last.

    site/0.2.0/          pages, PDF, LaTeX source, provenance, ro-crate-metadata.json with the SHA-256 of every file
    site/latest          a link to the newest release, or to the newest version before there is one
    site/switcher.json   the versions, newest first, for the list on every page
    site/index.html      leads to latest

A version is moved into place whole and never written again. Whoever reads the site while this runs, or after it was
killed, finds what was published before.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock
from packaging.version import InvalidVersion, Version

from ci import crate
from ci.failure import BuildError, told
from ci.render import DOCUMENT, SOURCES
from ci.version import REHEARSAL

ROOT = Path(__file__).resolve().parent.parent
FRONT = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Fingerprint, Not Blueprint</title>
<meta http-equiv="refresh" content="0; url=latest/index.html"></head>
<body><p><a href="latest/index.html">The latest version</a></p></body></html>
"""


def swap(made: Path, target: Path) -> None:
    """Move the folder `made` beside `target` and let the link `target` lead there, in one step."""
    home = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=target.parent))
    os.replace(made, home)
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    _point(target, home.name)
    for old in target.parent.glob(f"{target.name}-*"):
        if old != home:
            shutil.rmtree(old)


def add(built: Path, site: Path, citation: Path) -> Path:
    """Publish the book in `built` as a version of `site`; returns its folder.

    Raises:
        BuildError: an incomplete build, a rehearsal, one of a tree with changes, or another content under a version
            that is there.
    """
    state = built / "built.json"
    if not state.is_file():
        raise BuildError(f"there is no finished book in {built}: run 'make book' first")
    about = json.loads(state.read_text(encoding="utf-8"))
    if about["profile"] == REHEARSAL:
        raise BuildError(f"the book in {built} is a rehearsal, whose models are not those it names: it stays here")
    if "+" in about["commit"] or about["commit"] == "unknown":
        raise BuildError(f"the book in {built} is not of a commit ({about['commit']}): commit, and build again")
    if not about["pdf"]:
        raise BuildError(f"the book in {built} has no PDF: run 'make book PDF=required'")
    site.mkdir(parents=True, exist_ok=True)
    with FileLock(site / ".lock"):
        for rest in site.glob(".part-*"):  # of a run that was killed
            shutil.rmtree(rest)
        made = Path(tempfile.mkdtemp(prefix=".part-", dir=site))
        shutil.copytree(built / "html", made, dirs_exist_ok=True)
        for name in (f"{DOCUMENT}.pdf", SOURCES):
            shutil.copyfile(built / name, made / name)
        crate.write(made, about, citation)
        made.chmod(0o755)
        target = site / about["version"]
        if not target.exists():
            os.replace(made, target)
        elif (made / crate.NAME).read_bytes() == (target / crate.NAME).read_bytes():
            shutil.rmtree(made)
        else:
            shutil.rmtree(made)
            raise BuildError(
                f"version {target.name} is published with other content: a new content needs a new version"
            )
        _index(site)
    return target


def index(site: Path) -> None:
    """Write anew what names the versions, from the folders that are there."""
    with FileLock(site / ".lock"):
        _index(site)


def versions(site: Path) -> list[Version]:
    """The published versions, newest first."""
    found = []
    for folder in site.iterdir():
        if (folder / crate.NAME).is_file() and not folder.is_symlink():
            try:
                found.append(Version(folder.name))
            except InvalidVersion:
                raise BuildError(f"{folder} holds a version, but its name is none") from None
    return sorted(found, reverse=True)


def _index(site: Path) -> None:
    known = versions(site)
    if not known:
        raise BuildError(f"{site} holds no version")
    latest = next((version for version in known if not version.is_prerelease), known[0])
    entries = [
        {"name": str(version), "version": str(version), "url": f"{version}/", "preferred": version == latest}
        for version in known
    ]
    text = json.dumps(entries, indent=1) + "\n"
    _replace(site / "switcher.json", lambda path: path.write_text(text, encoding="utf-8"))
    _point(site / "latest", str(latest))
    _replace(site / "index.html", lambda path: path.write_text(FRONT, encoding="utf-8"))


def _point(link: Path, to: str) -> None:
    _replace(link, lambda path: path.symlink_to(to))


def _replace(path: Path, make: Callable[[Path], object]) -> None:
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    make(part)
    os.replace(part, path)


@told
def main(words: list[str] | None = None) -> None:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Publish the book that was built last as a version of the site.")
    parser.add_argument("--built", type=Path, default=ROOT / "_build", help="where the book was built")
    parser.add_argument("--site", type=Path, default=ROOT / "site", help="where the versions are")
    parser.add_argument("--index", action="store_true", help="add nothing: name the versions that are there")
    arguments = parser.parse_args(words)
    if arguments.index:
        index(arguments.site)
    else:
        print(add(arguments.built, arguments.site, ROOT / "CITATION.cff"))


if __name__ == "__main__":
    sys.exit(main())

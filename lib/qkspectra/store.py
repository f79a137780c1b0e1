"""Results addressed by content: what was asked, with which parameters, computed by which source.

A result is a table (`<name>.parquet`) beside its provenance (`<name>.json`). The JSON is written last and carries the
SHA-256 of the Parquet bytes, so a result exists exactly when its JSON does, and a table cut short or exchanged is
noticed. Both files are written under a temporary name and moved into place: a reader never sees half of one.

    store = Store(Path("results"))
    address = Address("bans", {"scheme": "rope", "seed": 3}, source_hash(qkspectra.toy.train, qkspectra.toy.model))
    result = store.cached(address, compute, seeds=[3])      # runs compute() only where no such result exists
    result.table, result.provenance["seconds"]

Tables that ship with the project are the same pairs under a readable name: `ship` writes one, `read` reads it back and
refuses it when it belongs to another configuration.
"""

import hashlib
import inspect
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
from filelock import FileLock

from qkspectra import record
from qkspectra.errors import InputError

_LIBRARY = Path(__file__).parent


@dataclass(frozen=True)
class Address:
    """What a result is the result of.

    Attributes:
        study: name of the computation, a file-name prefix.
        parameters: everything the result depends on besides the source; JSON values only.
        sources: hash of the source text that computes it (`source_hash`).
    """

    study: str
    parameters: Mapping[str, Any]
    sources: str

    @property
    def key(self) -> str:
        """`study-` and 20 hexadecimal digits of SHA-256 over study, parameters and sources."""
        text = _canonical({"study": self.study, "parameters": self.parameters, "sources": self.sources})
        return f"{self.study}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


@dataclass(frozen=True)
class Result:
    """A table and how it came to be."""

    table: pd.DataFrame
    provenance: dict[str, Any]


class Store:
    """A folder of results. Any number of processes may read and write it at once.

    Args:
        root: the folder; created on the first write.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def get(self, address: Address) -> Result | None:
        """The stored result, `None` where there is none.

        Raises:
            InputError: the files under this address are damaged or belong to another configuration.
        """
        path = self.root / address.key
        if not path.with_suffix(".json").exists():
            return None
        return read(path, address.study, address.parameters)

    def put(
        self,
        address: Address,
        table: pd.DataFrame,
        *,
        seconds: float,
        seeds: Sequence[int] = (),
        device: str = "cpu",
        **extra: Any,
    ) -> Result:
        """Store a table under its address, replacing an older one.

        Args:
            seconds: how long the computation took.
            seeds: random seeds that entered it.
            device: where it ran.
            extra: more JSON values for the provenance.
        """
        made = {**provenance(address, seconds=seconds, seeds=seeds, device=device), **extra}
        stored = _write(self.root / address.key, table, made)
        record.result(stored.provenance, shipped=False)
        return stored

    def cached(
        self,
        address: Address,
        compute: Callable[[], pd.DataFrame],
        *,
        seeds: Sequence[int] = (),
        device: str = "cpu",
        **extra: Any,
    ) -> Result:
        """The stored result, or else `compute()`, stored."""
        found = self.get(address)
        if found is not None:
            return found
        start = time.perf_counter()
        table = compute()
        return self.put(address, table, seconds=time.perf_counter() - start, seeds=seeds, device=device, **extra)

    def results(self) -> list[Result]:
        """Everything in the store, in the order of its keys.

        Raises:
            InputError: a result is damaged.
        """
        return [read(path.with_suffix("")) for path in sorted(self.root.glob("*.json"))]

    def add(self, result: Result) -> None:
        """Store a result of another store under its own address, with its own provenance."""
        made = result.provenance
        _write(self.root / Address(made["study"], made["parameters"], made["sources"]).key, result.table, made)


def ship(result: Result, path: Path) -> Result:
    """Write a result under a readable name: `path` with the suffixes `.parquet` and `.json`."""
    return _write(path, result.table, result.provenance)


def ship_tables(results: Mapping[str, Result], folder: Path, study: str) -> None:
    """Ship the tables of one study, each as `<study>-<name>`."""
    for name, result in results.items():
        ship(result, folder / f"{study}-{name}")


def read_tables(folder: Path, study: str, names: Sequence[str]) -> dict[str, Result]:
    """Read what `ship_tables` wrote.

    Raises:
        InputError: a table is missing or damaged.
    """
    return {name: read(folder / f"{study}-{name}", f"{study}-{name}") for name in names}


def unpacked(results: Mapping[str, Result]) -> dict[str, Any]:
    """Tables by name, and the `provenance` of each by name: the fields of a class that holds one study."""
    tables: dict[str, Any] = {name: result.table for name, result in results.items()}
    return {**tables, "provenance": {name: result.provenance for name, result in results.items()}}


def read(path: Path, study: str | None = None, parameters: Mapping[str, Any] | None = None) -> Result:
    """Read the result `path` + `.parquet` / `.json`.

    Args:
        path: without suffix.
        study: what the caller takes it for; `None` accepts any.
        parameters: the configuration the caller takes it for; `None` accepts any.

    Raises:
        InputError: a file is missing or damaged, or the result belongs to another study or configuration.
    """
    provenance_path, table_path = path.with_suffix(".json"), path.with_suffix(".parquet")
    try:
        made = json.loads(provenance_path.read_text(encoding="utf-8"))
        content = table_path.read_bytes()
    except FileNotFoundError as error:
        raise InputError(f"no result file {error.filename}: run the study that writes it") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise InputError(f"{provenance_path} is not a provenance file: delete it and run the study again") from None
    if not isinstance(made, dict) or not {"study", "parameters", "table_sha256"} <= made.keys():
        raise InputError(f"{provenance_path} is not a provenance file: delete it and run the study again")
    if study is not None and made["study"] != study:
        raise InputError(f"{provenance_path} is a result of study {made['study']!r}, not of {study!r}")
    if parameters is not None and (difference := _difference(made["parameters"], parameters)):
        raise InputError(
            f"{provenance_path} comes from another configuration ({difference}): "
            "run the study with this configuration or name another folder"
        )
    if hashlib.sha256(content).hexdigest() != made["table_sha256"]:
        raise InputError(f"{table_path} does not match its provenance: delete it and run the study again")
    address = Address(made["study"], made["parameters"], made["sources"])
    record.result(made, shipped=path.name != address.key)
    return Result(pd.read_parquet(table_path), made)


def provenance(address: Address, *, seconds: float, seeds: Sequence[int], device: str) -> dict[str, Any]:
    """What, from which commit and library, on what and for how long."""
    return {
        "study": address.study,
        "parameters": dict(address.parameters),
        "sources": address.sources,
        "commit": commit(),
        "library": library_hash(),
        "seeds": list(seeds),
        "device": device,
        "seconds": round(seconds, 3),
        "versions": record.versions(),
    }


def origin(results: Sequence[Result]) -> dict[str, Any]:
    """Commit, library, versions and devices of some results, which may be older than a table gathered from them.

    Raises:
        InputError: they come from more than one state of the library.
    """
    names = ("commit", "library", "versions")
    origins = {repr([result.provenance[name] for name in names]): result.provenance for result in results}
    if len(origins) > 1:
        raise InputError("the results in the store come from several states of the library: use a fresh store")
    (made,) = origins.values()
    devices = sorted({result.provenance["device"] for result in results})
    return {**{name: made[name] for name in names}, "device": " and ".join(devices)}


def source_hash(*modules: ModuleType) -> str:
    """SHA-256 over the source text of the modules, in the order of their names."""
    digest = hashlib.sha256()
    for module in sorted(modules, key=lambda m: m.__name__):
        digest.update(f"{module.__name__}\0{inspect.getsource(module)}\0".encode())
    return digest.hexdigest()[:20]


@cache
def library_hash() -> str:
    """SHA-256 over every source file of the library as it lies on disk."""
    digest = hashlib.sha256()
    for path in sorted(_LIBRARY.rglob("*.py")):
        digest.update(f"{path.relative_to(_LIBRARY).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:20]


@cache
def commit() -> str | None:
    """The commit of the checkout that holds the library, `+` appended where the library differs from it.

    `None` outside a checkout.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(_LIBRARY), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # An installed copy inside somebody else's checkout is not that checkout's commit.
        git("ls-files", "--error-unmatch", "store.py")
        changed = git("status", "--porcelain", "--", ".")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends, and is removed when it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _write(path: Path, table: pd.DataFrame, made: dict[str, Any]) -> Result:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without the lock, two writers of one address could leave the table of one beside the provenance of the other.
    with FileLock(path.with_name(".lock")):
        with replacing(path.with_suffix(".parquet")) as temporary:
            table.to_parquet(temporary, index=False, compression="zstd")
            made = {**made, "table_sha256": hashlib.sha256(temporary.read_bytes()).hexdigest()}
        with replacing(path.with_suffix(".json")) as temporary:
            text = json.dumps(made, indent=1, sort_keys=True, allow_nan=False)
            temporary.write_text(text + "\n", encoding="utf-8")
    return Result(table, made)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a parameter of type {type(value).__name__} cannot be part of an address: use JSON values")


def _difference(stored: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """The first parameter that differs, in words; empty where none does."""
    stored, asked = json.loads(_canonical(stored)), json.loads(_canonical(asked))
    for name in sorted(stored.keys() | asked.keys()):
        if stored.get(name) != asked.get(name) or (name in stored) != (name in asked):
            return f"{name} is {stored.get(name)!r} there and {asked.get(name)!r} here"
    return ""


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

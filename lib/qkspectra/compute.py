"""Units of work, in this process, in others, or on a Dask cluster: the same results, kept as they come.

A unit knows what of it the store lacks, and how to compute and store that. A run that is killed loses at most the units
in progress; the next run takes up the rest.

    run(units, store)                                     # in this process
    with workers(2) as executor:                          # two processes
        run(units, store, executor)
    with workers(scheduler="tcp://host:8786") as executor:
        run(units, store, executor)                       # wherever that cluster's workers are

Processes of this machine write into the store themselves. The workers of a cluster need not see its folder: each runs
its unit in a scratch store and sends back what came to lie there, and this process puts it into the store. What a unit
reads must be within the workers' reach: a model on the Hub is, a local folder only on a shared file system.
"""

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from qkspectra.device import CPU, chosen
from qkspectra.errors import InputError
from qkspectra.store import Result, Store, library_hash

_PATIENCE = 10.0
"""Seconds for a scheduler's first answer."""

_ALONE = threading.Lock()
"""A unit takes its process for itself, though a Dask worker may have several threads: torch's number of threads and
standard error belong to the process."""


@runtime_checkable
class Unit(Protocol):
    """A piece of work that can be pickled."""

    @property
    def label(self) -> str:
        """What a person would call it."""

    def rest(self, store: Store) -> "Unit | None":
        """The part of it whose results the store lacks; `None` where there is none."""

    def run(self, store: Store) -> None:
        """Compute what the store lacks and store it."""


Progress = Callable[[int, int, str], None]


def run(
    units: Sequence[Unit],
    store: Store,
    executor: Executor | None = None,
    progress: Progress = lambda done, total, label: None,
) -> int:
    """Run every unit whose results are missing; returns how many that were.

    Args:
        executor: where to run them (`workers`); `None` for this process, one after another.
        progress: called with the units finished so far, their total and the label of the last: once before anything
            runs and after each unit.

    Raises:
        The first exception of a unit, after which no further unit is started.
    """
    missing = [rest for unit in units if (rest := unit.rest(store)) is not None]
    total = len(units)
    finished = total - len(missing)
    progress(finished, total, "stored before" if finished else "")
    if executor is None:
        for unit in missing:
            unit.run(store)
            finished += 1
            progress(finished, total, unit.label)
        return len(missing)
    shared = isinstance(executor, ProcessPoolExecutor)
    library = library_hash()
    futures: dict[Future[Any], str] = {}
    try:
        for unit in missing:
            futures[executor.submit(_elsewhere, unit, library, store if shared else None)] = unit.label
        for future in as_completed(futures):
            for result in future.result():
                store.add(result)
            finished += 1
            progress(finished, total, futures[future])
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    return len(missing)


def _elsewhere(unit: Unit, library: str, store: Store | None) -> list[Result]:
    """Run a unit in this process for another one; returns its results unless both see the same `store`.

    Raises:
        InputError: this process has another state of the library than the caller.
    """
    if library_hash() != library:
        raise InputError("a worker runs another version of the library than its caller: start it again from the same")
    import torch

    torch.set_num_threads(1)
    with _ALONE, tempfile.TemporaryDirectory(prefix="qkspectra-") as scratch:
        own = Store(Path(scratch))
        unit.run(store or own)
        return own.results()


@contextmanager
def workers(count: int = 1, scheduler: str | None = None) -> Iterator[Executor | None]:
    """Where `run` is to run units: that many processes (`None`, this process, for one), or a Dask cluster.

    Args:
        count: processes of one thread each.
        scheduler: address of a Dask scheduler, such as `tcp://host:8786`; its workers do everything.

    Raises:
        InputError: a count below 1, or one beside a scheduler; no scheduler at that address. Inside the block, for a
            worker process that was killed, a unit that killed every worker it was given to, or a scheduler that went
            away.
    """
    if count < 1:
        raise InputError(f"{count} workers cannot work: use 1 or more")
    if scheduler:
        if count > 1:
            raise InputError("workers and a scheduler exclude each other: a cluster has workers of its own")
        with _cluster(scheduler) as executor:
            yield executor
    elif count == 1:
        yield None
    else:
        with _processes(count) as executor:
            yield executor


@contextmanager
def _processes(count: int) -> Iterator[Executor]:
    # Fresh interpreters: a fork would inherit torch's threads in whatever state they are.
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as executor:
        try:
            yield executor
        except BrokenProcessPool:
            raise InputError(
                "a worker process was killed, perhaps for want of memory: run the same again with fewer workers,"
                " what has finished is kept"
            ) from None


@contextmanager
def _cluster(address: str) -> Iterator[Executor]:
    from distributed import Client, KilledWorker

    try:
        client = Client(address, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"no Dask scheduler answers at {address!r} ({error}): start one (`dask scheduler`) and give the address"
            " that it prints"
        ) from None
    with client:
        try:
            yield client.get_executor(pure=False)
        except KilledWorker:
            raise InputError(
                "every worker that was given one of the units died, perhaps for want of memory: give workers more and"
                " run the same again, what has finished is kept"
            ) from None
        except CancelledError:
            raise InputError(
                f"the scheduler at {address} went away: start it and run the same again, what has finished is kept"
            ) from None


def processes() -> int:
    """Processes among which to divide what runs on this process's device: one a core, or one for an accelerator."""
    return cores() if chosen() == CPU else 1


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

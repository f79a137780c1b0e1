"""Units of work, in this process or in others: the same results, kept as they come.

A unit knows how to tell whether the store already has its results and how to compute and store them. Nothing travels
back from it but the news that it is done, so whatever runs units needs only the store in common. A run that is killed
loses at most the units in progress; the next run takes up the rest.

    run(units, store)                                     # in this process
    with processes(2) as executor:
        run(units, store, executor)                       # two at a time
    # any concurrent.futures.Executor will do, such as `dask.distributed.Client(...).get_executor()`
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Protocol, runtime_checkable

from qkspectra.errors import InputError
from qkspectra.store import Store


@runtime_checkable
class Unit(Protocol):
    """A piece of work that can be pickled."""

    @property
    def label(self) -> str:
        """What a person would call it."""

    def done(self, store: Store) -> bool:
        """Whether the store has all its results."""

    def run(self, store: Store) -> None:
        """Compute what is missing and store it."""


Progress = Callable[[int, int, str], None]


def run(
    units: Sequence[Unit],
    store: Store,
    executor: Executor | None = None,
    progress: Progress = lambda done, total, label: None,
) -> int:
    """Run every unit whose results are missing; returns how many that were.

    Args:
        executor: where to run them; `None` for this process, one after another.
        progress: called with the units finished so far, their total and the label of the last: once before anything
            runs and after each unit.

    Raises:
        The first exception of a unit, after which no further unit is started.
    """
    missing = [unit for unit in units if not unit.done(store)]
    total = len(units)
    finished = total - len(missing)
    progress(finished, total, "stored before" if finished else "")
    if executor is None:
        for unit in missing:
            unit.run(store)
            finished += 1
            progress(finished, total, unit.label)
        return len(missing)
    futures: dict[Future[None], str] = {executor.submit(unit.run, store): unit.label for unit in missing}
    try:
        for future in as_completed(futures):
            future.result()
            finished += 1
            progress(finished, total, futures[future])
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    return len(missing)


@contextmanager
def processes(workers: int) -> Iterator[Executor | None]:
    """An executor of that many processes of one thread each; `None`, this process, for one worker.

    Raises:
        InputError: workers below 1.
    """
    if workers < 1:
        raise InputError(f"{workers} workers cannot work: use 1 or more")
    if workers == 1:
        yield None
        return
    # Fresh interpreters: a fork would inherit torch's threads in whatever state they are.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_one_thread) as executor:
        yield executor


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

"""Checkpoints of a training run: their labels, their steps, and schedules known by name.

A label is a branch or tag of a Hub repository, or a subfolder of a local trajectory. `stepN` is Pythia's spelling;
`step-N`, `step_N`, `global_stepN`, `checkpoint-N` and a trailing `-tokensNB` are other families'.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from qkspectra.errors import InputError

_LABEL = re.compile(r"(?:(?:global_?)?step|checkpoint)[-_]?(\d+)(?:-tokens\d+[KMBT])?", re.IGNORECASE)


@dataclass(frozen=True)
class Schedule:
    """When a family was saved.

    Attributes:
        name: what the user types.
        steps: in ascending order.
        tokens: seen in one step.
    """

    name: str
    steps: tuple[int, ...]
    tokens: int


SCHEDULES: dict[str, Schedule] = {
    # Biderman et al. 2023 (Pythia), section 2: 154 checkpoints, batches of 1,024 sequences of 2,048 tokens. The labels
    # of the first release (`-v0` in the name) count the same tokens, though some of its sizes took half as many steps
    # of twice the batch: so tokens, not optimiser steps, are what its labels mean. It lacks the steps below 1000.
    "pythia": Schedule(
        "pythia", (0, *(2**i for i in range(10)), *range(1000, 144_000, 1000)), tokens=1024 * 2048
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Revision:
    """One checkpoint of a model.

    Attributes:
        name: branch or tag of a Hub repository, or subfolder of a local trajectory.
        step: the number in the name.
        tokens: seen up to it, where a schedule says how many a step has.
        commit: what the name stood for on the Hub when it was listed; opening the revision opens this commit.
    """

    name: str
    step: int
    tokens: int | None = None
    commit: str | None = None


def schedule(name: str) -> Schedule:
    """A schedule by name.

    Raises:
        InputError: no such schedule.
    """
    try:
        return SCHEDULES[name]
    except KeyError:
        raise InputError(f"there is no schedule {name!r}: choose from {', '.join(SCHEDULES)}") from None


def step_of(label: str) -> int | None:
    """The step in a label, `None` where it names no step.

    >>> [step_of(label) for label in ("step512", "global_step1000", "step1000-tokens4B", "checkpoint-20", "main")]
    [512, 1000, 1000, 20, None]
    """
    match = _LABEL.fullmatch(label)
    return int(match[1]) if match else None


def in_order(labels: Iterable[tuple[str, str | None]], wanted: Schedule | None = None) -> list[Revision]:
    """The checkpoints among labels, in the numeric order of their steps (as text, step99000 comes after step143000).

    Args:
        labels: each with its commit, `None` for a folder.
        wanted: take its steps alone, and count tokens by it.

    Raises:
        InputError: a step of the schedule is missing.
    """
    found = sorted((step, label, commit) for label, commit in labels if (step := step_of(label)) is not None)
    if wanted is None:
        return [Revision(label, step, None, commit) for step, label, commit in found]
    missing = sorted(set(wanted.steps) - {step for step, _, _ in found})
    if missing:
        some = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
        raise InputError(
            f"{len(missing)} of the {len(wanted.steps)} steps of the schedule {wanted.name} are missing ({some}):"
            " without --schedule, those that are there are taken"
        )
    return [
        Revision(label, step, step * wanted.tokens, commit) for step, label, commit in found if step in wanted.steps
    ]

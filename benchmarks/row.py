"""What a benchmark reports."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measured number.

    Attributes:
        name: what was measured.
        value: the number; `None` where a peer is not installed, with the reason in `note`.
        limit: the largest allowed value, `None` for a row that only informs.
        unit: of value and limit, such as `x` for a ratio, `s` or `MB`.
        note: how it was measured, in a few words.
    """

    name: str
    value: float | None
    limit: float | None
    unit: str
    note: str = ""

    @property
    def kept(self) -> bool:
        return self.limit is None or (self.value is not None and self.value <= self.limit)


def best_times(candidates: dict[str, Callable[[], object]], repeats: int = 12) -> dict[str, float]:
    """Shortest time of each candidate in seconds; they take turns, so that a busy moment hits all alike."""
    best = dict.fromkeys(candidates, float("inf"))
    for turn in range(repeats + 1):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            if turn:  # the first turn warms up
                best[name] = min(best[name], time.perf_counter() - start)
    return best

"""Units give the same results wherever they run, and a stopped run loses and repeats nothing."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from qkspectra.compute import processes, run
from qkspectra.errors import InputError
from qkspectra.store import Address, Store


@dataclass(frozen=True)
class Square:
    """A unit that leaves a mark each time it runs."""

    number: int
    marks: Path
    fails: bool = False

    @property
    def label(self) -> str:
        return f"square of {self.number}"

    @property
    def address(self) -> Address:
        return Address("square", {"number": self.number}, "")

    def done(self, store: Store) -> bool:
        return store.get(self.address) is not None

    def run(self, store: Store) -> None:
        with (self.marks / str(self.number)).open("a") as mark:
            mark.write("x")
        if self.fails:
            raise InputError("this one fails")
        store.put(self.address, pd.DataFrame({"square": [self.number**2]}), seconds=0.0)


@pytest.mark.parametrize("workers", [1, 2])
def test_every_missing_unit_runs_once(tmp_path: Path, workers: int) -> None:
    store, marks = Store(tmp_path / "store"), tmp_path / "marks"
    marks.mkdir()
    units = [Square(number, marks) for number in range(4)]
    units[2].run(store)
    news: list[tuple[int, int, str]] = []
    with processes(workers) as executor:
        assert run(units, store, executor, lambda *item: news.append(item)) == 3
        assert run(units, store, executor) == 0
    assert [(done, total) for done, total, _ in news] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert {label for _, _, label in news[1:]} == {f"square of {n}" for n in (0, 1, 3)}
    assert sorted(mark.read_text() for mark in marks.iterdir()) == ["x"] * 4
    tables = [store.get(unit.address) for unit in units]
    assert [int(result.table["square"][0]) for result in tables if result] == [0, 1, 4, 9]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_surfaces_and_what_was_finished_stays(tmp_path: Path, workers: int) -> None:
    store = Store(tmp_path / "store")
    units = [Square(0, tmp_path), Square(1, tmp_path, fails=True)]
    with processes(workers) as executor, pytest.raises(InputError, match="this one fails"):
        run(units, store, executor)
    assert not units[1].done(store)
    repaired = [Square(0, tmp_path), Square(1, tmp_path)]
    run(repaired, store)
    assert all(unit.done(store) for unit in repaired)


def test_no_workers_is_refused() -> None:
    with pytest.raises(InputError, match="0 workers cannot work"), processes(0):
        pass

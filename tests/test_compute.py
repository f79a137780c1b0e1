"""Units give the same results wherever they run, and a stopped run loses and repeats nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import dask
import pandas as pd
import pytest
from distributed import LocalCluster
from typer.testing import CliRunner

from qkspectra import compute
from qkspectra.cli import app
from qkspectra.compute import run, workers
from qkspectra.errors import InputError
from qkspectra.store import Address, Store


@dataclass(frozen=True)
class Square:
    """A unit that leaves a mark each time it runs."""

    number: int
    marks: Path
    fails: bool = False
    hangs: int = 0
    """So many times it says which process it is in and waits for its death."""

    @property
    def label(self) -> str:
        return f"square of {self.number}"

    @property
    def address(self) -> Address:
        return Address("square", {"number": self.number}, "")

    def rest(self, store: Store) -> "Square | None":
        return self if store.get(self.address) is None else None

    def run(self, store: Store) -> None:
        with (self.marks / str(self.number)).open("a") as mark:
            mark.write("x")
        if self.fails:
            raise InputError("this one fails")
        if len((self.marks / str(self.number)).read_text()) <= self.hangs:
            (self.marks / f"process-{os.getpid()}").touch()
            time.sleep(60)
        store.put(self.address, pd.DataFrame({"square": [self.number**2]}), seconds=0.0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    # Any port: two processes of the suite may each have a cluster.
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as running:
        yield running


@pytest.fixture
def address(cluster: LocalCluster) -> str:
    return cluster.scheduler_address


def killing(marks: Path, times: int) -> Thread:
    """Kills each process that waits for it, until so many are dead."""

    def watch() -> None:
        dead = 0
        while dead < times:
            time.sleep(0.02)
            for path in marks.glob("process-*"):
                path.unlink()
                os.kill(int(path.name.removeprefix("process-")), signal.SIGKILL)
                dead += 1

    thread = Thread(target=watch, daemon=True)
    thread.start()
    return thread


PLACES = {"here": {}, "processes": {"count": 2}, "cluster": {}}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param == "cluster":
        return {"scheduler": request.getfixturevalue("address")}
    return PLACES[request.param]


def test_every_missing_unit_runs_once(tmp_path: Path, place: dict[str, Any]) -> None:
    store, marks = Store(tmp_path / "store"), tmp_path / "marks"
    marks.mkdir()
    units = [Square(number, marks) for number in range(4)]
    units[2].run(store)
    news: list[tuple[int, int, str]] = []
    with workers(**place) as executor:
        assert run(units, store, executor, lambda *item: news.append(item)) == 3
        assert run(units, store, executor) == 0
    assert [(done, total) for done, total, _ in news] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert {label for _, _, label in news[1:]} == {f"square of {n}" for n in (0, 1, 3)}
    assert sorted(mark.read_text() for mark in marks.iterdir()) == ["x"] * 4
    tables = [store.get(unit.address) for unit in units]
    assert [int(result.table["square"][0]) for result in tables if result] == [0, 1, 4, 9]


def test_a_failure_surfaces_and_what_was_finished_stays(tmp_path: Path, place: dict[str, Any]) -> None:
    store = Store(tmp_path / "store")
    units = [Square(0, tmp_path), Square(1, tmp_path, fails=True)]
    with workers(**place) as executor, pytest.raises(InputError, match="this one fails"):
        run(units, store, executor)
    assert units[1].rest(store) is not None
    repaired = [Square(0, tmp_path), Square(1, tmp_path)]
    run(repaired, store)
    assert all(unit.rest(store) is None for unit in repaired)


def test_the_unit_of_a_killed_worker_is_run_by_another(tmp_path: Path, address: str) -> None:
    store = Store(tmp_path / "store")
    units = [Square(number, tmp_path, hangs=int(number == 1)) for number in range(5)]
    killer = killing(tmp_path, 1)
    with workers(scheduler=address) as executor:
        assert run(units, store, executor) == 5
    killer.join()
    assert all(unit.rest(store) is None for unit in units)
    assert (tmp_path / "1").read_text() == "xx"


def test_a_unit_that_kills_every_worker_is_given_up(
    tmp_path: Path, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.scheduler, "allowed_failures", 0)
    killer = killing(tmp_path, 1)
    with (
        pytest.raises(InputError, match="every worker that was given"),
        workers(scheduler=cluster.scheduler_address) as some,
    ):
        run([Square(0, tmp_path, hangs=9)], Store(tmp_path / "store"), some)
    killer.join()


def test_a_killed_process_is_one_line(tmp_path: Path) -> None:
    killer = killing(tmp_path, 1)
    with pytest.raises(InputError, match="a worker process was killed"), workers(2) as executor:
        run([Square(number, tmp_path, hangs=int(number == 1)) for number in range(3)], Store(tmp_path), executor)
    killer.join()


def test_a_lost_scheduler_is_one_line(tmp_path: Path) -> None:
    told = tmp_path / "scheduler.json"
    words = ["scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(told)]
    scheduler = subprocess.Popen([sys.executable, "-m", "dask", *words], stderr=subprocess.DEVNULL)
    while not told.exists():
        time.sleep(0.05)
    address = json.loads(told.read_text())["address"]
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(InputError, match="went away"),
        workers(scheduler=address) as executor,
    ):
        run(
            [Square(0, tmp_path)], Store(tmp_path / "store"), executor, lambda *_: Thread(target=scheduler.kill).start()
        )
    scheduler.wait()


def test_a_killed_client_resumes_on_the_cluster(tmp_path: Path, address: str) -> None:
    arguments = ["train", "--scheme", "absolute", "--seeds", "5", "--ensemble", "1", "--cap", "10"]
    arguments += ["--results", str(tmp_path / "r"), "--scheduler", address]
    client = subprocess.Popen(
        [sys.executable, "-m", "qkspectra.cli", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    finished: list[Path] = []
    while not finished and client.poll() is None:
        time.sleep(0.01)
        finished = list((tmp_path / "r").glob("toy-*.json"))
    client.send_signal(signal.SIGKILL)
    client.wait()
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "r").glob("toy-*.json")}
    assert 1 <= len(kept) < 5
    out = tmp_path / "cluster.parquet"
    again = CliRunner().invoke(app, [*arguments, "--out", str(out)])
    assert again.exit_code == 0, again.stderr
    assert len(list((tmp_path / "r").glob("toy-*.json"))) == 5
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())
    here = tmp_path / "here.parquet"
    CliRunner().invoke(app, [*arguments[:-3], str(tmp_path / "h"), "--out", str(here)])
    columns = ["seed", "step", "layer", "head", "accuracy", "previous_token"]
    pd.testing.assert_frame_equal(pd.read_parquet(out)[columns], pd.read_parquet(here)[columns], rtol=1e-4, atol=1e-4)


def test_another_state_of_the_library_is_refused(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "library_hash", lambda: "older")
    with pytest.raises(InputError, match="another version of the library"), workers(scheduler=address) as executor:
        run([Square(0, tmp_path)], Store(tmp_path / "store"), executor)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0"], "0 workers cannot work"),
        (["--scheduler", "tcp://127.0.0.1:9"], "no Dask scheduler answers at 'tcp://127.0.0.1:9'"),
        (["--scheduler", "nowhere"], "no Dask scheduler answers at 'nowhere'"),
        (["--scheduler", "tcp://127.0.0.1:9", "--workers", "2"], "exclude each other"),
    ],
)
def test_a_place_that_cannot_be_had_is_one_line_and_exit_two(
    tmp_path: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute, "_PATIENCE", 1.0)
    result = CliRunner().invoke(app, ["train", "--scheme", "rope", "--results", str(tmp_path / "r"), *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "r").exists()

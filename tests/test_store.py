"""Results come back as they went in, and never half, stale or from somewhere else."""

import json
import multiprocessing
from pathlib import Path

import pandas as pd
import pytest

import qkspectra.channels
import qkspectra.errors
from qkspectra.errors import InputError
from qkspectra.store import Address, Store, library_hash, read, replacing, ship, source_hash

TABLE = pd.DataFrame({"seed": [0, 1], "loss": [0.5, float("nan")], "ban": ["none", "phase"]})
ADDRESS = Address("bans", {"scheme": "rope", "layers": [0, 1]}, "abc")


def test_a_result_comes_back_with_its_provenance(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.get(ADDRESS) is None
    store.put(ADDRESS, TABLE, seconds=1.5, seeds=[0, 1], device="cpu", threads=1)
    found = store.get(ADDRESS)
    assert found is not None
    pd.testing.assert_frame_equal(found.table, TABLE)
    made = found.provenance
    assert made["parameters"] == {"scheme": "rope", "layers": [0, 1]}
    assert (made["seconds"], made["seeds"], made["device"], made["threads"]) == (1.5, [0, 1], "cpu", 1)
    assert made["library"] == library_hash()
    assert made["versions"].keys() >= {"torch", "numpy", "pandas"}
    assert str(tmp_path) not in json.dumps(made)


def test_results_move_from_store_to_store_with_their_provenance(tmp_path: Path) -> None:
    one, two = Store(tmp_path / "one"), Store(tmp_path / "two")
    other = Address("costs", {"scheme": "alibi"}, "abc")
    one.put(ADDRESS, TABLE, seconds=1.5, seeds=[0, 1])
    one.put(other, TABLE.head(1), seconds=0.5)
    for result in one.results():
        two.add(result)
    for address in (ADDRESS, other):
        mine, theirs = one.get(address), two.get(address)
        assert mine is not None
        assert theirs is not None
        pd.testing.assert_frame_equal(mine.table, theirs.table)
        assert mine.provenance == theirs.provenance
    assert Store(tmp_path / "nowhere").results() == []


def test_the_address_depends_on_study_parameters_and_sources_but_not_on_their_order() -> None:
    same = Address("bans", {"layers": (0, 1), "scheme": "rope"}, "abc")
    others = [
        Address("costs", ADDRESS.parameters, "abc"),
        Address("bans", {"scheme": "alibi", "layers": [0, 1]}, "abc"),
        Address("bans", ADDRESS.parameters, "abd"),
    ]
    assert same.key == ADDRESS.key
    assert len({ADDRESS.key, *(other.key for other in others)}) == 4


def test_cached_computes_once(tmp_path: Path) -> None:
    calls = []

    def compute() -> pd.DataFrame:
        calls.append(1)
        return TABLE

    for _ in range(2):
        result = Store(tmp_path).cached(ADDRESS, compute)
        pd.testing.assert_frame_equal(result.table, TABLE)
    assert len(calls) == 1


def test_a_failed_computation_or_write_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> pd.DataFrame:
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        Store(tmp_path).cached(ADDRESS, fail)
    target = tmp_path / "table.csv"
    target.write_text("old")

    def fill_the_disk() -> None:
        with replacing(target) as temporary:
            temporary.write_text("ne")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        fill_the_disk()
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]
    assert target.read_text() == "old"


def test_a_table_without_provenance_is_no_result(tmp_path: Path) -> None:
    """The state that a kill between the two files leaves."""
    store = Store(tmp_path)
    store.put(ADDRESS, TABLE, seconds=0.0)
    (tmp_path / f"{ADDRESS.key}.json").unlink()
    assert store.get(ADDRESS) is None


def test_results_that_are_not_what_they_are_taken_for_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "figures" / "bans"
    ship(Store(tmp_path).put(ADDRESS, TABLE, seconds=0.0), path)
    pd.testing.assert_frame_equal(read(path, "bans", ADDRESS.parameters).table, TABLE)
    pd.testing.assert_frame_equal(read(path, "bans").table, TABLE)
    with pytest.raises(InputError, match=r"another configuration \(scheme is 'rope' there and 'alibi' here"):
        read(path, "bans", {"scheme": "alibi", "layers": [0, 1]})
    with pytest.raises(InputError, match=r"another configuration \(steps is None there and 5 here"):
        read(path, "bans", {**ADDRESS.parameters, "steps": 5})
    with pytest.raises(InputError, match="a result of study 'bans', not of 'costs'"):
        read(path, "costs")
    with pytest.raises(InputError, match="no result file"):
        read(tmp_path / "absent", "bans")
    table = path.with_suffix(".parquet")
    table.write_bytes(table.read_bytes()[:-8])
    with pytest.raises(InputError, match="does not match its provenance"):
        read(path, "bans")
    path.with_suffix(".json").write_text('{"study": ')
    with pytest.raises(InputError, match="not a provenance file"):
        read(path, "bans")


def test_parameters_must_be_json() -> None:
    with pytest.raises(TypeError, match="a parameter of type PosixPath cannot be part of an address"):
        _ = Address("bans", {"path": Path("x")}, "").key
    with pytest.raises(ValueError, match="not JSON compliant"):
        _ = Address("bans", {"rate": float("nan")}, "").key


def test_source_hash_follows_the_text_and_not_the_order() -> None:
    both = source_hash(qkspectra.channels, qkspectra.errors)
    assert both == source_hash(qkspectra.errors, qkspectra.channels)
    assert both != source_hash(qkspectra.channels)


def _put_many(root: Path, worker: int) -> None:
    for _ in range(5):
        Store(root).put(ADDRESS, pd.DataFrame({"worker": [worker] * 200}), seconds=0.0)


def test_writers_of_one_address_never_mix(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_put_many, args=(tmp_path, worker)) for worker in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert not list(tmp_path.glob(".*.part"))
    found = Store(tmp_path).get(ADDRESS)
    assert found is not None
    assert found.table["worker"].nunique() == 1

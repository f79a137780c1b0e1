"""The table of benchmarks: a missed limit shows, and decides the exit status."""

import pkgutil
import sys
from types import ModuleType

import pytest
from benchmarks import __main__ as command
from benchmarks.row import Row, best_times


@pytest.mark.parametrize(
    ("value", "limit", "kept"), [(2.0, 2.5, True), (2.6, 2.5, False), (None, 2.5, False), (9.0, None, True)]
)
def test_a_row_is_kept_up_to_its_limit(value, limit, kept):
    assert Row("ratio", value, limit, "x").kept is kept


@pytest.mark.parametrize(("value", "status", "word"), [(2.0, 0, "kept"), (2.6, 1, "MISSED")])
def test_status_says_whether_all_limits_are_kept(monkeypatch, capsys, value, status, word):
    module = ModuleType("benchmarks.pretend")
    module.rows = lambda: [Row("ratio", value, 2.5, "x", "how")]
    monkeypatch.setitem(sys.modules, "benchmarks.pretend", module)
    monkeypatch.setattr(pkgutil, "iter_modules", lambda path: [pkgutil.ModuleInfo(None, "pretend", False)])
    assert command.main([]) == status
    assert word in capsys.readouterr().out


def test_an_unknown_benchmark_is_an_error(capsys):
    assert command.main(["nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err


def test_candidates_take_turns_and_the_first_turn_does_not_count():
    turns = []
    times = best_times({"a": lambda: turns.append("a"), "b": lambda: turns.append("b")}, repeats=2)
    assert turns == ["a", "b"] * 3
    assert all(0 <= seconds < 1 for seconds in times.values())

"""What has entered a process is told completely, in order, and equal things together."""

import json

import pandas as pd

from qkspectra import book, figures, record
from qkspectra.store import Address, Store, read, ship

TABLE = pd.DataFrame({"x": [1.0]})


def test_nothing_has_entered_at_first():
    found = record.entered()
    assert (found["profile"], found["models"], found["results"]) == ({}, [], [])
    assert found["versions"].keys() == {"python", *record.PACKAGES}


def test_models_are_told_with_their_content_which_is_computed_once():
    asked = []
    for name in ("b", "a"):
        record.model(name, "r", None, lambda name=name: asked.append(name) or "0" * 64)
    assert asked == []
    told = record.entered()["models"]
    assert told == [{"name": name, "revision": "r", "commit": None, "content": "0" * 64} for name in ("a", "b")]
    assert record.entered()["models"] == told
    assert asked == ["a", "b"]


def address(**parameters):
    return Address("bans", parameters, "code")


def test_results_of_one_study_and_code_are_told_together(tmp_path):
    store = Store(tmp_path)
    for seed in (4, 3):
        store.put(address(seed=seed, sizes={"heads": 2}), TABLE.assign(x=float(seed)), seconds=1.0, seeds=[seed])
    store.put(Address("costs", {}, "code"), TABLE, seconds=1.0)
    both, other = record.entered()["results"]
    assert (both["study"], both["count"], both["seeds"]) == ("bans", 2, [3, 4])
    assert both["parameters"] == {"seed": [3, 4], "sizes.heads": 2}
    assert both["versions"] == {}
    assert both["commit"] is None
    assert (other["study"], other["count"], len(other["content"])) == ("costs", 1, 64)


def test_reading_is_told_as_storing_is_and_shipped_tables_with_their_commit(tmp_path):
    made = Store(tmp_path).put(address(seed=1), TABLE, seconds=1.0)
    stored = record.entered()["results"]
    record._results.clear()
    Store(tmp_path).get(address(seed=1))
    assert record.entered()["results"] == stored
    ship(made, tmp_path / "bans")
    record._results.clear()
    read(tmp_path / "bans", "bans")
    assert record.entered()["results"] == [{**stored[0], "commit": made.provenance["commit"]}]


def test_many_values_of_a_parameter_are_counted(tmp_path):
    for seed in range(record.FEW + 1):
        Store(tmp_path).put(address(seed=seed), TABLE.assign(x=float(seed)), seconds=1.0)
    [told] = record.entered()["results"]
    assert told["parameters"] == {"seed": "9 values"}
    assert told["count"] == 9


def test_a_figure_and_a_table_carry_what_has_entered(tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)  # a table is also kept as a file
    shown = []
    monkeypatch.setattr(book, "display", lambda data, raw: shown.append(data))
    book.profile("smoke", request.config.rootpath / "book" / "profiles")
    figures.save(figures.Figure(), "theory-empty", folder=tmp_path)
    Store(tmp_path).put(address(), TABLE, seconds=1.0)
    book.table(TABLE, "tab-x", "One.", {"x": ("X", ".0f")})
    of_figure = json.loads((tmp_path / "theory-empty.json").read_text())
    of_table = shown[0][book.TABLE_MIME]["provenance"]
    assert of_figure["profile"]["name"] == "smoke"
    assert of_figure["results"] == []
    assert of_table == record.entered()
    assert len(of_table["results"]) == 1

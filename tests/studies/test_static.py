"""What audits of several models say together."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tests.weights import tiny

from qkspectra import open_model
from qkspectra.null import null_operator, null_samples
from qkspectra.store import Store
from qkspectra.studies import static
from qkspectra.studies.audit import audit, offsets


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("llama"), "llama-grouped")


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    heads = [(layer, head) for layer in range(4) for head in range(6)]
    frame = pd.DataFrame(heads, columns=["layer", "head"])
    return frame.assign(previous_token=rng.permutation(24) / 24, eigen_rotation=rng.permutation(24) / 24)


def test_strongest_heads_come_in_descending_order(table):
    heads = static.strongest(table, "previous_token", 3)
    assert static.rows(table, heads)["previous_token"].tolist() == [23 / 24, 22 / 24, 21 / 24]
    assert static.rows(table, heads[::-1])["previous_token"].tolist() == [21 / 24, 22 / 24, 23 / 24]


def test_controls_are_distinct_heads_that_are_not_excluded(table):
    excluded = static.strongest(table, "previous_token", 20)
    drawn = static.controls(table, 4, seed=1, excluded=excluded)
    assert len(set(drawn)) == 4
    assert not set(drawn) & set(excluded)
    few = [static.controls(table, 4, seed, excluded[:2]) for seed in (1, 1, 2)]
    assert few[0] == few[1] != few[2]


def test_standing_counts_pairs(table):
    heads = static.strongest(table, "previous_token", 5)
    ours = static.rows(table, heads)["eigen_rotation"].tolist()
    rest = sorted(set(table["eigen_rotation"]) - set(ours))
    seen = static.standing(table, heads, "eigen_rotation")
    assert seen["superiority"] == pytest.approx(np.mean([x > y for x in ours for y in rest]))
    assert (seen["median"], seen["others"]) == (np.median(ours), np.median(rest))
    top = static.standing(table, static.strongest(table, "eigen_rotation", 5), "eigen_rotation")
    assert top["superiority"] == 1
    assert top["p"] < 0.001 < seen["p"]


def test_scaled_eigenvalues_of_a_gaussian_head_fill_the_unit_disc():
    values = static.scaled_eigenvalues(null_operator(48, 2000, 40, seed=0), 2000)
    radius = values.abs()
    assert radius.max() < 1.35
    # Uniform in the disc: half of the points lie within radius sqrt(1/2), and so on.
    for quantile in (0.25, 0.5, 0.75):
        assert radius.quantile(quantile).item() == pytest.approx(quantile**0.5, abs=0.03)


def test_a_null_population_lies_in_the_null(tiny_llama):
    weights = open_model(str(tiny_llama))
    null = static.null_of(weights, 600, seed=0)
    drawn = null_samples(8, 48, 600, seed=1, rotary=weights.layer(0).rotary, group=3)
    names = ["antisymmetric_energy", "eigen_rotation", "phase_energy"]
    table = pd.DataFrame({name: getattr(drawn, name) for name in names})
    seen = static.population(weights, table, null, names)
    assert seen["measure"].tolist() == names
    assert seen["z"].abs().max() < 4
    assert (seen["below"] + seen["above"]).between(0.02, 0.09).all()
    assert (seen["null_low"] < seen["median"]).all()
    assert (seen["median"] < seen["null_high"]).all()
    shifted = static.population(weights, table + 1, null, names)
    assert (shifted["above"] == 1).all()


def test_stored_results_are_computed_once_and_told_apart(tiny_llama, tmp_path, monkeypatch):
    weights = open_model(str(tiny_llama))
    store = Store(tmp_path / "results")
    first = static.stored(store, audit, weights, seed=0, samples=16)
    monkeypatch.setattr(type(weights), "layer", lambda *_: pytest.fail("computed again"))
    again = static.stored(store, audit, weights, seed=0, samples=16)
    pd.testing.assert_frame_equal(again, first)
    with pytest.raises(pytest.fail.Exception, match="again"):
        static.stored(store, audit, weights, seed=1, samples=16)
    monkeypatch.undo()
    other = static.stored(store, offsets, weights, heads=[(1, 2)], seed=0)
    assert other["attention"].tolist() != first["previous_token"].tolist()
    assert len(list((tmp_path / "results").glob("*.json"))) == 2


def test_every_module_that_reads_weights_is_part_of_the_address():
    package = Path(static.__file__).parents[1] / "weights"
    named = {Path(module.__file__) for module in static.SOURCES}
    fetching = {"catalogue", "hub", "sources", "wheels", "unsupported", "__init__"}
    assert {path.stem for path in set(package.rglob("*.py")) - named} <= fetching


def test_offsets_hold_the_scores_of_the_audit(tiny_llama):
    weights = open_model(str(tiny_llama))
    table = audit(weights, samples=16)
    seen = offsets(weights, [(1, 2), (0, 3)])
    length = int(seen["offset"].max())
    for layer, head in ((1, 2), (0, 3)):
        one = seen[(seen["layer"] == layer) & (seen["head"] == head)].set_index("offset")["attention"]
        scores = static.rows(table, [(layer, head)]).squeeze()
        assert one[length - 1] == scores["induction"]
        assert one[length] == scores["duplicate_token"]
    cut = offsets(weights, [(1, 2)], without=(1, 2, "phase"))
    assert not torch.equal(torch.tensor(cut["attention"]), torch.tensor(seen["attention"][: length + 1]))


def test_listed_heads_keep_order_role_and_model(table):
    marked = {
        "one": {"previous": [(3, 1), (0, 2), (1, 1)], "induction": [(2, 2)]},
        "two": {"previous": [(0, 0)]},
    }
    seen = static.listed({"one": table, "two": table * 1}, marked, count=2)
    assert seen["name"].tolist() == ["L3H1", "L0H2", "L2H2", "L0H0"]
    assert seen["model"].tolist() == ["one", "one", "one", "two"]
    assert seen["role"].tolist() == ["previous token", "previous token", "induction", "previous token"]
    assert seen["eigen_rotation"].tolist()[0] == static.rows(table, [(3, 1)])["eigen_rotation"].item()


def test_grouped_effects_say_what_changed():
    effect = pd.DataFrame({"layer": [0], "head": [1], "loss_second_before": [2.0], "loss_second_after": [3.5]})
    seen = static.grouped(first=effect, second=effect.assign(loss_second_after=1.0))
    assert seen["group"].tolist() == ["first", "second"]
    assert seen["loss_second_change"].tolist() == [1.5, -1.0]


def test_eigenvalues_of_one_head_are_scaled_by_its_own_norm(tiny_llama):
    weights = open_model(str(tiny_llama))
    layer, head = weights.layer(1), 4
    m = layer.wq[head].T @ layer.wk[1]
    dense = torch.linalg.eigvals(m)
    expected = dense[dense.abs() > 1e-9] * 48**0.5 / m.norm()
    seen = static.eigenvalues(weights, (1, head))
    assert seen.abs().sort().values.tolist() == pytest.approx(expected.abs().sort().values.tolist(), rel=1e-8)
    assert static.null_eigenvalues(weights, 5, seed=0).shape == (5 * 8,)

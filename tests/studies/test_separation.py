"""Separation of a panel by position scheme, against every assignment written out."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkspectra.studies import separation

SCHEMES = ["rope", "rope", "rope", "absolute", "absolute", "alibi", "alibi"]


def means_of(*columns):
    """One value a model for each k."""
    rows = [
        {"model": f"model {i}", "scheme": scheme, "k": k, "value": values[i]}
        for i, scheme in enumerate(SCHEMES)
        for k, values in enumerate(columns, 1)
    ]
    return pd.DataFrame(rows)


seven = st.lists(st.integers(-50, 50), min_size=7, max_size=7, unique=True).map(lambda x: [float(v) for v in x])


@given(seven, seven)
def test_p_counts_all_35_assignments(first, second):
    table = separation.separations(means_of(first, second))
    for values, row in zip((first, second), table.to_dict("records"), strict=True):
        ours, others = values[:3], values[3:]
        differences = []
        for chosen in combinations(range(7), 3):
            rest = [values[i] for i in range(7) if i not in chosen]
            differences.append(np.mean([values[i] for i in chosen]) - np.mean(rest))
        assert len(differences) == 35
        assert row["difference"] == pytest.approx(differences[0])
        assert row["p"] == pytest.approx(np.mean([d >= differences[0] - 1e-9 for d in differences]))
        assert row["gap"] == min(ours) - max(others)
        assert (row["p"] == pytest.approx(1 / 35)) == (row["gap"] > 0)
        assert row["delta"] == pytest.approx(np.mean([np.sign(a - b) for a in ours for b in others]))
        squares = np.var(ours) * 3 + np.var(others) * 4
        assert row["spread"] == pytest.approx((squares / 5) ** 0.5)


@pytest.fixture
def heads():
    rng = np.random.default_rng(0)
    parts = []
    for model, scheme in enumerate(SCHEMES):
        for under in ("raw", "centred"):
            count = 6 + model % 2
            columns = {name: rng.random(count) for name in (*separation.SELECTIONS, *separation.MEASURES)}
            parts.append(pd.DataFrame({"model": f"model {model}", "scheme": scheme, "under": under, **columns}))
    return pd.concat(parts, ignore_index=True)


def test_the_statistic_is_the_mean_over_the_strongest_heads(heads):
    table = separation.top_means(heads, "previous_token_text", "z_eigen_rotation", "centred")
    assert table["k"].max() == 6
    assert list(table["model"].unique()) == [f"model {i}" for i in range(7)]
    for model, part in table.groupby("model"):
        mine = heads[(heads["model"] == model) & (heads["under"] == "centred")]
        ordered = mine.sort_values("previous_token_text", ascending=False)["z_eigen_rotation"]
        assert part["value"].tolist() == pytest.approx([ordered.head(k).mean() for k in range(1, 7)])


def test_sensitivity_repeats_the_separation_for_every_choice(heads):
    heads = separation.with_excess(heads)
    table = separation.sensitivity(heads, ("raw", "centred"), top=3)
    assert len(table) == 2 * len(separation.MEASURES) * len(separation.SELECTIONS)
    row = table.sample(1, random_state=3).iloc[0]
    means = separation.top_means(heads, row["selection"], row["measure"], row["convention"])
    alone = separation.separations(means).head(3)
    assert row[["gap", "delta", "p"]].tolist() == alone.iloc[2][["gap", "delta", "p"]].tolist()
    assert row["perfect"] == (alone["gap"] > 0).mean()


def test_excess_is_over_the_median_of_the_own_model_and_convention(heads):
    table = separation.with_excess(heads)
    medians = table.groupby(["model", "under"])["eigen_rotation_excess"].median()
    assert medians.abs().max() < 1e-12
    difference = table["eigen_rotation"] - table["eigen_rotation_excess"]
    assert difference.nunique() == len(medians)


PERFECT, MIXED, REVERSED = [7, 6, 5, 4, 3, 2, 1], [7, 6, 3, 5, 4, 2, 1], [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ([PERFECT, PERFECT], "perfectly at every one of the 2"),
        ([PERFECT, MIXED, REVERSED], "perfectly at 1 of the 3"),
        ([MIXED, MIXED], "at none"),
        ([REVERSED, REVERSED], "the other way"),
        ([MIXED, REVERSED], "do not separate"),
    ],
)
def test_the_verdict_follows_from_the_separations(columns, says):
    columns = [[float(value) for value in column] for column in columns]
    assert says in separation.verdict(separation.separations(means_of(*columns)))


def test_models_outside_are_placed_with_the_nearer_group():
    means = means_of([7.0, 6, 5, 4, 3, 2, 1], [1.0, 2, 3, 4, 5, 6, 7])
    assert separation.placed(means, {1: 4.3, 2: 4.3}) == {1: "rope", 2: "other"}


def phases(**chosen):
    control = {"layer": 0, "head": 1, "previous_token_before": 0.2, "previous_token_after": 0.1}
    control |= {"induction_before": 0.8, "induction_after": 0.72, "loss_first_before": 5.0}
    control |= {"loss_second_before": 1.0, "loss_second_after": 1.4, "role": "control"}
    mine = control | {"head": 0, "role": "chosen", **chosen}
    weaker = control | {"head": 2, "induction_after": 0.79, "loss_second_after": 0.9}
    return pd.DataFrame([mine, control, weaker]).assign(model="one", sequences="text", loss_first_after=5.0)


def test_the_chosen_head_stands_beside_its_controls():
    (row,) = separation.zeroed(phases(induction_after=0.04, loss_second_after=4.0)).to_dict("records")
    assert (row["layer"], row["head"], row["controls"], row["rank"]) == (0, 0, 2, 1)
    assert row["induction_kept"] == pytest.approx(0.05)
    assert row["benefit_lost"] == pytest.approx(0.75)
    assert (row["control_kept"], row["control_lost"]) == pytest.approx((0.9, 0.1))


@pytest.mark.parametrize(
    ("after", "loss", "word", "rank"),
    [(0.04, 4.0, "eliminated", 1), (0.4, 2.0, "impaired", 1), (0.4, 1.2, "kept", 2), (0.79, 4.0, "kept", 1)],
)
def test_the_consequence_follows_from_what_is_left(after, loss, word, rank):
    (row,) = separation.zeroed(phases(induction_after=after, loss_second_after=loss)).to_dict("records")
    assert (separation.consequence(row), row["rank"]) == (word, rank)


def test_without_a_benefit_there_is_no_share_of_it():
    (row,) = separation.zeroed(phases(loss_first_before=0.5)).to_dict("records")
    assert np.isnan(row["benefit_lost"])
    assert separation.consequence(row) == "kept"


def test_a_model_outside_is_told_in_words():
    assert separation.side({1: "rope", 2: "rope"}, "rope") == "at every k"
    assert separation.side({1: "rope", 2: "other"}, "rope") == "at 1 of the 2 values of k"
    assert separation.side({1: "rope", 2: "rope"}, "other") == "at no k"


def test_perfect_choices_are_told_by_option():
    grid = pd.DataFrame({"measure": ["a", "a", "b", "b"], "perfect": [1.0, 0.5, 1.0, 1.0]})
    assert separation.told(grid, "measure", {"b": "second", "a": "first"}) == "second 2 of 2, first 1 of 2"


def test_consequences_are_listed_by_model():
    gone = {"induction_kept": 0.05, "benefit_lost": 0.9, "control_kept": 0.9, "control_lost": 0.1}
    left = gone | {"induction_kept": 0.99, "benefit_lost": 0.0}
    rows = pd.DataFrame([{"model": name} | row for name, row in zip("ABC", (gone, left, gone), strict=True)])
    assert separation.listing(rows) == "induction is eliminated in A and C, and kept in B"
    assert separation.listing(rows.iloc[[1]]) == "induction is kept in B"

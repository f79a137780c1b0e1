"""The order of events on made-up heads whose order is known, and the tests of it at their exact values."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from qkspectra.statistics import lasting, lower_median, nested_median
from qkspectra.studies import chronicle, order
from qkspectra.studies.order import Rule

STEPS = [0, 1, 10, 100, 200, 300]
NULL = pd.DataFrame({"eigen_rotation": [0.5, 0.6, 0.7]})  # mean 0.6, standard deviation 0.1
OUT, IN = 0.9, 0.6


def head(model: str, number: int, score: list[float], rotation: list[float]) -> pd.DataFrame:
    same = {"model": model, "scheme": "rope", "layer": 0, "head": number, "role": "previous_token"}
    return pd.DataFrame({**same, "step": STEPS, "previous_token": score, "eigen_rotation": rotation})


SLOW = [0.0, 0.0, 0.1, 0.4, 0.9, 1.0]  # half of the way at step 200
EARLY, TOGETHER, NEVER = [IN, OUT, OUT, OUT, OUT, OUT], [IN, IN, OUT, IN, OUT, OUT], [IN, OUT, OUT, OUT, OUT, IN]


def test_what_has_happened_lasts_to_the_end() -> None:
    assert lasting(np.array([True, False, True, True])) == 2
    assert lasting(np.array([True, True])) == 0
    assert lasting(np.array([True, False])) is None
    assert lasting(np.array([True, False, True, True, False]), 2) == 2
    assert lasting(np.array([True, False, True]), 2) is None


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Rule(), [200, 1]),
        (Rule(rise=0.3), [100, 1]),
        (Rule(rise=0.95), [300, 1]),
        (Rule(side="above"), [200, 1]),
        (Rule(side="below"), [200, np.inf]),
        (Rule(band=3.1), [200, np.inf]),
        (Rule(lasts=2), [200, 1]),
    ],
)
def test_rules_decide_when_something_counts_as_having_happened(rule: Rule, expected: list[float]) -> None:
    moves = order.events(head("a", 0, SLOW, EARLY), NULL, "eigen_rotation", rule, ids=("head",))
    assert moves[["behaviour", "signature"]].iloc[0].tolist() == expected


def test_a_behaviour_that_comes_and_goes_has_not_appeared() -> None:
    score = [0.0, 0.9, 0.0, 0.1, 0.9, 1.0]
    moves = order.events(head("a", 0, score, TOGETHER), NULL, "eigen_rotation", ids=("head",))
    assert moves[["behaviour", "signature"]].iloc[0].tolist() == [200, 200]


def test_a_signature_may_return_where_it_need_not_last_to_the_end() -> None:
    for lasts, expected in ((None, np.inf), (3, 1), (5, np.inf)):
        moves = order.events(head("a", 0, SLOW, NEVER), NULL, "eigen_rotation", Rule(lasts=lasts), ids=("head",))
        assert moves["signature"].tolist() == [expected]


def test_a_head_that_begins_outside_by_chance_has_not_left() -> None:
    by_chance = [OUT, OUT, IN, IN, OUT, OUT]
    moves = order.events(head("a", 0, SLOW, by_chance), NULL, "eigen_rotation", Rule(lasts=2), ids=("head",))
    assert moves["signature"].tolist() == [200]


def test_heads_count_by_what_training_gave_them() -> None:
    table = pd.concat(
        [
            head("a", 0, [0.0] * 5 + [0.9], TOGETHER),
            head("a", 1, [0.0] * 5 + [0.31], TOGETHER),
            head("a", 2, [0.0] * 5 + [0.29], TOGETHER),
            head("a", 3, [0.8] * 5 + [0.9], TOGETHER),  # positions alone made it look back
            head("b", 0, [0.0] * 5 + [0.1], TOGETHER),
            head("b", 1, [0.5] * 5 + [0.1], TOGETHER),
        ]
    )
    found = order.risen(table.drop(columns="role"), "previous_token")
    assert sorted(set(zip(found["model"], found["head"], strict=True))) == [("a", 0), ("a", 1), ("b", 0)]
    assert len(found) == 3 * len(STEPS)


def test_models_saved_at_other_steps_are_compared_with_themselves() -> None:
    short = head("b", 0, SLOW, TOGETHER)[:4]
    found = order.risen(pd.concat([head("a", 0, SLOW, TOGETHER), short]).drop(columns="role"), "previous_token")
    assert found.groupby("model")["step"].max().to_dict() == {"a": 300, "b": 100}


def moves_of(rotations: dict[str, list[list[float]]]) -> pd.DataFrame:
    track = pd.concat(
        [head(model, i, SLOW, rotation) for model, heads in rotations.items() for i, rotation in enumerate(heads)]
    )
    return order.events_of_runs(track, dict.fromkeys(rotations, NULL), "eigen_rotation")


def test_counts_and_exact_tests_of_precedence() -> None:
    moves = moves_of({"a": [EARLY] * 3 + [TOGETHER] * 2 + [NEVER] * 5})
    row = order.precedence(moves).iloc[0]
    assert row[["seeds", "before", "with", "after", "never"]].tolist() == [10, 3, 2, 5, 5]
    assert row["p"] == pytest.approx(2 * stats.binom.cdf(3, 8, 0.5))
    assert row["p_not_before"] == pytest.approx(stats.binom.cdf(3, 10, 0.5))


def test_the_claim_fails_where_signatures_come_first() -> None:
    early = order.weighed(moves_of({"a": [EARLY] * 3, "b": [EARLY] * 2}))
    assert (early["before"], early["models_before"]) == (5, 2)
    assert early["p"] == early["p_models"] == 1
    late = order.weighed(moves_of({name: [TOGETHER, TOGETHER, EARLY] for name in "abcde"}))
    assert (late["before"], late["with"], late["models_before"]) == (5, 10, 0)
    assert late["p"] == pytest.approx(stats.binom.cdf(5, 15, 0.5))
    assert late["p_models"] == pytest.approx(0.5**5)


def test_a_signature_that_never_comes_is_infinitely_late() -> None:
    never = order.weighed(moves_of({"a": [NEVER] * 3, "b": [NEVER, TOGETHER]}))
    assert (never["after"], never["never"], never["lag"], never["high"]) == (4, 4, np.inf, np.inf)
    assert [chronicle.in_words(x) for x in (never["lag"], -199.0, 5.0)] == ["never", "−199", "5"]
    assert [chronicle.interval(*pair) for pair in ((1.0, np.inf), (3.0, 3.0))] == ["1 to never", "3"]


def test_the_nested_bootstrap_covers_the_median_of_a_hierarchy() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(60):
        groups = [centre + rng.normal(size=6) for centre in rng.normal(size=8)]
        middle, low, high = nested_median(groups, samples=200, seed=trial)
        assert low <= middle <= high
        hits += low <= 0 <= high
    assert hits >= 52
    assert lower_median(np.array([np.inf, 1.0, 2.0, np.inf])) == 2


def test_prediction_is_dated_by_the_loss_on_the_second_copy() -> None:
    falls, rises = [7, 7, 6, 5, 1, 0], [7, 7, 7, 7, 8, 8]
    table = pd.concat(
        [
            head(model, i, SLOW, TOGETHER).assign(loss_second=loss)
            for model, loss in (("a", falls), ("b", rises))
            for i in (0, 1)
        ]
    )
    assert order.predicted(table)["step"].tolist() == [200, np.inf]


def test_every_rule_gets_a_row() -> None:
    track = pd.concat([head("a", 0, SLOW, EARLY), head("b", 0, SLOW, TOGETHER)])
    table = chronicle.weighings(track, {"a": NULL, "b": NULL}, [("eigen_rotation", "above")], [Rule(), Rule(0.25, 9.0)])
    assert table[["rise", "band", "side"]].to_numpy().tolist() == [[0.5, 2, "above"], [0.25, 9, "above"]]
    assert table["never"].tolist() == [0, 2]
    assert table["votes"].tolist() == ["1 of 2", "0 of 2"]


def test_stages_show_an_event_between_the_ends() -> None:
    assert chronicle.stages([0, 1, 2, 4, 8, 100, 200, 250, 300, 400], 200.0) == [0, 100, 200, 250, 400]
    assert chronicle.stages([0, 10, 20], 10.0) == [0, 10, 20]

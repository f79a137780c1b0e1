"""A seed's run is its own: alone, in an ensemble, after its neighbours left or diverged."""

import numpy as np
import pandas as pd
import pytest
import torch

from qkspectra.errors import InputError
from qkspectra.toy.model import ModelConfig, initial, unflatten
from qkspectra.toy.train import TrainConfig, train

TINY = ModelConfig("rope", d_model=16, heads=2, d_head=4, length=12, vocab=8)
QUICK = TrainConfig(TINY, horizon=20, cap=20, spectra_every=10, batch=4, evaluation_batch=4)


def test_a_seed_is_the_same_alone_and_in_an_ensemble() -> None:
    """Within 1e-4 in every column after 40 steps: batched products may round differently in float32."""
    for scheme, ban in (("rope", "symmetric"), ("absolute", "normal"), ("alibi", "none")):
        model = ModelConfig(scheme, (ban, "none"), d_model=16, heads=2, d_head=4, length=12, vocab=8)
        config = TrainConfig(model, horizon=40, cap=40, spectra_every=20, batch=4, evaluation_batch=4)
        together = train(config, [3, 1, 2])
        for row, seed in enumerate((3, 1)):
            alone = train(config, [seed])
            mine = together.table[together.table["seed"] == seed].reset_index(drop=True)
            pd.testing.assert_frame_equal(mine, alone.table, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(together.theta[row], alone.theta[0], rtol=0, atol=1e-4)


def test_a_seed_is_handed_over_the_moment_it_leaves() -> None:
    """A threshold of the easiest seed: it is handed over while the others still train."""
    base = {"horizon": 10, "after": 10, "cap": 60, "persistence": 1, "batch": 4, "evaluation_batch": 4}
    full = train(TrainConfig(TINY, **{**base, "threshold": 1.0}), [0, 1, 2]).table
    early = full[full["step"].between(10, 30)].groupby("seed")["accuracy"].max()
    handed: list[tuple[int, int, float]] = []
    run = train(
        TrainConfig(TINY, **{**base, "threshold": float(early.median())}),
        [0, 1, 2],
        finished=lambda seed, rows, seconds: handed.append((seed, len(rows), seconds)),
    )
    assert sorted(seed for seed, _, _ in handed) == [0, 1, 2]
    assert {seed: rows for seed, rows, _ in handed} == run.table.groupby("seed").size().to_dict()
    shares = [seconds for _, _, seconds in handed]
    assert shares == sorted(shares)
    assert shares[0] > 0
    assert handed[0][1] < handed[-1][1]


def test_the_table_is_complete_and_tidy() -> None:
    table = train(QUICK, [0, 1]).table
    assert len(table) == 2 * 3 * 2 * 2  # seeds, evaluations, layers, heads
    assert not table.duplicated(["seed", "step", "layer", "head"]).any()
    assert table["step"].unique().tolist() == [0, 10, 20]
    assert not table.isna().any().any()
    assert table[["previous_token", "induction", "duplicate_token"]].stack().between(0, 1).all()
    assert not table["diverged"].any()


def test_spectra_are_measured_on_their_own_schedule() -> None:
    table = train(TrainConfig(TINY, horizon=40, cap=40, spectra_every=30, batch=4), [0]).table
    measured = table.dropna(subset="eigen_rotation")["step"].unique()
    assert measured.tolist() == [0, 30, 40]  # and at the last step


def test_seeds_are_paired_across_bans_and_schemes() -> None:
    configs = [
        ModelConfig("rope"),
        ModelConfig("rope", ("rank-symmetric", "none")),
        ModelConfig("absolute", ("none", "semidefinite")),
    ]
    starts = [unflatten(config, initial(config, [4])) for config in configs]
    for name in ("embed", "unembed", "0.wq", "1.wq", "1.wo"):
        assert all(torch.equal(starts[0][name], start[name]) for start in starts[1:])
    assert "0.wk" not in starts[1]
    assert "1.wk" not in starts[2]
    assert not torch.equal(starts[0]["0.wq"], unflatten(configs[0], initial(configs[0], [5]))["0.wq"])


def test_seeds_leave_when_they_have_formed_and_the_others_go_on_undisturbed() -> None:
    """A threshold that one seed reaches first: its run ends `after` steps later, the others' rows do not change."""
    base = {"horizon": 10, "after": 10, "cap": 60, "persistence": 1, "batch": 4, "evaluation_batch": 4}
    full = train(TrainConfig(TINY, **{**base, "threshold": 1.0}), [0, 1, 2]).table
    best = full.groupby(["seed", "step"])["accuracy"].first().unstack("seed")
    threshold = float(best.loc[10:30].max().median())
    short = train(TrainConfig(TINY, **{**base, "threshold": threshold}), [0, 1, 2]).table
    lengths = short.groupby("seed")["step"].max()
    assert lengths.nunique() > 1
    for seed, last in lengths.items():
        formed = best.index[best[seed] >= threshold]
        assert last == (min(60, max(10, int(formed[0]) + 10)) if len(formed) else 60)
        wanted = full[(full["seed"] == seed) & (full["step"] <= last)].reset_index(drop=True)
        mine = short[short["seed"] == seed].reset_index(drop=True)
        behaviour = ["loss", "accuracy", "previous_token", "induction", "duplicate_token"]
        pd.testing.assert_frame_equal(mine[behaviour], wanted[behaviour], rtol=0, atol=1e-4)


def test_a_diverging_seed_is_recorded_and_spoils_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    import qkspectra.toy.train as module

    healthy = train(QUICK, [0, 2])

    def poisoned(config: ModelConfig, seeds: list[int]) -> torch.Tensor:
        theta = initial(config, seeds)
        theta[1] = torch.inf
        return theta

    monkeypatch.setattr(module, "initial", poisoned)
    run = train(QUICK, [0, 1, 2])
    sick = run.table[run.table["seed"] == 1]
    assert sick["diverged"].all()
    assert sick["step"].unique().tolist() == [0]
    assert sick["eigen_rotation"].isna().all()
    others = run.table[run.table["seed"] != 1].reset_index(drop=True)
    pd.testing.assert_frame_equal(others, healthy.table, rtol=1e-4, atol=1e-4)


def test_a_learning_rate_that_diverges_ends_as_diverged() -> None:
    model = ModelConfig("absolute", d_model=16, heads=2, d_head=4, length=12, vocab=8, norm=False)
    table = train(TrainConfig(model, learning_rate=1e19, horizon=30, cap=30, batch=4, evaluation_batch=4), [0]).table
    last = table[table["step"] == table["step"].max()]
    assert last["diverged"].all()
    assert last["step"].max() < 30
    assert not np.isfinite(last["loss"]).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cap": 10}, "need 0 < every <= horizon <= cap"),
        ({"every": 7}, "need 0 < every <= horizon <= cap"),
        ({"spectra_every": 15}, "use a multiple of 10"),
        ({"batch": 0}, "must be at least 1"),
        ({"learning_rate": 0.0}, "learning rate must be positive"),
        ({"threshold": 1.5}, "threshold in"),
        ({"after": -1}, "after must not be negative"),
    ],
)
def test_bad_training_settings_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainConfig(TINY, **change)


def test_bad_seeds_are_refused() -> None:
    for seeds in ([], [-1], [2, 2]):
        with pytest.raises(InputError, match="seeds must be at least one, distinct and not negative"):
            train(QUICK, seeds)

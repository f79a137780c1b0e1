"""Populations against the null: the distance is SciPy's, null populations pass, and moved ones are found in time."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from qkspectra.null import null_samples
from qkspectra.studies import populations
from qkspectra.studies.order import Rule

LAYERS, HEADS, GROUP = 3, 4, 2


def run(values: dict[int, np.ndarray], model: str = "a") -> pd.DataFrame:
    """A model whose heads have these eigen-rotations at each step."""
    index = pd.MultiIndex.from_product([values, range(LAYERS), range(HEADS)], names=["step", "layer", "head"])
    table = index.to_frame(index=False).assign(model=model, scheme="rope", d_head=8, d_model=32)
    table["kv_head"] = table["head"] // GROUP
    return table.assign(eigen_rotation=np.concatenate(list(values.values())))


def drawn(seed: int) -> np.ndarray:
    return null_samples(8, 32, LAYERS * HEADS, seed, group=GROUP).eigen_rotation.numpy()


@pytest.fixture(scope="module")
def null() -> pd.DataFrame:
    return populations.null_of(run({0: drawn(0)}), 999)


def test_the_null_has_the_shape_and_sharing_of_the_heads(null) -> None:
    assert len(null) == 1000
    same = null_samples(8, 32, 1000, 0, group=GROUP)
    assert null["henrici"].tolist() == same.henrici.tolist()


def test_the_distance_is_that_of_kolmogorov_and_smirnov() -> None:
    rng = np.random.default_rng(0)
    groups, reference = rng.integers(0, 9, (20, 7)).astype(float), rng.integers(0, 9, 40).astype(float)  # with ties
    seen = populations.kolmogorov_smirnov(groups, reference)
    assert seen == pytest.approx([stats.ks_2samp(one, reference).statistic for one in groups])


def test_null_populations_lie_in_the_null_as_often_as_they_should(null) -> None:
    table = populations.against_null(run({seed: drawn(seed) for seed in range(1, 201)}), {"a": null}, "eigen_rotation")
    assert (table["p"] < 0.05).mean() == pytest.approx(0.05, abs=0.04)
    assert ((table["ks"] > table["ks_high"]) == (table["p"] <= 0.05)).mean() > 0.97
    assert table["z"].std() == pytest.approx(1, abs=0.15)
    assert table[["below", "above"]].mean().tolist() == pytest.approx([0.025, 0.025], abs=0.012)
    assert (table["q10"] <= table["q50"]).all()


def test_a_population_that_sinks_is_far_and_below(null) -> None:
    row = populations.against_null(run({0: drawn(1) - 0.6}), {"a": null}, "eigen_rotation").iloc[0]
    assert row["below"] > 0.9
    assert row["z"] < -5
    assert row["p"] == pytest.approx(1 / (1 + populations.DRAWS))


def test_sinking_is_dated_once_it_lasts_with_an_interval(null) -> None:
    middle = null["eigen_rotation"].mean()
    level, low = np.full(12, middle), np.full(12, middle - 0.3)
    some = np.concatenate(
        [np.full(6, middle - 0.3), np.full(6, middle)]
    )  # half of the heads, in whole layers and groups
    sinks = run({0: level, 1: low, 10: level, 100: some, 200: low})
    stays = run({0: level, 200: level}, "b")
    table = populations.suppression(
        pd.concat([sinks, stays]), {"a": null, "b": null}, "eigen_rotation", Rule()
    ).set_index("model")
    assert table.loc["a", "step"] == 100
    assert (table.loc["a", "low"], table.loc["a", "high"]) == (100, 200)
    assert table.loc["b", ["step", "low", "high"]].tolist() == [np.inf] * 3


def test_heads_are_resampled_in_groups_that_share_keys(null) -> None:
    """Two heads of a group hold one key: the mean of a population varies more than that of as many lone heads."""
    table = run({0: drawn(1)})
    spread = populations._populations(null["eigen_rotation"].to_numpy(), table, np.random.default_rng(0)).mean(-1).std()
    pairs = null["eigen_rotation"].to_numpy().reshape(-1, GROUP).mean(-1)
    assert spread == pytest.approx(pairs.std() / 6**0.5, rel=0.1)

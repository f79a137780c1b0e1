"""All heads of a model against the null, checkpoint by checkpoint: quantiles, distance, and when they leave it."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from jaxtyping import Float64

from qkspectra.null import null_samples
from qkspectra.statistics import lasting
from qkspectra.studies.dynamics import leading_rotation
from qkspectra.studies.order import Rule

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
SHAPES = ("eigen_rotation", "antisymmetric_energy", "henrici", "content_sign")
"""Measures of the null that have no scale and mean something for every head."""
DRAWS = 1000
"""Populations drawn from the null for the distribution of a statistic under it."""


def null_of(heads: pd.DataFrame, samples: int, seed: int = 0) -> pd.DataFrame:
    """The null of the heads of one model, their shape and sharing of keys: a row a null head, a column a measure.

    Args:
        heads: rows of one model, with `d_head`, `d_model`, `layer`, `head` and `kv_head`.
        samples: heads to draw, rounded up to whole groups.
        seed: of the draw.
    """
    first, group = heads.iloc[0], _group(heads)
    d_model = int(first["d_model"])
    drawn = null_samples(int(first["d_head"]), d_model, -(-samples // group) * group, seed, group=group)
    columns = {name: getattr(drawn, name).numpy() for name in SHAPES}
    return pd.DataFrame(columns | {"leading_rotation": leading_rotation(drawn, d_model).numpy()})


def against_null(heads: pd.DataFrame, nulls: Mapping[str, pd.DataFrame], measure: str, seed: int = 0) -> pd.DataFrame:
    """One row per model and checkpoint: where the population lies and how far that is from the null.

    Args:
        heads: rows of several models, with `model`, `scheme`, `step`, `layer`, `head`, `kv_head` and the measure.
        nulls: of each model.
        seed: of the draws from the null.

    Returns:
        `model`, `scheme`, `step`, the quantiles `q10` to `q90` of the measure, `null_low`, `null_median`, `null_high`
        (the central 95 % of null heads), the shares `below` and `above` that band, `z` (distance of the population's
        mean from the null's in standard deviations of that mean, heads that share keys drawn together), `ks`, the
        Kolmogorov-Smirnov distance of the population from the null, `ks_high`, the 95 % quantile of the distance of
        null populations of this size and sharing, and `p` of the distance, by the share of these that exceed it.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for model, scheme, expected, run in _runs(heads, nulls, measure):
        low, middle, high = np.quantile(expected, [0.025, 0.5, 0.975])
        drawn = _populations(expected, run, rng)
        distances = kolmogorov_smirnov(drawn, expected)
        spread = drawn.mean(-1).std()
        for step, at in run.groupby("step"):
            values = at[measure].to_numpy()
            distance = kolmogorov_smirnov(values[None], expected)[0]
            rows.append(
                {
                    "model": model,
                    "scheme": scheme,
                    "step": step,
                    **{f"q{100 * q:.0f}": np.quantile(values, q) for q in QUANTILES},
                    "null_low": low,
                    "null_median": middle,
                    "null_high": high,
                    "below": np.mean(values < low),
                    "above": np.mean(values > high),
                    "z": (values.mean() - expected.mean()) / spread,
                    "ks": distance,
                    "ks_high": np.quantile(distances, 0.95),
                    "p": (1 + np.sum(distances >= distance)) / (1 + DRAWS),
                }
            )
    return pd.DataFrame(rows)


def suppression(
    heads: pd.DataFrame, nulls: Mapping[str, pd.DataFrame], measure: str, rule: Rule, seed: int = 0
) -> pd.DataFrame:
    """When the mean of the population comes to lie below the null's, one row a model.

    Returns:
        `model`, `scheme`, `step`, and the interval `low` to `high` of 95 % under resampling of the heads (of groups
        that share keys): infinite where it never does. Below means by `rule.band` standard deviations of the
        mean, for `rule.lasts` checkpoints.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for model, scheme, expected, run in _runs(heads, nulls, measure):
        spread = _populations(expected, run, rng).mean(-1).std()
        values = run.pivot(index="step", columns=["layer", "kv_head", "head"], values=measure).sort_index()
        grouped = values.T.groupby(level=["layer", "kv_head"]).mean().T
        steps, means = values.index.to_numpy(np.float64), grouped.to_numpy()

        def reached(
            chosen: np.ndarray,
            means: np.ndarray = means,
            steps: np.ndarray = steps,
            line: float = expected.mean() - rule.band * spread,
        ) -> float:
            at = lasting(means[:, chosen].mean(1) < line, rule.lasts)
            return np.inf if at is None else float(steps[at])

        count = means.shape[1]
        again = [reached(rng.integers(count, size=count)) for _ in range(DRAWS)]
        low, high = np.quantile(again, [0.025, 0.975], method="inverted_cdf")
        rows.append({"model": model, "scheme": scheme, "step": reached(np.arange(count)), "low": low, "high": high})
    return pd.DataFrame(rows)


def kolmogorov_smirnov(
    populations: Float64[np.ndarray, "populations heads"], null: Float64[np.ndarray, " samples"]
) -> Float64[np.ndarray, " populations"]:
    """The largest distance between the distribution of each population and that of the null, in [0, 1].

    Both step functions are compared at their own steps, where the supremum is (scipy.stats.ks_2samp does the same for
    one pair).
    """
    values = np.sort(populations, axis=-1)
    ordered = np.sort(null)
    count = values.shape[-1]
    above = np.arange(1, count + 1) / count - np.searchsorted(ordered, values, side="right") / len(ordered)
    below = np.searchsorted(ordered, values, side="left") / len(ordered) - np.arange(count) / count
    return np.maximum(above.max(-1), below.max(-1))


def _runs(
    heads: pd.DataFrame, nulls: Mapping[str, pd.DataFrame], measure: str
) -> Iterator[tuple[str, str, Float64[np.ndarray, " samples"], pd.DataFrame]]:
    """Model, scheme, null values of the measure and rows of each model, in the order of the table."""
    for model, run in heads.groupby("model", sort=False):
        yield str(model), run["scheme"].iloc[0], nulls[str(model)][measure].to_numpy(), run


def _populations(
    null: Float64[np.ndarray, " samples"], run: pd.DataFrame, rng: np.random.Generator
) -> Float64[np.ndarray, "draws heads"]:
    """Populations of the null of the size of this model, whole groups of heads drawn with replacement."""
    group = _group(run)
    count = len(run[["layer", "head"]].drop_duplicates())
    groups = null.reshape(-1, group)
    return groups[rng.integers(len(groups), size=(DRAWS, count // group))].reshape(DRAWS, count)


def _group(heads: pd.DataFrame) -> int:
    """Heads that share keys."""
    first = heads[(heads["step"] == heads["step"].iloc[0]) & (heads["layer"] == heads["layer"].iloc[0])]
    return len(first) // first["kv_head"].nunique()

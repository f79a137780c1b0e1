"""The order of events as circuits form: which comes first, what a head does or what its operator looks like."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import stats

from qkspectra.null import null_samples
from qkspectra.spectrum import Spectrum
from qkspectra.statistics import lasting, lower_median, nested_median
from qkspectra.weights.layout import Rotary


@dataclass(frozen=True)
class Rule:
    """When something counts as having happened.

    Attributes:
        rise: share of the way from its first to its last value that a behaviour has gone.
        band: standard deviations of the null beyond which a signature has left it.
        side: where it left to.
        lasts: for how many checkpoints in a row what has happened must last; `None` for all to the end.
    """

    rise: float = 0.5
    band: float = 2.0
    side: Literal["above", "below", "either"] = "either"
    lasts: int | None = None

    def left(self, z: np.ndarray) -> np.ndarray:
        """Whether each deviation from the null, in its standard deviations, is outside, having been inside before.

        Some heads begin outside by chance, and have not left.
        """
        outside = {"above": z, "below": -z, "either": np.abs(z)}[self.side] > self.band
        return outside & np.logical_or.accumulate(~outside)


def null(d_head: int, d_model: int, samples: int, rotary: Rotary | None = None) -> Spectrum:
    """The finite-size null of a toy head."""
    return null_samples(d_head, d_model, samples, rotary=rotary)


def followed(heads: pd.DataFrame, scheme: str, ban: str = "none") -> pd.DataFrame:
    """The two heads of the circuit of every seed through training: those that are strongest at the end.

    Returns:
        The rows of `heads` of the strongest previous-token head of layer 0 and of the strongest induction head of layer
        1 of each seed, with the column `role`.
    """
    chosen = heads[(heads["scheme"] == scheme) & (heads["ban"] == ban) & (heads["layers"] == "both")]
    last = chosen[chosen["step"] == chosen.groupby("seed")["step"].transform("max")]
    parts = []
    for role, layer in (("previous_token", 0), ("induction", 1)):
        ends = last[last["layer"] == layer]
        best = ends.loc[ends.groupby("seed")[role].idxmax(), ["seed", "layer", "head"]]
        parts.append(chosen.merge(best, on=["seed", "layer", "head"]).assign(role=role))
    return pd.concat(parts, ignore_index=True)


def risen(heads: pd.DataFrame, role: str, share: float = 1 / 3) -> pd.DataFrame:
    """The heads that come to play a role in each model, through training.

    Args:
        heads: rows of several models, with `model`, `step`, `layer`, `head` and the score `role`.
        role: `previous_token` or `induction`.
        share: a head counts when its score rises from first to last checkpoint by so much of the largest rise in its
            model. What positions alone give a head before training does not count.

    Returns:
        The rows of these heads, with the column `role`.
    """
    keys = ["model", "layer", "head"]
    scores = heads.pivot(index=keys, columns="step", values=role).sort_index(axis=1)
    # Models may have been saved at different steps.
    rise = scores.ffill(axis=1).iloc[:, -1] - scores.bfill(axis=1).iloc[:, 0]
    most = rise.groupby("model").transform("max")
    chosen = rise.index[(rise >= share * most) & (rise > 0)].to_frame(index=False)
    return heads.merge(chosen, on=keys).assign(role=role)


def events(
    track: pd.DataFrame,
    reference: Spectrum | pd.DataFrame,
    measure: str,
    rule: Rule = Rule(),
    ids: Sequence[str] = ("seed",),
) -> pd.DataFrame:
    """When behaviour and signature move, for each head that is followed.

    The behaviour is the head's own score in its role, the signature the measure. Both are read on the steps at which
    spectra were measured.

    Args:
        track: rows with `role`, `step`, the columns `ids`, the measure, and the score that `role` names.
        reference: the null of these heads, its measures by name.
        rule: what counts as moved.
        ids: columns that tell the followed heads of one role apart.

    Returns:
        Columns `role`, `ids`, `behaviour`, `signature`: steps, infinite for what never happened.
    """
    expected = getattr(reference, measure)
    mean, spread = float(expected.mean()), float(expected.std())
    rows = []
    for (role, *rest), run in track.dropna(subset=[measure]).groupby(["role", *ids]):
        run = run.sort_values("step")
        score, steps = run[str(role)].to_numpy(), run["step"].to_numpy(np.float64)
        enough = score >= score[0] + rule.rise * (score[-1] - score[0])
        outside = rule.left((run[measure].to_numpy() - mean) / spread)
        moved = [steps[at] if (at := lasting(when, rule.lasts)) is not None else np.inf for when in (enough, outside)]
        rows.append({"role": role, **dict(zip(ids, rest, strict=True)), "behaviour": moved[0], "signature": moved[1]})
    return pd.DataFrame(rows)


def precedence(moves: pd.DataFrame) -> pd.DataFrame:
    """For each role: how often the signature moved before, with or after the behaviour.

    A signature that never left the null counts as after: its sign enters the tests, not its size.

    Returns:
        Columns `role`, `seeds` (heads or runs), `before`, `with`, `after`, `never` (part of after), `p` of the exact
        two-sided sign test of "before and after are equally likely", ties left out, and `p_not_before` of the exact
        one-sided one of "before in at least half of all cases": small where the signature does not announce the
        behaviour, near one where it does.
    """
    rows = []
    for role, runs in moves[np.isfinite(moves["behaviour"])].groupby("role"):
        lag = runs["signature"] - runs["behaviour"]
        before, after = int((lag < 0).sum()), int((lag > 0).sum())
        rows.append(
            {
                "role": role,
                "seeds": len(runs),
                "before": before,
                "with": len(runs) - before - after,
                "after": after,
                "never": int(np.isinf(lag).sum()),
                "p": stats.binomtest(before, before + after).pvalue if before + after else 1.0,
                "p_not_before": stats.binomtest(before, len(runs), alternative="less").pvalue,
            }
        )
    return pd.DataFrame(rows)


def events_of_runs(
    track: pd.DataFrame, nulls: Mapping[str, pd.DataFrame], measure: str, rule: Rule = Rule()
) -> pd.DataFrame:
    """`events` of the heads of several models, each against its own null; with `model`, `scheme`, `layer`, `head`."""
    ids = ("model", "scheme", "layer", "head")
    parts = [events(run, nulls[str(model)], measure, rule, ids) for model, run in track.groupby("model", sort=False)]
    return pd.concat(parts, ignore_index=True)


def weighed(moves: pd.DataFrame, seed: int = 0) -> dict[str, Any]:
    """Heads of several models, and models, for and against "the signature comes before the behaviour".

    Heads of one model are not independent, so each model is also counted once, by the median lag of its heads.

    Args:
        moves: `events_of_runs` of one role.
        seed: of the bootstrap.

    Returns:
        `heads`, `before`, `with`, `after`, `never` and `p` as `precedence` counts and tests them (`p_not_before`);
        `models`, `models_before` and `p_models`, the same of models; `lag`, the median of signature less behaviour in
        steps, and its interval `low` to `high` under resampling of models and of heads within them. A signature that
        never leaves the null is infinitely late.
    """
    counts = precedence(moves).iloc[0]
    lags = moves.assign(lag=moves["signature"] - moves["behaviour"])[np.isfinite(moves["behaviour"])]
    groups = [run["lag"].to_numpy() for _, run in lags.groupby("model", sort=False)]
    before = sum(lower_median(lag) < 0 for lag in groups)
    lag, low, high = nested_median(groups, seed=seed)
    return {
        "heads": counts["seeds"],
        **{name: counts[name] for name in ("before", "with", "after", "never")},
        "p": counts["p_not_before"],
        "models": len(groups),
        "models_before": before,
        "p_models": stats.binomtest(before, len(groups), alternative="less").pvalue,
        "lag": lag,
        "low": low,
        "high": high,
    }


def predicted(heads: pd.DataFrame, rule: Rule = Rule()) -> pd.DataFrame:
    """When each model comes to predict the second copy, `model`, `scheme` and `step`.

    That is when the loss on it has gone `rule.rise` of the way from its first to its last value; infinite where it has
    not fallen.
    """
    rows = []
    for (model, scheme), run in heads.groupby(["model", "scheme"], sort=False):
        loss = run.groupby("step")["loss_second"].first()
        gone = loss.to_numpy() <= loss.iloc[0] + rule.rise * (loss.iloc[-1] - loss.iloc[0])
        at = lasting(gone, rule.lasts) if loss.iloc[-1] < loss.iloc[0] else None
        rows.append({"model": model, "scheme": scheme, "step": np.inf if at is None else float(loss.index[at])})
    return pd.DataFrame(rows)

"""The dynamics of several runs as tables: the runs, their timetable, and tests of the order of events."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pandas as pd

from qkspectra.statistics import lower_median
from qkspectra.studies import order
from qkspectra.studies.dynamics import Trajectories
from qkspectra.studies.order import Rule, events_of_runs, weighed
from qkspectra.weights.revisions import OK

ROTATIONS = ("eigen_rotation", "leading_rotation")
"""Signatures of rotation."""


def listed(runs: Trajectories) -> pd.DataFrame:
    """One row a model: `model`, `scheme`, `layers`, `heads`, `d_head`, `last` step, `checkpoints`, `refused`."""
    rows = []
    for (model, scheme), run in runs.heads.groupby(["model", "scheme"], sort=False):
        verdicts = runs.revisions.loc[runs.revisions["model"] == model, "verdict"]
        rows.append(
            {
                "model": model,
                "scheme": scheme,
                "layers": run["layer"].nunique(),
                "heads": len(run[["layer", "head"]].drop_duplicates()),
                "d_head": run["d_head"].iloc[0],
                "last": run["step"].max(),
                "checkpoints": run["step"].nunique(),
                "refused": int((verdicts != OK).sum()),
            }
        )
    return pd.DataFrame(rows)


def timetable(
    heads: pd.DataFrame,
    followed: Mapping[str, pd.DataFrame],
    nulls: Mapping[str, pd.DataFrame],
    sunk: pd.DataFrame,
    rule: Rule,
) -> pd.DataFrame:
    """One row a model: the steps at which things happen, infinite for what never happens.

    Args:
        heads: `Trajectories.heads`.
        followed: role to `order.risen`.
        nulls: `populations.null_of` of each model.
        sunk: `populations.suppression`.
        rule: what counts as happened.

    Returns:
        `model`, `scheme`; medians over the previous-token heads of when they look back (`looks_back`), and when their
        eigen-rotation and leading rotation leave the null (`eigen_rotation`, `leading_rotation`); over the induction
        heads, of when they match (`matches`); when the loss on the second copy falls (`predicts`); when the population
        sinks (`sinks`, and its interval `sinks_low`, `sinks_high`).
    """
    moves = {name: events_of_runs(followed["previous_token"], nulls, name, rule) for name in ROTATIONS}
    columns = {
        "looks_back": _medians(moves["eigen_rotation"], "behaviour"),
        **{name: _medians(table, "signature") for name, table in moves.items()},
        "matches": _medians(events_of_runs(followed["induction"], nulls, "eigen_rotation", rule), "behaviour"),
        "predicts": order.predicted(heads, rule).set_index("model")["step"],
        "sinks": sunk.set_index("model")["step"],
        "sinks_low": sunk.set_index("model")["low"],
        "sinks_high": sunk.set_index("model")["high"],
    }
    models = heads[["model", "scheme"]].drop_duplicates().set_index("model")
    return models.assign(**columns).reset_index()


def weighings(
    track: pd.DataFrame,
    nulls: Mapping[str, pd.DataFrame],
    signatures: Iterable[tuple[str, str]],
    rules: Iterable[Rule],
    seed: int = 0,
) -> pd.DataFrame:
    """`order.weighed` for every signature under every rule, one row each.

    Args:
        track: `order.risen` of one role.
        nulls: `populations.null_of` of each model.
        signatures: pairs of a measure and the side of the null that it is to leave to.
        rules: what counts as happened; the side is that of the signature.
        seed: of the bootstrap.

    Returns:
        `measure`, the fields of the rule, the columns of `weighed`, and `votes`, the early models in words.
    """
    rows = []
    for (measure, side), rule in product(signatures, rules):
        sided = replace(rule, side=side)
        moves = events_of_runs(track, nulls, measure, sided)
        rows.append({"measure": measure, **asdict(sided), **weighed(moves, seed)})
    table = pd.DataFrame(rows)
    return table.assign(votes=[f"{r.models_before} of {r.models}" for r in table.itertuples()])


def stages(steps: Iterable[int], event: float) -> list[int]:
    """Five checkpoints that show something happen: the first, three about the event, the last.

    The three are the nearest there are to half of the step of the event, that step, and a quarter more.
    """
    first, *inner, last = sorted(int(step) for step in steps)
    about = [min(inner, key=lambda step: abs(step - aim)) for aim in (event / 2, event, 1.25 * event)]
    return sorted({first, *about, last})


def in_words(step: float) -> str:
    """A step, or a difference of steps, as a table prints it."""
    return "never" if np.isinf(step) else f"{step:.0f}".replace("-", "−")


def interval(low: float, high: float) -> str:
    """An interval of steps, as a table prints it."""
    return in_words(low) if low == high else f"{in_words(low)} to {in_words(high)}"


def _medians(moves: pd.DataFrame, event: str) -> pd.Series:
    return moves.groupby("model")[event].apply(lambda steps: lower_median(steps.to_numpy(np.float64)))

"""Do the models of a panel separate by position scheme? From the tables of `studies.panel`, nothing computed twice.

The statistic of a model is the mean of one measure over its `k` strongest previous-token heads. Seven models of which
three are rotary can be assigned to the two groups in 35 ways, so the exact one-sided p-value is a multiple of 1/35. It
is 1/35, or 0.029, exactly when every rotary model lies above every other, and seven models cannot give a smaller one.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from qkspectra.spectrum import Spectrum
from qkspectra.statistics import permutation_difference

SELECTIONS = {
    "previous_token": "random tokens",
    "previous_token_first": "half of them",
    "previous_token_text": "held-out text",
    "previous_token_learned": "above position alone",
}
"""Rules by which a model's strongest previous-token heads are picked: the column of the score, and its name."""

MEASURES = {
    "eigen_rotation": "eigen-rotation",
    "z_eigen_rotation": "its z",
    "eigen_rotation_excess": "above the median",
    "antisymmetric_energy": "antisymmetric energy",
    "z_antisymmetric_energy": "its z",
}
"""What is averaged over the heads: the column, and its name."""


def with_excess(heads: pd.DataFrame) -> pd.DataFrame:
    """`heads` with `eigen_rotation_excess`, a head's eigen-rotation less the median of its model's heads.

    A panel may separate because whole models differ; by this measure only previous-token heads that stand out of their
    own model count.
    """
    median = heads.groupby(["model", "under"])["eigen_rotation"].transform("median")
    return heads.assign(eigen_rotation_excess=heads["eigen_rotation"] - median)


def strongest(heads: pd.DataFrame, selection: str, count: int, convention: str = "raw") -> pd.DataFrame:
    """The `count` strongest previous-token heads of every model, strongest first, models in the order of the panel."""
    part = heads[heads["under"] == convention]
    return part.sort_values(selection, ascending=False, kind="stable").groupby("model", sort=False).head(count)


def top_means(
    heads: pd.DataFrame, selection: str = "previous_token", measure: str = "eigen_rotation", convention: str = "raw"
) -> pd.DataFrame:
    """Mean of a measure over the `k` strongest heads of each model, for every `k` that all models have.

    Returns:
        One row per model and `k`: `model`, `scheme`, `k`, `value`.
    """
    part = heads.loc[heads["under"] == convention, ["model", "scheme", selection, measure]]
    fewest = part["model"].value_counts().min()
    counts = np.arange(1, fewest + 1)
    rows = []
    for (model, scheme), mine in part.groupby(["model", "scheme"], sort=False):
        order = np.argsort(-mine[selection].to_numpy(), kind="stable")[:fewest]
        means = mine[measure].to_numpy()[order].cumsum() / counts
        rows.append(pd.DataFrame({"model": model, "scheme": scheme, "k": counts, "value": means}))
    return pd.concat(rows, ignore_index=True)


def separations(means: pd.DataFrame) -> pd.DataFrame:
    """How far the rotary models lie above the others, at every `k`.

    Args:
        means: from `top_means`; the models whose scheme is `rope` are one group, all others the other.

    Returns:
        One row per `k`: `difference` of the group means, rotary less others; `spread`, the pooled standard deviation
        within the groups; `gap`, the smallest rotary value less the largest other one, positive exactly when the
        separation is perfect; `delta`, Cliff's: the share of pairs in which the rotary model is higher, less the share
        in which it is lower (1 when perfect, -1 when perfectly reversed); `p`, exact, one-sided for a positive
        difference.
    """
    by_model = means.pivot(index="k", columns=["scheme", "model"], values="value")
    rotary = by_model.columns.get_level_values("scheme") == "rope"
    ours, others = by_model.to_numpy()[:, rotary], by_model.to_numpy()[:, ~rotary]
    squares = sum(group.var(1) * group.shape[1] for group in (ours, others))
    return pd.DataFrame(
        {
            "k": by_model.index,
            "difference": ours.mean(1) - others.mean(1),
            "spread": np.sqrt(squares / (len(rotary) - 2)),
            "gap": ours.min(1) - others.max(1),
            "delta": np.sign(ours[:, :, None] - others[:, None]).mean((1, 2)),
            "p": permutation_difference(ours, others, "greater"),
        }
    )


def sensitivity(heads: pd.DataFrame, conventions: Iterable[str], top: int) -> pd.DataFrame:
    """The separation under every convention, measure and selection.

    Returns:
        One row each: `convention`, `measure`, `selection`; `separations` at `k = top`; and `perfect`, the share of the
        `k` from 1 to `top` at which the separation is perfect.
    """
    rows = []
    for convention in conventions:
        for measure in MEASURES:
            for selection in SELECTIONS:
                means = top_means(heads, selection, measure, convention)
                table = separations(means[means["k"] <= top])
                labels = {"convention": convention, "measure": measure, "selection": selection}
                rows.append(labels | table.iloc[-1].to_dict() | {"perfect": (table["gap"] > 0).mean()})
    return pd.DataFrame(rows)


def span(grid: pd.DataFrame, choice: str) -> float:
    """By how much Cliff's delta moves at most when one choice of `sensitivity` is changed and the others are kept."""
    others = [name for name in ("convention", "measure", "selection") if name != choice]
    return float(grid.groupby(others)["delta"].agg(np.ptp).max())


def outside(tables: Mapping[str, pd.DataFrame], nulls: Mapping[str, Spectrum]) -> pd.DataFrame:
    """Audits of models beside the panel, in the form of its heads.

    Args:
        tables: title to audit, under the raw convention.
        nulls: title to null.
    """
    parts = []
    for model, table in tables.items():
        low, high = np.quantile(nulls[model].eigen_rotation.numpy(), [0.025, 0.975])
        parts.append(table.assign(model=model, under="raw", null_low=low, null_high=high))
    return pd.concat(parts, ignore_index=True)


def placed(means: pd.DataFrame, value: Mapping[int, float]) -> dict[int, str]:
    """The group of the panel, `rope` or `other`, whose mean is nearer to `value` of a model outside it, at each `k`."""
    group = means["scheme"].where(means["scheme"] == "rope", "other")
    centres = means.groupby(["k", group])["value"].mean()
    return {k: min(("rope", "other"), key=lambda name: abs(centres[k, name] - x)) for k, x in value.items()}


def side(placed: Mapping[int, str], group: str) -> str:
    """At how many `k` a model outside stands with a group, in words for the end of a sentence."""
    with_it = sum(found == group for found in placed.values())
    if with_it == len(placed):
        return "at every k"
    return f"at {with_it} of the {len(placed)} values of k" if with_it else "at no k"


def told(grid: pd.DataFrame, choice: str, names: Mapping[str, str]) -> str:
    """Under how many combinations of `sensitivity` the separation is perfect at every `k`, by option of one choice.

    Args:
        names: of the options, in the order in which they are told.
    """
    perfect = (grid["perfect"] == 1).groupby(grid[choice]).agg(["sum", "count"])
    return ", ".join(f"{name} {perfect.loc[key, 'sum']} of {perfect.loc[key, 'count']}" for key, name in names.items())


def listing(rows: pd.DataFrame) -> str:
    """`consequence` of rows of `zeroed`, by model: "induction is kept in A, and eliminated in B and C"."""
    parts = []
    for word in ("eliminated", "impaired", "kept"):
        models = [row["model"] for row in rows.to_dict("records") if consequence(row) == word]
        if models:
            parts.append(f"{word} in {' and '.join(filter(None, (', '.join(models[:-1]), models[-1])))}")
    return f"induction is {', and '.join(parts)}"


def verdict(table: pd.DataFrame) -> str:
    """What separations at several `k` come to, in words for a sentence about the models: "The models …".

    Perfect where every rotary model lies above every other one; in the direction of the paper where Cliff's delta is
    positive at every `k`.
    """
    perfect, reverse = int((table["gap"] > 0).sum()), int((table["delta"] < 0).sum())
    total = len(table)
    if perfect == total:
        return f"separate perfectly at every one of the {total} values of k"
    if perfect:
        return f"separate perfectly at {perfect} of the {total} values of k, and not at the others"
    if reverse == total:
        return "lean the other way at every k: the rotary models lie below the others more often than above"
    if (table["delta"] > 0).all():
        return "lean the way the paper reports at every k, and separate perfectly at none"
    return "do not separate at any k, and do not even lean one way at all of them"


def zeroed(phases: pd.DataFrame) -> pd.DataFrame:
    """What the zeroed phase of the chosen head did to each model, beside what it did at control heads.

    Args:
        phases: from `studies.panel.phase_zeroing`.

    Returns:
        One row per model and kind of sequence: `model`, `sequences`, the chosen head's `layer`, `head`, its
        `previous_token_before` and `_after`; `induction_before`, `_after`, and `induction_kept`, their ratio;
        `loss_first`, `loss_second_before`, `_after`, and `benefit_lost`, the share that is gone of what the second copy
        gains over the first, `(after - before) / (first - before)`; the same two of the control head that does most,
        `control_kept` and `control_lost`; `rank` of the chosen head among all by `benefit_lost`, from 1; `controls`.
    """
    benefit = (phases["loss_first_before"] - phases["loss_second_before"]).where(lambda gain: gain > 0)
    phases = phases.assign(
        induction_kept=phases["induction_after"] / phases["induction_before"],
        benefit_lost=(phases["loss_second_after"] - phases["loss_second_before"]) / benefit,
        loss_first=phases["loss_first_before"],
    )
    rows = []
    for (model, sequences), part in phases.groupby(["model", "sequences"], sort=False):
        chosen, controls = part[part["role"] == "chosen"].iloc[0], part[part["role"] == "control"]
        shown = ["layer", "head", "loss_first", "induction_kept", "benefit_lost"]
        pairs = [
            f"{name}_{when}" for name in ("previous_token", "induction", "loss_second") for when in ("before", "after")
        ]
        rows.append(
            {"model": model, "sequences": sequences}
            | chosen[[*shown, *pairs]].to_dict()
            | {
                "control_kept": controls["induction_kept"].min(),
                "control_lost": controls["benefit_lost"].max(),
                "rank": _rank(chosen["benefit_lost"], controls["benefit_lost"]),
                "controls": len(controls),
            }
        )
    return pd.DataFrame(rows)


def _rank(value: float, others: pd.Series) -> float:
    """From 1, the highest; missing where the value is."""
    return np.nan if np.isnan(value) else 1.0 + (others > value).sum()


def consequence(row: Mapping[str, Any]) -> str:
    """What a row of `zeroed` comes to: `eliminated`, `impaired` or `kept`.

    Induction is eliminated where at most a tenth of the induction score is left and at least half of the benefit is
    lost; it is impaired where the chosen head costs more of both than any control; otherwise it is kept.
    """
    if row["induction_kept"] <= 0.1 and row["benefit_lost"] >= 0.5:
        return "eliminated"
    if row["induction_kept"] < row["control_kept"] and row["benefit_lost"] > row["control_lost"]:
        return "impaired"
    return "kept"

"""Tables as people read them: a few lines in the terminal."""

import math
from collections.abc import Sequence

import pandas as pd
from rich.console import Group, RenderableType
from rich.table import Table

from qkspectra.pocket.cards import Record, apart
from qkspectra.verify import Agreement

SHOWN = 8
"""Heads listed in each part of a terminal table."""
LINES = 12
"""Checkpoints listed of a training run, at most, the last among them."""


def strongest(audit: pd.DataFrame) -> Group:
    """The heads of an audit that score highest as previous-token and as induction heads.

    Without behaviour columns, the heads whose eigen-rotation lies furthest above and below the null.
    """
    if audit["previous_token"].isna().all():
        parts = {
            "furthest above the null": audit.nlargest(SHOWN, "z_eigen_rotation"),
            "furthest below the null": audit.nsmallest(SHOWN, "z_eigen_rotation"),
        }
    else:
        parts = {
            "previous-token heads": audit.nlargest(SHOWN, "previous_token"),
            "induction heads": audit.nlargest(SHOWN, "induction"),
        }
    columns = {
        "prev": ("previous_token", ".3f"),
        "induct": ("induction", ".3f"),
        "dupl": ("duplicate_token", ".3f"),
        "eig-rot": ("eigen_rotation", ".3f"),
        "z": ("z_eigen_rotation", ".1f"),
        "antisym": ("antisymmetric_energy", ".3f"),
        " z": ("z_antisymmetric_energy", ".1f"),
        "Henrici": ("henrici", ".3f"),
        "phase": ("phase_energy", ".3f"),
    }
    first = audit.iloc[0]
    shown: list[RenderableType] = [
        f"{first['model']}: {first['scheme']}, {len(audit)} heads, convention {first['convention']}"
    ]
    for part, heads in parts.items():
        # A table of its own for each part: a long label in the first column would squeeze the numbers.
        table = Table(box=None, pad_edge=False, title=f"\n{part}", title_justify="left")
        table.add_column("head", no_wrap=True)
        for heading in columns:
            table.add_column(heading, justify="right", no_wrap=True)
        for _, row in heads.iterrows():
            cells = [_cell(row[name], form) for name, form in columns.values()]
            table.add_row(f"L{row['layer']}H{row['head']}", *cells)
        shown.append(table)
    median = audit["eigen_rotation"].median()
    shown.append(f"\nmedian eigen-rotation {median:.3f}; z: standard deviations from the Gaussian null")
    return Group(*shown)


def agreements(model: str, found: Sequence[Agreement]) -> Table:
    """What `verify` found at each precision: the largest error, its place, and the two guards."""
    rows = {
        "largest relative error": "largest_relative_error",
        "tolerance": "tolerance",
        "with a wrong operator": "wrong_operator_error",
        "all tokens at position 0": "position_dependence",
    }
    summaries = [agreed.summary() for agreed in found]
    first = summaries[0]
    table = Table(
        box=None,
        pad_edge=False,
        title=f"{model}: {first['heads']} heads, {first['scores_compared']} scores",
    )
    table.add_column("relative to the largest score")
    for summary in summaries:
        table.add_column(summary["precision"], justify="right", no_wrap=True)
    for label, name in rows.items():
        missing = "masks differ" if name == "largest_relative_error" else "–"
        table.add_row(label, *(missing if s[name] is None else format(s[name], ".1e") for s in summaries))
    table.add_row("in head", *(f"L{s['layer']}H{s['head']}" for s in summaries))
    table.add_row("[bold]verified", *("yes" if s["passed"] else "[bold]NO" for s in summaries))
    return table


def revisions(audited: pd.DataFrame) -> Group:
    """The checkpoints of a run, each with its verdict."""
    table = Table(box=None, pad_edge=False)
    for name in ("revision", "step", "tokens", "content", "std", "distance", "verdict"):
        table.add_column(name, justify="right" if name in ("step", "tokens", "std", "distance") else "left")
    for row in audited.itertuples():
        numbers = ("" if pd.isna(value) else f"{value:.4g}" for value in (row.std, row.distance))
        tokens = "" if pd.isna(row.tokens) else f"{row.tokens:,}"
        verdict = f"{row.verdict}; {row.remark}" if row.remark else row.verdict
        table.add_row(row.revision, f"{row.step:,}", tokens, row.content[:8], *numbers, verdict)
    usable = int((audited["verdict"] == "ok").sum())
    return Group(table, f"{usable} of {len(audited)} revisions are points of the run")


def before_and_after(effects: pd.DataFrame) -> Table:
    """The outcome of `studies.audit.ablations`, four lines for each head and channel."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for heading in ("before", "after"):
        table.add_column(heading, justify="right")
    for effect in effects.to_dict(orient="records"):
        head = f"L{effect['layer']}H{effect['head']}"
        table.add_row(f"[bold]{head} without its {effect['channel']} channel")
        for name, label in {
            "previous_token": f"previous token, {head}",
            "induction": "induction, strongest heads",
            "loss_second": "loss on the second copy",
            "loss_first": "loss on the first copy",
        }.items():
            table.add_row(label, *(_cell(effect[f"{name}_{when}"], ".3f") for when in ("before", "after")))
    return table


def formed(runs: pd.DataFrame) -> Table:
    """The outcome of `studies.training.formations`: one line a seed, then the medians."""
    table = Table(box=None, pad_edge=False)
    table.add_column("seed", justify="right")
    by_threshold = runs.pivot(index="seed", columns="threshold", values=["step", "censored"])
    thresholds = list(by_threshold["step"].columns)
    for threshold in thresholds:
        table.add_column(f"accuracy {threshold:g} at step", justify="right")
    for heading in ("last step", "loss", "accuracy"):
        table.add_column(heading, justify="right")
    ends = runs.groupby("seed").first()
    for seed, row in by_threshold.iterrows():
        steps = [f"> {row['step', t]}" if row["censored", t] else str(row["step", t]) for t in thresholds]
        end = ends.loc[seed]
        accuracy = "diverged" if end["diverged"] else f"{end['accuracy']:.3f}"
        table.add_row(str(seed), *steps, str(end["last_step"]), f"{end['loss']:.3f}", accuracy)
    medians = [f"{by_threshold['step'][t].astype(float).median():g}" for t in thresholds]
    table.add_row("median", *medians, style="bold")
    return table


def pocket(records: Sequence[Record], shipped: Sequence[Record]) -> Table:
    """What pocket models measure: losses on held-out text, the strongest heads, and how far from what is shipped.

    Args:
        shipped: the records of the models of the same names that come with the library.
    """
    table = Table(box=None, pad_edge=False)
    table.add_column("model", no_wrap=True)
    for heading in ("first copy", "second copy", "previous token", "induction", "from shipped"):
        table.add_column(heading, justify="right")
    for record, known in zip(records, shipped, strict=True):
        m = record.measures
        distance = "same weights" if record.weights == known.weights else f"{apart(m, known.measures):.3f}"
        heads = (f"L{head.layer}H{head.head} {head.score:.2f}" for head in (m.previous_token, m.induction))
        table.add_row(record.recipe.name, f"{m.loss_first:.2f}", f"{m.loss_second:.2f}", *heads, distance)
    return table


def course(heads: pd.DataFrame) -> Group:
    """The outcome of `studies.dynamics`, a table a model: a line for each of at most `LINES` checkpoints."""
    shown: list[RenderableType] = []
    for model, run in heads.groupby("model", sort=False):
        table = Table(box=None, pad_edge=False, title=f"{model}: {run['scheme'].iloc[0]}", title_justify="left")
        for heading in ("step", "prev", "induct", "loss 1st", "loss 2nd", "eig-rot", "z lowest", "z highest"):
            table.add_column(heading, justify="right", no_wrap=True)
        steps = sorted(run["step"].unique(), reverse=True)
        for step in steps[:: -(-len(steps) // LINES)][::-1]:
            now = run[run["step"] == step]
            z = now["z_eigen_rotation"]
            cells = (
                (now["previous_token"].max(), ".3f"),
                (now["induction"].max(), ".3f"),
                (now["loss_first"].iloc[0], ".2f"),
                (now["loss_second"].iloc[0], ".2f"),
                (now["eigen_rotation"].median(), ".3f"),
                (z.min(), ".1f"),
                (z.max(), ".1f"),
            )
            table.add_row(str(step), *(_cell(value, form) for value, form in cells))
        shown.append(table)
    note = "prev, induct: the strongest head; eig-rot: the median; z: standard deviations from the Gaussian null"
    return Group(*shown, note)


def _cell(value: float, form: str) -> str:
    return "–" if math.isnan(value) else format(value, form)

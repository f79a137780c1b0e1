"""Figures of the static audit: one function each, from the tables of `studies.audit` and `studies.static`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Complex128, Float64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from qkspectra.figures import BLUE, GREEN, GREY, ORANGE, PALE, WIDTH
from qkspectra.spectrum import Spectrum
from qkspectra.studies.static import Heads, rows

ROLES = {
    "previous": (BLUE, "o", "strongest previous-token heads"),
    "induction": (ORANGE, "s", "strongest induction heads"),
}
"""Colour, marker and label of the heads that are singled out."""

NAMED = {"previous": 6, "induction": 1}
"""So many of them carry their name where they are not in each other's way."""

Marked = Mapping[str, Mapping[str, Heads]]
"""Model to role (a key of `ROLES`) to heads."""


@dataclass(frozen=True)
class Portrait:
    """One head: where its eigenvalues lie and how far back it looks.

    Attributes:
        title: of the column.
        eigenvalues: from `studies.static.scaled_eigenvalues`.
        null: the same of heads of the null.
        offsets: columns `offset` and `attention`, from `studies.audit.offsets`.
        colour: of its role.
        energy: columns `even` and `odd`, a row a frequency, from `explorer.frequencies`; `None` without any.
    """

    title: str
    eigenvalues: Complex128[Tensor, " d_head"]
    null: Complex128[Tensor, " points"]
    offsets: pd.DataFrame
    colour: str
    energy: pd.DataFrame | None = None


def portraits(heads: Sequence[Portrait]) -> Figure:
    """A column a head: eigenvalues in the complex plane over those of the null; below, mean attention by offset.

    Where every head has an energy by frequency, it stands below these: the even part, and the phase as crosses.
    """
    spread = all(head.energy is not None for head in heads)
    figure = Figure(figsize=(WIDTH, 4.3 if spread else 3.6), layout="constrained")
    above, below, *last = figure.subplots(2 + spread, len(heads), height_ratios=(3, 2, 2)[: 2 + spread], squeeze=False)
    for axes, head in zip(last[0], heads, strict=True) if last else ():
        axes.plot(head.energy["even"], ".", color=GREY, markersize=3)
        axes.plot(head.energy["odd"], "x", color=head.colour, markersize=3)
        axes.set(xlabel="frequency", ylim=(0, None))
    if last:
        last[0][0].set_ylabel("energy")
    circle = np.exp(1j * np.linspace(0, 2 * np.pi, 200))
    for plane, profile, head in zip(above, below, heads, strict=True):
        reach = 1.1 * max(1.1, head.eigenvalues.abs().max().item())
        plane.plot(head.null.real, head.null.imag, ".", color=PALE, markersize=1.5, zorder=0, rasterized=True)
        plane.plot(circle.real, circle.imag, color=GREY, linewidth=0.6)
        plane.plot(head.eigenvalues.real, head.eigenvalues.imag, ".", color=head.colour, markersize=5)
        plane.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", title=head.title)
        plane.set(xlabel=r"$\mathrm{Re}\,\lambda$", ylabel=r"$\mathrm{Im}\,\lambda$")
        profile.vlines(head.offsets["offset"], 0, head.offsets["attention"], color=head.colour, linewidth=1.4)
        profile.set(xlabel="positions back", ylabel="attention", ylim=(0, 1))
    for axes in (*above[1:], *below[1:]):
        axes.set_ylabel("")
    return figure


def points(heads: Sequence[Portrait]) -> pd.DataFrame:
    """The numbers of `portraits`, without the null: `head`, `part`, `x`, `y`.

    `part` is `eigenvalues` (real and imaginary part), `attention` (positions back and attention), `even` or `phase`
    (number of the frequency and share of the energy).
    """
    parts = []
    for head in heads:
        values = head.eigenvalues.numpy()
        parts.append(pd.DataFrame({"head": head.title, "part": "eigenvalues", "x": values.real, "y": values.imag}))
        back = {"x": head.offsets["offset"].astype(float), "y": head.offsets["attention"]}
        parts.append(pd.DataFrame({"head": head.title, "part": "attention", **back}))
        if head.energy is not None:
            for part, column in (("even", "even"), ("phase", "odd")):
                share = {"x": head.energy.index.astype(float), "y": head.energy[column]}
                parts.append(pd.DataFrame({"head": head.title, "part": part, **share}))
    return pd.concat(parts, ignore_index=True)


def population(
    tables: Mapping[str, pd.DataFrame],
    nulls: Mapping[str, Spectrum],
    marked: Marked,
    measures: Mapping[str, str],
) -> Figure:
    """Histograms of measures over all heads of each model, over the null's median and band; marked heads as ticks.

    Args:
        tables: model to audit.
        nulls: model to null.
        marked: heads to single out.
        measures: column to label, one column of panels each.
    """
    figure = Figure(figsize=(WIDTH, 2.0 * len(tables) + 0.4), layout="constrained")
    grid = figure.subplots(len(tables), len(measures), squeeze=False)
    for line, (model, table) in zip(grid, tables.items(), strict=True):
        for axes, (name, label) in zip(line, measures.items(), strict=True):
            expected = getattr(nulls[model], name)
            axes.axvspan(*_band(expected), color=PALE, label="Gaussian null, 95%")
            axes.axvline(expected.median().item(), color=GREY, linewidth=0.8)
            axes.hist(table[name], 36, histtype="step", color="black", linewidth=1, label="all heads")
            top = axes.get_ylim()[1]
            for height, (role, heads) in zip((1.06, 1.16), marked[model].items(), strict=False):
                colour, _, text = ROLES[role]
                values = rows(table, heads)[name]
                axes.plot(values, np.full(len(values), height * top), "|", color=colour, markersize=8, label=text)
            axes.set(ylim=(0, 1.25 * top), xlabel=label)
        line[0].set_ylabel(f"heads of {model}")
    _legend(figure, grid[0, 0])
    return figure


def association(
    tables: Mapping[str, pd.DataFrame],
    nulls: Mapping[str, Spectrum],
    marked: Marked,
) -> Figure:
    """Previous-token score against eigen-rotation, a panel a model, with the null's central 95% as a band.

    Args:
        tables, nulls, marked: as in `population`.
    """
    figure = Figure(figsize=(WIDTH, 3.3), layout="constrained")
    panels = figure.subplots(1, len(tables), squeeze=False, sharey=True)[0]
    for axes, (model, table) in zip(panels, tables.items(), strict=True):
        expected = nulls[model].eigen_rotation
        axes.axhspan(*_band(expected), color=PALE, label="Gaussian null, 95%")
        axes.axhline(
            table["eigen_rotation"].median(), color="black", linewidth=0.8, linestyle=":", label="median of all heads"
        )
        axes.plot(table["previous_token"], table["eigen_rotation"], ".", color=GREY, markersize=3, label="other heads")
        for role, heads in marked[model].items():
            colour, shape, text = ROLES[role]
            chosen = rows(table, heads)
            axes.plot(chosen["previous_token"], chosen["eigen_rotation"], shape, color=colour, markersize=4, label=text)
            at = chosen[["previous_token", "eigen_rotation"]].to_numpy()
            for point, place, (_, head) in zip(at, _places(at, NAMED[role]), chosen.iterrows(), strict=False):
                axes.annotate(_name(head), point, **place, textcoords="offset points", fontsize=6, color=colour)
        axes.set(title=model, xlabel="previous-token score", xlim=(-0.03, 1.12))
    panels[0].set_ylabel("eigen-rotation")
    _legend(figure, panels[0])
    return figure


def ablations(effects: pd.DataFrame, groups: Mapping[str, tuple[str, str]]) -> Figure:
    """Before and after the ablation of each head alone: its own score, induction, loss on the second copy.

    Args:
        effects: from `studies.audit.ablations`, one channel, with a column `group`.
        groups: value of `group` to label and colour, in order from the left.
    """
    figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
    panels = figure.subplots(3, 1, sharex=True)
    ordered = pd.concat([effects[effects["group"] == group] for group in groups], ignore_index=True)
    labels = {
        "previous_token": "previous token,\nthe head itself",
        "induction": "induction,\ntop eight heads",
        "loss_second": "second-copy\nloss (nats)",
    }
    for axes, (name, label) in zip(panels, labels.items(), strict=True):
        before, after = ordered[f"{name}_before"], ordered[f"{name}_after"]
        for group, (_, colour) in groups.items():
            at = ordered.index[ordered["group"] == group]
            axes.vlines(at, before[at], after[at], color=colour, linewidth=1)
            axes.plot(at, before[at], "o", color=colour, fillstyle="none", markersize=4)
            axes.plot(at, after[at], "o", color=colour, markersize=4)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
    panels[-1].set_xticks(ordered.index, [_name(row) for _, row in ordered.iterrows()], rotation=90)
    for label, colour in groups.values():
        panels[0].plot([], [], "o", color=colour, label=label)
    _legend(figure, panels[0])
    return figure


def dissociation(effects: Mapping[str, pd.DataFrame]) -> Figure:
    """Previous-token score of each head with all of its operator and without each channel, a panel a model.

    Args:
        effects: model to the outcome of `studies.audit.ablations`, any of its channels, heads in order from the left.
    """
    marks = {
        "antisymmetric": ("v", BLUE, "without the antisymmetric part"),
        "symmetric": ("s", ORANGE, "without the symmetric part"),
        "phase": ("x", GREEN, "without the phase"),
    }
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    sizes = [len(table.drop_duplicates(["layer", "head"])) for table in effects.values()]
    panels = figure.subplots(1, len(effects), squeeze=False, sharey=True, width_ratios=sizes)[0]
    for axes, (model, table) in zip(panels, effects.items(), strict=True):
        heads = table.drop_duplicates(["layer", "head"]).reset_index(drop=True)
        axes.plot(heads["previous_token_before"], "_", color="black", markersize=12, label="whole operator")
        at = {(head["layer"], head["head"]): index for index, head in heads.iterrows()}
        for channel, (shape, colour, label) in marks.items():
            some = table[table["channel"] == channel]
            where = [at[row["layer"], row["head"]] for _, row in some.iterrows()]
            axes.plot(where, some["previous_token_after"], shape, color=colour, markersize=5, label=label)
        axes.set_xticks(heads.index, [_name(row) for _, row in heads.iterrows()], rotation=90)
        axes.set(title=model, ylim=(-0.03, 1.03), xlim=(-0.6, len(heads) - 0.4))
    panels[0].set_ylabel("previous-token score")
    _legend(figure, panels[0])
    return figure


def severed(before: pd.DataFrame, after: pd.DataFrame, titles: Mapping[tuple[int, int], str]) -> Figure:
    """Mean attention by offset of several heads, before and after an ablation, a panel a head.

    Args:
        before, after: from `studies.audit.offsets`.
        titles: `(layer, head)` to title, in order.
    """
    figure = Figure(figsize=(WIDTH, 2.4), layout="constrained")
    panels = figure.subplots(1, len(titles), squeeze=False, sharey=True)[0]
    for axes, ((layer, head), title) in zip(panels, titles.items(), strict=True):
        for shift, (frame, colour, label) in enumerate(((before, GREY, "before"), (after, GREEN, "after"))):
            one = frame[(frame["layer"] == layer) & (frame["head"] == head)]
            axes.vlines(one["offset"] + 0.4 * shift, 0, one["attention"], color=colour, linewidth=1.4, label=label)
        axes.set(title=title, xlabel="positions back", ylim=(0, 1))
    panels[0].set_ylabel("attention")
    _legend(figure, panels[0])
    return figure


def conventions(pairs: Mapping[str, tuple[pd.DataFrame, pd.DataFrame]], marked: Marked) -> Figure:
    """Eigen-rotation of every head under two conventions, a panel a model.

    Args:
        pairs: model to its audits under the raw and under another convention.
        marked: as in `population`.
    """
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    panels = figure.subplots(1, len(pairs), squeeze=False)[0]
    for axes, (model, (raw, other)) in zip(panels, pairs.items(), strict=True):
        both = raw.merge(other, on=["layer", "head"], suffixes=("_raw", "_other"))
        axes.axline((0.5, 0.5), slope=1, color=GREY, linewidth=0.6)
        axes.plot(
            both["eigen_rotation_raw"], both["eigen_rotation_other"], ".", color=GREY, markersize=3, label="other heads"
        )
        for role, heads in marked[model].items():
            colour, shape, text = ROLES[role]
            chosen = rows(both, heads)
            x, y = chosen["eigen_rotation_raw"], chosen["eigen_rotation_other"]
            axes.plot(x, y, shape, color=colour, markersize=4, label=text)
        axes.set(title=model, xlabel="eigen-rotation, raw", ylabel=f"eigen-rotation, {other['convention'].iloc[0]}")
        axes.set(aspect="equal")
    _legend(figure, panels[0])
    return figure


def _name(row: pd.Series) -> str:
    return f"L{int(row['layer'])}H{int(row['head'])}"


def _places(points: Float64[np.ndarray, "points 2"], named: int) -> list[dict[str, Any]]:
    """Where the names of the first points go, for `annotate`: beside each, where the fewest points and names lie."""
    taken, places = list(points), []
    for point in points[:named]:
        corners = [(across, up) for across in (1, -1) for up in (1, -1)]
        # the name as five points along its middle, in units of the data: 0.11 wide at 6 points
        names = {
            corner: point + np.outer(np.linspace(0.02, 0.13, 5), (corner[0], 0)) + (0, 0.013 * corner[1])
            for corner in corners
        }
        hidden = {
            corner: sum(
                np.any(np.all(np.abs(name - other) < (0.03, 0.03), axis=1)) for other in taken if other is not point
            )
            for corner, name in names.items()
        }
        across, up = best = min(corners, key=lambda corner: hidden[corner])
        taken.extend(names[best])
        places.append({"xytext": (4 * across, 3 * up), "ha": "left" if across > 0 else "right", "va": "center"})
    return places


def _band(values: Float64[Tensor, " samples"]) -> list[float]:
    """The central 95%."""
    return values.quantile(values.new_tensor([0.025, 0.975])).tolist()


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(3, len(labels)))

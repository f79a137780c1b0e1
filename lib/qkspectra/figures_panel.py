"""Figures of the panel of seven models: one function each, from the tables of `studies.panel` and `separation`."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.optimize import isotonic_regression

from qkspectra.figures import BLUE, GREY, PALE, SCHEME_COLOURS, WIDTH
from qkspectra.studies.separation import MEASURES, SELECTIONS

MARKS = {"rope": ("o", "rotary"), "absolute": ("s", "learned-absolute"), "alibi": ("^", "ALiBi")}
"""Marker and label of each scheme."""


def strips(heads: pd.DataFrame, count: int, outside: pd.DataFrame) -> Figure:
    """A strip a model: eigen-rotation of its strongest heads over all its heads and its null; below, what they do.

    Args:
        heads: from `studies.panel.panel_heads`, all models.
        count: strongest previous-token heads to single out in each.
        outside: the same columns for models beside the panel, without `previous_token_alone`.
    """
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    everything = pd.concat([heads[heads["under"] == "raw"], outside], ignore_index=True)
    models = list(everything["model"].unique())
    at = {model: place + (0.6 if model in set(outside["model"]) else 0) for place, model in enumerate(models)}
    for model, table in everything.groupby("model", sort=False):
        x, (low, high) = at[model], table[["null_low", "null_high"]].iloc[0]
        above.fill_between([x - 0.36, x + 0.36], low, high, color=PALE, linewidth=0, label="Gaussian null, 95%")
        spread = np.linspace(-0.3, 0.3, len(table))  # in the order of layers
        above.plot(x + spread, table["eigen_rotation"], ".", color=GREY, markersize=2.5, label="all heads")
        above.plot([x - 0.36, x + 0.36], [table["eigen_rotation"].median()] * 2, ":", color="black", linewidth=0.9)
        scheme = table["scheme"].iloc[0]
        colour, (shape, label) = SCHEME_COLOURS[scheme], MARKS[scheme]
        top = table.sort_values("previous_token", ascending=False, kind="stable").head(count)
        places = x + np.linspace(-0.24, 0.24, count)[: len(top)]
        above.plot(places, top["eigen_rotation"], shape, color=colour, markersize=4.5, label=f"strongest, {label}")
        below.plot(places, top["previous_token"], shape, color=colour, markersize=4.5)
        below.plot(places, top["previous_token_alone"], "_", color="black", markersize=7, label="position alone")
    above.plot([], [], ":", color="black", linewidth=0.9, label="median of all heads")
    above.set_ylabel("eigen-rotation")
    below.set(ylabel="previous-token\nscore", ylim=(-0.03, 1.03))
    below.set_xticks(list(at.values()), models, rotation=45, ha="right", rotation_mode="anchor")
    for axes in (above, below):
        axes.axvline(len(models) - len(set(outside["model"])) - 0.2, color=GREY, linewidth=0.6)
    _legend(figure, above, below)
    return figure


def separation(means: pd.DataFrame, table: pd.DataFrame, outside: pd.DataFrame, top: int, label: str) -> Figure:
    """The statistic of every model against the number of heads it is taken over, and the exact p-value below.

    Args:
        means: from `studies.separation.top_means`.
        table: its `separations`.
        outside: `top_means` of models beside the panel.
        top: numbers of heads up to here are what the verdict is about; the rest is paler.
        label: of the measure.
    """
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    last = means["k"].max()
    for _, line in means.groupby("model", sort=False):
        scheme = line["scheme"].iloc[0]
        colour, (shape, name) = SCHEME_COLOURS[scheme], MARKS[scheme]
        above.plot(line["k"], line["value"], shape + "-", color=colour, markersize=3, linewidth=0.9, label=name)
    for (model, line), dash in zip(outside.groupby("model", sort=False), ("--", ":"), strict=False):
        line = line[line["k"] <= last]
        above.plot(line["k"], line["value"], dash, color="black", linewidth=1, label=f"{model}, outside the panel")
    above.set_ylabel(label)
    _names(above, float(last), means[means["k"] == last].set_index("model")["value"])
    below.plot(table["k"], 35 * table["p"], "o", color="black", markersize=3)
    below.axhline(1, color=GREY, linewidth=0.6)
    below.set(xlabel="strongest previous-token heads averaged, k", ylabel="exact p,\n35ths", ylim=(0, 36))
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (above, below):
        axes.axvspan(top + 0.5, last + 0.5, color="#f2f2f2", linewidth=0, zorder=0)
    above.set_xlim(0.5, last + 0.5)
    _legend(figure, above)
    return figure


def sensitivity(table: pd.DataFrame, conventions: Mapping[str, str]) -> Figure:
    """Cliff's delta as shade and the exact p-value in 35ths as number, for every choice; a panel a selection rule.

    Args:
        table: from `studies.separation.sensitivity`.
        conventions: to label, in order from the top.
    """
    figure = Figure(figsize=(WIDTH, 4.4), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for axes, (selection, title) in zip(panels.flat, SELECTIONS.items(), strict=True):
        part = table[table["selection"] == selection]
        delta, p = (
            part.pivot(index="convention", columns="measure", values=name).loc[list(conventions), list(MEASURES)]
            for name in ("delta", "p")
        )
        image = axes.imshow(delta, cmap="PuOr_r", vmin=-1, vmax=1, aspect="auto")
        for row, column in np.ndindex(delta.shape):
            pale = abs(delta.iloc[row, column]) < 0.6
            text = f"{35 * p.iloc[row, column]:.0f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color="black" if pale else "white")
        axes.set_xticks(range(len(MEASURES)), MEASURES.values(), rotation=45, ha="right", rotation_mode="anchor")
        axes.set_title(title)
        axes.tick_params(length=0)
    panels[0, 0].set_yticks(range(len(conventions)), conventions.values())
    figure.colorbar(image, ax=panels, label="Cliff's delta", fraction=0.03, pad=0.01)
    return figure


def zeroing(phases: pd.DataFrame) -> Figure:
    """Before and after the phase of one head is zeroed: the chosen head and every control of each model.

    Args:
        phases: from `studies.panel.phase_zeroing`, all models; a column a kind of sequence.
    """
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    quantities = {
        "previous_token": "previous token,\nthe head itself",
        "induction": "induction,\nstrongest heads",
        "loss_second": "second-copy\nloss (nats)",
    }
    kinds = {"random": "repeated random tokens", "text": "repeated held-out text"}
    grid = figure.subplots(len(quantities), len(kinds), sharex=True, sharey="row", squeeze=False)
    models = list(phases["model"].unique())
    for column, (kind, title) in zip(grid.T, kinds.items(), strict=True):
        column[0].set_title(title)
        for axes, name in zip(column, quantities, strict=True):
            for place, model in enumerate(models):
                part = phases[(phases["model"] == model) & (phases["sequences"] == kind)]
                x = place + np.linspace(-0.36, 0.36, len(part))
                before, after = part[f"{name}_before"].to_numpy(), part[f"{name}_after"].to_numpy()
                for role, colour, text in (("control", GREY, "control heads"), ("chosen", BLUE, "chosen head")):
                    mine = (part["role"] == role).to_numpy()
                    axes.vlines(x[mine], before[mine], after[mine], color=colour, linewidth=1)
                    axes.plot(x[mine], before[mine], "o", color=colour, fillstyle="none", markersize=3.5)
                    axes.plot(x[mine], after[mine], "o", color=colour, markersize=3.5, label=text)
            axes.set_ylim(bottom=-0.04 * axes.get_ylim()[1])
        column[-1].set_xticks(range(len(models)), models)
    for axes, label in zip(grid[:, 0], quantities.values(), strict=True):
        axes.set_ylabel(label)
    _legend(figure, grid[0, 0])
    return figure


def _names(axes: Axes, x: float, values: pd.Series) -> None:
    """The name of each line beside its last point; names that would lie on each other are moved apart."""
    values = values.sort_values()
    low, high = axes.get_ylim()
    steps = np.arange(len(values)) * (high - low) / 14
    places = isotonic_regression(values.to_numpy() - steps).x + steps  # as near as they can be, and in order
    for (model, value), place in zip(values.items(), places, strict=True):
        axes.annotate(
            model,
            (x, value),
            (x * 1.08, place),
            va="center",
            fontsize=8,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2},
        )


def _legend(figure: Figure, *panels: Axes) -> None:
    """One legend above everything; a label that several lines share appears once."""
    found = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(found.values(), found.keys(), loc="outside upper center", ncols=min(4, len(found)))

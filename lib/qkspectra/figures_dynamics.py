"""Figures of the dynamics of training: one function each, from the tables of `studies.dynamics` and its neighbours."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Complex128
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from torch import Tensor

from qkspectra.figures import BLUE, GREY, ORANGE, PALE, PINK, SCHEME_COLOURS, SCHEME_NAMES, WIDTH

ROLES = {"previous_token": BLUE, "induction": PINK}
EVEN = 50.0
LINES = ("-", "--", ":", "-.", (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))
"""Of the models of one scheme, in their order."""


def portraits(points: pd.DataFrame, null: Complex128[Tensor, " points"], rows: Mapping[str, Sequence[int]]) -> Figure:
    """Eigenvalues in the complex plane, a row a model, a panel a step, over those of heads of the null.

    Args:
        points: `Trajectories.portraits` of one role.
        null: from `studies.static.scaled_eigenvalues`.
        rows: model to the steps to show.
    """
    width = max(map(len, rows.values()))
    figure = Figure(figsize=(WIDTH, (WIDTH / width + 0.15) * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), width, squeeze=False)
    circle = np.exp(1j * np.linspace(0, 2 * np.pi, 200))
    for line, (model, steps) in zip(grid, rows.items(), strict=True):
        mine = points[(points["model"] == model) & points["step"].isin(steps)]
        reach = 1.1 * max(1.1, np.hypot(mine["real"], mine["imag"]).max())
        for axes in line[len(steps) :]:
            axes.set_visible(False)
        for axes, step in zip(line, steps, strict=False):
            now = mine[mine["step"] == step]
            axes.plot(null.real, null.imag, ".", color=PALE, markersize=1, zorder=0, rasterized=True)
            axes.plot(circle.real, circle.imag, color=GREY, linewidth=0.5)
            axes.plot(now["real"], now["imag"], ".", color=BLUE, markersize=3)
            axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xticks=[], yticks=[])
            axes.set_title(f"step {step}", fontsize=7)
        line[0].set_ylabel(f"{_short(model)} L{mine['layer'].iloc[0]}H{mine['head'].iloc[0]}", fontsize=8)
    return figure


def courses(
    heads: pd.DataFrame,
    against: Mapping[str, pd.DataFrame],
    followed: Mapping[str, pd.DataFrame],
    measures: Mapping[str, str],
) -> Figure:
    """A column a scheme: what heads do, what the models lose, and where heads and population lie against the null.

    Args:
        heads: `Trajectories.heads`.
        against: `populations.against_null` of each measure, by name; its distance is shown for the first.
        followed: role to `order.risen`.
        measures: measure to label, a row of panels each.
    """
    schemes = [scheme for scheme in SCHEME_COLOURS if scheme in set(heads["scheme"])]
    figure = Figure(figsize=(WIDTH, 4.0 + 1.35 * len(measures)), layout="constrained")
    grid = figure.subplots(3 + len(measures), len(schemes), sharex=True, sharey="row", squeeze=False)
    first = against[next(iter(measures))]
    for column, scheme in zip(grid.T, schemes, strict=True):
        doing, losing, *lying, apart = column
        mine = heads[heads["scheme"] == scheme]
        models = list(mine["model"].unique())
        for model, style in zip(models, cycle(LINES), strict=False):
            chosen = {role: track[track["model"] == model] for role, track in followed.items()}
            for role, colour in ROLES.items():
                _mean(doing, chosen[role], role, colour, style)
            losses = mine[mine["model"] == model].groupby("step")[["loss_first", "loss_second"]].first()
            for name, colour in (("loss_first", GREY), ("loss_second", "black")):
                losing.plot(_at(losses.index), losses[name], color=colour, linestyle=style, linewidth=1)
            for axes, measure in zip(lying, measures, strict=True):
                place = against[measure][against[measure]["model"] == model]
                axes.plot(_at(place["step"]), place["q50"], color="black", linestyle=style, linewidth=1)
                for role, colour in ROLES.items():
                    _mean(axes, chosen[role], measure, colour, style)
            place = first[first["model"] == model]
            apart.plot(_at(place["step"]), place["ks"], color="black", linestyle=style, linewidth=1)
            apart.plot([], [], color="black", linestyle=style, linewidth=1, label=_short(model))
        for axes, measure in zip(lying, measures, strict=True):
            band = against[measure][against[measure]["scheme"] == scheme]
            axes.axhspan(band["null_low"].min(), band["null_high"].max(), color=PALE, linewidth=0, zorder=0)
        apart.axhspan(0, first[first["scheme"] == scheme]["ks_high"].max(), color=PALE, linewidth=0, zorder=0)
        apart.legend(fontsize=6.5, loc="upper left")
        apart.set(xlabel="step", ylim=(0, 1))
        doing.set(title=SCHEME_NAMES[scheme], ylim=(0, 1))
        _steps(apart, int(heads["step"].max()))
    labels = ("attention\nto target", "loss (nats)", *measures.values(), "KS distance")
    for axes, text in zip(grid[:, 0], labels, strict=True):
        axes.set_ylabel(text)
    for colour, text in (
        (ROLES["previous_token"], "previous-token heads"),
        (ROLES["induction"], "induction heads"),
        (GREY, "first copy"),
        ("black", "second copy; all heads"),
        (PALE, "null, 95%"),
    ):
        grid[0, 0].plot([], [], color=colour, linewidth=5 if colour == PALE else 1.5, label=text)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=5)
    return figure


def quantiles(heads: pd.DataFrame, against: pd.DataFrame, followed: pd.DataFrame, measure: str, label: str) -> Figure:
    """A panel a model: quantiles of all heads over training, the heads that come to look back, the band of the null.

    Args:
        heads: `Trajectories.heads`.
        against: `populations.against_null` of the measure.
        followed: `order.risen` of the previous-token role.
        measure, label: what is shown.
    """
    models = list(heads["model"].unique())
    columns = min(4, len(models))
    lines = -(-len(models) // columns)
    figure = Figure(figsize=(WIDTH, 1.75 * lines + 0.4), layout="constrained")
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axes, model in zip(grid.flat, models, strict=False):
        place = against[against["model"] == model]
        x = _at(place["step"])
        axes.axhspan(place["null_low"].iloc[0], place["null_high"].iloc[0], color=PALE, linewidth=0)
        colour = SCHEME_COLOURS[place["scheme"].iloc[0]]
        axes.fill_between(x, place["q10"], place["q90"], color=colour, alpha=0.2, linewidth=0)
        axes.fill_between(x, place["q25"], place["q75"], color=colour, alpha=0.3, linewidth=0)
        axes.plot(x, place["q50"], color="black", linewidth=1)
        for _, head in followed[followed["model"] == model].groupby(["layer", "head"]):
            head = head.sort_values("step")
            axes.plot(_at(head["step"]), head[measure], color="black", linewidth=0.6, linestyle="--")
        axes.set_title(_short(model), fontsize=8)
        _steps(axes, int(heads["step"].max()))
    for axes in grid.flat[len(models) :]:
        axes.set_visible(False)
    for line in grid:
        line[0].set_ylabel(label)
    figure.supxlabel("step", fontsize=9)
    return figure


def order(moves: pd.DataFrame, suppressed: pd.DataFrame, last: float | int) -> Figure:
    """A row a head: when its behaviour appeared and when its signature left the null; a bar where its model sank.

    Args:
        moves: `order.events` of one role, with `model`, `scheme`, `layer` and `head`.
        suppressed: `populations.suppression`.
        last: step at which what never happened is put, behind the end.
    """
    rows = moves.reset_index(drop=True)
    figure = Figure(figsize=(WIDTH, 0.17 * len(rows) + 1.2), layout="constrained")
    axes = figure.subplots()
    for row, head in rows.iterrows():
        early, late = sorted(np.minimum([head["behaviour"], head["signature"]], last))
        axes.plot(_at([early, late]), [row, row], color=GREY, linewidth=0.6)
    for name, marker, colour, label in (
        ("behaviour", "o", BLUE, "behaviour appears"),
        ("signature", "x", ORANGE, "signature leaves the null"),
    ):
        happened = np.isfinite(rows[name])
        axes.plot(_at(rows[name][happened]), rows.index[happened], marker, color=colour, markersize=4, label=label)
        axes.plot(_at(np.full((~happened).sum(), last)), rows.index[~happened], ">", color=colour, markersize=4)
    label: str | None = "population sinks below the null, 95% interval"
    for model, mine in rows.groupby("model", sort=False):
        sunk = suppressed[suppressed["model"] == model].iloc[0]
        low, high = mine.index.min() - 0.4, mine.index.max() + 0.4
        span = _at(np.minimum([sunk["low"], sunk["high"]], last))
        axes.fill_betweenx([low, high], *span, color=PALE, linewidth=0, zorder=0)
        if np.isfinite(sunk["step"]):
            axes.vlines(_at([sunk["step"]]), low, high, color="black", linewidth=1.2, label=label)
            label = None
        axes.axhline(high + 0.1, color=PALE, linewidth=0.5)
    names = [f"{_short(r.model)} L{r.layer}H{r.head}" for r in rows.itertuples()]
    axes.set_yticks(rows.index, names, fontsize=6.5)
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlabel="step")
    _steps(axes, last)
    figure.legend(loc="outside upper center", ncols=3)
    return figure


def _mean(axes: Axes, heads: pd.DataFrame, column: str, colour: str, style: Any) -> None:
    """The mean of some heads over training."""
    mean = heads.groupby("step")[column].mean()
    axes.plot(_at(mean.index), mean, color=colour, linestyle=style, linewidth=1.2)


def _at(steps: ArrayLike) -> np.ndarray:
    """Where steps stand on the axis: almost evenly up to `EVEN`, beyond it by their logarithm."""
    return np.log2(1 + np.asarray(steps, np.float64) / EVEN)


def _steps(axes: Axes, last: float | int) -> None:
    """Ticks at the round steps that the run reaches."""
    ticks = [tick for tick in (0, 100, 1000, 10_000, 100_000) if tick <= last]
    axes.set_xticks(_at(ticks), [f"{tick}" for tick in ticks])


def _short(model: str) -> str:
    return model.removeprefix("pocket-").rsplit("/", 1)[-1]

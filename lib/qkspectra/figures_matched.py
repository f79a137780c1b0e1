"""Figures of the matched experiment: one function each, from the tables of `studies.matched` and its analysis."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from qkspectra.figures import BLUE, GREEN, GREY, ORANGE, PALE, PINK, SCHEME_COLOURS, SCHEME_NAMES, WIDTH
from qkspectra.matched.model import NAMES, SCHEMES
from qkspectra.studies.matched_analysis import SCORED, main, role

COLOURS = {**SCHEME_COLOURS, "partial": "#56b4e9", "none": PINK}
TITLES = {**SCHEME_NAMES, **NAMES}
MARKS = {"rope": "o", "partial": "s", "absolute": "^", "alibi": "D", "none": "v"}
PARTS = {
    "full": ("all", "black", "-"),
    "symmetric": ("symmetric, even", ORANGE, "-"),
    "antisymmetric": ("antisymmetric, even", ORANGE, ":"),
    "phase_symmetric": ("symmetric, phase", BLUE, "-"),
    "phase_antisymmetric": ("antisymmetric, phase", BLUE, ":"),
    "position": ("position bias", GREEN, "--"),
}


def curves(heads: pd.DataFrame) -> Figure:
    """A column a scheme; rows: loss on held-out text, loss on the copies, strongest scores, rotation; a line a seed."""
    figure = Figure(figsize=(WIDTH, 5.6), layout="constrained")
    grid = figure.subplots(4, len(SCHEMES), sharex=True, sharey="row")
    for column, scheme in zip(grid.T, SCHEMES, strict=True):
        colour = COLOURS[scheme]
        column[0].set_title(TITLES[scheme], fontsize=7.5)
        for _, run in main(heads, scheme).groupby("seed"):
            model = run.groupby("step")[["loss_text", "loss_first", "loss_second", "eigen_rotation"]].mean()
            column[0].plot(model.index, model["loss_text"], color=colour, linewidth=0.7)
            column[1].plot(model.index, model["loss_first"], color=PALE, linewidth=0.7)
            column[1].plot(model.index, model["loss_second"], color=colour, linewidth=0.7)
            for score, line in (("previous_token", "-"), ("induction", ":")):
                best = run.groupby("step")[score].max()
                column[2].plot(best.index, best, color=colour, linestyle=line, linewidth=0.7)
            column[3].plot(model.index, model["eigen_rotation"], color=GREY, linewidth=0.6)
            chosen = role(run, "previous_token")[["layer", "head"]]
            mine = run.merge(chosen, on=["layer", "head"]).groupby("step")["eigen_rotation"].mean()
            column[3].plot(mine.index, mine, color=colour, linewidth=0.7)
        column[-1].set_xlabel("step", fontsize=8)
        column[2].set_ylim(0, 1)
    labels = ("held-out text\n(nats)", "random tokens\n(nats)", "strongest\nattention", "eigen-rotation")
    for axes, label in zip(grid[:, 0], labels, strict=True):
        axes.set_ylabel(label, fontsize=8)
    figure.align_ylabels(grid[:, 0])
    for colour, line, text in (
        (PALE, "-", "first copy"),
        (GREY, "-", "mean of all heads"),
        ("black", "-", "second copy; previous token"),
        ("black", ":", "induction"),
    ):
        figure.axes[0].plot([], [], color=colour, linestyle=line, label=text)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def populations(heads: pd.DataFrame, null: pd.DataFrame) -> Figure:
    """Every head of every main run at its last step, by scheme, over the band of the null; marked by their roles."""
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    panels = figure.subplots(1, 2, width_ratios=[3, 2])
    rng = np.random.default_rng(0)
    last = heads[heads["step"] == heads["step"].max()]
    low, high = (
        null.loc["eigen_rotation", "mean"] + side * 1.96 * null.loc["eigen_rotation", "sd"] for side in (-1, 1)
    )
    for axes in panels:
        axes.axhspan(low, high, color="#eeeeee", linewidth=0, zorder=0)
    for place, scheme in enumerate(SCHEMES):
        mine = main(last, scheme)
        chosen = {name: role(mine, name).index for name in ("previous_token", "induction")}
        shift = pd.Series(rng.uniform(-0.28, 0.28, len(mine)), index=mine.index)
        rest = mine.drop(chosen["previous_token"].union(chosen["induction"]))
        panels[0].plot(place + shift[rest.index], rest["eigen_rotation"], ".", color=GREY, markersize=2.5, alpha=0.6)
        for name, mark, colour in (("induction", "x", PINK), ("previous_token", "o", BLUE)):
            at = mine.loc[chosen[name]]
            panels[0].plot(place + shift[at.index], at["eigen_rotation"], mark, color=colour, markersize=4)
        at = mine.loc[chosen["previous_token"]]
        panels[1].plot(
            at["previous_token"],
            at["eigen_rotation"],
            MARKS[scheme],
            color=COLOURS[scheme],
            markersize=4,
            label=TITLES[scheme],
        )
    panels[0].set_xticks(range(len(SCHEMES)), [_broken(TITLES[scheme]) for scheme in SCHEMES])
    panels[0].tick_params(axis="x", labelsize=7)
    panels[0].set(ylabel="eigen-rotation", title="all heads")
    panels[1].set(xlabel="previous-token attention", title="previous-token heads")
    for mark, colour, text in (("o", BLUE, "previous-token"), ("x", PINK, "induction"), (".", GREY, "other")):
        panels[0].plot([], [], mark, color=colour, label=text)
    for axes, columns in zip(panels, (3, 2), strict=True):
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "fontsize": 7}
        axes.legend(ncols=columns, columnspacing=0.8, handletextpad=0.2, **below)
    return figure


def _broken(title: str) -> str:
    """A name on two lines."""
    middle = next((i for i, letter in enumerate(title) if letter in "- "), None)
    return title if middle is None else f"{title[: middle + 1].rstrip()}\n{title[middle + 1 :]}"


def kernels(kernels: pd.DataFrame, heads: pd.DataFrame) -> Figure:
    """Mean kernel of the previous-token heads, a column a scheme: mean direction kept above, projected out below."""
    chosen = role(main(heads), "previous_token")[["scheme", "seed", "layer", "head"]]
    mine = main(kernels).merge(chosen, on=["scheme", "seed", "layer", "head"])
    means = mine.groupby(["scheme", "mean", "part", "delta"])["score"].mean()
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    grid = figure.subplots(2, len(SCHEMES), sharex=True, sharey="col")
    for column, scheme in zip(grid.T, SCHEMES, strict=True):
        column[0].set_title(TITLES[scheme], fontsize=7.5)
        for axes, mean in zip(column, ("kept", "projected"), strict=True):
            for part, (label, colour, line) in PARTS.items():
                values = means.loc[scheme, mean, part]
                if part != "full" and values.abs().max() < 1e-9:
                    continue
                axes.plot(values.index, values - values.mean(), line, color=colour, linewidth=1, label=label)
            axes.axvline(1, color=PALE, linewidth=0.6, zorder=0)
            axes.tick_params(labelsize=7)
        column[-1].set_xlabel(r"$\Delta$")
    grid[0, 0].set_ylabel("mean token kept\nscore (nats)", fontsize=8)
    grid[1, 0].set_ylabel("projected out\nscore (nats)", fontsize=8)
    handles: dict[str, object] = {}
    for axes in grid.flat:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=3)
    return figure


def recoveries(heads: pd.DataFrame, banned: Sequence[tuple[str, str]], branch: int) -> Figure:
    """A panel a ban: accuracy on the second copy without it, under it from the first step, and under it later."""
    figure = Figure(figsize=(WIDTH, 2.3), layout="constrained")
    panels = figure.subplots(1, len(banned), sharey=True, squeeze=False)[0]
    for axes, (scheme, ban) in zip(panels, banned, strict=True):
        for kind, name, colour, label in (
            ("main", "none", GREY, "no ban"),
            ("banned", ban, ORANGE, "from the first step"),
            ("ban_after", ban, BLUE, "after formation"),
        ):
            chosen = heads[(heads["kind"] == kind) & (heads["ban"] == name) & (heads["scheme"] == scheme)]
            for _, run in chosen.groupby("seed"):
                at = run.groupby("step")["accuracy_second"].first()
                axes.plot(at.index, at, color=colour, linewidth=0.8, label=label)
                label = None
        axes.axvline(branch, color=PALE, linewidth=0.8, zorder=0)
        axes.set(title=f"{TITLES[scheme]}, {ban}", xlabel="step", ylim=(0, 1.02))
    panels[0].set_ylabel("accuracy on\nthe second copy")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def paths(places: pd.DataFrame, branch: int) -> Figure:
    """Paths through signature space: eigen-rotation against antisymmetric energy, in standard deviations of the null.

    A panel for previous-token heads and one for all heads; means over the seeds of the transplants, if there are any.
    """
    seeds = places.loc[places["kind"] == "transplant", "seed"].unique()
    mine = places[places["seed"].isin(seeds)] if len(seeds) else places
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, prefix, title in zip(panels, ("", "all_"), ("previous-token heads", "all heads"), strict=True):
        columns = [f"{prefix}{SCORED[0]}", f"{prefix}{SCORED[1]}"]
        for (kind, before, scheme), run in mine.groupby(["kind", "before", "scheme"], sort=False):
            if kind == "main" and scheme not in ("rope", "alibi"):
                continue
            means = run.groupby("step")[columns].mean()
            if kind == "transplant":
                axes.plot(
                    *means.to_numpy().T,
                    "--",
                    color=COLOURS[scheme],
                    linewidth=1,
                    label=f"{TITLES[before]} → {TITLES[scheme]}",
                )
                ends = run[run["step"] == run["step"].max()]
                axes.plot(ends[columns[0]], ends[columns[1]], "+", color=COLOURS[scheme], markersize=4)
            else:
                axes.plot(*means.to_numpy().T, "-", color=COLOURS[scheme], linewidth=1, label=TITLES[scheme])
                axes.plot(*means.loc[[branch]].to_numpy().T, "s", color=COLOURS[scheme], markersize=4)
                ends = run[run["step"] == run["step"].max()]
                axes.plot(ends[columns[0]], ends[columns[1]], ".", color=COLOURS[scheme], markersize=4)
            axes.plot(*means.iloc[[-1]].to_numpy().T, ">", color=COLOURS[scheme], markersize=5)
        axes.axhline(0, color=PALE, linewidth=0.6, zorder=0)
        axes.axvline(0, color=PALE, linewidth=0.6, zorder=0)
        axes.set(xlabel="eigen-rotation, z", title=title)
    panels[0].set_ylabel("antisymmetric energy, z")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def rocs(panels: Mapping[str, Mapping[str, tuple[pd.DataFrame, float]]]) -> Figure:
    """ROC curves, two panels a row, each for a set of heads: title to candidate to its curve and area."""
    lines = -(-len(panels) // 2)
    figure = Figure(figsize=(WIDTH * 0.8, 2.4 * lines), layout="constrained")
    grid = figure.subplots(lines, 2, sharex=True, sharey=True, squeeze=False)
    for axes, (title, own) in zip(grid.flat, panels.items(), strict=False):
        axes.plot([0, 1], [0, 1], color=PALE, linewidth=0.6)
        for (name, (curve, _)), colour in zip(own.items(), (GREY, BLUE, ORANGE), strict=False):
            axes.plot(curve["false"], curve["true"], color=colour, label=name.replace("_", "-"))
        # a poor curve runs where a legend of the panel would lie, a good one everywhere else
        areas = ", ".join(f"{area:.2f}" for _, area in own.values())
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        axes.set_title(f"{title}: {areas}", fontsize=8)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    figure.supxlabel("false positives", fontsize=9)
    figure.supylabel("true positives", fontsize=9)
    return figure

"""Figures of the toy laboratory: one function each, from the tables of `studies`."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter
from torch import Tensor

from qkspectra.figures import GREY, PALE, PINK, SCHEME_COLOURS, SCHEME_NAMES, WIDTH
from qkspectra.spectrum import Spectrum
from qkspectra.studies.symmetry import PAPER_RATIO
from qkspectra.toy.bans import BANS, SCHEMES

ROLES = {"previous_token": PINK, "induction": "#56b4e9"}


def learning_curves(curves: pd.DataFrame, scheme: str, threshold: float = 0.9) -> Figure:
    """A panel a ban: held-out accuracy of every seed over training; behind it, the same seeds without a ban."""
    chosen = curves[(curves["scheme"] == scheme) & (curves["layers"] == "both")]
    names = [name for name in BANS if name in set(chosen["ban"]) and name != "none"]
    columns = 4
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(WIDTH, 1.25 * lines + 0.5), layout="constrained")
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    free = chosen[chosen["ban"] == "none"]
    for panel, name in zip(panels.flat, names, strict=False):
        _seeds(panel, free, GREY, 0.5)
        _seeds(panel, chosen[chosen["ban"] == name], SCHEME_COLOURS[scheme], 0.6)
        panel.axhline(threshold, color="black", linewidth=0.5, linestyle=":")
        panel.set_title(name, fontsize=8)
    for panel in panels.flat[len(names) :]:
        panel.set_visible(False)
    for panel in panels.flat[: len(names)]:
        panel.set_xscale("log")
        panel.set(xlim=(max(10, chosen["step"].min()), max(20, chosen["step"].max())), ylim=(0, 1.02))
        panel.tick_params(labelsize=7)
    figure.supxlabel("step", fontsize=9)
    figure.supylabel("accuracy", fontsize=9)
    return figure


def _seeds(axes: Axes, curves: pd.DataFrame, colour: str, width: float) -> None:
    # One line broken between seeds: a figure of some hundred curves is drawn in seconds instead of minutes.
    table = curves[curves["step"] > 0].pivot(index="step", columns="seed", values="accuracy")
    broken = pd.concat([pd.concat([table[seed].dropna(), pd.Series({0: np.nan})]) for seed in table])
    axes.plot(broken.index, broken, color=colour, linewidth=width, alpha=0.7)


def formation_times(runs: pd.DataFrame, threshold: float = 0.9) -> Figure:
    """A column a scheme, a row a ban: the formation step of every seed; open triangles are censored runs at the cap."""
    chosen = runs[(runs["threshold"] == threshold) & (runs["layers"] == "both")]
    names = [name for name in BANS if name in set(chosen["ban"])]
    figure = Figure(figsize=(WIDTH, 0.3 * len(names) + 1.0), layout="constrained")
    panels = figure.subplots(1, len(SCHEMES), sharey=True, sharex=True)
    for panel, scheme in zip(panels, SCHEMES, strict=True):
        of_scheme = chosen[chosen["scheme"] == scheme]
        for row, name in enumerate(names):
            cell = of_scheme[of_scheme["ban"] == name].sort_values("seed")
            height = row + np.linspace(-0.28, 0.28, max(len(cell), 2))[: len(cell)]
            lost = cell["censored"].to_numpy(bool)
            steps = cell["step"].to_numpy(float)
            panel.plot(steps[~lost], height[~lost], ".", color=SCHEME_COLOURS[scheme], markersize=4)
            panel.plot(
                steps[lost], height[lost], ">", color=SCHEME_COLOURS[scheme], markersize=4, markerfacecolor="none"
            )
            if len(cell):
                panel.plot([np.median(steps)] * 2, [row - 0.4, row + 0.4], color="black", linewidth=1.2)
        free = of_scheme[of_scheme["ban"] == "none"]["step"]
        if len(free):
            panel.axvline(free.median(), color=GREY, linewidth=0.7, linestyle="--", zorder=0)
        panel.set_title(SCHEME_NAMES[scheme], fontsize=9)
        _log_axis(panel, (20, 50, 100, 200, 500, 1000, 2000, 5000, 10000))
        panel.set_xlabel("formation step", fontsize=8)
        panel.tick_params(labelsize=7)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    return figure


def _log_axis(axes: Axes, ticks: Sequence[float | int]) -> None:
    """A logarithmic axis with plain numbers at those of the ticks that its range holds."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xticks([tick for tick in ticks if low <= tick <= high])
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())


def contrasts(table: pd.DataFrame, level: float = 0.05) -> Figure:
    """The pre-registered contrasts: ratio with 95% interval; filled where q is at most the level."""
    figure = Figure(figsize=(WIDTH - 1.2, 0.45 * len(table) + 0.9), layout="constrained")
    axes = figure.subplots()
    for row, entry in enumerate(table.to_dict(orient="records")):
        _interval(axes, row, entry["ratio"], entry["low"], entry["high"], "black", filled=entry["q"] <= level)
        note = f"{entry['ratio']:.2f}   q = {entry['q']:.2g}"
        axes.annotate(note, (1.02, row), xycoords=("axes fraction", "data"), va="center", fontsize=8)
    axes.axvline(1, color=GREY, linewidth=0.8)
    _ratio_axis(axes)
    axes.set_yticks(range(len(table)), table["contrast"].tolist(), fontsize=8)
    axes.set_ylim(len(table) - 0.5, -0.5)
    return figure


def _interval(
    axes: Axes,
    row: float | int,
    ratio: float,
    low: float,
    high: float,
    colour: str,
    *,
    filled: bool = True,
    marker: str = "o",
) -> None:
    finite = np.isfinite([low, high]).all() and low > 0
    if finite:
        axes.plot([low, high], [row, row], color=colour, linewidth=1.4)
    axes.plot(ratio, row, marker, color=colour, markersize=5, markerfacecolor=colour if filled else "white")


def _ratio_axis(axes: Axes) -> None:
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    close = (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2)
    _log_axis(axes, close if high / low < 2.5 else (0.125, 0.25, 0.5, 1, 2, 4, 8, 16))
    axes.set_xlabel("ratio of formation steps", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)


def reroute(heads: pd.DataFrame) -> Figure:
    """A block a scheme: mean over seeds of the strongest head of a layer at the end, by ban and behaviour."""
    shown = [
        (0, "previous_token", "previous\nlayer 0"),
        (0, "duplicate_token", "duplicate\nlayer 0"),
        (1, "induction", "induction\nlayer 1"),
        (1, "duplicate_token", "duplicate\nlayer 1"),
        (1, "previous_token", "previous\nlayer 1"),
    ]
    last = heads[(heads["step"] == heads.groupby(["scheme", "ban", "layers", "seed"])["step"].transform("max"))]
    last = last[last["layers"] == "both"]
    names = [name for name in BANS if name in set(last["ban"])]
    figure = Figure(figsize=(WIDTH, 0.27 * len(names) + 1.1), layout="constrained")
    panels = figure.subplots(1, len(SCHEMES), sharey=True)
    image = None
    for panel, scheme in zip(panels, SCHEMES, strict=True):
        values = np.full((len(names), len(shown)), np.nan)
        for row, name in enumerate(names):
            cell = last[(last["scheme"] == scheme) & (last["ban"] == name)]
            for column, (layer, behaviour, _) in enumerate(shown):
                best = cell[cell["layer"] == layer].groupby("seed")[behaviour].max()
                values[row, column] = best.mean() if len(best) else np.nan
        image = panel.imshow(values, vmin=0, vmax=1, cmap="cividis", aspect="auto")
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                ink = "white" if value < 0.5 else "black"
                panel.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=6.5, color=ink)
        panel.set_xticks(range(len(shown)), [label for *_, label in shown], fontsize=6, rotation=60)
        panel.set_title(SCHEME_NAMES[scheme], fontsize=9)
    panels[0].set_yticks(range(len(names)), names, fontsize=7)
    if image is not None:
        figure.colorbar(image, ax=panels, label="attention", shrink=0.6)
    return figure


def end_spectra(tracks: Mapping[str, pd.DataFrame], null: Spectrum) -> Figure:
    """Where the two heads of the circuit end, a panel a measure: a dot a seed, over the middle 95% of the null.

    Args:
        tracks: by scheme, `order.followed`.
    """
    measures = {
        "antisymmetric_energy": "antisymmetric\nenergy",
        "eigen_rotation": "eigen-rotation",
        "henrici": "departure from\nnormality",
        "phase_symmetric_share": "symmetric share\nof Im $M_t$",
    }
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    panels = figure.subplots(1, len(measures), sharey=True)
    rows = [(scheme, role) for scheme in tracks for role in ROLES]
    for panel, (measure, label) in zip(panels, measures.items(), strict=True):
        expected = getattr(null, measure).numpy()
        panel.axvspan(*np.quantile(expected, [0.025, 0.975]), color=PALE, linewidth=0)
        for height, (scheme, role) in enumerate(rows):
            track = tracks[scheme]
            ends = track[track["step"] == track.groupby("seed")["step"].transform("max")]
            values = ends.loc[ends["role"] == role, measure].dropna().to_numpy()
            spread = height + np.linspace(-0.22, 0.22, max(len(values), 2))[: len(values)]
            panel.plot(values, spread, ".", color=ROLES[role], markersize=4)
        panel.set_xlabel(label, fontsize=8)
        panel.tick_params(labelsize=7)
    labels = [f"{SCHEME_NAMES[scheme]}, {role.replace('_', '-')}" for scheme, role in rows]
    panels[0].set_yticks(range(len(rows)), labels, fontsize=7)
    panels[0].invert_yaxis()
    return figure


def slowdowns(table: pd.DataFrame, rows: Sequence[tuple[str, str]]) -> Figure:
    """Cost of a ban by scheme: ratio to the same seeds without one, 95% interval, arrow where runs are censored.

    Args:
        table: `bans.slowdowns`.
        rows: ban and banned layers of each row.
    """
    figure = Figure(figsize=(WIDTH, 0.55 * len(rows) + 1.0), layout="constrained")
    axes = figure.subplots()
    shift = dict(zip(SCHEMES, (-0.22, 0.0, 0.22), strict=True))
    for row, (ban, layers) in enumerate(rows):
        cells = table[(table["ban"] == ban) & (table["layers"] == layers)]
        for cell in cells.to_dict(orient="records"):
            marker = ">" if cell["censored"] else "o"
            place, colour = row + shift[cell["scheme"]], SCHEME_COLOURS[cell["scheme"]]
            _interval(axes, place, cell["ratio"], cell["low"], cell["high"], colour, marker=marker)
    _paper_line(axes)
    for scheme in SCHEMES:
        axes.plot([], [], "o", color=SCHEME_COLOURS[scheme], label=SCHEME_NAMES[scheme])
    figure.legend(loc="outside upper center", ncols=len(SCHEMES))
    _ratio_axis(axes)
    where = {"both": "", "0": ", layer 0", "1": ", layer 1"}
    axes.set_yticks(range(len(rows)), [ban + where[layers] for ban, layers in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    return figure


def _paper_line(axes: Axes) -> None:
    axes.axvline(1, color=GREY, linewidth=0.8)
    axes.axvline(PAPER_RATIO, color="black", linewidth=0.8, linestyle="--")
    axes.annotate(f"{PAPER_RATIO}", (PAPER_RATIO, 1.01), xycoords=("data", "axes fraction"), ha="center", fontsize=8)


def multiverse(table: pd.DataFrame) -> Figure:
    """A row a point: slowdown under learned-absolute and RoPE, right their ratio; pale where a baseline is late."""
    figure = Figure(figsize=(WIDTH, 0.33 * len(table) + 1.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    for row, entry in enumerate(table.to_dict(orient="records")):
        for scheme, shift in (("absolute", -0.16), ("rope", 0.16)):
            marker = ">" if entry[f"{scheme}_censored"] else "o"
            values = entry[scheme], entry[f"{scheme}_low"], entry[f"{scheme}_high"]
            _interval(left, row + shift, *values, PALE if entry["late"] else SCHEME_COLOURS[scheme], marker=marker)
        values = entry["interaction"], entry["interaction_low"], entry["interaction_high"]
        colour = PALE if entry["late"] else "black"
        _interval(right, row, *values, colour, filled=entry["interaction_p"] <= 0.05)
    _paper_line(left)
    right.axvline(1, color=GREY, linewidth=0.8)
    for scheme in ("absolute", "rope"):
        left.plot([], [], "o", color=SCHEME_COLOURS[scheme], label=SCHEME_NAMES[scheme])
    figure.legend(loc="outside upper center", ncols=2)
    for axes in (left, right):
        _ratio_axis(axes)
    left.set_xlabel("cost of symmetry", fontsize=8)
    right.set_xlabel("learned-absolute over RoPE", fontsize=8)
    names = [f"{name} ({seeds})" for name, seeds in zip(table["variation"], table["seeds"], strict=True)]
    left.set_yticks(range(len(table)), names, fontsize=7)
    left.set_ylim(len(table) - 0.5, -0.5)
    return figure


def kernels(panels: Mapping[str, tuple[pd.DataFrame, int]]) -> Figure:
    """The mean score by offset of the strongest previous-token head of layer 0, split into even and odd part.

    Args:
        panels: by title, `symmetry.kernel` and the head to draw.
    """
    figure = Figure(figsize=(WIDTH, 2.3), layout="constrained")
    drawn = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, (table, head)) in zip(drawn, panels.items(), strict=True):
        one = table[table["head"] == head].sort_values("offset")
        axes.plot(one["offset"], one["even"], color=GREY, linewidth=1.2, label="even (Re $M_t$)")
        axes.plot(one["offset"], one["odd"], color=ROLES["previous_token"], linewidth=1.4, label="odd (Im $M_t$)")
        axes.plot(one["offset"], one["even"] + one["odd"], color="black", linewidth=0.7, linestyle=":", label="sum")
        axes.axvline(1, color=GREY, linewidth=0.6, linestyle="--")
        axes.set_title(title, fontsize=8)
        axes.set_xlabel(r"offset $\Delta$ = query − key", fontsize=8)
        axes.tick_params(labelsize=7)
    drawn[0].set_ylabel("mean score", fontsize=8)
    drawn[0].legend(fontsize=6.5)
    return figure


def score_matrices(panels: Mapping[str, Float64[Tensor, "query key"]]) -> Figure:
    """Scores before the mask of one head on one sequence, and below, how far they are from their transpose."""
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    drawn = figure.subplots(2, len(panels), squeeze=False)
    for column, (title, scores) in enumerate(panels.items()):
        size = scores.abs().max().item()
        parts = (scores, scores - scores.mT)
        for axes, part in zip(drawn[:, column], parts, strict=True):
            image = axes.imshow(part, cmap="PuOr", vmin=-size, vmax=size)
            axes.set_xticks([0, len(scores) - 1])
            axes.set_yticks([0, len(scores) - 1])
            axes.tick_params(labelsize=6)
        drawn[0, column].set_title(title, fontsize=8)
        figure.colorbar(image, ax=drawn[:, column], location="bottom", shrink=0.8).ax.tick_params(labelsize=6)
    drawn[0, 0].set_ylabel("scores $s(i, j)$", fontsize=8)
    drawn[1, 0].set_ylabel("$s(i, j) − s(j, i)$", fontsize=8)
    return figure


def dynamics(tracks: Mapping[str, pd.DataFrame], null: Spectrum, measure: str, label: str) -> Figure:
    """A column a scheme: above, the behaviour of the two heads of the circuit; below, a measure over the null's band.

    Thin lines are seeds, thick lines their median.
    """
    figure = Figure(figsize=(WIDTH, 3.7), layout="constrained")
    above, below = figure.subplots(2, len(tracks), sharex="col", sharey="row", squeeze=False)
    expected = getattr(null, measure)
    mean, spread = float(expected.mean()), float(expected.std())
    for top, bottom, (scheme, track) in zip(above, below, tracks.items(), strict=True):
        bottom.axhspan(mean - 2 * spread, mean + 2 * spread, color=PALE, linewidth=0)
        for role, colour in ROLES.items():
            rows = track[track["role"] == role]
            for axes, column in ((top, role), (bottom, measure)):
                lines = rows.dropna(subset=[column]).pivot(index="step", columns="seed", values=column)
                for seed in lines:
                    one = lines[seed].dropna()
                    axes.plot(one.index, one, color=colour, linewidth=0.4, alpha=0.5)
                whole = lines.dropna(thresh=len(lines.columns) // 2 + 1).median(axis=1)
                axes.plot(whole.index, whole, color=colour, linewidth=1.8, label=role.replace("_", "-"))
        top.set_title(SCHEME_NAMES[scheme], fontsize=9)
        bottom.set_xlabel("step", fontsize=8)
        for axes in (top, bottom):
            axes.tick_params(labelsize=7)
    above[0].set_ylabel("attention to target", fontsize=8)
    above[0].legend(fontsize=7)
    below[0].set_ylabel(label, fontsize=8)
    return figure

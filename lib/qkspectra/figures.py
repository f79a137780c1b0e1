"""The look of all figures, how they are saved, and the figures of the theory chapter.

Importing this module sets Matplotlib's style for the process, so that every figure of the book looks alike.
"""

import base64
import io
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from jaxtyping import Complex128, Float64
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox
from torch import Tensor

from qkspectra import files, record, vector
from qkspectra.mime import FIGURE_MIME
from qkspectra.store import replacing

WIDTH = 6.3
"""Inches across the text of the PDF: at this width a figure is neither shrunk there nor on the page of the browser."""

BLUE, ORANGE, GREEN, PINK, GREY, PALE = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#737373", "#d9d9d9"
"""Told apart by eyes of every kind (Okabe and Ito 2008); grey for what stands for comparison."""

PAD = 0.02
"""Inches of paper around what is drawn."""

SCREEN = 150
"""Dots an inch of the clouds of points within an SVG; a PDF has twice as many."""

SCHEME_COLOURS = {"rope": BLUE, "absolute": ORANGE, "alibi": GREEN}
SCHEME_NAMES = {"rope": "RoPE", "absolute": "learned-absolute", "alibi": "ALiBi"}

matplotlib.rcParams.update(
    {
        "font.size": 9,
        "axes.titlesize": 9,
        "axes.labelsize": 9,
        "xtick.labelsize": 8,
        "ytick.labelsize": 8,
        "legend.fontsize": 8,
        "legend.frameon": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.6,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "lines.linewidth": 1.2,
        "figure.dpi": 150,
        "savefig.dpi": 300,
        "pdf.fonttype": 42,  # outlines that can be searched and copied, not bitmaps
        "svg.hashsalt": "qkspectra",  # ids from the content instead of from chance
    }
)


def save(figure: Figure, name: str, data: pd.DataFrame | None = None, folder: Path = Path("figures")) -> None:
    """Write `<folder>/<name>.svg` for HTML and `<folder>/<name>.pdf` for LaTeX; equal figures give equal files.

    Curves are drawn with no more points than it takes (`vector.thin`), by which `figure` is changed.
    Beside them lies `<name>.json`, the figure's provenance (`record.entered`). Each file is complete or absent,
    whatever interrupts the writing. In a notebook the figure is shown as well, and the book puts it where the text says
    instead.

    Args:
        data: the numbers behind the figure, written beside it as `.csv` and `.parquet`.
    """
    box = _settled(figure)
    for suffix, dates in (("svg", ["Date"]), ("pdf", ["CreationDate", "ModDate"])):
        with replacing(folder / f"{name}.{suffix}") as temporary:
            _draw(figure, box, temporary, suffix, metadata=dict.fromkeys(dates))
    if data is not None:
        for suffix in (".csv", ".parquet"):
            files.write(data, folder / f"{name}{suffix}")
    with replacing(folder / f"{name}.json") as temporary:
        temporary.write_text(json.dumps(record.entered(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython():
        picture = io.BytesIO()
        _draw(figure, box, picture, "png", dpi=100)
        shown = {FIGURE_MIME: name, "image/png": base64.b64encode(picture.getvalue()).decode(), "text/plain": name}
        sys.modules["IPython"].display.display(shown, raw=True)


def svg(figure: Figure) -> bytes:
    """The figure as SVG; equal figures give equal bytes."""
    box = _settled(figure)
    picture = io.BytesIO()
    _draw(figure, box, picture, "svg", metadata={"Date": None})
    return picture.getvalue()


def _settled(figure: Figure) -> Bbox:
    """Lay out a figure for good and thin its curves; returns the paper that it fills.

    Left to itself, Matplotlib would lay it out anew and measure it for every file.
    """
    vector.thin(figure)
    figure.set_layout_engine(None)
    return figure.get_tightbbox().padded(PAD)


def _draw(figure: Figure, box: Bbox, target: Path | io.BytesIO, kind: str, **how: Any) -> None:
    where = io.StringIO() if kind == "svg" else target
    dots = {"dpi": SCREEN} if kind == "svg" else {}
    figure.savefig(where, format=kind, bbox_inches=box, **dots, **how)
    if isinstance(where, io.StringIO):
        content = vector.compact(where.getvalue()).encode()
        target.write_bytes(content) if isinstance(target, Path) else target.write(content)


@dataclass(frozen=True)
class Portrait:
    """The eigenvalues of one head, as a panel.

    Attributes:
        title: above the panel.
        eigenvalues: of the head, in any unit.
        colour: of its points.
    """

    title: str
    eigenvalues: Complex128[Tensor, " d_head"]
    colour: str = BLUE


def portraits(heads: Sequence[Portrait], null: Complex128[Tensor, " points"]) -> Figure:
    """Eigenvalues in the complex plane, a panel a head, over the cloud of many heads of the null.

    Every set of eigenvalues is divided by `sqrt(2 mean |lambda|^2)`, which is the radius of an evenly filled disc: the
    circle that is drawn.
    """
    figure = Figure(figsize=(WIDTH, WIDTH / len(heads) + 0.45), layout="constrained")
    panels = figure.subplots(1, len(heads), sharex=True, sharey=True, squeeze=False)[0]
    scaled = [_unit(head.eigenvalues) for head in heads]
    reach = max(1.15, *(1.08 * np.abs(values).max() for values in scaled))
    cloud = _unit(null)
    circle = np.exp(1j * np.linspace(0, 2 * np.pi, 200))
    for axes, head, values in zip(panels, heads, scaled, strict=True):
        axes.plot(cloud.real, cloud.imag, ".", color=PALE, markersize=1.5, zorder=0, rasterized=True)
        axes.plot(circle.real, circle.imag, color=GREY, linewidth=0.6)
        axes.plot(values.real, values.imag, ".", color=head.colour, markersize=4)
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", title=head.title, xlabel=r"Re $\lambda$")
    panels[0].set_ylabel(r"Im $\lambda$")
    return figure


def points(heads: Sequence[Portrait]) -> pd.DataFrame:
    """The numbers of `portraits`, without the null: `head`, `real`, `imag`, one row an eigenvalue."""
    parts = [(head.title, _unit(head.eigenvalues)) for head in heads]
    return pd.concat(
        [pd.DataFrame({"head": title, "real": values.real, "imag": values.imag}) for title, values in parts],
        ignore_index=True,
    )


def _unit(eigenvalues: Complex128[Tensor, " points"]) -> np.ndarray:
    values = eigenvalues.numpy()
    return values / np.sqrt(2 * np.mean(np.abs(values) ** 2))


@dataclass(frozen=True)
class Draw:
    """One measure of many heads of the null, as a panel.

    Attributes:
        label: of the measure.
        values: one a head.
        limits: name to value of the closed forms to mark.
    """

    label: str
    values: Float64[Tensor, " samples"]
    limits: Mapping[str, float]


def null_draws(draws: Sequence[Draw]) -> Figure:
    """Histograms of measures of the null, a panel a measure, with closed forms as lines."""
    figure = Figure(figsize=(WIDTH, 2.2), layout="constrained")
    for axes, draw in zip(figure.subplots(1, len(draws), squeeze=False)[0], draws, strict=True):
        axes.hist(draw.values.numpy(), bins=30, color=PALE)
        axes.axvline(draw.values.mean().item(), color=BLUE, label="mean of the draws")
        for (name, value), colour, line in zip(draw.limits.items(), (ORANGE, GREEN), ("--", ":"), strict=False):
            axes.axvline(value, color=colour, linestyle=line, label=name)
        axes.set(xlabel=draw.label, yticks=[])
        axes.spines["left"].set_visible(False)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


@dataclass(frozen=True)
class Kernel:
    """A score as a function of the distance between query and key, as a panel.

    Attributes:
        title: above the panel.
        distance: query position less key position.
        full: score at each distance.
        even: the same with every `Im M_t` set to zero.
    """

    title: str
    distance: Float64[Tensor, " distances"]
    full: Float64[Tensor, " distances"]
    even: Float64[Tensor, " distances"]


def kernels(panels: Sequence[Kernel]) -> Figure:
    """Score against distance, with and without the phase, a panel a head; on the pale side the key comes later."""
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    for axes, kernel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        axes.axvspan(kernel.distance.min().item(), 0, color="#f2f2f2", linewidth=0, zorder=0)
        axes.plot(kernel.distance, kernel.even, "s-", color=ORANGE, markersize=2.5, linewidth=0.9, label="phase zeroed")
        axes.plot(kernel.distance, kernel.full, "o-", color=BLUE, markersize=3, label="as it is")
        axes.set(title=kernel.title, xlabel=r"distance $\Delta = i - j$", xlim=kernel.distance[[0, -1]].tolist())
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.axes[0].set_ylabel("score")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure

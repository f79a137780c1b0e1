"""Lighter graphics look the same: every point that is left out, and every digit, lies within what is promised."""

import io
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.figure import Figure

from qkspectra import figures, vector

SVG = "{http://www.w3.org/2000/svg}"


def distance(point, line):
    """From a point to the nearest place of a polyline."""
    first, along = line[:-1], np.diff(line, axis=0)
    share = np.clip(((point - first) * along).sum(1) / np.maximum((along**2).sum(1), 1e-300), 0, 1)
    return np.hypot(*(first + share[:, None] * along - point).T).min()


def corners(path):
    """The places of an SVG path of lines, written absolutely or by steps."""
    places, at = [], np.zeros(2)
    for command, rest in re.findall(r"([MLlh])([^MLlhz]*)", path):
        numbers = re.findall(r"-?(?:\d+\.?\d*|\.\d+)", rest) if command != "h" else []
        for pair in np.array(numbers, float).reshape(-1, 2):
            at = at + pair if command == "l" else pair
            places.append(at)
    return np.array(places)


def drawn():
    """A figure with a noisy curve that has a gap, a line with markers, and points."""
    rng = np.random.default_rng(0)
    figure = Figure(figsize=(3, 2))
    axes = figure.subplots()
    x = np.linspace(1, 100, 2000)
    y = np.sin(x / 9) + 0.02 * rng.standard_normal(2000)
    y[1000] = np.nan
    axes.plot(x, y, linewidth=0.6)
    axes.plot(x[::50], 0.1 * x[::50] - 5, "o-", markersize=2)
    axes.set_xscale("log")
    return figure


def raw(figure):
    picture = io.StringIO()
    figure.savefig(picture, format="svg", bbox_inches="tight", metadata={"Date": None})
    return picture.getvalue()


@pytest.mark.parametrize("tolerance", [0.0, 0.1, 1.0])
def test_what_is_left_out_lies_near_what_is_kept(tolerance):
    rng = np.random.default_rng(1)
    places = np.stack([np.arange(300.0), rng.standard_normal(300).cumsum()], 1)
    kept = vector.needed(places, tolerance)
    assert kept[[0, -1]].all()
    assert all(distance(point, places[kept]) <= tolerance + 1e-9 for point in places)
    assert kept.sum() < 300 or tolerance == 0


@pytest.mark.parametrize(("places", "kept"), [(0, 0), (1, 1), (2, 2)])
def test_short_curves_and_closed_ones_are_kept(places, kept):
    assert vector.needed(np.ones((places, 2)), 0.3).sum() == kept
    square = np.array([[0, 0], [9, 0], [9, 9], [0, 9], [0, 0]], float)
    assert vector.needed(square, 0.3).all()


def test_curves_lose_points_and_nothing_else_does():
    figure = drawn()
    curve, marked = figure.axes[0].lines
    before, limits, marks = curve.get_xydata(), figure.axes[0].get_xlim(), marked.get_xydata()
    vector.thin(figure)
    after = curve.get_xydata()
    assert len(after) < len(before) / 3
    assert np.isnan(after[:, 1]).sum() == 1
    assert figure.axes[0].get_xlim() == limits
    np.testing.assert_array_equal(marked.get_xydata(), marks)
    place = figure.axes[0].transData.transform
    solid = [piece[np.isfinite(piece).all(1)] for piece in np.split(after, np.flatnonzero(np.isnan(after[:, 1])))]
    far = [
        min(distance(place(point), place(piece)) for piece in solid) * 72 / figure.dpi
        for point in before[np.isfinite(before).all(1)][::7]
    ]
    assert max(far) <= vector.TOLERANCE + 1e-6


def test_compact_svg_has_the_same_lines_and_the_same_marks():
    long = raw(drawn())
    short = vector.compact(long)
    assert len(short) < 0.7 * len(long)
    old, new = (ET.fromstring(text) for text in (long, short))
    assert len(list(old.iter(f"{SVG}use"))) == len(list(new.iter(f"{SVG}use")))
    paths = [[path.get("d") for path in tree.iter(f"{SVG}path")] for tree in (old, new)]
    assert len(paths[0]) == len(paths[1])
    compared = 0
    for before, after in zip(*paths, strict=True):
        if not set(before) & set("QC"):
            a, b = corners(before), corners(after)
            if len(a) == len(b):
                assert np.abs(a - b).max() <= 0.0051
                compared += 1
            assert before.rstrip().endswith("z") == after.rstrip().endswith("z")
    assert compared > 10
    scales = re.compile(r"scale\([^)]*\)")
    assert scales.findall(short) == scales.findall(long)


def test_equal_figures_stay_equal():
    assert figures.svg(drawn()) == figures.svg(drawn())

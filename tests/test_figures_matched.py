"""Every figure of the matched experiment shows what it was given, with and without the interventions."""

import numpy as np
import pandas as pd
import pytest
from tests.studies.test_matched_analysis import NULL, heads, kernels  # noqa: F401  (fixtures)

from qkspectra import figures_matched
from qkspectra.matched.model import SCHEMES
from qkspectra.studies import matched_analysis


def labels(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_training_curves_have_a_line_a_seed(heads):  # noqa: F811
    figure = figures_matched.curves(heads)
    figure.canvas.draw()
    assert [axes.get_title() for axes in figure.axes[:5]] == [figures_matched.TITLES[s] for s in SCHEMES]
    second = figure.axes[5].get_lines()  # two lines a seed: either copy
    assert len(second) == 16
    assert second[1].get_ydata()[-1] == pytest.approx(0.3)
    assert "first copy" in labels(figure)


def test_populations_mark_the_heads_by_role(heads):  # noqa: F811
    figure = figures_matched.populations(heads, NULL)
    figure.canvas.draw()
    left, right = figure.axes
    points = {
        marker: sum(len(line.get_xdata()) for line in left.get_lines() if line.get_marker() == marker)
        for marker in "ox."
    }
    assert points == {"o": 80, "x": 80, ".": 160}
    assert len(right.get_lines()) == 5
    np.testing.assert_allclose(right.get_lines()[0].get_ydata(), 0.7, atol=0.05)


def test_kernels_leave_out_parts_that_a_scheme_lacks(heads, kernels):  # noqa: F811
    figure = figures_matched.kernels(kernels, heads)
    figure.canvas.draw()
    assert "symmetric, phase" in labels(figure)
    assert "position bias" not in labels(figure)  # zero in these tables


@pytest.mark.parametrize("run", [True, False])
def test_bans_and_paths_draw_what_there_is(heads, run):  # noqa: F811
    table = heads if run else heads[heads["kind"] == "main"]
    recoveries = figures_matched.recoveries(table, [("rope", "phase")], 1200)
    paths = figures_matched.paths(matched_analysis.places(table, NULL), 1200)
    for figure in (recoveries, paths):
        figure.canvas.draw()
    assert len(recoveries.axes[0].get_lines()) == (25 if run else 9)  # and a line at the branch
    assert ("RoPE \N{RIGHTWARDS ARROW} ALiBi" in labels(paths)) == run


def test_curves_of_candidates_carry_their_areas():
    curve = pd.DataFrame({"false": [0.0, 0.0, 1.0], "true": [0.0, 1.0, 1.0]})
    figure = figures_matched.rocs({"held out": {"pull_phase": (curve, 1.0)}})
    figure.canvas.draw()
    axes, empty = figure.axes
    assert not empty.get_visible()
    assert axes.get_title() == "held out: 1.00"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["pull-phase"]

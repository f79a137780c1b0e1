"""Figures of the panel show every model, every choice and every ablation that their tables hold."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from qkspectra import figures, figures_panel
from qkspectra.figures import BLUE, SCHEME_COLOURS
from qkspectra.studies import separation

SCHEMES = {"A": "rope", "B": "rope", "C": "rope", "D": "absolute", "E": "absolute", "F": "alibi", "G": "alibi"}
OUTSIDE = {"X": "rope", "Y": "absolute"}
CONVENTIONS = {"raw": "raw", "centred": "centred"}


def heads_of(models, unders=("raw",)) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    columns = [*separation.SELECTIONS, *separation.MEASURES, "previous_token_alone"]
    parts = [
        pd.DataFrame(rng.random((6, len(columns))), columns=columns).assign(model=model, scheme=scheme, under=under)
        for model, scheme in models.items()
        for under in unders
    ]
    return pd.concat(parts, ignore_index=True).assign(null_low=0.4, null_high=0.6)


@pytest.fixture(scope="module")
def seven():
    return heads_of(SCHEMES, CONVENTIONS)


@pytest.fixture(scope="module")
def beside():
    return heads_of(OUTSIDE).drop(columns="previous_token_alone")


def texts(figure: Figure) -> list[str]:
    figure.canvas.draw()
    found = [text for axes in figure.axes for text in (*axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels())]
    return [text.get_text() for text in found]


def test_a_strip_singles_out_the_strongest_heads_of_every_model(seven, beside):
    figure = figures_panel.strips(seven, 2, beside)
    above, below = figure.axes
    assert set(SCHEMES) | set(OUTSIDE) <= set(texts(figure))
    raw = pd.concat([seven[seven["under"] == "raw"], beside])
    for axes, column in ((above, "eigen_rotation"), (below, "previous_token")):
        drawn = sorted(
            value
            for line in axes.lines
            if line.get_color() in SCHEME_COLOURS.values() and line.get_marker() in "os^"
            for value in line.get_ydata()
        )
        top = raw.sort_values("previous_token").groupby("model").tail(2)
        assert drawn == pytest.approx(sorted(top[column]))


def test_every_model_has_a_line_and_a_name_of_its_own(seven, beside):
    means = separation.top_means(seven)
    table = separation.separations(means)
    figure = figures_panel.separation(means, table, separation.top_means(beside), 3, "measure")
    figure.canvas.draw()
    above, below = figure.axes
    lines = [line.get_ydata().tolist() for line in above.lines if len(line.get_ydata()) == 6]
    for _, part in (*means.groupby("model"), *separation.top_means(beside).groupby("model")):
        assert part["value"].tolist() in lines
    assert below.lines[0].get_ydata() == pytest.approx(35 * table["p"])
    assert [text.get_text() for text in above.texts] == means[means["k"] == 6].sort_values("value")["model"].tolist()
    height = max(Text.get_window_extent(text).height for text in above.texts)
    places = above.transData.transform([text.xyann for text in above.texts])[:, 1]
    assert np.diff(places).min() >= height


def test_every_choice_has_its_p_in_35ths(seven):
    grid = separation.sensitivity(separation.with_excess(seven), CONVENTIONS, 3)
    figure = figures_panel.sensitivity(grid, CONVENTIONS)
    shown = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert len(shown) == len(grid)
    assert sorted(map(int, shown)) == sorted((35 * grid["p"]).round().astype(int))


def test_every_ablation_goes_from_before_to_after():
    rng = np.random.default_rng(2)
    names = [f"{n}_{w}" for n in ("previous_token", "induction", "loss_second") for w in ("before", "after")]
    parts = [
        pd.DataFrame(rng.random((3, 6)), columns=names).assign(
            model=model, sequences=kind, role=["chosen", "control", "control"]
        )
        for model in "AB"
        for kind in ("random", "text")
    ]
    phases = pd.concat(parts, ignore_index=True)
    figure = figures_panel.zeroing(phases)
    for axes, (kind, name) in zip(
        figure.axes,
        [(k, n) for n in ("previous_token", "induction", "loss_second") for k in ("random", "text")],
        strict=True,
    ):
        chosen = phases[(phases["sequences"] == kind) & (phases["role"] == "chosen")]
        blue = [line for line in axes.lines if line.get_color() == BLUE]
        drawn = {
            style: [y for line in blue if line.get_fillstyle() == style for y in line.get_ydata()]
            for style in ("none", "full")
        }
        assert drawn["none"] == chosen[f"{name}_before"].tolist()
        assert drawn["full"] == chosen[f"{name}_after"].tolist()


def test_they_are_saved_with_the_numbers_behind_them(seven, beside, tmp_path):
    figures.save(figures_panel.strips(seven, 2, beside), "strips", seven, folder=tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".svg", ".pdf", ".json", ".csv", ".parquet"}

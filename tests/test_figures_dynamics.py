"""The figures of training show the numbers of their tables, for as many models and schemes as there are."""

import numpy as np
import pandas as pd
import pytest
import torch

from qkspectra import figures, figures_dynamics
from qkspectra.studies import order, populations

STEPS = [0, 1, 8, 64, 512, 1000, 2000]
MODELS = {"pocket-one": "rope", "org/two": "rope", "pocket-three": "alibi"}
RULE = order.Rule()


@pytest.fixture(scope="module")
def heads() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    index = pd.MultiIndex.from_product([MODELS, STEPS, range(2), range(3)], names=["model", "step", "layer", "head"])
    table = index.to_frame(index=False).assign(d_head=8, d_model=32)
    table["kv_head"], table["scheme"] = table["head"], table["model"].map(MODELS)
    for name in ("previous_token", "induction", "eigen_rotation", "leading_rotation"):
        table[name] = 0.5 + 0.2 * rng.random(len(table))
    leads = (table["layer"] == 0) & (table["head"] == 1) & (table["step"] >= 1000)
    table.loc[leads, ["previous_token", "induction"]] = 0.95
    table["loss_first"], table["loss_second"] = 7.0 + table["step"] / 1000, 7.0 - table["step"] / 500
    return table


@pytest.fixture(scope="module")
def nulls(heads: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {str(model): populations.null_of(run, 60) for model, run in heads.groupby("model", sort=False)}


@pytest.fixture(scope="module")
def against(heads, nulls) -> dict[str, pd.DataFrame]:
    return {name: populations.against_null(heads, nulls, name) for name in ("eigen_rotation", "leading_rotation")}


@pytest.fixture(scope="module")
def followed(heads) -> dict[str, pd.DataFrame]:
    return {role: order.risen(heads, role) for role in ("previous_token", "induction")}


def saved(figure, tmp_path) -> None:
    figures.save(figure, "test", folder=tmp_path)
    assert (tmp_path / "test.svg").stat().st_size > 5000
    assert (tmp_path / "test.pdf").stat().st_size > 2000


def test_courses_have_a_column_a_scheme_and_a_line_a_model(heads, against, followed, tmp_path) -> None:
    labels = {"eigen_rotation": "eigen-rotation", "leading_rotation": "leading rotation"}
    figure = figures_dynamics.courses(heads, against, followed, labels)
    assert len(figure.axes) == 5 * 2
    assert [axes.get_title() for axes in figure.axes[:2]] == ["RoPE", "ALiBi"]
    losing = figure.axes[2]
    assert len(losing.lines) == 2 * 2
    assert losing.lines[1].get_ydata().tolist() == heads.groupby("step")["loss_second"].first().tolist()
    assert [text.get_text() for text in figure.axes[8].get_legend().get_texts()] == ["one", "two"]
    saved(figure, tmp_path)


def test_no_model_is_left_out_however_many_share_a_scheme(heads, against, followed) -> None:
    def many(table: pd.DataFrame) -> pd.DataFrame:
        alike = table[table["model"] == "pocket-one"]
        return pd.concat([alike.assign(model=f"pocket-{i}") for i in range(8)])

    figure = figures_dynamics.courses(
        many(heads),
        {name: many(table) for name, table in against.items()},
        {role: many(track) for role, track in followed.items()},
        {"eigen_rotation": "eigen-rotation"},
    )
    assert len(figure.axes[1].lines) == 2 * 8


def test_quantiles_have_a_panel_a_model_and_the_heads_that_look_back(heads, against, followed, tmp_path) -> None:
    previous = followed["previous_token"]
    figure = figures_dynamics.quantiles(heads, against["eigen_rotation"], previous, "eigen_rotation", "eigen-rotation")
    titles = [axes.get_title() for axes in figure.axes if axes.get_visible()]
    assert titles == ["one", "two", "three"]
    for axes, model in zip(figure.axes, MODELS, strict=False):
        count = len(previous[previous["model"] == model][["layer", "head"]].drop_duplicates())
        assert len(axes.lines) == 1 + count
    saved(figure, tmp_path)


def test_the_order_has_a_row_a_head_and_puts_what_never_happened_at_the_edge(heads, nulls, followed, tmp_path) -> None:
    moves = order.events_of_runs(followed["previous_token"], nulls, "eigen_rotation", RULE)
    moves.loc[0, "signature"] = np.inf
    sunk = populations.suppression(heads, nulls, "eigen_rotation", RULE)
    figure = figures_dynamics.order(moves, sunk, 3000)
    axes = figure.axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert len(names) == len(moves)
    assert names[0].startswith("one L")
    edge = figures_dynamics._at([3000.0])[0]
    assert any(line.get_marker() == ">" and 0 in line.get_ydata() and edge in line.get_xdata() for line in axes.lines)
    saved(figure, tmp_path)


def test_portraits_show_each_model_at_its_own_steps(tmp_path) -> None:
    index = pd.MultiIndex.from_product([["pocket-one", "org/two"], STEPS, range(8)], names=["model", "step", "i"])
    rng = np.random.default_rng(0)
    points = index.to_frame(index=False).assign(layer=1, head=2)
    points["real"], points["imag"] = rng.normal(size=(2, len(points)))
    null = torch.randn(50, dtype=torch.complex128)
    figure = figures_dynamics.portraits(points, null, {"pocket-one": [0, 64, 2000], "org/two": [0, 1000]})
    visible = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in visible] == ["step 0", "step 64", "step 2000", "step 0", "step 1000"]
    assert visible[3].get_ylabel() == "two L1H2"
    shown = visible[1].lines[-1]
    mine = points[(points["model"] == "pocket-one") & (points["step"] == 64)]
    assert shown.get_xdata().tolist() == mine["real"].tolist()
    saved(figure, tmp_path)


def test_steps_stand_in_order_on_the_axis_and_zero_has_a_place() -> None:
    places = figures_dynamics._at(STEPS)
    assert places[0] == 0
    assert (np.diff(places) > 0).all()

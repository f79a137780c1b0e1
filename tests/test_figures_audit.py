"""The audit's figures show the numbers they are given."""

import numpy as np
import pandas as pd
import pytest
import torch

from qkspectra import figures_audit
from qkspectra.null import null_samples


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    heads = pd.DataFrame([(layer, head) for layer in range(3) for head in range(4)], columns=["layer", "head"])
    names = ("previous_token", "eigen_rotation", "antisymmetric_energy")
    return heads.assign(convention="raw", **{name: rng.random(12) for name in names})


def drawn(axes, label):
    (line,) = [line for line in axes.lines if line.get_label() == label]
    return [values.tolist() for values in line.get_data()]


def test_association_marks_the_heads_of_each_role(table):
    marked = {"one": {"previous": [(2, 1), (0, 0)], "induction": [(1, 1)]}, "two": {"previous": [(0, 3)]}}
    null = null_samples(4, 16, 64)
    figure = figures_audit.association({"one": table, "two": table}, {"one": null, "two": null}, marked)
    first, second = figure.axes
    by_head = table.set_index(["layer", "head"])
    for axes, label, heads in (
        (first, "strongest previous-token heads", [(2, 1), (0, 0)]),
        (first, "strongest induction heads", [(1, 1)]),
        (second, "strongest previous-token heads", [(0, 3)]),
    ):
        expected = [by_head.loc[heads, name].tolist() for name in ("previous_token", "eigen_rotation")]
        assert drawn(axes, label) == expected
    assert [text.get_text() for text in first.texts] == ["L2H1", "L0H0", "L1H1"]


def test_names_of_crowded_heads_hide_neither_heads_nor_names(table):
    crowd = [(0.89, 0.637), (0.84, 0.586), (0.72, 0.645), (0.72, 0.6), (0.67, 0.62), (0.64, 0.705)]
    table = table.assign(previous_token=0.0, eigen_rotation=0.2)
    table.loc[:5, ["previous_token", "eigen_rotation"]] = crowd
    table.loc[6, ["previous_token", "eigen_rotation"]] = (0.05, 0.9)  # sets the scale of the axis
    marked = {name: {"previous": [divmod(place, 4) for place in range(6)]} for name in ("one", "two")}
    null = null_samples(4, 16, 64)
    figure = figures_audit.association(dict.fromkeys(marked, table), dict.fromkeys(marked, null), marked)
    figure.canvas.draw()
    axes = figure.axes[0]
    names = [text.get_window_extent() for text in axes.texts]
    assert len(names) == 6
    assert not any(name.count_contains(axes.transData.transform(crowd)) for name in names)
    assert not any(one.overlaps(other) for place, one in enumerate(names) for other in names[:place])


def test_population_counts_every_head(table):
    null = null_samples(4, 16, 64)
    marked = {"one": {"previous": [(2, 1)], "induction": [(1, 1)]}}
    measures = {"eigen_rotation": "rotation", "antisymmetric_energy": "energy"}
    figure = figures_audit.population({"one": table}, {"one": null}, marked, measures)
    assert [axes.get_xlabel() for axes in figure.axes] == ["rotation", "energy"]
    for axes, name in zip(figure.axes, measures, strict=True):
        outline = axes.patches[-1].get_path().vertices
        assert outline[:, 1].max() == np.histogram(table[name], 36)[0].max()
        (tick,) = drawn(axes, "strongest induction heads")[0]
        assert tick == table.set_index(["layer", "head"]).loc[(1, 1), name]


def effects(channel="phase", groups=("previous", "random")):
    frame = pd.DataFrame({"layer": [5, 6], "head": [0, 1], "channel": channel, "group": groups})
    for shift, name in enumerate(("previous_token", "induction", "loss_second")):
        frame[f"{name}_before"], frame[f"{name}_after"] = [0.9 + shift, 0.8 + shift], [0.1 + shift, 0.7 + shift]
    return frame


def test_ablations_show_before_and_after_in_the_order_of_the_groups():
    figure = figures_audit.ablations(effects(), {"random": ("random heads", "grey"), "previous": ("strong", "blue")})
    assert [text.get_text() for text in figure.axes[-1].get_xticklabels()] == ["L6H1", "L5H0"]
    open_circle, filled = figure.axes[0].lines[:2]
    assert (open_circle.get_ydata().tolist(), filled.get_ydata().tolist()) == ([0.8], [0.7])
    assert figure.axes[2].lines[2].get_ydata().tolist() == [2.9]


def test_dissociation_puts_each_channel_above_its_head():
    table = pd.concat([effects("phase"), effects("symmetric").tail(1)])
    (axes,) = figures_audit.dissociation({"one": table}).axes
    assert drawn(axes, "whole operator")[1] == [0.9, 0.8]
    assert drawn(axes, "without the phase") == [[0, 1], [0.1, 0.7]]
    assert drawn(axes, "without the symmetric part") == [[1], [0.7]]


def test_severed_and_portraits_show_the_attention_of_their_head():
    offsets = pd.DataFrame(
        {"layer": 1, "head": [0, 0, 2, 2], "offset": [0, 1, 0, 1], "attention": [0.1, 0.9, 0.4, 0.3]}
    )
    figure = figures_audit.severed(offsets, offsets.assign(attention=0.5), {(1, 2): "left", (1, 0): "right"})
    heights = [[segment[1, 1] for segment in lines.get_segments()] for lines in figure.axes[0].collections]
    assert heights == [[0.4, 0.3], [0.5, 0.5]]
    values = torch.tensor([1 + 1j, 1 - 1j], dtype=torch.complex128)
    portrait = figures_audit.Portrait("a head", values, values / 2, offsets.head(2), "blue")
    plane, profile = figures_audit.portraits([portrait]).axes
    assert plane.lines[-1].get_ydata().tolist() == [1, -1]
    assert [segment[1, 1] for segment in profile.collections[0].get_segments()] == [0.1, 0.9]


def test_conventions_pair_the_rows_of_a_head(table):
    other = table.sample(frac=1, random_state=0).assign(convention="norm_folded")
    figure = figures_audit.conventions({"one": (table, other)}, {"one": {"previous": [(1, 3)]}})
    x, y = drawn(figure.axes[0], "other heads")
    assert x == y == table["eigen_rotation"].tolist()
    assert figure.axes[0].get_ylabel() == "eigen-rotation, norm_folded"

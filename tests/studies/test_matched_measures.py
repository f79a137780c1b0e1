"""Kernels and signatures against direct computation and against heads of which the answer is known."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.matched.conftest import small

from qkspectra.channels import CHANNELS
from qkspectra.matched import language
from qkspectra.matched.model import SCHEMES, initial, layer_of
from qkspectra.operators import operator_of
from qkspectra.scores import rebuilt_scores
from qkspectra.studies import matched_measures as measures
from qkspectra.weights.layout import LayerQK, Rotary

X = torch.randn(3, 20, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64) + 0.5


@pytest.mark.parametrize("name", list(CHANNELS))
def test_parts_and_channels_are_two_ways_to_say_the_same(name):
    assert measures.mixture_of(measures.kept_by(CHANNELS[name])) == pytest.approx(CHANNELS[name])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("projected", [False, True])
def test_the_parts_of_a_kernel_sum_to_the_scores(scheme, projected):
    layer = layer_of(small(scheme), initial(small(scheme)), 0)
    mean = X.mean((0, 1))
    mean = mean / mean.norm()
    x = X - (X @ mean)[..., None] * mean if projected else X
    direct = rebuilt_scores(layer, x)
    table = measures.kernels(layer, X)
    table = table[table["mean"] == ("projected" if projected else "kept")]
    for delta in (0, 1, 7):
        at = table[table["delta"] == delta].pivot(index="head", columns="part", values="score")
        np.testing.assert_allclose(at["full"], direct.diagonal(-delta, 2, 3).mean((0, 2)), atol=1e-9)
        np.testing.assert_allclose(at.drop(columns="full").sum(axis=1), at["full"], atol=1e-9)


def test_parts_are_those_of_the_operators():
    layer = layer_of(small(), initial(small()), 1)
    op, x = operator_of(layer), X[0, :4]
    parts = dict.fromkeys(measures.PARTS, 0.0)
    for t, theta in enumerate(op.rotary.theta):
        for kind, channel, turn in (
            ("", op.real_channel(t), theta.cos()),
            ("phase_", op.phase_channel(t), theta.sin()),
        ):
            for which, part in (("symmetric", channel.symmetric()), ("antisymmetric", channel.antisymmetric())):
                parts[kind + which] = parts[kind + which] + turn * layer.scale * part.bilinear(x, x)
    for name, dense in parts.items():
        scores = rebuilt_scores(replace(layer, causal=False), x[None], measures.mixture_of(measures.PARTS[name]))[0]
        torch.testing.assert_close(scores[:, 2, 1], dense[:, 2, 1])


def test_a_ban_takes_its_parts_out_of_the_kernel():
    layer = layer_of(small(), initial(small()), 0)
    table = measures.kernels(layer, X, measures.kept_by(CHANNELS["no_phase"]))
    sizes = table.groupby("part")["score"].apply(lambda scores: scores.abs().max())
    assert sizes["phase_symmetric"] < 1e-12 > sizes["phase_antisymmetric"]
    assert sizes["symmetric"] > 1e-3


def previous_token_head(strength):
    """One rotary pair whose score depends on the distance alone and is largest at 1; the first input is always 1."""
    wq, wk = torch.zeros(1, 2, 4, dtype=torch.float64), torch.zeros(1, 2, 4, dtype=torch.float64)
    theta = torch.tensor([np.pi / 2], dtype=torch.float64)
    wq[0, 0, 0] = strength  # a query along the first row, a key along the second: score = sin(theta * delta)
    wk[0, 1, 0] = 1
    kv = torch.zeros(1, dtype=torch.int64)
    return LayerQK(0, wq, wk, None, None, kv, 1.0, Rotary(torch.tensor([[0, 1]]), theta))


def test_a_head_that_looks_back_by_its_phase_pulls_and_nothing_else_does():
    x = torch.zeros(2, 9, 4, dtype=torch.float64)
    x[..., 0] = 1
    layer = previous_token_head(8.0)
    found = measures.signatures(layer, x)
    mean = np.mean([np.sin(np.pi / 2 * d) for d in range(measures.REACH + 1)])
    assert found["pull"].item() == pytest.approx(8 * (1 - mean))
    assert found["pull_phase"].item() == pytest.approx(found["pull"].item())
    assert found["phase_step"].item() == pytest.approx(1)
    still = measures.signatures(replace(layer, rotary=None), x)
    assert (still["pull"].item(), still["phase_step"].item(), still["phase_energy"].item()) == (0, 0, 0)
    slope = torch.ones(1, dtype=torch.float64)
    assert measures.signatures(replace(layer, rotary=None, alibi=slope), x)["pull"].item() == 0
    table = measures.kernels(layer, x)
    row = table[(table["delta"] == 1) & (table["mean"] == "kept")].set_index("part")
    assert row.loc["phase_symmetric", "score"] == pytest.approx(8)
    assert row.loc["full", "previous"] > 0.4 > 0.2 > row.loc["phase_symmetric", "previous"]
    gone = table[(table["delta"] == 1) & (table["mean"] == "projected")].set_index("part")
    assert gone.loc["full", "score"] == pytest.approx(0)


def test_heads_of_a_model_are_measured_as_the_library_measures_them():
    recipe = small("partial")
    p = initial(recipe)
    text = torch.randint(0, 300, (4, 16), generator=torch.Generator().manual_seed(1))
    table = measures.heads_of(recipe, p, language.repeats(recipe), text)
    assert len(table) == 4
    assert table["loss_first"].iloc[0] == pytest.approx(np.log(300), abs=1.5)
    spectrum = measures.measure(operator_of(layer_of(recipe, p, 1)))
    np.testing.assert_allclose(table["eigen_rotation"][2:], spectrum.eigen_rotation, rtol=1e-5)
    np.testing.assert_allclose(table["phase_energy"][2:], spectrum.phase_energy, rtol=1e-5)
    banned = measures.heads_of(recipe.model_copy(update={"ban": "symmetric"}), p, language.repeats(recipe), text)
    assert banned[list(measures.SPECTRAL)].isna().all(axis=None)
    assert banned["induction"].notna().all()


def test_signatures_see_the_operator_alone():
    recipe = small()
    p = initial(recipe)
    table = measures.signatures_of_run(recipe, p, language.repeats(recipe))
    again = measures.signatures(layer_of(recipe, p, 0), X[..., :32])
    np.testing.assert_allclose(table["eigen_rotation"][:2], again["eigen_rotation"], rtol=1e-5)
    np.testing.assert_allclose(table["phase_step"][:2], again["phase_step"], rtol=1e-5)
    back = operator_of(layer_of(recipe, p, 0)).relative(1)
    dense = sum(
        operator_of(layer_of(recipe, p, 0)).phase_channel(t).wq.mT
        @ operator_of(layer_of(recipe, p, 0)).phase_channel(t).wk
        * theta.sin()
        for t, theta in enumerate(operator_of(layer_of(recipe, p, 0)).rotary.theta)
    )
    np.testing.assert_allclose(again["phase_step"], dense.norm(dim=(1, 2)) / back.norm(), rtol=1e-9)

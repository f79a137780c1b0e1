"""The factored operator against the one written out, and its sign conventions against the models' own rotations."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.oracle import dense
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as rotate_interleaved
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as rotate_half_split

from qkspectra.errors import InputError
from qkspectra.operators import QKOperator, applicable, operator_of
from qkspectra.weights.layout import LayerQK, Norm, Rotary

HALF_SPLIT, INTERLEAVED = "half-split", "interleaved"


def rotary_of(kind: str, d_rot: int, base: float = 100.0) -> Rotary:
    t = torch.arange(d_rot // 2)
    pairs = torch.stack([t, t + d_rot // 2] if kind == HALF_SPLIT else [2 * t, 2 * t + 1], 1)
    return Rotary(pairs, base ** (-2 * t.double() / d_rot))


def gaussian(seed: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def dense_m(op: QKOperator, head: int) -> np.ndarray:
    return dense.operator(op.wq[head].numpy(), op.wk[head].numpy())


@st.composite
def operators(draw, rotary: bool = False) -> QKOperator:
    heads, d_head, d_model = draw(st.integers(1, 3)), draw(st.integers(1, 8)), draw(st.integers(1, 14))
    chosen = None
    if rotary:
        d_head = max(d_head, 2)
        d_rot = 2 * draw(st.integers(1, d_head // 2))
        chosen = rotary_of(draw(st.sampled_from([HALF_SPLIT, INTERLEAVED])), d_rot)
    seed = draw(st.integers(0, 2**20))
    return QKOperator.from_rows(
        gaussian(seed, heads, d_head, d_model), gaussian(seed + 1, heads, d_head, d_model), chosen
    )


@given(operators())
def test_norms_and_singular_values_are_those_of_the_dense_operator(op):
    norms, singular_values = op.norm(), op.singular_values()
    for head in range(len(op.wq)):
        m = dense_m(op, head)
        assert norms[head] == pytest.approx(np.linalg.norm(m), rel=1e-12)
        expected = np.linalg.svd(m, compute_uv=False)[: singular_values.shape[1]]
        np.testing.assert_allclose(singular_values[head], expected, atol=1e-12 * expected[0])


@given(operators(), st.integers(0, 2**20))
def test_parts_and_bilinear_form(op, seed):
    x, y = gaussian(seed, 3, op.wq.shape[2]), gaussian(seed + 1, 2, op.wq.shape[2])
    for head in range(len(op.wq)):
        m = dense_m(op, head)
        assert op.bilinear(x, y)[head].numpy() == pytest.approx(x.numpy() @ m @ y.numpy().T)
        assert dense_m(op.transposed(), head) == pytest.approx(m.T)
        assert dense_m(op.symmetric(), head) == pytest.approx((m + m.T) / 2)
        assert dense_m(op.antisymmetric(), head) == pytest.approx((m - m.T) / 2)


@given(operators(rotary=True), st.integers(-40, 40), st.integers(0, 100))
def test_relative_operator_is_the_one_between_two_positions(op, delta, key):
    pairs, theta = op.rotary.pairs.numpy(), op.rotary.theta.numpy()
    for head in range(len(op.wq)):
        expected = dense.relative(op.wq[head].numpy(), op.wk[head].numpy(), pairs, theta, key + delta, key)
        assert dense_m(op.relative(delta), head) == pytest.approx(expected, abs=1e-9)


@given(operators(rotary=True), st.integers(-9, 9), st.integers(-9, 9))
def test_relative_operators_compose(op, first, second):
    torch.testing.assert_close(op.relative(first).relative(second).wq, op.relative(first + second).wq)


@given(operators(rotary=True), st.floats(-40, 40))
def test_channels_add_up_to_the_relative_operator(op, delta):
    for head in range(len(op.wq)):
        real, phase = dense.channels(op.wq[head].numpy(), op.wk[head].numpy(), op.rotary.pairs.numpy())
        rotated = op.rotary.pairs.flatten().tolist()
        alone = [row for row in range(op.wq.shape[1]) if row not in rotated]
        total = dense.operator(op.wq[head, alone].numpy(), op.wk[head, alone].numpy())
        for t, theta in enumerate(op.rotary.theta.tolist()):
            assert dense_m(op.real_channel(t), head) == pytest.approx(real[t], abs=1e-12)
            assert dense_m(op.phase_channel(t), head) == pytest.approx(phase[t], abs=1e-12)
            total += real[t] * math.cos(theta * delta) + phase[t] * math.sin(theta * delta)
        assert dense_m(op.relative(delta), head) == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize("kind", [HALF_SPLIT, INTERLEAVED])
def test_relative_operator_gives_the_scores_of_the_models_own_rotation(kind):
    """Fixes the sign of the phase: with the other sign, or the other pairing, the scores differ by far."""
    d_head, d_model, length = 8, 12, 7
    rotary = rotary_of(kind, d_head)
    op = QKOperator.from_rows(gaussian(0, 2, d_head, d_model), gaussian(1, 2, d_head, d_model), rotary)
    x = gaussian(2, length, d_model)
    q, k = x @ op.wq.mT, x @ op.wk.mT  # (heads, position, d_head)
    angle = torch.arange(length)[:, None] * rotary.theta
    if kind == HALF_SPLIT:
        table = torch.cat([angle, angle], -1)[None]
        q, k = (z[0] for z in rotate_half_split(q[None], k[None], table.cos(), table.sin()))
    else:
        by_position = [z.transpose(0, 1)[None] for z in (q, k)]  # (batch, position, heads, d_head)
        q, k = (rotate_interleaved(z, angle.sin()[None], angle.cos()[None])[0].transpose(0, 1) for z in by_position)
    scores = q @ k.mT

    def rebuilt(sign: int) -> torch.Tensor:
        out = torch.empty_like(scores)
        for i in range(length):
            for j in range(length):
                out[:, i, j] = op.relative(sign * (i - j)).bilinear(x[i : i + 1], x[j : j + 1])[:, 0, 0]
        return out

    torch.testing.assert_close(rebuilt(1), scores, rtol=1e-12, atol=1e-10)
    assert (rebuilt(-1) - scores).abs().max() > 0.1 * scores.abs().max()


def test_channels_need_rotary_positions():
    with pytest.raises(ValueError, match="no rotary"):
        QKOperator.from_rows(torch.ones(1, 2, 3), torch.ones(1, 2, 3)).phase_channel(0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_stored_precision_is_upcast_before_multiplying(dtype):
    wq, wk = gaussian(0, 2, 4, 30).to(dtype), gaussian(1, 2, 4, 30).to(dtype)
    op = QKOperator.from_rows(wq, wk)
    expected = np.einsum("hai,hbi->hab", wk.double().numpy(), wq.double().numpy())
    np.testing.assert_allclose(op.core(), expected, rtol=0, atol=1e-13)


def layer_of(**changes) -> LayerQK:
    """Four query heads on two key heads, with everything that a convention can act on."""
    heads, kv_heads, d_head, d_model = 4, 2, 6, 10
    layer = LayerQK(
        layer=3,
        wq=gaussian(0, heads, d_head, d_model),
        wk=gaussian(1, kv_heads, d_head, d_model),
        bq=gaussian(2, heads, d_head),
        bk=gaussian(3, kv_heads, d_head),
        kv_head=torch.tensor([0, 0, 1, 1]),
        scale=0.3,
        rotary=rotary_of(HALF_SPLIT, 4),
        input_norm=Norm("layer", gaussian(4, d_model), gaussian(5, d_model), 1e-5),
    )
    return replace(layer, **changes)


def test_raw_operator_repeats_grouped_keys_and_keeps_the_stored_rows():
    layer = layer_of()
    op = operator_of(layer)
    torch.testing.assert_close(op.wk, layer.wk[[0, 0, 1, 1]], rtol=0, atol=0)
    torch.testing.assert_close(op.bk, layer.bk[[0, 0, 1, 1]], rtol=0, atol=0)
    assert (op.convention, op.name) == ("raw", "layer 3")


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norm_folded_operator_acts_on_what_the_norm_returns_before_its_affine_part(kind):
    layer = layer_of()
    layer = replace(
        layer, input_norm=replace(layer.input_norm, kind=kind, bias=None if kind == "rms" else gaussian(5, 10))
    )
    norm, op = layer.input_norm, operator_of(layer, "norm_folded")
    normalised = gaussian(6, 5, 10)
    x = normalised * norm.weight + (0 if norm.bias is None else norm.bias)
    torch.testing.assert_close(normalised @ op.wq.mT + op.bq[:, None], x @ layer.wq.mT + layer.bq[:, None])
    key = x @ layer.wk.mT + layer.bk[:, None]
    torch.testing.assert_close(normalised @ op.wk.mT + op.bk[:, None], key[layer.kv_head])
    assert op.convention == "norm_folded"


def test_shift_of_the_norm_becomes_a_bias_where_the_layer_has_none():
    layer = layer_of(bq=None, bk=None)
    op = operator_of(layer, "norm_folded")
    torch.testing.assert_close(op.bq, layer.wq @ layer.input_norm.bias)
    assert operator_of(layer).bq is None


def test_centred_operator_is_projected_on_both_sides():
    layer = layer_of()
    projector = np.eye(10) - 1 / 10
    gain = np.diag(layer.input_norm.weight.numpy())
    for convention, g in (("centred", np.eye(10)), ("centred+norm_folded", gain)):
        op = operator_of(layer, convention)
        for head in range(4):
            m = dense_m(operator_of(layer), head)
            assert dense_m(op, head) == pytest.approx(projector @ g @ m @ g @ projector)
    assert op.convention == "norm_folded+centred"


def test_augmented_operator_scores_with_the_biases():
    layer = layer_of()
    op = operator_of(layer, "bias_augmented")
    x = gaussian(6, 5, 10)
    ones = torch.cat([x, torch.ones(5, 1, dtype=torch.float64)], 1)
    q, k = x @ layer.wq.mT + layer.bq[:, None], (x @ layer.wk.mT + layer.bk[:, None])[layer.kv_head]
    torch.testing.assert_close(op.bilinear(ones, ones), q @ k.mT)
    assert op.wq.shape[2] == 11


@pytest.mark.parametrize(("kind", "across"), [("rms", False), ("layer", False), ("rms", True), ("layer", True)])
def test_query_and_key_norms_are_folded_up_to_a_scalar_of_the_token(kind, across):
    layer = layer_of(
        bq=None,
        bk=None,
        q_norm=Norm(kind, gaussian(7, 4, 6), None, 0.0),
        k_norm=Norm(kind, gaussian(8, 2, 6), None, 0.0),
        norm_across_heads=across,
    )
    op = operator_of(layer)
    x = gaussian(9, 1, 10)

    def normalised(w: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        z = (x @ w.mT)[:, 0]  # (heads, d_head)
        axes = (0, 1) if across else (1,)
        if kind == "layer":
            z = z - z.mean(axes, keepdim=True)
        return z / z.square().mean(axes, keepdim=True).sqrt() * gain

    for rows, target in (
        (op.wq, normalised(layer.wq, layer.q_norm.weight)),
        (op.wk, normalised(layer.wk, layer.k_norm.weight)[layer.kv_head]),
    ):
        ratio = (x @ rows.mT)[:, 0] / target
        torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio))
    assert op.convention == "raw+qk_gain"


def test_what_no_linear_operator_can_hold_is_declared():
    assert operator_of(layer_of(softcap=30.0, clip=8.0)).convention == "raw+before_clip+before_softcap"


def test_rotary_factor_multiplies_the_rotated_rows_alone():
    layer = layer_of(rotary=replace(rotary_of(HALF_SPLIT, 4), factor=1.5))
    op, plain = operator_of(layer), operator_of(layer_of())
    for head in range(4):
        rotated = dense.operator(plain.wq[head, :4].numpy(), plain.wk[head, :4].numpy())
        alone = dense.operator(plain.wq[head, 4:].numpy(), plain.wk[head, 4:].numpy())
        assert dense_m(op, head) == pytest.approx(1.5**2 * rotated + alone)
    assert (op.convention, op.rotary.factor) == ("raw+rotary_factor", 1.0)


@pytest.mark.parametrize(
    ("changes", "convention", "message"),
    [
        ({}, "folded", "unknown convention"),
        ({}, "raw+centred", "unknown convention"),
        ({"input_norm": None}, "norm_folded", "no norm in front"),
        ({"input_norm": None}, "centred", "no norm in front"),
        ({"input_norm": Norm("rms", None, None, 0.0)}, "centred", "keeps the mean"),
        ({"bq": None, "bk": None}, "bias_augmented", "no query or key biases"),
        ({"q_norm": Norm("rms", None, None, 0.0)}, "bias_augmented", "no fixed weight"),
    ],
)
def test_a_convention_that_the_layer_does_not_have_is_refused(changes, convention, message):
    with pytest.raises(InputError, match=message):
        operator_of(layer_of(**changes), convention)


def test_one_missing_bias_counts_as_zero():
    op = operator_of(layer_of(bk=None))
    assert torch.equal(op.bk, torch.zeros(4, 6, dtype=torch.float64))


EVERYTHING = "norm_folded+centred+bias_augmented"
RMS, GAINLESS = Norm("rms", gaussian(4, 10), None, 0.0), Norm("layer", None, None, 0.0)


@pytest.mark.parametrize(
    ("changes", "convention", "left"),
    [
        ({}, EVERYTHING, EVERYTHING),
        ({}, "centred", "centred"),
        ({}, "raw", "raw"),
        ({"input_norm": None}, EVERYTHING, "bias_augmented"),
        ({"input_norm": RMS}, EVERYTHING, "norm_folded+bias_augmented"),
        ({"input_norm": RMS, "bq": None, "bk": None}, EVERYTHING, "norm_folded"),
        ({"input_norm": RMS, "bq": None, "bk": None}, "bias_augmented", "raw"),
        ({"bq": None, "bk": None}, "bias_augmented", "raw"),
        ({"bq": None, "bk": None}, "norm_folded+bias_augmented", "norm_folded+bias_augmented"),  # the norm's shift
        ({"bq": None, "bk": None, "input_norm": GAINLESS}, EVERYTHING, "norm_folded+centred"),
        ({"k_norm": Norm("rms", None, None, 0.0)}, EVERYTHING, "norm_folded+centred"),
    ],
)
def test_what_a_layer_lacks_drops_out_of_the_convention(changes, convention, left):
    layer = layer_of(**changes)
    assert applicable(layer, convention) == left
    operator_of(layer, left)
    with pytest.raises(InputError, match="unknown convention"):
        applicable(layer, "folded")

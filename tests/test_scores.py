"""Rebuilt scores against the score written out, for every feature that a layer may have and every channel."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.oracle import scores as oracle

from qkspectra.channels import CHANNELS
from qkspectra.scores import position_alone, rebuilt_scores
from qkspectra.weights.layout import LayerQK, Norm, Rotary
from qkspectra.weights.rotary import pair_rows

D_MODEL, D_HEAD, LENGTH = 7, 6, 6


@st.composite
def layers(draw):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    kv_heads = draw(st.sampled_from([1, 2]))
    heads = kv_heads * draw(st.sampled_from([1, 2]))

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def norm(count, kind, affine):
        return Norm(kind, 1 + normal(count, D_HEAD) / 3, normal(count, D_HEAD) / 3 if affine else None, 1e-3)

    rotary = None
    if draw(st.booleans()):
        pairs = pair_rows(draw(st.sampled_from([2, 4, 6])), draw(st.booleans()))
        rotary = Rotary(pairs, normal(len(pairs)).abs(), draw(st.sampled_from([1.0, 1.3])))
    kind, affine, normed = draw(st.sampled_from(["layer", "rms"])), draw(st.booleans()), draw(st.booleans())
    biased = draw(st.booleans())
    return LayerQK(
        layer=0,
        wq=normal(heads, D_HEAD, D_MODEL),
        wk=normal(kv_heads, D_HEAD, D_MODEL),
        bq=normal(heads, D_HEAD) if biased else None,
        bk=normal(kv_heads, D_HEAD) if biased else None,
        kv_head=torch.arange(heads) // (heads // kv_heads),
        scale=draw(st.sampled_from([1.0, 0.4])),
        rotary=rotary,
        q_norm=norm(heads, kind, affine) if normed else None,
        k_norm=norm(kv_heads, kind, affine) if normed else None,
        norm_across_heads=draw(st.booleans()),
        clip=draw(st.sampled_from([None, 1.5])),
        softcap=draw(st.sampled_from([None, 2.0])),
        alibi=normal(heads).abs() if draw(st.booleans()) else None,
        alibi_scaled=draw(st.booleans()),
        window=draw(st.sampled_from([None, 3])),
        causal=draw(st.booleans()),
    )


@given(layers(), st.sampled_from(sorted(CHANNELS)), st.integers(0, 2**32), st.booleans())
def test_every_score_is_the_one_written_out(layer, channel, seed, spread):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, LENGTH, D_MODEL, generator=generator, dtype=torch.float64)
    positions = torch.tensor([3, 4, 9, 10, 11, 30]) if spread else None
    rebuilt = rebuilt_scores(layer, x, CHANNELS[channel], positions)
    places = range(LENGTH) if positions is None else positions.tolist()
    expected = np.stack([oracle.scores(layer, row, CHANNELS[channel], places) for row in x.numpy()])
    torch.testing.assert_close(rebuilt, torch.from_numpy(expected), rtol=1e-11, atol=1e-11)


@given(layers())
def test_half_precision_inputs_are_upcast_first(layer):
    x = torch.randn(1, LENGTH, D_MODEL).bfloat16()
    assert torch.equal(rebuilt_scores(layer, x), rebuilt_scores(layer, x.double()))


def test_falcon_rounds_slope_and_bias_to_bfloat16():
    """In bfloat16 0.3 is 0.30078125, position 301 is 300, and their product, 90.23, is 90."""
    layer = LayerQK(
        layer=0,
        wq=torch.zeros(1, 2, 3, dtype=torch.float64),
        wk=torch.zeros(1, 2, 3, dtype=torch.float64),
        bq=None,
        bk=None,
        kv_head=torch.tensor([0]),
        scale=0.5,
        alibi=torch.tensor([0.3], dtype=torch.float64),
        alibi_scaled=True,
        alibi_rounded=True,
    )
    last = rebuilt_scores(layer, torch.zeros(1, 302, 3, dtype=torch.float64))[0, 0, -1]
    assert float(last[301] - last[0]) == pytest.approx(0.5 * 90.0, abs=1e-12)
    assert float(last[1] - last[0]) == pytest.approx(0.5 * 0.30078125, abs=1e-12)


@given(layers())
def test_position_alone_is_the_pattern_of_a_head_without_an_operator(layer):
    pattern = position_alone(layer, LENGTH)
    for head in range(len(layer.wq)):
        for i in range(LENGTH):
            weights = np.zeros(LENGTH)
            for j in range(i + 1 if layer.causal else LENGTH):
                if layer.window is None or i - j < layer.window:
                    slope = 0.0 if layer.alibi is None else float(layer.alibi[head])
                    bias = -slope * (i - j) * (layer.scale if layer.alibi_scaled else 1.0)
                    weights[j] = np.exp(
                        bias if layer.softcap is None else layer.softcap * np.tanh(bias / layer.softcap)
                    )
            assert pattern[head, i].numpy() == pytest.approx(weights / weights.sum())

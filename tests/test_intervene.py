"""Ablation inside running models: exact against per-pair complex arithmetic, and nothing else moves."""

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from tests.oracle import dense
from tests.weights import tiny

from qkspectra.attention import tapped
from qkspectra.channels import CHANNELS
from qkspectra.errors import InputError
from qkspectra.intervene import ablated, replaced
from qkspectra.weights import open_model

PARTS = ("phase", "symmetric", "antisymmetric")

ROTARY = ("llama-free-width-bias", "gpt_neox", "gptj", "qwen3", "gemma2", "olmo")
"""Grouped-query with biases, partial rotary, interleaved, query-key norm, soft cap and windows, clipped."""
MODELS = (*ROTARY, "bloom", "falcon-alibi", "gpt2", "gpt_neo", "bert")


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """`opened(name)`: the random model of that name, saved and opened: weights, model, modules, token ids."""

    @cache
    def make(name):
        weights = open_model(str(tiny.save(tmp_path_factory.mktemp("model"), name)))
        model = weights.load()
        torch.manual_seed(0)
        return weights, model, weights.attention_modules(model), torch.randint(0, tiny.VOCAB, (2, 9))

    return make


def answer(model, tokens, **kwargs):
    with torch.no_grad():
        output = model(input_ids=tokens, **kwargs)
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


@contextmanager
def recorded(modules):
    """Inputs, scores and patterns of every layer, as the running model computes them."""
    seen = {"x": {}, "scores": {}, "pattern": {}}
    with tapped(
        modules,
        on_input=seen["x"].__setitem__,
        on_scores=seen["scores"].__setitem__,
        on_pattern=seen["pattern"].__setitem__,
    ):
        yield seen


def reference(layer, x, head, channel):
    """Scores of one head of one sequence without `channel`, pair by pair in complex arithmetic, and without a mask."""

    def project(weight, bias, norm, h):
        y = x @ weight[h].numpy().T + (0 if bias is None else bias[h].numpy())
        y = y if layer.clip is None else np.clip(y, -layer.clip, layer.clip)
        if norm is not None:
            y = y / np.sqrt((y**2).mean(-1, keepdims=True) + norm.eps) * norm.weight[h].numpy()
        return y

    q = project(layer.wq, layer.bq, layer.q_norm, head)
    k = project(layer.wk, layer.bk, layer.k_norm, int(layer.kv_head[head]))
    back = np.subtract.outer(np.arange(len(x)), np.arange(len(x)))

    def static(part):
        kept = {"symmetric": part - part.T, "antisymmetric": part + part.T}
        return kept[channel] / 2 if channel in kept else part

    rotated = [] if layer.rotary is None else layer.rotary.pairs.flatten().tolist()
    others = [row for row in range(q.shape[1]) if row not in rotated]
    scores = static(q[:, others] @ k[:, others].T)
    if layer.rotary is not None:
        for (a, b), theta in zip(layer.rotary.pairs.tolist(), layer.rotary.theta.tolist(), strict=True):
            z = np.outer(np.conj(q[:, a] + 1j * q[:, b]), k[:, a] + 1j * k[:, b])
            scores = scores + static(z.real) * np.cos(theta * back)
            if channel != "phase":
                scores = scores + z.imag * np.sin(theta * back)
    scores = layer.scale * scores
    if layer.alibi is not None:
        scores = scores - (layer.scale if layer.alibi_scaled else 1) * layer.alibi[head].item() * back
    return scores if layer.softcap is None else layer.softcap * np.tanh(scores / layer.softcap)


@pytest.mark.parametrize("name", MODELS)
def test_rebuilding_every_head_in_full_changes_nothing(opened, name):
    weights, model, modules, tokens = opened(name)
    before = answer(model, tokens)
    heads = range(weights.layout.n_heads)
    with ExitStack() as stack:
        for index in range(weights.layout.n_layers):
            stack.enter_context(replaced(modules, weights.layer(index), heads, CHANNELS["full"]))
        after = answer(model, tokens)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
    with replaced(modules, weights.layer(0), heads, CHANNELS["symmetric_no_phase"]):
        assert (answer(model, tokens) - before).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("name", "channel"),
    [(name, channel) for name in MODELS for channel in PARTS if channel != "phase" or name in ROTARY],
)
def test_ablated_scores_are_the_reference_and_other_heads_keep_theirs(opened, name, channel):
    weights, model, modules, tokens = opened(name)
    layer, heads = weights.layer(1), [1, 2]
    with recorded(modules) as plain:
        answer(model, tokens)
    with recorded(modules) as seen, ablated(modules, layer, heads, channel):
        answer(model, tokens)
    x, scores, before = seen["x"][1].double().numpy(), seen["scores"][1], plain["scores"][1]
    visible = plain["pattern"][1] > 0
    assert torch.equal(seen["pattern"][1] > 0, visible)
    assert torch.equal(seen["scores"][0], plain["scores"][0])
    for head in range(weights.layout.n_heads):
        if head not in heads:
            assert torch.equal(scores[:, head], before[:, head])
            continue
        for sequence in range(2):
            kept = visible[sequence, head].numpy()
            difference = scores[sequence, head].numpy() - reference(layer, x[sequence], head, channel)
            if layer.alibi is not None:  # known up to a constant of the row
                difference = difference - difference[:, :1]
            assert np.abs(difference[kept]).max() < 1e-5
            assert (scores - before)[sequence, head].numpy()[kept].std() > 1e-3


@pytest.mark.parametrize("channel", PARTS)
def test_ablated_scores_are_those_of_the_dense_operators(opened, channel):
    weights, model, modules, tokens = opened("llama-free-width-bias")
    layer, head = weights.layer(1), 3
    with recorded(modules) as seen, ablated(modules, layer, [head], channel):
        answer(model, tokens)
    augmented = [
        torch.cat([w[h], b[h, :, None]], 1).numpy()
        for w, b, h in ((layer.wq, layer.bq, head), (layer.wk, layer.bk, int(layer.kv_head[head])))
    ]
    real, phase = dense.channels(*augmented, layer.rotary.pairs.numpy())
    keep = {"phase": lambda m: m, "symmetric": lambda m: (m - m.T) / 2, "antisymmetric": lambda m: (m + m.T) / 2}[
        channel
    ]
    x = np.concatenate([seen["x"][1][0].double().numpy(), np.ones((9, 1))], 1)
    for i in range(9):
        for j in range(i + 1):
            angle = layer.rotary.theta.numpy() * (i - j)
            m = sum(keep(r) * np.cos(a) for r, a in zip(real, angle, strict=True))
            if channel != "phase":
                m = m + sum(p * np.sin(a) for p, a in zip(phase, angle, strict=True))
            assert seen["scores"][1][0, head, i, j].item() == pytest.approx(layer.scale * x[i] @ m @ x[j], abs=1e-5)


@pytest.mark.parametrize("name", ["llama-free-width-bias", "qwen3"])
def test_without_its_phase_a_head_sees_a_constant_sequence_evenly(opened, name):
    weights, model, modules, _ = opened(name)
    tokens, everything = torch.full((1, 9), 7), torch.zeros(1, 1, 9, 9)  # no mask: later keys are scored too
    with recorded(modules) as plain:
        answer(model, tokens, attention_mask=everything)
    layer = weights.layer(0)
    with recorded(modules) as seen, ablated(modules, replace(layer, causal=False), [0], "phase"):
        answer(model, tokens, attention_mask=everything)
    before, after = plain["scores"][0][0, 0], seen["scores"][0][0, 0]
    assert (before - before.T).abs().max() > 1e-2
    torch.testing.assert_close(after, after.T, rtol=0, atol=1e-6)
    torch.testing.assert_close(after, (before + before.T) / 2, rtol=0, atol=1e-5)


def test_ablations_of_two_layers_nest(opened):
    weights, model, modules, tokens = opened("llama-free-width-bias")
    with recorded(modules) as seen, ExitStack() as stack:
        for index in (0, 1):
            stack.enter_context(ablated(modules, weights.layer(index), [index], "phase"))
        answer(model, tokens)
    for index in (0, 1):
        expected = reference(weights.layer(index), seen["x"][index][0].double().numpy(), index, "phase")
        lower = np.tril_indices(9)
        np.testing.assert_allclose(seen["scores"][index][0, index].numpy()[lower], expected[lower], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "heads", "channel", "says"),
    [
        ("gpt2", [0], "phase", "no rotary"),
        ("bloom", [0], "phase", "no rotary"),
        ("llama-free-width-bias", [6], "phase", "no head 6: its heads are 0 to 5"),
        ("llama-free-width-bias", [0, -1], "symmetric", "no head -1"),
        ("llama-free-width-bias", [0], "static", "choose from phase, symmetric, antisymmetric"),
    ],
)
def test_what_cannot_be_removed_is_refused(opened, name, heads, channel, says):
    weights, _, modules, _ = opened(name)
    with pytest.raises(InputError, match=says), ablated(modules, weights.layer(0), heads, channel):
        pass

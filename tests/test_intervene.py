"""Ablation inside running models: exact against per-pair complex arithmetic, and nothing else moves."""

from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.oracle import dense
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from qkspectra.attention import tapped
from qkspectra.channels import CHANNELS
from qkspectra.errors import InputError
from qkspectra.intervene import ablated, replaced
from qkspectra.weights import open_model

PARTS = ("phase", "symmetric", "antisymmetric")

MODELS = {
    "grouped-query": ("llama", {"num_key_value_heads": 2, "attention_bias": True}),
    "partial rotary": (
        "gpt_neox",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}},
    ),
    "interleaved": (
        "gptj",
        {"rotary_dim": 4, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_inner": 48, "n_positions": 64},
    ),
    "query-key norm": ("qwen3", {"num_key_value_heads": 2, "head_dim": 16}),
    "soft cap": (
        "gemma2",
        {"num_key_value_heads": 2, "head_dim": 8, "attn_logit_softcapping": 0.5, "sliding_window": 5},
    ),
    "alibi": ("bloom", {"n_head": 4, "n_layer": 2}),
    "learned positions": ("gpt2", {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_inner": 48, "n_positions": 64}),
    "bidirectional": ("bert", {"max_position_embeddings": 64}),
}
ROTARY = ("grouped-query", "partial rotary", "interleaved", "query-key norm", "soft cap")


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """`opened(kind)`: a random model of that kind, saved and opened again: weights, model, modules, token ids."""
    kept = {}

    def make(kind):
        if kind not in kept:
            family, changes = MODELS[kind]
            torch.manual_seed(0)
            sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
            config = AutoConfig.for_model(family, **{"vocab_size": 61, **sizes, **changes})
            model = (AutoModel if family == "bert" else AutoModelForCausalLM).from_config(config)
            with torch.no_grad():  # the usual initialisation makes every pattern flat
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.ndim > 1 else 0.1))
            folder = tmp_path_factory.mktemp("model")
            model.save_pretrained(folder)
            weights = open_model(str(folder))
            running = weights.load()
            kept[kind] = weights, running, weights.attention_modules(running), torch.randint(0, 61, (2, 9))
        return kept[kind]

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
        scores = scores - layer.alibi[head].item() * back
    return scores if layer.softcap is None else layer.softcap * np.tanh(scores / layer.softcap)


@pytest.mark.parametrize("kind", MODELS)
def test_rebuilding_every_head_in_full_changes_nothing(opened, kind):
    weights, model, modules, tokens = opened(kind)
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
    ("kind", "channel"),
    [(kind, channel) for kind in MODELS for channel in PARTS if channel != "phase" or kind in ROTARY],
)
def test_ablated_scores_are_the_reference_and_other_heads_keep_theirs(opened, kind, channel):
    weights, model, modules, tokens = opened(kind)
    layer, heads = weights.layer(1), [1, 2]
    with recorded(modules) as plain:
        answer(model, tokens)
    with recorded(modules) as seen, ablated(modules, layer, heads, channel):
        answer(model, tokens)
    x, scores, before = seen["x"][1].double().numpy(), seen["scores"][1], plain["scores"][1]
    visible = plain["pattern"][1] > 0
    assert torch.equal(seen["pattern"][1] > 0, visible)
    assert torch.equal(seen["scores"][0], plain["scores"][0])
    for head in range(4):
        if head not in heads:
            assert torch.equal(scores[:, head], before[:, head])
            continue
        for sequence in range(2):
            kept = visible[sequence, head].numpy()
            difference = scores[sequence, head].numpy() - reference(layer, x[sequence], head, channel)
            if kind == "alibi":  # known up to a constant of the row
                difference = difference - difference[:, :1]
            assert np.abs(difference[kept]).max() < 1e-5
            assert (scores - before)[sequence, head].numpy()[kept].std() > 1e-3


@pytest.mark.parametrize("channel", PARTS)
def test_ablated_scores_are_those_of_the_dense_operators(opened, channel):
    weights, model, modules, tokens = opened("grouped-query")
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


@pytest.mark.parametrize("kind", ["grouped-query", "query-key norm"])
def test_without_its_phase_a_head_sees_a_constant_sequence_evenly(opened, kind):
    weights, model, modules, _ = opened(kind)
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
    weights, model, modules, tokens = opened("grouped-query")
    with recorded(modules) as seen, ExitStack() as stack:
        for index in (0, 1):
            stack.enter_context(ablated(modules, weights.layer(index), [index], "phase"))
        answer(model, tokens)
    for index in (0, 1):
        expected = reference(weights.layer(index), seen["x"][index][0].double().numpy(), index, "phase")
        lower = np.tril_indices(9)
        np.testing.assert_allclose(seen["scores"][index][0, index].numpy()[lower], expected[lower], atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "heads", "channel", "says"),
    [
        ("learned positions", [0], "phase", "no rotary"),
        ("alibi", [0], "phase", "no rotary"),
        ("grouped-query", [4], "phase", "no head 4: its heads are 0 to 3"),
        ("grouped-query", [0, -1], "symmetric", "no head -1"),
        ("grouped-query", [0], "static", "choose from phase, symmetric, antisymmetric"),
    ],
)
def test_what_cannot_be_removed_is_refused(opened, kind, heads, channel, says):
    weights, _, modules, _ = opened(kind)
    with pytest.raises(InputError, match=says), ablated(modules, weights.layer(0), heads, channel):
        pass

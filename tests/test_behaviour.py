"""Behaviour scores: an ideal head gives exactly 1, a sink exactly 0, and real models agree with a slow reading."""

import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import qkspectra.behaviour as module
from qkspectra.behaviour import Behaviour, behaviour, previous_token, random_repeats, special_tokens
from qkspectra.errors import InputError
from qkspectra.weights.layout import ModelLayout

VOCAB = 97


def layout(**changes) -> ModelLayout:
    sizes = {"n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "d_model": 32, "d_head": 8, "d_rot": 8}
    return ModelLayout(**{"family": "llama", "scheme": "rope", "vocab": VOCAB, "max_positions": 64, **sizes, **changes})


class OneLayer(nn.Module):
    """A model of one attention layer whose pattern is given: row i of head h attends to `target(h, i)` alone."""

    def __init__(self, heads, target, logits=None):
        super().__init__()
        self.attention = _Attention(heads, target)
        self.bias = nn.Parameter(torch.zeros(1))
        self.logits = logits

    def forward(self, input_ids):
        self.attention(nn.functional.one_hot(input_ids, VOCAB).float())
        return SimpleNamespace(logits=None if self.logits is None else self.logits(input_ids))


class _Attention(nn.Module):
    def __init__(self, heads, target):
        super().__init__()
        self.heads, self.target = heads, target

    def forward(self, x):
        size = x.shape[1]
        scores = torch.full((len(x), self.heads, size, size), -torch.inf)
        for head in range(self.heads):
            for row in range(size):
                scores[:, head, row, self.target(head, row)] = 0
        return scores.softmax(-1)


def run(target, tokens, heads=1, logits=None) -> Behaviour:
    model = OneLayer(heads, target, logits)
    return behaviour(model, [model.attention], tokens)


def tiny(family, seed=0, **changes):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = AutoConfig.for_model(family, **{"vocab_size": VOCAB, "max_position_embeddings": 64, **sizes, **changes})
    make = AutoModel if family == "bert" else AutoModelForCausalLM
    return make.from_config(config, attn_implementation="eager").eval()


def attentions(model):
    return [b.attention.self if hasattr(b, "attention") else b.self_attn for b in _blocks(model)]


def _blocks(model):
    return model.encoder.layer if hasattr(model, "encoder") else model.model.layers


@pytest.mark.parametrize("bos", [None, 0])
def test_ideal_heads_score_one_and_a_sink_zero(bos):
    n = 7
    tokens = random_repeats(layout(), 3, n, seed=0, bos=bos)
    offsets = [1, n - 1, n]
    seen = run(lambda head, row: max(row - offsets[head], 0) if head < 3 else 0, tokens, heads=4)
    assert seen.previous_token[0].tolist() == [1, 0, 0, 0]
    assert seen.induction[0].tolist() == [0, 1, 0, 0]
    assert seen.duplicate_token[0].tolist() == [0, 0, 1, 0]
    assert [seen.by_offset[0, h].argmax() for h in range(3)] == offsets
    assert seen.by_offset[0, 3].sum() == 0


def test_the_model_that_copies_predicts_only_the_second_copy():
    n = 9
    tokens = random_repeats(layout(), 5, n, seed=1)

    def copying(ids):
        logits = torch.zeros(*ids.shape, VOCAB)
        for row in range(n, 2 * n):
            logits[torch.arange(len(ids)), row, ids[:, row - n + 1]] = 50
        return logits

    seen = run(lambda head, row: 0, tokens, logits=copying)
    assert seen.accuracy_second == 1
    assert seen.loss_second < 1e-12
    assert seen.loss_first == pytest.approx(torch.log(torch.tensor(VOCAB)).item())
    assert torch.isnan(torch.tensor(run(lambda head, row: 0, tokens).loss_second))


@pytest.mark.parametrize(("family", "bos"), [("llama", None), ("llama", 5), ("bert", 5), ("bert", None)])
def test_scores_of_a_model_agree_with_a_reading_of_its_attentions(family, bos):
    model = tiny(family)
    n, lead = 6, int(bos is not None)
    tokens = random_repeats(layout(), 5, n, seed=2, bos=bos)
    seen = behaviour(model, attentions(model), tokens, chunk=2)
    with torch.no_grad():
        patterns = model(input_ids=tokens, output_attentions=True).attentions

    def slow(pattern, head, where):
        rows = [(i, where(i)) for i in range(lead + n, lead + 2 * n) if where(i) >= 1]
        return sum(float(pattern[b, head, i, j]) for b in range(5) for i, j in rows) / (5 * len(rows))

    for layer, pattern in enumerate(patterns):
        assert pattern.shape == (5, 4, lead + 2 * n, lead + 2 * n)
        for head in range(4):
            assert seen.induction[layer, head] == pytest.approx(slow(pattern, head, lambda i: i - n + 1), abs=1e-6)
            assert seen.duplicate_token[layer, head] == pytest.approx(slow(pattern, head, lambda i: i - n), abs=1e-6)
            every = [float(pattern[b, head, i, i - 1]) for b in range(5) for i in range(2, lead + 2 * n)]
            assert seen.previous_token[layer, head] == pytest.approx(sum(every) / len(every), abs=1e-6)
            for offset in (0, 3):
                expected = slow(pattern, head, lambda i, offset=offset: i - offset)
                assert seen.by_offset[layer, head, offset] == pytest.approx(expected, abs=1e-6)
    if family == "bert":
        assert torch.isnan(torch.tensor(seen.loss_second))


def test_previous_tokens_are_scored_on_any_sequence():
    model = tiny("llama")
    tokens = random_repeats(layout(), 5, 6, seed=2)
    scores = behaviour(model, attentions(model), tokens).previous_token
    torch.testing.assert_close(previous_token(model, attentions(model), tokens, chunk=2), scores, atol=1e-7, rtol=0)
    text = torch.arange(33).view(3, 11)
    with torch.no_grad():
        patterns = torch.stack(model(input_ids=text, output_attentions=True).attentions)
    expected = torch.stack([patterns[:, :, :, i, i - 1] for i in range(2, 11)]).double().mean((0, 2))
    torch.testing.assert_close(previous_token(model, attentions(model), text, chunk=2), expected, atol=1e-7, rtol=0)


def test_a_list_scores_as_its_members_do_one_by_one():
    model = tiny("llama")
    tokens = random_repeats(layout(), 5, 8, seed=3, bos=1)
    together = behaviour(model, attentions(model), tokens, chunk=3)
    alone = [behaviour(model, attentions(model), row[None]) for row in tokens]
    for name in ("previous_token", "induction", "duplicate_token", "by_offset"):
        mean = torch.stack([getattr(one, name) for one in alone]).mean(0)
        torch.testing.assert_close(getattr(together, name), mean, atol=1e-7, rtol=0)
    for name in ("loss_first", "loss_second", "accuracy_first", "accuracy_second"):
        assert getattr(together, name) == pytest.approx(sum(getattr(one, name) for one in alone) / 5, abs=1e-6)


def test_no_pattern_outlives_its_layer(monkeypatch):
    model = tiny("llama", num_hidden_layers=4)
    alive: list[int] = []
    patterns: list[weakref.ref] = []
    diagonals = module._diagonals

    def watched(pattern, second):
        alive.append(sum(p() is not None for p in patterns))
        patterns.append(weakref.ref(pattern))
        return diagonals(pattern, second)

    monkeypatch.setattr(module, "_diagonals", watched)
    behaviour(model, attentions(model), random_repeats(layout(), 4, 8, seed=0), chunk=2)
    assert len(patterns) == 8
    assert max(alive) <= 1


def test_tokens_are_two_copies_of_distinct_ordinary_ids():
    tokens = random_repeats(layout(vocab=20), 50, 8, seed=4, bos=3, reserved={0, 1, 2})
    assert tokens.shape == (50, 17)
    assert torch.equal(tokens[:, 0], torch.full((50,), 3))
    assert torch.equal(tokens[:, 1:9], tokens[:, 9:])
    assert all(len(set(row.tolist())) == 8 for row in tokens[:, 1:9])
    assert set(tokens[:, 1:].flatten().tolist()) == set(range(4, 20))
    assert torch.equal(tokens, random_repeats(layout(vocab=20), 50, 8, seed=4, bos=3, reserved={0, 1, 2}))
    assert not torch.equal(tokens, random_repeats(layout(vocab=20), 50, 8, seed=5, bos=3, reserved={0, 1, 2}))


def test_special_tokens_are_those_the_configuration_names():
    config = AutoConfig.for_model("llama", bos_token_id=7, eos_token_id=[8, 9], pad_token_id=None)
    assert special_tokens(config) == {7, 8, 9}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"length": 1}, "at least 2"),
        ({"length": 33}, "64 positions, not 66"),
        ({"length": 32, "bos": 1}, "64 positions, not 65"),
        ({"length": 5, "bos": VOCAB}, "not in the vocabulary"),
        ({"length": 20, "reserved": range(80)}, "17 ordinary"),
    ],
)
def test_sequences_that_cannot_be_drawn_are_refused(arguments, says):
    with pytest.raises(InputError, match=says):
        random_repeats(layout(), 2, seed=0, **arguments)


def test_tokens_that_do_not_repeat_are_refused():
    with pytest.raises(ValueError, match="two copies"):
        run(lambda head, row: 0, torch.arange(10)[None])


def test_a_pattern_that_is_not_finite_is_refused():
    model = tiny("llama")
    with torch.no_grad():
        attentions(model)[1].q_proj.weight[0, 0] = torch.nan
    with pytest.raises(InputError, match="layer 1 is not finite"):
        behaviour(model, attentions(model), random_repeats(layout(), 1, 4, seed=0))


def test_a_fused_kernel_is_refused():
    model = tiny("llama")
    model.set_attn_implementation("sdpa")
    with pytest.raises(RuntimeError, match="eager"):
        behaviour(model, attentions(model), random_repeats(layout(), 1, 4, seed=0))

"""The comparison itself: it agrees with what is right, and every kind of wrong extraction is caught."""

import json
from dataclasses import replace

import pytest
import torch
from tests.weights import tiny
from typer.testing import CliRunner

from qkspectra import verify
from qkspectra.cli import app
from qkspectra.verify import agreement, agreements, compare, own_scores, random_tokens
from qkspectra.weights import Weights, families, open_model
from qkspectra.weights.rotary import pair_rows


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    models = {}

    def open_case(case):
        if case not in models:
            models[case] = open_model(str(tiny.save(tmp_path_factory.mktemp("model"), case)))
        return models[case]

    return open_case


def flat_split(layer):
    """The fused rows of GPT-NeoX read as all queries, then all keys: the right shapes, the wrong heads."""
    rows = torch.stack([layer.wq, layer.wk, torch.zeros_like(layer.wq)], 1).flatten(0, 2)
    query, key, _ = rows.split(len(rows) // 3)
    return replace(layer, wq=query.unflatten(0, layer.wq.shape[:2]), wk=key.unflatten(0, layer.wk.shape[:2]))


def over_the_whole_head(layer):
    """Partial rotation paired over the width of the head instead of over the rotated rows."""
    pairs = torch.stack([layer.rotary.pairs[:, 0], layer.rotary.pairs[:, 0] + layer.wq.shape[1] // 2], 1)
    return replace(layer, rotary=replace(layer.rotary, pairs=pairs))


FAULTS = {
    "interleaved-for-half-split": (
        "llama-grouped",
        lambda layer: replace(layer, rotary=replace(layer.rotary, pairs=pair_rows(8, interleaved=True))),
    ),
    "half-split-for-interleaved": (
        "gptj",
        lambda layer: replace(layer, rotary=replace(layer.rotary, pairs=pair_rows(8, interleaved=False))),
    ),
    "other-direction": (
        "llama-grouped",
        lambda layer: replace(layer, rotary=replace(layer.rotary, theta=-layer.rotary.theta)),
    ),
    "partial-over-the-whole-head": ("gpt_neox", over_the_whole_head),
    "base-a-little-off": (
        "llama-grouped",
        lambda layer: replace(layer, rotary=replace(layer.rotary, theta=layer.rotary.theta * 1.001)),
    ),
    "key-value-heads-in-turn": (
        "llama-grouped",
        lambda layer: replace(layer, kv_head=torch.arange(6) % 2),
    ),
    "fused-rows-flat": ("gpt_neox", flat_split),
    "no-query-bias": ("gpt_neox", lambda layer: replace(layer, bq=None)),
    "no-key-bias": ("gpt_neox", lambda layer: replace(layer, bk=None)),
    "no-key-bias-under-alibi": ("bloom", lambda layer: replace(layer, bk=None)),
    "no-query-bias-without-rotation": ("gpt2", lambda layer: replace(layer, bq=None)),
    "alibi-slopes-in-another-order": ("bloom-12-heads", lambda layer: replace(layer, alibi=layer.alibi.flip(0))),
    "no-alibi": ("mpt", lambda layer: replace(layer, alibi=None)),
    "no-norm-gain": ("qwen3", lambda layer: replace(layer, q_norm=replace(layer.q_norm, weight=None))),
    "norm-of-each-head": ("olmo2", lambda layer: replace(layer, norm_across_heads=False)),
    "no-cap": ("gemma2", lambda layer: replace(layer, softcap=None)),
    "no-clip": ("olmo", lambda layer: replace(layer, clip=None)),
    "scale": ("granite", lambda layer: replace(layer, scale=layer.wq.shape[1] ** -0.5)),
    "no-window": ("mistral", lambda layer: replace(layer, window=None)),
    "window-one-off": ("mistral", lambda layer: replace(layer, window=layer.window + 1)),
    "not-causal": ("gpt2", lambda layer: replace(layer, causal=False)),
    "causal": ("bert", lambda layer: replace(layer, causal=True)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_caught(opened, monkeypatch, fault):
    case, spoil = FAULTS[fault]
    model = opened(case)
    assert agreement(model, torch.float32).passed
    monkeypatch.setattr(Weights, "layer", lambda self, i: spoil(families.read_layer(self.config, self.tensors, i)))
    spoiled = agreement(model, torch.float32)
    assert not spoiled.passed
    assert spoiled.error.max() > 10 * spoiled.tolerance


def test_one_wrong_head_is_found(opened, monkeypatch):
    def layer(self, i):
        read = families.read_layer(self.config, self.tensors, i)
        if i == 1:
            read.wq[3] *= 1.001
        return read

    monkeypatch.setattr(Weights, "layer", layer)
    agreed = agreement(opened("llama-grouped"), torch.float64)
    assert agreed.worst == (1, 3)
    assert (agreed.error > agreed.tolerance).sum() == 1
    assert not agreed.passed


def test_a_comparison_that_could_not_fail_does_not_pass(opened):
    """Scores that are all alike agree with anything."""
    agreed = agreement(opened("llama"), torch.float32)
    assert agreed.passed
    assert not replace(agreed, control=torch.zeros_like(agreed.control)).passed
    assert not replace(agreed, positional=torch.zeros_like(agreed.positional)).passed
    assert not replace(agreed, compared=0).passed


def test_a_dead_head_agrees_only_with_itself(opened):
    model = opened("gpt2")
    (x, scores), *_ = own_scores(model, torch.float64, random_tokens(model.layout, 0))[0]
    layer = model.layer(0)
    dead = replace(layer, wq=torch.zeros_like(layer.wq), bq=torch.zeros_like(layer.bq))
    error, control, _, _ = compare(dead, x, torch.where(scores > -1e30, 0.0, scores))
    assert error.max() == 0
    assert control == 0
    assert compare(layer, x, torch.where(scores > -1e30, 0.0, scores))[0].min() == torch.inf


def test_every_offset_is_compared(opened):
    causal, both = (agreement(opened(case), torch.float32) for case in ("llama", "bert"))
    assert causal.compared == 2 * 2 * 4 * (64 * 65 // 2)
    assert both.compared == 2 * 2 * 4 * 64 * 64


def test_tokens_fit_the_model(opened):
    layout = opened("gpt2").layout
    assert random_tokens(layout, 0).shape == (2, 64)
    assert random_tokens(replace(layout, max_positions=20), 0).shape == (2, 20)
    assert random_tokens(layout, 0).max() < layout.vocab
    assert not torch.equal(random_tokens(layout, 0), random_tokens(layout, 1))


def test_double_precision_is_left_behind(opened):
    agreement(opened("llama"), torch.float64)
    assert torch.get_default_dtype() == torch.float32
    assert torch.zeros(1).float().dtype == torch.float32


def test_float64_only_where_it_fits(opened, monkeypatch):
    assert [agreed.precision for agreed in agreements(opened("bert"))] == ["float32", "float64"]
    memory = type("Memory", (), {"available": 1000})
    monkeypatch.setattr(verify.psutil, "virtual_memory", lambda: memory)
    assert [agreed.precision for agreed in agreements(opened("bert"))] == ["float32"]


# The command ----------------------------------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(app, ["verify", *map(str, arguments)])


def test_the_command_reports_both_precisions(opened):
    folder = opened("llama-grouped").source.folder
    shown = run(folder, "--json")
    report = json.loads(shown.stdout)
    assert shown.exit_code == 0
    assert report["passed"] is True
    single, double = report["agreements"]
    assert (single["precision"], double["precision"]) == ("float32", "float64")
    assert 0 < double["largest_relative_error"] <= 1e-10 < single["largest_relative_error"] <= 1e-4
    assert (single["heads"], single["layers"], single["scores_compared"]) == (12, 2, 2 * 12 * 64 * 65 // 2)
    assert single["wrong_operator_error"] > 0.1
    assert single["position_dependence"] > 0.1
    table = run(folder)
    assert table.exit_code == 0
    assert "largest relative error" in table.stdout
    assert format(single["largest_relative_error"], ".1e") in table.stdout


def test_the_command_says_no(opened, monkeypatch):
    case, spoil = FAULTS["no-window"]
    monkeypatch.setattr(Weights, "layer", lambda self, i: spoil(families.read_layer(self.config, self.tensors, i)))
    folder = opened(case).source.folder
    shown = run(folder, "--json")
    report = json.loads(shown.stdout)
    assert shown.exit_code == 1
    assert report["passed"] is False
    assert report["agreements"][0]["largest_relative_error"] is None  # the masks differ
    table = run(folder)
    assert table.exit_code == 1
    assert "masks differ" in table.stdout
    assert "NO" in table.stdout

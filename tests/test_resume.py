"""A pass that begins at a later layer gives, bit for bit, what the whole pass gives, in every family."""

import pytest
import torch
from tests.weights import tiny

from qkspectra.attention import tapped
from qkspectra.behaviour import Behaviour, behaviour, random_repeats
from qkspectra.intervene import ablated
from qkspectra.resume import kept, resumed
from qkspectra.studies.audit import ablations, effects
from qkspectra.weights import open_model
from qkspectra.weights.model import loaded_once


@pytest.fixture
def opened(tmp_path):
    def make(name, **changes):
        return open_model(str(tiny.save(tmp_path / name, name, **changes)))

    return make


def same(one: Behaviour, two: Behaviour) -> bool:
    scores = ("previous_token", "induction", "duplicate_token", "by_offset")
    numbers = ("loss_first", "loss_second", "accuracy_first", "accuracy_second")
    return all(torch.equal(getattr(one, name), getattr(two, name)) for name in scores) and torch.equal(
        *(torch.tensor([getattr(seen, name) for name in numbers]).nan_to_num(-1) for seen in (one, two))
    )


@pytest.mark.parametrize("name", tiny.CASES)
def test_the_rest_of_a_pass_is_the_pass(opened, name):
    weights = opened(name)
    model = weights.load()
    modules, blocks = weights.attention_modules(model), weights.blocks(model)
    tokens = random_repeats(weights.layout, 2, 5, 0)
    with kept(blocks, {0, 1}) as outputs:
        whole = behaviour(model, modules, tokens)
    assert list(outputs) == [1]
    with ablated(modules, weights.layer(1), [0], "symmetric"):
        expected = behaviour(model, modules, tokens)
    ran = []
    for _ in range(2):  # the second shows that the first left what was kept as it was
        with (
            ablated(modules, weights.layer(1), [0], "symmetric"),
            resumed(blocks, 1, outputs),
            tapped(modules, on_pattern=lambda layer, _: ran.append(layer)),
        ):
            assert same(behaviour(model, modules, tokens, below=whole), expected)
    assert set(ran) == {1}
    assert not same(expected, whole)
    with resumed(blocks, 0, outputs):
        assert same(behaviour(model, modules, tokens), whole)
    assert same(behaviour(model, modules, tokens), whole)  # nothing is left behind


def test_a_silent_layer_is_an_error_unless_its_scores_are_known(opened):
    weights = opened("llama")
    model = weights.load()
    tokens = random_repeats(weights.layout, 2, 5, 0)
    with kept(weights.blocks(model), {1}) as outputs:
        behaviour(model, weights.attention_modules(model), tokens)
    with resumed(weights.blocks(model), 1, outputs), pytest.raises(RuntimeError):
        behaviour(model, weights.attention_modules(model), tokens)


def test_parts_of_a_batch_together_are_the_batch(opened):
    """Ablations run a few sequences at a time; uneven parts weigh as much as they hold."""
    weights = opened("gpt_neox")
    model = weights.load()
    modules = weights.attention_modules(model)
    tokens = random_repeats(weights.layout, 6, 5, 0)
    whole = behaviour(model, modules, tokens)
    parts = Behaviour.mean([behaviour(model, modules, part) for part in tokens.split(4)], [4, 2])
    torch.testing.assert_close(parts.by_offset, whole.by_offset)
    assert parts.loss_second == pytest.approx(whole.loss_second)
    row = effects(weights, model, tokens, [(1, 2), (0, 3)], ["phase"], matchers=[(0, 1)]).iloc[0]
    with ablated(modules, weights.layer(1), [2], "phase"):
        after = behaviour(model, modules, tokens)
    assert row["previous_token_after"] == pytest.approx(after.previous_token[1, 2].item())
    assert row["induction_after"] == pytest.approx(after.induction[0, 1].item())
    assert row["loss_second_after"] == pytest.approx(after.loss_second)
    assert row["loss_second_before"] == pytest.approx(whole.loss_second)


def test_a_model_is_loaded_once(opened, monkeypatch):
    weights = opened("llama")
    expected = ablations(weights, [(1, 2)], ["phase"], batch=2, length=5)
    once = loaded_once(weights)
    model = once.load()
    assert once.load() is model is not weights.load()
    assert once.load(torch.float64).dtype == torch.float64
    assert ablations(once, [(1, 2)], ["phase"], batch=2, length=5).equals(expected)
    assert once.load() is model

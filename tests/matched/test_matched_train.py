"""A run can be taken up anywhere, bit for bit, and shares its data with the same seed under another scheme."""

import torch
from tests.matched.conftest import small

from qkspectra.matched import language
from qkspectra.matched.model import flat, forward
from qkspectra.matched.train import Run, train
from qkspectra.pocket.train import batch_of


def test_a_run_taken_up_ends_where_it_would_have_ended(tokens):
    whole, first = Run(small(), tokens), Run(small(), tokens)
    train(whole, 8, 8, lambda _: None)
    train(first, 5, 5, lambda _: None)
    again = Run(small(), tokens, first.state(), 5)
    train(again, 8, 8, lambda _: None)
    assert torch.equal(whole.state(), again.state())
    assert not torch.equal(first.state(), again.state())


def test_seeds_are_paired_and_their_data_too(tokens):
    for step in (0, 7):
        same = [batch_of(small(name, seed=3), tokens, step)[0] for name in ("rope", "none")]
        assert torch.equal(*same)
    assert torch.equal(batch_of(small(ban="phase"), tokens, 2)[0], batch_of(small(), tokens, 2)[0])
    assert not torch.equal(batch_of(small(seed=3), tokens, 0)[0], batch_of(small(seed=4), tokens, 0)[0])
    assert torch.equal(language.repeats(small()), language.repeats(small("alibi", seed=9)))


def test_a_run_is_examined_at_every_multiple_and_at_its_end(tokens):
    steps = []
    train(Run(small(), tokens), 7, 3, lambda run: steps.append(run.step))
    assert steps == [0, 3, 6, 7]


def test_the_loss_weighs_alike_throughout(tokens):
    weights = [batch_of(small(steps=2000), tokens, step)[1].min() for step in (0, 1999)]
    assert weights[0] == weights[1] < 1


def test_training_lowers_the_loss_and_moves_every_tensor(tokens):
    recipe = small(steps=40, batch=8)
    run = Run(recipe, tokens)
    before, losses = flat(run.parameters).clone(), []

    def seen(now):
        with torch.no_grad():
            said = forward(recipe, now.parameters, batch_of(recipe, tokens, 0)[0], now.position)
            target = batch_of(recipe, tokens, 0)[0]
            losses.append(torch.nn.functional.cross_entropy(said[:, :-1].flatten(0, 1), target[:, 1:].flatten()))

    train(run, 40, 40, seen)
    assert losses[-1] < losses[0] - 0.2
    assert (before != flat(run.parameters)).float().mean() > 0.99

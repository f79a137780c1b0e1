"""What may run on a GPU gives there what it gives on a CPU, to within the tolerances that the book states.

Spectra are not among it: they are computed on CPUs, in double precision, whatever the machine.
"""

import pytest
import torch

from qkspectra import open_model
from qkspectra.behaviour import behaviour, previous_token
from qkspectra.studies.audit import effects, repeats
from qkspectra.toy.bans import SCHEMES
from qkspectra.toy.model import ModelConfig
from qkspectra.toy.train import TrainConfig, train

GPU = "cuda"
SCORES = 1e-4
"""Largest difference of a score, of a loss in nats, or of a toy's loss in its first steps, between two devices."""
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.mark.parametrize("name", ["pocket-gpt-neox", "pocket-gpt2", "pocket-bloom"])
def test_behaviour_is_the_same_on_both(name):
    weights = open_model(name)
    tokens = repeats(weights, seed=0, batch=4, length=24)
    here, there = weights.load(), weights.load().to(GPU)
    seen, again = (behaviour(model, weights.attention_modules(model), tokens) for model in (here, there))
    for score in ("previous_token", "induction", "duplicate_token", "by_offset"):
        torch.testing.assert_close(getattr(again, score), getattr(seen, score), atol=SCORES, rtol=0)
    assert again.loss_second == pytest.approx(seen.loss_second, abs=SCORES)
    text = tokens[:, :20]
    first, second = (previous_token(model, weights.attention_modules(model), text) for model in (here, there))
    torch.testing.assert_close(second, first, atol=SCORES, rtol=0)


def test_an_ablation_is_the_same_on_both():
    weights = open_model("pocket-gpt-neox")
    tokens = repeats(weights, seed=0, batch=4, length=24)
    tables = [effects(weights, weights.load().to(device), tokens, [(1, 0)], ["phase"]) for device in ("cpu", GPU)]
    numbers = tables[0].select_dtypes("number").columns
    assert (tables[0][numbers] - tables[1][numbers]).abs().max().max() <= SCORES


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_first_steps_of_training_are_the_same_on_both(scheme):
    config = TrainConfig(ModelConfig(scheme), horizon=20, cap=20)
    here, there = (train(config, [0, 1], device=device).table for device in ("cpu", GPU))
    assert here["step"].tolist() == there["step"].tolist()
    assert (here["loss"] - there["loss"]).abs().max() <= SCORES

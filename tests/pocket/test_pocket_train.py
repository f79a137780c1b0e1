import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.pocket.conftest import small

from qkspectra.errors import InputError
from qkspectra.pocket.recipe import ZOO, config_of
from qkspectra.pocket.train import STATE, Run, batch_of, initial, train
from qkspectra.weights import families


def test_a_batch_is_text_then_distinct_tokens_then_spans_of_text(tokens):
    recipe = small(batch=16, context=32, text=0.25, scrambled=0.25)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, 8).tolist()
    for step in range(3):
        sequences, weights = batch_of(recipe, tokens, step)
        for row, (sequence, weight) in enumerate(zip(sequences.tolist(), weights.tolist(), strict=True)):
            # What an earlier copy predicts begins with the second token of the second copy.
            period = weight.index(1.0) - 1 if row >= 4 else 32
            assert weight == pytest.approx([recipe.unpredicted if i <= period else 1.0 for i in range(32)])
            assert sequence == [sequence[i % period] for i in range(32)]
            assert row < 4 or 4 <= period <= 16
            if 4 <= row < 8:
                assert len(set(sequence)) == period
                assert 0 not in sequence
            else:
                first = sequence[: min(period, 8)]
                assert first in [window[: len(first)] for window in windows]
    assert (batch_of(recipe, tokens, 3)[1] == 1).all()  # from then on every token counts alike


def test_a_batch_depends_on_seed_and_step_alone(tokens):
    recipe = small()
    same, other = batch_of(recipe, tokens, 5)[0], batch_of(recipe, tokens, 6)[0]
    assert torch.equal(same, batch_of(recipe, tokens, 5)[0])
    assert not torch.equal(same, other)
    assert not torch.equal(same, batch_of(small(seed=1), tokens, 5)[0])
    assert torch.equal(same, batch_of(small("pocket-mpt"), tokens, 5)[0])


@pytest.mark.parametrize("name", ZOO)
def test_every_architecture_starts_and_learns(name, tokens):
    """No dropout, embeddings of their own size and not tied, the same initial model every time, and a falling loss."""
    recipe = small(name, steps=40, learning_rate=0.01)
    model, again = initial(recipe), initial(recipe)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    sequence = batch_of(recipe, tokens, 0)[0]
    with torch.no_grad():
        assert torch.equal(model.train()(sequence).logits, model.eval()(sequence).logits)
    assert model.get_input_embeddings().weight.std().item() == pytest.approx(0.5, rel=0.05)
    assert model.get_output_embeddings().weight.std().item() == pytest.approx(0.088, rel=0.05)
    layout = families.model_layout(config_of(recipe))
    assert (layout.n_layers, layout.d_model, layout.n_heads, layout.d_head) == (1, 32, 4, 8)
    run = Run(recipe, tokens)
    losses = [run.advance() for _ in range(40)]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


def test_checkpoints_follow_the_logarithmic_schedule():
    early = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert ZOO["pocket-gpt2"].saved == [*early, *range(600, 3001, 100)]
    assert small(steps=6).saved == [0, 1, 2, 4, 6]
    assert small(steps=700, every=250).saved == [*early, 700]


def test_a_killed_run_goes_on_and_ends_bit_for_bit_the_same(tokens, tmp_path, monkeypatch):
    recipe = small()
    train(recipe, tokens, tmp_path / "whole")
    advance = Run.advance

    def killed(run):
        if run.step == 3:
            raise KeyboardInterrupt
        return advance(run)

    monkeypatch.setattr(Run, "advance", killed)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tokens, tmp_path / "parts")
    assert {path.name for path in (tmp_path / "parts").iterdir()} == {"step0", "step1", "step2", STATE}
    monkeypatch.setattr(Run, "advance", lambda run: advance(run) if run.step > 1 else pytest.fail("started again"))
    train(recipe, tokens, tmp_path / "parts")
    for step in recipe.saved:
        whole, parts = (load_file(tmp_path / f / f"step{step}" / "model.safetensors") for f in ("whole", "parts"))
        assert whole.keys() == parts.keys()
        assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_folder_with_another_run_is_refused(tokens, tmp_path):
    train(small(), tokens, tmp_path)
    with pytest.raises(InputError, match="by another recipe"):
        train(small(seed=1), tokens, tmp_path)
    (tmp_path / STATE).unlink()
    with pytest.raises(InputError, match="of a finished run"):
        train(small(), tokens, tmp_path)

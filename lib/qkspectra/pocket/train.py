"""Training of one pocket model, with the checkpoints of Pythia's schedule, and where it can be taken up again.

The batch of a step depends on the recipe's seed and the step alone, and the whole state of a run is kept at each
checkpoint: a run that was killed goes on there and ends, bit for bit, where it would have ended.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt
from safetensors import safe_open
from safetensors.torch import save_file, save_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from qkspectra.errors import InputError
from qkspectra.pocket.recipe import Recipe, config_of
from qkspectra.store import replacing

STATE = "state.safetensors"
"""The run between its checkpoints: parameters, both moments of the optimiser, and in the header recipe and step."""


def batch_of(
    recipe: Recipe, tokens: UInt[np.ndarray, " tokens"], step: int
) -> tuple[Int64[Tensor, "batch context"], Float32[Tensor, "batch context"]]:
    """The sequences of one step, and the weight of each of their tokens in the loss.

    Text comes first, then repeated distinct tokens, then repeated spans of text. What is repeated has `p` tokens and
    goes on to the end of the context; every token but the first of its second copy and later ones is predicted by the
    token `p` before it, and by what came before both.
    """
    rng = np.random.default_rng([recipe.seed, step])
    batch, context = recipe.batch, recipe.context
    text, scrambled = round(recipe.text * batch), round(recipe.scrambled * batch)
    period = rng.integers(recipe.shortest, context // 2 + 1, (batch, 1))
    period[:text] = context
    starts = rng.integers(0, len(tokens) - context + 1, (batch, 1))
    sequences = tokens[starts + np.arange(context) % period].astype(np.int64)
    for row in range(text, text + scrambled):
        distinct = rng.permutation(np.arange(1, recipe.vocab))  # 0 is the boundary between files
        sequences[row] = distinct[np.arange(context) % period[row]]
    least = recipe.unpredicted if step < recipe.forming else 1.0
    weights = np.where(np.arange(context) > period, 1.0, least).astype(np.float32)
    return torch.from_numpy(sequences), torch.from_numpy(weights)


def initial(recipe: Recipe) -> PreTrainedModel:
    """The untrained model in float32, with fused attention where its architecture has it (Transformers' default)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = AutoModelForCausalLM.from_config(config_of(recipe), dtype=torch.float32)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                module.weight.mul_(recipe.embedding_deviation / recipe.deviation)
    return model


def descend(
    recipe: Recipe,
    tokens: UInt[np.ndarray, " tokens"],
    step: int,
    optimiser: torch.optim.Optimizer,
    predict: Callable[[Tensor], Tensor],
) -> Float32[Tensor, ""]:
    """One step of the optimiser; returns the weighted loss, in nats a token, over every position but the first.

    Args:
        tokens: the corpus.
        step: from 0; decides rate and batch.
        predict: logits `(batch, context, vocab)` of tokens `(batch, context)`, by the parameters of the optimiser.
    """
    share = min((step + 1) / recipe.warmup, (recipe.steps - step) / recipe.decay, 1)
    for group in optimiser.param_groups:
        group["lr"] = share * recipe.learning_rate
    batch, weights = batch_of(recipe, tokens, step)
    logits = predict(batch)
    each = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten(), reduction="none")
    weights = weights[:, 1:].flatten()
    loss = each @ weights / weights.sum()
    optimiser.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_([p for group in optimiser.param_groups for p in group["params"]], recipe.clip)
    optimiser.step()
    return loss.detach()


class Run:
    """A model in training."""

    def __init__(self, recipe: Recipe, tokens: UInt[np.ndarray, " tokens"]) -> None:
        self.recipe, self.tokens = recipe, tokens
        self.model = initial(recipe)
        self.parameters = dict(self.model.named_parameters())
        self.optimiser = torch.optim.AdamW(
            self.parameters.values(), betas=(recipe.beta1, recipe.beta2), weight_decay=recipe.weight_decay, fused=True
        )
        self.step, self.seconds = 0, 0.0

    def advance(self) -> float:
        """One step of the optimiser (`descend`); returns its loss."""

        def predict(batch: Tensor) -> Tensor:
            return self.model(input_ids=batch, use_cache=False).logits

        loss = descend(self.recipe, self.tokens, self.step, self.optimiser, predict)
        self.step += 1
        return loss.item()

    def keep(self, file: Path) -> None:
        """Write the whole state, in one stroke."""
        tensors = {f"parameter.{name}": p.detach() for name, p in self.parameters.items()}
        for name, p in self.parameters.items():
            for moment in ("exp_avg", "exp_avg_sq"):
                if p in self.optimiser.state:
                    tensors[f"{moment}.{name}"] = self.optimiser.state[p][moment]
        about = {"recipe": self.recipe.model_dump_json(), "step": str(self.step), "seconds": str(self.seconds)}
        with replacing(file) as part:
            save_file(tensors, part, metadata=about)

    def take_up(self, file: Path) -> None:
        """Go back to a state that was kept.

        Raises:
            InputError: it is that of another recipe.
        """
        with safe_open(file, "pt") as state:
            about = state.metadata()
            if json.loads(about["recipe"]) != json.loads(self.recipe.model_dump_json()):
                raise InputError(
                    f"{file.parent} holds a run by another recipe: give another folder, or delete that one"
                )
            self.step, self.seconds = int(about["step"]), float(about["seconds"])
            names = set(state.keys())
            for name, p in self.parameters.items():
                p.data.copy_(state.get_tensor(f"parameter.{name}"))
                if f"exp_avg.{name}" in names:
                    moments = {m: state.get_tensor(f"{m}.{name}") for m in ("exp_avg", "exp_avg_sq")}
                    self.optimiser.state[p] = {"step": torch.tensor(float(self.step)), **moments}


def train(
    recipe: Recipe, tokens: UInt[np.ndarray, " tokens"], folder: Path, say: Callable[[str], None] = lambda _: None
) -> float:
    """Train by `recipe`; `folder` is then a trajectory: a model in float32 in each of `step0`, `step1`, ….

    Args:
        say: told how far the run is.

    Returns:
        The processor seconds it took, over all processes that had a part in it.

    Raises:
        InputError: the folder holds a run that has finished or is by another recipe.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(recipe, tokens)
    if (folder / STATE).exists():
        run.take_up(folder / STATE)
    elif any(folder.glob("step*")):
        raise InputError(f"{folder} holds checkpoints of a finished run: give another folder, or delete that one")
    before, moment = run.seconds, time.process_time()
    while True:
        if run.step in recipe.saved:
            run.seconds = before + time.process_time() - moment
            run.keep(folder / STATE)
            with staged(folder / f"step{run.step}") as part:
                save_model(run.model, str(part / "model.safetensors"), metadata={"format": "pt"})
                run.model.config.save_pretrained(part)
        if run.step == recipe.steps:
            return run.seconds
        if run.step % 10 == 0:
            say(f"{recipe.name}: step {run.step} of {recipe.steps}")
        run.advance()


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A folder to fill that takes its place as a whole when the block ends, and not at all if it fails."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
    part.mkdir(parents=True)
    try:
        yield part
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)

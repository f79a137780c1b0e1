"""Training of one model: a step depends on recipe, step and state alone, so a run can be taken up anywhere."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float32, UInt
from torch import Tensor

from qkspectra.matched.model import Position, Recipe, checked, flat, forward, initial, unflat
from qkspectra.pocket.train import descend

State = Float32[Tensor, "3 parameters"]
"""Parameters, and the two moments of the optimiser."""


class Run:
    """A model in training, from the first step or from a state of a run with the same tensors.

    Raises:
        InputError: see `model.checked`; a state of another model.
    """

    def __init__(self, recipe: Recipe, tokens: UInt[np.ndarray, " tokens"], state: State | None = None, step: int = 0):
        self.recipe, self.tokens, self.step = checked(recipe), tokens, step
        self.position = Position(recipe)
        start = initial(recipe) if state is None else unflat(recipe, state[0])
        self.parameters = {name: part.requires_grad_() for name, part in start.items()}
        self.optimiser = torch.optim.AdamW(
            self.parameters.values(),
            betas=(recipe.beta1, recipe.beta2),
            weight_decay=recipe.weight_decay,
            fused=True,
        )
        if state is not None:
            moments = {m: unflat(recipe, row) for m, row in zip(("exp_avg", "exp_avg_sq"), state[1:], strict=True)}
            for name, part in self.parameters.items():
                own = {m: tensors[name] for m, tensors in moments.items()}
                self.optimiser.state[part] = {"step": torch.tensor(float(step)), **own}

    def state(self) -> State:
        """What the rest of the run depends on, beside the recipe and the step; defined once a step has been made."""
        moments = [
            torch.cat([self.optimiser.state[part][m].flatten() for part in self.parameters.values()])
            for m in ("exp_avg", "exp_avg_sq")
        ]
        return torch.stack([flat(self.parameters), *moments])

    def advance(self) -> None:
        """One step of the optimiser (`pocket.train.descend`)."""

        def predict(batch: Tensor) -> Tensor:
            return forward(self.recipe, self.parameters, batch, self.position)

        descend(self.recipe, self.tokens, self.step, self.optimiser, predict)
        self.step += 1


def train(run: Run, to: int, every: int, seen: Callable[[Run], None]) -> None:
    """Train up to step `to`; `seen` gets the run as it is there, and at each multiple of `every` before."""
    while True:
        if run.step % every == 0 or run.step == to:
            seen(run)
        if run.step >= to:
            return
        run.advance()

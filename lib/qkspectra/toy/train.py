"""Training of the toy models: a few seeds at once, each as if it were alone, measured as it learns.

A seed owns two random generators, one for its initial parameters and one for its data, so its run does not depend on
the seeds beside it and is paired with the same seed under another ban or scheme. A seed leaves the ensemble when it has
formed the circuit and reached the horizon, when it reaches the cap, or when its loss is no longer finite.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float32
from torch import Tensor
from torch.nn import functional as F

from qkspectra.errors import InputError
from qkspectra.operators import QKOperator
from qkspectra.spectrum import MEASURES, measure
from qkspectra.statistics import formation
from qkspectra.toy.model import ModelConfig, Position, effective, forward, initial, phase_measures, unflatten
from qkspectra.toy.task import DATA, HELD_OUT, Batch, generator, head_scores, repeats

SPECTRAL = tuple(name for name in MEASURES if name != "bias_norm")
BEHAVIOUR = ("previous_token", "induction", "duplicate_token")
Finished = Callable[[int, pd.DataFrame, float], None]


@dataclass(frozen=True)
class TrainConfig:
    """A model and how it is trained.

    Attributes:
        model: sizes, scheme and bans.
        learning_rate, beta1, beta2, weight_decay: AdamW, constant rate, no warm-up.
        batch: sequences a step.
        every: steps between evaluations, on `evaluation_batch` held-out sequences of the seed's own.
        spectra_every: steps between spectral measures; a multiple of `every`.
        horizon, after: every run trains until the horizon and until `after` steps past its formation,
        cap: but no longer than this.
        threshold, persistence: formed at the first of `persistence` consecutive evaluations with this accuracy.
    """

    model: ModelConfig
    learning_rate: float = 4e-3
    beta1: float = 0.9
    beta2: float = 0.98
    weight_decay: float = 0.01
    batch: int = 8
    every: int = 10
    evaluation_batch: int = 32
    spectra_every: int = 50
    horizon: int = 300
    after: int = 100
    cap: int = 2500
    threshold: float = 0.9
    persistence: int = 3

    def __post_init__(self) -> None:
        if not 0 < self.every <= self.horizon <= self.cap or self.horizon % self.every or self.cap % self.every:
            raise InputError(
                f"every {self.every}, horizon {self.horizon}, cap {self.cap}: need 0 < every <= horizon <= cap, "
                "both multiples of every"
            )
        if self.spectra_every < 1 or self.spectra_every % self.every:
            raise InputError(f"spectra every {self.spectra_every} steps: use a multiple of {self.every}")
        if min(self.batch, self.evaluation_batch, self.persistence) < 1:
            raise InputError("batch, evaluation batch and persistence must be at least 1")
        if self.after < 0:
            raise InputError("after must not be negative")
        if not self.learning_rate > 0 or not 0 < self.threshold <= 1:
            raise InputError("learning rate must be positive and threshold in (0, 1]")

    def parameters(self) -> dict[str, Any]:
        """Everything the runs depend on besides the seed, as JSON values."""
        return {**asdict(self), "model": {**asdict(self.model), "bans": list(self.model.bans)}}


@dataclass(frozen=True)
class Run:
    """What came of some seeds.

    Attributes:
        table: one row per seed, step, layer and head: `loss`, `accuracy` (of the seed's model, repeated for its heads),
            `previous_token`, `induction`, `duplicate_token`, the spectral measures (NaN between their steps), and
            `diverged`, true in the last rows of a run whose loss was no longer finite.
        theta: parameters of each seed at its last step.
    """

    table: pd.DataFrame
    theta: Float32[Tensor, "seeds parameters"]


def train(
    config: TrainConfig,
    seeds: Sequence[int],
    *,
    device: torch.device | str = "cpu",
    finished: Finished = lambda seed, rows, seconds: None,
) -> Run:
    """Train the seeds as one ensemble.

    Args:
        finished: called for each seed when it leaves, with its rows of the table and its share of the time so far:
            processor seconds on a CPU, where others may share the cores, elapsed seconds on an accelerator.

    Raises:
        InputError: no seeds, a negative one or one twice.
    """
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise InputError("seeds must be at least one, distinct and not negative")
    clock = time.process_time if torch.device(device).type == "cpu" else time.perf_counter
    moment, share = clock(), 0.0
    state = Ensemble(config, seeds, device)
    tables: dict[int, list[pd.DataFrame]] = {seed: [] for seed in seeds}
    runs, final = {}, {}
    step = 0
    while True:
        table, stop = state.evaluate(step)
        for seed, rows in table.groupby("seed"):
            tables[int(seed)].append(rows)
        now = clock()
        moment, share = now, share + (now - moment) / len(state.seeds)
        for row in stop.nonzero()[:, 0].tolist():
            seed = state.seeds[row]
            final[seed] = state.theta[row].cpu()
            runs[seed] = pd.concat(tables.pop(seed), ignore_index=True)
            finished(seed, runs[seed], share)
        if stop.all():
            break
        if stop.any():
            state.keep(~stop)
        for _ in range(config.every):
            state.step()
        step += config.every
    whole = pd.concat([runs[seed] for seed in sorted(seeds)], ignore_index=True)
    return Run(whole, torch.stack([final[seed] for seed in seeds]))


class Ensemble:
    """Parameters, optimiser and generators of the seeds that still train."""

    def __init__(self, config: TrainConfig, seeds: Sequence[int], device: torch.device | str) -> None:
        self.config, self.device, self.seeds = config, device, list(seeds)
        self.position = Position(config.model, device)
        start = unflatten(config.model, initial(config.model, seeds).to(device))
        # Tensors of their own: gathering the gradient of one flat row would be another pass over all of them.
        self.parameters = {name: part.contiguous().requires_grad_() for name, part in start.items()}
        self.optimiser = self._adamw()
        self.generators = [generator(seed, DATA) for seed in seeds]
        held_out = [generator(seed, HELD_OUT) for seed in seeds]
        self.held_out = self._batch(held_out, config.evaluation_batch)
        self.history: list[list[float]] = [[] for _ in seeds]  # accuracies, by seed

    def _adamw(self) -> torch.optim.AdamW:
        c = self.config
        return torch.optim.AdamW(
            self.parameters.values(), c.learning_rate, (c.beta1, c.beta2), weight_decay=c.weight_decay, fused=True
        )

    @property
    def theta(self) -> Float32[Tensor, "seeds parameters"]:
        """The parameters as flat rows."""
        return torch.cat([part.detach().flatten(1) for part in self.parameters.values()], 1)

    def _batch(self, generators: Sequence[torch.Generator], size: int) -> Batch:
        # Drawn on the CPU whatever the device, so that every device sees the same data.
        batch = repeats(generators, size, self.config.model.length, self.config.model.vocab)
        return Batch(batch.tokens.to(self.device), batch.period.to(self.device))

    def step(self) -> None:
        batch = self._batch(self.generators, self.config.batch)
        logits = forward(self.config.model, self.parameters, batch.tokens, self.position)
        loss = seed_losses(logits, batch).sum()  # no seed's parameters enter another's term
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()

    @torch.no_grad()
    def evaluate(self, step: int) -> tuple[pd.DataFrame, Tensor]:
        """Rows of this step and which seeds stop here."""
        config, model, batch = self.config, self.config.model, self.held_out
        behaviour: list[dict[str, Tensor]] = []
        logits = forward(
            model,
            self.parameters,
            batch.tokens,
            self.position,
            lambda _, p: behaviour.append(head_scores(p, batch.period)),
        )
        loss = seed_losses(logits, batch).cpu()
        targets = batch.targets.flatten(1)
        scored = targets >= 0
        accuracy = ((logits.argmax(-1) == targets) & scored).sum(1).double() / scored.sum(1)
        diverged = ~loss.isfinite()
        stop = diverged.clone()
        for row, value in enumerate(accuracy.tolist()):
            self.history[row].append(value)
            formed = formation(np.array(self.history[row]), config.threshold, config.persistence)
            settled = formed is not None and step >= max(config.horizon, formed * config.every + config.after)
            stop[row] |= settled or step >= config.cap

        seeds, layers, heads = len(self.seeds), len(model.bans), model.heads
        measured = torch.full((len(SPECTRAL), seeds, layers, heads), torch.nan, dtype=torch.float64)
        due = (stop | (step % config.spectra_every == 0)) & ~diverged
        if due.any():
            measured[:, due] = _spectra(config, self.theta[due.to(self.device)].cpu())
        columns = {name: torch.stack([b[name] for b in behaviour], 1).cpu() for name in BEHAVIOUR}
        columns |= dict(zip(SPECTRAL, measured, strict=True))
        index = pd.MultiIndex.from_product(
            [self.seeds, [step], range(layers), range(heads)], names=["seed", "step", "layer", "head"]
        )
        table = index.to_frame(index=False)
        each = layers * heads
        table["loss"] = np.repeat(loss.double().numpy(), each)
        table["accuracy"] = np.repeat(accuracy.cpu().numpy(), each)
        table["diverged"] = np.repeat(diverged.numpy(), each)
        for name, values in columns.items():
            table[name] = values.double().flatten().numpy()
        return table, stop

    def keep(self, rows: Tensor) -> None:
        """Go on with some of the seeds."""
        kept = rows.nonzero()[:, 0].tolist()
        rows = rows.to(self.device)
        before, state = self.parameters, self.optimiser.state
        self.parameters = {name: part.detach()[rows].requires_grad_() for name, part in before.items()}
        self.optimiser = self._adamw()
        for name, part in self.parameters.items():
            moments = state.get(before[name], {})
            self.optimiser.state[part] |= {n: v[rows] if v.ndim else v for n, v in moments.items()}
        self.held_out = self.held_out.only(rows)
        for name in ("seeds", "generators", "history"):
            values = getattr(self, name)
            setattr(self, name, [values[row] for row in kept])


def seed_losses(logits: Float[Tensor, "seeds batch_length vocab"], batch: Batch) -> Float[Tensor, " seeds"]:
    """Mean cross-entropy over each seed's scored positions, in nats."""
    targets = batch.targets.flatten(1)
    each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="none")
    return each.view_as(targets).sum(1) / (targets >= 0).sum(1)


def _spectra(
    config: TrainConfig, theta: Float32[Tensor, "seeds parameters"]
) -> Float[Tensor, "measures seeds layers heads"]:
    layers = []
    for layer in range(len(config.model.bans)):
        wq, wk, rotary = effective(config.model, theta, layer)
        op = QKOperator(wq.flatten(0, 1), wk.flatten(0, 1), rotary=rotary)
        measures = vars(measure(op)) | phase_measures(op, config.model.d_head // 2)
        values = [measures[name].double() for name in SPECTRAL]
        layers.append(torch.stack(values).unflatten(-1, (len(theta), config.model.heads)))
    return torch.stack(layers, 2)

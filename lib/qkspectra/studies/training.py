"""Training runs of the toy laboratory as units of work, one stored result a seed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

import qkspectra.channels
import qkspectra.operators
import qkspectra.spectrum
import qkspectra.statistics
import qkspectra.toy.bans
import qkspectra.toy.model
import qkspectra.toy.task
import qkspectra.toy.train
from qkspectra.device import CPU, chosen, described
from qkspectra.errors import InputError
from qkspectra.statistics import formation
from qkspectra.store import Address, Store, source_hash
from qkspectra.toy.bans import ban_of
from qkspectra.toy.model import ModelConfig
from qkspectra.toy.train import TrainConfig, train

STUDY = "toy"
SOURCES = source_hash(
    qkspectra.channels,
    qkspectra.operators,
    qkspectra.spectrum,
    qkspectra.statistics,
    qkspectra.toy.bans,
    qkspectra.toy.model,
    qkspectra.toy.task,
    qkspectra.toy.train,
)
THRESHOLDS = (0.5, 0.9)
LAYERS = {"0": (0,), "1": (1,), "both": (0, 1)}
ENSEMBLE = 8
"""Seeds trained together on a CPU: enough to spread the cost of dispatching, few enough to stay in its cache."""


@dataclass(frozen=True)
class Training:
    """Some seeds of one condition, trained as one ensemble.

    Attributes:
        config: the condition.
        seeds: its seeds.
        labels: columns that tell the condition from others in tables, such as `ban`; none of them a column of `Run`.
        device: where to train, as torch names it; by default the device of the process that does.
    """

    config: TrainConfig
    seeds: tuple[int, ...]
    labels: Mapping[str, Any] = field(default_factory=dict, hash=False)
    device: str | None = None

    @property
    def label(self) -> str:
        words = " ".join(str(value) for value in self.labels.values()) or self.config.model.scheme
        return f"{words} seeds {self.seeds[0]}-{self.seeds[-1]}"

    def address(self, seed: int) -> Address:
        # A seed's result does not depend on the ensemble it was trained in, so neither does its address.
        return Address(STUDY, {**self.config.parameters(), "seed": seed}, SOURCES)

    def missing(self, store: Store) -> list[int]:
        return [seed for seed in self.seeds if store.get(self.address(seed)) is None]

    def rest(self, store: Store) -> "Training | None":
        missing = self.missing(store)
        return replace(self, seeds=tuple(missing)) if missing else None

    def run(self, store: Store) -> None:
        """Train the seeds that the store lacks, and store each the moment it has finished.

        Raises:
            InputError: the machine that is to train lacks the device.
        """
        device = chosen(self.device)

        def keep(seed: int, rows: pd.DataFrame, seconds: float) -> None:
            store.put(self.address(seed), rows, seconds=seconds, seeds=[seed], device=described(device))

        if missing := self.missing(store):
            train(self.config, missing, device=device, finished=keep)

    def table(self, store: Store) -> pd.DataFrame:
        """The stored rows of all seeds, behind the labels.

        Raises:
            KeyError: a seed has not been run.
        """
        parts = []
        for seed in self.seeds:
            found = store.get(self.address(seed))
            if found is None:
                raise KeyError(f"{self.label}: seed {seed} has not been run")
            parts.append(found.table)
        table = pd.concat(parts, ignore_index=True)
        for name, value in reversed(list(self.labels.items())):
            table.insert(0, name, value)
        return table

    def seconds(self, store: Store) -> float:
        """Processor time of the stored seeds."""
        found = [store.get(self.address(seed)) for seed in self.seeds]
        return sum(result.provenance["seconds"] for result in found if result is not None)


def condition(
    scheme: str,
    ban: str = "none",
    layer: str = "both",
    seeds: int = 8,
    *,
    first_seed: int = 0,
    cap: int = 2500,
    **changes: Any,
) -> Training:
    """A condition of the laboratory: one ban, in one layer or both, everything else at its default.

    Args:
        layer: `0`, `1` or `both`.
        seeds: how many, from `first_seed` on.
        changes: fields of `ModelConfig` or `TrainConfig` to set otherwise.

    Raises:
        InputError: an unknown scheme, ban or layer, a ban without meaning for the scheme, no seeds, bad sizes.
    """
    if layer not in LAYERS:
        raise InputError(f"unknown layer {layer!r}: choose one of {', '.join(LAYERS)}")
    if seeds < 1:
        raise InputError(f"{seeds} seeds train nothing: use 1 or more")
    ban_of(ban, scheme)
    where = LAYERS[layer]
    sizes = {name: changes.pop(name) for name in [*changes] if name in ModelConfig.__dataclass_fields__}
    model = ModelConfig(scheme, tuple(ban if i in where else "none" for i in range(2)), **sizes)  # type: ignore[arg-type]
    config = TrainConfig(model, cap=cap, horizon=min(cap, TrainConfig.horizon), **changes)
    return Training(
        config, tuple(range(first_seed, first_seed + seeds)), {"scheme": scheme, "ban": ban, "layers": layer}
    )


def together(seeds: int) -> int:
    """Of so many seeds, how many to train as one ensemble on this process's device: all of them on an accelerator."""
    return ENSEMBLE if chosen() == CPU else seeds


def split(unit: Training, size: int) -> list[Training]:
    """The same seeds as units of at most `size` seeds.

    Raises:
        InputError: a size below 1.
    """
    if size < 1:
        raise InputError(f"ensembles of {size} seeds train nothing: use 1 or more")
    return [replace(unit, seeds=unit.seeds[i : i + size]) for i in range(0, len(unit.seeds), size)]


def curves(table: pd.DataFrame, labels: Sequence[str]) -> pd.DataFrame:
    """One row per run and evaluation: loss and accuracy of the model."""
    return table.groupby([*labels, "seed", "step"], sort=False)[["loss", "accuracy", "diverged"]].first().reset_index()


def formations(units: Iterable[Training], store: Store) -> pd.DataFrame:
    """One row per run and threshold: when the circuit formed, and how the run ended.

    Columns, behind the labels: `seed`, `threshold`, `step` (first of the persistent evaluations, the cap where the run
    is censored), `censored` (not formed within the cap), `diverged`, `last_step`, `loss` and `accuracy` at that step.
    A diverged run is a censored run: it stays in every count.
    """
    rows = []
    for unit in units:
        config = unit.config
        table = curves(unit.table(store), list(unit.labels))
        for seed, run in table.groupby("seed"):
            for threshold in THRESHOLDS:
                index = formation(run["accuracy"].to_numpy(), threshold, config.persistence)
                rows.append(
                    {
                        **unit.labels,
                        "seed": seed,
                        "threshold": threshold,
                        "step": config.cap if index is None else int(run["step"].iloc[index]),
                        "censored": index is None,
                        "diverged": bool(run["diverged"].iloc[-1]),
                        "last_step": int(run["step"].iloc[-1]),
                        "loss": run["loss"].iloc[-1],
                        "accuracy": np.nan if run["diverged"].iloc[-1] else run["accuracy"].iloc[-1],
                    }
                )
    return pd.DataFrame(rows)

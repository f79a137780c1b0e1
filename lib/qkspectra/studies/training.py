"""Training runs of the toy laboratory as units of work, one stored result a seed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
from qkspectra.statistics import formation
from qkspectra.store import Address, Store, source_hash
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


@dataclass(frozen=True)
class Training:
    """Some seeds of one condition, trained as one ensemble.

    Attributes:
        config: the condition.
        seeds: its seeds.
        labels: columns that tell the condition from others in tables, such as `ban` and `layer`.
    """

    config: TrainConfig
    seeds: tuple[int, ...]
    labels: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def label(self) -> str:
        words = " ".join(str(value) for value in self.labels.values()) or self.config.model.scheme
        return f"{words} seeds {self.seeds[0]}-{self.seeds[-1]}"

    def address(self, seed: int) -> Address:
        # A seed's result does not depend on the ensemble it was trained in, so neither does its address.
        return Address(STUDY, {**self.config.parameters(), "seed": seed}, SOURCES)

    def missing(self, store: Store) -> list[int]:
        return [seed for seed in self.seeds if store.get(self.address(seed)) is None]

    def done(self, store: Store) -> bool:
        return not self.missing(store)

    def run(self, store: Store) -> None:
        """Train the seeds that the store lacks, and store each."""
        import time

        missing = self.missing(store)
        if not missing:
            return
        start = time.process_time()
        table = train(self.config, missing).table
        each = (time.process_time() - start) / len(missing)
        for seed, rows in table.groupby("seed"):
            self_rows = rows.reset_index(drop=True)
            store.put(self.address(int(seed)), self_rows, seconds=each, seeds=[int(seed)])

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


def split(unit: Training, size: int) -> list[Training]:
    """The same seeds as units of at most `size` seeds."""
    chunks = [unit.seeds[i : i + size] for i in range(0, len(unit.seeds), size)]
    return [Training(unit.config, chunk, unit.labels) for chunk in chunks]


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

"""The toy laboratory as tables: run its conditions, gather them, ship them, and check a rerun against what was shipped.

Four tables, each with its provenance. `runs`: a row per run and threshold (`training.formations`). `curves`: loss and
accuracy of every run at every evaluation. `heads`: behaviour and spectra of every head at a run's last step, and for
the conditions of `WATCHED` at every evaluation. `multiverse`: formations of its cells, by variation and role.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from qkspectra import compute
from qkspectra.errors import InputError
from qkspectra.store import Address, Result, Store, origin, provenance, read_tables, ship_tables, unpacked
from qkspectra.studies import bans, symmetry
from qkspectra.studies.training import SOURCES, Training, curves, formations, split, together
from qkspectra.toy.train import BEHAVIOUR, SPECTRAL

WATCHED = ("none", "symmetric")
"""Bans whose heads are kept at every evaluation, not only at the end."""
TABLES = ("runs", "curves", "heads", "multiverse")
MEASURED = [*BEHAVIOUR, *SPECTRAL]


@dataclass(frozen=True)
class Laboratory:
    """The tables, and how they came to be.

    Attributes:
        runs, curves, heads, multiverse: see the module.
        provenance: of the four, by name.
    """

    runs: pd.DataFrame
    curves: pd.DataFrame
    heads: pd.DataFrame
    multiverse: pd.DataFrame
    provenance: dict[str, dict[str, Any]]

    @property
    def hours(self) -> float:
        """Processor time of all runs."""
        return (self.provenance["runs"]["seconds"] + self.provenance["multiverse"]["seconds"]) / 3600


def units(seeds: int) -> list[Training]:
    """Every condition of both studies, in ensembles: bans first, half of the seeds before the other half."""
    both = [*bans.conditions(seeds), *symmetry.conditions(seeds)]
    distinct = list({repr(unit.config): unit for unit in both}.values())
    parts = [split(unit, together(seeds)) for unit in distinct]
    halves = [(part[: -(-len(part) // 2)], part[-(-len(part) // 2) :]) for part in parts]
    return [unit for half in (0, 1) for pair in halves for unit in pair[half]]


def run(
    store: Store,
    seeds: int,
    workers: int = 1,
    scheduler: str | None = None,
    progress: compute.Progress = lambda done, total, label: None,
) -> None:
    """Run what the store lacks, in processes or on a Dask cluster (`compute.workers`)."""
    with compute.workers(workers, scheduler) as executor:
        compute.run(units(seeds), store, executor, progress)


def gather(store: Store, seeds: int) -> dict[str, Result]:
    """The four tables of the runs in the store; what is incomplete is left out.

    A condition keeps the seeds it has; a point of the multiverse needs all four of its conditions.

    Raises:
        InputError: nothing has been run.
    """
    causal = [_present(unit, store) for unit in bans.conditions(seeds)]
    causal = [unit for unit in causal if unit is not None]
    if not causal:
        raise InputError("the store has no run of the laboratory: run `qkspectra laboratory` first")
    runs = formations(causal, store)
    all_curves, all_heads = [], []
    for unit in causal:
        table = unit.table(store)
        all_curves.append(curves(table, list(unit.labels)))
        last = table["step"] == table.groupby("seed")["step"].transform("max")
        all_heads.append(table if unit.labels["ban"] in WATCHED and unit.labels["layers"] == "both" else table[last])
    cells = []
    for variation in symmetry.VARIATIONS:
        present = {key: _present(whole, store) for key, whole in symmetry.cells(variation, seeds).items()}
        if None in present.values():
            continue
        for (scheme, role), unit in present.items():
            cells.append(formations([unit], store).assign(variation=variation.name, scheme=scheme, role=role))
    multiverse = pd.concat(cells, ignore_index=True)[
        ["variation", "scheme", "role", "seed", "threshold", "step", "censored", "diverged"]
    ]
    tables = {
        "runs": runs,
        "curves": _small(pd.concat(all_curves, ignore_index=True)),
        "heads": _small(pd.concat(all_heads, ignore_index=True).drop(columns=["loss", "accuracy", "diverged"])),
        "multiverse": multiverse,
    }
    seconds = {"runs": _seconds(causal, store), "curves": 0.0, "heads": 0.0}
    extra = {repr(unit.config): unit for unit in symmetry.conditions(seeds)}
    own = {repr(unit.config) for unit in causal}
    seconds["multiverse"] = _seconds([unit for key, unit in extra.items() if key not in own], store)
    made = {}
    for name, table in tables.items():
        address = Address(f"toy-{name}", {"seeds": seeds, "first_seed": bans.FIRST_SEED}, SOURCES)
        used = sorted(int(seed) for seed in table["seed"].unique())
        made[name] = Result(
            table,
            {**provenance(address, seconds=seconds[name], seeds=used, device="cpu"), **origin(_results(causal, store))},
        )
    return made


def publish(results: dict[str, Result], folder: Path) -> None:
    """Write the tables as `toy-<name>.parquet` with their provenance."""
    ship_tables(results, folder, "toy")


def load(folder: Path) -> Laboratory:
    """The tables of `publish`.

    Raises:
        InputError: a table is missing or damaged.
    """
    return assembled(read_tables(folder, "toy", TABLES))


def assembled(results: dict[str, Result]) -> Laboratory:
    """The laboratory of four results."""
    return Laboratory(**unpacked(results))


def obtain(
    profile: str, folder: Path, store: Store, seeds: int, workers: int, scheduler: str | None = None
) -> Laboratory:
    """The tables that a profile reads: `paper` runs the laboratory in this store, the others read the shipped ones."""
    if profile != "paper":
        return load(folder)
    run(store, seeds, 1 if scheduler else workers, scheduler)
    return assembled(gather(store, seeds))


def agreement(
    shipped: Laboratory, store: Store, cells: Iterable[bans.Cell], seeds: int, cap: int, workers: int = 1
) -> pd.DataFrame:
    """Train cells of the causal study again and compare every evaluation with the shipped curve of the same seed.

    A cap only ends a run, so a shorter rerun is compared with the beginning of the shipped one.

    Returns:
        One row per cell: `scheme`, `ban`, `seeds`, `evaluations` compared, largest difference in `accuracy` and `loss`,
        and how many `formations` at 0.9 fell on the same step of how many (`formed`) within the rerun.
    """
    again = {cell: bans.rerun(cell, seeds, cap) for cell in cells}
    with compute.workers(workers) as executor:
        compute.run([part for whole in again.values() for part in split(whole, together(seeds))], store, executor)
    rows = []
    for cell, whole in again.items():
        mine = curves(whole.table(store), list(whole.labels)).set_index(["seed", "step"])
        theirs = _of(shipped.curves, cell).set_index(["seed", "step"])
        common = mine.index.intersection(theirs.index)
        difference = (mine.loc[common, ["loss", "accuracy"]] - theirs.loc[common, ["loss", "accuracy"]]).abs()
        old = _of(shipped.runs[shipped.runs["threshold"] == 0.9], cell).set_index("seed")["step"]
        new = formations([whole], store).query("threshold == 0.9 and not censored").set_index("seed")["step"]
        rows.append(
            {
                "scheme": cell.scheme,
                "ban": cell.ban,
                "seeds": len(whole.seeds),
                "evaluations": len(common),
                "loss": difference["loss"].max(),
                "accuracy": difference["accuracy"].max(),
                "formations": int((old.reindex(new.index) == new).sum()),
                "formed": len(new),
            }
        )
    return pd.DataFrame(rows)


def _of(table: pd.DataFrame, cell: bans.Cell) -> pd.DataFrame:
    return table[(table["scheme"] == cell.scheme) & (table["ban"] == cell.ban) & (table["layers"] == "both")]


def _present(unit: Training, store: Store) -> Training | None:
    missing = set(unit.missing(store))
    seeds = tuple(seed for seed in unit.seeds if seed not in missing)
    return Training(unit.config, seeds, unit.labels) if seeds else None


def _results(whole: Sequence[Training], store: Store) -> list[Result]:
    found = [store.get(unit.address(seed)) for unit in whole for seed in unit.seeds]
    return [result for result in found if result is not None]


def _seconds(whole: Sequence[Training], store: Store) -> float:
    return sum((unit.seconds(store) for unit in whole), 0.0)


def _small(table: pd.DataFrame) -> pd.DataFrame:
    """Measures in single precision: the files are shipped."""
    return table.astype({name: np.float32 for name in table.columns if table[name].dtype == np.float64})

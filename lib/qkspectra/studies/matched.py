"""The matched experiment as units of work and tables: train, measure, gather, ship, and measure what is shipped again.

Runs of one seed share initial tensors and the order of their data. Under every scheme one runs from the first step to
the last (`main`); some are under a ban from the first step on (`banned`); and some branch off a main run, from its
state at step `BRANCH` on under a ban (`ban_after`) or under another scheme (`transplant`).

Four tables, each with its provenance. `heads`: a row per run, examination, layer and head, behaviour and spectra.
`kernels`: a row per run, head, part and distance, at a run's last step. `signatures`: a row per main run and head, at
its last step. Beside them the final weights of the first seed under every scheme, in half precision.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import qkspectra.behaviour
import qkspectra.channels
import qkspectra.matched.language
import qkspectra.matched.model
import qkspectra.matched.train
import qkspectra.operators
import qkspectra.pocket.corpus
import qkspectra.pocket.recipe
import qkspectra.pocket.train
import qkspectra.scores
import qkspectra.spectrum
import qkspectra.studies.dynamics
import qkspectra.studies.matched_measures
import qkspectra.toy.model
import qkspectra.toy.task
from qkspectra import compute
from qkspectra.errors import InputError
from qkspectra.matched import language
from qkspectra.matched.model import SCHEMES, Parameters, Recipe, flat, unflat
from qkspectra.matched.train import Run, State, train
from qkspectra.store import Address, Result, Store, origin, provenance, read_tables, replacing, ship_tables, unpacked
from qkspectra.studies import matched_analysis, matched_signature
from qkspectra.studies.matched_measures import (
    BEHAVIOUR,
    MODEL,
    SPECTRAL,
    heads_of,
    kernels_of,
    signatures_of_run,
)

SOURCES = qkspectra.store.source_hash(
    qkspectra.behaviour,
    qkspectra.channels,
    qkspectra.matched.language,
    qkspectra.matched.model,
    qkspectra.matched.train,
    qkspectra.operators,
    qkspectra.pocket.corpus,
    qkspectra.pocket.recipe,
    qkspectra.pocket.train,
    qkspectra.scores,
    qkspectra.spectrum,
    qkspectra.studies.dynamics,
    qkspectra.studies.matched_measures,
    qkspectra.toy.model,
    qkspectra.toy.task,
)
TABLES = ("heads", "kernels", "signatures", "outside")
WEIGHTS = "matched-weights.safetensors"

STEPS, BRANCH, EVERY = 1500, 1200, 50
FIRST_SEED, SEEDS = 100, 8
"""Seeds of the study, and how many the plan has; lower ones were used up by pilot runs."""
BANNED = (("rope", "phase"), ("rope", "symmetric"), ("absolute", "symmetric"))
"""Bans, each from the first step and from `BRANCH` on."""
TRANSPLANTS = (("rope", "alibi"), ("alibi", "rope"))
"""From which scheme to which."""


@dataclass(frozen=True)
class Training:
    """One run.

    Attributes:
        recipe: what it is.
        every: steps between examinations.
        keep: steps at which its state is kept, for runs that branch off there.
    """

    recipe: Recipe
    every: int = EVERY
    keep: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        """`main`, `banned`, `ban_after` or `transplant`."""
        recipe = self.recipe
        if recipe.before is None:
            return "main" if recipe.ban == "none" else "banned"
        return "ban_after" if recipe.before == recipe.name else "transplant"

    @property
    def label(self) -> str:
        recipe = self.recipe
        words = [recipe.before, "then"] if recipe.before else []
        return " ".join([*words, recipe.name, *([] if recipe.ban == "none" else [recipe.ban]), f"seed {recipe.seed}"])

    def address(self, what: str, step: int | None = None) -> Address:
        """Of the table `what`, or of the state at a step."""
        about: dict[str, Any] = {"recipe": self.recipe.model_dump(mode="json"), "every": self.every}
        if step is not None:
            about["step"] = step
        return Address(f"matched-{what}", about, SOURCES)

    def rest(self, store: Store) -> "Training | None":
        # Of what a run stores its heads come last.
        return None if store.get(self.address("heads")) else self

    def run(self, store: Store) -> None:
        """Train and examine, from the state of its parent where it has one, and store everything.

        Raises:
            InputError: see `corpus.read`.
        """
        recipe, start = self.recipe, time.process_time()
        tokens = language.training(recipe.vocab)
        repeats, text = language.repeats(recipe), language.held_out(recipe)
        state = None if recipe.before is None else self._parent(store)
        run = Run(recipe, tokens, state, recipe.branch)
        rows: list[pd.DataFrame] = []

        def seen(now: Run) -> None:
            rows.append(heads_of(recipe, now.parameters, repeats, text).assign(step=now.step))
            if now.step in self.keep:
                self._put(store, self.address("state", now.step), _as_table(now.state()), start)

        train(run, recipe.steps, self.every, seen)
        final = run.parameters
        self._put(store, self.address("weights"), pd.DataFrame({"value": flat(final).numpy()}), start)
        self._put(store, self.address("kernels"), kernels_of(recipe, final, repeats), start)
        if self.kind == "main":
            self._put(store, self.address("signatures"), signatures_of_run(recipe, final, repeats), start)
        self._put(store, self.address("heads"), pd.concat(rows, ignore_index=True), start)

    def _put(self, store: Store, address: Address, table: pd.DataFrame, start: float) -> None:
        store.put(address, table, seconds=time.process_time() - start, seeds=[self.recipe.seed])

    def _parent(self, store: Store) -> State:
        """The state to branch off: stored, or trained anew where another machine has it."""
        parent, step = Training(self.recipe.parent, self.every), self.recipe.branch
        found = store.get(parent.address("state", step))
        if found is not None:
            return _as_state(found.table)
        run = Run(parent.recipe, language.training(parent.recipe.vocab))
        train(run, step, step, lambda _: None)
        return run.state()

    def table(self, what: str, store: Store) -> pd.DataFrame:
        """A stored table, behind the columns `matched_analysis.MODEL`.

        Raises:
            KeyError: the run has not been made.
        """
        found = store.get(self.address(what))
        if found is None:
            raise KeyError(f"{self.label} has not been run")
        r = self.recipe
        labels = dict(zip(matched_analysis.MODEL, (self.kind, r.name, r.ban, r.before or r.name, r.seed), strict=True))
        table = found.table.copy()
        for name, value in reversed(labels.items()):
            table.insert(0, name, value)
        return table


def _as_table(state: State) -> pd.DataFrame:
    return pd.DataFrame(dict(zip(("parameters", "exp_avg", "exp_avg_sq"), state.numpy(), strict=True)))


def _as_state(table: pd.DataFrame) -> State:
    return torch.from_numpy(table.to_numpy(np.float32).T.copy())


def units(
    seeds: int,
    interventions: int,
    *,
    first_seed: int = FIRST_SEED,
    every: int = EVERY,
    branch: int = BRANCH,
    **sizes: Any,
) -> tuple[list[Training], list[Training]]:
    """The runs of the study that have no parent, and those that branch off one of them.

    Args:
        seeds: of the main runs.
        interventions: the first so many of these seeds are also run under bans and transplanted.
        sizes: fields of `Recipe` to set otherwise.

    Raises:
        InputError: no seeds, or more seeds of interventions than there are.
    """
    if seeds < 1 or not 0 <= interventions <= seeds:
        raise InputError(f"{interventions} seeds of interventions do not fit into {seeds} seeds: use 0 to {seeds}")
    sizes = {"steps": STEPS, **sizes}
    own = {"every": every, "keep": (branch,)}
    first, later = [], []
    for seed in range(first_seed, first_seed + seeds):
        first += [Training(Recipe(name=scheme, seed=seed, **sizes), **own) for scheme in SCHEMES]
        if seed >= first_seed + interventions:
            continue
        first += [Training(Recipe(name=scheme, ban=ban, seed=seed, **sizes), every) for scheme, ban in BANNED]
        later += [
            Training(Recipe(name=scheme, ban=ban, before=scheme, branch=branch, seed=seed, **sizes), every)
            for scheme, ban in BANNED
        ]
        later += [
            Training(Recipe(name=to, before=source, branch=branch, seed=seed, **sizes), every)
            for source, to in TRANSPLANTS
        ]
    return first, later


def run(
    store: Store,
    whole: tuple[list[Training], list[Training]],
    workers: int = 1,
    scheduler: str | None = None,
    progress: compute.Progress = lambda done, total, label: None,
) -> None:
    """Run what the store lacks, in processes or on a Dask cluster (`compute.workers`); parents before branches."""
    with compute.workers(workers, scheduler) as executor:
        for part in whole:
            compute.run(part, store, executor, progress)


@dataclass(frozen=True)
class Matched:
    """The tables, and how they came to be.

    Attributes:
        heads, kernels, signatures, outside: see the module.
        provenance: of the four, by name.
    """

    heads: pd.DataFrame
    kernels: pd.DataFrame
    signatures: pd.DataFrame
    outside: pd.DataFrame
    provenance: dict[str, dict[str, Any]]

    @property
    def hours(self) -> float:
        """Processor time of all runs."""
        return self.provenance["heads"]["seconds"] / 3600


def gather(store: Store, whole: tuple[list[Training], list[Training]]) -> dict[str, Result]:
    """The four tables.

    Raises:
        KeyError: a run is missing.
        InputError: the runs come from several states of the library.
    """
    every = [unit for part in whole for unit in part]
    main = [unit for unit in every if unit.kind == "main"]
    results = [store.get(unit.address("heads")) for unit in every]
    seeds = sorted({unit.recipe.seed for unit in every})
    made = {"outside": matched_signature.outside(store)}
    for name in ("heads", "kernels", "signatures"):
        table = pd.concat([unit.table(name, store) for unit in (main if name == "signatures" else every)])
        address = Address(f"matched-{name}", {"seeds": len(seeds), "first_seed": seeds[0]}, SOURCES)
        seconds = sum(result.provenance["seconds"] for result in results) if name == "heads" else 0.0
        about = provenance(address, seconds=seconds, seeds=seeds, device="cpu")
        made[name] = Result(_small(table.reset_index(drop=True)), {**about, **origin(results)})
    return made


def _small(table: pd.DataFrame) -> pd.DataFrame:
    """Counts in few bytes: the files are shipped."""
    small = {name: np.int16 for name in table.columns if table[name].dtype == np.int64}
    return table.astype(small)


def publish(store: Store, whole: tuple[list[Training], list[Training]], folder: Path) -> None:
    """Write tables, `matched-<name>.parquet` with their provenance, and the weights of the first seed."""
    ship_tables(gather(store, whole), folder, "matched")
    first = min(unit.recipe.seed for unit in whole[0])
    units = [unit for unit in whole[0] if unit.kind == "main" and unit.recipe.seed == first]
    tensors: dict[str, Tensor] = {"text": language.held_out(units[0].recipe).to(torch.int16)}
    about = {}
    for unit in units:
        found = store.get(unit.address("weights"))
        values = unflat(unit.recipe, torch.from_numpy(found.table["value"].to_numpy(np.float32).copy()))
        tensors |= {f"{unit.recipe.name}.{name}": part.half() for name, part in values.items()}
        about[unit.recipe.name] = unit.recipe.model_dump_json()
    with replacing(folder / WEIGHTS) as part:
        save_file(tensors, part, metadata=about)


def load(folder: Path) -> Matched:
    """The tables of `publish`.

    Raises:
        InputError: a table is missing or damaged.
    """
    return Matched(**unpacked(read_tables(folder, "matched", TABLES)))


def obtain(
    profile: str, folder: Path, store: Store, seeds: int, interventions: int, workers: int, scheduler: str | None = None
) -> Matched:
    """The tables that a profile reads: `paper` runs the study in this store, the others read the shipped ones."""
    if profile != "paper":
        return load(folder)
    whole = units(seeds, interventions)
    run(store, whole, 1 if scheduler else workers, scheduler)
    return Matched(**unpacked(gather(store, whole)))


def shipped_weights(folder: Path) -> tuple[dict[str, tuple[Recipe, Parameters]], Tensor]:
    """Recipe and parameters of each scheme's shipped model, and the held-out text it was examined on.

    Raises:
        InputError: no such file, or a damaged one.
    """
    path = folder / WEIGHTS
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise InputError(f"no file {path}: `qkspectra matched {folder}` writes it") from None
    except Exception as error:  # safetensors raises its own, from a module without a public name
        raise InputError(f"{path} cannot be read ({error}): get it again") from None
    models = {}
    for scheme, text in about.items():
        own = {name.removeprefix(f"{scheme}."): t.float() for name, t in tensors.items() if name.startswith(scheme)}
        recipe = Recipe.model_validate_json(text)
        models[scheme] = (recipe, {name: own[name] for name in qkspectra.matched.model.shapes(recipe)})
    return models, tensors["text"].long()


def agreement(shipped: Matched, folder: Path, schemes: Sequence[str]) -> pd.DataFrame:
    """Measure shipped weights again and compare with the tables: one row a scheme, the largest difference of a column.

    Half precision moves weights by a few parts in ten thousand, and eigenvalues by more (`spectrum`).
    """
    models, text = shipped_weights(folder)
    rows = []
    for scheme in schemes:
        recipe, parameters = models[scheme]
        mine = heads_of(recipe, parameters, language.repeats(recipe), text).set_index(["layer", "head"])
        theirs = shipped.heads
        theirs = theirs[(theirs["kind"] == "main") & (theirs["scheme"] == scheme) & (theirs["seed"] == recipe.seed)]
        theirs = theirs[theirs["step"] == theirs["step"].max()].set_index(["layer", "head"])
        columns = [*MODEL, *BEHAVIOUR, *SPECTRAL]
        rows.append({"scheme": scheme} | (mine[columns] - theirs[columns]).abs().max().to_dict())
    return pd.DataFrame(rows)

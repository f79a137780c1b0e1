"""A training run head by head: spectrum and behaviour of every head at every checkpoint.

One model at one revision is a unit of work. Which revisions there are, and which of them are points of the run, the
identity audit says (`weights.revisions`); the others are named and never measured, so nothing can average over them.
Every measure that is compared with the null is a ratio in which the scale of the weights cancels: the null needs no
variance, whatever a run was initialised with.
"""

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
from jaxtyping import Float64
from torch import Tensor

from qkspectra import compute
from qkspectra.behaviour import behaviour
from qkspectra.device import chosen, described
from qkspectra.errors import InputError
from qkspectra.spectrum import Spectrum
from qkspectra.store import (
    Address,
    Result,
    Store,
    origin,
    provenance,
    read_tables,
    ship_tables,
    source_hash,
    unpacked,
)
from qkspectra.studies import static
from qkspectra.studies.audit import BATCH, COLUMNS, LENGTH, NULL_SAMPLES, Say, audit, repeats
from qkspectra.weights import open_model, revisions, sources
from qkspectra.weights.model import Weights
from qkspectra.weights.schedules import Revision

BEHAVIOUR = ("previous_token", "induction", "duplicate_token", "loss_first", "loss_second")
TABLES = ("heads", "revisions", "portraits")
AGAIN = ("eigen_rotation", "antisymmetric_energy", "henrici", "previous_token", "induction")
"""What `agreement` compares."""
_AFTER_COMMIT, _AFTER_DUPLICATE = COLUMNS.index("commit") + 1, COLUMNS.index("duplicate_token") + 1
HEAD_COLUMNS = (
    *COLUMNS[:_AFTER_COMMIT],
    *("step", "tokens"),
    *COLUMNS[_AFTER_COMMIT:_AFTER_DUPLICATE],
    *("loss_first", "loss_second"),
    *COLUMNS[_AFTER_DUPLICATE:],
    "leading_rotation",
)
"""Columns of a trajectory: those of an audit, when it was, what the model lost on each copy, and `leading_rotation`."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured at a checkpoint; see `studies.audit.audit`."""

    seed: int = 0
    batch: int = BATCH
    length: int = LENGTH
    samples: int = NULL_SAMPLES


@dataclass(frozen=True)
class Checkpoint:
    """One model at one revision: a unit of work.

    Attributes:
        source: Hub id, or folder of a trajectory.
        revision: as listed.
        content: SHA-256 of its weights, from the identity audit.
        sizes: what to measure.
        static_only: leave behaviour out; of a Hub id, fetch nothing but the query and key tensors.
    """

    source: str
    revision: Revision
    content: str
    sizes: Sizes = Sizes()
    static_only: bool = False

    @property
    def model(self) -> str:
        """Its name in tables: the Hub id, or the name of the folder."""
        return model_name(self.source)

    @property
    def label(self) -> str:
        return f"{self.model} {self.revision.name}"

    @property
    def address(self) -> Address:
        about = {"content": self.content, "revision": asdict(self.revision), "static_only": self.static_only}
        return _address("dynamics", {"model": self.model, **about, **asdict(self.sizes)})

    def rest(self, store: Store) -> "Checkpoint | None":
        return self if store.get(self.address) is None else None

    def run(self, store: Store) -> None:
        where = described(chosen("cpu" if self.static_only else None))
        store.cached(self.address, self._measured, seeds=[self.sizes.seed], device=where)

    def open(self, *, ranges: bool) -> Weights:
        return open_model(self.source, self.revision, ranges=ranges)

    def _measured(self) -> pd.DataFrame:
        sizes = self.sizes
        weights = self.open(ranges=self.static_only)
        # The layers are read once, for bytes of the Hub are fetched each time.
        more = {"leading_rotation": lambda spectrum: leading_rotation(spectrum, weights.layout.d_model)}
        table = audit(weights, seed=sizes.seed, static_only=True, samples=sizes.samples, also=more)
        table = table.assign(model=self.model, step=self.revision.step, tokens=self.revision.tokens)
        table[["loss_first", "loss_second"]] = float("nan")
        if not self.static_only:
            model = weights.load()
            tokens = repeats(weights, seed=sizes.seed, batch=sizes.batch, length=sizes.length)
            seen = behaviour(model, weights.attention_modules(model), tokens)
            for name in BEHAVIOUR:
                value = getattr(seen, name)
                table[name] = value if isinstance(value, float) else value.flatten().numpy()
        return table[list(HEAD_COLUMNS)].astype({"tokens": "Int64"})


@dataclass(frozen=True)
class Trajectories:
    """The runs of several models.

    Attributes:
        heads: a row per model, checkpoint and head, `HEAD_COLUMNS`, checkpoints in the order of their steps.
        revisions: a row per model and revision with its verdict (`weights.revisions.table`), also those not measured.
        portraits: `model`, `step`, `layer`, `head`, `role` and the eigenvalues `real`, `imag` (see
            `static.scaled_eigenvalues`) of the heads that end as the strongest of their model in each role.
        provenance: of the shipped three, by name.
    """

    heads: pd.DataFrame
    revisions: pd.DataFrame
    portraits: pd.DataFrame
    provenance: Mapping[str, dict[str, Any]]

    @property
    def sizes(self) -> Sizes:
        """What was measured at each checkpoint of the shipped runs."""
        about = self.provenance["heads"]["parameters"]
        return Sizes(**{field.name: about[field.name] for field in fields(Sizes)})


def checkpoints(
    source: str,
    schedule: str | None = None,
    sizes: Sizes = Sizes(),
    *,
    download: bool = False,
    say: Say = lambda line: None,
) -> tuple[list[Checkpoint], pd.DataFrame]:
    """The points of a run as units of work, in the order of their steps, and every revision with its verdict.

    Args:
        source: Hub id, or folder of a trajectory.
        schedule: see `revisions_of`.
        sizes: what to measure.
        download: fetch the checkpoints of a Hub id whole and run them; those of a folder are run anyway.

    Raises:
        InputError: see `weights.revisions.audited`; or fewer than two revisions are points of one run.
    """
    points = revisions.audited(source, schedule, say)
    usable = [point for point in points if point.usable]
    if len(usable) < 2:
        verdicts = "; ".join(f"{point.revision.name}: {point.verdict}" for point in points[:3])
        raise InputError(f"{source} has {len(usable)} usable revisions, and a run needs two ({verdicts})")
    static_only = sources.local_folder(source) is None and not download
    units = [Checkpoint(source, point.revision, point.content, sizes, static_only) for point in usable]
    return units, revisions.table(points).assign(model=model_name(source))


def measured(
    names: Sequence[str],
    schedule: str | None,
    sizes: Sizes,
    store: Store,
    executor: Executor | None = None,
    *,
    download: bool = False,
    portraits: int | None = None,
    say: Say = lambda line: None,
    progress: compute.Progress = lambda done, total, label: None,
) -> dict[str, Result]:
    """The three tables of several runs, what the store lacks being measured first.

    Args:
        names: Hub ids or folders, each another model.
        schedule, sizes, download, say: see `checkpoints`.
        executor: where to measure (`compute.workers`).
        portraits: how many checkpoints of a run have their eigenvalues kept, first and last among them; `None` for all.
        progress: see `compute.run`.

    Raises:
        InputError: see `checkpoints` and `compute.workers`; two models of one name.
    """
    models = [model_name(name) for name in names]
    if len(set(models)) < len(models):
        raise InputError(f"two of the models have one name ({', '.join(models)}): rename a folder")
    runs, verdicts = zip(
        *(checkpoints(name, schedule, sizes, download=download, say=say) for name in names), strict=True
    )
    units = [unit for run in runs for unit in run]
    compute.run(units, store, executor, progress)
    found = [result for unit in units if (result := store.get(unit.address)) is not None]
    heads = pd.concat([result.table for result in found], ignore_index=True)
    drawn = []
    for run in runs:
        say(f"eigenvalues of {run[0].model}")
        shown = run if portraits is None else [run[i] for i in _spread(len(run), portraits)]
        drawn.append(_portraits(shown, leading(heads[heads["model"] == run[0].model]), store))
    tables = {
        "heads": heads,
        "revisions": pd.concat(verdicts, ignore_index=True),
        "portraits": pd.concat(drawn, ignore_index=True),
    }
    about = {"models": models, "schedule": schedule, "download": download, **asdict(sizes)}
    seconds = {"heads": sum(result.provenance["seconds"] for result in found)}
    made = {}
    for name, table in tables.items():
        whole = provenance(
            _address(f"dynamics-{name}", about), seconds=seconds.get(name, 0.0), seeds=[sizes.seed], device="cpu"
        )
        made[name] = Result(table, {**whole, **origin(found)})
    return made


def assembled(results: Mapping[str, Result]) -> Trajectories:
    """The trajectories of `measured`."""
    return Trajectories(**unpacked(results))


def publish(results: Mapping[str, Result], folder: Path) -> None:
    """Write the tables as `dynamics-<name>.parquet` with their provenance."""
    ship_tables(results, folder, "dynamics")


def load(folder: Path) -> Trajectories:
    """The tables of `publish`.

    Raises:
        InputError: a table is missing or damaged.
    """
    return assembled(read_tables(folder, "dynamics", TABLES))


def leading_rotation(spectrum: Spectrum, d_model: int) -> Float64[Tensor, " heads"]:
    """`max |Im lambda| sqrt(d_model) / |M|`: how far out the fastest rotation of one plane lies.

    In the unit in which the eigenvalues of a Gaussian head fill the unit disc (`static.scaled_eigenvalues`). The
    eigen-rotation is a mean over the spectrum, which the rotation of a single plane hardly moves.
    """
    energy = spectrum.eigenvalues.abs().square().sum(-1) / (1 - spectrum.henrici.square())  # |M|^2, by its definition
    return spectrum.eigenvalues.imag.amax(-1) * (d_model / energy).sqrt()


def refused(table: pd.DataFrame) -> list[str]:
    """A line for every revision that is not a point of its run: model, revision and verdict."""
    bad = table[table["verdict"] != revisions.OK]
    return [f"{row.model} {row.revision} is left out: {row.verdict}" for row in bad.itertuples()]


def obtain(
    names: Sequence[str],
    schedule: str | None,
    folder: Path,
    store: Store,
    executor: Executor | None = None,
    *,
    download: bool = False,
    portraits: int | None = None,
) -> Trajectories:
    """The shipped runs, and beside them those of Hub ids, measured as the shipped ones were.

    Args:
        names: Hub ids, none for the shipped runs alone.
        folder: where the shipped tables are.
        schedule, store, executor, download, portraits: see `measured`.

    Raises:
        InputError: see `load` and `measured`.
    """
    shipped = load(folder)
    if not names:
        return shipped
    made = measured(names, schedule, shipped.sizes, store, executor, download=download, portraits=portraits)
    return replace(
        shipped, **{name: pd.concat([getattr(shipped, name), made[name].table], ignore_index=True) for name in TABLES}
    )


def agreement(runs: Trajectories, names: Sequence[str], store: Store) -> pd.DataFrame:
    """Measure shipped models again and compare with the last checkpoint of their runs.

    Returns:
        One row a model: `model`, `heads`, and the largest difference in each of the measures and scores `AGAIN`.
    """
    sizes = asdict(runs.sizes)
    rows = []
    for name in names:
        run = runs.heads[runs.heads["model"] == name]
        then = run[run["step"] == run["step"].max()].set_index(["layer", "head"])
        now = static.stored(store, audit, open_model(name), **sizes).set_index(["layer", "head"])
        differences = (now[list(AGAIN)] - then[list(AGAIN)]).abs().max()
        rows.append({"model": name, "heads": len(now), **differences})
    return pd.DataFrame(rows)


def leading(heads: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """The head of a run that ends as the strongest in each role, `(layer, head)`; none where behaviour is missing."""
    last = heads[heads["step"] == heads["step"].max()]
    roles = [role for role in ("previous_token", "induction") if last[role].notna().any()]
    return {role: static.strongest(last, role, 1)[0] for role in roles}


def model_name(source: str) -> str:
    """A folder's own name, or a Hub id as it is."""
    folder = sources.local_folder(source)
    return source if folder is None else folder.resolve().name


def _portraits(run: Sequence[Checkpoint], chosen: Mapping[str, tuple[int, int]], store: Store) -> pd.DataFrame:
    parts = []
    for point in run:

        def eigenvalues(point: Checkpoint = point) -> pd.DataFrame:
            weights = point.open(ranges=True)
            tables = []
            for role, (layer, head) in chosen.items():
                values = static.eigenvalues(weights, (layer, head))
                about = {"model": point.model, "step": point.revision.step, "role": role, "layer": layer, "head": head}
                tables.append(pd.DataFrame({**about, "real": values.real, "imag": values.imag}))
            return pd.concat(tables, ignore_index=True)

        about = {"model": point.model, "content": point.content, "revision": asdict(point.revision), "heads": chosen}
        if chosen:
            parts.append(store.cached(_address("eigenvalues", about), eigenvalues).table)
    columns = ["model", "step", "role", "layer", "head", "real", "imag"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def _spread(count: int, wanted: int) -> list[int]:
    """So many of `range(count)`, evenly, with both ends."""
    return sorted({round(i * (count - 1) / max(1, wanted - 1)) for i in range(min(wanted, count))})


def _address(study: str, parameters: dict[str, Any]) -> Address:
    return Address(study, parameters, source_hash(*static.SOURCES, sys.modules[__name__]))

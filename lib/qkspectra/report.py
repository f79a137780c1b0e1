"""The report of one model: one page that says what its heads do and what their operators look like.

Everything on the page comes from the same functions as the chapters of the book: `studies.audit`, `studies.static` and
the figures of `figures_audit`.
"""

import base64
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from qkspectra import explorer, figures, figures_audit, files, store
from qkspectra.errors import InputError
from qkspectra.studies import static
from qkspectra.studies.audit import BATCH, LENGTH, NULL_SAMPLES, TOP, Say, ablations, audit, offsets, repeats
from qkspectra.weights.layout import SCHEMES
from qkspectra.weights.model import Weights, loaded_once

SHOWN = 8
"""Heads listed in each table."""
CONTROLS = 8
"""Random heads whose phase is zeroed for comparison."""
EXCLUDED = 16
"""Controls are drawn from the heads outside the strongest of either role, so many of each or a quarter of all."""

LISTED = {
    "previous_token": ("Previous token", ".3f"),
    "induction": ("Induction", ".3f"),
    "duplicate_token": ("Duplicate", ".3f"),
    "eigen_rotation": ("Eigen-rotation", ".3f"),
    "z_eigen_rotation": ("z", ".1f"),
    "antisymmetric_energy": ("Antisym. energy", ".3f"),
    "z_antisymmetric_energy": ("z", ".1f"),
    "content_sign": ("Content sign", ".2f"),
    "henrici": ("Henrici", ".3f"),
    "phase_energy": ("Phase energy", ".3f"),
}
POPULATION = {
    "eigen_rotation": "eigen-rotation",
    "antisymmetric_energy": "antisymmetric energy",
    "content_sign": "content sign",
    "henrici": "departure from normality",
}
_VERSIONS = ("qkspectra", "numpy", "scipy", "torch", "transformers")


@dataclass(frozen=True)
class Report:
    """A page and the table behind it.

    Attributes:
        html: the page.
        heads: the audit, every head, all columns.
    """

    html: str
    heads: pd.DataFrame


@dataclass(frozen=True)
class _Picture:
    """A figure of the page: what it shows in words, and below it."""

    source: str
    alt: str
    caption: str


def check_path(path: Path) -> None:
    """Refuses a file that `write` could not write, before anything is computed for it.

    Raises:
        InputError: another suffix than `.html`, or what `files.check_path` refuses.
    """
    if path.suffix != ".html":
        raise InputError(f"{path}: a report is a .html file: name it so")
    if path.is_dir():
        raise InputError(f"{path}: is a folder: name a file")
    files.check_path(path.with_suffix(".csv"))


def write(made: Report, path: Path) -> None:
    """Writes the page to `path` and its table to the `.csv` of the same name, each whole or not at all."""
    check_path(path)
    files.write(made.heads, path.with_suffix(".csv"))
    with store.replacing(path) as temporary:
        temporary.write_text(made.html, encoding="utf-8")


def report(
    weights: Weights,
    *,
    seed: int = 0,
    static_only: bool = False,
    batch: int = BATCH,
    length: int = LENGTH,
    samples: int = NULL_SAMPLES,
    say: Say = lambda _: None,
) -> Report:
    """Audits a model and writes up what was found.

    Args:
        weights: from `open_model`.
        seed, static_only, batch, length, samples, say: see `studies.audit.audit`. A model that is not run has no
            behaviour scores, no attention by offset and no ablation.

    Raises:
        InputError: see `studies.audit.audit`.
    """
    sequences = {"seed": seed, "batch": batch, "length": length}
    if not static_only:
        weights = loaded_once(weights)  # each part of a report runs the model
    heads = audit(weights, static_only=static_only, samples=samples, say=say, **sequences)
    everyone = static.all_heads(heads)
    back = None if static_only else offsets(weights, everyone, say=say, **sequences)
    parts: dict[str, Any] = {"figures": {}}
    if static_only:
        roles = {
            "most rotational": static.strongest(heads, "z_eigen_rotation", SHOWN),
            "least rotational": static.strongest(heads.assign(less=-heads["z_eigen_rotation"]), "less", SHOWN),
        }
    else:
        roles = {
            "previous": static.strongest(heads, "previous_token", SHOWN),
            "induction": static.strongest(heads, "induction", SHOWN),
        }
        carrier = static.strongest(heads[heads["phase_energy"].notna()], "previous_token", 1)
        if carrier:
            parts |= _phase(weights, heads, carrier[0], back, sequences, say)
    say("drawing")
    null = static.null_of(weights, samples, seed)
    title = {"previous": "Strongest previous-token heads", "induction": "Strongest induction heads"}
    known = {name: column for name, column in LISTED.items() if heads[name].notna().any()}
    page = {
        "model": weights.source.name,
        "facts": _facts(weights, heads, null),
        "population": static.population(weights, heads, null, list(POPULATION)).to_dict("records"),
        "labels": POPULATION,
        "columns": known,
        "roles": {
            title.get(role, f"The {role} heads"): static.rows(heads, chosen).to_dict("records")
            for role, chosen in roles.items()
        },
        "explorer": explorer.markup([explorer.state(weights, heads, back, samples=samples, seed=seed)]),
        "sequences": None if static_only else tuple(repeats(weights, **sequences).shape),
        "convention": ", ".join(heads["convention"].unique()),
        "samples": samples,
        "provenance": _provenance(weights, seed),
        **parts,
    }
    page["figures"] |= _figures(weights, heads, null, roles, back, seed)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("qkspectra", "pages"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = _number
    return Report(environment.get_template("report.html").render(page), heads)


def _facts(weights: Weights, heads: pd.DataFrame, null: Any) -> dict[str, Any]:
    layout = weights.layout
    return {
        "Architecture": layout.family,
        "Positions": SCHEMES[layout.scheme],
        "Layers": layout.n_layers,
        "Heads": f"{len(heads)}, {layout.n_heads} a layer on {layout.n_kv_heads} of keys",
        "Width": f"{layout.d_model}, {layout.d_head} a head",
    }


def _figures(
    weights: Weights,
    heads: pd.DataFrame,
    null: Any,
    roles: Mapping[str, static.Heads],
    back: pd.DataFrame | None,
    seed: int,
) -> dict[str, _Picture]:
    """The figures of every report."""
    name = weights.source.name
    drawn = {role: chosen[:2] for role, chosen in roles.items()}
    listed = [(role, head) for role, chosen in drawn.items() for head in chosen]
    cloud = static.null_eigenvalues(weights, 60, seed)
    colours = dict(zip(roles, (figures.BLUE, figures.ORANGE), strict=True))
    which = ", ".join(static.label(head) for _, head in listed)
    if back is None:
        portrait = figures.portraits(
            [figures.Portrait(static.label(h), static.eigenvalues(weights, h), colours[r]) for r, h in listed], cloud
        )
        below = ""
    else:
        portrait = figures_audit.portraits(
            [
                figures_audit.Portrait(
                    title=static.label(head),
                    eigenvalues=static.eigenvalues(weights, head),
                    null=cloud,
                    offsets=static.rows(back, [head]),
                    colour=colours[role],
                )
                for role, head in listed
            ]
        )
        below = " Below: mean attention of second-copy rows by how many positions back it goes."
    marked = {name: {role: chosen for role, chosen in roles.items() if role in figures_audit.ROLES}}
    population = figures_audit.population({name: heads}, {name: null}, marked, POPULATION)
    made = {
        "portraits": _Picture(
            _uri(portrait),
            f"Eigenvalues in the complex plane of the heads {which}, each over the grey cloud of random heads.{below}",
            f"Eigenvalues of {which}, in the unit in which those of random heads of their shape (grey) fill the unit "
            f"disc.{below}",
        ),
        "population": _Picture(
            _uri(population),
            "Histograms over all heads of " + ", ".join(POPULATION.values()) + ", over the band of the null.",
            "All heads (black) and the median and central 95% of the null (grey)"
            + ("; ticks mark the strongest heads of each role." if marked[name] else "."),
        ),
    }
    if back is not None:
        made["association"] = _Picture(
            _uri(figures_audit.association({name: heads}, {name: null}, marked)),
            "Scatter of eigen-rotation against previous-token score, one point a head, with the band of the null.",
            "Every head: its previous-token score and its eigen-rotation, with the central 95% of the null and the "
            "median of the model.",
        )
    return made


def _phase(
    weights: Weights,
    heads: pd.DataFrame,
    carrier: tuple[int, int],
    back: pd.DataFrame,
    sequences: Mapping[str, int],
    say: Say,
) -> dict[str, Any]:
    """What the loss of the phase of the strongest previous-token head costs, and that of random heads."""
    top = min(EXCLUDED, len(heads) // 4)
    excluded = [head for score in ("previous_token", "induction") for head in static.strongest(heads, score, top)]
    index = pd.MultiIndex.from_frame(heads[["layer", "head"]])
    rest = heads[~index.isin(excluded) & heads["phase_energy"].notna()]
    random = static.controls(rest, min(CONTROLS, len(rest)), sequences["seed"], [])
    effects = ablations(weights, [carrier, *random], ["phase"], say=say, **sequences)
    zeroed = static.grouped(previous=effects.head(1), random=effects.tail(len(random)))
    groups = {
        "previous": ("strongest previous-token head", figures.BLUE),
        "random": ("random heads", figures.GREY),
    }
    matcher = static.strongest(heads, "induction", 1)[0]
    shown = [carrier] if matcher == carrier else [carrier, matcher]
    left = offsets(weights, shown, (*carrier, "phase"), say=say, **sequences)
    titles = {carrier: f"{static.label(carrier)}, whose phase is zeroed"}
    titles |= {head: f"{static.label(head)}, left alone" for head in shown[1:]}
    return {
        "phase": {
            "head": static.label(carrier),
            "top": min(TOP, len(heads)),
            "hit": zeroed.iloc[0].to_dict(),
            "controls": len(random),
            "change": {
                name: zeroed[f"{name}_change"].iloc[1:].abs().max() if random else None
                for name in ("induction", "loss_second", "loss_first")
            },
        },
        "figures": {
            "phase": _Picture(
                _uri(figures_audit.ablations(zeroed, groups)),
                f"Before and after the phase of one head is zeroed, for {static.label(carrier)} and {len(random)} "
                "random heads: its own score, the induction of the strongest heads, the loss on the second copy.",
                "The phase of one head zeroed at a time: open circles before, filled ones after.",
            ),
            "severed": _Picture(
                _uri(figures_audit.severed(static.rows(back, shown), left, titles)),
                f"Attention by offset before and after the phase of {static.label(carrier)} is zeroed.",
                "Mean attention of second-copy rows by offset, before and after.",
            ),
        },
    }


def _provenance(weights: Weights, seed: int) -> dict[str, Any]:
    source = weights.source
    return {
        "Model": source.name,
        "Revision": source.revision,
        "Commit of the model": source.commit,
        "SHA-256 of its files": source.content_hash,
        "Seed": seed,
        "Commit of the library": store.commit(),
        "Hash of the library": store.library_hash(),
        "Versions": ", ".join(
            [f"Python {platform.python_version()}", *(f"{package} {version(package)}" for package in _VERSIONS)]
        ),
    }


def _uri(figure: Any) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(figures.svg(figure)).decode()


def _number(value: Any, form: str) -> str:
    """As the tables of the book print it: a true minus sign, an en dash for what is missing."""
    return "–" if pd.isna(value) else format(value, form).replace("-", "−")

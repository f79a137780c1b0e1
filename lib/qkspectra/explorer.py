"""The head explorer: every head of every model given, one at a time, in one piece of HTML that needs nothing else.

Data go into the piece as JSON. Long series are packed, so that the page of a few hundred heads stays small: 16-bit
integers in base64, little endian, times a scale; the most negative integer stands for a missing value.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Complex128, Float64
from torch import Tensor

from qkspectra import figures, figures_audit
from qkspectra.null import null_operator, null_samples
from qkspectra.operators import QKOperator, operator_of
from qkspectra.spectrum import Spectrum, frequency_energies
from qkspectra.studies import audit as study
from qkspectra.studies import static
from qkspectra.studies.audit import Say
from qkspectra.weights.layout import Rotary
from qkspectra.weights.model import Weights, open_model
from qkspectra.weights.revisions import revisions_of

MEASURES = {
    "previous_token": "previous token",
    "induction": "induction",
    "duplicate_token": "duplicate token",
    "eigen_rotation": "eigen-rotation",
    "z_eigen_rotation": "eigen-rotation, z",
    "antisymmetric_energy": "antisymmetric energy",
    "z_antisymmetric_energy": "antisymmetric energy, z",
    "content_sign": "content sign",
    "henrici": "departure from normality",
    "z_henrici": "departure from normality, z",
    "real_eigenvalues": "real eigenvalues",
    "spectral_radius": "spectral radius",
    "overlap_median": "median overlap",
    "phase_energy": "phase energy",
    "phase_symmetric_share": "symmetric share of the phase",
    "bias_norm": "bias terms",
}
"""Columns of an audit that the explorer shows, and their names."""

COMPARED = ("eigen_rotation", "antisymmetric_energy", "content_sign", "henrici", "real_eigenvalues", "overlap_median")
PHASE = ("phase_energy", "phase_symmetric_share")
"""Measures that the null has too: of every operator, and of rotary ones alone."""

COLOURS = {
    "previous token": figures.BLUE,
    "previous token, second": figures.BLUE,
    "induction": figures.ORANGE,
    "duplicate token": figures.GREEN,
}

CLOUD = 24
"""Heads of the null whose eigenvalues are drawn."""


@dataclass(frozen=True)
class State:
    """One model at one point of its training.

    Attributes:
        model: as the reader chooses it; states of one model have equal sizes and follow each other in order of `step`.
        step: training step, `None` for a model of which there is one state.
        scheme: position scheme.
        audit: from `studies.audit.audit`, all heads in order of layer and head.
        offsets: from `studies.audit.offsets`, of all heads; `None` where the model was not run.
        eigenvalues: in the unit of `studies.static.scaled_eigenvalues`.
        even, odd: shares of the rotated rows' energy in `Re M_t` and `Im M_t` of each frequency, NaN in layers without
            rotary positions; `None` where no layer has them.
        theta: radians per position of each frequency.
        null: measures of the null of this shape.
        cloud: eigenvalues of `CLOUD` heads of it.
    """

    model: str
    step: int | None
    scheme: str
    audit: pd.DataFrame
    offsets: pd.DataFrame | None
    eigenvalues: Complex128[Tensor, "heads d_head"]
    even: Float64[Tensor, "heads freq"] | None
    odd: Float64[Tensor, "heads freq"] | None
    theta: Float64[Tensor, "heads freq"] | None
    null: Spectrum
    cloud: Complex128[Tensor, " points"]


def state(
    weights: Weights,
    audit: pd.DataFrame,
    offsets: pd.DataFrame | None,
    *,
    samples: int,
    seed: int,
    model: str | None = None,
    step: int | None = None,
) -> State:
    """What the explorer shows of a model that has been audited.

    Args:
        audit, offsets, model, step: see `State`; `model` is the name of the weights unless given.
        samples, seed: of the null.
    """
    layout = weights.layout
    eigenvalues, energies = [], []
    for index in range(layout.n_layers):
        op = operator_of(weights.layer(index))
        eigenvalues.append(static.scaled_eigenvalues(op, layout.d_model))
        energies.append(None if op.rotary is None else (*frequencies(op), op.rotary.theta.expand(len(op.wq), -1)))
    even, odd, theta = (None, None, None)
    if rotary := [each for each in energies if each is not None]:
        nothing = torch.full_like(rotary[0][0], torch.nan)
        filled = [each or (nothing, nothing, nothing) for each in energies]
        even, odd, theta = (torch.cat(parts) for parts in zip(*filled, strict=True))
    return State(
        model=model or weights.source.name,
        step=step,
        scheme=layout.scheme,
        audit=audit,
        offsets=offsets,
        eigenvalues=torch.cat(eigenvalues),
        even=even,
        odd=odd,
        theta=theta,
        null=static.null_of(weights, samples, seed),
        cloud=static.null_eigenvalues(weights, CLOUD, seed),
    )


def run(name: str, *, seed: int, batch: int, length: int, samples: int, say: Say = lambda _: None) -> pd.DataFrame:
    """The states of a training run, measured one after another at some of its steps (`watched`).

    Args:
        name: Hub id with a branch a step, or folder with a subfolder a step; see `weights.revisions.revisions_of`.
        seed, batch, length, samples: see `studies.audit.audit`.

    Returns:
        One row per step and head: `model`, `step`, the columns of an audit, and as lists `attention` by offset, the
        `real` and `imag` parts of the eigenvalues, and `even`, `odd`, `theta` of each frequency (empty without any).
    """
    parts = []
    for revision in revisions_of(name):
        if not watched(revision.step):
            continue
        say(f"{name} at step {revision.step}")
        weights = open_model(name, revision)
        sequences = {"seed": seed, "batch": batch, "length": length}
        audit = study.audit(weights, samples=samples, **sequences)
        heads = static.all_heads(audit)
        back = study.offsets(weights, heads, **sequences)
        made = state(weights, audit, back, samples=samples, seed=seed)
        lists = {"real": made.eigenvalues.real, "imag": made.eigenvalues.imag}
        lists |= {"even": made.even, "odd": made.odd, "theta": made.theta}
        rows = audit.assign(model=Path(name).name, step=revision.step)
        rows["attention"] = [static.rows(back, [head])["attention"].to_numpy(np.float32) for head in heads]
        for column, values in lists.items():
            rows[column] = [[]] * len(rows) if values is None else list(values.numpy().astype(np.float32))
        parts.append(rows)
    return pd.concat(parts, ignore_index=True)


def watched(step: int) -> bool:
    """Whether `run` looks at a step: the start, powers of two from 16 to 512, then every 500."""
    return step == 0 or (16 <= step <= 512 and step & (step - 1) == 0) or (step > 512 and step % 500 == 0)


def states(recorded: pd.DataFrame, *, samples: int, seed: int) -> list[State]:
    """The states of one model in a table that `run` made.

    Args:
        recorded: of that model alone; the shape of its heads decides the null.
        samples, seed: of the null.
    """
    first = recorded.iloc[0]
    shape = int(first["d_head"]), int(first["d_model"])
    sharing = recorded[(recorded["step"] == first["step"]) & (recorded["layer"] == 0)]
    group = int((sharing["kv_head"] == 0).sum())
    rotary = None
    if not pd.isna(first["d_rot"]):  # the null knows the number of rotated pairs, and nothing else of them
        pairs = torch.arange(int(first["d_rot"])).view(-1, 2)
        rotary = Rotary(pairs, torch.ones(len(pairs), dtype=torch.float64))
    null = null_samples(*shape, -(-samples // group) * group, seed, rotary, group)
    cloud = static.scaled_eigenvalues(null_operator(*shape, CLOUD, seed), shape[1]).flatten()
    made = []
    for step, rows in recorded.groupby("step"):

        def matrix(column: str, rows: pd.DataFrame = rows) -> Float64[Tensor, "heads columns"] | None:
            values = np.stack(rows[column].to_list()).astype(np.float64)
            return torch.from_numpy(values) if values.size else None

        attention = rows[["layer", "head", "attention"]].explode("attention").astype({"attention": float})
        offset = attention.groupby(["layer", "head"]).cumcount()
        made.append(
            State(
                model=str(rows["model"].iloc[0]),
                step=int(step),
                scheme=str(rows["scheme"].iloc[0]),
                audit=rows.reset_index(drop=True),
                offsets=attention.assign(offset=offset).reset_index(drop=True),
                eigenvalues=torch.complex(matrix("real"), matrix("imag")),
                even=matrix("even"),
                odd=matrix("odd"),
                theta=matrix("theta"),
                null=null,
                cloud=cloud,
            )
        )
    return made


def frequencies(op: QKOperator) -> tuple[Float64[Tensor, "heads freq"], Float64[Tensor, "heads freq"]]:
    """`|Re M_t|^2` and `|Im M_t|^2` of every frequency, over their sum: `phase_energy` is the sum of the second."""
    assert op.rotary is not None
    q, k = (rows[:, op.rotary.pairs] for rows in (op.wq, op.wk))
    even, odd = frequency_energies(q @ q.mT, k @ k.mT)
    total = (even + odd).sum(-1, keepdim=True)
    return even / total, odd / total


def markup(states: Sequence[State]) -> str:
    """The explorer as HTML with its style, script and data; several can stand on one page.

    Args:
        states: at least one; models appear in this order.
    """
    read = files("qkspectra").joinpath("pages")
    skeleton, style, script = (read.joinpath(f"explorer.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    data = json.dumps(payload(states), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return skeleton.replace("@style@", style).replace("@script@", script).replace("@data@", data)


def payload(states: Sequence[State]) -> dict[str, Any]:
    """The data of the explorer, as its script reads them."""
    models: dict[str, list[State]] = {}
    for each in states:
        models.setdefault(each.model, []).append(each)
    return {"measures": list(MEASURES.items()), "models": [_model(group) for group in models.values()]}


def _model(group: Sequence[State]) -> dict[str, Any]:
    first = group[0]
    compared = COMPARED + (PHASE if first.even is not None else ())
    return {
        "name": first.model,
        "scheme": first.scheme,
        "layers": int(first.audit["layer"].max()) + 1,
        "heads": int(first.audit["head"].max()) + 1,
        "cloud": _points(first.cloud),
        "null": {name: _band(getattr(first.null, name)) for name in compared},
        "theta": None if first.theta is None else _packed(first.theta),
        "states": [_state(each) for each in group],
    }


def _state(each: State) -> dict[str, Any]:
    rows = each.audit[list(MEASURES)].itertuples(index=False, name=None)
    back = None
    if each.offsets is not None:
        back = each.offsets.sort_values(["layer", "head", "offset"])["attention"].to_numpy()
        back = _packed(back.reshape(len(each.audit), -1))
    return {
        "step": each.step,
        "rows": [[_number(value) for value in row] for row in rows],
        "eigenvalues": _points(each.eigenvalues),
        "offsets": back,
        "even": None if each.even is None else _packed(each.even),
        "odd": None if each.odd is None else _packed(each.odd),
    }


def _points(values: Complex128[Tensor, "*shape"]) -> dict[str, Any]:
    return _packed(torch.view_as_real(values.flatten(0, -2) if values.dim() > 1 else values).flatten(-2))


def _packed(values: Any) -> dict[str, Any]:
    """Columns of a row, scale and base64 of a matrix of any type; see the description of the module."""
    matrix = np.atleast_2d(np.asarray(values, dtype=np.float64))
    scale = float(np.nanmax(np.abs(matrix), initial=0)) / 32767 or 1.0
    missing = np.isnan(matrix)
    whole = np.where(missing, -32768, np.rint(np.where(missing, 0, matrix) / scale)).astype("<i2")
    return {"columns": matrix.shape[1], "scale": scale, "data": base64.b64encode(whole.tobytes()).decode()}


def _band(values: Tensor) -> list[float | str | None]:
    """Median and central 95%."""
    levels = torch.tensor([0.5, 0.025, 0.975], dtype=torch.float64)
    return [_number(value) for value in values.double().nanquantile(levels).tolist()]


def _number(value: float | int) -> float | str | None:
    """Four digits of a number, as JSON has them."""
    if pd.isna(value):
        return None
    return "∞" if value == float("inf") else float(f"{value:.4g}")


def named(audit: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """The heads that stand for a model where not all can be shown: role to head, no head twice."""
    roles: dict[str, tuple[int, int]] = {}
    for role, column, rank in (
        ("previous token", "previous_token", 0),
        ("previous token, second", "previous_token", 1),
        ("induction", "induction", 0),
        ("duplicate token", "duplicate_token", 0),
    ):
        head = static.strongest(audit, column, rank + 1)[rank]
        if head not in roles.values():
            roles[role] = head
    return roles


def portraits(of: State, heads: Mapping[str, tuple[int, int]]) -> list[figures_audit.Portrait]:
    """The panels of `figures_audit.portraits` for some heads of a state, by role as `named` calls them."""
    assert of.offsets is not None
    place = {head: row for row, head in enumerate(static.all_heads(of.audit))}
    made = []
    for role, head in heads.items():
        row = place[head]
        energy = None
        if of.even is not None and of.odd is not None:
            energy = pd.DataFrame({"even": of.even[row], "odd": of.odd[row]})
        made.append(
            figures_audit.Portrait(
                title=static.label(head),
                eigenvalues=of.eigenvalues[row],
                null=of.cloud,
                offsets=static.rows(of.offsets, [head]),
                colour=COLOURS[role],
                energy=energy,
            )
        )
    return made

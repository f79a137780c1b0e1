"""What is measured of a model of the matched experiment: behaviour and spectra of its heads, kernels, signatures.

The *kernel* of a head is its mean score against the distance `delta = i - j`. With `R_t = Re M_t`, `I_t = Im M_t`
(`operators`) a score is the sum of four parts

    symmetric              sym(R_t) cos(theta_t delta) + the symmetric part of the rows that do not rotate
    antisymmetric          the same of the antisymmetric parts
    phase_symmetric        sym(I_t) sin(theta_t delta)
    phase_antisymmetric    antisym(I_t) sin(theta_t delta)

each a recombination of the head's own queries and keys (`channels`). With the same input `m` at both ends only
`m sym(.) m^T` is left of a part, so a kernel that does not depend on content is carried by symmetric parts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn import functional as F

from qkspectra.behaviour import mean_diagonal
from qkspectra.channels import CHANNELS, Mixture
from qkspectra.matched.model import Parameters, Position, Recipe, forward, layer_of
from qkspectra.operators import QKOperator, operator_of
from qkspectra.scores import rebuilt_scores
from qkspectra.spectrum import measure
from qkspectra.studies.dynamics import leading_rotation
from qkspectra.weights.layout import LayerQK

SPECTRAL = (
    "eigen_rotation",
    "antisymmetric_energy",
    "henrici",
    "content_sign",
    "phase_energy",
    "phase_symmetric_share",
)
BEHAVIOUR = ("previous_token", "previous_text", "induction", "duplicate_token")
MODEL = ("loss_text", "loss_first", "loss_second", "accuracy_second")
"""Of the model, the same for all its heads."""

PARTS: Mapping[str, tuple[float, float, float, float]] = MappingProxyType(
    {
        "symmetric": (1.0, 0.0, 0.0, 0.0),
        "antisymmetric": (0.0, 1.0, 0.0, 0.0),
        "phase_symmetric": (0.0, 0.0, 1.0, 0.0),
        "phase_antisymmetric": (0.0, 0.0, 0.0, 1.0),
    }
)
"""How much of sym R, antisym R, sym I and antisym I each part keeps."""
REACH = 16
"""The largest distance of a kernel."""


def mixture_of(kept: tuple[float, float, float, float]) -> Mixture:
    """The channel that keeps so much of sym R, antisym R, sym I and antisym I.

    >>> mixture_of((1.0, 0.0, 1.0, 1.0)) == CHANNELS["symmetric"]
    True
    """
    sr, ar, si, ai = (x / 4 for x in kept)
    return sr + ar + si + ai, sr + ar - si - ai, sr - ar - si + ai, sr - ar + si - ai


def kept_by(mixture: Mixture) -> tuple[float, float, float, float]:
    """The inverse of `mixture_of`."""
    a, b, c, d = mixture
    return a + b + c + d, a + b - c - d, a - b - c + d, a - b + c - d


def inputs(
    recipe: Recipe, p: Parameters, tokens: Int64[Tensor, "batch context"]
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Logits, and the attention's input and pattern in every layer."""
    xs: list[Tensor] = []
    patterns: list[Tensor] = []

    def keep(_: int, x: Tensor, pattern: Tensor) -> None:
        xs.append(x)
        patterns.append(pattern)

    with torch.no_grad():
        logits = forward(recipe, p, tokens, Position(recipe), keep)
    return logits, xs, patterns


def heads_of(
    recipe: Recipe,
    p: Parameters,
    repeats: Int64[Tensor, "batch context"],
    text: Int64[Tensor, "spans context"],
) -> pd.DataFrame:
    """One row a head: `layer`, `head`, the columns of `MODEL`, `BEHAVIOUR`, `SPECTRAL`, and `leading_rotation`.

    The spectral columns are empty under a ban, whose operators are of another rank and have another null, and in a run
    that has diverged.

    Args:
        repeats: from `language.repeats`; previous-token, induction and duplicate-token attention as in `behaviour`.
        text: from `language.held_out`; `previous_text` is the previous-token attention there.
    """
    copy = recipe.context // 2
    said, _, patterns = inputs(recipe, p, repeats)
    told, _, read = inputs(recipe, p, text)
    columns: dict[str, Tensor] = {
        "previous_token": torch.stack([mean_diagonal(x, 1) for x in patterns]),
        "previous_text": torch.stack([mean_diagonal(x, 1) for x in read]),
        "induction": torch.stack([mean_diagonal(x, copy - 1, copy) for x in patterns]),
        "duplicate_token": torch.stack([mean_diagonal(x, copy, copy) for x in patterns]),
    }
    if recipe.ban == "none" and _finite(p):
        spectra = [measure(operator_of(layer_of(recipe, p, i))) for i in range(recipe.layers)]
        columns |= {name: torch.stack([getattr(one, name) for one in spectra]).double() for name in SPECTRAL}
        columns["leading_rotation"] = torch.stack([leading_rotation(one, recipe.width) for one in spectra])
    else:
        columns |= {name: torch.full_like(columns["induction"], torch.nan) for name in (*SPECTRAL, "leading_rotation")}
    index = pd.MultiIndex.from_product([range(recipe.layers), range(recipe.heads)], names=["layer", "head"])
    table = index.to_frame(index=False)
    model = dict(zip(MODEL, (_loss(told, text, 0), *_copies(said, repeats)), strict=True))
    table = table.assign(**model, **{name: values.flatten().numpy() for name, values in columns.items()})
    return _single(table)


def _finite(p: Parameters) -> bool:
    return all(bool(part.isfinite().all()) for part in p.values())


def _loss(logits: Float[Tensor, "batch length vocab"], tokens: Int64[Tensor, "batch length"], start: int) -> float:
    """Mean loss of the tokens after the one at `start`, in nats."""
    return F.cross_entropy(logits[:, start:-1].flatten(0, 1), tokens[:, start + 1 :].flatten()).item()


def _copies(
    logits: Float[Tensor, "batch length vocab"], tokens: Int64[Tensor, "batch length"]
) -> tuple[float, float, float]:
    """Loss on either copy and accuracy on the second, of the tokens after each copy's first one."""
    copy = tokens.shape[1] // 2
    right = logits[:, copy:-1].argmax(-1) == tokens[:, copy + 1 :]
    first = _loss(logits[:, :copy], tokens[:, :copy], 0)
    return first, _loss(logits, tokens, copy), right.double().mean().item()


def kernels(
    layer: LayerQK, x: Float[Tensor, "batch position d_model"], kept: tuple[float, float, float, float] = (1, 1, 1, 1)
) -> pd.DataFrame:
    """Kernels of the heads of a layer, whole and in parts, with the mean input direction as it is and projected out.

    Args:
        x: the attention's input.
        kept: what a ban leaves of the four parts.

    Returns:
        One row per `head`, `mean` (`kept` or `projected`: every input loses its component along the mean input), `part`
        (`full`, those of `PARTS`, and `position`, the bias of ALiBi) and `delta`, 0 to `REACH`: `score`, the mean over
        batch and queries, in the units of the softmax; and, the same at every delta, `previous`, the previous-token
        attention of the same input when the part is taken away (of the row `full`: when nothing is).
    """
    plain = replace(layer, alibi=None)
    bias = rebuilt_scores(replace(layer, rotary=None), torch.zeros_like(x[:1]), CHANNELS["full"])
    mean = F.normalize(x.double().mean((0, 1)), dim=0)
    frames = []
    for name, y in (("kept", x.double()), ("projected", x.double() - (x.double() @ mean)[..., None] * mean)):
        mixed = {part: tuple(a * b for a, b in zip(kept, own, strict=True)) for part, own in PARTS.items()}
        parts = {part: rebuilt_scores(plain, y, mixture_of(own)) for part, own in mixed.items()}  # type: ignore[arg-type]
        parts["position"] = bias.expand_as(parts["symmetric"])
        full = torch.stack([part.nan_to_num(neginf=0) for part in parts.values()]).sum(0)
        hidden = bias == -torch.inf
        for part, scores in {"full": full, **parts}.items():
            left = full if part == "full" else full - scores.nan_to_num(neginf=0)
            previous = mean_diagonal(left.masked_fill(hidden, -torch.inf).softmax(-1), 1)
            score = torch.stack([scores.diagonal(-d, 2, 3).mean((0, 2)) for d in range(REACH + 1)], -1)
            index = pd.MultiIndex.from_product([range(len(score)), range(REACH + 1)], names=["head", "delta"])
            frame = index.to_frame(index=False).assign(mean=name, part=part, score=score.flatten().numpy())
            frames.append(frame.assign(previous=np.repeat(previous.numpy(), REACH + 1)))
    return pd.concat(frames, ignore_index=True)


def kernels_of(recipe: Recipe, p: Parameters, tokens: Int64[Tensor, "batch context"]) -> pd.DataFrame:
    """`kernels` of every layer of a model, with `layer`."""
    _, xs, _ = inputs(recipe, p, tokens)
    kept = kept_by(recipe.mixture)
    parts = [kernels(layer_of(recipe, p, i), x, kept).assign(layer=i) for i, x in enumerate(xs)]
    return _single(pd.concat(parts, ignore_index=True))


def signatures(layer: LayerQK, x: Float[Tensor, "batch position d_model"]) -> dict[str, Float64[Tensor, " heads"]]:
    """Numbers that might tell a rotary previous-token head, one a head each; none reads an attention pattern.

    From the weights alone, under the raw convention: `eigen_rotation`, `leading_rotation`, `antisymmetric_energy`,
    `henrici`; `eigen_rotation_back` and `antisymmetric_energy_back`, the first and third of `M(1)` in place of `M`;
    `phase_step`, `|sum_t sin(theta_t) Im M_t| / |M(1)|`; `phase_energy` and `phase_symmetric_share`. The last three are
    zero, and `M(1)` is `M`, where nothing rotates.

    With the mean input `m` of the head's layer, which takes the place of every token: `pull`, the score that a query
    gives to the token before it less the mean of what it gives to distances 0 to `REACH`, in nats, position biases left
    out; and `pull_phase`, what the symmetric part of the phase adds to it.
    """
    op = operator_of(layer)
    still = measure(op)
    back = measure(op.relative(1))
    d_model = layer.wq.shape[-1]
    out = {
        "eigen_rotation": still.eigen_rotation,
        "leading_rotation": leading_rotation(still, d_model),
        "antisymmetric_energy": still.antisymmetric_energy,
        "henrici": still.henrici,
        "eigen_rotation_back": back.eigen_rotation,
        "antisymmetric_energy_back": back.antisymmetric_energy,
        "phase_step": _phase_step(op),
        "phase_energy": still.phase_energy.nan_to_num(0.0),
        "phase_symmetric_share": still.phase_symmetric_share.nan_to_num(0.0),
    }
    mean = x.double().mean((0, 1)).expand(1, REACH + 1, d_model)
    plain = replace(layer, alibi=None, causal=True, window=None)
    for name, mixture in (("pull", CHANNELS["full"]), ("pull_phase", mixture_of(PARTS["phase_symmetric"]))):
        row = rebuilt_scores(plain, mean, mixture)[0, :, -1].flip(-1)  # (heads, delta)
        out[name] = row[:, 1] - row.mean(-1)
    return out


def _phase_step(op: QKOperator) -> Float64[Tensor, " heads"]:
    if op.rotary is None:
        return torch.zeros(len(op.wq), dtype=torch.float64)
    a, b = op.rotary.pairs.T
    sin = op.rotary.theta.sin()[:, None]
    query, key = torch.cat([op.wq[:, a], op.wq[:, b]], 1), torch.cat([sin * op.wk[:, b], -sin * op.wk[:, a]], 1)
    return QKOperator(query, key).norm() / op.relative(1).norm()


def signatures_of(layers: Iterable[tuple[LayerQK, Tensor]]) -> pd.DataFrame:
    """`signatures` of all layers of a model, with `layer` and `head`."""
    frames = []
    for layer, x in layers:
        own = {name: values.numpy() for name, values in signatures(layer, x).items()}
        frames.append(pd.DataFrame({"layer": layer.layer, "head": range(len(own["pull"])), **own}))
    return _single(pd.concat(frames, ignore_index=True))


def signatures_of_run(recipe: Recipe, p: Parameters, tokens: Int64[Tensor, "batch context"]) -> pd.DataFrame:
    """The same of a model of this experiment; no rows of one that has diverged."""
    if not _finite(p):
        return pd.DataFrame()
    _, xs, _ = inputs(recipe, p, tokens)
    return signatures_of((layer_of(recipe, p, i), x) for i, x in enumerate(xs))


def _single(table: pd.DataFrame) -> pd.DataFrame:
    """Measures in single precision: the files are shipped."""
    return table.astype({name: np.float32 for name in table.columns if table[name].dtype == np.float64})

"""The cost of symmetry, and what it depends on: one thing at a time, then the corner where the costs meet."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float32, Float64
from torch import Tensor
from torch.nn import functional as F

from qkspectra.device import chosen
from qkspectra.operators import QKOperator
from qkspectra.statistics import paired_ratio
from qkspectra.studies.bans import FIRST_SEED
from qkspectra.studies.training import Training, condition
from qkspectra.toy.model import ModelConfig, effective, unflatten
from qkspectra.toy.task import HELD_OUT, generator, repeats
from qkspectra.toy.train import train

PAPER_RATIO = 2.9
"""Slowdown of learned-absolute models under symmetry, as the abstract states it."""


@dataclass(frozen=True)
class Variation:
    """One point of the multiverse: the base with one thing changed.

    Attributes:
        name: what is changed, as figures print it.
        axis: which kind of thing it is.
        changes: fields of `ModelConfig` or `TrainConfig`.
        ban: how symmetry is imposed.
        cap: at least ten times the baseline's formation.
        threshold: accuracy that counts as formed.
        layer: where symmetry is imposed.
    """

    name: str
    axis: str
    changes: dict[str, Any] = field(default_factory=dict)
    ban: str = "symmetric"
    cap: int = 2500
    threshold: float = 0.9
    layer: str = "both"


_SMALL, _LARGE = {"d_model": 32, "d_head": 8}, {"d_model": 128, "d_head": 32}
VARIATIONS = (
    Variation("base", "base"),
    Variation("threshold 0.5", "threshold", threshold=0.5),
    Variation("layer 0 only", "layer", layer="0"),
    Variation("layer 1 only", "layer", layer="1"),
    Variation("rank-matched", "parametrisation", ban="rank-symmetric"),
    Variation("semidefinite", "parametrisation", ban="semidefinite"),
    Variation("d_model 32, heads of 8", "capacity", _SMALL, cap=6000),
    Variation("d_model 128, heads of 32", "capacity", _LARGE),
    Variation("d_model 128, heads of 32, rate 0.002", "capacity", {**_LARGE, "learning_rate": 2e-3}, cap=3000),
    Variation("8 heads of 8", "capacity", {"heads": 8, "d_head": 8}, cap=4000),
    Variation("2 heads of 32", "capacity", {"heads": 2, "d_head": 32}, cap=4000),
    Variation("no layer norm", "layer norm", {"norm": False}, cap=4000),
    Variation("context 16", "context", {"length": 16, "vocab": 16}),
    Variation("context 36", "context", {"length": 36, "vocab": 36}, cap=5000),
    Variation("learning rate 0.002", "learning rate", {"learning_rate": 2e-3}, cap=4500),
    Variation("learning rate 0.008", "learning rate", {"learning_rate": 8e-3}),
    Variation("d_model 32, heads of 8, rank-matched", "corner", _SMALL, ban="rank-symmetric", cap=6000),
)
"""The multiverse. Points that differ in threshold, layer or parametrisation alone share their baselines."""

SCHEMES = ("absolute", "rope")


def cells(variation: Variation, seeds: int) -> dict[tuple[str, str], Training]:
    """The four conditions of a point: each scheme without a ban and with its symmetry."""

    def cell(scheme: str, ban: str, layer: str) -> Training:
        return condition(scheme, ban, layer, seeds, first_seed=FIRST_SEED, cap=variation.cap, **variation.changes)

    return {
        (scheme, role): cell(scheme, *imposed)
        for scheme in SCHEMES
        for role, imposed in (("none", ("none", "both")), ("symmetric", (variation.ban, variation.layer)))
    }


def conditions(seeds: int) -> list[Training]:
    """Every distinct condition of the multiverse, the base first."""
    units = [unit for variation in VARIATIONS for unit in cells(variation, seeds).values()]
    return list({repr(unit.config): unit for unit in units}.values())


def multiverse(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per point: slowdown under each scheme and their ratio, with exact intervals.

    Args:
        runs: formations with the columns `variation`, `scheme`, `role` (`none` or `symmetric`), `seed`, `threshold`,
            `step`, `censored`. Points that it lacks are left out.

    `late` marks a point with a baseline whose median exceeds a tenth of the cap: it says little about the cost.
    """
    rows = []
    for variation in VARIATIONS:
        table = runs[(runs["variation"] == variation.name) & (runs["threshold"] == variation.threshold)]
        if table.empty:
            continue
        steps = table.pivot(index="seed", columns=["scheme", "role"], values="step").astype(float).dropna()
        costs = {s: steps[s, "symmetric"] / steps[s, "none"] for s in SCHEMES}
        medians = {f"{s}_baseline": float(steps[s, "none"].median()) for s in SCHEMES}
        censored = {
            f"{s}_censored": int(table.loc[(table["scheme"] == s) & table["seed"].isin(steps.index), "censored"].sum())
            for s in SCHEMES
        }
        row = {"variation": variation.name, "axis": variation.axis, "seeds": len(steps), **medians, **censored}
        row["late"] = max(medians.values()) * 10 > variation.cap
        for name, (over, under) in {
            "absolute": (costs["absolute"].to_numpy(), np.ones(len(steps))),
            "rope": (costs["rope"].to_numpy(), np.ones(len(steps))),
            "interaction": (costs["absolute"].to_numpy(), costs["rope"].to_numpy()),
        }.items():
            result = paired_ratio(over, under)
            row |= {name: result.ratio, f"{name}_low": result.low, f"{name}_high": result.high, f"{name}_p": result.p}
        rows.append(row)
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Trained:
    """One trained seed, for a look inside.

    Attributes:
        model: its configuration.
        theta: its parameters, one row.
        heads: rows of its table at the last step.
    """

    model: ModelConfig
    theta: Float32[Tensor, "1 parameters"]
    heads: pd.DataFrame

    def strongest(self, layer: int, behaviour: str) -> int:
        """The head of a layer with the highest score at the end."""
        rows = self.heads[self.heads["layer"] == layer]
        return int(rows.loc[rows[behaviour].idxmax(), "head"])


def trained(scheme: str, ban: str, cap: int = 2500, seed: int = FIRST_SEED) -> Trained:
    """Train one seed of a condition of the causal study."""
    config = condition(scheme, ban, cap=cap).config
    run = train(config, [seed], device=chosen())
    last = run.table[run.table["step"] == run.table["step"].max()]
    return Trained(config.model, run.theta, last.reset_index(drop=True))


def _operator(model: ModelConfig, theta: Tensor, layer: int) -> QKOperator:
    wq, wk, rotary = effective(model, theta, layer)
    return QKOperator(wq[0] * model.d_head**-0.5, wk[0], rotary=rotary)


def kernel(run: Trained) -> pd.DataFrame:
    """What the heads of layer 0 make of the offset alone: `k(delta)`, the mean score over pairs of different tokens.

    `k(delta) = mean over u != v of x_u M(delta) x_v / sqrt(d_head)`, with `x` the normalised embeddings. Its even part
    comes from the `Re M_t`, its odd part from the `Im M_t`: a head that prefers one direction by position has one.

    Returns:
        Columns `head`, `offset` (from `1 - length` to `length - 1`), `even`, `odd`, in units of the score.
    """
    op = _operator(run.model, run.theta, 0)
    embed = unflatten(run.model, run.theta.double())["embed"][0]
    x = F.layer_norm(embed, embed.shape[-1:]) if run.model.norm else embed
    apart = ~torch.eye(len(x), dtype=torch.bool)
    offsets = range(1 - run.model.length, run.model.length)
    means = {delta: op.relative(delta).bilinear(x, x)[:, apart].mean(-1) for delta in offsets}
    rows = []
    for delta in offsets:
        even, odd = (means[delta] + means[-delta]) / 2, (means[delta] - means[-delta]) / 2
        for head in range(run.model.heads):
            rows.append({"head": head, "offset": delta, "even": even[head].item(), "odd": odd[head].item()})
    return pd.DataFrame(rows)


def score_matrices(run: Trained) -> Float64[Tensor, "heads query key"]:
    """Scores before mask and softmax of one held-out sequence in layer 0, for every pair, later keys included.

    Additive position bias is left out: this is `x_i M(i - j) x_j / sqrt(d_head)`, where symmetry would show.
    """
    model, p = run.model, unflatten(run.model, run.theta.double())
    batch = repeats([generator(FIRST_SEED, HELD_OUT)], 1, model.length, model.vocab)
    h = p["embed"][0][batch.tokens[0, 0]]
    if model.scheme == "absolute":
        h = h + p["position"][0]
    x = F.layer_norm(h, h.shape[-1:]) if model.norm else h
    op = _operator(model, run.theta, 0)
    scores = torch.empty(model.heads, model.length, model.length, dtype=torch.float64)
    for delta in range(1 - model.length, model.length):
        scores.diagonal(-delta, 1, 2).copy_(op.relative(delta).bilinear(x, x).diagonal(-delta, 1, 2))
    return scores


def asymmetry(scores: Float64[Tensor, "heads query key"]) -> Float64[Tensor, " heads"]:
    """`|S - S^T| / |S + S^T|` of each score matrix: 0 when symmetric, about 1 when query and key are unrelated."""
    return (scores - scores.mT).norm(dim=(1, 2)) / (scores + scores.mT).norm(dim=(1, 2))

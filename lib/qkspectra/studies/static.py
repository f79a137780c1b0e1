"""What the static audits of several models say together: which heads stand out, against what, and by how much."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from jaxtyping import Complex128
from scipy import stats
from torch import Tensor

from qkspectra import attention, behaviour, channels, intervene, null, operators, resume, scores, spectrum
from qkspectra.device import chosen, described
from qkspectra.null import null_operator, null_samples, population_z
from qkspectra.operators import QKOperator, operator_of
from qkspectra.spectrum import Spectrum, measure
from qkspectra.store import Address, Store, source_hash
from qkspectra.studies import audit
from qkspectra.weights import (
    families,
    gguf,
    layout,
    model,
    panels,
    ranges,
    reader,
    remote,
    revisions,
    rotary,
    running,
    schedules,
)
from qkspectra.weights.families import absolute, alibi, common, fused, rope
from qkspectra.weights.model import Weights

SOURCES = (
    *(attention, behaviour, channels, intervene, null, operators, resume, scores, spectrum, audit),
    *(families, gguf, layout, model, reader, rotary, running, absolute, alibi, common, fused, rope),
    *(panels, ranges, remote, revisions, schedules),
)
"""Modules whose text decides what an audit finds, and of which weights."""

Heads = list[tuple[int, int]]


def stored(store: Store, study: Callable[..., pd.DataFrame], weights: Weights, **parameters: Any) -> pd.DataFrame:
    """`study(weights, **parameters)`, computed once per content of the weights, parameters and text of the code."""
    about = {"model": weights.source.name, "content": weights.source.content_hash, **parameters}
    address = Address(study.__name__, about, source_hash(*SOURCES))
    where = described(chosen("cpu" if parameters.get("static_only") else None))
    made = store.cached(address, lambda: study(weights, **parameters), seeds=[parameters["seed"]], device=where)
    return made.table


def all_heads(table: pd.DataFrame) -> Heads:
    """Every head of an audit, in its order."""
    return _heads(table)


def strongest(table: pd.DataFrame, score: str, count: int) -> Heads:
    """The `count` heads of an audit with the highest `score`, in descending order, as `(layer, head)`."""
    return _heads(table.nlargest(count, score))


def controls(table: pd.DataFrame, count: int, seed: int, excluded: Heads) -> Heads:
    """`count` heads of an audit drawn at random from those that are not `excluded`."""
    index = pd.MultiIndex.from_frame(table[["layer", "head"]])
    return _heads(table[~index.isin(excluded)].sample(count, random_state=seed))


def rows(table: pd.DataFrame, heads: Heads) -> pd.DataFrame:
    """The rows of `heads`, in their order."""
    return table.set_index(["layer", "head"]).loc[heads].reset_index()


def null_of(weights: Weights, samples: int, seed: int) -> Spectrum:
    """The factored Gaussian null of a model's heads: their shape, their rotary rows, their sharing of keys."""
    op = operator_of(weights.layer(0))
    group = weights.layout.n_heads // weights.layout.n_kv_heads
    return null_samples(*op.wq.shape[1:], -(-samples // group) * group, seed, op.rotary, group)


def label(head: tuple[int, int]) -> str:
    """`(16, 0)` as `L16H0`."""
    return f"L{head[0]}H{head[1]}"


def listed(tables: Mapping[str, pd.DataFrame], marked: Mapping[str, Mapping[str, Heads]], count: int) -> pd.DataFrame:
    """The first `count` heads of each role and model, one row each: `model`, `role`, `name`, and the audit's columns.

    Args:
        tables: model to audit.
        marked: model to role to heads.
    """
    roles = {"previous": "previous token", "induction": "induction"}
    parts = []
    for name, of_model in marked.items():
        for role, heads in of_model.items():
            part = rows(tables[name], heads[:count])
            parts.append(part.assign(model=name, role=roles[role], name=[label(head) for head in heads[:count]]))
    return pd.concat(parts, ignore_index=True)


def grouped(**effects: pd.DataFrame) -> pd.DataFrame:
    """Ablations of several groups of heads in one table: column `group`, and each `..._change` from before to after."""
    table = pd.concat([part.assign(group=name) for name, part in effects.items()], ignore_index=True)
    measured = [column.removesuffix("_before") for column in table if column.endswith("_before")]
    return table.assign(**{f"{name}_change": table[f"{name}_after"] - table[f"{name}_before"] for name in measured})


def eigenvalues(weights: Weights, head: tuple[int, int]) -> Complex128[Tensor, " d_head"]:
    """The eigenvalues of one head, scaled as in `scaled_eigenvalues`."""
    layer, number = head
    return scaled_eigenvalues(operator_of(weights.layer(layer)), weights.layout.d_model)[number]


def null_eigenvalues(weights: Weights, samples: int, seed: int) -> Complex128[Tensor, " points"]:
    """The same of all of `samples` heads of the model's null."""
    layout = weights.layout
    return scaled_eigenvalues(null_operator(layout.d_head, layout.d_model, samples, seed), layout.d_model).flatten()


def scaled_eigenvalues(op: QKOperator, d_model: int) -> Complex128[Tensor, "heads d_head"]:
    """Eigenvalues in units of `|M| / sqrt(d_model)`: those of a Gaussian head then fill the unit disc.

    For `W_q`, `W_k` with independent entries of variance one, `|M|^2` tends to `d_head d_model^2` and the spectral
    radius of `C` to `sqrt(d_head d_model)`. The null is drawn at a reduced width, so `d_model` is asked for.
    """
    return measure(op).eigenvalues * (d_model**0.5 / op.norm())[:, None]


def population(weights: Weights, table: pd.DataFrame, null: Spectrum, measures: Sequence[str]) -> pd.DataFrame:
    """All heads of a model against the null, one row per measure.

    Returns:
        `measure`, the population's `median`, the null's `null_median`, `null_low` and `null_high` (its central 95 %),
        the shares of heads `below` and `above` that band, and `z`, the distance of the population's mean from the
        null's in standard deviations of that mean, heads that share keys counted as dependent.
    """
    group = weights.layout.n_heads // weights.layout.n_kv_heads
    out = []
    for name in measures:
        values, expected = torch.tensor(table[name].to_numpy()), getattr(null, name)
        low, high = expected.quantile(0.025).item(), expected.quantile(0.975).item()
        out.append(
            {
                "measure": name,
                "median": values.median().item(),
                "null_median": expected.median().item(),
                "null_low": low,
                "null_high": high,
                "below": (values < low).double().mean().item(),
                "above": (values > high).double().mean().item(),
                "z": population_z(values, expected, group).item(),
            }
        )
    return pd.DataFrame(out)


def standing(table: pd.DataFrame, heads: Heads, measure: str) -> dict[str, float]:
    """Where `heads` stand among the other heads of their model by one measure.

    Returns:
        `median` of the heads, `others`, the median of the rest, `superiority`, the probability that one of the heads
        exceeds one of the rest (1/2 if they are alike), and `p`, two-sided, of the Mann-Whitney test of that.
    """
    index = pd.MultiIndex.from_frame(table[["layer", "head"]])
    inside = index.isin(heads)
    ours, rest = table.loc[inside, measure], table.loc[~inside, measure]
    test = stats.mannwhitneyu(ours, rest, alternative="two-sided")
    return {
        "median": float(ours.median()),
        "others": float(rest.median()),
        "superiority": float(test.statistic / (len(ours) * len(rest))),
        "p": float(test.pvalue),
    }


def _heads(rows: pd.DataFrame) -> Heads:
    return [(int(layer), int(head)) for layer, head in zip(rows["layer"], rows["head"], strict=True)]

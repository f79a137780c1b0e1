"""The factored Gaussian null: query and key rows with independent standard normal entries, of a head's own shape.

The measures depend on the rows only up to a joint rotation of the residual space, so one operator of width
`min(d_model, 2 d_head)` stands for one of width `d_model`. With `W_k = L Q` (`L` lower triangular, the rows of `Q`
orthonormal),

    C = W_k W_q^T = L Z^T,    G_k = L L^T,    G_q = Z Z^T + Y Y^T,    Z = W_q Q^T

where `Z` is standard normal, `Y Y^T` is Wishart with `d_model - d_head` degrees of freedom, and `L`, `Z`, `Y` are
independent. Bartlett (1933): the lower triangular factor of a Wishart matrix with `m` degrees of freedom has standard
normal entries below the diagonal and `chi(m), chi(m - 1), ...` on it. The scale of the entries cancels in every measure
but the spectral radius.
"""

import math
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from qkspectra.operators import QKOperator
from qkspectra.spectrum import Spectrum, measure
from qkspectra.weights.layout import Rotary

SCORED = ("antisymmetric_energy", "eigen_rotation", "henrici")
"""Measures that `z_scores` compares with the null."""

_PART = 64


def null_operator(
    d_head: int,
    d_model: int,
    samples: int,
    seed: int | np.random.Generator,
    rotary: Rotary | None = None,
    group: int = 1,
) -> QKOperator:
    """Operators of the null, reduced to width `min(d_model, 2 d_head)`.

    Args:
        d_head, d_model: the shape of a head's rows; entries are standard normal.
        samples: query heads to draw, a multiple of `group`.
        seed: of the generator, or the generator itself; equal seeds give equal operators.
        rotary: carried by the operator, for the phase measures.
        group: so many consecutive heads share their key rows, as in grouped-query attention. Heads of a group are
            dependent: it makes no difference to one head, but to any statistic of a population.
    """
    if samples % group:
        raise ValueError(f"{samples} heads cannot be shared out in groups of {group}")
    rng = np.random.default_rng(seed)
    inside = min(d_head, d_model)
    key = _bartlett(rng, samples // group, d_head, d_model).repeat(group, axis=0)
    outside = _bartlett(rng, samples, d_head, d_model - inside)
    wq = np.concatenate([rng.standard_normal((samples, d_head, inside)), outside], -1)
    wk = np.concatenate([key, np.zeros_like(outside)], -1)
    return QKOperator(
        torch.from_numpy(wq), torch.from_numpy(wk), rotary=rotary, name=f"the {d_head} x {d_model} Gaussian null"
    )


def _bartlett(rng: np.random.Generator, samples: int, rows: int, freedom: int) -> np.ndarray:
    """`F` of shape `(samples, rows, min(rows, freedom))` with `F F^T` Wishart; plain normal where that is no wider."""
    if freedom <= rows:
        return rng.standard_normal((samples, rows, freedom))
    factor = np.tril(rng.standard_normal((samples, rows, rows)), -1)
    diagonal = np.arange(rows)
    factor[:, diagonal, diagonal] = np.sqrt(rng.chisquare(freedom - diagonal, (samples, rows)))
    return factor


def null_samples(
    d_head: int, d_model: int, samples: int = 512, seed: int = 0, rotary: Rotary | None = None, group: int = 1
) -> Spectrum:
    """Measures of `samples` heads of the null (see `null_operator`), computed once per shape in a process.

    Of `rotary` only the number of rotated pairs matters, since rows of the null are exchangeable.
    """
    return _null_samples(d_head, d_model, samples, seed, 0 if rotary is None else len(rotary.pairs), group)


@lru_cache(maxsize=32)
def _null_samples(d_head: int, d_model: int, samples: int, seed: int, frequencies: int, group: int) -> Spectrum:
    pairs = torch.arange(2 * frequencies).view(frequencies, 2)
    rotary = Rotary(pairs, torch.ones(frequencies, dtype=torch.float64)) if frequencies else None
    rng = np.random.default_rng(seed)
    # In parts: the rows and intermediate results of all heads at once would outweigh everything else an audit holds.
    part = max(_PART // group, 1) * group
    sizes = [min(part, samples - start) for start in range(0, samples, part)]
    return Spectrum.joined([measure(null_operator(d_head, d_model, size, rng, rotary, group)) for size in sizes])


def z_scores(spectrum: Spectrum, null: Spectrum) -> dict[str, Float64[Tensor, " heads"]]:
    """Each head's distance from the null, in its standard deviations: `(x - mean) / sd` for every `SCORED` measure."""
    scores = {}
    for name in SCORED:
        values, expected = getattr(spectrum, name), getattr(null, name)
        scores[name] = (values - expected.mean()) / expected.std()
    return scores


def population_z(
    values: Float64[Tensor, " heads"], null: Float64[Tensor, " samples"], group: int = 1
) -> Float64[Tensor, ""]:
    """Distance of the mean over a population from the null's, in standard deviations of that mean.

    Args:
        values: one measure of the heads of a population, such as all heads of a model of one shape.
        null: the same measure of null heads, drawn with the same `group`.
        group: heads that share key rows. Only the means of groups are independent, so the variance of the population's
            mean is that of a group's mean times `group / heads`.
    """
    group_sd = null.view(-1, group).mean(-1).std()
    return (values.mean() - null.mean()) / (group_sd * (group / len(values)) ** 0.5)


def closed_forms(d_head: int, d_model: int) -> dict[str, float]:
    """Means of measures of the null in the limit of large `n = d_head` at a fixed ratio `n / m`, `m = d_model`.

    - antisymmetric energy `(1 - 1/m) / 2`, since `E tr(C^2) = n m` against `E tr(G_q G_k) = n m^2`;
    - eigen-rotation `2 / pi`: the eigenvalues fill a disc evenly in angle;
    - departure from normality `sqrt(1 - n / 2m + n^2 / 6m^2)`: a share `s` of the eigenvalues has
      `|lambda|^2 <= n s (n s + m - n)` (Burda, Jarosz et al. 2010), hence `sum |lambda|^2 = n^2 (m / 2 - n / 6)`.

    At finite `n` the eigen-rotation is lower by a term in `1 / n`, for the real axis repels complex eigenvalues.
    """
    ratio = d_head / d_model
    return {
        "antisymmetric_energy": (1 - 1 / d_model) / 2,
        "eigen_rotation": 2 / math.pi,
        "henrici": math.sqrt(1 - ratio / 2 + ratio**2 / 6),
    }

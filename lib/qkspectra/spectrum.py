"""The measures of query-key operators, from `d_head`-sized matrices alone.

`S = (M + M^T) / 2` and `A = (M - M^T) / 2` are the symmetric and antisymmetric parts of `M = W_q^T W_k`, `lambda` its
nonzero eigenvalues, `l` and `r` its left and right eigenvectors. All norms are Frobenius norms of `M`, never of the
core `C`, which shares eigenvalues with `M` but not norms.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import NoReturn

import torch
from jaxtyping import Complex128, Float64, Int64
from torch import Tensor

from qkspectra.errors import InputError
from qkspectra.operators import QKOperator
from qkspectra.threads import threads

MEASURES = (
    "antisymmetric_energy",
    "eigen_rotation",
    "content_sign",
    "real_eigenvalues",
    "henrici",
    "spectral_radius",
    "overlap_median",
    "phase_energy",
    "phase_symmetric_share",
    "bias_norm",
)
"""Fields of `Spectrum` with one number per head."""


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues and measures of the operators of several heads.

    A measure without a meaning is NaN: every ratio of a zero operator or of one without nonzero eigenvalues, the phase
    measures without rotary positions, the bias measure without biases.

    Attributes:
        eigenvalues: of the core `C`: the nonzero eigenvalues of `M`, then zeros up to `d_head` where `M` has less rank.
            Always complex, conjugate pairs adjacent, otherwise in no order.
        overlaps: Chalker-Mehlig overlaps `O_ii = |l_i|^2 |r_i|^2 / |l_i r_i|^2` of the same eigenvalues (Chalker and
            Mehlig 1998), at least 1; the square root is the condition number of the eigenvalue. NaN where the
            eigenvalue vanishes to rounding, infinite where the operator is exactly defective.
        antisymmetric_energy: `|A|^2 / |M|^2 = (1 - tr(C^2) / tr(G_q G_k)) / 2`, in [0, 1]; 0 symmetric, 1
            antisymmetric, 1/2 for independent Gaussian factors.
        eigen_rotation: `sum |Im lambda| / sum |lambda|`, in [0, 1]; 0 symmetric, 1 antisymmetric, 2/pi for a large
            Ginibre matrix.
        content_sign: `sum Re lambda / sum |lambda|`, in [-1, 1]; +-1 for a definite symmetric operator.
        real_eigenvalues: how many of the `d_head` eigenvalues are real to rounding, that is
            `|Im lambda| <= d_head * eps * |W_q| |W_k|`; a vanishing eigenvalue counts as real. sqrt(2 n / pi) on
            average for a Ginibre matrix of large size n (Edelman, Kostlan and Shub 1994).
        henrici: departure from normality `sqrt(|M|^2 - sum |lambda|^2) / |M|`, in [0, 1] (Henrici 1962); 0 for a normal
            operator, down to about 1e-8 by cancellation.
        spectral_radius: `max |lambda|`, in the units of `M`.
        overlap_median: median of the overlaps of the eigenvalues that do not vanish.
        phase_energy: `sum_t |Im M_t|^2 / sum_t (|Re M_t|^2 + |Im M_t|^2)`, in [0, 1]: the share of the rotated rows'
            energy that is odd in the distance.
        phase_symmetric_share: `sum_t |sym Im M_t|^2 / sum_t |Im M_t|^2`, in [0, 1].
        bias_norm: root mean square of the bias terms of the score over that of `x_i M x_j^T`, for isotropic tokens of
            unit variance: `sqrt(|W_q^T bk|^2 + |W_k^T bq|^2 + (bq bk)^2) / |M|`.
    """

    eigenvalues: Complex128[Tensor, "heads d_head"]
    overlaps: Float64[Tensor, "heads d_head"]
    antisymmetric_energy: Float64[Tensor, " heads"]
    eigen_rotation: Float64[Tensor, " heads"]
    content_sign: Float64[Tensor, " heads"]
    real_eigenvalues: Int64[Tensor, " heads"]
    henrici: Float64[Tensor, " heads"]
    spectral_radius: Float64[Tensor, " heads"]
    overlap_median: Float64[Tensor, " heads"]
    phase_energy: Float64[Tensor, " heads"]
    phase_symmetric_share: Float64[Tensor, " heads"]
    bias_norm: Float64[Tensor, " heads"]

    @classmethod
    def joined(cls, parts: Sequence["Spectrum"]) -> "Spectrum":
        """The spectra of several operators of one `d_head` as those of all their heads, in order."""
        return cls(**{field.name: torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)})


def measure(op: QKOperator) -> Spectrum:
    """All measures of all heads of an operator, in one batched call.

    Raises:
        InputError: a row or bias holds NaN or infinity; the message names the tensor and the head.
    """
    # LAPACK works on one matrix at a time, and torch lets go of the interpreter meanwhile: share the heads out over as
    # many threads as torch uses, each with one thread of its own.
    parts = op.chunk(torch.get_num_threads())
    try:
        with threads(1):
            if len(parts) == 1:
                return _measures(op)
            with ThreadPoolExecutor(len(parts)) as pool:
                return Spectrum.joined(list(pool.map(_measures, parts)))
    except _NonFiniteError:
        _refuse_nonfinite(op)


class _NonFiniteError(ArithmeticError):
    pass


def _measures(op: QKOperator) -> Spectrum:
    core, (gq, gk), bias_energy = op.core(), op.grams(), _bias_energy(op)
    # A NaN handed to LAPACK can crash the process. Sums of squares tell of one without another pass over the rows.
    if not (_trace(gq) + _trace(gk) + (0 if bias_energy is None else bias_energy)).isfinite().all():
        raise _NonFiniteError
    d_head = core.shape[-1]
    energy = _trace_of_product(gq, gk)
    energy = torch.where(energy > 0, energy, torch.nan)
    eigenvalues, vectors = torch.linalg.eig(core)
    basis = torch.where(eigenvalues.imag[:, None, :] >= 0, vectors.real, vectors.imag)
    size = eigenvalues.abs()
    rounding = d_head * torch.finfo(torch.float64).eps * (_trace(gq) * _trace(gk)).sqrt()[:, None]
    total = size.sum(-1)
    total = torch.where((size > rounding).any(-1), total, torch.nan)
    overlaps = torch.where(size > rounding, _overlaps(eigenvalues, basis, gq, gk), torch.nan)
    nothing = torch.full_like(energy, torch.nan)
    phase_energy, phase_symmetric_share = (
        (nothing, nothing) if op.rotary is None else _phase(core, gq, gk, op.rotary.pairs)
    )
    return Spectrum(
        eigenvalues=eigenvalues,
        overlaps=overlaps,
        antisymmetric_energy=((1 - _trace_of_product(core, core.mT) / energy) / 2).clamp(0, 1),
        eigen_rotation=eigenvalues.imag.abs().sum(-1) / total,
        content_sign=eigenvalues.real.sum(-1) / total,
        real_eigenvalues=(eigenvalues.imag.abs() <= rounding).sum(-1),
        henrici=((energy - size.square().sum(-1)) / energy).clamp_min(0).sqrt(),
        spectral_radius=size.amax(-1),
        overlap_median=overlaps.nanmedian(-1).values,
        phase_energy=phase_energy,
        phase_symmetric_share=phase_symmetric_share,
        bias_norm=nothing if bias_energy is None else (bias_energy / energy).sqrt(),
    )


def _refuse_nonfinite(op: QKOperator) -> NoReturn:
    tensors = {"query weights": op.wq, "key weights": op.wk, "query bias": op.bq, "key bias": op.bk}
    for what, tensor in tensors.items():
        if tensor is not None and not tensor.isfinite().all():
            head = int((~tensor.isfinite()).flatten(1).any(1).nonzero()[0, 0])
            raise InputError(
                f"{what} of {op.name}, head {head}, hold NaN or infinity: the weights are damaged, get them again"
            )
    raise InputError(f"the weights of {op.name} are so large that their squares overflow: rescale them")


def _trace(x: Float64[Tensor, "heads n n"]) -> Float64[Tensor, " heads"]:
    return x.diagonal(dim1=-2, dim2=-1).sum(-1)


def _trace_of_product(x: Float64[Tensor, "*batch n n"], y: Float64[Tensor, "*batch n n"]) -> Float64[Tensor, "*batch"]:
    """`tr(x y^T)`."""
    return (x * y).sum((-2, -1))


def _overlaps(
    eigenvalues: Complex128[Tensor, "heads n"],
    basis: Float64[Tensor, "heads n n"],
    gq: Float64[Tensor, "heads n n"],
    gk: Float64[Tensor, "heads n n"],
) -> Float64[Tensor, "heads n"]:
    """`O_ii` of `M` from the eigenvectors of `C`.

    With `C u = lambda u`, `w C = lambda w` and `w u = 1`, the eigenvectors of `M` are `r = W_q^T u` and `l = w W_k`,
    so `|r|^2 = u* G_q u`, `|l|^2 = w G_k w*` and `l r = lambda`. The `w` are the rows of the inverse of the matrix of
    the `u`. A pair `u = p -+ i p'` is kept as the two real columns `p, p'`, with rows `s, s'` in the inverse:
    `|r|^2 = p G_q p + p' G_q p'` and `|l|^2 = (s G_k s + s' G_k s') / 4`.
    """
    inverse, singular = torch.linalg.inv_ex(basis)
    right = (basis * (gq @ basis)).sum(-2)
    left = (inverse * (inverse @ gk)).sum(-1)
    side = eigenvalues.imag.sign().long()
    partner = torch.arange(len(side[0])) + side
    right = torch.where(side == 0, right, right + right.gather(-1, partner))
    left = torch.where(side == 0, left, (left + left.gather(-1, partner)) / 4)
    overlaps = left * right / eigenvalues.abs().square()
    return torch.where(singular[:, None] > 0, torch.inf, overlaps)


_TURN = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)  # (a, b) -> (b, -a), the key rows of Im M_t


def frequency_energies(
    gq: Float64[Tensor, "*heads freq 2 2"], gk: Float64[Tensor, "*heads freq 2 2"]
) -> tuple[Float64[Tensor, "*heads freq"], Float64[Tensor, "*heads freq"]]:
    """`|Re M_t|^2` and `|Im M_t|^2` of every frequency, from the Gram matrices of its two query and two key rows.

    With `Q = (A_q, B_q)`, `K = (A_k, B_k)` the rows and `J` the turn by a right angle, `Re M_t = Q^T K` and
    `Im M_t = Q^T J K`.
    """
    return _trace_of_product(gq, gk), _trace_of_product(gq, _TURN @ gk @ _TURN.mT)


def _phase(
    core: Float64[Tensor, "heads n n"],
    gq: Float64[Tensor, "heads n n"],
    gk: Float64[Tensor, "heads n n"],
    pairs: Int64[Tensor, "freq 2"],
) -> tuple[Float64[Tensor, " heads"], Float64[Tensor, " heads"]]:
    """Phase energy and its symmetric share, from the 2 x 2 diagonal blocks of `C`, `G_q`, `G_k` of each frequency."""

    def blocks(x: Tensor) -> Tensor:
        return x[:, pairs[:, :, None], pairs[:, None, :]]

    even, odd = (energies.sum(-1) for energies in frequency_energies(blocks(gq), blocks(gk)))
    odd_core = _TURN @ blocks(core)
    odd_squared = _trace_of_product(odd_core, odd_core.mT).sum(-1)
    return odd / (even + odd), ((1 + odd_squared / odd) / 2).clamp(0, 1)


def _bias_energy(op: QKOperator) -> Float64[Tensor, " heads"] | None:
    if op.bq is None or op.bk is None:
        return None
    of_query = (op.bk[:, None] @ op.wq).square().sum((-2, -1))
    of_key = (op.bq[:, None] @ op.wk).square().sum((-2, -1))
    return of_query + of_key + (op.bq * op.bk).sum(-1).square()

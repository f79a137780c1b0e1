"""Bans: exact constraints on a head's operator, imposed from the first step and kept by construction.

A ban is a map of the head's weights, a mixture of score channels (`qkspectra.channels`), or neither. Either way the
scores stay an inner product of query and key features, gradients flow through the constraint, and nothing is projected
back after a step.

*Channel bans* leave `W_q` and `W_k` free and recombine their scores. With `R = Re M_t`, `I = Im M_t` (theory, RoPE):

    symmetric              every R symmetric, I free (rank up to 2 d_head)
    antisymmetric          every R antisymmetric, I free
    phase                  I = 0: the score is even in the offset
    symmetric-phase        R symmetric and I = 0: no direction but the causal mask
    antisymmetric-phase    R antisymmetric and I = 0
    static                 R = 0: nothing but the phase
    scale-control          no ban; scores times 1/sqrt(2), the change of scale that dropping half of M brings

*Weight bans* keep rank `d_head` and act on the static `M = W_q^T W_k`; under RoPE the phase is left as it falls out.
With `S`, `O` learned `d_head x d_head` matrices, `U` the rows of `W_q` orthonormalised, `c = ||W_q||_F / sqrt(d_head)`:

    rank-symmetric         W_k = S W_q, S symmetric
    rank-antisymmetric     W_k = S W_q, S antisymmetric
    semidefinite           W_k = W_q: M positive semidefinite
    rank-control           W_k = S W_q, S free: no ban but the shared row space
    normal                 W_q = c U, W_k = c N U with N = O^T B O, O orthogonal, B block-diagonal: M M^T = M^T M
    real-spectrum          W_q = c U, W_k <- W_k - tril(W_k U^T, -1) U
    whitening-control      W_q = c U, W_k free: no ban but the orthonormal query rows

*normal.* Every real normal matrix of rank `d_head` is `V^T B V` with `V` orthonormal rows and `B` made of real numbers
and of scaled rotations `[[a, b], [-b, a]]`; here `V = O U` (under RoPE `O` matters: it chooses which rows are rotated
together). The number of each is fixed: `2 round(d_head / 8)` real eigenvalues, near the number a random head has, and
pairs for the rest. Left: the eigenvalues and one orthonormal basis; banned: any angle between eigenvectors.

*real-spectrum.* `C = W_k W_q^T` becomes `c` times an upper triangular matrix, so its eigenvalues, the nonzero
eigenvalues of M, are its real diagonal. By the real Schur decomposition every M of rank `d_head` with a real
spectrum has this form, so nothing else is banned: M stays non-symmetric, non-normal and free outside its column space.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from qkspectra.channels import CHANNELS, Mixture
from qkspectra.errors import InputError

Scheme = Literal["rope", "absolute", "alibi"]
SCHEMES: tuple[Scheme, ...] = ("rope", "absolute", "alibi")

Rows = Float[Tensor, "*batch d_head d_model"]
Core = Float[Tensor, "*batch d_head d_head"]
Eigenvalues = Float[Tensor, "*batch d_head"]


@dataclass(frozen=True)
class Ban:
    """What is imposed on every head of a layer.

    Attributes:
        name: as users type it.
        mixture: coefficients of the four score channels.
        weights: maps the layer's own parameters to the query and key rows that are used.
        uses: which parameters it takes beside `wq`: some of `wk`, `core`, `eigenvalues`.
        needs_phase: has a meaning only under RoPE.
    """

    name: str
    mixture: Mixture = CHANNELS["full"]
    weights: Callable[[dict[str, Tensor]], tuple[Tensor, Tensor]] = lambda p: (p["wq"], p["wk"])
    uses: tuple[str, ...] = ("wk",)
    needs_phase: bool = False


def ban_of(name: str, scheme: str) -> Ban:
    """The ban of that name, checked against the position scheme.

    Raises:
        InputError: unknown scheme, unknown ban, or a ban on the phase where there is none.
    """
    if scheme not in SCHEMES:
        raise InputError(f"unknown position scheme {scheme!r}: choose one of {', '.join(SCHEMES)}")
    if name not in BANS:
        raise InputError(f"unknown ban {name!r}: choose one of {', '.join(BANS)}")
    if BANS[name].needs_phase and scheme != "rope":
        usable = ", ".join(ban.name for ban in BANS.values() if not ban.needs_phase)
        raise InputError(f"ban {name!r} has no meaning under {scheme}, which has no phase: choose one of {usable}")
    return BANS[name]


def orthonormal_rows(w: Rows) -> Rows:
    """`L^-1 W` with `W W^T = L L^T`: rows with the same span, orthonormal; NaN where the rows are dependent."""
    factor, info = torch.linalg.cholesky_ex(w @ w.mT)
    factor = torch.where((info > 0)[..., None, None], torch.nan, factor)
    return torch.linalg.solve_triangular(factor, w, upper=False)


def scaled_orthonormal(w: Rows) -> tuple[Rows, Rows]:
    """`U` and `c U`: orthonormal rows, and those with the Frobenius norm of `w`."""
    rows = orthonormal_rows(w)
    scale = w.square().mean((-2, -1), keepdim=True).sqrt() * w.shape[-1] ** 0.5
    return rows, scale * rows


def real_eigenvalues(d_head: int) -> int:
    """How many eigenvalues of a normal operator are real: even, so that the others pair up."""
    return 2 * round(d_head / 8)


def normal_core(core: Core, eigenvalues: Eigenvalues) -> Core:
    """`O^T B O`, a normal matrix with the eigenvalues `r` (the first few) and `a +- ib` (the others, as pairs).

    `O = (1 - A)^-1 (1 + A)` with `A = core - core^T`, the Cayley transform: orthogonal to rounding whatever the core.
    """
    real = real_eigenvalues(core.shape[-1])
    one, turn = torch.eye(core.shape[-1], dtype=core.dtype, device=core.device), core - core.mT
    basis = torch.linalg.solve(one - turn, one + turn)
    a, b = eigenvalues[..., real::2], eigenvalues[..., real + 1 :: 2]
    # B O, two rows at a time: (a p + b q, -b p + a q) for the rows p, q of a pair.
    p, q = basis[..., real::2, :], basis[..., real + 1 :: 2, :]
    a, b = a[..., None], b[..., None]
    turned = torch.stack([a * p + b * q, a * q - b * p], -2).flatten(-3, -2)
    scaled = torch.cat([eigenvalues[..., :real, None] * basis[..., :real, :], turned], -2)
    return basis.mT @ scaled


def _tied(combine: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], tuple[Tensor, Tensor]]:
    return lambda p: (p["wq"], combine(p["core"]) @ p["wq"])


def _normal(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    _, wq = scaled_orthonormal(p["wq"])
    return wq, normal_core(p["core"], p["eigenvalues"]) @ wq


def _real_spectrum(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    rows, wq = scaled_orthonormal(p["wq"])
    below = torch.tril(p["wk"] @ rows.mT, -1)
    return wq, p["wk"] - below @ rows


def _whitened(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return scaled_orthonormal(p["wq"])[1], p["wk"]


_ALL = (
    Ban("none"),
    Ban("scale-control", mixture=(2**-0.5, 0.0, 0.0, 0.0)),
    Ban("symmetric", mixture=CHANNELS["symmetric"]),
    Ban("antisymmetric", mixture=CHANNELS["antisymmetric"]),
    Ban("phase", mixture=CHANNELS["no_phase"], needs_phase=True),
    Ban("symmetric-phase", mixture=CHANNELS["symmetric_no_phase"], needs_phase=True),
    Ban("antisymmetric-phase", mixture=CHANNELS["antisymmetric_no_phase"], needs_phase=True),
    Ban("static", mixture=CHANNELS["phase_only"], needs_phase=True),
    # (B +- B^T) / sqrt(2) keeps the variance of B's entries.
    Ban("rank-symmetric", weights=_tied(lambda b: (b + b.mT) * 2**-0.5), uses=("core",)),
    Ban("rank-antisymmetric", weights=_tied(lambda b: (b - b.mT) * 2**-0.5), uses=("core",)),
    Ban("semidefinite", weights=lambda p: (p["wq"], p["wq"]), uses=()),
    Ban("rank-control", weights=_tied(lambda b: b), uses=("core",)),
    Ban("normal", weights=_normal, uses=("core", "eigenvalues")),
    Ban("real-spectrum", weights=_real_spectrum),
    Ban("whitening-control", weights=_whitened),
)
BANS: dict[str, Ban] = {ban.name: ban for ban in _ALL}
"""Every ban by name."""

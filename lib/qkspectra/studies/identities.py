"""The identities of the theory chapter, each as a function that returns the error with which it holds.

The operators are small and drawn at random. Here alone, and in the tests, `M` is written out: an identity about `M` can
be checked against nothing else. Errors are relative to the size of the quantity compared.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import scipy.linalg
import torch
from jaxtyping import Complex128, Float64
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from qkspectra.attention import tapped
from qkspectra.behaviour import random_repeats
from qkspectra.channels import CHANNELS, channel_features
from qkspectra.operators import QKOperator, operator_of
from qkspectra.spectrum import measure
from qkspectra.weights import Weights
from qkspectra.weights.layout import LayerQK, Norm, Rotary

HEADS, D_HEAD, D_MODEL, D_ROT, POSITIONS = 16, 6, 20, 4, 8
"""Sizes of the drawn operators; two rows of each head stay unrotated."""

STEP = 1e-5
"""Relative size of the perturbation in `first_order`, whose error is of the order of its square."""

Identity = Callable[[QKOperator, Float64[Tensor, "position d_model"]], float]


def drawn_operator(seed: int) -> QKOperator:
    """Independent Gaussian heads with half-split rotary pairs."""
    rng = np.random.default_rng(seed)
    wq, wk = (torch.from_numpy(rng.standard_normal((HEADS, D_HEAD, D_MODEL))) for _ in range(2))
    t = torch.arange(D_ROT // 2)
    return QKOperator(wq, wk, rotary=Rotary(torch.stack([t, t + D_ROT // 2], 1), 0.7 / (1.0 + t.double())))


def written_out(op: QKOperator) -> Float64[Tensor, "heads d_model d_model"]:
    """`M`, for once: the bilinear form on all pairs of unit vectors."""
    basis = torch.eye(op.wq.shape[2], dtype=torch.float64)
    return op.bilinear(basis, basis)


def relative_error(value: Tensor, expected: Tensor) -> float:
    """`|value - expected| / |expected|`, largest over the heads."""
    difference, size = ((x.flatten(1) if x.ndim > 1 else x[:, None]).norm(dim=1) for x in (value - expected, expected))
    return (difference / size).max().item()


def multiset_error(value: Complex128[Tensor, "heads n"], expected: Complex128[Tensor, "heads n"]) -> float:
    """Largest distance within the best pairing of two sets of eigenvalues, over the spectral radius."""
    worst = 0.0
    for ours, theirs in zip(value.numpy(), expected.numpy(), strict=True):
        distance = np.abs(ours[:, None] - theirs[None, :])
        worst = max(worst, distance[linear_sum_assignment(distance)].max() / np.abs(theirs).max())
    return float(worst)


def bilinear_form(op: QKOperator, x: Tensor) -> float:
    return relative_error((x @ op.wq.mT) @ (x @ op.wk.mT).mT, x @ written_out(op) @ x.mT)


def determinants(op: QKOperator, x: Tensor) -> float:
    z = torch.tensor(2 + 3j, dtype=torch.complex128)
    m, core = written_out(op), op.core()
    left = torch.linalg.det(z * torch.eye(D_MODEL) - m)
    right = z ** (D_MODEL - D_HEAD) * torch.linalg.det(z * torch.eye(D_HEAD) - core)
    return relative_error(left, right)


def nonzero_eigenvalues(op: QKOperator, x: Tensor) -> float:
    of_m = torch.linalg.eigvals(written_out(op))
    largest = of_m.abs().argsort(-1, descending=True)[:, :D_HEAD]
    return multiset_error(measure(op).eigenvalues, of_m.gather(1, largest))


def eigenvectors(op: QKOperator, x: Tensor) -> float:
    m, (values, u) = written_out(op).to(torch.complex128), torch.linalg.eig(op.core())
    r, left = op.wq.mT.to(u.dtype) @ u, torch.linalg.inv(u) @ op.wk.to(u.dtype)
    return max(relative_error(m @ r, r * values[:, None, :]), relative_error(left @ m, values[:, :, None] * left))


def squared_norm(op: QKOperator, x: Tensor) -> float:
    return relative_error(op.norm().square(), written_out(op).square().sum((1, 2)))


def trace_of_square(op: QKOperator, x: Tensor) -> float:
    m, core = written_out(op), op.core()
    return relative_error((core * core.mT).sum((1, 2)), (m @ m).diagonal(dim1=1, dim2=2).sum(1))


def singular_values(op: QKOperator, x: Tensor) -> float:
    return relative_error(op.singular_values(), torch.linalg.svdvals(written_out(op))[:, :D_HEAD])


def orthogonal_parts(op: QKOperator, x: Tensor) -> float:
    return relative_error(op.symmetric().norm().square() + op.antisymmetric().norm().square(), op.norm().square())


def antisymmetric_energy(op: QKOperator, x: Tensor) -> float:
    m = written_out(op)
    return relative_error(
        measure(op).antisymmetric_energy, ((m - m.mT) / 2).square().sum((1, 2)) / m.square().sum((1, 2))
    )


def pure_parts(op: QKOperator, x: Tensor) -> float:
    """The symmetric part has real eigenvalues, the antisymmetric one imaginary ones; both are normal."""
    symmetric, antisymmetric = measure(op.symmetric()), measure(op.antisymmetric())
    overlaps = torch.stack([symmetric.overlaps, antisymmetric.overlaps]) - 1
    rotation = torch.stack([symmetric.eigen_rotation, antisymmetric.eigen_rotation - 1])
    return max(overlaps.abs().max().item(), rotation.abs().max().item())


def departure_from_normality(op: QKOperator, x: Tensor) -> float:
    worst = 0.0
    for head, m in enumerate(written_out(op).numpy()):
        triangle, _ = scipy.linalg.schur(m.astype(np.complex128), output="complex")
        expected = np.linalg.norm(np.triu(triangle, 1)) / np.linalg.norm(m)
        worst = max(worst, abs(measure(op).henrici[head].item() - expected) / expected)
    return float(worst)


def projectors(op: QKOperator, x: Tensor) -> float:
    """Overlaps against the squared norms of the spectral projectors of `M`, from its own eigenvectors on both sides."""
    spectrum, worst = measure(op), 0.0
    for head, m in enumerate(written_out(op).numpy()):
        values, left, right = scipy.linalg.eig(m, left=True, right=True)
        kept = np.argsort(-np.abs(values))[:D_HEAD]
        distance = np.abs(spectrum.eigenvalues[head].numpy()[:, None] - values[kept][None, :])
        ours, theirs = linear_sum_assignment(distance)
        for i, j in zip(ours, kept[theirs], strict=True):
            projector = np.outer(right[:, j], left[:, j].conj()) / (left[:, j].conj() @ right[:, j])
            expected = np.linalg.norm(projector) ** 2
            worst = max(worst, abs(spectrum.overlaps[head, i].item() - expected) / expected)
    return float(worst)


def first_order(op: QKOperator, x: Tensor) -> float:
    """The eigenvalue of largest modulus of each head moves by `eps sqrt(O_ii)` under the worst perturbation."""
    spectrum, worst = measure(op), 0.0
    for head, m in enumerate(written_out(op).numpy()):
        values, left, right = scipy.linalg.eig(m, left=True, right=True)
        top = int(np.argmax(np.abs(values)))
        direction = np.outer(left[:, top], right[:, top].conj())  # of unit norm: SciPy's eigenvectors are
        step = STEP * np.linalg.norm(m)
        moved = [np.linalg.eigvals(m + sign * step * direction) for sign in (1, -1)]
        near = [z[np.argmin(np.abs(z - values[top]))] for z in moved]
        i = int(np.argmin(np.abs(spectrum.eigenvalues[head].numpy() - values[top])))
        expected = math.sqrt(spectrum.overlaps[head, i].item())
        worst = max(worst, abs(abs(near[0] - near[1]) / (2 * step) - expected) / expected)
    return float(worst)


def joint_rotation(op: QKOperator, x: Tensor) -> float:
    turn = torch.linalg.qr(op.wq[0, :, :D_HEAD]).Q
    return relative_error(written_out(replace(op, wq=turn @ op.wq, wk=turn @ op.wk)), written_out(op))


def mean_direction(op: QKOperator, x: Tensor) -> float:
    mu = x.mean(0, keepdim=True)
    bound = mu.square().sum() * op.antisymmetric().norm()
    return (op.antisymmetric().bilinear(mu, mu)[:, 0, 0].abs() / bound).max().item()


def norm_folding(op: QKOperator, x: Tensor) -> float:
    """Scores of a LayerNorm's output from the folded, centred and augmented operator on the standardised input."""
    gain, shift = (1 + x[0] / 4), x[1]
    standard = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True, correction=0)
    y = standard * gain + shift
    layer = LayerQK(0, op.wq, op.wk, None, None, torch.arange(HEADS), 1.0, input_norm=Norm("layer", gain, shift, 0.0))
    folded = operator_of(layer, "norm_folded+centred+bias_augmented")
    ones = torch.cat([standard, torch.ones(POSITIONS, 1)], 1)
    return relative_error(folded.bilinear(ones, ones), op.bilinear(y, y))


def reduced_null(op: QKOperator, x: Tensor) -> float:
    basis, factor = torch.linalg.qr(op.wk.mT, mode="complete")
    turned = op.wq @ basis
    outside = torch.linalg.qr(turned[:, :, D_HEAD:].mT, mode="r").R.mT
    rest = torch.zeros_like(outside)
    small = QKOperator(torch.cat([turned[:, :, :D_HEAD], outside], 2), torch.cat([factor.mT[:, :, :D_HEAD], rest], 2))
    pairs = [(small.core(), op.core()), *zip(small.grams(), op.grams(), strict=True)]
    return max(relative_error(ours, theirs) for ours, theirs in pairs)


def rotary_scores(op: QKOperator, x: Tensor) -> float:
    """Transformers' own rotation of queries and keys against the relative operator, at every pair of positions."""
    rotated = op.rotary.pairs.T.flatten()
    rows = replace(op, wq=op.wq[:, rotated], wk=op.wk[:, rotated])
    angle = torch.arange(len(x))[:, None] * op.rotary.theta
    table = torch.cat([angle, angle], 1)[None]
    q, k = apply_rotary_pos_emb((x @ rows.wq.mT)[None], (x @ rows.wk.mT)[None], table.cos(), table.sin())
    ours = torch.empty(HEADS, len(x), len(x), dtype=torch.float64)
    for i in range(len(x)):
        for j in range(len(x)):
            ours[:, i, j] = rows.relative(i - j).bilinear(x[i : i + 1], x[j : j + 1])[:, 0, 0]
    return relative_error(ours, (q @ k.mT)[0])


def complex_channels(op: QKOperator, x: Tensor) -> float:
    worst = 0.0
    for t, (a, b) in enumerate(op.rotary.pairs.tolist()):
        q, k = (torch.complex(w[:, a], w[:, b]) for w in (op.wq, op.wk))
        m = q.conj()[:, :, None] * k[:, None, :]
        parts = written_out(op.real_channel(t)), written_out(op.phase_channel(t))
        worst = max(worst, relative_error(parts[0], m.real), relative_error(parts[1], m.imag))
    return worst


def sum_of_channels(op: QKOperator, x: Tensor) -> float:
    alone = [row for row in range(D_HEAD) if row not in op.rotary.pairs]
    unrotated = written_out(QKOperator(op.wq[:, alone], op.wk[:, alone]))
    worst = 0.0
    for delta in range(-POSITIONS, POSITIONS):
        total = unrotated.clone()
        for t, theta in enumerate(op.rotary.theta.tolist()):
            total += written_out(op.real_channel(t)) * math.cos(theta * delta)
            total += written_out(op.phase_channel(t)) * math.sin(theta * delta)
        worst = max(worst, relative_error(written_out(op.relative(delta)), total))
    return worst


def zeroed_phase(op: QKOperator, x: Tensor) -> float:
    """Inner products of the features without phase against the part of the scores that is even in the distance."""
    first, second = op.rotary.pairs.T
    angle = torch.arange(len(x))[:, None] * op.rotary.theta

    def rotate(rows: Tensor, sign: int) -> Tensor:
        turned = torch.complex(rows[..., first], rows[..., second]) * torch.exp(1j * sign * angle)
        out = rows.clone()
        out[..., first], out[..., second] = turned.real, turned.imag
        return out

    left, right = channel_features(x @ op.wq.mT, x @ op.wk.mT, CHANNELS["no_phase"], rotate)
    even = torch.empty(HEADS, len(x), len(x), dtype=torch.float64)
    for i in range(len(x)):
        for j in range(len(x)):
            both = (op.relative(sign * (i - j)).bilinear(x[i : i + 1], x[j : j + 1]) for sign in (1, -1))
            even[:, i, j] = sum(both)[:, 0, 0] / 2
    return relative_error(left @ right.mT, even)


def row_order(op: QKOperator, x: Tensor) -> float:
    """Rows in another order: `M` is the same, and so are the channels once the pairs follow their rows."""
    order = torch.arange(D_HEAD).flip(0)
    moved = replace(op, wq=op.wq[:, order], wk=op.wk[:, order])
    follow = replace(moved, rotary=replace(op.rotary, pairs=order.argsort()[op.rotary.pairs]))
    split = relative_error(measure(follow).phase_energy, measure(op).phase_energy)
    return max(relative_error(written_out(moved), written_out(op)), split)


def telescoping(op: QKOperator, x: Tensor) -> float:
    """Preferences of a symmetric operator for the token before over the token after, summed along the sequence."""
    scores = op.symmetric().bilinear(x, x)
    before, after = scores.diagonal(-1, 1, 2)[:, :-1], scores.diagonal(1, 1, 2)[:, 1:]
    return relative_error((before - after).sum(1), scores[:, 1, 0] - scores[:, -1, -2])


def previous_token_head(rotary: Rotary, seed: int, d_model: int = D_MODEL) -> QKOperator:
    """A head with a symmetric operator that looks one position back: `q_t = a_t`, `k_t = a_t exp(i theta_t)`.

    `a_t = x . w_t` for random orthonormal rows `w_t`. Then `M = sum_t w_t^T w_t cos(theta_t)` is symmetric and
    `M(delta) = sum_t w_t^T w_t cos(theta_t (delta - 1))` is largest at `delta = 1`.
    """
    frequencies = len(rotary.theta)
    rng = np.random.default_rng(seed)
    rows = torch.from_numpy(np.linalg.qr(rng.standard_normal((d_model, frequencies))).Q.T.copy())
    wq, wk = (torch.zeros(1, 2 * frequencies, d_model, dtype=torch.float64) for _ in range(2))
    first, second = rotary.pairs.T
    wq[0, first] = rows
    wk[0, first], wk[0, second] = rows * rotary.theta.cos()[:, None], rows * rotary.theta.sin()[:, None]
    return QKOperator(wq, wk, rotary=rotary, name="the constructed previous-token head")


def symmetric_head(op: QKOperator, x: Tensor) -> float:
    head = previous_token_head(op.rotary, seed=0)
    worst = relative_error(written_out(head.transposed()), written_out(head))
    rows = head.wq[0, op.rotary.pairs[:, 0]]
    for delta in range(-POSITIONS, POSITIONS):
        expected = (rows.mT * (op.rotary.theta * (delta - 1)).cos()) @ rows
        worst = max(worst, relative_error(written_out(head.relative(delta)), expected[None]))
    return worst


IDENTITIES: dict[str, tuple[str, Identity]] = {
    "eq-score": (r"scores from the rows and from $M$", bilinear_form),
    "eq-determinant": (r"$\det(z - M) = z^{d - n} \det(z - C)$", determinants),
    "eq-eigenvalues": (r"nonzero eigenvalues of $M$ from $C$", nonzero_eigenvalues),
    "eq-eigenvectors": (r"eigenvectors of $M$ from those of $C$", eigenvectors),
    "eq-norm": (r"$\lVert M \rVert^2 = \operatorname{tr}(G_q G_k)$", squared_norm),
    "eq-square": (r"$\operatorname{tr} M^2 = \operatorname{tr} C^2$", trace_of_square),
    "eq-singular": (r"singular values from two triangles", singular_values),
    "eq-pythagoras": (r"$\lVert S \rVert^2 + \lVert A \rVert^2 = \lVert M \rVert^2$", orthogonal_parts),
    "eq-energy": (r"antisymmetric energy from traces", antisymmetric_energy),
    "eq-pure": (r"spectra of $S$ and of $A$", pure_parts),
    "eq-henrici": (r"departure from normality", departure_from_normality),
    "eq-overlap": (r"overlaps as squared norms of projectors", projectors),
    "eq-first-order": (r"overlaps as condition numbers", first_order),
    "eq-turn": (r"$(U W_q)^\top (U W_k) = M$", joint_rotation),
    "eq-mean": (r"$\mu A \mu^\top = 0$", mean_direction),
    "eq-fold": (r"a LayerNorm folded, centred, its shift augmented", norm_folding),
    "eq-reduced": (r"$C$, $G_q$, $G_k$ of reduced rows", reduced_null),
    "eq-rotated": (r"relative scores against `rotate_half`", rotary_scores),
    "eq-channels": (r"channels as parts of a complex form", complex_channels),
    "eq-relative": (r"$M(\Delta)$ as a sum over channels", sum_of_channels),
    "eq-order": (r"rows in another order", row_order),
    "eq-even": (r"zeroed phase as the even part", zeroed_phase),
    "eq-symmetric-head": (r"a symmetric head that looks one back", symmetric_head),
    "eq-telescope": (r"preferences of a symmetric head telescope", telescoping),
}
"""Label of the equation in the chapter to what it says and the function that checks it."""


def errors(draws: int, seed: int) -> dict[str, float]:
    """Largest error of each identity over `draws` operators of `HEADS` heads."""
    largest = dict.fromkeys(IDENTITIES, 0.0)
    for draw in range(draws):
        op = drawn_operator(seed + draw)
        x = torch.from_numpy(np.random.default_rng([seed, draw]).standard_normal((POSITIONS, D_MODEL)))
        for label, (_, identity) in IDENTITIES.items():
            largest[label] = max(largest[label], identity(op, x))
    return largest


def rounded(op: QKOperator, dtype: torch.dtype) -> QKOperator:
    """The operator of the same rows, stored in `dtype`."""
    return replace(op, wq=op.wq.to(dtype).double(), wk=op.wk.to(dtype).double())


def kernel(
    op: QKOperator, x: Float64[Tensor, " d_model"], distances: Float64[Tensor, " distances"]
) -> Float64[Tensor, "heads distances"]:
    """`x M(delta) x^T` at each distance: the score of a token with a copy of itself `delta` positions before it."""
    values = [op.relative(delta).bilinear(x[None], x[None])[:, 0, 0] for delta in distances.tolist()]
    return torch.stack(values, 1)


def layer_inputs(weights: Weights, layer: int, length: int, seed: int) -> Float64[Tensor, "position d_model"]:
    """What enters an attention layer of the running model at each position of a sequence of distinct random tokens."""
    model, inputs = weights.load(device="cpu"), {}
    tokens = random_repeats(weights.layout, 1, length, seed)[:, :length]
    with torch.no_grad(), tapped(weights.attention_modules(model), on_input=inputs.__setitem__):
        model(tokens)
    return inputs[layer][0].double()

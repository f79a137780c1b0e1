"""The query-key operator of attention heads, always in factored form.

A head scores a pair of tokens, row vectors `x_i` and `x_j`, by the bilinear form `x_i M x_j^T` with
`M = W_q^T W_k`, of shape `(d_model, d_model)` and rank at most `d_head` (Elhage et al. 2021, the "QK circuit"). `M` is
never formed: the `d_head`-sized matrices

    C = W_k W_q^T,    G_q = W_q W_q^T,    G_k = W_k W_k^T

carry everything. `C` has the nonzero eigenvalues of `M`, `tr(C^2) = tr(M^2)` and `tr(G_q G_k) = ||M||_F^2`.

Under rotary positions the score at distance `delta = i - j` is `x_i M(delta) x_j^T` with

    M(delta) = sum_t [Re M_t cos(theta_t delta) + Im M_t sin(theta_t delta)] + (unrotated rows)
    Re M_t = A_q^T A_k + B_q^T B_k,    Im M_t = A_q^T B_k - B_q^T A_k

where `A` and `B` are the two rows that frequency `t` rotates; `M = M(0)`. The score scale is never part of `M`.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from qkspectra.errors import InputError
from qkspectra.weights.layout import LayerQK, Norm, Rotary

CONVENTIONS = ("raw", "norm_folded", "centred", "bias_augmented")
"""What `x` is taken to be; all but `raw` can be joined by `+` and are applied in this order (see `operator_of`)."""


@dataclass(frozen=True)
class QKOperator:
    """`M = W_q^T W_k` of several heads of one shape.

    Attributes:
        wq, wk: query and key rows, one pair of blocks per query head: `q = x wq^T + bq`, `k = x wk^T + bk`.
        bq, bk: biases of query and key; both or neither.
        rotary: the row pairs that positions rotate, `None` where positions do not act on rows.
        convention: what has been folded into the rows; it travels with every result.
        name: what an error message calls this operator.
    """

    wq: Float64[Tensor, "heads d_head d_model"]
    wk: Float64[Tensor, "heads d_head d_model"]
    bq: Float64[Tensor, "heads d_head"] | None = None
    bk: Float64[Tensor, "heads d_head"] | None = None
    rotary: Rotary | None = None
    convention: str = "raw"
    name: str = "operator"

    @classmethod
    def from_rows(
        cls,
        wq: Float[Tensor, "heads d_head d_model"],
        wk: Float[Tensor, "heads d_head d_model"],
        rotary: Rotary | None = None,
    ) -> "QKOperator":
        """The operator of weights of any floating type on any device; they are upcast before any multiplication."""
        return cls(wq.detach().to("cpu", torch.float64), wk.detach().to("cpu", torch.float64), rotary=rotary)

    def chunk(self, parts: int) -> list["QKOperator"]:
        """The heads in at most `parts` operators, in order; nothing is copied."""
        names = ("wq", "wk", "bq", "bk")
        split = [[None] * parts if x is None else x.chunk(parts) for x in (getattr(self, name) for name in names)]
        return [replace(self, **dict(zip(names, part, strict=True))) for part in zip(*split, strict=False)]

    def core(self) -> Float64[Tensor, "heads d_head d_head"]:
        """`C = W_k W_q^T`: its eigenvalues are the nonzero eigenvalues of `M`, with multiplicity."""
        return self.wk @ self.wq.mT

    def grams(self) -> tuple[Float64[Tensor, "heads d_head d_head"], Float64[Tensor, "heads d_head d_head"]]:
        """`G_q = W_q W_q^T` and `G_k = W_k W_k^T`."""
        return self.wq @ self.wq.mT, self.wk @ self.wk.mT

    def norm(self) -> Float64[Tensor, " heads"]:
        """Frobenius norm `||M||_F = sqrt(tr(G_q G_k))`."""
        gq, gk = self.grams()
        return (gq * gk).sum((-2, -1)).clamp_min(0).sqrt()

    def singular_values(self) -> Float64[Tensor, "heads d_head"]:
        """Singular values of `M`, descending: those of `R_q R_k^T` with `W_q^T = Q_q R_q`, `W_k^T = Q_k R_k`.

        For `d_head > d_model` only the first `d_model` of them exist and are returned.
        """
        rq = torch.linalg.qr(self.wq.mT, mode="r").R
        rk = torch.linalg.qr(self.wk.mT, mode="r").R
        return torch.linalg.svdvals(rq @ rk.mT)

    def bilinear(
        self, x: Float64[Tensor, "query d_model"], y: Float64[Tensor, "key d_model"]
    ) -> Float64[Tensor, "heads query key"]:
        """`x M y^T` for every pair of rows of `x` and `y`; biases, if any, are left out."""
        return (x @ self.wq.mT) @ (y @ self.wk.mT).mT

    def transposed(self) -> "QKOperator":
        """`M^T`: query and key exchange roles."""
        return replace(self, wq=self.wk, wk=self.wq, bq=self.bk, bk=self.bq)

    def symmetric(self) -> "QKOperator":
        """`S = (M + M^T) / 2`, the content-like part, with twice the rows."""
        return self._part(1)

    def antisymmetric(self) -> "QKOperator":
        """`A = (M - M^T) / 2`, the rotational part, with twice the rows."""
        return self._part(-1)

    def _part(self, sign: int) -> "QKOperator":
        return QKOperator(
            torch.cat([self.wq, sign * self.wk], 1) / 2,
            torch.cat([self.wk, self.wq], 1),
            convention=self.convention,
            name=self.name,
        )

    def relative(self, delta: float | int) -> "QKOperator":
        """`M(delta)`, the operator between a query and a key `delta = i - j` positions before it.

        The query rows turn by `theta_t delta`; `op.relative(a).relative(b)` equals `op.relative(a + b)`.
        Without rotary positions the operator does not depend on the distance.
        """
        if self.rotary is None:
            return self
        angle = self.rotary.theta * delta
        bq = None if self.bq is None else _rotated(self.bq[..., None], self.rotary, angle)[..., 0]
        return replace(self, wq=_rotated(self.wq, self.rotary, angle), bq=bq)

    def real_channel(self, t: int) -> "QKOperator":
        """`Re M_t = A_q^T A_k + B_q^T B_k`, the part of frequency `t` that is even in the distance; rank at most 2."""
        a, b = self._pair(t)
        return self._rows([a, b], [a, b], [1.0, 1.0])

    def phase_channel(self, t: int) -> "QKOperator":
        """`Im M_t = A_q^T B_k - B_q^T A_k`, the part of frequency `t` that is odd in the distance; rank at most 2."""
        a, b = self._pair(t)
        return self._rows([a, b], [b, a], [1.0, -1.0])

    def _pair(self, t: int) -> list[int]:
        if self.rotary is None:
            raise ValueError(f"{self.name} has no rotary frequencies: it has no phase channels")
        return self.rotary.pairs[t].tolist()

    def _rows(self, query: list[int], key: list[int], sign: list[float]) -> "QKOperator":
        signs = self.wk.new_tensor(sign)
        return replace(
            self,
            wq=self.wq[:, query],
            wk=self.wk[:, key] * signs[:, None],
            bq=None if self.bq is None else self.bq[:, query],
            bk=None if self.bk is None else self.bk[:, key] * signs,
            rotary=None,
        )


def _rotated(
    rows: Float64[Tensor, "heads d_head width"], rotary: Rotary, angle: Float64[Tensor, " freq"]
) -> Float64[Tensor, "heads d_head width"]:
    a, b = rows[:, rotary.pairs[:, 0]], rows[:, rotary.pairs[:, 1]]
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    out = rows.clone()
    out[:, rotary.pairs[:, 0]] = a * cos - b * sin
    out[:, rotary.pairs[:, 1]] = b * cos + a * sin
    return out


def operator_of(layer: LayerQK, convention: str = "raw") -> QKOperator:
    """The operator of every query head of an attention layer; grouped key heads are repeated for their queries.

    Conventions, several of them joined by `+` (order does not matter):

    - `raw`: `x` is the input of the attention block; the rows are the stored weights.
    - `norm_folded`: `x` is what the norm in front of the block returns before its affine part: `diag(g) M diag(g)` for
      the gain `g`. A LayerNorm's shift `b` moves to the biases: `bq + W_q b`, `bk + W_k b`.
    - `centred`: `x` has zero mean, as a LayerNorm's output before its affine part: `P M P` with
      `P = 1 - 11^T / d_model`. Under a LayerNorm with a gain, join it to `norm_folded`.
    - `bias_augmented`: `x` gains a last coordinate 1, and the biases become a last column of the rows.

    Whatever the convention: a query or key norm divides by a scalar that depends on the token and may add a shift. Both
    are left out, while its mean subtraction and gain are folded into the rows (`qk_gain` joins the convention). Yarn's
    factor on the rotated rows is folded (`rotary_factor`). A bound on `q` and `k` or on the score is not linear: the
    operator is the one before it (`before_clip`, `before_softcap`).

    Raises:
        InputError: an unknown convention; one that the layer does not have (no norm in front of the block, no bias);
            `bias_augmented` under a query or key norm, where the weight of the biases depends on the token.
    """
    steps = _steps(convention)
    wq, wk = layer.wq.double(), layer.wk.double()
    bq, bk = _both(layer.bq, layer.bk, wq, wk)

    if "norm_folded" in steps:
        norm = _input_norm(layer, "norm_folded")
        if norm.bias is not None:
            shift = norm.bias.double()
            bq = wq @ shift + (0 if bq is None else bq)
            bk = wk @ shift + (0 if bk is None else bk)
        if norm.weight is not None:
            wq, wk = wq * norm.weight.double(), wk * norm.weight.double()
    if "centred" in steps:
        if _input_norm(layer, "centred").kind != "layer":
            raise InputError(
                f"layer {layer.layer} has an RMS norm in front of its attention, which keeps the mean: "
                "the convention 'centred' is for LayerNorm"
            )
        wq, wk = wq - wq.mean(-1, keepdim=True), wk - wk.mean(-1, keepdim=True)

    declared = []
    if layer.q_norm is not None or layer.k_norm is not None:
        if "bias_augmented" in steps:
            raise InputError(
                f"layer {layer.layer} normalises its queries or keys, so its biases have no fixed weight in the score: "
                "leave 'bias_augmented' out"
            )
        wq, bq = _gain_folded(wq, bq, layer.q_norm, layer.norm_across_heads)
        wk, bk = _gain_folded(wk, bk, layer.k_norm, layer.norm_across_heads)
        declared.append("qk_gain")
    if layer.rotary is not None and layer.rotary.factor != 1:
        wq, bq = _factor_folded(wq, bq, layer.rotary)
        wk, bk = _factor_folded(wk, bk, layer.rotary)
        declared.append("rotary_factor")
    if layer.clip is not None:
        declared.append("before_clip")
    if layer.softcap is not None:
        declared.append("before_softcap")

    wk = wk[layer.kv_head]
    bk = None if bk is None else bk[layer.kv_head]
    if "bias_augmented" in steps:
        if bq is None or bk is None:
            raise InputError(f"layer {layer.layer} has no query or key biases: leave 'bias_augmented' out")
        wq, wk = torch.cat([wq, bq[..., None]], -1), torch.cat([wk, bk[..., None]], -1)
        bq = bk = None
    rotary = None if layer.rotary is None else replace(layer.rotary, factor=1.0)
    label = "+".join([*(step for step in CONVENTIONS if step in steps), *declared])
    return QKOperator(wq, wk, bq, bk, rotary, label, f"layer {layer.layer}")


def applicable(layer: LayerQK, convention: str) -> str:
    """The steps of a convention that would change the operator of a layer, `raw` where none would.

    What a layer lacks leaves its operator as it is: without a norm in front of the block there is no gain, an RMS norm
    keeps the mean, and without biases the last coordinate adds nothing. The steps that are left therefore give the
    layer's operator under the whole convention, and models of different make can be compared under one. Under a query
    or key norm, where the biases have no fixed weight, they are left out too.

    Raises:
        InputError: an unknown convention.
    """
    steps = _steps(convention)
    norm = layer.input_norm
    folded = norm is not None and "norm_folded" in steps
    biased = layer.bq is not None or layer.bk is not None or (folded and norm.bias is not None)
    has = {
        "norm_folded": norm is not None,
        "centred": norm is not None and norm.kind == "layer",
        "bias_augmented": biased and layer.q_norm is None and layer.k_norm is None,
    }
    return "+".join(step for step in CONVENTIONS if step in steps and has.get(step)) or "raw"


def _steps(convention: str) -> set[str]:
    steps = set(convention.split("+"))
    unknown = sorted(steps - set(CONVENTIONS))
    if unknown or ("raw" in steps and len(steps) > 1):
        raise InputError(
            f"unknown convention {convention!r}: use raw, or norm_folded, centred and bias_augmented, joined by +"
        )
    return steps


def _input_norm(layer: LayerQK, convention: str) -> Norm:
    if layer.input_norm is None:
        raise InputError(
            f"layer {layer.layer} has no norm in front of its attention: use 'raw' instead of {convention!r}"
        )
    return layer.input_norm


def _both(bq: Tensor | None, bk: Tensor | None, wq: Tensor, wk: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Both biases or neither: a missing one is zero where the other exists."""
    if bq is None and bk is None:
        return None, None
    return (
        wq.new_zeros(wq.shape[:2]) if bq is None else bq.double(),
        wk.new_zeros(wk.shape[:2]) if bk is None else bk.double(),
    )


def _gain_folded(
    w: Float64[Tensor, "heads d_head d_model"],
    b: Float64[Tensor, "heads d_head"] | None,
    norm: Norm | None,
    across_heads: bool,
) -> tuple[Float64[Tensor, "heads d_head d_model"], Float64[Tensor, "heads d_head"] | None]:
    """Mean subtraction and gain of a query or key norm, as the linear maps of the rows that they are."""
    if norm is None:
        return w, b
    axes = (0, 1) if across_heads else (1,)
    if norm.kind == "layer":
        w = w - w.mean(axes, keepdim=True)
        b = None if b is None else b - b.mean(axes, keepdim=True)
    if norm.weight is not None:
        gain = norm.weight.double()
        w, b = w * gain[..., None], None if b is None else b * gain
    return w, b


def _factor_folded(
    w: Float64[Tensor, "heads d_head d_model"], b: Float64[Tensor, "heads d_head"] | None, rotary: Rotary
) -> tuple[Float64[Tensor, "heads d_head d_model"], Float64[Tensor, "heads d_head"] | None]:
    factor = w.new_ones(w.shape[1])
    factor[rotary.pairs.flatten()] = rotary.factor
    return w * factor[:, None], None if b is None else b * factor

"""What the rest of the library knows of an attention layer: its query and key maps and how position enters.

Everything architecture-specific is resolved in `families`; nothing to the right of this module names an architecture.
"""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float64, Int64
from torch import Tensor

Scheme = Literal["rope", "absolute", "alibi", "none"]
SCHEMES: dict[Scheme, str] = {
    "rope": "rotary (RoPE)",
    "absolute": "learned-absolute",
    "alibi": "ALiBi",
    "none": "none",
}
"""Schemes as tables for readers call them."""


@dataclass(frozen=True)
class Rotary:
    """Rotary position embedding of a head (Su et al. 2021, RoFormer, eq. 34).

    Frequency `t` rotates the row pair `(a, b) = pairs[t]` of a head's query and key by `theta[t] * position`:
    `a' = a cos - b sin`, `b' = b cos + a sin`. Rows in no pair are left alone (partial rotary).

    Attributes:
        pairs: row indices of each rotated pair; half-split `(t, t + d_rot/2)` or interleaved `(2t, 2t+1)`.
        theta: radians per position, after any long-context rescaling (llama3, yarn, linear).
        factor: multiplies both cosine and sine tables (yarn's attention factor), so that scores of the rotated
            rows carry `factor ** 2`.
    """

    pairs: Int64[Tensor, "freq 2"]
    theta: Float64[Tensor, " freq"]
    factor: float = 1.0


@dataclass(frozen=True)
class Norm:
    """A normalisation and its affine part: `(x - mean) / sqrt(var + eps) * weight + bias` or the RMS form.

    Attributes:
        kind: `layer` subtracts the mean, `rms` does not.
        weight: the gain as it multiplies (Gemma's `1 + w` is resolved), `None` for no gain. For a query/key norm the
            shape is `(heads, d_head)`; for the norm in front of the attention block it is `(d_model,)`.
        bias: the shift, `None` for none.
        eps: added to the mean square.
    """

    kind: Literal["layer", "rms"]
    weight: Float64[Tensor, "*shape"] | None
    bias: Float64[Tensor, "*shape"] | None
    eps: float


@dataclass(frozen=True)
class LayerQK:
    """Queries and keys of one attention layer: `q = x wq^T + bq`, `k = x wk^T + bk` for a row vector `x`.

    `x` is the attention block's input, after the norm in front of it (`input_norm`; `None` in post-norm models).

    Attributes:
        wq: query rows of each head.
        wk: key rows of each key-value head.
        bq, bk: biases, `None` where the model has none.
        kv_head: the key-value head that each query head reads.
        scale: multiplies `q k^T` (`1/sqrt(d_head)` in most families).
        rotary: rotary embedding of this layer, `None` under other schemes.
        q_norm, k_norm: normalisation of query and key before the rotation. Gains are per query head and per key-value
            head; `norm_across_heads` says that the mean square runs over all heads together (OLMo 2).
        clip: bound on the magnitude of q and k right after the projection (OLMo's `clip_qkv`).
        softcap: `s -> softcap * tanh(s / softcap)` after scaling (Gemma 2).
        alibi: slope of each head; the score gains `-slope * (i - j)` up to a constant of the row.
        alibi_scaled: whether the ALiBi bias is itself multiplied by `scale` (Falcon).
        alibi_rounded: whether slope, `j` and `slope * j` are rounded to bfloat16 before they enter the score (Falcon).
        window: keys further back than `window - 1` are masked; `None` for full attention.
        causal: whether later keys are masked.
        input_norm: the norm that produces `x`, for the norm-folded and centred conventions.
    """

    layer: int
    wq: Float64[Tensor, "heads d_head d_model"]
    wk: Float64[Tensor, "kv_heads d_head d_model"]
    bq: Float64[Tensor, "heads d_head"] | None
    bk: Float64[Tensor, "kv_heads d_head"] | None
    kv_head: Int64[Tensor, " heads"]
    scale: float
    rotary: Rotary | None = None
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    norm_across_heads: bool = False
    clip: float | None = None
    softcap: float | None = None
    alibi: Float64[Tensor, " heads"] | None = None
    alibi_scaled: bool = False
    alibi_rounded: bool = False
    window: int | None = None
    causal: bool = True
    input_norm: Norm | None = None


@dataclass(frozen=True)
class ModelLayout:
    """Sizes and position scheme of a model, from its configuration alone.

    Attributes:
        family: the `model_type` of the configuration.
        scheme: where position enters: `rope`, `absolute` (vectors added to the input), `alibi`, `none`.
        d_rot: rotated rows of a head; 0 unless the scheme is `rope`.
        vocab: number of token ids, for drawing random sequences.
        max_positions: longest sequence the model accepts, `None` where nothing bounds it.
    """

    family: str
    scheme: Scheme
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_model: int
    d_head: int
    d_rot: int
    vocab: int
    max_positions: int | None
    causal: bool = True

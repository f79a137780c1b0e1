"""Pre-softmax scores of a layer, rebuilt from its extracted queries and keys."""

from dataclasses import replace

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from qkspectra.channels import CHANNELS, Mixture, Rotate, channel_features
from qkspectra.weights.layout import LayerQK, Norm, Rotary


def rebuilt_scores(
    layer: LayerQK,
    x: Float[Tensor, "batch position d_model"],
    mixture: Mixture = CHANNELS["full"],
    positions: Int64[Tensor, " position"] | None = None,
) -> Float64[Tensor, "batch heads position position"]:
    """What the softmax of an attention layer is given, masked entries `-inf`; in float64.

    With `q = clip(x wq^T + bq)` and `k = clip(x wk^T + bk)`, normalised where the layer normalises them, rotated by
    `theta * position` where it is rotary:

        score(i, j) = cap(scale * channel(q_i, k_j) + bias(i, j)),    bias(i, j) = -slope * (i - j) under ALiBi

    with `cap(s) = softcap * tanh(s / softcap)` where the layer caps. ALiBi's bias equals the model's own up to a
    constant of each row, which the softmax does not see (Press et al. 2022, arXiv 2108.12409).

    Args:
        layer: extracted queries and keys.
        x: the attention block's input, after the norm in front of it.
        mixture: the part of the operator to keep (`channels.CHANNELS`).
        positions: where each token stands for the rotation and the ALiBi bias; `0, 1, 2, ...` by default. The mask
            follows the order of the sequence.

    Returns:
        `(batch, heads, query, key)`.
    """
    x = x.to(torch.float64)
    order = torch.arange(x.shape[1])
    positions = order if positions is None else positions
    q, k = queries_and_keys(layer, x)
    left, right = channel_features(q, k[:, layer.kv_head], mixture, _rotation(layer.rotary, positions))
    scores = layer.scale * left @ right.mT
    if layer.alibi is not None:
        scores = scores + _alibi(layer, layer.alibi, positions)
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    back = order[:, None] - order
    hidden = torch.zeros_like(back, dtype=torch.bool)
    if layer.causal:
        hidden |= back < 0
    if layer.window is not None:
        hidden |= back >= layer.window
    return scores.masked_fill(hidden, -torch.inf)


def position_alone(layer: LayerQK, length: int) -> Float64[Tensor, "heads position position"]:
    """The attention pattern of each head if its operator were zero: what mask and position bias do by themselves.

    Uniform over the visible keys, but for ALiBi's slopes. It is where a head starts at initialisation, so that part of
    its previous-token score was never learned.
    """
    empty = replace(layer, bq=None, bk=None, q_norm=None, k_norm=None)
    return rebuilt_scores(empty, torch.zeros(1, length, layer.wq.shape[-1], dtype=torch.float64))[0].softmax(-1)


def _alibi(
    layer: LayerQK, slope: Float64[Tensor, " heads"], positions: Int64[Tensor, " position"]
) -> Float64[Tensor, "heads position position"]:
    """`-slope * (i - j)`, with the rounding of `slope * j` where the model rounds it."""
    toward = slope[:, None] * positions
    if layer.alibi_rounded:
        toward = (slope.to(torch.bfloat16)[:, None] * positions).to(torch.float64)
    bias = toward[:, None, :] - (slope[:, None] * positions)[:, :, None]
    return layer.scale * bias if layer.alibi_scaled else bias


def queries_and_keys(
    layer: LayerQK, x: Float64[Tensor, "batch position d_model"]
) -> tuple[Float64[Tensor, "batch heads position d_head"], Float64[Tensor, "batch kv_heads position d_head"]]:
    """Queries and keys before the rotation: projected, shifted, clipped and normalised as the layer does."""
    out = []
    for weight, bias, norm in ((layer.wq, layer.bq, layer.q_norm), (layer.wk, layer.bk, layer.k_norm)):
        y = x[:, None] @ weight.mT
        if bias is not None:
            y = y + bias[:, None]
        if layer.clip is not None:
            y = y.clamp(-layer.clip, layer.clip)
        out.append(y if norm is None else _normalised(y, norm, layer.norm_across_heads))
    return out[0], out[1]


def _normalised(
    y: Float64[Tensor, "batch heads position d_head"], norm: Norm, across_heads: bool
) -> Float64[Tensor, "batch heads position d_head"]:
    axes = (1, 3) if across_heads else (3,)
    if norm.kind == "layer":
        y = y - y.mean(axes, keepdim=True)
    y = y / (y.square().mean(axes, keepdim=True) + norm.eps).sqrt()
    if norm.weight is not None:
        y = y * norm.weight[:, None]
    return y if norm.bias is None else y + norm.bias[:, None]


def _rotation(rotary: Rotary | None, positions: Int64[Tensor, " position"]) -> Rotate | None:
    if rotary is None:
        return None
    first, second = rotary.pairs.T
    angle = positions[:, None] * rotary.theta
    cos, sin = rotary.factor * angle.cos(), rotary.factor * angle.sin()

    def rotate(y: Tensor, sign: int) -> Tensor:
        a, b, turned = y[..., first], y[..., second], y.clone()
        turned[..., first] = a * cos - sign * b * sin
        turned[..., second] = b * cos + sign * a * sin
        return turned

    return rotate

"""Rotary frequencies from a model's configuration, in float64.

One resolver for every way a configuration has spelled them; Transformers gathers old spellings (`rope_theta`,
`rotary_pct`, `rope_scaling`) in `rope_parameters`, and whatever is not understood there is refused.
"""

import math
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from qkspectra.errors import InputError
from qkspectra.weights.layout import Rotary

_KNOWN = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {
        "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim", "truncate",
    },
    "longrope": {"factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor"},
}  # fmt: skip
_REQUIRED = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "original_max_position_embeddings"),
}
_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


def pair_rows(d_rot: int, interleaved: bool) -> Tensor:
    """Rows that rotate together: `(2t, 2t+1)` interleaved, `(t, t + d_rot/2)` half-split; `(d_rot/2, 2)`."""
    rows = torch.arange(d_rot)
    return rows.reshape(-1, 2) if interleaved else rows.reshape(2, -1).T.contiguous()


def base_frequencies(base: float, d_rot: int) -> Float64[Tensor, " freq"]:
    """`theta_t = base^(-2t/d_rot)` radians per position (Su et al. 2021, section 3.2.2)."""
    return base ** (-torch.arange(0, d_rot, 2, dtype=torch.float64) / d_rot)


def rotary(parameters: dict[str, Any], d_rot: int, max_positions: int, interleaved: bool = False) -> Rotary:
    """The rotary embedding that `rope_parameters` describes.

    Args:
        parameters: `rope_parameters` of one layer.
        d_rot: rotated rows of a head.
        max_positions: `max_position_embeddings`; the length behind the default of longrope's factor.
        interleaved: which rows form a pair.

    Raises:
        InputError: no base, an unknown kind of scaling, or a parameter of it that is unknown, missing, or no such
            number.
    """
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in _KNOWN:
        raise InputError(f"rotary scaling of type {kind} is not supported (supported: {', '.join(_KNOWN)})")
    unknown = set(parameters) - _KNOWN[kind] - _COMMON
    if unknown:
        raise InputError(f"rotary scaling {kind} with {', '.join(sorted(unknown))} is not supported")
    missing = [name for name in _REQUIRED.get(kind, ()) if parameters.get(name) is None]
    if missing:
        raise InputError(f"rotary scaling {kind} lacks {', '.join(missing)} in the configuration")
    base = parameters.get("rope_theta")
    if base is None:
        raise InputError("the configuration names no rotary base: add rope_theta to it")
    try:
        theta, factor = _scaled(kind, float(base), d_rot, max_positions, parameters)
    except (TypeError, ValueError, ArithmeticError):
        raise InputError(f"rotary parameters {parameters} are no numbers that make sense") from None
    if not (torch.isfinite(theta).all() and (theta > 0).all() and math.isfinite(factor)):
        raise InputError(f"rotary parameters {parameters} lead to frequencies that are not positive numbers")
    return Rotary(pairs=pair_rows(d_rot, interleaved), theta=theta, factor=factor)


def _scaled(kind: str, base: float, d_rot: int, max_positions: int, p: dict[str, Any]) -> tuple[Tensor, float]:
    theta, factor = base_frequencies(base, d_rot), 1.0
    if kind == "linear":  # positions divided by the factor (Chen et al. 2023, arXiv 2306.15595)
        theta = theta / p["factor"]
    elif kind == "llama3":
        theta = _llama3(theta, p)
    elif kind == "yarn":
        theta, factor = _yarn(theta, base, d_rot, p)
    elif kind == "longrope":
        theta, factor = _longrope(theta, max_positions, p)
    # "dynamic" rescales the base beyond max_positions only, where no sequence is measured.
    return theta, factor


def longest(parameters: dict[str, Any], max_positions: int | None) -> int | None:
    """Positions over which one set of frequencies holds: longrope switches beyond its original length."""
    if (parameters.get("rope_type") or parameters.get("type")) != "longrope":
        return max_positions
    length = parameters.get("original_max_position_embeddings")
    if not isinstance(length, int) or length < 1:
        raise InputError(f"rotary scaling longrope with original_max_position_embeddings={length} makes no sense")
    return length


def rotated_rows(parameters: dict[str, Any], d_head: int) -> int:
    """`d_rot`: the share of a head that `partial_rotary_factor` says, all of it by default.

    Raises:
        InputError: a share that is none, or rows that make no pairs.
    """
    share = parameters.get("partial_rotary_factor", 1.0)
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise InputError(f"a partial_rotary_factor of {share} is not a share of the head")
    return even(int(d_head * share))


def even(d_rot: int) -> int:
    """`d_rot`, once it is known to make pairs."""
    if d_rot < 2 or d_rot % 2:
        raise InputError(f"the configuration rotates {d_rot} rows of each head, which make no pairs")
    return d_rot


def _llama3(theta: Tensor, p: dict[str, Any]) -> Tensor:
    """Wavelengths beyond `L/low` are stretched by `factor`, those below `L/high` kept, a ramp between (Llama 3.1)."""
    length, low, high = p["original_max_position_embeddings"], p["low_freq_factor"], p["high_freq_factor"]
    kept = ((length * theta / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * theta / p["factor"] + kept * theta


def _yarn(theta: Tensor, base: float, d_rot: int, p: dict[str, Any]) -> tuple[Tensor, float]:
    """Peng et al. 2023 (arXiv 2309.00071), eqs. 17-19 and the attention factor of eq. 22 (as `0.1 ln s + 1`)."""
    scale, length = p["factor"], p["original_max_position_embeddings"]

    def dimension(rotations: float) -> float:  # the frequency index that turns `rotations` times over the length
        return d_rot * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(float(p.get("beta_fast") or 32)), dimension(float(p.get("beta_slow") or 1))
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d_rot - 1)
    if low == high:
        high += 0.001  # as in the reference implementation: a step instead of a division by zero
    stretched = ((torch.arange(d_rot // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(scale) + 1.0 if scale > 1 else 1.0

    factor = p.get("attention_factor")
    if factor is None:
        both = p.get("mscale") and p.get("mscale_all_dim")
        factor = magnitude(p["mscale"]) / magnitude(p["mscale_all_dim"]) if both else magnitude(1.0)
    return theta / scale * stretched + theta * (1 - stretched), float(factor)


def _longrope(theta: Tensor, max_positions: int, p: dict[str, Any]) -> tuple[Tensor, float]:
    """Ding et al. 2024 (arXiv 2402.13753): one divisor per frequency; the short set, valid up to `longest`."""
    length = p["original_max_position_embeddings"]
    scale = p.get("factor") or max_positions / length
    factor = p.get("attention_factor")
    if factor is None:
        factor = math.sqrt(1 + math.log(scale) / math.log(length)) if scale > 1 else 1.0
    short = torch.tensor(p["short_factor"], dtype=torch.float64)
    if short.shape != theta.shape:
        raise InputError(f"longrope's short_factor has {len(short)} entries for {len(theta)} frequencies")
    return theta / short, float(factor)

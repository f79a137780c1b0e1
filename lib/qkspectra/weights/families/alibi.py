"""Families with linear position biases, ALiBi (Press et al. 2022, arXiv 2108.12409): BLOOM, MPT, and Falcon in part."""

import math

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from qkspectra.errors import InputError
from qkspectra.weights import rotary
from qkspectra.weights.families.common import (
    BASE,
    Config,
    Family,
    LayerTensors,
    by_head,
    fused_rows,
    grouped,
    head_width,
    sizes,
)
from qkspectra.weights.families.rope import flat_parameters
from qkspectra.weights.layout import LayerQK, ModelLayout, Norm


def paper_slopes(n_heads: int) -> Float64[Tensor, " heads"]:
    """`2^(-8 h / n)` for heads `h = 1..n`, where `n` is a power of two."""
    return 2.0 ** (-8 * torch.arange(1, n_heads + 1, dtype=torch.float64) / n_heads)


def bloom_slopes(n_heads: int) -> Float64[Tensor, " heads"]:
    """The paper's slopes; between powers of two, those of the one below, then every other one of the one above."""
    below = 2 ** math.floor(math.log2(n_heads))
    return torch.cat([paper_slopes(below), paper_slopes(2 * below)[::2]])[:n_heads]


def mpt_slopes(n_heads: int) -> Float64[Tensor, " heads"]:
    """The paper's slopes; between powers of two, every other one of the power above, then those left out."""
    slopes = paper_slopes(2 ** math.ceil(math.log2(n_heads)))
    return slopes if len(slopes) == n_heads else torch.cat([slopes[1::2], slopes[::2]])[:n_heads]


def _bloom_layout(c: Config) -> ModelLayout:
    # Nothing bounds its positions, but published configurations name the length that it was trained at.
    return sizes(c, "alibi", getattr(c, "seq_length", None))


def _bloom(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    return LayerQK(
        layer=t.layer,
        **fused_rows(t, "self_attention.query_key_value", m, bias=True),
        kv_head=grouped(m),
        scale=m.d_head**-0.5,
        alibi=bloom_slopes(m.n_heads),
        input_norm=t.norm("input_layernorm", "layer", c.layer_norm_epsilon, m.d_model, bias=True),
    )


def _mpt_layout(c: Config) -> ModelLayout:
    a = c.attn_config
    # Transformers ignores these, so that it would run another model than the one that was trained.
    ignored = {
        "attn_type": a.attn_type != "multihead_attention",
        "prefix_lm": a.prefix_lm,
        "qk_ln": a.qk_ln,
        "attn_uses_sequence_id": a.attn_uses_sequence_id,
        "alibi": not a.alibi,
        "alibi_bias_max": a.alibi_bias_max != 8,
    }
    for option, set_so in ignored.items():
        if set_so:
            raise InputError(f"mpt with attn_config.{option}={getattr(a, option)} is not supported")
    return sizes(c, "alibi", c.max_seq_len)


def _mpt(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    query, key, _ = t.get("attn.Wqkv.weight", 3 * m.d_model, m.d_model).split(m.d_model)
    return LayerQK(
        layer=t.layer,
        wq=by_head(query, m.n_heads),
        wk=by_head(key, m.n_heads),
        bq=None,
        bk=None,
        kv_head=grouped(m),
        scale=m.d_head**-0.5 if c.attn_config.softmax_scale is None else c.attn_config.softmax_scale,
        clip=c.attn_config.clip_qkv or None,
        alibi=mpt_slopes(m.n_heads),
        input_norm=t.norm("norm_1", "layer", c.layer_norm_epsilon, m.d_model),
    )


def _falcon_layout(c: Config) -> ModelLayout:
    one_key = c.multi_query and not c.new_decoder_architecture
    n_kv_heads = 1 if one_key else c.num_kv_heads
    if c.alibi:
        return sizes(c, "alibi", None, n_kv_heads=n_kv_heads)
    limit = rotary.longest(flat_parameters(c, partial=False), c.max_position_embeddings)
    d_head = head_width(c.hidden_size, c.num_attention_heads)
    return sizes(c, "rope", limit, n_kv_heads=n_kv_heads, d_rot=rotary.even(d_head))


def _falcon(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    return LayerQK(
        layer=t.layer,
        **fused_rows(t, "self_attention.query_key_value", m, bias=bool(c.bias)),
        kv_head=grouped(m),
        scale=m.d_head**-0.5,
        rotary=None if c.alibi else rotary.rotary(c.rope_parameters, m.d_rot, c.max_position_embeddings),
        alibi=bloom_slopes(m.n_heads) if c.alibi else None,
        alibi_scaled=bool(c.alibi),
        alibi_rounded=bool(c.alibi),
        input_norm=_falcon_norm(c, m, t),
    )


def _falcon_norm(c: Config, m: ModelLayout, t: LayerTensors) -> Norm:
    norms = c.num_ln_in_parallel_attn
    if norms is None and c.new_decoder_architecture:
        norms = 2
    separate = c.new_decoder_architecture and norms == 2  # one norm for attention, one for the MLP beside it
    return t.norm("ln_attn" if separate else "input_layernorm", "layer", c.layer_norm_epsilon, m.d_model, bias=True)


def mask_alone(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Pre-hook of Falcon's attention: leaves the mask in `attention_mask` and takes the ALiBi bias out of it.

    Transformers 5 adds the bias to the mask for fused kernels, and its eager path then adds it once more, so that eager
    and fused attention of one model disagree; with this hook they agree.
    """
    mask = kwargs["attention_mask"]
    hidden = mask <= torch.finfo(mask.dtype).min
    return args, kwargs | {"attention_mask": torch.zeros_like(mask).masked_fill(hidden, torch.finfo(mask.dtype).min)}


FAMILIES = {
    "bloom": Family("transformer", "h", "self_attention", _bloom_layout, _bloom),
    "mpt": Family("transformer", "blocks", "attn", _mpt_layout, _mpt, frozenset({"attn_config"})),
    "falcon": Family(
        "transformer", "h", "self_attention", _falcon_layout, _falcon,
        frozenset({"alibi", "bias", "multi_query", "num_kv_heads", "new_decoder_architecture", "parallel_attn",
                   "rope_parameters"}),
        (BASE,),
    ),
}  # fmt: skip

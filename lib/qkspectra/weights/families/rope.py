"""Families with rotary positions and separate query and key projections: the Llama line, Gemma, Phi, Cohere, GPT-J."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from qkspectra.errors import InputError
from qkspectra.weights import rotary
from qkspectra.weights.families.common import (
    BASE,
    PARTIAL,
    Config,
    Family,
    LayerTensors,
    by_head,
    grouped,
    refuse,
    same_for_heads,
    sizes,
)
from qkspectra.weights.layout import LayerQK, ModelLayout, Norm


def flat_parameters(c: Config, partial: bool) -> dict[str, Any]:
    """`rope_parameters` of a family that has one set of them for all layers.

    Raises:
        InputError: none at all, or a partial rotation where the family does not know one.
    """
    parameters = c.rope_parameters
    if not isinstance(parameters, dict) or not parameters:
        raise InputError("the configuration names no rotary parameters: add rope_theta to it")
    if not partial and parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise InputError(f"{c.model_type} with a partial rotation (partial_rotary_factor) is not supported")
    return parameters


def rope_layout(c: Config, *, partial: bool = False, free_width: bool = True) -> ModelLayout:
    """Sizes of a model with one set of rotary parameters.

    Args:
        c: the configuration.
        partial: whether the family can rotate a part of each head.
        free_width: whether it can set the width of a head apart from `d_model / heads`.
    """
    parameters = flat_parameters(c, partial)
    limit = rotary.longest(parameters, c.max_position_embeddings)
    d_head = getattr(c, "head_dim", None) if free_width else None
    m = sizes(c, "rope", limit, d_head=d_head, n_kv_heads=getattr(c, "num_key_value_heads", None))
    return replace(m, d_rot=rotary.rotated_rows(parameters, m.d_head))


def _phi_layout(c: Config) -> ModelLayout:
    return rope_layout(c, partial=True)


def _stablelm_layout(c: Config) -> ModelLayout:
    return rope_layout(c, partial=True, free_width=False)


def separate(
    c: Config,
    m: ModelLayout,
    t: LayerTensors,
    *,
    bias: bool,
    input_norm: Norm | None,
    path: str = "self_attn",
    parameters: dict[str, Any] | None = None,
    interleaved: bool = False,
    **rest: Any,
) -> LayerQK:
    """A layer with `q_proj` and `k_proj`; `rest` goes to `LayerQK`."""
    parameters = c.rope_parameters if parameters is None else parameters
    q_rows, k_rows = m.n_heads * m.d_head, m.n_kv_heads * m.d_head
    return LayerQK(
        layer=t.layer,
        wq=by_head(t.get(f"{path}.q_proj.weight", q_rows, m.d_model), m.n_heads),
        wk=by_head(t.get(f"{path}.k_proj.weight", k_rows, m.d_model), m.n_kv_heads),
        bq=by_head(t.optional(f"{path}.q_proj.bias", bias, q_rows), m.n_heads),
        bk=by_head(t.optional(f"{path}.k_proj.bias", bias, k_rows), m.n_kv_heads),
        kv_head=grouped(m),
        rotary=rotary.rotary(parameters, m.d_rot, c.max_position_embeddings, interleaved),
        input_norm=input_norm,
        **{"scale": m.d_head**-0.5} | rest,
    )


def _rms(c: Config, m: ModelLayout, t: LayerTensors) -> Norm:
    return t.norm("input_layernorm", "rms", c.rms_norm_eps, m.d_model)


def _layer_norm(c: Config, m: ModelLayout, t: LayerTensors, eps: float, bias: bool = True) -> Norm:
    return t.norm("input_layernorm", "layer", eps, m.d_model, bias=bias)


def _window(c: Config, layer: int) -> int | None:
    """Sliding window of a layer in the families that list the kind of each layer."""
    kind = c.layer_types[layer]
    if kind not in ("full_attention", "sliding_attention"):
        raise InputError(f"{c.model_type} with layers of type {kind} is not supported")
    return c.sliding_window if kind == "sliding_attention" else None


def _llama(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    return separate(c, m, t, bias=c.attention_bias, input_norm=_rms(c, m, t))


def _mistral(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    return separate(c, m, t, bias=False, input_norm=_rms(c, m, t), window=c.sliding_window)


def _qwen2(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    return separate(c, m, t, bias=True, input_norm=_rms(c, m, t), window=_window(c, t.layer))


def _qk_norms(m: ModelLayout, t: LayerTensors, read: Callable[[str], Norm]) -> dict[str, Norm]:
    return {
        "q_norm": same_for_heads(read("self_attn.q_norm"), m.n_heads),
        "k_norm": same_for_heads(read("self_attn.k_norm"), m.n_kv_heads),
    }


def _qwen3(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    norms = _qk_norms(m, t, lambda name: t.norm(name, "rms", c.rms_norm_eps, m.d_head))
    return separate(c, m, t, bias=c.attention_bias, input_norm=_rms(c, m, t), window=_window(c, t.layer), **norms)


def _gemma_layout(c: Config) -> ModelLayout:
    refuse(c, "use_bidirectional_attention", "only causal attention is")
    return rope_layout(c)


def _gemma_scale(c: Config) -> float:
    if c.query_pre_attn_scalar <= 0:
        raise InputError(f"{c.model_type} with query_pre_attn_scalar={c.query_pre_attn_scalar} makes no sense")
    return c.query_pre_attn_scalar**-0.5


def _gemma_norm(c: Config, m: ModelLayout, t: LayerTensors) -> Norm:
    return t.norm("input_layernorm", "rms", c.rms_norm_eps, m.d_model, plus_one=True)


def _gemma(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    return separate(c, m, t, bias=c.attention_bias, input_norm=_gemma_norm(c, m, t))


def _gemma2(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    return separate(
        c,
        m,
        t,
        bias=c.attention_bias,
        input_norm=_gemma_norm(c, m, t),
        scale=_gemma_scale(c),
        softcap=c.attn_logit_softcapping,
        window=_window(c, t.layer),
    )


def _gemma3_layout(c: Config) -> ModelLayout:
    refuse(c, "use_bidirectional_attention", "only causal attention is")
    refuse(c, "attn_logit_softcapping", "Transformers does not apply it in this family")
    limits = [rotary.longest(c.rope_parameters[kind], c.max_position_embeddings) for kind in set(c.layer_types)]
    return sizes(
        c, "rope", min(limits), d_head=c.head_dim, n_kv_heads=c.num_key_value_heads, d_rot=rotary.even(c.head_dim)
    )


def _gemma3(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    norms = _qk_norms(m, t, lambda name: t.norm(name, "rms", c.rms_norm_eps, m.d_head, plus_one=True))
    return separate(
        c,
        m,
        t,
        bias=c.attention_bias,
        input_norm=_gemma_norm(c, m, t),
        parameters=c.rope_parameters[c.layer_types[t.layer]],  # local and global layers have a base each
        scale=_gemma_scale(c),
        window=_window(c, t.layer),
        **norms,
    )


def _phi(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    norms = {}
    if c.qk_layernorm:
        for side, heads in (("q", m.n_heads), ("k", m.n_kv_heads)):
            norm = t.norm(f"self_attn.{side}_layernorm", "layer", c.layer_norm_eps, m.d_head, bias=True)
            norms[f"{side}_norm"] = same_for_heads(norm, heads)
    return separate(c, m, t, bias=True, input_norm=_layer_norm(c, m, t, c.layer_norm_eps), **norms)


def _stablelm(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    norms = {}
    if c.qk_layernorm:  # one gain for each head
        for side, heads in (("q", m.n_heads), ("k", m.n_kv_heads)):
            gains = [t.get(f"self_attn.{side}_layernorm.norms.{h}.weight", m.d_head) for h in range(heads)]
            norms[f"{side}_norm"] = Norm("layer", torch.stack(gains), None, c.layer_norm_eps)
    return separate(c, m, t, bias=c.use_qkv_bias, input_norm=_layer_norm(c, m, t, c.layer_norm_eps), **norms)


def _cohere(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    norms = {}
    if c.use_qk_norm:
        norms["q_norm"] = t.norm("self_attn.q_norm", "layer", c.layer_norm_eps, m.n_heads, m.d_head)
        norms["k_norm"] = t.norm("self_attn.k_norm", "layer", c.layer_norm_eps, m.n_kv_heads, m.d_head)
    input_norm = _layer_norm(c, m, t, c.layer_norm_eps, bias=False)
    return separate(c, m, t, bias=c.attention_bias, input_norm=input_norm, interleaved=True, **norms)


def _olmo(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    input_norm = Norm("layer", None, None, 1e-5)  # without gain and shift
    return separate(c, m, t, bias=c.attention_bias, input_norm=input_norm, clip=c.clip_qkv)


def _olmo2(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    def norm(name: str, heads: int) -> Norm:
        flat = t.norm(f"self_attn.{name}", "rms", c.rms_norm_eps, heads * m.d_head)
        return replace(flat, weight=by_head(flat.weight, heads))

    # The norms of a block come after it, so that x is the residual stream itself.
    return separate(
        c,
        m,
        t,
        bias=c.attention_bias,
        input_norm=None,
        q_norm=norm("q_norm", m.n_heads),
        k_norm=norm("k_norm", m.n_kv_heads),
        norm_across_heads=True,
    )


def _granite(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    return separate(c, m, t, bias=c.attention_bias, input_norm=_rms(c, m, t), scale=float(c.attention_multiplier))


def _starcoder2(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    input_norm = _layer_norm(c, m, t, c.norm_epsilon)
    return separate(c, m, t, bias=c.use_bias, input_norm=input_norm, window=c.sliding_window)


_WINDOWED = ("layer_types", "max_window_layers", "sliding_window", "use_sliding_window")
_GEMMA = (
    "attn_logit_softcapping",
    "layer_types",
    "query_pre_attn_scalar",
    "sliding_window",
    "sliding_window_pattern",
    "sliding_window_size",  # an older name that Gemma 2 still carries beside the one in use
    "use_bidirectional_attention",
)

_GEMMA2_STATED = (("query_pre_attn_scalar",), ("attn_logit_softcapping",))
_GEMMA3_STATED = (
    ("query_pre_attn_scalar",),
    ("rope_theta", "full_attention.rope_theta"),
    ("rope_local_base_freq", "sliding_attention.rope_theta"),
)

GPTJ_BASE = {"rope_type": "default", "rope_theta": 10000.0}
"""GPT-J and CodeGen have no setting for it: https://github.com/kingoflolz/mesh-transformer-jax."""


def gptj_layout(c: Config) -> ModelLayout:
    """Sizes of GPT-J and CodeGen, whose configuration counts the rotated rows."""
    return sizes(c, "rope", c.max_position_embeddings, d_rot=rotary.even(c.rotary_dim))


def _gptj(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    norm = t.norm("ln_1", "layer", c.layer_norm_epsilon, m.d_model, bias=True)
    return separate(c, m, t, bias=False, input_norm=norm, path="attn", parameters=GPTJ_BASE, interleaved=True)


def _family(layout: Callable, read: Callable, *options: str, stated: tuple[tuple[str, ...], ...] = (BASE,)) -> Family:
    return Family("model", "layers", "self_attn", layout, read, frozenset({"rope_parameters", *options}), stated)


FAMILIES = {
    "llama": _family(rope_layout, _llama, "attention_bias"),
    "mistral": _family(rope_layout, _mistral, "sliding_window"),
    "qwen2": _family(rope_layout, _qwen2, *_WINDOWED),
    "qwen3": _family(rope_layout, _qwen3, "attention_bias", *_WINDOWED),
    "gemma": _family(_gemma_layout, _gemma, "attention_bias", "use_bidirectional_attention"),
    "gemma2": _family(_gemma_layout, _gemma2, "attention_bias", *_GEMMA, stated=(BASE, *_GEMMA2_STATED)),
    "gemma3_text": _family(_gemma3_layout, _gemma3, "attention_bias", *_GEMMA, stated=_GEMMA3_STATED),
    "phi": _family(_phi_layout, _phi, "qk_layernorm", stated=(BASE, PARTIAL)),
    "stablelm": _family(_stablelm_layout, _stablelm, "qk_layernorm", "use_qkv_bias", stated=(BASE, PARTIAL)),
    "cohere": _family(rope_layout, _cohere, "attention_bias", "use_qk_norm"),
    "olmo": _family(rope_layout, _olmo, "attention_bias", "clip_qkv"),
    "olmo2": _family(rope_layout, _olmo2, "attention_bias"),
    "granite": _family(
        rope_layout, _granite, "attention_bias", "attention_multiplier", stated=(BASE, ("attention_multiplier",))
    ),
    "starcoder2": _family(rope_layout, _starcoder2, "use_bias", "sliding_window"),
    "gptj": Family("transformer", "h", "attn", gptj_layout, _gptj, frozenset({"rotary_dim"}), (("rotary_dim",),)),
}

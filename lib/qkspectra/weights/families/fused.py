"""Families with rotary positions and one projection for query, key and value: GPT-NeoX, Phi-3, CodeGen."""

from qkspectra.weights import rotary
from qkspectra.weights.families.common import BASE, PARTIAL, Config, Family, LayerTensors, by_head, fused_rows, grouped
from qkspectra.weights.families.rope import GPTJ_BASE, gptj_layout, rope_layout
from qkspectra.weights.layout import LayerQK, ModelLayout


def _gpt_neox_layout(c: Config) -> ModelLayout:
    return rope_layout(c, partial=True, free_width=False)


def _phi3_layout(c: Config) -> ModelLayout:
    return rope_layout(c, partial=True)


def _gpt_neox(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    return LayerQK(
        layer=t.layer,
        **fused_rows(t, "attention.query_key_value", m, bias=c.attention_bias),
        kv_head=grouped(m),
        scale=m.d_head**-0.5,
        rotary=rotary.rotary(c.rope_parameters, m.d_rot, c.max_position_embeddings),
        input_norm=t.norm("input_layernorm", "layer", c.layer_norm_eps, m.d_model, bias=True),
    )


def _phi3(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    widths = [m.n_heads * m.d_head, m.n_kv_heads * m.d_head, m.n_kv_heads * m.d_head]
    query, key, _ = t.get("self_attn.qkv_proj.weight", sum(widths), m.d_model).split(widths)
    return LayerQK(
        layer=t.layer,
        wq=by_head(query, m.n_heads),
        wk=by_head(key, m.n_kv_heads),
        bq=None,
        bk=None,
        kv_head=grouped(m),
        scale=m.d_head**-0.5,
        rotary=rotary.rotary(c.rope_parameters, m.d_rot, c.max_position_embeddings),
        window=c.sliding_window,
        input_norm=t.norm("input_layernorm", "rms", c.rms_norm_eps, m.d_model),
    )


def _codegen(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    # Fused rows run (quarter of the heads, query/value/key, rows), as the model was trained on four shards.
    query, _, key = t.get("attn.qkv_proj.weight", 3 * m.d_model, m.d_model).reshape(4, 3, -1, m.d_model).unbind(1)
    return LayerQK(
        layer=t.layer,
        wq=query.reshape(m.n_heads, m.d_head, m.d_model),
        wk=key.reshape(m.n_heads, m.d_head, m.d_model),
        bq=None,
        bk=None,
        kv_head=grouped(m),
        scale=m.d_head**-0.5,
        rotary=rotary.rotary(GPTJ_BASE, m.d_rot, c.max_position_embeddings, interleaved=True),
        input_norm=t.norm("ln_1", "layer", c.layer_norm_epsilon, m.d_model, bias=True),
    )


FAMILIES = {
    "gpt_neox": Family(
        "gpt_neox", "layers", "attention", _gpt_neox_layout, _gpt_neox,
        frozenset({"rope_parameters", "attention_bias"}),
        ((*BASE, "rotary_emb_base"), (*PARTIAL, "rotary_pct")),
    ),
    "phi3": Family(
        "model", "layers", "self_attn", _phi3_layout, _phi3,
        frozenset({"rope_parameters", "sliding_window", "original_max_position_embeddings", "partial_rotary_factor"}),
        (BASE,),
    ),
    "codegen": Family("transformer", "h", "attn", gptj_layout, _codegen, frozenset({"rotary_dim"}), (("rotary_dim",),)),
}  # fmt: skip

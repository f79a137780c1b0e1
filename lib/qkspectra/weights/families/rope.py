"""Families with rotary positions."""

from transformers import PreTrainedConfig

from qkspectra.weights import rotary
from qkspectra.weights.families.common import Family, LayerTensors, grouped, head_width, heads_of
from qkspectra.weights.layout import LayerQK, ModelLayout


def _layout(c: PreTrainedConfig) -> ModelLayout:
    n_kv_heads = getattr(c, "num_key_value_heads", None) or c.num_attention_heads
    d_head = getattr(c, "head_dim", None) or head_width(c.hidden_size, c.num_attention_heads)
    return ModelLayout(
        family=c.model_type,
        scheme="rope",
        n_layers=c.num_hidden_layers,
        n_heads=c.num_attention_heads,
        n_kv_heads=n_kv_heads,
        d_model=c.hidden_size,
        d_head=d_head,
        d_rot=int(d_head * c.rope_parameters.get("partial_rotary_factor", 1.0)),
        vocab=c.vocab_size,
        max_positions=rotary.longest(c.rope_parameters, c.max_position_embeddings),
    )


def _llama(c: PreTrainedConfig, m: ModelLayout, t: LayerTensors) -> LayerQK:
    q_rows, k_rows = m.n_heads * m.d_head, m.n_kv_heads * m.d_head
    bq = t.optional("self_attn.q_proj.bias", c.attention_bias, q_rows)
    bk = t.optional("self_attn.k_proj.bias", c.attention_bias, k_rows)
    return LayerQK(
        layer=t.layer,
        wq=heads_of(t.get("self_attn.q_proj.weight", q_rows, m.d_model), m.n_heads),
        wk=heads_of(t.get("self_attn.k_proj.weight", k_rows, m.d_model), m.n_kv_heads),
        bq=None if bq is None else heads_of(bq, m.n_heads),
        bk=None if bk is None else heads_of(bk, m.n_kv_heads),
        kv_head=grouped(m.n_heads, m.n_kv_heads),
        scale=m.d_head**-0.5,
        rotary=rotary.rotary(c.rope_parameters, m.d_rot, c.max_position_embeddings),
        input_norm=t.norm("input_layernorm", "rms", c.rms_norm_eps, m.d_model),
    )


def _gpt_neox(c: PreTrainedConfig, m: ModelLayout, t: LayerTensors) -> LayerQK:
    # Fused rows run (head, query/key/value, d_head).
    fused = t.get("attention.query_key_value.weight", 3 * m.d_model, m.d_model)
    wq, wk, _ = fused.reshape(m.n_heads, 3, m.d_head, m.d_model).unbind(1)
    bias = t.optional("attention.query_key_value.bias", c.attention_bias, 3 * m.d_model)
    bq, bk, _ = (None, None, None) if bias is None else bias.reshape(m.n_heads, 3, m.d_head).unbind(1)
    return LayerQK(
        layer=t.layer,
        wq=wq,
        wk=wk,
        bq=bq,
        bk=bk,
        kv_head=grouped(m.n_heads, m.n_heads),
        scale=m.d_head**-0.5,
        rotary=rotary.rotary(c.rope_parameters, m.d_rot, c.max_position_embeddings),
        input_norm=t.norm("input_layernorm", "layer", c.layer_norm_eps, m.d_model, bias=True),
    )


FAMILIES = {
    "llama": Family("model", "layers", "self_attn", _layout, _llama),
    "gpt_neox": Family("gpt_neox", "layers", "attention", _layout, _gpt_neox),
}

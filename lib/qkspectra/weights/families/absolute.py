"""Families whose positions are vectors added to the input: GPT-2, BERT."""

from transformers import PreTrainedConfig

from qkspectra.weights.families.common import Family, LayerTensors, grouped, head_width, heads_of
from qkspectra.weights.layout import LayerQK, ModelLayout


def _gpt2_layout(c: PreTrainedConfig) -> ModelLayout:
    return ModelLayout(
        family=c.model_type,
        scheme="absolute",
        n_layers=c.n_layer,
        n_heads=c.n_head,
        n_kv_heads=c.n_head,
        d_model=c.n_embd,
        d_head=head_width(c.n_embd, c.n_head),
        d_rot=0,
        vocab=c.vocab_size,
        max_positions=c.n_positions,
    )


def _gpt2(c: PreTrainedConfig, m: ModelLayout, t: LayerTensors) -> LayerQK:
    # A Conv1D stores the transpose of a Linear: columns are query, key, value.
    query, key, _ = t.get("attn.c_attn.weight", m.d_model, 3 * m.d_model).T.split(m.d_model)
    query_bias, key_bias, _ = t.get("attn.c_attn.bias", 3 * m.d_model).split(m.d_model)
    scale = m.d_head**-0.5 if c.scale_attn_weights else 1.0
    if c.scale_attn_by_inverse_layer_idx:
        scale /= t.layer + 1
    return LayerQK(
        layer=t.layer,
        wq=heads_of(query, m.n_heads),
        wk=heads_of(key, m.n_heads),
        bq=heads_of(query_bias, m.n_heads),
        bk=heads_of(key_bias, m.n_heads),
        kv_head=grouped(m.n_heads, m.n_heads),
        scale=scale,
        input_norm=t.norm("ln_1", "layer", c.layer_norm_epsilon, m.d_model, bias=True),
    )


def _bert_layout(c: PreTrainedConfig) -> ModelLayout:
    return ModelLayout(
        family=c.model_type,
        scheme="absolute",
        n_layers=c.num_hidden_layers,
        n_heads=c.num_attention_heads,
        n_kv_heads=c.num_attention_heads,
        d_model=c.hidden_size,
        d_head=head_width(c.hidden_size, c.num_attention_heads),
        d_rot=0,
        vocab=c.vocab_size,
        max_positions=c.max_position_embeddings,
        causal=c.is_decoder,
    )


def _bert(c: PreTrainedConfig, m: ModelLayout, t: LayerTensors) -> LayerQK:
    def rows(name: str) -> tuple:
        name = f"attention.self.{name}"
        weight, bias = t.get(f"{name}.weight", m.d_model, m.d_model), t.get(f"{name}.bias", m.d_model)
        return heads_of(weight, m.n_heads), heads_of(bias, m.n_heads)

    (wq, bq), (wk, bk) = rows("query"), rows("key")
    # Post-norm: x is the output of the norm that ends the layer below, so no norm stands between it and the heads.
    kv_head, scale = grouped(m.n_heads, m.n_heads), m.d_head**-0.5
    return LayerQK(layer=t.layer, wq=wq, wk=wk, bq=bq, bk=bk, kv_head=kv_head, scale=scale, causal=m.causal)


FAMILIES = {
    "gpt2": Family("transformer", "h", "attn", _gpt2_layout, _gpt2),
    "bert": Family("bert", "encoder.layer", "attention.self", _bert_layout, _bert),
}

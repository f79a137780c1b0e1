"""Families whose positions are vectors added to the input: GPT-2, GPT-Neo, GPT-BigCode, OPT, BERT."""

from qkspectra.errors import InputError
from qkspectra.weights.families.common import Config, Family, LayerTensors, by_head, fused_rows, grouped, sizes
from qkspectra.weights.layout import LayerQK, ModelLayout


def _absolute(c: Config) -> ModelLayout:
    return sizes(c, "absolute", c.max_position_embeddings)


def _gpt2(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    # A Conv1D stores the transpose of a Linear: columns are query, key, value.
    query, key, _ = t.get("attn.c_attn.weight", m.d_model, 3 * m.d_model).T.split(m.d_model)
    query_bias, key_bias, _ = t.get("attn.c_attn.bias", 3 * m.d_model).split(m.d_model)
    scale = m.d_head**-0.5 if c.scale_attn_weights else 1.0
    if c.scale_attn_by_inverse_layer_idx:
        scale /= t.layer + 1
    return LayerQK(
        layer=t.layer,
        wq=by_head(query, m.n_heads),
        wk=by_head(key, m.n_heads),
        bq=by_head(query_bias, m.n_heads),
        bk=by_head(key_bias, m.n_heads),
        kv_head=grouped(m),
        scale=scale,
        input_norm=t.norm("ln_1", "layer", c.layer_norm_epsilon, m.d_model, bias=True),
    )


def _gpt_neo(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    kind = c.attention_layers[t.layer]
    if kind not in ("global", "local"):
        raise InputError(f"gpt_neo with attention_layers of type {kind} is not supported")
    return LayerQK(
        layer=t.layer,
        wq=by_head(t.get("attn.attention.q_proj.weight", m.d_model, m.d_model), m.n_heads),
        wk=by_head(t.get("attn.attention.k_proj.weight", m.d_model, m.d_model), m.n_heads),
        bq=None,
        bk=None,
        kv_head=grouped(m),
        scale=1.0,  # the training code of GPT-Neo does not divide by sqrt(d_head)
        window=c.window_size if kind == "local" else None,
        input_norm=t.norm("ln_1", "layer", c.layer_norm_epsilon, m.d_model, bias=True),
    )


def _gpt_bigcode_layout(c: Config) -> ModelLayout:
    return sizes(c, "absolute", c.max_position_embeddings, n_kv_heads=1 if c.multi_query else None)


def _gpt_bigcode(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    return LayerQK(
        layer=t.layer,
        **fused_rows(t, "attn.c_attn", m, bias=True),
        kv_head=grouped(m),
        scale=m.d_head**-0.5 if c.scale_attn_weights else 1.0,
        input_norm=t.norm("ln_1", "layer", c.layer_norm_epsilon, m.d_model, bias=True),
    )


def _opt(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    def rows(name: str) -> tuple:
        weight = t.get(f"self_attn.{name}.weight", m.d_model, m.d_model)
        bias = t.optional(f"self_attn.{name}.bias", c.enable_bias, m.d_model)
        return by_head(weight, m.n_heads), by_head(bias, m.n_heads)

    (wq, bq), (wk, bk) = rows("q_proj"), rows("k_proj")
    norm = None  # the 350m model normalises after the block
    if c.do_layer_norm_before:
        if not c.layer_norm_elementwise_affine:
            raise InputError("opt with layer_norm_elementwise_affine=False is not supported")
        norm = t.norm("self_attn_layer_norm", "layer", 1e-5, m.d_model, bias=True)
    return LayerQK(layer=t.layer, wq=wq, wk=wk, bq=bq, bk=bk, kv_head=grouped(m), scale=m.d_head**-0.5, input_norm=norm)


def _bert_layout(c: Config) -> ModelLayout:
    return sizes(c, "absolute", c.max_position_embeddings, causal=c.is_decoder)


def _bert(c: Config, m: ModelLayout, t: LayerTensors) -> LayerQK:
    def rows(name: str) -> tuple:
        name = f"attention.self.{name}"
        weight, bias = t.get(f"{name}.weight", m.d_model, m.d_model), t.get(f"{name}.bias", m.d_model)
        return by_head(weight, m.n_heads), by_head(bias, m.n_heads)

    (wq, bq), (wk, bk) = rows("query"), rows("key")
    # Post-norm: x is the output of the norm that ends the layer below, so no norm stands between it and the heads.
    return LayerQK(layer=t.layer, wq=wq, wk=wk, bq=bq, bk=bk, kv_head=grouped(m), scale=m.d_head**-0.5, causal=m.causal)


FAMILIES = {
    "gpt2": Family(
        "transformer", "h", "attn", _absolute, _gpt2,
        frozenset({"scale_attn_weights", "scale_attn_by_inverse_layer_idx"}),
    ),
    "gpt_neo": Family(
        "transformer", "h", "attn.attention", _absolute, _gpt_neo,
        frozenset({"attention_layers", "attention_types", "window_size"}),
    ),
    "gpt_bigcode": Family(
        "transformer", "h", "attn", _gpt_bigcode_layout, _gpt_bigcode, frozenset({"scale_attn_weights", "multi_query"})
    ),
    "opt": Family(
        "model", "decoder.layers", "self_attn", _absolute, _opt,
        frozenset({"enable_bias", "do_layer_norm_before", "layer_norm_elementwise_affine"}),
    ),
    "bert": Family("bert", "encoder.layer", "attention.self", _bert_layout, _bert),
}  # fmt: skip

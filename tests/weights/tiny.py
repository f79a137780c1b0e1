"""Tiny random models of every family, saved as users find them; no zero bias, no unit gain is left to hide an error."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM

VOCAB = 61
ROPE = {"vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 128, "pad_token_id": None}  # fmt: skip
GROUPED = ROPE | {"num_attention_heads": 6, "num_key_value_heads": 2}
GPT = {"vocab_size": VOCAB, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 128}
LAYERS = ["sliding_attention", "full_attention"]
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1000.0, "short_factor": [1.0, 1.5, 2.0, 3.0],
            "long_factor": [2.0, 4.0, 6.0, 8.0]}  # fmt: skip

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", GPT),
    "gpt2-scaled-by-layer": (
        "gpt2", GPT | {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
    ),
    "gpt2-unscaled": ("gpt2", GPT | {"scale_attn_weights": False}),
    "gpt_neo": (
        "gpt_neo",
        {"vocab_size": VOCAB, "hidden_size": 48, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 128,
         "attention_types": [[["global", "local"], 1]], "window_size": 7},
    ),
    "gpt_bigcode": ("gpt_bigcode", GPT),
    "gpt_bigcode-multi-head": ("gpt_bigcode", GPT | {"multi_query": False}),
    "opt": ("opt", ROPE | {"ffn_dim": 32, "word_embed_proj_dim": 48}),
    "opt-post-norm": ("opt", ROPE | {"ffn_dim": 32, "word_embed_proj_dim": 24, "do_layer_norm_before": False}),
    "opt-no-bias": ("opt", ROPE | {"ffn_dim": 32, "word_embed_proj_dim": 48, "enable_bias": False}),
    "bert": ("bert", ROPE),
    "bert-decoder": ("bert", ROPE | {"is_decoder": True}),
    "bloom": ("bloom", {"vocab_size": VOCAB, "hidden_size": 48, "n_layer": 2, "n_head": 4}),
    "bloom-12-heads": ("bloom", {"vocab_size": VOCAB, "hidden_size": 48, "n_layer": 2, "n_head": 12}),
    "mpt": ("mpt", {"vocab_size": VOCAB, "d_model": 48, "n_layers": 2, "n_heads": 4, "max_seq_len": 128}),
    "mpt-6-heads-clipped": (
        "mpt",
        {"vocab_size": VOCAB, "d_model": 48, "n_layers": 2, "n_heads": 6, "max_seq_len": 128,
         "attn_config": {"clip_qkv": 1.0, "softmax_scale": 0.4}},
    ),
    "falcon-multi-query": ("falcon", ROPE),
    "falcon-multi-query-bias": ("falcon", ROPE | {"bias": True}),
    "falcon-grouped": (
        "falcon", ROPE | {"num_attention_heads": 6, "num_kv_heads": 2, "new_decoder_architecture": True},
    ),
    "falcon-grouped-one-norm": (
        "falcon",
        ROPE | {"num_attention_heads": 6, "num_kv_heads": 2, "new_decoder_architecture": True, "bias": True,
                "num_ln_in_parallel_attn": 1},
    ),
    "falcon-multi-head": ("falcon", ROPE | {"multi_query": False}),
    "falcon-alibi": (
        "falcon", ROPE | {"multi_query": False, "alibi": True, "bias": True, "parallel_attn": False},
    ),
    "falcon-alibi-12-heads": ("falcon", ROPE | {"num_attention_heads": 12, "alibi": True}),
    "gpt_neox": ("gpt_neox", ROPE | {"rotary_pct": 0.5, "rotary_emb_base": 1000}),
    "gpt_neox-no-bias": ("gpt_neox", ROPE | {"rotary_pct": 1.0, "attention_bias": False}),
    "phi3": ("phi3", GROUPED),
    "phi3-partial-window": ("phi3", ROPE | {"sliding_window": 9, "partial_rotary_factor": 0.5}),
    "phi3-longrope": ("phi3", GROUPED | {"original_max_position_embeddings": 80, "rope_scaling": LONGROPE}),
    "codegen": ("codegen", GPT | {"n_head": 8, "n_ctx": 128, "rotary_dim": 4}),
    "codegen-6-heads": ("codegen", GPT | {"n_head": 6, "n_ctx": 128, "rotary_dim": 4}),
    "gptj": ("gptj", GPT | {"rotary_dim": 8}),
    "llama": ("llama", ROPE),
    "llama-grouped": ("llama", GROUPED),
    "llama-free-width-bias": ("llama", GROUPED | {"head_dim": 10, "attention_bias": True}),
    "llama3": ("llama", GROUPED | {"rope_parameters": LLAMA3}),
    "llama-yarn": ("llama", GROUPED | {"rope_parameters": YARN}),
    "llama-yarn-mscale": (
        "llama",
        GROUPED | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7, "beta_fast": 8.0, "beta_slow": 2.0,
                                              "truncate": False}},
    ),
    "llama-yarn-factor": ("llama", GROUPED | {"rope_parameters": YARN | {"attention_factor": 1.3}}),
    "llama-linear": ("llama", ROPE | {"rope_theta": 700.0, "rope_scaling": {"type": "linear", "factor": 3.0}}),
    "llama-dynamic": ("llama", ROPE | {"rope_scaling": {"type": "dynamic", "factor": 3.0}}),
    "mistral": ("mistral", GROUPED | {"sliding_window": 6}),
    "mistral-full": ("mistral", GROUPED | {"sliding_window": None, "head_dim": 10}),
    "qwen2": ("qwen2", GROUPED),
    "qwen2-window": ("qwen2", GROUPED | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("qwen3", GROUPED | {"head_dim": 10}),
    "qwen3-bias": ("qwen3", GROUPED | {"head_dim": 8, "attention_bias": True}),
    "gemma": ("gemma", GROUPED | {"head_dim": 10}),
    "gemma2": (
        "gemma2",
        GROUPED | {"head_dim": 10, "query_pre_attn_scalar": 7, "attn_logit_softcapping": 2.0, "sliding_window": 6},
    ),
    "gemma3": (
        "gemma3_text",
        GROUPED | {"head_dim": 10, "query_pre_attn_scalar": 7, "sliding_window": 6, "layer_types": LAYERS,
                   "rope_theta": 900.0, "rope_local_base_freq": 50.0},
    ),
    "gemma3-linear": (
        "gemma3_text",
        GROUPED | {"head_dim": 8, "sliding_window": 6, "layer_types": LAYERS,
                   "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ),
    "phi": ("phi", ROPE),
    "phi-qk-norm": ("phi", GROUPED | {"qk_layernorm": True, "partial_rotary_factor": 1.0}),
    "stablelm": ("stablelm", GROUPED | {"partial_rotary_factor": 0.5}),
    "stablelm-qk-norm": ("stablelm", GROUPED | {"qk_layernorm": True, "use_qkv_bias": True}),
    "cohere": ("cohere", GROUPED),
    "cohere-qk-norm": ("cohere", GROUPED | {"use_qk_norm": True, "attention_bias": True}),
    "olmo": ("olmo", GROUPED | {"clip_qkv": 0.8}),
    "olmo2": ("olmo2", GROUPED | {"attention_bias": True}),
    "granite": ("granite", GROUPED | {"attention_multiplier": 0.11}),
    "starcoder2": ("starcoder2", GROUPED | {"sliding_window": 6}),
    "starcoder2-no-bias": ("starcoder2", GROUPED | {"use_bias": False}),
}  # fmt: skip
"""Name -> family and configuration."""


def build(name: str, **changes: Any) -> nn.Module:
    """The model of a case, with random biases and gains as well as weights."""
    family, options = CASES[name]
    config = CONFIG_MAPPING[family](**options | changes)
    auto = AutoModel if family == "bert" and not config.is_decoder else AutoModelForCausalLM
    torch.manual_seed(sum(map(ord, name)))
    model = auto.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.ndim == 1 or "norm" in key:
                p.copy_((0.0 if key.endswith("bias") else p) + 0.4 * torch.randn_like(p))
            else:
                p.copy_(torch.randn_like(p) * (1.0 if "emb" in key or "wte" in key else 1.3 * p.shape[-1] ** -0.5))
    return model


def save(folder: Path, name: str, **changes: Any) -> Path:
    """Saves the model of a case to a folder."""
    build(name, **changes).save_pretrained(folder)
    return folder

"""A tiny Llama model as a GGUF file, with query and key rows in llama.cpp's interleaved order."""

from pathlib import Path
from typing import Any

import gguf
import torch
from tests.weights import tiny

_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def save(path: Path, case: str = "llama-grouped", kind: str = "F32", **changes: Any) -> torch.nn.Module:
    """Writes the model of a case as GGUF, its matrices quantised to `kind`, and returns it."""
    model = tiny.build(case, **changes)
    quantisation = gguf.GGMLQuantizationType[kind]
    c = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(c.head_dim)
    writer.add_vocab_size(c.vocab_size)
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for name, tensor in model.state_dict().items():
        module = name.removesuffix(".weight")
        if module in outer:
            stored = outer[module]
        else:
            _, _, layer, inside = module.split(".", 3)
            stored = f"blk.{layer}.{_NAMES[inside]}"
        if stored.endswith(("attn_q", "attn_k")):
            halves = tensor.unflatten(0, (-1, 2, c.head_dim // 2))
            tensor = halves.transpose(1, 2).flatten(0, 2)
        if kind == "F32" or tensor.ndim == 1:
            writer.add_tensor(f"{stored}.weight", tensor.numpy())
        else:
            writer.add_tensor(f"{stored}.weight", gguf.quantize(tensor.numpy(), quantisation), raw_dtype=quantisation)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model

"""What is refused, and why: architectures whose score is no fixed bilinear form, and options nobody accounted for."""

import re
from typing import Any

from qkspectra.errors import InputError
from qkspectra.weights.families.common import BASE, Config, Family

_REASONS = {
    "a learned relative-position bias": ("t5", "mt5", "umt5", "longt5", "udop", "switch_transformers", "mpnet"),
    "relative positions mixed with content": ("deberta", "deberta-v2", "xlnet", "wav2vec2-conformer"),
    "latent attention (queries and keys are compressed)": (
        "deepseek_v2", "deepseek_v3", "deepseek_v32", "minicpm3", "longcat_flash", "glm4_moe_lite",
    ),
    "gated or linear attention": ("qwen3_next", "qwen3_5", "rwkv", "minimax", "kimi_linear", "olmo_hybrid"),
    "state-space layers": (
        "mamba", "mamba2", "falcon_mamba", "jamba", "bamba", "zamba", "zamba2", "falcon_h1", "granitemoehybrid",
        "nemotron_h", "recurrent_gemma", "lfm2",
    ),
    "attention sinks added to the softmax": ("gpt_oss",),
    "attention to another model or modality": (
        "bart", "mbart", "pegasus", "marian", "whisper", "encoder-decoder", "gemma3", "llava", "mllama", "qwen2_vl",
        "qwen2_5_vl", "qwen3_vl", "mistral3", "llama4",
    ),
}  # fmt: skip
REASONS = {family: reason for reason, families in _REASONS.items() for family in families}
"""`model_type` -> what it has that is not supported, for architectures that users are likely to try."""

ABOUT_SCORES = re.compile(
    r"attn|attention|head|query|key|qk|rope|rotary|position|alibi|window|scal|multiplier|clip|cap|causal|bias"
    r"|layer_types|norm|mask"
)
# Entries about attention, positions or norms that every family honours or that leave scores as they are, given `x`.
HARMLESS = re.compile(
    r"num_(attention|key_value|kv)_heads|n_heads?|num_heads|head_dim|max_position_embeddings|n_positions"
    r"|attention_dropout|attn_pdrop|attention_probs_dropout_prob|output_attentions|mlp_bias|lm_head_bias"
    r"|\w*norm_eps(ilon)?|embedding_multiplier|residual_multiplier|logits?_scal(e|ing)|final_logit_softcapping"
    r"|keys_to_ignore_at_inference|apply_residual_connection_post_layernorm|pooler_\w+|tie_\w+"
    r"|num_ln_in_parallel_attn|no_bias|pad_key_length|slow_but_exact|attn_implementation"
    r"|reorder_and_upcast_attn|(scale_)?attention_softmax_in_fp32|masked_softmax_fusion|skip_bias_add(_qkv)?"
    r"|bias_dropout_fusion|offset_alibi|summary_\w+"
)
# Entries that are harmless at this value only.
AT_VALUE: dict[str, tuple] = {
    "position_embedding_type": ("absolute",),
    "norm_type": ("layer_norm", "low_precision_layernorm"),
    "rotary": (True,),
    "scale_attn_weights": (True,),
    "rotary_scaling_factor": (1.0,),
    "full_attn_mod": (1,),
    "learned_pos_emb": (True,),
}

# Before this version of Transformers these families had one base, 10000, and no way to state it.
_BASE_WAS_FIXED = {"llama": (4, 33), "falcon": (4, 33)}


def check_stated(fields: dict[str, Any], family: Family) -> None:
    """Refuses a `config.json` that leaves out what its family cannot do without (`Family.stated`).

    Raises:
        InputError: naming the entry to add.
    """
    rotary = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(rotary, dict):
        raise InputError(f"config.json states rotary parameters as {rotary!r}, which is not understood")
    nested = {f"{kind}.{name}" for kind, inner in rotary.items() if isinstance(inner, dict) for name in inner}
    entries = fields.keys() | rotary.keys() | nested
    for spellings in family.stated:
        if spellings == BASE and (fields.get("alibi") or _base_was_fixed(fields)):
            continue
        if not entries.intersection(spellings):
            raise InputError(f"config.json does not state {' or '.join(spellings)}, and a default may be wrong: add it")


def _base_was_fixed(fields: dict[str, Any]) -> bool:
    version = re.match(r"(\d+)\.(\d+)", str(fields.get("transformers_version", "")))
    first = _BASE_WAS_FIXED.get(fields["model_type"])
    return bool(version and first and tuple(map(int, version.groups())) < first)


def check_options(config: Config, family: Family) -> None:
    """Refuses a configuration with a set entry about attention or positions that nobody accounted for.

    Raises:
        InputError: naming the entry.
    """
    if getattr(config, "quantization_config", None):
        raise InputError("the weights are quantised (quantization_config): give the original weights")
    for name, value in config.to_dict().items():
        if not value or name.startswith("_") or not ABOUT_SCORES.search(name):
            continue
        if name not in family.options and not HARMLESS.fullmatch(name) and value not in AT_VALUE.get(name, ()):
            raise InputError(f"{config.model_type} with {name}={value} is not supported: it may change the scores")

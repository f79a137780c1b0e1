"""What a pocket model is and how it is trained: sizes, data and optimiser are the same for all seven architectures.

| name | position | what is particular |
|---|---|---|
| pocket-gpt-neox | rotary | half of each head rotates, in half-split pairs; attention and MLP in parallel; biases |
| pocket-llama | rotary | two query heads share a key head; RMSNorm, gated MLP, no biases |
| pocket-gptj | rotary | half of each head rotates, in interleaved pairs; attention and MLP in parallel |
| pocket-gpt2 | learned-absolute | |
| pocket-opt | learned-absolute | ReLU |
| pocket-bloom | linear biases (ALiBi) | LayerNorm on the embeddings |
| pocket-mpt | linear biases (ALiBi) | no biases |
"""

from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from transformers import (
    BloomConfig,
    GPT2Config,
    GPTJConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MptConfig,
    OPTConfig,
    PreTrainedConfig,
)

Name = Literal[
    "pocket-gpt-neox", "pocket-llama", "pocket-gptj", "pocket-gpt2", "pocket-opt", "pocket-bloom", "pocket-mpt"
]


class Recipe(BaseModel):
    """One training run; together with the corpus it decides every weight, up to the rounding of a kind of processor.

    Attributes:
        name: decides the architecture.
        seed: of initialisation and data.
        layers, width, heads, vocab, context: sizes; a head has `width / heads` dimensions.
        deviation, embedding_deviation: standard deviation of the initial weights, and of token and position embeddings.
        steps, batch: optimiser steps, and sequences of `context` tokens in each.
        text, scrambled: share of the sequences that are text throughout, and that repeat distinct tokens drawn
            uniformly; the others repeat one span of text to their end.
        shortest: tokens in what is repeated, drawn uniformly from here to half the context.
        unpredicted, forming: weight in the loss of tokens that no earlier copy predicts, during the first `forming`
            steps; all other tokens, and after those steps every token, have weight 1.
        learning_rate: reached after `warmup` steps, kept, and falling linearly to zero over the last `decay` steps.
        beta1, beta2, weight_decay, clip: AdamW's. `clip` bounds the gradient's norm.
        every: steps between checkpoints after the first 512, before which powers of two are kept.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    seed: int = Field(0, ge=0)
    layers: int = Field(3, gt=0)
    width: int = Field(128, gt=0)
    heads: int = Field(4, gt=0)
    vocab: int = Field(1024, gt=256)
    context: int = Field(64, gt=1)
    deviation: float = Field(0.088, gt=0)
    embedding_deviation: float = Field(0.5, gt=0)
    steps: int = Field(3000, gt=0)
    batch: int = Field(16, gt=0)
    text: float = Field(0.125, ge=0, le=1)
    scrambled: float = Field(0.25, ge=0, le=1)
    shortest: int = Field(16, gt=1)
    unpredicted: float = Field(0.1, gt=0)
    forming: int = Field(1500, ge=0)
    learning_rate: float = Field(3e-3, gt=0)
    warmup: int = Field(50, gt=0)
    decay: int = Field(600, gt=0)
    beta1: float = 0.9
    beta2: float = 0.98
    weight_decay: float = Field(0.01, ge=0)
    clip: float = Field(1.0, gt=0)
    every: int = Field(100, gt=0)

    @property
    def saved(self) -> list[int]:
        """Steps at which a checkpoint is kept: Pythia's 0, 1, 2, 4, …, 512, then multiples of `every`, and the last."""
        early = {0, *(2**i for i in range(10))}
        late = set(range(0, self.steps, self.every)) - set(range(512))
        return [*sorted(step for step in early | late if step < self.steps), self.steps]


ZOO: dict[str, Recipe] = {name: Recipe(name=name) for name in Name.__args__}
"""The recipe of each shipped model, by name."""


def config_of(recipe: Recipe) -> PreTrainedConfig:
    """The Transformers configuration: no dropout, input and output embeddings apart in every architecture."""
    return _CONFIGS[recipe.name](recipe)


def _common(r: Recipe) -> dict[str, object]:
    return {"vocab_size": r.vocab, "bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": False}


def _hidden(r: Recipe) -> dict[str, object]:
    sizes = {"num_hidden_layers": r.layers, "hidden_size": r.width, "num_attention_heads": r.heads}
    return _common(r) | sizes | {"max_position_embeddings": r.context}


def _embd(r: Recipe) -> dict[str, object]:
    sizes = {"n_layer": r.layers, "n_embd": r.width, "n_head": r.heads, "n_positions": r.context}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return _common(r) | sizes | dropout | {"initializer_range": r.deviation}


def _rotary(**options: float) -> dict[str, object]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, **options}}


def _gpt_neox(r: Recipe) -> PreTrainedConfig:
    return GPTNeoXConfig(
        **_hidden(r),
        **_rotary(partial_rotary_factor=0.5),
        intermediate_size=4 * r.width,
        initializer_range=r.deviation,
        attention_dropout=0.0,
        hidden_dropout=0.0,
    )


def _llama(r: Recipe) -> PreTrainedConfig:
    return LlamaConfig(
        **_hidden(r),
        **_rotary(),
        num_key_value_heads=r.heads // 2,
        intermediate_size=8 * r.width // 3,  # three matrices instead of two
        initializer_range=r.deviation,
    )


def _gptj(r: Recipe) -> PreTrainedConfig:
    return GPTJConfig(**_embd(r), rotary_dim=r.width // r.heads // 2)


def _gpt2(r: Recipe) -> PreTrainedConfig:
    return GPT2Config(**_embd(r))


def _opt(r: Recipe) -> PreTrainedConfig:
    return OPTConfig(
        **_hidden(r),
        word_embed_proj_dim=r.width,
        ffn_dim=4 * r.width,
        init_std=r.deviation,
        dropout=0.0,
        attention_dropout=0.0,
        pad_token_id=0,
    )


def _bloom(r: Recipe) -> PreTrainedConfig:
    sizes = {"n_layer": r.layers, "hidden_size": r.width, "n_head": r.heads, "seq_length": r.context}
    dropout = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    return BloomConfig(**_common(r), **sizes, **dropout, initializer_range=r.deviation)


def _mpt(r: Recipe) -> PreTrainedConfig:
    sizes = {"n_layers": r.layers, "d_model": r.width, "n_heads": r.heads, "max_seq_len": r.context}
    return MptConfig(**_common(r), **sizes, initializer_range=r.deviation)


_CONFIGS: dict[str, Callable[[Recipe], PreTrainedConfig]] = {
    "pocket-gpt-neox": _gpt_neox,
    "pocket-llama": _llama,
    "pocket-gptj": _gptj,
    "pocket-gpt2": _gpt2,
    "pocket-opt": _opt,
    "pocket-bloom": _bloom,
    "pocket-mpt": _mpt,
}

"""Which architectures are read, and how each stores queries and keys.

A family is proven by its scores: `qkspectra.verify` rebuilds them and compares them with the running model's.
Everything else is refused by name.
"""

from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from qkspectra.errors import InputError
from qkspectra.weights.families import absolute, alibi, fused, rope
from qkspectra.weights.families.common import Config, Family, LayerTensors
from qkspectra.weights.families.unsupported import REASONS, check_options, check_stated
from qkspectra.weights.layout import LayerQK, ModelLayout
from qkspectra.weights.reader import Tensors

FAMILIES: dict[str, Family] = {**absolute.FAMILIES, **alibi.FAMILIES, **fused.FAMILIES, **rope.FAMILIES}
"""`model_type` of a configuration -> how that architecture stores its attention."""


def family_of(model_type: str) -> Family:
    """The family of a `model_type`.

    Raises:
        InputError: an architecture that is not supported, named, with the reason where one is known.
    """
    try:
        return FAMILIES[model_type]
    except KeyError:
        reason = f": it has {REASONS[model_type]}" if model_type in REASONS else ""
        raise InputError(f"models of type {model_type} are not supported{reason}") from None


def check_json(fields: dict[str, Any]) -> None:
    """Checks the content of a `config.json` for what is lost once a configuration object has filled in its defaults.

    Raises:
        InputError: an unsupported family, or one whose rotation or scale is not stated and would be a guess.
    """
    check_stated(fields, family_of(fields["model_type"]))


def model_layout(config: Config) -> ModelLayout:
    """Sizes and position scheme of a model, from its configuration alone.

    Raises:
        InputError: an unsupported family, quantised weights, or an option that may change the scores and is not
            accounted for.
    """
    family = family_of(config.model_type)
    check_options(config, family)
    return family.layout(config)


def read_layer(config: Config, tensors: Tensors, layer: int, layout: ModelLayout | None = None) -> LayerQK:
    """Queries and keys of one attention layer; only its own tensors are read.

    Args:
        config: of the model.
        tensors: of the model.
        layer: from 0.
        layout: what `model_layout` says of the configuration, where that is known already.

    Raises:
        InputError: an unsupported family, no such layer, or tensors that are missing, damaged or at odds with the
            configuration.
    """
    layout = layout or model_layout(config)
    if not 0 <= layer < layout.n_layers:
        raise InputError(f"there is no layer {layer}: the model has layers 0 to {layout.n_layers - 1}")
    family = family_of(config.model_type)
    mine = LayerTensors(tensors, family, layer)
    read = family.read(config, layout, mine)
    mine.check_rest()
    return read


def read_names(config: Config, tensors: Tensors, layer: int, layout: ModelLayout) -> list[str]:
    """The tensors that `read_layer` reads, in its order, told by having it read tensors without content."""
    shapes = _Shapes(tensors)
    family = family_of(config.model_type)
    family.read(config, layout, LayerTensors(shapes, family, layer))
    return list(dict.fromkeys(shapes.asked))


class _Shapes:
    """Tensors of the same names and shapes, on no device."""

    def __init__(self, tensors: Tensors) -> None:
        self.names, self.shape = tensors.names, tensors.shape
        self.asked: list[str] = []

    def get(self, name: str, rows: int | None = None) -> Float64[Tensor, "*shape"]:
        self.asked.append(name)
        return torch.empty(self.shape(name), dtype=torch.float64, device="meta")[:rows]


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """Each layer's attention module, in order: its input is `x`, and it computes the scores and their softmax."""
    attention = family_of(model.config.model_type).attention
    return [block.get_submodule(attention) for block in blocks(model)]


def blocks(model: nn.Module) -> list[nn.Module]:
    """Each layer's residual block, in order: attention and everything else up to the next layer."""
    family = family_of(model.config.model_type)
    base = model.base_model
    return [base.get_submodule(f"{family.blocks}.{i}") for i in range(model.config.num_hidden_layers)]


def repair(model: nn.Module) -> nn.Module:
    """`model`, with what its eager attention does beyond its definition undone.

    Falcon's ALiBi bias is added once (see `alibi.mask_alone`); GPT-2's `reorder_and_upcast_attn`, which insists on
    float32 scores, is left out in a float64 model.
    """
    family, config = model.config.model_type, model.config
    for module in attention_modules(model):
        if family == "falcon" and config.alibi:
            module.register_forward_pre_hook(alibi.mask_alone, with_kwargs=True)
        if family == "gpt2" and model.dtype == torch.float64:
            module.reorder_and_upcast_attn = False
    return model

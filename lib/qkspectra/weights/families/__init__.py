"""Which architectures are read, and how each stores queries and keys.

A family is proven by its scores: `qkspectra.verify` rebuilds them and compares them with the running model's.
Everything else is refused by name.
"""

from torch import nn
from transformers import PreTrainedConfig

from qkspectra.errors import InputError
from qkspectra.weights.families import absolute, rope
from qkspectra.weights.families.common import Family, LayerTensors
from qkspectra.weights.layout import LayerQK, ModelLayout
from qkspectra.weights.reader import Tensors

FAMILIES: dict[str, Family] = {**absolute.FAMILIES, **rope.FAMILIES}
"""`model_type` of a configuration -> how that architecture stores its attention."""


def family_of(config: PreTrainedConfig) -> Family:
    """The family of a configuration.

    Raises:
        InputError: an architecture that is not supported, named, with the reason where one is known.
    """
    try:
        return FAMILIES[config.model_type]
    except KeyError:
        raise InputError(f"models of type {config.model_type} are not supported") from None


def model_layout(config: PreTrainedConfig) -> ModelLayout:
    """Sizes and position scheme of a model, from its configuration alone.

    Raises:
        InputError: an unsupported family, or an option of it that changes scores and is not understood.
    """
    return family_of(config).layout(config)


def read_layer(config: PreTrainedConfig, tensors: Tensors, layer: int) -> LayerQK:
    """Queries and keys of one attention layer; only its own tensors are read.

    Raises:
        InputError: an unsupported family, no such layer, or tensors that are missing, damaged or at odds with the
            configuration.
    """
    family = family_of(config)
    layout = family.layout(config)
    if not 0 <= layer < layout.n_layers:
        raise InputError(f"there is no layer {layer}: the model has layers 0 to {layout.n_layers - 1}")
    return family.read(config, layout, LayerTensors(tensors, family, layer))


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """Each layer's attention module, in order: its input is `x`, and it computes the scores and their softmax."""
    family = family_of(model.config)
    layout = family.layout(model.config)
    base = model.base_model
    return [base.get_submodule(f"{family.blocks}.{i}.{family.attention}") for i in range(layout.n_layers)]

"""A model as its files: what the rest of the library opens."""

import re
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import nn
from transformers import PreTrainedConfig

from qkspectra import record
from qkspectra.device import chosen
from qkspectra.errors import InputError
from qkspectra.weights import families, running, sources
from qkspectra.weights.layout import LayerQK, ModelLayout
from qkspectra.weights.reader import Tensors, open_tensors
from qkspectra.weights.remote import RemoteTensors
from qkspectra.weights.schedules import Revision
from qkspectra.weights.sources import Source


@dataclass(frozen=True)
class Weights:
    """Sizes, lazily read query and key maps, and on demand the running model.

    Attributes:
        source: where the files lie, and which commit they are.
        config: the Transformers configuration.
        layout: sizes and position scheme.
        tensors: the files' tensors, each read when asked for.
    """

    source: Source
    config: PreTrainedConfig
    layout: ModelLayout
    tensors: Tensors

    def layer(self, index: int) -> LayerQK:
        """Queries and keys of one layer, in float64; only its query and key tensors are read.

        Raises:
            InputError: no such layer, or tensors that are missing, damaged or at odds with the configuration.
        """
        return families.read_layer(self.config, self.tensors, index, self.layout)

    def load(self, dtype: torch.dtype = torch.float32, device: str | None = None) -> nn.Module:
        """The running model in `dtype`, in evaluation mode, with eager attention.

        A causal model comes with its language-modelling head, any other without one. Only files that are already here
        are read; nothing is unpickled, and no code that comes with a model is run.

        Args:
            dtype: of its parameters.
            device: where to, as torch names it; by default the device of this process (`qkspectra.device`).

        Raises:
            InputError: configuration and tensors disagree, a file is damaged, the weights were left on the Hub, or
                there is no such device.
        """
        source = self.source
        if source.listed is not None:
            raise InputError(
                f"{source.name} was opened by ranges, which is for its operators alone: open it whole to run"
            )
        where = chosen(device)
        model = running.load(source.folder, source.gguf_file, self.config, causal=self.layout.causal, dtype=dtype)
        return model.to(where)

    def attention_modules(self, model: nn.Module) -> list[nn.Module]:
        """The attention module of each layer of the running model, in order."""
        return families.attention_modules(model)

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """The residual block of each layer of the running model, in order."""
        return families.blocks(model)


@dataclass(frozen=True)
class LoadedOnce(Weights):
    """Weights whose model is loaded once and stays in memory, for a caller whose studies each run it."""

    @cached_property
    def _model(self) -> nn.Module:
        return super().load()

    def load(self, dtype: torch.dtype = torch.float32, device: str | None = None) -> nn.Module:
        return self._model if dtype == torch.float32 and device is None else super().load(dtype, device)


def loaded_once(weights: Weights) -> LoadedOnce:
    """The same weights, whose `load` gives the same model each time: leave it as it was."""
    return LoadedOnce(**{field.name: getattr(weights, field.name) for field in fields(Weights)})


def open_model(name: str, revision: str | Revision | None = None, *, ranges: bool = False) -> Weights:
    """Opens a model by catalogue name, local folder or Hub id; reads its configuration and, as yet, no weights.

    Args:
        name: see `sources.resolve`.
        revision: branch, tag or commit of a Hub id, subfolder of a trajectory, or a revision as listed.
        ranges: leave the weights of a Hub id on the Hub, unless the client's cache has them, and fetch the bytes of the
            query and key tensors alone, each layer's when it is read. There is then no model to run.

    Raises:
        InputError: whatever is wrong with the name, the files or the family.
    """
    source = sources.resolve(name, revision, ranges=ranges)
    if source.listed is None:
        tensors = open_tensors(source.folder, source.gguf_file)
    else:
        tensors = RemoteTensors(source.listed, source.folder)
    config = running.read_config(source.folder, source.gguf_file)
    layout = families.model_layout(config)
    family = families.family_of(config.model_type)
    layers = re.compile(rf"(?:{re.escape(family.base)}\.)?{re.escape(family.blocks)}\.(\d+)\.")
    deepest = max((int(found[1]) for found in map(layers.match, tensors.names()) if found), default=-1)
    if deepest >= layout.n_layers:  # a layer too few shows when it is read; one too many never would
        raise InputError(
            f"{name} holds {deepest + 1} layers, its config.json says {layout.n_layers}: they do not match"
        )
    if isinstance(tensors, RemoteTensors):
        tensors.expect([families.read_names(config, tensors, layer, layout) for layer in range(layout.n_layers)])
    record.model(source.name, source.revision, source.commit, lambda: source.content_hash)
    return Weights(source, config, layout, tensors)

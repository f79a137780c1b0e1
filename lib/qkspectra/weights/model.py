"""A model as its files: what the rest of the library opens."""

from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedConfig

from qkspectra.weights import families, running, sources
from qkspectra.weights.layout import LayerQK, ModelLayout
from qkspectra.weights.reader import Tensors, open_tensors
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
        return families.read_layer(self.config, self.tensors, index)

    def load(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        """The running model in `dtype`, in evaluation mode, with eager attention.

        A causal model comes with its language-modelling head, any other without one. Only files that are already here
        are read; nothing is unpickled, and no code that comes with a model is run.

        Raises:
            InputError: configuration and tensors disagree, or a file is damaged.
        """
        source = self.source
        return running.load(source.folder, source.gguf_file, self.config, causal=self.layout.causal, dtype=dtype)

    def attention_modules(self, model: nn.Module) -> list[nn.Module]:
        """The attention module of each layer of the running model, in order."""
        return families.attention_modules(model)


def open_model(name: str, revision: str | None = None) -> Weights:
    """Opens a model by catalogue name, local folder or Hub id; reads its configuration and, as yet, no weights.

    Args:
        name: see `sources.resolve`.
        revision: branch, tag or commit of a Hub id.

    Raises:
        InputError: whatever is wrong with the name, the files or the family.
    """
    source = sources.resolve(name, revision)
    config = running.read_config(source.folder, source.gguf_file)
    return Weights(source, config, families.model_layout(config), open_tensors(source.folder, source.gguf_file))

"""Where weights come from and what shape they have."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from qkspectra.weights import families, reader, sources
from qkspectra.weights.layout import LayerQK, ModelLayout

__all__ = ["Weights", "open_model"]


@dataclass(frozen=True)
class Weights:
    """A model as its files: sizes, lazily read query and key maps, and on demand the running model.

    Attributes:
        source: where the files lie, and which commit they are.
        config: the Transformers configuration.
        layout: sizes and position scheme.
        tensors: the files' tensors, read when asked for.
    """

    source: sources.Source
    config: Any
    layout: ModelLayout
    tensors: reader.Tensors

    def layer(self, index: int) -> LayerQK:
        """Queries and keys of one layer, in float64; only its q and k tensors are read."""
        return families.read_layer(self.config, self.tensors, index)

    def load(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        """The running model in `dtype`, in evaluation mode and with eager attention.

        Raises:
            InputError: configuration and tensors disagree.
        """
        from qkspectra.weights.running import load

        return load(self.source, self.config, self.layout.causal, dtype)

    def attention_modules(self, model: nn.Module) -> list[nn.Module]:
        """The attention module of each layer of the running model, in order."""
        return families.attention_modules(model)


def open_model(name: str, revision: str | None = None) -> Weights:
    """Opens a model by catalogue name, local folder or Hub id, reading its configuration and no weights yet.

    Raises:
        InputError: whatever is wrong with the name, the files or the family, in one line.
    """
    source = sources.resolve(name, revision)
    config = sources.read_config(source)
    layout = families.model_layout(config)
    return Weights(source, config, layout, reader.open_tensors(source.folder, source.gguf_file))

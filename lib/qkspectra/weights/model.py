"""A model as its files: what the rest of the library opens."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedConfig
from transformers.utils import logging

from qkspectra.errors import InputError
from qkspectra.weights import families, sources
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
        are read; nothing is unpickled and no code of the repository is run.

        Raises:
            InputError: configuration and tensors disagree, or a file is damaged.
        """
        auto = AutoModelForCausalLM if self.layout.causal else AutoModel
        try:
            with _quiet():
                model, info = auto.from_pretrained(
                    self.source.folder,
                    config=self.config,
                    gguf_file=self.source.gguf_file,
                    dtype=dtype,
                    attn_implementation="eager",
                    use_safetensors=True,
                    trust_remote_code=False,
                    local_files_only=True,
                    output_loading_info=True,
                )
        except (OSError, RuntimeError, ValueError) as error:
            raise InputError(f"{self.source.name}: cannot be loaded: {_first_line(error)}") from None
        # The pooler sits on top of the last layer and has no part in attention.
        missing = sorted(key for key in info["missing_keys"] if not key.startswith("pooler."))
        if missing:
            raise InputError(f"{self.source.name}: config.json calls for {missing[0]}, which is in none of the files")
        return model.eval()

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
    try:
        config = AutoConfig.from_pretrained(
            source.folder, gguf_file=source.gguf_file, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # anything may stand in the file, and each family's class complains in its own way
        raise InputError(f"{name}: its configuration is not understood: {_first_line(error)}") from None
    layout = families.model_layout(config)
    return Weights(source, config, layout, open_tensors(source.folder, source.gguf_file))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """Standard error belongs to this library's own progress: Transformers reports each load at length there."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()

"""The running model, loaded by Transformers from files that are already here."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from qkspectra.errors import InputError
from qkspectra.weights.sources import Source


def load(source: Source, config: Any, causal: bool, dtype: torch.dtype) -> nn.Module:
    """Loads the model with its language-modelling head if it is causal, without one otherwise.

    Raises:
        InputError: tensors that the configuration asks for are missing or have another shape.
    """
    from transformers import AutoModel, AutoModelForCausalLM

    auto = AutoModelForCausalLM if causal else AutoModel
    try:
        with _quiet():
            model, info = auto.from_pretrained(
                source.folder,
                config=config,
                gguf_file=source.gguf_file,
                dtype=dtype,
                attn_implementation="eager",
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{source.name}: cannot be loaded: {str(error).strip().splitlines()[0]}") from None
    # the pooler sits on top of the last layer and has no part in attention
    missing = sorted(key for key in info["missing_keys"] if not key.startswith("pooler."))
    if missing:
        raise InputError(f"{source.name}: config.json and tensors disagree: {missing[0]} is in none of the files")
    return model.eval()


@contextmanager
def _quiet() -> Iterator[None]:
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()

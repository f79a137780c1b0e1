"""The running model, loaded by Transformers from files that are already on this machine."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import torch
from safetensors.torch import save_model
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedConfig
from transformers.utils import logging

from qkspectra.errors import InputError
from qkspectra.weights.families import check_json, repair


def read_config(folder: Path, gguf_file: str | None = None) -> PreTrainedConfig:
    """The Transformers configuration in a folder; code that comes with it is never run.

    Raises:
        InputError: an unsupported family, or fields that are missing or that Transformers does not accept.
    """
    if gguf_file is None:
        check_json(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    try:
        with _quiet():
            return AutoConfig.from_pretrained(
                folder, gguf_file=gguf_file, trust_remote_code=False, local_files_only=True
            )
    except Exception as error:  # anything may stand in the file, and each family's class complains in its own way
        raise InputError(f"{folder}: the configuration is not understood: {_first_line(error)}") from None


def load(
    folder: Path, gguf_file: str | None, config: PreTrainedConfig, *, causal: bool, dtype: torch.dtype
) -> nn.Module:
    """The model in evaluation mode with eager attention; with its language-modelling head if it is causal.

    Raises:
        InputError: configuration and tensors disagree, or a file is damaged.
    """
    auto = AutoModelForCausalLM if causal else AutoModel
    try:
        with _quiet():
            model, info = auto.from_pretrained(
                folder,
                gguf_file=gguf_file,
                config=config,
                dtype=dtype,
                attn_implementation="eager",
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                ignore_mismatched_sizes=True,  # reported below
                output_loading_info=True,
            )
    except Exception as error:  # a file that its loader cannot make sense of fails in whatever way it happens to
        raise InputError(f"{folder}: cannot be loaded: {_first_line(error)}") from None
    # The pooler sits on top of the last layer and has no part in attention.
    missing = sorted(key for key in info["missing_keys"] if not key.startswith("pooler."))
    if missing:
        raise InputError(f"{folder}: config.json calls for {missing[0]}, which is in none of the files")
    if info["mismatched_keys"]:
        key, stored, wanted = min(info["mismatched_keys"])
        raise InputError(f"{folder}: {key} has shape {tuple(stored)} where config.json calls for {tuple(wanted)}")
    return repair(model.eval())


def dequantise(gguf: Path, folder: Path) -> None:
    """Writes the model in a GGUF file to `folder` as `config.json` and float32 `model.safetensors`."""
    config = read_config(gguf.parent, gguf.name)
    model = load(gguf.parent, gguf.name, config, causal=True, dtype=torch.float32)
    save_model(model, str(folder / "model.safetensors"), metadata={"format": "pt"})
    config.save_pretrained(folder)


def _first_line(error: Exception) -> str:
    first, *rest = (str(error).strip() or type(error).__name__).splitlines()
    return f"{first} {rest[0].strip()}" if first.endswith(":") and rest else first


@contextmanager
def _quiet() -> Iterator[None]:
    """Standard error belongs to this library's own progress; Transformers reports each load there at length."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):  # the bar of the GGUF loader heeds no switch
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()

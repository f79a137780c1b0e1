"""Query and key tensors of a GGUF file, dequantised and under the names Transformers gives them.

llama.cpp stores the query and key rows of `llama` models so that interleaved pairs `(2t, 2t+1)` rotate together;
Transformers rotates `(t, t + d/2)`. The rows are put back here (https://github.com/ggml-org/llama.cpp, the `permute` of
`convert_hf_to_gguf.py`): the static operator would not notice, every per-frequency quantity would.
"""

import re
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader, ReaderTensor, dequantize
from jaxtyping import Float64
from torch import Tensor

from qkspectra.errors import InputError
from qkspectra.weights.reader import finite

_NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj"}
_VALUE_SIDE = {"attn_v", "attn_output"}
# What Transformers takes over of these two groups. It drops the rest, so there would be no model to agree with.
_TAKEN = re.compile(
    r"llama\.(rope\.(freq_base|dimension_count)"
    r"|attention\.(head_count|head_count_kv|layer_norm_rms_epsilon|key_length|value_length))"
)
_GROUPS = ("general.architecture", "llama.rope.", "llama.attention.")
_NEEDED = ("llama.rope.freq_base", "llama.attention.head_count", "llama.attention.head_count_kv")


class GGUFTensors:
    """The tensors of a GGUF file of architecture `llama` that the score needs.

    Raises:
        InputError: a damaged file, another architecture, or a rotation or attention that Transformers would not run.
    """

    def __init__(self, path: Path) -> None:
        try:
            reader = GGUFReader(path)
            entries = {name: field.contents() for name, field in reader.fields.items() if name.startswith(_GROUPS)}
        except (ValueError, IndexError, KeyError, OverflowError) as error:
            raise InputError(f"{path} is truncated or not a GGUF file ({error}): fetch it again") from None
        if entries.get("general.architecture") != "llama":
            kind = entries.get("general.architecture")
            raise InputError(f"{path} is of architecture {kind}; of GGUF only llama is read: give the safetensors")
        dropped = [name for name in entries if name.startswith(_GROUPS[1:]) and not _TAKEN.fullmatch(name)]
        missing = [name for name in _NEEDED if not isinstance(entries.get(name), int | float)]
        stray = [tensor.name for tensor in reader.tensors if tensor.name == "rope_freqs.weight"]
        self._rotated = {"attn_q": entries.get(_NEEDED[1]), "attn_k": entries.get(_NEEDED[2])}
        self._tensors: dict[str, tuple[str, ReaderTensor]] = {}
        for tensor in reader.tensors:
            match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", tensor.name)
            if match and match[2] in _NAMES:
                self._tensors[f"model.layers.{match[1]}.{_NAMES[match[2]]}.{match[3]}"] = (match[2], tensor)
            elif match and match[2].startswith("attn") and match[2] not in _VALUE_SIDE:
                stray.append(tensor.name)
        if dropped or stray:
            raise InputError(
                f"{path} sets {(dropped + stray)[0]}, which is not supported in GGUF: give the safetensors"
            )
        if missing:
            raise InputError(f"{path} does not state {missing[0]}, and a default may be wrong: give the safetensors")

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(n) for n in reversed(self._tensors[name][1].shape))  # GGUF counts from the fastest axis

    def get(self, name: str, rows: int | None = None) -> Float64[Tensor, "*shape"]:
        kind, stored = self._tensors[name]
        values = torch.from_numpy(dequantize(stored.data, stored.tensor_type).astype(np.float64)).reshape(
            self.shape(name)
        )
        if kind in self._rotated:
            head, rest = self._rotated[kind], values.shape[1:]
            values = values.reshape(head, -1, 2, *rest).transpose(1, 2).reshape(values.shape)
        return finite(name, values[:rows])

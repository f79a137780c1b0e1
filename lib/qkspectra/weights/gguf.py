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

_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
}


class GGUFTensors:
    """The tensors of a GGUF file of architecture `llama` that the score needs."""

    def __init__(self, path: Path) -> None:
        try:
            reader = GGUFReader(path)
        except FileNotFoundError:
            raise InputError(f"{path} does not exist") from None
        except (ValueError, IndexError, KeyError) as error:
            raise InputError(f"{path} is truncated or not a GGUF file ({error}): fetch it again") from None
        fields = reader.fields
        architecture = fields["general.architecture"].contents()
        if architecture != "llama":
            raise InputError(f"GGUF files of architecture {architecture} are not read: give the safetensors weights")
        if any(tensor.name == "rope_freqs.weight" for tensor in reader.tensors) or "llama.rope.scaling.type" in fields:
            # Transformers drops them when it loads the file, so there is no model to agree with.
            raise InputError(f"{path} rescales its rotary frequencies, which GGUF loading drops: give the safetensors")
        heads = fields["llama.attention.head_count"].contents()
        kv_heads = (
            fields["llama.attention.head_count_kv"].contents() if "llama.attention.head_count_kv" in fields else heads
        )
        self._rotated = {"attn_q": heads, "attn_k": kv_heads}
        self._tensors: dict[str, tuple[str, ReaderTensor]] = {}
        for tensor in reader.tensors:
            match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", tensor.name)
            if match and match[2] in _NAMES:
                self._tensors[f"model.layers.{match[1]}.{_NAMES[match[2]]}.{match[3]}"] = (match[2], tensor)

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(n) for n in reversed(self._tensors[name][1].shape))  # GGUF counts from the fastest axis

    def get(self, name: str) -> Float64[Tensor, "*shape"]:
        kind, stored = self._tensors[name]
        values = torch.from_numpy(dequantize(stored.data, stored.tensor_type).astype(np.float64)).reshape(
            self.shape(name)
        )
        if kind in self._rotated:
            head, rest = self._rotated[kind], values.shape[1:]
            values = values.reshape(head, -1, 2, *rest).transpose(1, 2).reshape(values.shape)
        return finite(name, values)

"""Tensors of a stored model by name, read one at a time: safetensors (one file or shards) and GGUF.

Names are those of the model's Transformers implementation. Nothing is unpickled.
"""

import json
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float64
from safetensors import SafetensorError, safe_open
from torch import Tensor

from qkspectra.errors import InputError

INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""How safetensors names the types of weights that are read."""


@runtime_checkable
class Tensors(Protocol):
    """A stored model's tensors, each read when asked for."""

    def names(self) -> list[str]:
        """Names of all tensors, without reading any."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The stored shape of a tensor, without reading it."""

    def get(self, name: str, rows: int | None = None) -> Float64[Tensor, "*shape"]:
        """One tensor, upcast to float64, or its first `rows` rows alone.

        Raises:
            InputError: the tensor is quantised, holds NaN or infinity, or its file is damaged.
        """


def open_tensors(folder: Path, gguf_file: str | None = None) -> Tensors:
    """The tensors of a model in a local folder.

    Args:
        folder: holds `model.safetensors`, or shards with `model.safetensors.index.json`, or the GGUF file.
        gguf_file: name of a GGUF file in the folder.

    Raises:
        InputError: no weights, only pickled weights, a missing shard, or a damaged file.
    """
    if gguf_file is not None:
        from qkspectra.weights.gguf import GGUFTensors

        return GGUFTensors(folder / gguf_file)
    if (folder / INDEX).exists():
        return SafetensorsFolder(folder, _shards(folder / INDEX))
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return SafetensorsFolder(folder, dict.fromkeys(_header(files[0]), files[0].name))
    if files:
        raise InputError(f"{folder} holds {len(files)} safetensors files and no {INDEX}: fetch the index as well")
    if any(next(folder.glob(pattern), None) for pattern in _PICKLES):
        raise InputError(
            f"{folder} holds pickled weights only, which are not read; convert them where you trust them: "
            "AutoModel.from_pretrained(folder).save_pretrained(new_folder), then give new_folder"
        )
    raise InputError(f"{folder} holds no weights: expected model.safetensors, shards with {INDEX}, or a GGUF file")


class SafetensorsFolder:
    """Tensors in one or several safetensors files; a file is open only while a tensor is read from it."""

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        self._folder, self._files = folder, files
        self._headers: dict[str, dict] = {}

    def names(self) -> list[str]:
        return list(self._files)

    def _entry(self, name: str) -> dict:
        file = self._files[name]
        if file not in self._headers:
            self._headers[file] = _header(self._folder / file)
        try:
            return self._headers[file][name]
        except KeyError:
            raise InputError(f"{INDEX} places {name} in {file}, which does not hold it: fetch both again") from None

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._entry(name)["shape"])

    def get(self, name: str, rows: int | None = None) -> Float64[Tensor, "*shape"]:
        stored = self._entry(name)["dtype"]
        if stored not in FLOATS:
            raise InputError(f"{name} is stored as {stored}: quantised weights are not read, give the original ones")
        # Opened for this one tensor, so that the pages mapped for it go when it is upcast.
        with safe_open(self._folder / self._files[name], framework="pt") as file:
            values = file.get_tensor(name) if rows is None else file.get_slice(name)[:rows]
            return finite(name, values.to(torch.float64))


def finite(name: str, tensor: Tensor) -> Tensor:
    """`tensor`, once it is known to hold neither NaN nor infinity."""
    if not torch.isfinite(tensor).all():
        kind = "NaN" if torch.isnan(tensor).any() else "infinity"
        raise InputError(f"{name} holds {kind}: the weights are damaged or diverged in training")
    return tensor


def _header(path: Path) -> dict[str, dict]:
    """Name -> {dtype, shape} of a safetensors file, checked against the file's length."""
    try:
        with safe_open(path, framework="pt") as file:  # validates the header against the length of the file
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: {"dtype": s.get_dtype(), "shape": s.get_shape()} for name, s in slices.items()}
    except SafetensorError as error:
        raise InputError(f"{path} is truncated or damaged ({error}): fetch it again") from None


def places(index: Path) -> dict[str, str]:
    """Tensor name -> shard, as an index says.

    Raises:
        InputError: a damaged index, or one that points outside its folder.
    """
    try:
        files = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        shards = sorted(set(files.values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{index} is not a safetensors index: fetch it again") from None
    for shard in shards:
        if Path(shard).name != shard:
            raise InputError(f"{index} names a shard outside its folder: {shard}")
    return files


def _shards(index: Path) -> dict[str, str]:
    """Tensor name -> shard, with every shard present."""
    files = places(index)
    for shard in sorted(set(files.values())):
        if not (index.parent / shard).exists():
            raise InputError(f"{index.parent} lacks the shard {shard}: fetch it again")
    return files

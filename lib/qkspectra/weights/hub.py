"""Weights on the Hugging Face Hub, through the ordinary client and its cache."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from qkspectra.errors import InputError

# Configuration and safetensors under the names that Transformers loads: no pickles, no code, no second copy.
_PATTERNS = ["config.json", "model.safetensors", "model.safetensors.index.json", "model-*.safetensors"]


class UnknownRepoError(Exception):
    """The Hub answered, and shows no repository under that name."""


class UnreachableError(Exception):
    """The Hub did not answer, and the client's cache does not hold the revision."""


def fetch(name: str, revision: str | None) -> tuple[Path, str]:
    """The local snapshot of one commit of a Hub repository, and the commit.

    With no network, or with `HF_HUB_OFFLINE` set, what the client's cache holds of the revision is used.

    Raises:
        UnknownRepoError, UnreachableError: as they say.
        InputError: unknown revision, a gated repository, a full disk, or one without safetensors.
    """
    from huggingface_hub import HfApi, errors

    api = HfApi()
    try:
        with _quiet():
            resolved = api.resolve_revision(name, revision=revision)
            folder = Path(api.snapshot_download(name, revision=resolved, allow_patterns=_PATTERNS))
    except errors.GatedRepoError:
        raise InputError(f"{name} is gated: accept its terms on the Hub, then run `hf auth login`") from None
    except errors.RevisionNotFoundError:
        raise InputError(f"{name} has no revision {revision}: give one of its branches, tags or commits") from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise UnknownRepoError(name) from None
    except (errors.RevisionResolutionError, errors.LocalEntryNotFoundError):
        raise UnreachableError(name) from None
    except errors.HTTPError as error:
        raise InputError(f"the download of {name} broke off ({type(error).__name__}): run again, it resumes") from None
    except OSError as error:
        raise InputError(
            f"cannot keep {name} in the Hub's cache ({error.strerror or error}): make room there,"
            " or set HF_HOME to another folder"
        ) from None
    if not any(folder.glob("*.safetensors")):
        raise InputError(_without_safetensors(name, resolved.resolved))
    return folder, resolved.resolved


def _without_safetensors(name: str, commit: str) -> str:
    from huggingface_hub import errors, get_cached_repo_tree

    try:
        files = [file.path for file in get_cached_repo_tree(name, revision=commit)]
    except errors.CachedRepoTreeNotFoundError:  # a cache filled by another tool, and no network
        raise UnreachableError(name) from None
    if any(file.endswith(".gguf") for file in files):
        return f"{name} holds GGUF files only: download the one you mean into a folder, and give the folder"
    if any(file.endswith((".bin", ".pt", ".pth", ".ckpt")) for file in files):
        return (
            f"{name} holds pickled weights only, which are not read; convert them where you trust them:"
            " AutoModel.from_pretrained(name).save_pretrained(folder), then give the folder"
        )
    return f"{name} holds no safetensors: give a repository with a model's weights"


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the client's remarks off standard error, and its progress bars too where no one is watching."""
    from huggingface_hub.utils import disable_progress_bars, logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with nullcontext() if sys.stderr.isatty() else disable_progress_bars():
            yield
    finally:
        logging.set_verbosity(verbosity)

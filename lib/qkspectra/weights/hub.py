"""Weights on the Hugging Face Hub, through the ordinary client and its cache."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import HfApi, errors
from huggingface_hub.utils import disable_progress_bars, logging

from qkspectra.errors import InputError

# Configuration and safetensors under the names that Transformers loads: no pickles, no code, no second copy.
_PATTERNS = ["config.json", "model.safetensors", "model.safetensors.index.json", "model-*.safetensors"]
_PATIENCE = 10.0  # seconds for the Hub's first answer


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
    api = HfApi()
    try:
        with _quiet():
            listing = _listing(api, name, revision)
            if listing is not None:
                _check_forms(name, listing)
            folder = Path(
                api.snapshot_download(
                    name, revision=revision, allow_patterns=_PATTERNS, local_files_only=listing is None
                )
            )
    except errors.GatedRepoError:
        raise InputError(f"{name} is gated: accept its terms on the Hub, then run `hf auth login`") from None
    except errors.RevisionNotFoundError:
        raise InputError(f"{name} has no revision {revision}: give one of its branches, tags or commits") from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise UnknownRepoError(name) from None
    except errors.LocalEntryNotFoundError:
        raise UnreachableError(name) from None
    except errors.HTTPError as error:
        raise InputError(f"the download of {name} broke off ({type(error).__name__}): run again, it resumes") from None
    except OSError as error:
        raise InputError(
            f"cannot keep {name} in the Hub's cache ({error.strerror or error}): make room there,"
            " or set HF_HOME to another folder"
        ) from None
    if not any(folder.glob("*.safetensors")):  # a cache that another tool filled in part
        raise UnreachableError(name)
    return folder, folder.name


def _listing(api: HfApi, name: str, revision: str | None) -> list[str] | None:
    """Names of a revision's files, `None` where nobody answers.

    One question, asked once: the client itself would go on asking for half a minute.
    """
    try:
        siblings = api.model_info(name, revision=revision, timeout=_PATIENCE).siblings or []
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        raise
    except (errors.OfflineModeIsEnabled, errors.HTTPError):
        return None
    return [file.rfilename for file in siblings]


def _check_forms(name: str, files: list[str]) -> None:
    """Refuses a repository without safetensors, before anything of it is fetched."""
    if any(fnmatch(file, pattern) for file in files for pattern in _PATTERNS if pattern.endswith(".safetensors")):
        return
    if "adapter_config.json" in files:
        raise InputError(f"{name} is an adapter: merge it into its base model (merge_and_unload) and save that")
    if any(file.endswith(".gguf") for file in files):
        raise InputError(f"{name} holds GGUF files only: download the one you mean, and give the folder it lies in")
    if any(file.endswith((".bin", ".pt", ".pth", ".ckpt")) for file in files):
        raise InputError(
            f"{name} holds pickled weights only, which are not read; convert them where you trust them:"
            " AutoModel.from_pretrained(name).save_pretrained(folder), then give the folder"
        )
    raise InputError(f"{name} holds no model.safetensors: give a repository with a model's weights")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the client's remarks off standard error, and its progress bars too where no one is watching."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with nullcontext() if sys.stderr.isatty() else disable_progress_bars():
            yield
    finally:
        logging.set_verbosity(verbosity)

"""Weights on the Hugging Face Hub, through the ordinary client and its cache."""

from pathlib import Path

from qkspectra.errors import InputError

# Nothing but configuration and safetensors: no pickles, no code, no second copy in another framework's format.
_PATTERNS = ["config.json", "generation_config.json", "model.safetensors", "model-*.safetensors", "*.index.json"]


class UnknownRepoError(Exception):
    """The Hub answered, and does not show a repository under that name."""


class UnreachableError(Exception):
    """The Hub did not answer and the cache does not hold the model; the message is for the user."""


def fetch(name: str, revision: str | None) -> tuple[Path, str]:
    """The local snapshot of one commit of a Hub repository, and the commit.

    With no network, or with `HF_HUB_OFFLINE` set, what the client's cache holds of the revision is used.

    Raises:
        UnknownRepoError, UnreachableError: as they say.
        InputError: unknown revision, or a gated repository.
    """
    from huggingface_hub import HfApi, errors

    api = HfApi()
    where = f"{name}@{revision}" if revision else name
    try:
        resolved = api.resolve_revision(name, revision=revision)
        folder = api.snapshot_download(name, revision=resolved, allow_patterns=_PATTERNS, ignore_patterns=["*/*"])
    except errors.GatedRepoError:
        raise InputError(f"{where}: gated; accept its terms on the Hub, then `hf auth login`") from None
    except errors.RevisionNotFoundError:
        raise InputError(f"{name} has no revision {revision!r}: give one of its branches, tags or commits") from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise UnknownRepoError(name) from None
    except (errors.RevisionResolutionError, errors.LocalEntryNotFoundError):
        raise UnreachableError(
            f"cannot reach the Hub for {where} and it is not in the local cache: check the network, or give a folder"
        ) from None
    return Path(folder), resolved.resolved

"""Weights on the Hugging Face Hub, through the ordinary client and its cache."""

import hashlib
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import quote

from huggingface_hub import (
    constants,
    errors,
    hf_hub_download,
    snapshot_download,
    try_to_load_from_cache,
)
from huggingface_hub.utils import (
    build_hf_headers,
    disable_progress_bars,
    hf_raise_for_status,
    http_backoff,
    logging,
    validate_repo_id,
)

from qkspectra.errors import InputError
from qkspectra.weights import wheels

# Configuration and safetensors under the names that Transformers loads: no pickles, no code, no second copy.
_PATTERNS = ["config.json", "model.safetensors", "model.safetensors.index.json", "model-*.safetensors"]
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_PATIENCE = 10.0  # seconds for the Hub's first answer


class UnknownRepoError(Exception):
    """The Hub answered, and shows no repository under that name."""


class UnreachableError(Exception):
    """The Hub did not answer, and the client's cache does not hold the revision."""


@dataclass(frozen=True)
class File:
    """What the Hub lists of a file: `size` in bytes, and SHA-256 of a large file or else git's hash of a small one."""

    size: int
    digest: str


@dataclass(frozen=True)
class Listing:
    """The files of a repository at one commit.

    Attributes:
        name: the repository.
        commit: what the revision stands for.
        files: by path.
    """

    name: str
    commit: str
    files: dict[str, File]

    @property
    def weights(self) -> dict[str, File]:
        """The safetensors files that are loaded; none where weights come in other forms alone."""
        names = [name for name in self.files if name.endswith(".safetensors") and _loaded(name)]
        return {name: self.files[name] for name in sorted(names)}

    @property
    def pickles(self) -> dict[str, File]:
        """Pickled weights, which are never opened; their hashes still tell which revisions are the same."""
        names = [name for name in self.files if name.startswith("pytorch_model") and name.endswith(".bin")]
        return {name: self.files[name] for name in sorted(names)}


def labels(name: str) -> dict[str, str]:
    """Branches and tags of a repository, each with the commit it stands for.

    Raises:
        UnknownRepoError, UnreachableError: as they say.
        InputError: a gated repository, or the Hub turns the question down.
    """
    with quiet(), refusals(name, None):
        refs = _ask(f"{name}/refs", name)
    return {ref["name"]: ref["targetCommit"] for ref in [*refs["tags"], *refs["branches"]]}


def listing(name: str, revision: str | None) -> Listing:
    """What the Hub lists at a revision.

    Raises:
        UnknownRepoError, UnreachableError: as they say.
        InputError: unknown revision, a gated repository, or the Hub turns the question down.
    """
    with quiet(), refusals(name, revision):
        info = _ask(f"{name}/revision/{quote(revision or constants.DEFAULT_REVISION, safe='')}", name, blobs=True)
    files = {}
    for entry in info["siblings"]:
        digest = (entry.get("lfs") or {}).get("sha256") or entry.get("blobId")
        files[entry["rfilename"]] = File(entry.get("size") or 0, digest or "")
    return Listing(name, info["sha"], files)


def fetch(
    name: str, revision: str | None, commit: str | None = None, *, ranges: bool = False
) -> tuple[Path, Listing | None]:
    """The client's local snapshot of one commit of a repository; its folder is called by the commit.

    With no network, or with `HF_HUB_OFFLINE` set, what the client's cache holds of the revision is used.

    Args:
        name: the repository.
        revision: branch, tag or commit.
        commit: open this one, whatever `revision` stands for by now.
        ranges: where the weights are not in the cache, leave them on the Hub.

    Returns:
        The folder, and the listing of files that were left on the Hub, `None` where the folder holds them.

    Raises:
        UnknownRepoError, UnreachableError: as they say.
        InputError: unknown revision, a gated repository, a full disk, one without safetensors, or files that are not
            what the Hub lists; those are not kept.
    """
    try:
        listed = listing(name, commit or revision)
    except UnreachableError as error:
        listed, reason = None, error
    else:
        check_forms(listed)
        reason = UnreachableError("it stopped answering")
    with quiet(), _bars(), refusals(name, revision):
        try:
            if listed is not None and ranges and not _cached(listed):
                for file in (file for file in listed.files if file.endswith(".json") and _loaded(file)):
                    folder = Path(hf_hub_download(name, file, revision=listed.commit)).parent
            else:
                offline, state = listed is None, commit or revision
                folder = Path(
                    snapshot_download(name, revision=state, allow_patterns=_PATTERNS, local_files_only=offline)
                )
                listed = None
        except errors.LocalEntryNotFoundError:
            raise reason from None
    _verify(folder)
    if listed is None and not any(folder.glob("*.safetensors")):  # a cache that another tool filled in part
        raise UnreachableError("which holds only a part of it")
    return folder, listed


def tokenizer(name: str, commit: str) -> Path:
    """`tokenizer.json` of a commit, which `fetch` leaves out, as operators do not need it.

    Raises:
        InputError: the repository has none, or it cannot be fetched.
    """
    with quiet(), refusals(name, commit):
        try:
            return Path(hf_hub_download(name, "tokenizer.json", revision=commit))
        except errors.LocalEntryNotFoundError:
            raise InputError(f"the tokenizer of {name} is not in the cache, and the Hub cannot be reached") from None
        except errors.EntryNotFoundError:
            raise InputError(f"{name} has no tokenizer.json at {commit[:12]}: text cannot be put before it") from None


def check_forms(listed: Listing) -> None:
    """Refuses a repository without safetensors and configuration, before anything of it is fetched.

    Raises:
        InputError: saying which form its weights have.
    """
    name, files = listed.name, listed.files
    if not listed.weights:
        if "adapter_config.json" in files:
            raise InputError(f"{name} is an adapter: merge it into its base model (merge_and_unload) and save that")
        if any(file.endswith(".gguf") for file in files):
            raise InputError(f"{name} holds GGUF files only: download the one you mean, and give the folder it lies in")
        if any(file.endswith(_PICKLES) for file in files):
            raise InputError(
                f"{name} holds pickled weights only at {listed.commit[:12]}, which are not read; convert them where you"
                " trust them: AutoModel.from_pretrained(name).save_pretrained(folder), then give the folder"
            )
        raise InputError(f"{name} holds no model.safetensors: give a repository with a model's weights")
    if "config.json" not in files:
        raise InputError(f"{name} has no config.json: give a repository saved by Transformers")


def _loaded(file: str) -> bool:
    return any(fnmatch(file, pattern) for pattern in _PATTERNS)


def _cached(listed: Listing) -> bool:
    """Whether the client's cache holds all of a commit that is loaded."""
    places = (
        try_to_load_from_cache(listed.name, file, revision=listed.commit) for file in listed.files if _loaded(file)
    )
    return all(isinstance(place, str) for place in places)


def _verify(folder: Path) -> None:
    """Checks a snapshot against the hashes under which the client's cache keeps its files, and drops what differs.

    The client itself compares lengths alone.
    """
    for file in folder.iterdir():
        blob = file.resolve()
        if blob == file or len(blob.name) not in (40, 64):  # a file system without links holds copies
            continue
        if len(blob.name) == 64:
            digest = wheels.sha256_of(file)
        else:
            data = blob.read_bytes()
            digest = hashlib.sha1(b"blob %d\0%b" % (len(data), data)).hexdigest()
        if digest != blob.name:
            file.unlink()
            blob.unlink()
            raise InputError(
                f"{file.name} arrived damaged (its hash is not the one the Hub lists), and was not kept: run again"
            )


def _ask(path: str, name: str, **parameters: Any) -> Any:
    """One question to the Hub's interface; asked again, after the wait it calls for, where the Hub is busy.

    The client's own questions either do not wait for a busy Hub or go on for half a minute where there is none.
    """
    validate_repo_id(name)
    try:
        response = http_backoff(
            "GET",
            f"{constants.ENDPOINT}/api/models/{path}",
            params=parameters,
            headers=build_hf_headers(),
            timeout=_PATIENCE,
            retry_on_exceptions=(),
        )
        hf_raise_for_status(response)
        return response.json()
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        raise
    except errors.OfflineModeIsEnabled:
        raise UnreachableError("HF_HUB_OFFLINE is set") from None
    except errors.HfHubHTTPError as error:
        raise UnreachableError(f"it answers {error.response.status_code}") from None
    except (errors.HTTPError, ValueError) as error:
        raise UnreachableError(type(error).__name__) from None


@contextmanager
def refusals(name: str, revision: str | None) -> Iterator[None]:
    """Puts what the client raises into one line."""
    try:
        yield
    except errors.GatedRepoError:
        raise InputError(f"{name} is gated: accept its terms on the Hub, then run `hf auth login`") from None
    except errors.RevisionNotFoundError:
        raise InputError(f"{name} has no revision {revision}: give one of its branches, tags or commits") from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise UnknownRepoError(name) from None
    except errors.LocalEntryNotFoundError:
        raise
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        raise InputError(f"the download of {name} broke off (the Hub answers {status}): try again later") from None
    except errors.HTTPError as error:
        raise InputError(f"the download of {name} broke off ({type(error).__name__}): run again, it resumes") from None
    except OSError as error:
        if "Consistency check failed" in str(error):
            raise InputError(
                f"the download of {name} arrived with the wrong length, and was not kept: run again"
            ) from None
        raise InputError(
            f"cannot keep {name} in the Hub's cache ({error.strerror or error}): make room there,"
            " or set HF_HOME to another folder"
        ) from None


class _Verbosity:
    """The client's, taken down once however many threads ask for quiet at a time."""

    def __init__(self) -> None:
        self._lock, self._silent, self._usual = threading.Lock(), 0, 0

    def down(self) -> None:
        with self._lock:
            if not self._silent:
                self._usual = logging.get_verbosity()
                logging.set_verbosity_error()
            self._silent += 1

    def up(self) -> None:
        with self._lock:
            self._silent -= 1
            if not self._silent:
                logging.set_verbosity(self._usual)


_verbosity = _Verbosity()


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps the client's remarks off standard error."""
    _verbosity.down()
    try:
        yield
    finally:
        _verbosity.up()


def _bars() -> AbstractContextManager[None]:
    """The client's progress bars, where a person is watching."""
    return nullcontext() if sys.stderr.isatty() else disable_progress_bars()

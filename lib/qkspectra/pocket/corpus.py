"""Natural text that every installation has: the Python source of the pinned Transformers package.

Training reads the files `models/*/modeling_*.py` of the package, held-out text the files of its folders `generation`
and `pipelines`, each set in the order of its paths. No file belongs to both, and Transformers copies code between the
files of `models`, not from there to the other two folders. Both sets are pinned by SHA-256 over their names and
contents: with another version of the package installed there is no corpus, while the shipped models work as ever.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64, UInt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from qkspectra.errors import InputError
from qkspectra.weights.wheels import sha256_of_sums

PACKAGE, VERSION = "transformers", "5.24.0"
BOUNDARY = "<|endoftext|>"
"""Stands in front of every file; id 0."""


@dataclass(frozen=True)
class Text:
    """Some files of the package.

    Attributes:
        patterns: which ones, relative to the package's folder.
        sha256: over one line for each file, its own SHA-256 and its path, in the order of the paths.
    """

    patterns: tuple[str, ...]
    sha256: str


TRAINING = Text(("models/*/modeling_*.py",), "df52b139d7dbd22ef087ad4c37053768924a047424289877be9c4fa9f378fc32")
HELD_OUT = Text(
    ("generation/*.py", "pipelines/*.py"), "78d038fecf0cc6ba9e0f83561da2aed179a57bbb3dac3b3a18e3ed67a72215a8"
)


def read(text: Text) -> list[str]:
    """The contents of the files, in the order of their paths.

    Raises:
        InputError: another version of the package is installed, or its files are not those of the pinned one.
    """
    return list(_read(text))


@lru_cache(maxsize=2)
def _read(text: Text) -> tuple[str, ...]:
    advice = f"install {PACKAGE}=={VERSION} to train pocket models or to take text from it"
    try:
        installed = version(PACKAGE)
    except PackageNotFoundError:
        installed = "no version"
    if installed != VERSION:
        raise InputError(
            f"the pocket corpus is the source of {PACKAGE} {VERSION} and {installed} is installed: {advice}"
        )
    root = Path(find_spec(PACKAGE).submodule_search_locations[0])
    paths = {path.relative_to(root).as_posix(): path for pattern in text.patterns for path in root.glob(pattern)}
    contents = {name: paths[name].read_bytes() for name in sorted(paths)}
    if sha256_of(contents) != text.sha256:
        raise InputError(f"the files of {PACKAGE} {VERSION} have been changed: {advice}")
    return tuple(content.decode() for content in contents.values())


def sha256_of(contents: dict[str, bytes]) -> str:
    """SHA-256 over one line for each file: its own SHA-256 and its name."""
    return sha256_of_sums({name: hashlib.sha256(content).hexdigest() for name, content in contents.items()})


def train_tokenizer(texts: list[str], vocab: int) -> Tokenizer:
    """Byte-level byte-pair encoding (Sennrich et al. 2016, arXiv 1508.07909); `vocab` entries, the boundary first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=[BOUNDARY], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str]) -> UInt[np.ndarray, " tokens"]:
    """The texts one after another, each behind a boundary where the tokenizer has one; integers as wide as needed."""
    boundary = tokenizer.token_to_id(BOUNDARY)
    lead = [] if boundary is None else [boundary]
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    width = np.min_scalar_type(tokenizer.get_vocab_size())
    return np.concatenate([np.array([*lead, *text.ids], width) for text in encoded])


def held_out(count: int, length: int, seed: int, tokenizer: Path) -> Int64[Tensor, "count length"]:
    """Held-out text: `count` spans of `length` tokens, drawn with replacement from the whole of it.

    Args:
        seed: of this draw alone.
        tokenizer: the model's `tokenizer.json`, of a pocket model or of any other.

    Raises:
        InputError: see `read`; or spans longer than the text.
    """
    tokens = _held_out(tokenizer.read_text(encoding="utf-8"))
    if not 1 <= length <= len(tokens):
        raise InputError(f"held-out text has {len(tokens)} tokens: spans of {length} cannot be taken from it")
    starts = np.random.default_rng(seed).integers(0, len(tokens) - length + 1, count)
    return torch.from_numpy(tokens[starts[:, None] + np.arange(length)].astype(np.int64))


@lru_cache(maxsize=2)
def _held_out(tokenizer: str) -> UInt[np.ndarray, " tokens"]:
    # By content: every pocket model has its own copy of one tokenizer.
    return encode(Tokenizer.from_str(tokenizer), read(HELD_OUT))

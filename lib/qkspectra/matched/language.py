"""What the models read: the corpus of the pocket models under a smaller vocabulary, and what they are examined on."""

from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Int64, UInt
from tokenizers import Tokenizer
from torch import Tensor

from qkspectra.behaviour import random_repeats
from qkspectra.matched.model import Recipe
from qkspectra.pocket import corpus

EXAMINED = 16
"""Sequences of each kind in an examination."""
EXAMINATION_SEED = 20_000
BOUNDARY = 0
"""Id of what stands between files."""


@lru_cache(maxsize=1)
def tokenizer(vocab: int) -> Tokenizer:
    """Byte-pair encoding of the training text.

    Raises:
        InputError: see `corpus.read`.
    """
    return corpus.train_tokenizer(corpus.read(corpus.TRAINING), vocab)


@lru_cache(maxsize=1)
def training(vocab: int) -> UInt[np.ndarray, " tokens"]:
    """The training text in tokens.

    Raises:
        InputError: see `corpus.read`.
    """
    return corpus.encode(tokenizer(vocab), corpus.read(corpus.TRAINING))


@lru_cache(maxsize=1)
def _held_out(vocab: int) -> UInt[np.ndarray, " tokens"]:
    return corpus.encode(tokenizer(vocab), corpus.read(corpus.HELD_OUT))


def repeats(recipe: Recipe) -> Int64[Tensor, "batch context"]:
    """Sequences `[r, r]` of distinct random tokens (`behaviour.random_repeats`), the same for every seed and scheme."""
    return random_repeats(recipe.layout, EXAMINED, recipe.context // 2, EXAMINATION_SEED, reserved={BOUNDARY})


def held_out(recipe: Recipe) -> Int64[Tensor, "batch context"]:
    """Spans of held-out text, twice as many as of the others, the same for every seed and scheme.

    Raises:
        InputError: see `corpus.read`.
    """
    tokens = _held_out(recipe.vocab)
    rng = np.random.default_rng(EXAMINATION_SEED)
    starts = rng.integers(0, len(tokens) - recipe.context + 1, 2 * EXAMINED)
    return torch.from_numpy(tokens[starts[:, None] + np.arange(recipe.context)].astype(np.int64))

"""A recipe so small that a run takes a second, and a corpus to go with it."""

import pytest

from qkspectra.pocket import corpus
from qkspectra.pocket.recipe import Recipe


def small(name="pocket-llama", **changes):
    sizes = {"layers": 1, "width": 32, "heads": 4, "vocab": 300, "context": 16, "batch": 4, "shortest": 4}
    times = {"steps": 6, "warmup": 2, "decay": 2, "forming": 3, "every": 2}
    return Recipe(name=name, **(sizes | times | changes))


@pytest.fixture(scope="session")
def texts():
    return [f"def add_{i}(self, other):\n    return self.value + other.value + {i}\n" for i in range(60)]


@pytest.fixture(scope="session")
def tokens(texts):
    return corpus.encode(corpus.train_tokenizer(texts, 300), texts)

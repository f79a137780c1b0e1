"""Recipes so small that a run takes a second, and a corpus to go with them."""

import numpy as np
import pytest

from qkspectra.matched import language
from qkspectra.matched.model import Recipe


def small(name="rope", **changes):
    sizes = {"layers": 2, "width": 32, "heads": 2, "vocab": 300, "context": 16, "batch": 4, "shortest": 4}
    return Recipe(name=name, **(sizes | {"steps": 8, "warmup": 2} | changes))


@pytest.fixture
def tokens(monkeypatch):
    """Tokens in place of the training text; held-out text is drawn from the same."""
    drawn = np.random.default_rng(5).integers(0, 300, 4000).astype(np.uint16)
    monkeypatch.setattr(language, "training", lambda vocab: drawn)
    monkeypatch.setattr(language, "_held_out", lambda vocab: drawn)
    return drawn

"""Settings of the whole suite."""

import os

import pytest
from hypothesis import settings

os.environ.pop("QKSPECTRA_DEVICE", None)  # tests run on the CPU but for those that say otherwise

# No deadlines: a loaded machine is not a fault. Fixed examples: a run that passed passes again.
settings.register_profile("qkspectra", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("qkspectra")


@pytest.fixture(autouse=True)
def nothing_entered(monkeypatch):
    """A process into which nothing has entered: models of earlier tests may be gone when their content is asked for."""
    from qkspectra import record  # here, for the type checks of the suite go into the library as it is imported

    for name in ("_profile", "_models", "_results"):
        monkeypatch.setattr(record, name, {})

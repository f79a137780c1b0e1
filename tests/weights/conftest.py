"""A Hub of our own for the tests of everything that talks to one."""

import huggingface_hub.constants
import pytest
from tests.weights import tiny

from ci import hub as small_hub


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A small Hub that the client takes for the real one, and an empty cache."""
    with small_hub.serving() as server:
        server.point_client(server.url, monkeypatch)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        yield server


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """A model in two widths."""
    home = tmp_path_factory.mktemp("models")
    return [tiny.save(home / str(hidden), "llama", hidden_size=hidden) for hidden in (48, 64)]

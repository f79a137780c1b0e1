"""A chapter depends on every module that its code can reach by import, and on no other."""

import pytest

from ci import depend

TREE = {
    "__init__.py": "import lazy_loader\na, b, c = lazy_loader.attach(__name__, submod_attrs={'deep': ['Thing']})\n",
    "deep/__init__.py": "a, b, c = lazy_loader.attach(__name__, submod_attrs={'core': ['Thing', 'other']})\n",
    "deep/core.py": "from ..plain import x\nfrom . import near\n",
    "deep/near.py": "",
    "plain.py": "def later():\n    from qkspectra.late import y\n",
    "late.py": "from qkspectra import deep\n",
    "alone.py": "import numpy\n",
}
CORE = {"deep", "deep.core", "deep.near", "plain", "late"}


@pytest.fixture
def library(tmp_path):
    for name, content in TREE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import numpy", None),
        ("import qkspectra.alone", {"alone"}),
        ("from qkspectra import alone as a", {"alone"}),
        ("from qkspectra import Thing", CORE),
        ("import qkspectra\nqkspectra.Thing", CORE),
        ("from qkspectra import *", CORE),
        ("from qkspectra.plain import later", {"plain", "late", "deep"}),
        ("if False:\n    from qkspectra.deep import near", {"deep", "deep.near"}),
        ("%matplotlib inline\nimport qkspectra.alone", {"alone"}),
        ("this is no Python", {"alone", *CORE}),
    ],
)
def test_reachable_modules(library, code, names):
    expected = set() if names is None else {"qkspectra", *(f"qkspectra.{name}" for name in names)}
    found = depend.reachable(["x = 1", code], library)
    assert found.keys() == expected
    assert all(path.is_file() for path in found.values())


def test_what_ships_beside_the_modules(library):
    (library / "models").mkdir()
    (library / "models" / "a.safetensors").write_text("")
    (library / "__pycache__").mkdir()
    (library / "__pycache__" / "plain.cpython-311.pyc").write_text("")
    assert depend.shipped(library) == [library / "models" / "a.safetensors"]

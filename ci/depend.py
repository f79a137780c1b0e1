"""What a chapter's result depends on within the library: the modules that its code can reach by import.

The text of the modules is read, not run: an import counts wherever it stands, so what a function imports only when it
is called, maybe in another process, is counted too. Names that a package provides through `lazy_loader.attach` lead to
the modules behind them. `ci.execute` compares what a kernel did import with what is found here.
"""

import ast
import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from IPython.core.inputtransformer2 import TransformerManager

LIBRARY = "qkspectra"


def library() -> Path:
    """The folder of the library that a kernel of this interpreter imports."""
    return Path(find_spec(LIBRARY).origin).parent


def modules(folder: Path) -> dict[str, Path]:
    """Every module of the library in `folder`, by its dotted name."""
    named = {}
    for path in folder.rglob("*.py"):
        parts = [LIBRARY, *path.relative_to(folder).with_suffix("").parts]
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


def reachable(cells: Iterable[str], folder: Path) -> dict[str, Path]:
    """The modules that the code of `cells` reaches, by name; all of them for code that is not Python."""
    known = modules(folder)
    plain = TransformerManager()
    try:
        trees = [ast.parse(plain.transform_cell(cell)) for cell in cells]
    except SyntaxError:
        return known
    found: set[str] = set()
    waiting = [name for tree in trees for name in _imported(tree, "", False, known)]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _reaches(name, known[name].stat().st_mtime_ns, tuple(known.items()))
    return {name: known[name] for name in sorted(found)}


def digest(named: Mapping[str, Path]) -> str:
    """SHA-256 over names and contents of files."""
    total = hashlib.sha256()
    for name, path in sorted(named.items()):
        state = path.stat()
        total.update(f"{name}\0{_sha256(path, state.st_mtime_ns, state.st_size)}\0".encode())
    return total.hexdigest()


def shipped(folder: Path) -> list[Path]:
    """The files of the library that are no modules: models and what else ships with it."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in {".py", ".pyc"} and "__pycache__" not in path.parts
    ]


@cache
def _sha256(path: Path, _: int, __: int) -> str:
    """Of a file as it is at this time and size: every chapter depends on most of the same files."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def _reaches(name: str, time: int, modules: tuple[tuple[str, Path], ...]) -> list[str]:
    """The modules that one of them imports, as it is at this time."""
    known = dict(modules)
    tree, _ = _parsed(known[name], time)
    return _imported(tree, name, known[name].name == "__init__.py", known)


@cache
def _parsed(path: Path, _: int) -> tuple[ast.Module, dict[str, str]]:
    """A module's tree, and for each name that it provides lazily the submodule behind it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lazy = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "submod_attrs":
            lazy |= {name: part for part, names in ast.literal_eval(node.value).items() for name in names}
    return tree, lazy


def _imported(tree: ast.Module, module: str, package: bool, known: dict[str, Path]) -> list[str]:
    """The modules that the import statements of `module` name, and the packages around them."""
    found: set[str] = set()

    def add(name: str) -> None:
        parts = name.split(".")
        found.update(whole for end in range(1, len(parts) + 1) if (whole := ".".join(parts[:end])) in known)

    def provided(name: str, attribute: str | None) -> None:
        """What `from name import attribute` brings; `None` stands for every attribute."""
        add(name)
        if name not in known or (attribute and f"{name}.{attribute}" in known):
            add(f"{name}.{attribute}")
            return
        lazy = _parsed(known[name], known[name].stat().st_mtime_ns)[1]
        for provides, part in lazy.items():
            if attribute in (None, provides):
                provided(f"{name}.{part}", provides)

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                provided(alias.name, None)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: len(module.split(".")) - node.level + package]
                base = ".".join([*parents, *([base] if base else [])])
            for alias in node.names:
                provided(base, None if alias.name == "*" else alias.name)
    return sorted(found)

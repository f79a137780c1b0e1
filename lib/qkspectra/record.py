"""What has entered this process so far: the profile, models that were opened, results that were read or stored.

Figures and tables of the book take it as their provenance. It is everything that they can depend on besides the code
and the data files of their chapter, which the build knows; what entered later than a figure is not in its own.
"""

import hashlib
import json
import platform
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from typing import Any

PACKAGES = ("numpy", "pandas", "pyarrow", "scipy", "torch", "transformers")
FEW = 8
"""Values of a parameter that are listed; of more, their number is given."""


_profile: dict[str, Any] = {}
_models: dict[tuple[str, str | None, str | None], Callable[[], str]] = {}
_results: dict[str, tuple[dict[str, Any], bool]] = {}


def profile(name: str, sizes: Mapping[str, Any]) -> None:
    """The profile whose sizes the process was given."""
    _profile.update({"name": name, "sizes": dict(sizes)})


def model(name: str, revision: str | None, commit: str | None, content: Callable[[], str]) -> None:
    """A model that was opened, and what gives the SHA-256 of its files: called once, and only if that is asked for."""
    _models[name, revision, commit] = cache(content)


def result(provenance: Mapping[str, Any], *, shipped: bool) -> None:
    """A result that was read or stored.

    Args:
        provenance: as in `store`.
        shipped: whether it came with the project. Of such a table the commit that computed it is told; any other is
            what today's code computes, whichever commit it was that ran it.
    """
    _results[provenance["table_sha256"]] = dict(provenance), shipped


def entered() -> dict[str, Any]:
    """Everything so far, as JSON values in a fixed order; results of one study and one code are told together.

    Returns:
        `profile` with `name` and `sizes`; `versions` of Python and `PACKAGES`; `models`, each with `name`, `revision`,
        `commit` and `content`, the SHA-256 of its files; `results`, each with `study`, `count`, `parameters`, `seeds`,
        `sources`, the hash of the code, `content`, the SHA-256 of its table or, of several tables, of theirs in order,
        `device`, the `versions` that differ from this process's, and `commit`, of shipped tables.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for made, shipped in _results.values():
        shared = {name: made[name] for name in ("study", "sources", "device", "versions")}
        key = json.dumps({**shared, "commit": made["commit"] if shipped else None}, sort_keys=True)
        groups.setdefault(key, []).append(made)
    return {
        "profile": dict(_profile),
        "versions": versions(),
        "models": [
            {"name": name, "revision": revision, "commit": commit, "content": _models[name, revision, commit]()}
            for name, revision, commit in sorted(_models, key=str)
        ],
        "results": [_together(json.loads(key), group) for key, group in sorted(groups.items())],
    }


def versions() -> dict[str, str]:
    """Versions of Python and of `PACKAGES`."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def _together(shared: dict[str, Any], group: list[dict[str, Any]]) -> dict[str, Any]:
    hashes = sorted(made["table_sha256"] for made in group)
    flat = [_flat(made["parameters"]) for made in group]
    parameters = {}
    for name in sorted(set().union(*flat)):
        found = {json.dumps(one.get(name), sort_keys=True) for one in flat}
        listed = [json.loads(value) for value in sorted(found)]
        parameters[name] = listed[0] if len(listed) == 1 else listed if len(listed) <= FEW else f"{len(listed)} values"
    own = versions()
    return {
        **shared,
        "versions": {name: value for name, value in shared["versions"].items() if own.get(name) != value},
        "count": len(group),
        "parameters": parameters,
        "seeds": sorted({seed for made in group for seed in made["seeds"]}),
        "content": hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest(),
    }


def _flat(parameters: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in parameters.items():
        out |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return out

"""A Hub that holds pocket models under the names of public ones: what the profile paper would fetch, at pocket size.

Each model of the panel `paper` is stood in for by the pocket model of the same position scheme. Models of which the
profile reads a training run get one, on the steps of its schedule: a straight line from the initial weights of the
pocket model to its final ones, which no training ever took. As on the real Hub, the branch `main` is the last step, and
the first two steps are one and the same (EleutherAI/pythia#83).
"""

import math
from collections.abc import Iterable, Iterator
from itertools import cycle
from pathlib import Path

from safetensors.torch import load_file, save

from ci.hub import Files, Hub
from qkspectra.pocket.recipe import ZOO
from qkspectra.pocket.train import initial
from qkspectra.weights.catalogue import CATALOGUE
from qkspectra.weights.panels import PANELS, Panel

WEIGHTS = "model.safetensors"
PACE = 50.0
"""Steps up to which the line is walked evenly, and beyond which by the logarithm of the step."""


def stand_ins(named: Panel = PANELS["paper"], small: Panel = PANELS["pocket"]) -> dict[str, str]:
    """For every model of a panel, one of another with the same position scheme, each used once where it can be."""
    waiting = {
        scheme: cycle([member.name for member in small.members if member.scheme == scheme])
        for scheme in {member.scheme for member in small.members}
    }
    return {member.name: next(waiting[member.scheme]) for member in named.members}


def fill(hub: Hub, runs: Iterable[str], steps: Iterable[int]) -> None:
    """Put all stand-ins on the Hub.

    Args:
        runs: those that are to have a training run.
        steps: its checkpoints, in ascending order.
    """
    chosen, steps = set(runs), list(steps)
    for name, pocket in stand_ins().items():
        files = _files(CATALOGUE[pocket].folder)
        hub.put(name, files)
        if name in chosen:
            for step, weights in checkpoints(pocket, steps):
                hub.put(name, files | {WEIGHTS: weights}, f"step{step}")


def checkpoints(pocket: str, steps: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """Step and weights of every checkpoint between the initial and the final state of a pocket model.

    Args:
        pocket: its name.
        steps: in ascending order, from 0; the last is the final state as it is shipped.
    """
    path = CATALOGUE[pocket].folder / WEIGHTS
    end = load_file(path)
    start = {name: tensor for name, tensor in initial(ZOO[pocket]).state_dict().items() if name in end}
    first, *rest = steps
    whole = math.log1p(rest[-1] / PACE)
    for step in (first, *rest[:-1]):
        share = 0.0 if step <= 1 else math.log1p(step / PACE) / whole
        between = {name: start[name].lerp(tensor.float(), share).to(tensor.dtype) for name, tensor in end.items()}
        yield step, save(between, {"format": "pt"})
    yield rest[-1], path.read_bytes()


def _files(folder: Path) -> Files:
    return {name: (folder / name).read_bytes() for name in ("config.json", "tokenizer.json", WEIGHTS)}

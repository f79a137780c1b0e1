"""The checkpoints of a training run."""

from qkspectra.errors import InputError
from qkspectra.weights import hub, sources
from qkspectra.weights.catalogue import CATALOGUE
from qkspectra.weights.schedules import Revision, in_order, schedule


def revisions_of(name: str, wanted: str | None = None) -> list[Revision]:
    """The checkpoints of a Hub id or of a local trajectory, in the numeric order of their steps.

    Args:
        name: Hub id, whose branches and tags are looked through, or a folder of subfolders named by steps.
        wanted: name of a schedule: its steps alone, with the tokens seen. Without one, every step that is there.

    Raises:
        InputError: no such model, no network, no revision named by a step, or one that the schedule calls for is
            missing.
    """
    if name in CATALOGUE:
        raise InputError(
            f"{name} is one state of a model: give a Hub id, or a folder of subfolders named step0, step1, …"
        )
    folder = sources.local_folder(name)
    if folder is None:
        with sources.on_hub(name):
            labels = hub.labels(name)
    else:
        labels = {step.name: None for step in sources.trajectory(folder)}
    found = in_order(labels.items(), schedule(wanted) if wanted else None)
    if not found:
        raise InputError(f"{name} has no revisions named by steps (step0, step1, …): it is one state of a model")
    return found

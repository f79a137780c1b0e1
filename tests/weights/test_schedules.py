"""Labels, steps and their order."""

import pytest

from qkspectra.errors import InputError
from qkspectra.weights.schedules import Revision, in_order, schedule, step_of


def test_the_schedule_of_pythia():
    """Biderman et al. 2023: 154 checkpoints, 2,097,152 tokens a step, 299,892,736,000 tokens in all."""
    pythia = schedule("pythia")
    assert len(pythia.steps) == 154
    assert pythia.steps[:13] == (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000)
    assert pythia.steps[-1] * pythia.tokens == 299_892_736_000
    with pytest.raises(InputError, match=r"no schedule 'olmo': choose from pythia"):
        schedule("olmo")


@pytest.mark.parametrize(
    ("label", "step"),
    [
        ("step0", 0), ("step143000", 143000), ("step-512", 512), ("step_512", 512), ("global_step1000", 1000),
        ("step1000-tokens4B", 1000), ("checkpoint-300", 300), ("main", None), ("step", None), ("step1-seed2", None),
        ("stage1-step150-tokens1B", None), ("overstep3", None), ("v0.step3", None), ("step1k", None),
    ],
)  # fmt: skip
def test_the_step_in_a_label(label, step):
    """A label that says more than a step, such as a second stage of training, is not a point of one trajectory."""
    assert step_of(label) == step


def test_steps_come_in_numeric_order():
    """As text, step99000 would come last and pass for the final one (stanford-crfm/mistral#182)."""
    labels = [("step99000", "c"), ("step143000", "d"), ("main", "d"), ("step1000", "b"), ("step2", "a")]
    assert in_order(labels) == [
        Revision("step2", 2, None, "a"), Revision("step1000", 1000, None, "b"),
        Revision("step99000", 99000, None, "c"), Revision("step143000", 143000, None, "d"),
    ]  # fmt: skip


def test_a_schedule_takes_its_steps_and_counts_tokens():
    pythia = schedule("pythia")
    labels = [(f"step{step}", None) for step in (*pythia.steps, 3, 143500)]
    found = in_order(labels, pythia)
    assert [revision.step for revision in found] == list(pythia.steps)
    assert all(revision.tokens == revision.step * 2_097_152 for revision in found)


def test_a_schedule_with_gaps_is_not_passed_off_as_whole():
    """The first release of Pythia has the steps from 1000 on."""
    labels = [(f"step{step}", None) for step in range(1000, 144_000, 1000)]
    with pytest.raises(
        InputError, match=r"11 of the 154 steps of the schedule pythia are missing \(0, 1, 2, 4, 8, …\)"
    ):
        in_order(labels, schedule("pythia"))

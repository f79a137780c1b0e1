"""The panels are data, and say what they are."""

import pytest
from pydantic import ValidationError

from qkspectra.weights.panels import PANELS, Panel

MEMBERS = [member.model_dump() for member in PANELS["pocket"].members]


def test_every_panel_allows_35_assignments():
    assert set(PANELS) == {"pocket", "paper"}
    for name, panel in PANELS.items():
        assert panel.name == name
        assert [member.scheme for member in panel.members] == ["rope"] * 3 + ["absolute"] * 2 + ["alibi"] * 2


def changed(index, **fields):
    return [member | (fields if i == index else {}) for i, member in enumerate(MEMBERS)]


@pytest.mark.parametrize(
    ("members", "says"),
    [
        (MEMBERS[:6], "three rotary models and four others"),
        (changed(0, scheme="alibi"), "three rotary models and four others"),
        ([member | {"scheme": member["scheme"].replace("absolute", "alibi")} for member in MEMBERS], "both schemes"),
        (changed(1, name=MEMBERS[0]["name"]), "'pocket-gpt-neox' appears more than once"),
        (changed(1, title=MEMBERS[0]["title"]), "'GPT-NeoX' appears more than once"),
        (changed(1, scheme="sinusoidal"), "scheme"),
        (changed(1, size=7), "size"),
    ],
)
def test_what_is_no_panel_is_refused(members, says):
    with pytest.raises(ValidationError, match=says):
        Panel(name="wrong", about="nothing", members=members)

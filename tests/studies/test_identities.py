"""The chapter's identities hold to rounding, and each of the checks can fail."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from qkspectra.operators import QKOperator
from qkspectra.studies import identities
from qkspectra.studies.identities import IDENTITIES, STEP, drawn_operator, kernel, previous_token_head, rounded

LOOSE = {"eq-first-order": 1e4 * STEP}  # a difference quotient, not an algebraic identity


@pytest.fixture(scope="module")
def largest() -> dict[str, float]:
    return identities.errors(draws=2, seed=0)


@pytest.mark.parametrize("label", IDENTITIES)
def test_identity_holds_to_rounding(largest, label):
    assert largest[label] < LOOSE.get(label, 1e-9)


def damaged(op: QKOperator) -> QKOperator:
    """One entry of the key rows of every head moved by a tenth of its row's norm."""
    wk = op.wk.clone()
    wk[:, 0, 0] += wk[:, 0].norm(dim=1) / 10
    return replace(op, wk=wk)


AGAINST_M = ["eq-score", "eq-determinant", "eq-eigenvalues", "eq-eigenvectors", "eq-norm", "eq-square", "eq-singular"]
AGAINST_M += ["eq-energy", "eq-henrici", "eq-overlap", "eq-first-order"]


@pytest.mark.parametrize("label", AGAINST_M)
def test_check_sees_another_operator(monkeypatch, label):
    """Written out from slightly other rows, `M` is not the operator that the factored side knows."""
    right = identities.written_out
    monkeypatch.setattr(identities, "written_out", lambda op: right(damaged(op)))
    assert IDENTITIES[label][1](drawn_operator(0), torch.randn(8, 20, dtype=torch.float64)) > 1e-3


@pytest.mark.parametrize("label", ["eq-rotated", "eq-relative", "eq-symmetric-head"])
def test_check_sees_the_other_sign_of_the_phase(monkeypatch, label):
    right = QKOperator.relative
    monkeypatch.setattr(QKOperator, "relative", lambda op, delta: right(op, -delta))
    assert IDENTITIES[label][1](drawn_operator(0), torch.randn(8, 20, dtype=torch.float64)) > 1e-3


@pytest.mark.parametrize("theta", [[1.0, 0.4], [2.0, 0.4]])
def test_constructed_head_looks_one_position_back_and_its_even_part_as_much_ahead(theta):
    rotary = replace(drawn_operator(0).rotary, theta=torch.tensor(theta, dtype=torch.float64))
    head = previous_token_head(rotary, seed=1)
    distances = torch.arange(-6.0, 7.0, dtype=torch.float64)
    scores = kernel(head, head.wq[0].sum(0), distances)[0]  # a token that weighs every frequency alike
    assert distances[scores.argmax()] == 1
    even = scores + scores.flip(0)
    assert even[distances == 1].item() == pytest.approx(even[distances == -1].item())
    # Frequencies below pi / 2 put the maximum of the even part at the token itself; others need not.
    assert (distances[even.argmax()] == 0) == (max(theta) < torch.pi / 2)


def test_rounding_to_half_precision_moves_the_rows_by_its_unit_roundoff():
    op = drawn_operator(0)
    for dtype, unit in ((torch.float16, 2**-11), (torch.bfloat16, 2**-8)):
        moved = rounded(op, dtype)
        assert 0 < ((moved.wq - op.wq) / op.wq).abs().max() <= unit


def test_chapter_states_every_identity_that_is_checked():
    chapter = (Path(__file__).resolve().parents[2] / "book" / "theory.md").read_text(encoding="utf-8")
    labels = set(re.findall(r"^:label: (eq-\S+)$", chapter, re.MULTILINE))
    assert set(IDENTITIES) <= labels
    # Without a check: two definitions, and a limit that the null's own tests compare with draws.
    assert labels - set(IDENTITIES) == {"eq-rotation", "eq-phase", "eq-null-henrici"}

"""The word beside a claim follows from numbers."""

import pytest

from qkspectra.studies import verdicts


@pytest.mark.parametrize(
    ("holding", "tested", "word"), [(8, 8, "supported"), (7, 8, "in part"), (1, 8, "in part"), (0, 8, "contradicted")]
)
def test_a_claim_about_every_case(holding, tested, word):
    assert verdicts.of_all(holding, tested) == word


@pytest.mark.parametrize(("holding", "tested"), [(0, 0), (9, 8), (-1, 8)])
def test_no_count_has_no_verdict(holding, tested):
    with pytest.raises(ValueError, match="is no count"):
        verdicts.of_all(holding, tested)


@pytest.mark.parametrize(
    ("p", "as_claimed", "word"),
    [(0.05, True, "supported"), (0.05, False, "contradicted"), (0.051, True, "undecided"), (0.9, False, "undecided")],
)
def test_a_claim_about_a_difference(p, as_claimed, word):
    assert verdicts.of_test(p, as_claimed) == word

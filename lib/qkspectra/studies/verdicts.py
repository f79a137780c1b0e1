"""The word that stands for a result beside a claim, by rule: no chapter chooses it."""

LEVEL = 0.05


def of_all(holding: int, tested: int) -> str:
    """For a claim about every case: `supported` if all of the tested ones hold, `contradicted` if none, or `in part`.

    >>> of_all(1, 8)
    'in part'
    """
    if tested < 1 or not 0 <= holding <= tested:
        raise ValueError(f"{holding} of {tested} cases is no count")
    return "supported" if holding == tested else "in part" if holding else "contradicted"


def of_test(p: float, as_claimed: bool, level: float = LEVEL) -> str:
    """For a claim about a difference: `undecided` unless the test rejects equality, and then by the side it lies on.

    >>> of_test(0.5, True)
    'undecided'
    """
    if p > level:
        return "undecided"
    return "supported" if as_claimed else "contradicted"

"""Exact tests, multiple comparisons, formation times with censoring, intervals.

SciPy does the work wherever it has the method; what is here is exactness for small paired designs and survival
statistics whose null distribution is permutation, not a large-sample formula.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

Alternative = str
_EXACT_SIGNS = 20
"""Up to so many pairs every one of the `2^n` sign assignments is visited."""


def formation(accuracy: Float[np.ndarray, " evaluations"], threshold: float, persistence: int) -> int | None:
    """Index of the first of `persistence` consecutive evaluations at or above the threshold, or `None`.

    >>> formation(np.array([0.2, 0.95, 0.8, 0.9, 0.92, 0.99]), 0.9, 3)
    3
    """
    run = 0
    for index, value in enumerate(accuracy):
        run = run + 1 if value >= threshold else 0
        if run == persistence:
            return index - persistence + 1
    return None


def lasting(condition: Bool[np.ndarray, " evaluations"], count: int | None = None) -> int | None:
    """Index of the first of `count` evaluations in a row at which the condition holds, `None` where there is none.

    Without a count, from which it holds to the end.

    >>> lasting(np.array([True, True, False, True, True])), lasting(np.array([True, True, False, True]), 2)
    (3, 0)
    """
    if count is not None:
        return formation(condition.astype(np.float64), 1.0, count)
    failures = np.flatnonzero(~condition)
    start = int(failures[-1]) + 1 if len(failures) else 0
    return start if start < len(condition) else None


@dataclass(frozen=True)
class Paired:
    """A paired comparison of positive quantities, on their logarithms.

    Attributes:
        ratio: geometric mean of the ratios.
        low, high: 95% interval of the ratio: the shifts that the exact sign-flip test does not reject.
        p: of the exact sign-flip test of ratio 1.
        pairs: number of pairs.
        above: number of pairs with ratio above 1.
    """

    ratio: float
    low: float
    high: float
    p: float
    pairs: int
    above: int


def sign_flip(differences: Float[np.ndarray, " pairs"], alternative: str = "two-sided") -> float:
    """P-value of the exact paired sign-flip test of mean zero (Fisher 1935): all `2^n` assignments of signs.

    Under the null each difference is as likely to have either sign. The smallest possible two-sided value is `2 / 2^n`.

    Args:
        alternative: `two-sided`, `greater` (mean above zero) or `less`.

    >>> sign_flip(np.array([1.0, 2.0, 3.0]))
    0.25
    """
    if len(differences) > _EXACT_SIGNS:
        raise ValueError(f"{len(differences)} pairs are too many to visit every sign: at most {_EXACT_SIGNS}")
    sums = _signed_sums(np.asarray(differences, dtype=np.float64))
    observed = differences.sum()
    slack = 1e-9 * np.abs(differences).sum()  # equal sums must count as equal whatever order they were added in
    match alternative:
        case "two-sided":
            return float(np.mean(np.abs(sums) >= abs(observed) - slack))
        case "greater":
            return float(np.mean(sums >= observed - slack))
        case "less":
            return float(np.mean(sums <= observed + slack))
    raise ValueError(f"unknown alternative {alternative!r}")


def _signed_sums(differences: Float[np.ndarray, " pairs"]) -> Float[np.ndarray, " assignments"]:
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    return sums


def paired_ratio(
    treated: Float[np.ndarray, " pairs"], control: Float[np.ndarray, " pairs"], alternative: str = "two-sided"
) -> Paired:
    """Compare paired positive quantities by the sign-flip test on `log(treated / control)`."""
    logs = np.log(np.asarray(treated, np.float64)) - np.log(np.asarray(control, np.float64))
    low, high = sign_flip_interval(logs)
    return Paired(
        ratio=float(np.exp(logs.mean())),
        low=float(np.exp(low)),
        high=float(np.exp(high)),
        p=sign_flip(logs, alternative),
        pairs=len(logs),
        above=int((logs > 0).sum()),
    )


def sign_flip_interval(differences: Float[np.ndarray, " pairs"], level: float = 0.95) -> tuple[float, float]:
    """Interval for the mean by inverting the two-sided sign-flip test: every shift not rejected at `1 - level`.

    Found by bisection on the exact test. Infinite where the pairs are too few to reject anything,
    `2 / 2^n > 1 - level`.
    """
    differences = np.asarray(differences, np.float64)
    mean, size = differences.mean(), 1 - level
    if 2.0 ** (1 - len(differences)) > size:
        return -np.inf, np.inf
    spread = np.ptp(differences)
    if spread == 0:
        return float(mean), float(mean)
    bounds = []
    for side in (-1, 1):
        kept, rejected = mean, mean + side * spread
        for _ in range(30):
            middle = (kept + rejected) / 2
            if sign_flip(differences - middle) > size:
                kept = middle
            else:
                rejected = middle
        bounds.append(float(kept))
    return bounds[0], bounds[1]


def permutation_difference(
    first: Float[np.ndarray, "*tests a"], second: Float[np.ndarray, "*tests b"], alternative: str = "two-sided"
) -> Float[np.ndarray, "*tests"]:
    """P-values of the exact two-sample permutation test of equal means, over all assignments to the groups."""
    result = stats.permutation_test(
        (first, second),
        lambda a, b, axis: a.mean(axis) - b.mean(axis),
        n_resamples=np.inf,
        alternative=alternative,
        vectorized=True,
        axis=-1,
    )
    return np.asarray(result.pvalue)


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Adjusted values `q` (Benjamini and Hochberg 1995), in the order given."""
    return stats.false_discovery_control(np.asarray(p), method="bh").tolist()


def bootstrap_interval(
    values: Float[np.ndarray, " n"], statistic: str = "median", level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the `median` or `mean`, 10,000 resamples."""
    if len(values) < 2:
        return -np.inf, np.inf
    function = {"median": np.median, "mean": np.mean}[statistic]
    result = stats.bootstrap(
        (values,), function, n_resamples=10_000, confidence_level=level, method="percentile", rng=seed
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def lower_median(values: Float[np.ndarray, " n"]) -> float:
    """The median, or the lower of the two values in the middle: an observed value, even where some are infinite."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def nested_median(
    groups: Sequence[Float[np.ndarray, "_"]], level: float = 0.95, samples: int = 4000, seed: int = 0
) -> tuple[float, float, float]:
    """`lower_median` of all values, and its bootstrap interval: groups are drawn with replacement, then their members.

    Infinite values, events that never happened, count as late.
    """
    rng = np.random.default_rng(seed)
    count = len(groups)
    drawn = []
    for _ in range(samples):
        chosen = [groups[i] for i in rng.integers(count, size=count)]
        drawn.append(lower_median(np.concatenate([rng.choice(group, len(group)) for group in chosen])))
    tail = (1 - level) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], method="inverted_cdf")
    return lower_median(np.concatenate(groups)), float(low), float(high)


def log_rank(
    time: Float[np.ndarray, " runs"],
    censored: Bool[np.ndarray, " runs"],
    group: Bool[np.ndarray, " runs"],
    samples: int = 10_000,
    seed: int = 0,
) -> float:
    """P-value of the log-rank test (Mantel 1966) under permutation of the groups, two-sided.

    Censored runs count as at risk until their time and never as formed. With at most `samples` distinct assignments all
    are visited and the value is exact; otherwise `samples` random ones and the observed one.
    """
    scores = log_rank_scores(np.asarray(time, np.float64), np.asarray(censored))
    group = np.asarray(group)
    observed = abs(scores[group].sum())
    size, members = len(scores), int(group.sum())
    count = stats.binom(size, 0.5).pmf(members) * 2.0**size  # C(size, members)
    if round(count) <= samples:
        sums = np.array([abs(scores[list(chosen)].sum()) for chosen in combinations(range(size), members)])
        return float(np.mean(sums >= observed - 1e-9))
    generator = np.random.default_rng(seed)
    hits = sum(abs(scores[generator.permutation(size)[:members]].sum()) >= observed - 1e-9 for _ in range(samples))
    return (hits + 1) / (samples + 1)


def log_rank_scores(
    time: Float[np.ndarray, " runs"], censored: Bool[np.ndarray, " runs"]
) -> Float[np.ndarray, " runs"]:
    """Savage scores: `event - cumulative hazard`; they sum to zero, and over a group to observed minus expected."""
    scores = np.where(censored, 0.0, 1.0)
    for moment in np.unique(time[~censored]):
        at_risk = time >= moment
        events = ((time == moment) & ~censored).sum()
        scores[at_risk] -= events / at_risk.sum()
    return scores

"""The causal study: every ban under every scheme, and the pre-registered contrasts."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from qkspectra.statistics import Paired, benjamini_hochberg, log_rank, paired_ratio
from qkspectra.studies import verdicts
from qkspectra.studies.training import Training, condition
from qkspectra.toy.bans import BANS, SCHEMES

FIRST_SEED = 100
"""Seeds of the study; lower ones were used up by pilot runs."""
LABELS = ("scheme", "ban", "layers")


def conditions(seeds: int, cap: int = 2500) -> list[Training]:
    """Every ban with a meaning under every scheme, on both layers, and symmetry in either layer alone."""
    cells = [
        (scheme, ban.name, "both")
        for scheme in SCHEMES
        for ban in BANS.values()
        if scheme == "rope" or not ban.needs_phase
    ]
    cells += [(scheme, "symmetric", layer) for scheme in SCHEMES for layer in ("0", "1")]
    return [condition(*cell, seeds=seeds, first_seed=FIRST_SEED, cap=cap) for cell in cells]


@dataclass(frozen=True)
class Cell:
    """One condition of a contrast."""

    scheme: str
    ban: str

    def __str__(self) -> str:
        return f"{self.scheme} {self.ban}"


def rerun(cell: Cell, seeds: int, cap: int) -> Training:
    """The first seeds of a cell, both layers."""
    return condition(cell.scheme, cell.ban, seeds=seeds, first_seed=FIRST_SEED, cap=cap)


@dataclass(frozen=True)
class Contrast:
    """A ratio of formation times, or a ratio of two such ratios.

    Attributes:
        name: short identifier.
        question: what it asks.
        over, under: the statistic is `over[0] / under[0]`, divided by `over[1] / under[1]` for an interaction.
        claim: the direction the paper's claim predicts, `above` or `below` 1.
    """

    name: str
    question: str
    over: tuple[Cell, ...]
    under: tuple[Cell, ...]
    claim: str


PRIMARY = (
    Contrast(
        "absolute-symmetry",
        "Does symmetry delay the circuit under learned-absolute positions?",
        (Cell("absolute", "symmetric"),),
        (Cell("absolute", "none"),),
        "above",
    ),
    Contrast(
        "scheme-interaction",
        "Does symmetry cost more under learned-absolute positions than under RoPE?",
        (Cell("absolute", "symmetric"), Cell("rope", "symmetric")),
        (Cell("absolute", "none"), Cell("rope", "none")),
        "above",
    ),
    Contrast(
        "phase-carries",
        "Under RoPE and symmetry, does banning the phase as well cost more?",
        (Cell("rope", "symmetric-phase"),),
        (Cell("rope", "symmetric"),),
        "above",
    ),
    Contrast(
        "rotation-costs",
        "Under RoPE, does a real spectrum delay the circuit, beyond what its parametrisation does?",
        (Cell("rope", "real-spectrum"),),
        (Cell("rope", "whitening-control"),),
        "above",
    ),
)
"""The pre-registered contrasts, as `book/preregistration.yml` states them."""


CONTROLS = {
    "symmetric": "scale-control",
    "antisymmetric": "scale-control",
    "rank-symmetric": "rank-control",
    "rank-antisymmetric": "rank-control",
    "semidefinite": "rank-control",
    "normal": "rank-control",
    "real-spectrum": "whitening-control",
}
"""For each ban, the condition that shares its parametrisation and bans nothing."""


def blob_hash(path: Path) -> str:
    """The name that git gives to a file's content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def verdict(asked: Contrast, row: Mapping[str, Any], level: float = 0.05) -> str:
    """`supported`, `contradicted` or `undecided`, by the rule of the pre-registration."""
    return verdicts.of_test(row["q"], (row["ratio"] > 1) == (asked.claim == "above"), level)


def log_times(runs: pd.DataFrame, cell: Cell, threshold: float, layers: str = "both") -> pd.Series:
    """Logarithm of the formation step of each seed of a cell; a censored run counts at the cap."""
    chosen = runs[
        (runs["scheme"] == cell.scheme)
        & (runs["ban"] == cell.ban)
        & (runs["layers"] == layers)
        & (runs["threshold"] == threshold)
    ]
    return np.log(chosen.set_index("seed")["step"].astype(float)).sort_index()


def contrast(runs: pd.DataFrame, asked: Contrast, threshold: float = 0.9) -> tuple[Paired, int]:
    """The paired comparison, and how many of the runs in it are censored."""
    treated = log_times(runs, asked.over[0], threshold)
    control = log_times(runs, asked.under[0], threshold)
    for over, under in zip(asked.over[1:], asked.under[1:], strict=True):
        control = control + log_times(runs, over, threshold) - log_times(runs, under, threshold)
    cells = {str(cell) for cell in (*asked.over, *asked.under)}
    involved = runs[
        (runs["scheme"] + " " + runs["ban"]).isin(cells) & (runs["threshold"] == threshold) & (runs["layers"] == "both")
    ]
    treated, control = treated.align(control, join="inner")
    return paired_ratio(np.exp(treated.to_numpy()), np.exp(control.to_numpy())), int(involved["censored"].sum())


def contrasts(runs: pd.DataFrame, asked: Sequence[Contrast] = PRIMARY, threshold: float = 0.9) -> pd.DataFrame:
    """One row per contrast: ratio, interval, exact p, Benjamini-Hochberg q over the rows, censored runs, log-rank p.

    The log-rank value compares the two cells as unpaired groups and takes censoring at its word; it is empty for an
    interaction, which it cannot express.
    """
    rows = []
    for each in asked:
        result, censored = contrast(runs, each, threshold)
        rows.append(
            {
                "contrast": each.name,
                "question": each.question,
                "ratio": result.ratio,
                "low": result.low,
                "high": result.high,
                "p": result.p,
                "pairs": result.pairs,
                "above": result.above,
                "censored": censored,
                "log_rank": _log_rank(runs, each, threshold) if len(each.over) == 1 else np.nan,
            }
        )
    table = pd.DataFrame(rows)
    table.insert(6, "q", benjamini_hochberg(table["p"].tolist()))
    return table


def _log_rank(runs: pd.DataFrame, asked: Contrast, threshold: float) -> float:
    groups = []
    for cell in (asked.over[0], asked.under[0]):
        chosen = (runs["scheme"] == cell.scheme) & (runs["ban"] == cell.ban) & (runs["layers"] == "both")
        groups.append(runs[chosen & (runs["threshold"] == threshold)])
    both = pd.concat(groups)
    group = np.arange(len(both)) < len(groups[0])
    return log_rank(both["step"].to_numpy(float), both["censored"].to_numpy(bool), group)


def intervals(table: pd.DataFrame, prefix: str = "") -> list[str]:
    """The columns `low` and `high` in one text a row, as narrow tables print them."""
    return [f"{a:.2f} to {b:.2f}" for a, b in zip(table[f"{prefix}low"], table[f"{prefix}high"], strict=True)]


def slowdowns(runs: pd.DataFrame, threshold: float = 0.9) -> pd.DataFrame:
    """One row per condition: ratio to the same seeds without a ban, interval, censored runs, capability."""
    rows = []
    for (scheme, ban, layers), cell in runs[runs["threshold"] == threshold].groupby(list(LABELS), sort=False):
        treated = log_times(runs, Cell(scheme, ban), threshold, layers)
        control = log_times(runs, Cell(scheme, "none"), threshold)
        treated, control = treated.align(control, join="inner")
        result = paired_ratio(np.exp(treated.to_numpy()), np.exp(control.to_numpy()))
        rows.append(
            {
                "scheme": scheme,
                "ban": ban,
                "layers": layers,
                "seeds": result.pairs,
                "median": cell["step"].median(),
                "ratio": result.ratio,
                "low": result.low,
                "high": result.high,
                "p": result.p,
                "censored": int(cell["censored"].sum()),
                "diverged": int(cell["diverged"].sum()),
                "accuracy": cell["accuracy"].mean(),
                "accuracy_lowest": cell["accuracy"].min(),
                "loss": cell["loss"].mean(),
            }
        )
    return pd.DataFrame(rows)


def controlled(runs: pd.DataFrame, threshold: float = 0.9) -> pd.DataFrame:
    """One row per scheme and ban of `CONTROLS`: formation over that of its control, exact interval and p, censoring."""
    rows = []
    for scheme in SCHEMES:
        for ban, control in CONTROLS.items():
            asked = Contrast(f"{scheme} {ban}", "", (Cell(scheme, ban),), (Cell(scheme, control),), "above")
            if min(len(log_times(runs, cell, threshold)) for cell in (*asked.over, *asked.under)) == 0:
                continue
            result, censored = contrast(runs, asked, threshold)
            rows.append(
                {
                    "scheme": scheme,
                    "ban": ban,
                    "control": control,
                    "seeds": result.pairs,
                    "ratio": result.ratio,
                    "low": result.low,
                    "high": result.high,
                    "p": result.p,
                    "censored": censored,
                }
            )
    return pd.DataFrame(rows)

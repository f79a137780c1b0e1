"""The order of signature and behaviour in the toy: which comes first as the circuit forms."""

import numpy as np
import pandas as pd

from qkspectra.null import null_samples
from qkspectra.spectrum import Spectrum
from qkspectra.statistics import sign_flip
from qkspectra.weights.layout import Rotary

HALFWAY = 0.5
BAND = 2.0
"""Standard deviations of the null beyond which a signature counts as having left it."""


def null(d_head: int, d_model: int, samples: int, rotary: Rotary | None = None) -> Spectrum:
    """The finite-size null of a toy head."""
    return null_samples(d_head, d_model, samples, rotary=rotary)


def followed(heads: pd.DataFrame, scheme: str, ban: str = "none") -> pd.DataFrame:
    """The two heads of the circuit of every seed through training: those that are strongest at the end.

    Returns:
        The rows of `heads` of the strongest previous-token head of layer 0 and of the strongest induction head of layer
        1 of each seed, with the column `role`.
    """
    chosen = heads[(heads["scheme"] == scheme) & (heads["ban"] == ban) & (heads["layers"] == "both")]
    last = chosen[chosen["step"] == chosen.groupby("seed")["step"].transform("max")]
    parts = []
    for role, layer in (("previous_token", 0), ("induction", 1)):
        ends = last[last["layer"] == layer]
        best = ends.loc[ends.groupby("seed")[role].idxmax(), ["seed", "layer", "head"]]
        parts.append(chosen.merge(best, on=["seed", "layer", "head"]).assign(role=role))
    return pd.concat(parts, ignore_index=True)


def events(track: pd.DataFrame, reference: Spectrum, measure: str) -> pd.DataFrame:
    """When behaviour and signature move, for each seed and role.

    The behaviour has moved when the head's own score has gone half of the way from its first to its last value; the
    signature when the measure leaves the null's mean by more than `BAND` standard deviations for good. Both are read on
    the steps at which spectra were measured.

    Returns:
        Columns `role`, `seed`, `behaviour`, `signature` (steps; infinite where the signature never leaves the band).
    """
    expected = getattr(reference, measure)
    mean, spread = float(expected.mean()), float(expected.std())
    rows = []
    for (role, seed), run in track.dropna(subset=[measure]).groupby(["role", "seed"]):
        run = run.sort_values("step")
        score, steps = run[str(role)].to_numpy(), run["step"].to_numpy()
        half = score[0] + HALFWAY * (score[-1] - score[0])
        outside = np.abs(run[measure].to_numpy() - mean) > BAND * spread
        inside = np.flatnonzero(~outside)
        start = 0 if not len(inside) else inside[-1] + 1
        rows.append(
            {
                "role": role,
                "seed": seed,
                "behaviour": float(steps[np.flatnonzero(score >= half)[0]]),
                "signature": float(steps[start]) if start < len(steps) else np.inf,
            }
        )
    return pd.DataFrame(rows)


def precedence(moves: pd.DataFrame) -> pd.DataFrame:
    """For each role: how often the signature moved before, with or after the behaviour, and the exact sign-flip p-value
    of equal times. A signature that never left the null counts as after; its sign enters the test, not its size.
    """
    rows = []
    for role, runs in moves.groupby("role"):
        lag = runs["signature"] - runs["behaviour"]
        rows.append(
            {
                "role": role,
                "seeds": len(runs),
                "before": int((lag < 0).sum()),
                "with": int((lag == 0).sum()),
                "after": int((lag > 0).sum()),
                "never": int(np.isinf(lag).sum()),
                "p": sign_flip(np.sign(lag.to_numpy())),
            }
        )
    return pd.DataFrame(rows)

"""The pre-registered contrasts of the matched experiment, as `book/preregistration-matched.yml` states them.

Every contrast is one number a seed, a difference whose expectation is zero if its question has no answer, and an exact
sign-flip test over the seeds. A model's *previous-token heads* are the `TOP` heads with the highest previous-token
score on random tokens at its last step, whatever that score is, its *induction heads* those with the highest induction
score.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from qkspectra.matched.model import SCHEMES
from qkspectra.null import null_samples
from qkspectra.statistics import benjamini_hochberg, lasting, sign_flip, sign_flip_interval
from qkspectra.studies import verdicts

TOP = 2
"""Heads that stand for a role in a model."""
FORMED, LASTS, BAND = 0.5, 3, 2.0
"""A circuit has formed, or is back, at the first of `LASTS` examinations in a row with an accuracy of `FORMED` on the
second copy; a population has sunk at the first of as many at which its mean lies `BAND` standard errors of that mean
below the null's."""
SCORED = ("eigen_rotation", "antisymmetric_energy", "henrici")
MODEL = ["kind", "scheme", "ban", "before", "seed"]
HEAD = ["layer", "head"]
INTERVENTIONS = ("delayed-", "back-sooner-", "follows-scheme-")
"""How the names of the second family of contrasts begin."""


def null_of(d_head: int, d_model: int, samples: int, seed: int = 0) -> pd.DataFrame:
    """`mean` and `sd` of the measures of `SCORED` over heads of the null, a row a measure."""
    drawn = null_samples(d_head, d_model, samples, seed)
    values = {name: getattr(drawn, name).numpy() for name in SCORED}
    return pd.DataFrame(
        {"mean": {n: v.mean() for n, v in values.items()}, "sd": {n: v.std() for n, v in values.items()}}
    )


def last(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of each run's last step."""
    return table[table["step"] == table.groupby(MODEL)["step"].transform("max")]


def role(table: pd.DataFrame, score: str, count: int = TOP) -> pd.DataFrame:
    """The `count` heads with the highest score of every run, at its last step, strongest first."""
    return last(table).sort_values(score, ascending=False, kind="stable").groupby(MODEL, sort=False).head(count)


def main(heads: pd.DataFrame, scheme: str | None = None) -> pd.DataFrame:
    """The rows of the main runs, of all schemes or of one."""
    chosen = heads["kind"] == "main"
    return heads[chosen if scheme is None else chosen & (heads["scheme"] == scheme)]


def rotations(heads: pd.DataFrame, null: pd.DataFrame, measure: str = "eigen_rotation") -> pd.DataFrame:
    """One row per main run: its previous-token heads' mean rotation, `above_population` and `above_null`.

    `above_population`: less the median of the model's other heads. `above_null`: z, less the null's mean and over its
    standard deviation. `previous_token` is their mean score, `population` that median.
    """
    rows = []
    for (scheme, seed), model in last(main(heads)).groupby(["scheme", "seed"], sort=False):
        chosen = role(model, "previous_token")
        others = model.drop(chosen.index)[measure].median()
        value = chosen[measure].mean()
        rows.append(
            {
                "scheme": scheme,
                "seed": seed,
                "previous_token": chosen["previous_token"].mean(),
                "rotation": value,
                "population": others,
                "above_population": value - others,
                "above_null": (value - null.loc[measure, "mean"]) / null.loc[measure, "sd"],
            }
        )
    return pd.DataFrame(rows)


def induction(heads: pd.DataFrame, null: pd.DataFrame) -> pd.DataFrame:
    """One row per main run: mean z of its induction heads' eigen-rotation, their content sign and score."""
    chosen = role(main(heads), "induction")
    means = chosen.groupby(["scheme", "seed"], sort=False)[["eigen_rotation", "content_sign", "induction"]].mean()
    z = (means["eigen_rotation"] - null.loc["eigen_rotation", "mean"]) / null.loc["eigen_rotation", "sd"]
    return means.assign(above_null=z).reset_index()


def events(heads: pd.DataFrame, null: pd.DataFrame) -> pd.DataFrame:
    """One row per run: `forms` and `sinks`, steps counted from its first examination, and whether each is `censored`.

    What has not happened counts at the last step. `sinks` is missing for runs under a ban, which have no spectra.
    """
    rows = []
    for labels, run in heads.groupby(MODEL, sort=False):
        model = run.groupby("step")[["accuracy_second", "eigen_rotation"]].mean().sort_index()
        steps = model.index.to_numpy() - model.index[0]
        size = len(run[HEAD].drop_duplicates())
        line = null.loc["eigen_rotation", "mean"] - BAND * null.loc["eigen_rotation", "sd"] / np.sqrt(size)
        row = dict(zip(MODEL, labels, strict=True))
        for name, happened in (
            ("forms", model["accuracy_second"].to_numpy() >= FORMED),
            ("sinks", model["eigen_rotation"].to_numpy() < line),
        ):
            at = lasting(happened, LASTS)
            row |= {name: float(steps[-1] if at is None else steps[at]), f"{name}_censored": at is None}
        if model["eigen_rotation"].isna().any():
            row |= {"sinks": np.nan, "sinks_censored": False}
        rows.append(row)
    return pd.DataFrame(rows)


def pulls(kernels: pd.DataFrame, heads: pd.DataFrame) -> pd.DataFrame:
    """Pull of each part on the previous token, averaged over a run's previous-token heads.

    The pull of a part is its score at distance 1 less its mean over all distances of the kernel, in nats.

    Returns:
        One row per run, `mean` (kept or projected) and `part`: `pull`, and `lost`, the previous-token attention that is
        lost when the part is taken away.
    """
    chosen = role(heads, "previous_token")[[*MODEL, *HEAD]]
    mine = kernels.merge(chosen, on=[*MODEL, *HEAD])
    keys = [*MODEL, *HEAD, "mean", "part"]
    near = mine[mine["delta"] == 1].set_index(keys)
    table = near[["score", "previous"]].rename(columns={"score": "pull"})
    table["pull"] -= mine.groupby(keys)["score"].mean().reindex(table.index)
    table = table.groupby([*MODEL, "mean", "part"])[["pull", "previous"]].mean().reset_index()
    full = table[table["part"] == "full"].set_index([*MODEL, "mean"])["previous"]
    before = full.reindex(pd.MultiIndex.from_frame(table[[*MODEL, "mean"]])).to_numpy()
    return table.assign(lost=before - table["previous"])


def places(heads: pd.DataFrame, null: pd.DataFrame) -> pd.DataFrame:
    """Where models lie in signature space at every examination: mean z of `SCORED` over the previous-token heads.

    The heads are those of each examination, not of the last. The mean of all heads stands beside, as `all_...`.
    """
    z = heads.assign(**{name: (heads[name] - null.loc[name, "mean"]) / null.loc[name, "sd"] for name in SCORED})
    z = z[z["eigen_rotation"].notna()]
    keys = [*MODEL, "step"]
    chosen = z.sort_values("previous_token", ascending=False, kind="stable").groupby(keys, sort=False).head(TOP)
    columns = list(SCORED)
    whole = z.groupby(keys)[columns].mean().add_prefix("all_")
    return chosen.groupby(keys)[[*columns, "previous_token"]].mean().join(whole).reset_index()


def follows(places: pd.DataFrame) -> pd.DataFrame:
    """One row per transplant: distance at the last step from the main run of its first scheme and of its second.

    Euclidean, over the six coordinates of `places`, from the same seed's runs at the same step: `to_history`,
    `to_scheme`, and their difference `nearer`, negative where the transplant lies nearer to its scheme; `apart`, the
    distance of the two main runs from each other.
    """
    columns = [*SCORED, *(f"all_{name}" for name in SCORED)]
    ends = last(places)
    mains = ends[ends["kind"] == "main"].set_index(["scheme", "seed"])[columns]
    rows = []
    for _, row in ends[ends["kind"] == "transplant"].iterrows():
        here = row[columns].to_numpy(float)
        history, target = (
            mains.loc[(scheme, row["seed"])].to_numpy(float) for scheme in (row["before"], row["scheme"])
        )
        to_history, to_scheme = np.linalg.norm(here - history), np.linalg.norm(here - target)
        rows.append(
            {
                "before": row["before"],
                "scheme": row["scheme"],
                "seed": row["seed"],
                "to_history": to_history,
                "to_scheme": to_scheme,
                "nearer": to_scheme - to_history,
                "apart": np.linalg.norm(target - history),
            }
        )
    return pd.DataFrame(rows, columns=["before", "scheme", "seed", "to_history", "to_scheme", "nearer", "apart"])


def differences(
    heads: pd.DataFrame,
    kernels: pd.DataFrame,
    null: pd.DataFrame,
    banned: Sequence[tuple[str, str]],
    transplants: Sequence[tuple[str, str]],
) -> dict[str, tuple[str, pd.Series]]:
    """Of every registered contrast the claimed side of zero, and a difference for each seed.

    Contrasts on interventions have no seeds where those have not been run.
    """
    out: dict[str, tuple[str, pd.Series]] = {}
    turning = rotations(heads, null).set_index(["scheme", "seed"])
    for other in SCHEMES[1:]:
        for column in ("above_population", "above_null"):
            name = f"rope-over-{other}-{column.removeprefix('above_')}"
            out[name] = "above", turning.loc["rope", column] - turning.loc[other, column]
    matching = induction(heads, null).set_index(["scheme", "seed"])["above_null"]
    when = events(heads, null)
    mains = when[when["kind"] == "main"].set_index(["scheme", "seed"])
    for scheme in SCHEMES:
        out[f"induction-{scheme}"] = "below", matching.loc[scheme]
    for scheme in SCHEMES:
        out[f"sinks-after-{scheme}"] = "above", mains.loc[scheme, "sinks"] - mains.loc[scheme, "forms"]
    pull = pulls(kernels, heads)
    own = pull[(pull["kind"] == "main") & (pull["scheme"] == "rope")].pivot(
        index="seed", columns=["mean", "part"], values="pull"
    )
    kept, projected = own["kept"], own["projected"]
    phase = kept["phase_symmetric"] + kept["phase_antisymmetric"]
    out["phase-carries"] = "above", phase - kept["symmetric"] - kept["antisymmetric"]
    out["phase-is-symmetric"] = "above", kept["phase_symmetric"] - kept["phase_antisymmetric"]
    out["symmetric-phase-needs-the-mean"] = "above", kept["phase_symmetric"] - projected["phase_symmetric"]
    free = mains["forms"]
    for scheme, ban in banned:
        these = when[(when["scheme"] == scheme) & (when["ban"] == ban)]
        start, after = (these[these["kind"] == kind].set_index("seed")["forms"] for kind in ("banned", "ban_after"))
        out[f"delayed-{scheme}-{ban}"] = "above", start - free.loc[scheme].reindex(start.index)
        out[f"back-sooner-{scheme}-{ban}"] = "below", after - start
    nearer = follows(places(heads, null)).set_index(["before", "scheme"])
    for before, scheme in transplants:
        own = nearer[nearer.index == (before, scheme)].set_index("seed")["nearer"]
        out[f"follows-scheme-{before}-{scheme}"] = "below", own
    return out


def contrasts(found: Mapping[str, tuple[str, pd.Series]], level: float = verdicts.LEVEL) -> pd.DataFrame:
    """One row per contrast: mean difference, interval, standardised effect, exact p, q over its family, verdict.

    `effect` is the mean over the standard deviation of the differences; `same` the number of seeds on the claimed side.
    A contrast without seeds has the verdict `not run`, and takes no part in the adjustment.
    """
    rows: list[dict[str, Any]] = []
    for name, (side, values) in found.items():
        x = values.to_numpy(np.float64)
        if len(x) == 0:
            rows.append({"contrast": name, "side": side, "seeds": 0, "same": 0})
            continue
        low, high = sign_flip_interval(x)
        spread = x.std(ddof=1) if len(x) > 1 else 0.0
        rows.append(
            {
                "contrast": name,
                "side": side,
                "seeds": len(x),
                "mean": x.mean(),
                "low": low,
                "high": high,
                "effect": x.mean() / spread if spread > 0 else np.nan,
                "same": int((x > 0).sum() if side == "above" else (x < 0).sum()),
                "p": sign_flip(x),
            }
        )
    table = pd.DataFrame(rows).assign(q=np.nan, verdict="not run")
    second, run = table["contrast"].str.startswith(INTERVENTIONS), table["seeds"] > 0
    for family in (run & second, run & ~second):
        if family.any():
            table.loc[family, "q"] = benjamini_hochberg(table.loc[family, "p"].tolist())
    table.loc[run, "verdict"] = [
        verdicts.of_test(row.q, (row.mean > 0) == (row.side == "above"), level)
        for row in table[run].itertuples(index=False)
    ]
    return table


def of_previous(kernels: pd.DataFrame, heads: pd.DataFrame) -> pd.DataFrame:
    """The kernels of the previous-token heads of the main runs."""
    chosen = role(main(heads), "previous_token")[[*MODEL, *HEAD]]
    return kernels.merge(chosen, on=[*MODEL, *HEAD])


def tally(found: pd.Series) -> str:
    """Verdicts in words: "3 are supported, 1 is contradicted and 4 are undecided".

    >>> tally(pd.Series(["undecided", "supported", "undecided"]))
    '1 is supported and 2 are undecided'
    """
    counts = found.value_counts()
    words = [
        f"{counts[name]} {'is' if counts[name] == 1 else 'are'} {name}"
        for name in ("supported", "contradicted", "undecided", "not run")
        if name in counts
    ]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def interval(low: float, high: float, digits: int = 2) -> str:
    """An interval in words; with too few pairs it is everything, and a dash where nothing has been run."""
    if np.isnan(low):
        return "–"
    return f"{low:.{digits}f} to {high:.{digits}f}".replace("-", "−") if np.isfinite(low) else "unbounded"

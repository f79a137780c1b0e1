"""Bans and transplants, the second family of the matched experiment: their cost, and what carries the circuit then.

Whatever has not been run is empty.
"""

from collections.abc import Mapping, Sequence

import pandas as pd

from qkspectra.studies.matched_analysis import HEAD, MODEL, follows, pulls, role
from qkspectra.studies.matched_measures import PARTS


def recoveries(
    heads: pd.DataFrame, events: pd.DataFrame, banned: Sequence[tuple[str, str]], branch: int
) -> pd.DataFrame:
    """One row per ban, over the seeds that it was imposed on; empty where there are none.

    Accuracy on the second copy `before` the ban at the branch, `at_once` and `after`, at the last step; the runs that
    came `back` and the median `back_steps`; under the ban from the first step the last accuracy (`start`), runs that
    `formed` and the median `formed_step`; and the median `free_step` of the same seeds without a ban. Medians count
    what did not happen at the last step.
    """
    accuracy = heads.groupby([*MODEL, "step"])["accuracy_second"].first().reset_index()
    rows = []
    for scheme, ban in banned:

        def of(table: pd.DataFrame, kind: str, name: str = ban, scheme: str = scheme) -> pd.DataFrame:
            return table[(table["kind"] == kind) & (table["scheme"] == scheme) & (table["ban"] == name)]

        later, start = of(events, "ban_after"), of(events, "banned")
        under, first, plain = of(accuracy, "ban_after"), of(accuracy, "banned"), of(accuracy, "main", "none")
        seeds = later["seed"]
        at_branch = plain[(plain["step"] == branch) & plain["seed"].isin(seeds)]
        free = of(events, "main", "none")
        rows.append(
            {
                "scheme": scheme,
                "ban": ban,
                "before": at_branch["accuracy_second"].mean(),
                "at_once": under.loc[under["step"] == branch, "accuracy_second"].mean(),
                "after": under.loc[under["step"] == under["step"].max(), "accuracy_second"].mean(),
                "back": f"{(~later['forms_censored'].astype(bool)).sum()} of {len(later)}",
                "back_steps": later["forms"].median(),
                "start": first.loc[first["step"] == first["step"].max(), "accuracy_second"].mean(),
                "formed": f"{(~start['forms_censored'].astype(bool)).sum()} of {len(start)}",
                "formed_step": start["forms"].median(),
                "free_step": free.loc[free["seed"].isin(start["seed"]), "forms"].median(),
            }
        )
    return pd.DataFrame(rows)


def carriers(kernels: pd.DataFrame, heads: pd.DataFrame, banned: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """What carries the previous token at the last step: two rows per ban, from `the start` and from `the branch` on.

    Mean `previous_token` score of the previous-token heads, in how many seeds the strongest is that of the main run
    (`same`), and the pull of the parts, with the mean direction kept. Empty where there are no runs.
    """
    pull = pulls(kernels, heads)
    pull = pull[pull["mean"] == "kept"]
    both, strongest = role(heads, "previous_token"), role(heads, "previous_token", 1)
    rows = []
    for scheme, ban in banned:
        free = strongest[(strongest["kind"] == "main") & (strongest["scheme"] == scheme)].set_index("seed")[HEAD]
        for kind, name in (("banned", "the start"), ("ban_after", "the branch")):
            own, best, parts = (
                table[(table["kind"] == kind) & (table["scheme"] == scheme) & (table["ban"] == ban)]
                for table in (both, strongest, pull)
            )
            mine = best.set_index("seed")[HEAD]
            same = (mine == free.reindex(mine.index)).all(axis=1).sum()
            values = parts.groupby("part")["pull"].mean().reindex(list(PARTS))
            score = own["previous_token"].mean()
            row = {
                "scheme": scheme,
                "ban": ban,
                "kind": name,
                "previous_token": score,
                "same": f"{same} of {len(mine)}",
            }
            rows.append(row | values.to_dict())
    return pd.DataFrame(rows)


def went(
    heads: pd.DataFrame, places: pd.DataFrame, transplants: Sequence[tuple[str, str]], titles: Mapping[str, str]
) -> str:
    """What became of transplanted models, in sentences: their accuracy on the second copy, and their spectra."""
    moves = follows(places).groupby(["before", "scheme"])[["to_history", "to_scheme", "apart"]].mean()
    lines = []
    for before, scheme in transplants:
        if (before, scheme) not in moves.index:
            continue
        run = heads[(heads["kind"] == "transplant") & (heads["before"] == before) & (heads["scheme"] == scheme)]
        accuracy = run.groupby("step")["accuracy_second"].mean()
        near, here = moves.loc[(before, scheme)], titles[scheme]
        lines.append(
            f"Models that go from {titles[before]} to {here} have an accuracy of {accuracy.iloc[0]:.2f} on the second "
            f"copy at once and of {accuracy.iloc[-1]:.2f} at the end; they then lie {near['to_history']:.1f} from the "
            f"models that stayed and {near['to_scheme']:.1f} from those that were under {here} throughout, which are "
            f"{near['apart']:.1f} apart."
        )
    nothing = "No model has been transplanted yet; the figure shows the paths between which they would move."
    return " ".join(lines) or nothing

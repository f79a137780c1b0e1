"""One number a head that tells rotary previous-token heads from all others: chosen on some seeds, tried on others.

Positives are the previous-token heads of models under RoPE, negatives all other heads, of every scheme. A candidate's
side is the one on which its positives lie in the seeds it is chosen on, and it keeps that side everywhere.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from scipy import stats

from qkspectra.attention import tapped
from qkspectra.store import Address, Result, Store, source_hash
from qkspectra.studies import audit, matched_measures, static
from qkspectra.studies.matched_analysis import HEAD, MODEL, role
from qkspectra.studies.matched_measures import signatures_of
from qkspectra.weights import open_model
from qkspectra.weights.model import Weights, loaded_once

CANDIDATES = (
    "eigen_rotation",
    "leading_rotation",
    "antisymmetric_energy",
    "henrici",
    "eigen_rotation_back",
    "antisymmetric_energy_back",
    "phase_step",
    "phase_energy",
    "phase_symmetric_share",
    "pull",
    "pull_phase",
)
BASELINE = "eigen_rotation"
OUTSIDE = (
    "smollm2-135m",
    "minilm-l6",
    "pocket-gpt-neox",
    "pocket-llama",
    "pocket-gptj",
    "pocket-gpt2",
    "pocket-opt",
    "pocket-bloom",
    "pocket-mpt",
)
"""Models on which nothing was chosen."""
LOOKING_BACK = 0.5
"""A head of an outside model is a previous-token head from this score on random tokens on."""
BATCH, LENGTH = 8, 32


def labelled(signatures: pd.DataFrame, heads: pd.DataFrame) -> pd.DataFrame:
    """The candidates of the main runs' heads with `positive`: a previous-token head of a model under RoPE."""
    chosen = role(heads[(heads["kind"] == "main") & (heads["scheme"] == "rope")], "previous_token")
    keys = pd.MultiIndex.from_frame(chosen[[*MODEL, *HEAD]])
    return signatures.assign(positive=pd.MultiIndex.from_frame(signatures[[*MODEL, *HEAD]]).isin(keys))


def auc(positive: np.ndarray, value: np.ndarray) -> float:
    """Probability that a positive head has a higher value than a negative one, ties counting half; NaN without both."""
    ranks, count = stats.rankdata(value), int(positive.sum())
    if count in (0, len(positive)):
        return np.nan
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(positive) - count)))


def areas(table: pd.DataFrame) -> dict[str, float]:
    """`auc` of every candidate."""
    positive = table["positive"].to_numpy()
    return {name: auc(positive, table[name].to_numpy()) for name in CANDIDATES}


def sides(table: pd.DataFrame) -> dict[str, int]:
    """For every candidate 1 where positives lie above the others, else -1."""
    return {name: 1 if area >= 0.5 else -1 for name, area in areas(table).items()}


def curves(
    table: pd.DataFrame,
    side: Mapping[str, int],
    group: str,
    names: Sequence[str] = CANDIDATES,
    samples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """One row per candidate: area under the ROC curve, its interval, and that of its lead over `BASELINE`.

    Intervals are percentiles of a bootstrap over the groups, then over the heads of each: `group` names the column that
    says which heads belong together, such as a seed or a model. Draws without a positive head are left out.
    """
    rng = np.random.default_rng(seed)
    positive = table["positive"].to_numpy()
    values = {name: side[name] * table[name].to_numpy(np.float64) for name in {BASELINE, *names}}
    members = [np.flatnonzero(table[group] == name) for name in table[group].unique()]
    draws = []
    while len(draws) < samples:
        picked = [members[i] for i in rng.integers(len(members), size=len(members))]
        rows = np.concatenate([rng.choice(one, len(one)) for one in picked])
        if 0 < positive[rows].sum() < len(rows):
            draws.append({name: auc(positive[rows], value[rows]) for name, value in values.items()})
    drawn = pd.DataFrame(draws)
    out = []
    for name in names:
        lead = drawn[name] - drawn[BASELINE]
        low, high = np.quantile(drawn[name], [0.025, 0.975])
        lead_low, lead_high = np.quantile(lead, [0.025, 0.975])
        area = auc(positive, values[name])
        baseline = auc(positive, values[BASELINE])
        out.append(
            {
                "candidate": name,
                "side": side[name],
                "auc": area,
                "low": low,
                "high": high,
                "lead": area - baseline,
                "lead_low": lead_low,
                "lead_high": lead_high,
                "positives": int(positive.sum()),
                "heads": len(positive),
            }
        )
    return pd.DataFrame(out)


def chosen(table: pd.DataFrame) -> str:
    """The candidate with the largest area on the seeds that it is chosen on, whichever side its positives lie on."""
    found = areas(table)
    return max(found, key=lambda name: max(found[name], 1 - found[name]))


def verdict(held: pd.Series, other: pd.Series) -> str:
    """A sentence on whether the chosen candidate beats `BASELINE`, from its rows of `curves` on two sets of heads."""
    beats = [row["lead_low"] > 0 for row in (held, other)]
    if held["candidate"] == BASELINE:
        return "Nothing was found that beats eigen-rotation."
    if all(beats):
        return "It beats eigen-rotation on both."
    if any(beats):
        where = "held-out seeds" if beats[0] else "other models"
        return f"It beats eigen-rotation on the {where} alone."
    return "It does not beat eigen-rotation by more than chance allows, on either."


def roc(positive: np.ndarray, value: np.ndarray) -> pd.DataFrame:
    """The curve: `false` and `true` positive rate at every threshold, from none to all."""
    order = np.argsort(-value, kind="stable")
    hits, ranked = positive[order], value[order]
    ends = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    true = hits.cumsum()[ends] / hits.sum()
    false = (~hits).cumsum()[ends] / (~hits).sum()
    return pd.DataFrame({"false": np.append(0.0, false), "true": np.append(0.0, true)})


def outside_model(weights: Weights, *, seed: int, batch: int, length: int) -> pd.DataFrame:
    """Candidates and previous-token scores of the heads of a model outside the experiment, under the raw convention."""
    weights = loaded_once(weights)  # the audit below runs the same model
    model = weights.load()
    tokens = audit.repeats(weights, seed=seed, batch=batch, length=length)
    xs: dict[int, torch.Tensor] = {}
    modules = weights.attention_modules(model)
    with torch.inference_mode(), tapped(modules, on_input=lambda i, x: xs.update({i: x.double().cpu()})):
        model(input_ids=tokens.to(model.device))
    table = signatures_of((weights.layer(i), x) for i, x in sorted(xs.items()))
    heads = audit.audit(weights, seed=seed, batch=batch, length=length)
    keys = ["layer", "head"]
    about = heads[["model", "scheme", *keys, "previous_token"]]
    joined = about.merge(table, on=keys)
    return joined.assign(positive=(joined["scheme"] == "rope") & (joined["previous_token"] >= LOOKING_BACK))


def outside(
    store: Store, names: Sequence[str] = OUTSIDE, seed: int = 0, say: Callable[[str], None] = lambda _: None
) -> Result:
    """`outside_model` of every model, in one table."""
    opened = [open_model(name) for name in names]
    about = {
        "models": {w.source.name: w.source.content_hash for w in opened},
        "batch": BATCH,
        "length": LENGTH,
        "seed": seed,
    }

    def compute() -> pd.DataFrame:
        frames = []
        for weights in opened:
            say(f"reading {weights.source.name}")
            frames.append(outside_model(weights, seed=seed, batch=BATCH, length=LENGTH))
        return pd.concat(frames, ignore_index=True)

    address = Address("matched-outside", about, source_hash(matched_measures, *static.SOURCES))
    return store.cached(address, compute, seeds=[seed])

"""The tables made of runs: contrasts, slowdowns, the multiverse, the order of events; and the shipped tables."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from qkspectra import figures_toy
from qkspectra.errors import InputError
from qkspectra.store import Store
from qkspectra.studies import bans, laboratory, order, symmetry
from qkspectra.studies.bans import Cell, Contrast
from qkspectra.studies.training import Training, condition
from qkspectra.toy.bans import BANS
from qkspectra.toy.model import ModelConfig
from qkspectra.toy.train import TrainConfig

DATA = Path(__file__).parents[2] / "book" / "data"


def made_up(times: dict[tuple[str, str], list[float]], cap: int = 1000) -> pd.DataFrame:
    """Runs with given formation steps at both thresholds; the cap means censored."""
    rows = []
    for (scheme, ban), steps in times.items():
        for seed, step in enumerate(steps):
            for threshold in (0.5, 0.9):
                rows.append(
                    {
                        "scheme": scheme,
                        "ban": ban,
                        "layers": "both",
                        "seed": seed,
                        "threshold": threshold,
                        "step": int(step),
                        "censored": step >= cap,
                        "diverged": False,
                        "last_step": int(step),
                        "loss": 0.1,
                        "accuracy": 0.95,
                    }
                )
    return pd.DataFrame(rows)


BASE = [100.0, 110, 120, 130, 140, 150]
RUNS = made_up(
    {
        ("absolute", "none"): BASE,
        ("absolute", "symmetric"): [3 * t for t in BASE],
        ("rope", "none"): BASE,
        ("rope", "symmetric"): [2 * t for t in BASE],
    }
)
INTERACTION = Contrast(
    "i",
    "",
    (Cell("absolute", "symmetric"), Cell("rope", "symmetric")),
    (Cell("absolute", "none"), Cell("rope", "none")),
    "above",
)


def test_contrasts_are_paired_ratios_and_ratios_of_ratios() -> None:
    simple = Contrast("s", "", (Cell("absolute", "symmetric"),), (Cell("absolute", "none"),), "above")
    table = bans.contrasts(RUNS, [simple, INTERACTION]).set_index("contrast")
    assert table.loc["s", "ratio"] == pytest.approx(3)
    assert table.loc["i", "ratio"] == pytest.approx(1.5)
    assert table["p"].tolist() == [2 / 2**6] * 2
    assert table["q"].tolist() == [2 / 2**6] * 2
    assert np.isnan(table.loc["i", "log_rank"])
    assert table.loc["s", "log_rank"] == pytest.approx(2 / 924)  # the most extreme of C(12, 6) assignments, two-sided


def test_a_censored_run_counts_at_the_cap_and_is_reported() -> None:
    runs = made_up({("absolute", "none"): BASE, ("absolute", "symmetric"): [200.0] * 5 + [1000]})
    simple = Contrast("s", "", (Cell("absolute", "symmetric"),), (Cell("absolute", "none"),), "above")
    result, censored = bans.contrast(runs, simple)
    assert censored == 1
    assert result.ratio == pytest.approx(np.exp(np.mean(np.log(np.array([200.0] * 5 + [1000]) / BASE))))


def test_verdicts_follow_the_rule() -> None:
    claim = bans.PRIMARY[0]
    assert bans.verdict(claim, {"q": 0.05, "ratio": 1.2}) == "supported"
    assert bans.verdict(claim, {"q": 0.05, "ratio": 0.8}) == "contradicted"
    assert bans.verdict(claim, {"q": 0.051, "ratio": 9.0}) == "undecided"


def test_slowdowns_use_the_seeds_that_both_have() -> None:
    runs = RUNS[~((RUNS["ban"] == "symmetric") & (RUNS["seed"] > 2))]
    table = bans.slowdowns(runs).set_index(["scheme", "ban"])
    assert table.loc[("rope", "symmetric"), "seeds"] == 3
    assert table.loc[("rope", "symmetric"), "ratio"] == pytest.approx(2)
    assert table.loc[("rope", "none"), "ratio"] == pytest.approx(1)


def test_controlled_divides_by_the_control() -> None:
    runs = made_up({("rope", "real-spectrum"): [2 * t for t in BASE], ("rope", "whitening-control"): BASE})
    table = bans.controlled(runs)
    assert table[["scheme", "ban", "control"]].values.tolist() == [["rope", "real-spectrum", "whitening-control"]]
    assert table["ratio"].item() == pytest.approx(2)


def test_the_conditions_are_every_meaningful_ban() -> None:
    units = bans.conditions(2)
    assert len({repr(unit.config) for unit in units}) == len(units)
    both = [unit.labels for unit in units if unit.labels["layers"] == "both"]
    assert sum(label["scheme"] == "rope" for label in both) == len(BANS)
    assert {label["ban"] for label in both if label["scheme"] == "alibi"} == {
        n for n, b in BANS.items() if not b.needs_phase
    }
    parts = laboratory.units(16)
    assert sum(len(part.seeds) for part in parts) == 16 * len({repr(part.config) for part in parts})


def test_the_multiverse_compares_within_a_point() -> None:
    rows = []
    for (scheme, ban), frame in RUNS.groupby(["scheme", "ban"]):
        rows.append(frame.assign(variation="base", role=ban, scheme=scheme))
    table = symmetry.multiverse(pd.concat(rows))
    assert table["variation"].tolist() == ["base"]
    row = table.iloc[0]
    assert (row["absolute"], row["rope"], row["interaction"]) == pytest.approx((3, 2, 1.5))
    assert not row["late"]
    late = pd.concat(rows).assign(step=lambda t: t["step"] * 10)
    assert symmetry.multiverse(late)["late"].item()


def test_symmetry_shows_in_the_scores_and_in_the_kernel() -> None:
    """Untrained models suffice: the statements are exact."""
    lopsided, odd = {}, {}
    for scheme, ban in (
        ("absolute", "symmetric"),
        ("rope", "symmetric"),
        ("rope", "symmetric-phase"),
        ("alibi", "none"),
    ):
        run = symmetry.trained(scheme, ban, cap=10)
        lopsided[scheme, ban] = symmetry.asymmetry(symmetry.score_matrices(run)).max().item()
        odd[scheme, ban] = symmetry.kernel(run)["odd"].abs().max()
        assert 0 <= run.strongest(0, "previous_token") < 4
    assert lopsided["absolute", "symmetric"] < 1e-12
    assert lopsided["rope", "symmetric-phase"] < 1e-12
    assert lopsided["rope", "symmetric"] > 0.1
    assert lopsided["alibi", "none"] > 0.1
    assert odd["rope", "symmetric-phase"] < 1e-12
    assert odd["rope", "symmetric"] > 1e-3


def test_kernel_is_the_mean_over_pairs_of_tokens() -> None:
    run = symmetry.trained("rope", "none", cap=10)
    table = symmetry.kernel(run).set_index(["head", "offset"])
    from qkspectra.toy.model import effective, unflatten

    wq, wk, rotary = effective(run.model, run.theta, 0)
    embed = unflatten(run.model, run.theta.double())["embed"][0]
    x = (embed - embed.mean(-1, keepdim=True)) / (embed.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
    assert rotary is not None
    total = 0.0
    for u in range(len(x)):
        for v in range(len(x)):
            if u != v:
                q, k = (x[u] @ wq[0, 2].T).view(-1, 2), (x[v] @ wk[0, 2].T).view(-1, 2)
                turned = torch.view_as_complex(q) * torch.polar(torch.ones_like(rotary.theta), 3 * rotary.theta)
                total += (turned * torch.view_as_complex(k).conj()).real.sum().item()
    wanted = total / (len(x) * (len(x) - 1)) / run.model.d_head**0.5
    assert table.loc[(2, 3), "even"] + table.loc[(2, 3), "odd"] == pytest.approx(wanted, abs=1e-10)


def test_order_of_events_on_a_made_up_head() -> None:
    null = order.null(4, 16, 200)
    mean = float(null.eigen_rotation.mean())
    steps = [0, 50, 100, 150, 200]
    track = pd.DataFrame(
        {
            "seed": [0] * 5 + [1] * 5,
            "role": "induction",
            "step": steps * 2,
            "induction": [0, 0, 0.4, 0.9, 1.0, 0, 0.9, 1, 1, 1],
            "eigen_rotation": [mean, 9, mean, 9, 9] + [mean] * 5,  # leaves for good at 150; never
        }
    )
    moves = order.events(track, null, "eigen_rotation").set_index("seed")
    assert moves.loc[0, ["behaviour", "signature"]].tolist() == [150, 150]
    assert moves.loc[1, ["behaviour", "signature"]].tolist() == [50, np.inf]
    summary = order.precedence(moves.reset_index()).iloc[0]
    assert summary[["before", "with", "after", "never"]].tolist() == [0, 1, 1, 1]


def tiny(unit: Training) -> Training:
    """The same condition in a model of a few steps and rows."""
    model = ModelConfig(
        unit.config.model.scheme, unit.config.model.bans, d_model=16, heads=2, d_head=4, length=12, vocab=8
    )
    return Training(TrainConfig(model, horizon=20, cap=20, batch=4, evaluation_batch=4), unit.seeds, unit.labels)


def test_a_laboratory_is_run_gathered_shipped_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [tiny(condition("rope", ban, seeds=2, first_seed=100)) for ban in ("none", "symmetric")]
    cells += [tiny(condition("absolute", ban, seeds=2, first_seed=100)) for ban in ("none", "symmetric")]
    monkeypatch.setattr(bans, "conditions", lambda seeds: cells)
    monkeypatch.setattr(symmetry, "conditions", lambda seeds: [])
    monkeypatch.setattr(symmetry, "VARIATIONS", symmetry.VARIATIONS[:2])
    by_key = dict(zip([(s, r) for s in ("rope", "absolute") for r in ("none", "symmetric")], cells, strict=True))
    monkeypatch.setattr(symmetry, "cells", lambda variation, seeds: by_key)
    store = Store(tmp_path / "results")
    with pytest.raises(InputError, match="no run of the laboratory"):
        laboratory.gather(store, 2)
    lab = laboratory.obtain("paper", tmp_path, store, 2, 1)
    assert len(lab.runs) == 4 * 2 * 2
    assert set(lab.multiverse["variation"]) == {"base", "threshold 0.5"}
    assert lab.hours > 0
    laboratory.publish(laboratory.gather(store, 2), tmp_path / "data")
    shipped = laboratory.obtain("pocket", tmp_path / "data", store, 2, 1)
    for name in laboratory.TABLES:
        pd.testing.assert_frame_equal(getattr(shipped, name), getattr(lab, name))
    monkeypatch.setattr(bans, "rerun", lambda cell, seeds, cap: by_key[cell.scheme, cell.ban])
    again = laboratory.agreement(shipped, Store(tmp_path / "other"), [Cell("rope", "symmetric")], 2, 20)
    assert again["evaluations"].item() == 2 * 3
    assert again["loss"].item() < 1e-5
    (tmp_path / "data" / "toy-runs.parquet").unlink()
    with pytest.raises(InputError, match="no result file"):
        laboratory.load(tmp_path / "data")


def test_the_shipped_tables_hold_every_ban_and_every_head() -> None:
    lab = laboratory.load(DATA)
    expected = {(u.labels["scheme"], u.labels["ban"], u.labels["layers"]) for u in bans.conditions(1)}
    assert set(lab.runs.groupby(["scheme", "ban", "layers"]).groups) == expected
    assert set(lab.multiverse["variation"]) == {v.name for v in symmetry.VARIATIONS}
    assert not lab.runs.duplicated(["scheme", "ban", "layers", "seed", "threshold"]).any()
    ends = lab.heads[lab.heads["ban"].isin(["symmetric", "rank-symmetric"]) & (lab.heads["layers"] == "both")]
    assert ends["eigen_rotation"].dropna().max() < 1e-6  # the ban held to the last step of every run
    assert sum(path.stat().st_size for path in DATA.glob("toy-*")) < 8e6


def test_every_figure_draws_from_the_shipped_tables() -> None:
    lab = laboratory.load(DATA)
    null = order.null(16, 64, 100)
    tracks = {scheme: order.followed(lab.heads, scheme) for scheme in ("rope", "absolute")}
    few = lab.curves[lab.curves["ban"].isin(["none", "symmetric"])]
    drawn = [
        figures_toy.learning_curves(few, "alibi"),
        figures_toy.formation_times(lab.runs),
        figures_toy.contrasts(bans.contrasts(lab.runs)),
        figures_toy.reroute(lab.heads),
        figures_toy.end_spectra(tracks, null),
        figures_toy.dynamics(tracks, null, "eigen_rotation", "eigen-rotation"),
        figures_toy.slowdowns(bans.slowdowns(lab.runs), [("symmetric", "both"), ("symmetric", "0")]),
        figures_toy.multiverse(symmetry.multiverse(lab.multiverse)),
    ]
    for figure in drawn:
        assert all(axes.has_data() for axes in figure.axes if axes.get_visible())
    censored = lab.runs.query("threshold == 0.9 and layers == 'both'")["censored"].sum()
    triangles = sum(len(line.get_xdata()) for axes in drawn[1].axes for line in axes.lines if line.get_marker() == ">")
    assert triangles == censored

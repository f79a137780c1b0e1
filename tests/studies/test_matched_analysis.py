"""Contrasts of made-up runs whose answers are known, and the plan against the code."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from qkspectra.matched.model import SCHEMES, Recipe
from qkspectra.studies import matched, matched_analysis, matched_interventions, matched_signature

PLAN = yaml.safe_load((Path(__file__).parents[2] / "book" / "preregistration-matched.yml").read_text(encoding="utf-8"))
NULL = pd.DataFrame(
    {"mean": [0.6, 0.5, 0.95], "sd": [0.05, 0.01, 0.01]}, index=["eigen_rotation", "antisymmetric_energy", "henrici"]
)
STEPS = range(0, 1550, 50)
FORMS = {"rope": 500, "partial": 600, "absolute": 700, "alibi": 800, "none": 5000}
ROTATION = {"rope": 0.7, "partial": 0.6, "absolute": 0.5, "alibi": 0.4, "none": 0.3}


def course(kind, scheme, seed, ban="none", before=None, start=0, forms=None, rotation=None):
    """A run of one layer of eight heads: 0 and 1 look back, 2 and 3 match; all leave the null at step 300."""
    rows = []
    noise = np.random.default_rng([seed, SCHEMES.index(scheme)]).normal(0, 0.01, 8)
    for step in (s for s in STEPS if s >= start):
        formed = step >= (FORMS[scheme] if forms is None else forms)
        for head in range(8):
            turned = ROTATION[scheme] if rotation is None else rotation
            value = 0.6 if step < 300 else turned if head < 2 else 0.3 if head < 4 else 0.45
            rows.append(
                {
                    "kind": kind,
                    "scheme": scheme,
                    "ban": ban,
                    "before": before or scheme,
                    "seed": seed,
                    "step": step,
                    "layer": 0,
                    "head": head,
                    "accuracy_second": 0.9 if formed else 0.1,
                    "loss_text": 4.0,
                    "loss_first": 6.5,
                    "loss_second": 0.3 if formed else 6.0,
                    "previous_token": 0.9 - 0.1 * head,
                    "induction": 0.8 if head in (2, 3) else 0.1,
                    "eigen_rotation": np.nan if ban != "none" else value + noise[head],
                    "antisymmetric_energy": 0.5,
                    "henrici": 0.95,
                    "content_sign": 0.4,
                }
            )
    return rows


@pytest.fixture(scope="module")
def heads():
    rows = []
    for seed in range(8):
        for scheme in SCHEMES:
            rows += course("main", scheme, seed)
        rows += course("banned", "rope", seed, "phase", forms=900)
        rows += course("ban_after", "rope", seed, "phase", start=1200, forms=1300)
        rows += course("transplant", "alibi", seed, before="rope", start=1200, forms=1200, rotation=0.41)
        rows += course("transplant", "rope", seed, before="alibi", start=1200, forms=1200, rotation=0.41)
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def kernels(heads):
    """At distance 1 the symmetric phase gives 2 nats with the mean kept, and the even symmetric part a half."""
    runs = heads[matched_analysis.MODEL].drop_duplicates()
    rng = np.random.default_rng(0)
    rows = []
    for run in runs.to_dict("records"):
        for mean in ("kept", "projected"):
            given = {"phase_symmetric": 2.0 if mean == "kept" else 0.5, "symmetric": 0.5}
            given |= {"phase_antisymmetric": 0.1, "antisymmetric": 0.0, "full": 3.0, "position": 0.0}
            for part, peak in given.items():
                jitter = 0 if part == "position" else rng.normal(0, 0.01)
                previous = 0.2 if part == "phase_symmetric" else 0.9
                rows += [
                    {
                        **run,
                        "layer": 0,
                        "head": head,
                        "mean": mean,
                        "part": part,
                        "delta": delta,
                        "score": (peak + jitter) * (delta == 1),
                        "previous": previous,
                    }
                    for head in (0, 1)
                    for delta in range(17)
                ]
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def results(heads, kernels):
    found = matched_analysis.differences(heads, kernels, NULL, [("rope", "phase")], matched.TRANSPLANTS)
    return matched_analysis.contrasts(found).set_index("contrast")


def test_rotation_is_measured_against_both_references(heads, results):
    table = matched_analysis.rotations(heads, NULL).groupby("scheme")[["above_population", "above_null"]].mean()
    assert table.loc["rope", "above_population"] == pytest.approx(0.7 - 0.45, abs=0.02)
    assert table.loc["alibi", "above_null"] == pytest.approx(-4, abs=0.3)
    assert results.loc["rope-over-absolute-population", "mean"] == pytest.approx(0.2, abs=0.02)
    assert results.loc["rope-over-none-null", "mean"] == pytest.approx(8, abs=0.5)
    assert (results.loc["rope-over-absolute-population", ["p", "same"]] == [2 / 2**8, 8]).all()
    assert (results.filter(like="rope-over", axis=0)["verdict"] == "supported").all()


def test_induction_heads_below_the_null_are_content_like(results):
    assert results.loc["induction-alibi", "mean"] == pytest.approx(-6, abs=0.3)
    assert results.loc["induction-alibi", "verdict"] == "supported"


def test_a_population_that_sinks_first_contradicts(heads, results):
    events = matched_analysis.events(heads, NULL)
    mains = events[events["kind"] == "main"].set_index("scheme")
    assert (mains.loc["rope", "forms"] == 500).all()
    assert (mains["sinks"] == 300).all()
    assert mains.loc["none", "forms_censored"].all()
    assert (mains.loc["none", "forms"] == 1500).all()
    assert results.loc["sinks-after-rope", "mean"] == -200
    assert results.loc["sinks-after-rope", "verdict"] == "contradicted"


def test_what_lasts_for_less_than_three_examinations_has_not_happened(heads):
    run = heads[(heads["kind"] == "main") & (heads["scheme"] == "rope") & (heads["seed"] == 0)].copy()
    run.loc[run["step"] == 550, "accuracy_second"] = 0.2
    assert matched_analysis.events(run, NULL)["forms"].item() == 600


def test_pulls_are_scores_at_distance_one_above_the_mean_of_all(heads, kernels, results):
    pull = matched_analysis.pulls(kernels, heads)
    own = pull[(pull["kind"] == "main") & (pull["scheme"] == "rope") & (pull["mean"] == "kept")]
    means = own.groupby("part")[["pull", "lost"]].mean()
    assert means.loc["phase_symmetric", "pull"] == pytest.approx(2 * 16 / 17, abs=0.02)
    assert means.loc["phase_symmetric", "lost"] == pytest.approx(0.7)
    assert results.loc["phase-is-symmetric", "mean"] == pytest.approx(1.9 * 16 / 17, abs=0.03)
    assert results.loc["symmetric-phase-needs-the-mean", "verdict"] == "supported"


def test_interventions_are_a_family_of_their_own(heads, results):
    assert results.loc["delayed-rope-phase", "mean"] == 400
    assert results.loc["back-sooner-rope-phase", "mean"] == -800
    second = results[results.index.str.startswith(matched_analysis.INTERVENTIONS)]
    np.testing.assert_allclose(second["q"], 2 / 2**8)  # all of its four are at the floor
    assert results.loc["follows-scheme-rope-alibi", "verdict"] == "supported"  # it came to lie with ALiBi
    assert results.loc["follows-scheme-alibi-rope", "verdict"] == "contradicted"  # it stayed there
    events = matched_analysis.events(heads, NULL)
    row = matched_interventions.recoveries(heads, events, [("rope", "phase")], 1200).iloc[0]
    assert (row["before"], row["at_once"], row["after"]) == pytest.approx((0.9, 0.1, 0.9))
    assert (row["back"], row["back_steps"], row["formed"], row["formed_step"]) == ("8 of 8", 100, "8 of 8", 900)


def test_what_has_not_been_run_is_empty_and_said_so(heads, kernels):
    mains, own = heads[heads["kind"] == "main"], kernels[kernels["kind"] == "main"]
    found = matched_analysis.differences(mains, own, NULL, matched.BANNED, matched.TRANSPLANTS)
    table = matched_analysis.contrasts(found).set_index("contrast")
    second = table[table.index.str.startswith(matched_analysis.INTERVENTIONS)]
    assert (second["verdict"] == "not run").all()
    assert second["q"].isna().all()
    first = table.drop(second.index)
    assert first["q"].notna().all()
    assert matched_analysis.tally(second["verdict"]) == "8 are not run"
    events = matched_analysis.events(mains, NULL)
    assert matched_interventions.recoveries(mains, events, matched.BANNED, 1200)["back"].tolist() == ["0 of 0"] * 3
    assert len(matched_interventions.carriers(own, mains, matched.BANNED)) == 6
    places = matched_analysis.places(mains, NULL)
    words = matched_interventions.went(mains, places, matched.TRANSPLANTS, {s: s for s in SCHEMES})
    assert words.startswith("No model has been transplanted")


def test_carriers_and_paths_in_words(heads, kernels):
    table = matched_interventions.carriers(kernels, heads, [("rope", "phase")])
    assert table["same"].tolist() == ["8 of 8", "8 of 8"]
    assert table["phase_symmetric"].tolist() == pytest.approx([1.88, 1.88], abs=0.02)
    places = matched_analysis.places(heads, NULL)
    words = matched_interventions.went(heads, places, matched.TRANSPLANTS, {s: s.upper() for s in SCHEMES})
    assert words.count("Models that go from") == 2
    assert "from ROPE to ALIBI have an accuracy of 0.90" in words


def test_the_area_is_the_share_of_pairs_in_order():
    value = np.array([3.0, 1.0, 2.0, 2.0])
    assert matched_signature.auc(np.array([True, False, False, True]), value) == (1 + 1 + 1 + 0.5) / 4
    assert np.isnan(matched_signature.auc(np.array([True, True]), value[:2]))
    curve = matched_signature.roc(np.array([True, False, False, True]), value)
    assert np.trapezoid(curve["true"], curve["false"]) == pytest.approx(3.5 / 4)


@pytest.fixture(scope="module")
def signatures(heads):
    """`pull` is high for the previous-token heads under RoPE, `phase_energy` low; the rest is noise."""
    rng = np.random.default_rng(1)
    last = matched_analysis.last(matched_analysis.main(heads))
    table = last[[*matched_analysis.MODEL, *matched_analysis.HEAD]].reset_index(drop=True)
    table = table.assign(**{name: rng.normal(size=len(table)) for name in matched_signature.CANDIDATES})
    good = (table["scheme"] == "rope") & (table["head"] < 2)
    table["pull"] += 8 * good
    table["phase_energy"] -= 2 * good
    return table


def test_the_best_candidate_is_chosen_whichever_way_it_points(heads, signatures):
    table = matched_signature.labelled(signatures, heads)
    assert table["positive"].sum() == 16
    assert matched_signature.chosen(table) == "pull"
    upside_down = table.assign(pull=-table["pull"])
    assert matched_signature.chosen(upside_down) == "pull"
    assert matched_signature.sides(upside_down)["pull"] == -1
    sides = matched_signature.sides(table)
    assert (sides["pull"], sides["phase_energy"]) == (1, -1)
    found = matched_signature.curves(table, sides, "seed", ["pull", "eigen_rotation"], samples=50).set_index(
        "candidate"
    )
    assert found.loc["pull", "auc"] > 0.99
    assert found.loc["pull", "low"] <= found.loc["pull", "auc"] <= found.loc["pull", "high"]
    assert found.loc["eigen_rotation", ["lead", "lead_low", "lead_high"]].tolist() == [0, 0, 0]
    sentence = matched_signature.verdict(*[found.reset_index().iloc[0]] * 2)
    assert sentence == "It beats eigen-rotation on both."


def test_the_code_does_what_the_plan_says():
    recipe = Recipe(name="rope")
    model, data, training = PLAN["model"], PLAN["data"], PLAN["training"]
    for name in ("layers", "heads", "d_head", "expansion"):
        assert getattr(recipe, name) == model[name], name
    assert (recipe.width, recipe.embedding_deviation) == (model["d_model"], 0.5)
    assert recipe.deviation == pytest.approx(model["d_model"] ** -0.5)
    assert list(SCHEMES) == model["schemes"]
    for name in ("context", "text", "scrambled", "shortest", "unpredicted"):
        assert getattr(recipe, name) == data[name], name
    for name in ("learning_rate", "warmup", "weight_decay", "clip", "batch"):
        assert getattr(recipe, name) == training[name], name
    assert [recipe.beta1, recipe.beta2] == training["betas"]
    assert (training["steps"], training["branch"], training["every"]) == (matched.STEPS, matched.BRANCH, matched.EVERY)
    first, later = matched.units(PLAN["seeds"]["count"], 4)
    assert {unit.recipe.seed for unit in first} == set(range(PLAN["seeds"]["first"], PLAN["seeds"]["first"] + 8))
    assert all(unit.recipe.forming > unit.recipe.steps and unit.recipe.decay == 1 for unit in first + later)
    assert tuple(PLAN["signature"]["candidates"]) == matched_signature.CANDIDATES


def test_the_contrasts_are_those_of_the_plan(heads, kernels):
    found = matched_analysis.differences(heads, kernels, NULL, matched.BANNED, matched.TRANSPLANTS)
    assert {name: side for name, (side, _) in found.items()} == PLAN["contrasts"]

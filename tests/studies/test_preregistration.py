"""The plan is the one that was committed before any full run, and the code does what it says."""

import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from qkspectra.studies import bans, laboratory, matched
from qkspectra.studies.training import THRESHOLDS
from qkspectra.toy.train import TrainConfig

ROOT = Path(__file__).parents[2]
PLAN = ROOT / "book" / "preregistration.yml"
SECOND = ROOT / "book" / "preregistration-matched.yml"


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def adding(plan: Path) -> str:
    """The commit that added a plan."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: the history that the plan is compared with is not here")
    if git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("a shallow clone: the commit that added the plan is not here")
    return git("log", "--diff-filter=A", "--format=%H", "--", f"book/{plan.name}").splitlines()[-1]


@pytest.mark.parametrize("plan", [PLAN, SECOND], ids=["laboratory", "matched"])
def test_the_plan_is_as_it_was_committed_alone(plan: Path) -> None:
    added = adding(plan)
    assert git("rev-parse", f"{added}:book/{plan.name}") == bans.blob_hash(plan)
    assert git("show", "--format=", "--name-only", added) == f"book/{plan.name}"


@pytest.mark.parametrize(("plan", "study"), [(PLAN, laboratory), (SECOND, matched)], ids=["laboratory", "matched"])
def test_the_shipped_runs_come_after_the_plan(plan: Path, study: ModuleType) -> None:
    added = adding(plan)
    for name, made in study.load(ROOT / "book" / "data").provenance.items():
        assert not made["commit"].endswith("+"), name
        git("merge-base", "--is-ancestor", added, made["commit"])


def test_the_blob_hash_is_gits() -> None:
    assert bans.blob_hash(PLAN) == git("hash-object", str(PLAN)) if (ROOT / ".git").exists() else True


def test_the_code_does_what_the_plan_says() -> None:
    plan = yaml.safe_load(PLAN.read_text(encoding="utf-8"))
    units = bans.conditions(plan["seeds"]["count"])
    config: TrainConfig = units[0].config
    model, training, outcome = plan["model"], plan["training"], plan["outcome"]
    assert (config.model.d_model, config.model.heads, config.model.d_head) == tuple(
        model[name] for name in ("d_model", "heads", "d_head")
    )
    assert len(config.model.bans) == model["layers"]
    assert (config.model.length, config.model.vocab) == (plan["task"]["length"], plan["task"]["vocab"])
    for name in ("learning_rate", "weight_decay", "batch", "every", "evaluation_batch", "horizon", "after", "cap"):
        assert getattr(config, name) == training[name], name
    assert [config.beta1, config.beta2] == training["betas"]
    assert (config.threshold, config.persistence) == (outcome["threshold"], outcome["persistence"])
    assert set(THRESHOLDS) == {outcome["threshold"], outcome["threshold_secondary"]}
    assert all(unit.seeds == tuple(range(plan["seeds"]["first"], plan["seeds"]["first"] + 16)) for unit in units)
    assert {c.name: c.claim for c in bans.PRIMARY} == {n: p["claimed_side"] for n, p in plan["primary"].items()}
    for contrast in bans.PRIMARY:
        stated = plan["primary"][contrast.name]
        pairs = [stated["ratio"], *([stated["divided_by"]] if "divided_by" in stated else [])]
        assert [[str(o), str(u)] for o, u in zip(contrast.over, contrast.under, strict=True)] == pairs


def test_the_shipped_baselines_keep_to_the_cap() -> None:
    """The cap is at least ten times the median formation of every baseline."""
    runs = laboratory.load(ROOT / "book" / "data").runs
    plan = yaml.safe_load(PLAN.read_text(encoding="utf-8"))
    free = runs[(runs["ban"] == "none") & (runs["threshold"] == plan["outcome"]["threshold"])]
    assert (free.groupby("scheme")["step"].median() * 10 <= plan["training"]["cap"]).all()
    assert (free.groupby("scheme")["seed"].nunique() == plan["seeds"]["count"]).all()

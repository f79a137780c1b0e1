"""The matched experiment's units: what they store, where they go on, and what is shipped of them."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from distributed import LocalCluster
from tests.matched.conftest import small, tokens  # noqa: F401  (a fixture)
from typer.testing import CliRunner

from qkspectra.cli import app
from qkspectra.errors import InputError
from qkspectra.matched.model import SCHEMES, unflat
from qkspectra.matched.train import Run, train
from qkspectra.store import Store
from qkspectra.studies import matched, matched_signature
from qkspectra.studies.matched import Training

TINY = {name: value for name, value in small().model_dump().items() if name in ("layers", "width", "heads", "vocab")}
TINY |= {"context": 16, "batch": 4, "shortest": 4, "warmup": 2, "steps": 6}


@pytest.fixture
def whole():
    return matched.units(2, 1, first_seed=0, every=2, branch=4, **TINY)


@pytest.fixture
def store(tmp_path, tokens, whole):  # noqa: F811
    made = Store(tmp_path / "results")
    matched.run(made, whole)
    return made


def test_the_plan_pairs_every_condition_with_the_same_seed(whole):
    first, later = whole
    kinds = pd.Series([unit.kind for unit in first + later]).value_counts()
    assert kinds.to_dict() == {"main": 10, "banned": 3, "ban_after": 3, "transplant": 2}
    assert {unit.recipe.seed for unit in later} == {0}
    parents = {repr(unit.recipe) for unit in first if unit.kind == "main"}
    assert all(repr(unit.recipe.parent) in parents for unit in later)
    with pytest.raises(InputError, match="do not fit"):
        matched.units(2, 3)


def test_a_branch_begins_where_its_parent_was(store, whole):
    main = {(u.recipe.name, u.recipe.seed): u.table("heads", store) for u in whole[0] if u.kind == "main"}
    for unit in whole[1]:
        mine, parents = unit.table("heads", store), main[unit.recipe.before, unit.recipe.seed]
        assert sorted(mine["step"].unique()) == [4, 6]
        at = mine[mine["step"] == 4].reset_index(drop=True)
        before = parents[parents["step"] == 4].reset_index(drop=True)
        if unit.kind == "transplant":  # the weights are the same, the scores are not
            np.testing.assert_array_equal(at["eigen_rotation"], before["eigen_rotation"])
        else:
            assert at["eigen_rotation"].isna().all()
        assert (at["loss_second"] != before["loss_second"]).all()


def test_a_branch_without_its_parents_state_trains_the_parent_again(store, whole, tmp_path):
    unit = next(unit for unit in whole[1] if unit.kind == "transplant")
    other = Store(tmp_path / "elsewhere")  # as on a worker that does not see the folder
    unit.run(other)
    pd.testing.assert_frame_equal(unit.table("heads", other), unit.table("heads", store))


def test_a_cluster_whose_workers_do_not_see_the_store_makes_the_same_tables(store, whole, tmp_path):
    other = Store(tmp_path / "elsewhere")
    # Workers in this process, where the corpus is the short one of these tests; each unit has a store of its own.
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster:
        matched.run(other, whole, scheduler=cluster.scheduler_address)
    for unit in (unit for part in whole for unit in part):
        for name in ("heads", "kernels", "weights"):
            pd.testing.assert_frame_equal(unit.table(name, other), unit.table(name, store))


def test_a_branch_under_the_same_conditions_would_change_nothing(tokens):  # noqa: F811
    plain, branch = small(), small(before="rope", branch=3)
    run = Run(plain, tokens)
    train(run, 3, 3, lambda _: None)
    again = Run(branch, tokens, matched._as_state(matched._as_table(run.state())), 3)
    train(run, 8, 8, lambda _: None)
    train(again, 8, 8, lambda _: None)
    assert torch.equal(run.state(), again.state())


def test_finished_runs_are_not_made_again(store, whole, monkeypatch):
    assert all(unit.rest(store) is None for part in whole for unit in part)
    victim = whole[0][3]
    path = store.root / victim.address("heads").key
    path.with_suffix(".json").unlink()
    before = {p: p.stat().st_mtime_ns for p in store.root.glob("matched-heads*.json")}
    old = pd.read_parquet(path.with_suffix(".parquet"))
    matched.run(store, whole)
    pd.testing.assert_frame_equal(pd.read_parquet(path.with_suffix(".parquet")), old)
    assert all(p.stat().st_mtime_ns == written for p, written in before.items())


def test_what_is_shipped_is_what_was_run_and_can_be_measured_again(store, whole, tmp_path, monkeypatch):
    folder = tmp_path / "data"
    monkeypatch.setattr(matched_signature, "outside", partial(matched_signature.outside, names=["pocket-gpt2"]))
    matched.publish(store, whole, folder)
    shipped = matched.load(folder)
    assert set(shipped.heads["scheme"]) == set(SCHEMES)
    assert (shipped.heads.groupby(["kind", "scheme", "ban", "before", "seed", "step"]).size() == 4).all()
    assert set(shipped.signatures["kind"]) == {"main"}
    assert len(shipped.outside) == 12
    assert not shipped.outside["positive"].any()
    assert (shipped.outside["pull"].abs() < 1e-6).all()  # position is not in the operator
    assert shipped.hours > 0
    models, text = matched.shipped_weights(folder)
    assert text.shape == (32, 16)
    unit = next(u for u in whole[0] if u.recipe.name == "absolute" and u.recipe.seed == 0)
    values = torch.from_numpy(store.get(unit.address("weights")).table["value"].to_numpy(np.float32).copy())
    for name, part in unflat(unit.recipe, values).items():
        torch.testing.assert_close(models["absolute"][1][name], part, atol=1e-3, rtol=1e-3)
    again = matched.agreement(shipped, folder, SCHEMES).set_index("scheme")
    assert (again[["previous_token", "induction", "loss_second"]] < 0.01).all(axis=None)
    assert (again["eigen_rotation"].dropna() < 0.1).all()


def test_weights_that_are_missing_or_damaged_are_refused(tmp_path):
    with pytest.raises(InputError, match="qkspectra matched"):
        matched.shipped_weights(tmp_path)
    (tmp_path / matched.WEIGHTS).write_bytes(b"12345")
    with pytest.raises(InputError, match="cannot be read"):
        matched.shipped_weights(tmp_path)


def test_a_diverging_run_is_stored_all_the_same(tmp_path, tokens):  # noqa: F811
    unit = Training(small(learning_rate=1e9, warmup=1), 2)
    store = Store(tmp_path)
    unit.run(store)
    last = unit.table("heads", store).query("step == 8")
    assert len(last) == 4
    assert not (last["loss_second"] < 5).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--interventions", "9"], "do not fit into 8 seeds"), (["--seeds", "0"], "do not fit into 0 seeds")],
)
def test_the_command_refuses_what_makes_no_sense(arguments, message, tmp_path):
    printed = CliRunner().invoke(app, ["matched", str(tmp_path / "out"), *arguments])
    assert printed.exit_code == 2
    assert message in printed.stderr
    assert not (tmp_path / "out").exists()


def test_a_label_says_what_a_run_is(whole):
    assert {"rope phase seed 0", "alibi then rope seed 0", "rope then rope symmetric seed 0"} <= {
        unit.label for part in whole for unit in part
    }
    assert replace(whole[0][0], every=3).label == "rope seed 0"

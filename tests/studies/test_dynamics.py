"""A run measured checkpoint by checkpoint: what an audit of each would find, and nothing of what is not of the run."""

import json
import shutil
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pandas as pd
import pytest
import torch
from tests.weights import tiny
from typer.testing import CliRunner

from ci import hub as small_hub
from qkspectra import open_model
from qkspectra.behaviour import behaviour
from qkspectra.cli import app
from qkspectra.errors import InputError
from qkspectra.null import null_operator
from qkspectra.spectrum import measure
from qkspectra.store import Store
from qkspectra.studies import dynamics
from qkspectra.studies.audit import audit, repeats
from qkspectra.studies.dynamics import HEAD_COLUMNS, Sizes, measured
from qkspectra.weights import revisions
from qkspectra.weights.catalogue import CATALOGUE

DATA = Path(__file__).parents[2] / "book" / "data"
STEPS = (0, 1, 2, 10, 100, 1000)  # as text, 10 and 100 and 1000 come before 2
SIZES = Sizes(seed=3, batch=2, length=8, samples=30)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trajectory that drifts away from where it began; `step2` holds the final weights, `step1` those of step 0."""
    folder = tmp_path_factory.mktemp("runs") / "small-run"
    model = tiny.build("llama-grouped")
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    drift = {
        name: 0.3 * tensor.std() * torch.randn(tensor.shape, generator=generator) for name, tensor in start.items()
    }
    for step in STEPS:
        far = {1: 0, 2: 1000}.get(step, step) / 1000
        model.load_state_dict({name: start[name] + far * drift[name] for name in start})
        model.save_pretrained(folder / f"step{step}")
    return folder


@pytest.fixture(scope="module")
def made(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dynamics.Result]:
    return measured([str(run)], None, SIZES, Store(tmp_path_factory.mktemp("store")))


def test_heads_are_those_of_an_audit_of_each_good_checkpoint_in_numeric_order(run, made) -> None:
    heads = made["heads"].table
    assert list(heads.columns) == list(HEAD_COLUMNS)
    assert heads["step"].drop_duplicates().tolist() == [0, 10, 100, 1000]
    assert set(heads["model"]) == {"small-run"}
    assert heads["tokens"].isna().all()
    for step in (10, 1000):
        mine = heads[heads["step"] == step].reset_index(drop=True)
        weights = open_model(str(run), f"step{step}")
        alone = audit(weights, seed=3, batch=2, length=8, samples=30)
        same = [name for name in alone if name != "model"]
        pd.testing.assert_frame_equal(mine[same], alone[same])
        model = weights.load()
        seen = behaviour(model, weights.attention_modules(model), repeats(weights, seed=3, batch=2, length=8))
        assert (mine["loss_first"] == seen.loss_first).all()
        assert (mine["loss_second"] == seen.loss_second).all()


def test_bad_revisions_are_named_with_their_verdict_and_never_measured(made) -> None:
    table = made["revisions"].table.set_index("revision")
    assert table.loc["step1", "verdict"] == "equal to step0"
    assert table.loc["step2", "verdict"] == "final weights under an early label"
    assert dynamics.refused(made["revisions"].table) == [
        "small-run step1 is left out: equal to step0",
        "small-run step2 is left out: final weights under an early label",
    ]
    for name in ("heads", "portraits"):
        assert not {1, 2} & set(made[name].table["step"])


def test_portraits_are_the_eigenvalues_of_the_heads_that_end_strongest(run, made) -> None:
    points = made["portraits"].table
    last = made["heads"].table[made["heads"].table["step"] == 1000]
    best = last.loc[last["induction"].idxmax()]
    mine = points[(points["role"] == "induction") & (points["step"] == 10)]
    assert (mine["layer"].iloc[0], mine["head"].iloc[0]) == (best["layer"], best["head"])
    layer = open_model(str(run), "step10").layer(int(best["layer"]))
    m = layer.wq[int(best["head"])].T @ layer.wk[int(layer.kv_head[int(best["head"])])]
    dense = torch.linalg.eigvals(m)
    expected = dense[dense.abs() > 1e-9].abs().sort().values * 48**0.5 / m.norm()
    assert np.sort(np.hypot(mine["real"], mine["imag"])) == pytest.approx(expected.numpy(), rel=1e-8)
    assert set(points["step"]) == {0, 10, 100, 1000}


def test_leading_rotation_is_the_topmost_eigenvalue_of_the_operator() -> None:
    op = null_operator(8, 40, 5, seed=1)
    seen = dynamics.leading_rotation(measure(op), 40)
    for head in range(5):
        m = op.wq[head].T @ op.wk[head]
        dense = torch.linalg.eigvals(m).imag.max() * 40**0.5 / m.norm()
        assert seen[head].item() == pytest.approx(dense.item(), rel=1e-9)


def test_what_has_been_measured_is_not_measured_again(run, tmp_path, monkeypatch) -> None:
    store = Store(tmp_path)
    news: list[tuple[int, int, str]] = []

    def stop(done: int, total: int, label: str) -> None:
        news.append((done, total, label))
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured([str(run)], None, SIZES, store, progress=stop)
    assert news[-1] == (2, 4, "small-run step10")
    measured([str(run)], None, SIZES, store, progress=lambda *item: news.append(item))
    assert [done for done, _, _ in news[3:]] == [2, 3, 4]
    monkeypatch.setattr(dynamics, "audit", lambda *_, **__: pytest.fail("measured again"))
    measured([str(run)], None, SIZES, store)


def test_a_run_on_the_hub_gives_the_same_rows_by_ranges_and_whole(run, made, tmp_path, monkeypatch) -> None:
    with small_hub.serving() as server:
        server.point_client(server.url, monkeypatch)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        commits = {step: server.put("someone/run", run / f"step{step}", f"step{step}") for step in STEPS}
        store = Store(tmp_path / "store")
        ranged, whole = (
            measured(["someone/run"], None, SIZES, store, download=download, portraits=3)["heads"].table
            for download in (False, True)
        )
    local = made["heads"].table
    spectra = list(HEAD_COLUMNS[HEAD_COLUMNS.index("antisymmetric_energy") :])
    pd.testing.assert_frame_equal(
        ranged[["step", "layer", "head", *spectra]], local[["step", "layer", "head", *spectra]]
    )
    assert ranged[list(dynamics.BEHAVIOUR)].isna().all(axis=None)
    pd.testing.assert_frame_equal(whole[list(dynamics.BEHAVIOUR)], local[list(dynamics.BEHAVIOUR)])
    for table in (ranged, whole):
        assert table.groupby("step")["commit"].unique().str[0].to_dict() == {s: commits[s] for s in (0, 10, 100, 1000)}
        assert set(table["model"]) == {"someone/run"}


def test_a_checkpoint_on_the_hub_is_read_once(run, tmp_path, monkeypatch) -> None:
    with small_hub.serving() as server:
        server.point_client(server.url, monkeypatch)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        for step in STEPS:
            server.put("someone/run", run / f"step{step}", f"step{step}")
        units, _ = dynamics.checkpoints("someone/run", None, SIZES)
        server.sent.clear()
        units[-1].run(Store(tmp_path / "store"))
        measuring = server.sent["model.safetensors"]
        server.sent.clear()
        weights = units[-1].open(ranges=True)
        for index in range(weights.layout.n_layers):
            weights.layer(index)
        assert measuring == server.sent["model.safetensors"] > 0


def test_runs_are_shipped_read_and_joined(run, made, tmp_path, monkeypatch) -> None:
    dynamics.publish(made, tmp_path / "data")
    shipped = dynamics.obtain([], None, tmp_path / "data", Store(tmp_path))
    assert shipped.sizes == SIZES
    pd.testing.assert_frame_equal(shipped.heads, made["heads"].table)
    assert str(run.parent) not in json.dumps(shipped.provenance)
    other = shutil.copytree(run, tmp_path / "other-run")
    both = dynamics.obtain([str(other)], None, tmp_path / "data", Store(tmp_path), portraits=3)
    assert both.heads["model"].unique().tolist() == ["small-run", "other-run"]
    assert both.portraits.groupby("model", sort=False)["step"].nunique().tolist() == [4, 3]
    monkeypatch.setattr(dynamics, "open_model", lambda name: open_model(str(run), "step1000"))
    same = dynamics.agreement(both, ["small-run"], Store(tmp_path))
    assert same[list(dynamics.AGAIN)].to_numpy() == pytest.approx(0)
    monkeypatch.setattr(dynamics, "open_model", lambda name: open_model(str(run), "step0"))
    assert (dynamics.agreement(both, ["small-run"], Store(tmp_path))[list(dynamics.AGAIN)] > 1e-4).all(axis=None)


def test_the_shipped_runs_are_whole_and_every_revision_in_them_is_of_its_run() -> None:
    runs = dynamics.load(DATA)
    assert sorted(runs.heads["model"].unique()) == sorted(name for name in CATALOGUE if name.startswith("pocket-"))
    assert (runs.revisions["verdict"] == revisions.OK).all()
    for _, run in runs.heads.groupby("model"):
        assert run["step"].is_monotonic_increasing
        assert len(run) == run["step"].nunique() * 12
        assert run[[*dynamics.BEHAVIOUR, *dynamics.AGAIN, "leading_rotation"]].notna().all(axis=None)
    assert set(runs.heads["scheme"].unique()) == {"rope", "absolute", "alibi"}


def test_runs_of_one_name_or_of_no_two_points_are_refused(run, tmp_path) -> None:
    other = shutil.copytree(run, tmp_path / run.name)
    with pytest.raises(InputError, match="two of the models have one name"):
        measured([str(run), str(other)], None, SIZES, Store(tmp_path))
    for step in STEPS[1:]:
        shutil.rmtree(other / f"step{step}")
    with pytest.raises(InputError, match="1 usable revisions, and a run needs two"):
        dynamics.checkpoints(str(other))


def test_the_command_names_what_it_leaves_out_and_writes_the_rest(run, tmp_path) -> None:
    arguments = ["dynamics", str(run), "--results", str(tmp_path / "r")]
    first = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "heads.csv")])
    assert first.exit_code == 0, first.stderr
    assert first.stdout == ""
    assert "small-run step2 is left out: final weights under an early label" in first.stderr
    table = pd.read_csv(tmp_path / "heads.csv")
    assert list(table.columns) == list(HEAD_COLUMNS)
    assert len(table) == 4 * 12
    printed = CliRunner().invoke(app, arguments).stdout.splitlines()
    assert [line.split()[0] for line in printed if line[:5].strip().isdigit()] == ["0", "10", "100", "1000"]
    shipped = CliRunner().invoke(app, [*arguments, "--ship", str(tmp_path / "data")])
    assert shipped.exit_code == 0
    assert len(dynamics.load(tmp_path / "data").heads) == len(table)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["minilm-l6"], "is one state of a model"),
        (["."], "has no revisions named by steps"),
        (["RUN", "--schedule", "pythia"], "steps of the schedule pythia are missing"),
        (["RUN", "--schedule", "mine"], "there is no schedule 'mine'"),
        (["RUN", "--out", "table.txt"], "the suffix says the format"),
        (["RUN", "--workers", "0"], "0 workers cannot work"),
    ],
)
def test_bad_input_is_one_line_and_exit_two(run, tmp_path, arguments, message, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [str(run) if word == "RUN" else word for word in arguments]
    result = CliRunner().invoke(app, ["dynamics", *words])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_audit_decides_what_is_usable() -> None:
    """The word that the audit uses for a good revision is the one that the tables are read by."""
    assert revisions.Audited(revisions.Revision("step0", 0), "").usable
    assert dynamics.refused(pd.DataFrame({"model": ["m"], "revision": ["step0"], "verdict": [revisions.OK]})) == []

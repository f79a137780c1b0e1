"""Whether checkpoints are what their labels say: every fault that public families have had, planted and found.

The run is a random walk with a drift, small steps first, at labels spaced like Pythia's.
"""

import json
import shutil

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.weights import tiny
from typer.testing import CliRunner

from qkspectra.cli import app
from qkspectra.errors import InputError
from qkspectra.weights import open_model
from qkspectra.weights.revisions import audited, revisions_of, table

STEPS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 1000, 2000, 3000, 4000)
NAME = "someone/run"
FILE = "model.safetensors"


def walk(folder, seed):
    """A trajectory of a model whose every weight is 0.02 at first, and moves with a pace that rises and settles."""
    model = tiny.build("llama")
    g = torch.Generator().manual_seed(seed)
    start = {n: 0.02 * torch.randn(t.shape, generator=g) for n, t in model.state_dict().items()}
    drift = {n: 0.02 * torch.randn(t.shape, generator=g) for n, t in start.items()}
    noise = {n: torch.zeros_like(t) for n, t in start.items()}
    before = 0
    for step in STEPS:
        warm = min(step / 500, 1.0)
        for t in noise.values():
            t += 3e-5 * (step - before) ** 0.5 * warm * torch.randn(t.shape, generator=g)
        far = warm * step / 1000
        state = {n: start[n] + far * 0.3 * drift[n] + noise[n] for n in start}
        model.load_state_dict(state)
        model.save_pretrained(folder / f"step{step}")
        before = step
    return folder


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    return [walk(home / str(seed), seed) for seed in (0, 1)]


@pytest.fixture
def run(runs, tmp_path):
    return shutil.copytree(runs[0], tmp_path / "run")


def put(run, step, source):
    """The weights of another checkpoint under this label."""
    shutil.copy(source / FILE, run / f"step{step}" / FILE)


def verdicts(name, wanted=None):
    return {point.revision.step: point.verdict for point in audited(str(name), wanted) if not point.usable}


def test_a_sound_run_has_no_faults(runs):
    for run in runs:
        points = audited(str(run))
        assert [point.verdict for point in points] == ["ok"] * len(STEPS)
        assert points[0].std == pytest.approx(0.02, rel=0.02)
        assert points[0].remark == ""
        assert [point.distance > 0 for point in points] == [False] + [True] * (len(STEPS) - 1)
        frame = table(points)
        assert list(frame["revision"]) == [f"step{step}" for step in STEPS]
        assert frame["content"].is_unique
        assert frame["tokens"].isna().all()


def test_equal_points_are_merged_and_named(run):
    """EleutherAI/pythia#83, #198: step 0 is step 1, in every size."""
    put(run, 1, run / "step0")
    put(run, 2, run / "step0")
    assert verdicts(run) == {1: "equal to step0", 2: "equal to step0"}


def test_equal_weights_in_files_that_differ(run):
    """Saved again, with other metadata: the hash is another, the weights are the same."""
    save_file(load_file(run / "step0" / FILE), run / "step1" / FILE, {"format": "pt", "saved": "again"})
    save_file(load_file(run / "step4000" / FILE), run / "step64" / FILE, {"format": "pt", "saved": "again"})
    assert verdicts(run) == {1: "equal to step0", 64: "final weights under an early label"}


def test_final_weights_under_early_labels(run):
    """pythia#205, #195: 86 of 154 branches served weights of the end."""
    for step in (8, 16, 32, 2000, 3000):
        put(run, step, run / "step4000")
    assert verdicts(run) == dict.fromkeys((8, 16, 32, 2000, 3000), "final weights under an early label")


def test_one_state_under_two_labels_far_apart(run):
    put(run, 8, run / "step1000")
    assert verdicts(run) == {
        8: "also under step1000, with others between", 1000: "also under step8, with others between",
    }  # fmt: skip


def test_one_shard_of_the_final_ones(run):
    """pythia#206: two steps whose first shard alone is the final model's."""
    for step in STEPS:
        folder = run / f"step{step}"
        tensors = load_file(folder / FILE)
        first = {name: tensor for name, tensor in tensors.items() if "layers.0" in name}
        rest = {name: tensor for name, tensor in tensors.items() if name not in first}
        save_file(first, folder / "model-00001-of-00002.safetensors", {"format": "pt"})
        save_file(rest, folder / "model-00002-of-00002.safetensors", {"format": "pt"})
        places = {name: f"model-0000{1 if name in first else 2}-of-00002.safetensors" for name in tensors}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
        (folder / FILE).unlink()
    for step in (16, 2000):
        shutil.copy(run / "step4000/model-00001-of-00002.safetensors", run / f"step{step}")
    assert verdicts(run) == dict.fromkeys((16, 2000), "1 of 2 shards are the final ones")


@pytest.mark.parametrize("step", [2, 64, 1000, 3000])
def test_a_step_that_behaves_like_another(run, runs, step):
    """pythia#108: one label holds weights from elsewhere, here of another seed."""
    put(run, step, runs[1] / f"step{step}")
    assert verdicts(run) == {step: "out of place"}


def test_a_run_that_does_not_descend_from_its_step_0(run, runs):
    """pythia#203."""
    put(run, 0, runs[1] / "step0")
    assert verdicts(run) == {0: "the later revisions do not continue it"}


def test_a_run_whose_end_belongs_to_another(run, runs):
    for step in (2000, 3000, 4000):
        put(run, step, runs[1] / f"step{step}")
    assert verdicts(run) == dict.fromkeys((2000, 3000, 4000), "does not continue step1000")


def test_an_initialisation_that_is_not_the_declared_one(run):
    """pythia#135: the null's variance is that of step 0."""
    for step in STEPS:
        tensors = {name: 2 * tensor for name, tensor in load_file(run / f"step{step}" / FILE).items()}
        save_file(tensors, run / f"step{step}" / FILE, {"format": "pt"})
    first = audited(str(run))[0]
    assert first.usable
    assert first.std == pytest.approx(0.04, rel=0.02)
    assert first.remark == f"initialised with a standard deviation of {first.std:.4g} where config.json says 0.02"


@pytest.fixture
def published(server, run):
    """The run on the Hub."""
    for step in STEPS:
        server.put(NAME, run / f"step{step}", f"step{step}")
    server.put(NAME, run / "step4000", "main")
    return server


def test_a_run_on_the_hub_is_audited_by_few_bytes(published, run):
    whole = sum((run / f"step{step}" / FILE).stat().st_size for step in STEPS)
    ours, local = audited(NAME), audited(str(run))
    assert [(p.verdict, p.content, p.std) for p in ours] == [(p.verdict, p.content, p.std) for p in local]
    assert [p.revision.commit for p in ours] == [published.refs[NAME][f"step{step}"] for step in STEPS]
    assert published.sent[FILE] < whole / 2


def test_hashes_alone_tell_what_is_final(published, run):
    """Files that the Hub lists as the final ones are not even opened."""
    for step in (8, 16):
        published.put(NAME, run / "step4000", f"step{step}")
    published.requests.clear()
    assert verdicts(NAME) == dict.fromkeys((8, 16), "final weights under an early label")
    for step in (8, 16):
        assert not any(published.refs[NAME][f"step{step}"] in r for r in published.requests if "resolve" in r)


def test_main_that_is_not_the_last_step(published, run):
    """stanford-crfm/mistral#182: as text, step4000 comes before step64."""
    published.put(NAME, run / "step64", "main")
    points = audited(NAME)
    assert all(point.usable for point in points)
    assert points[-1].remark == "main is step64"
    published.put(NAME, {"config.json": b"{}", FILE: b"x"}, "main")
    assert audited(NAME)[-1].remark == "main is none of these revisions"


def test_pickled_revisions_are_told_apart_and_not_used(published, run):
    for step in (0, 1):
        files = {"config.json": (run / "step0/config.json").read_bytes(), "pytorch_model.bin": b"same"}
        published.put(NAME, files, f"step{step}")
    points = audited(NAME)
    assert [point.verdict for point in points[:3]] == ["pickled weights only", "pickled weights only", "ok"]
    assert points[0].content == points[1].content


def test_two_revisions_differ(published):
    """TransformerLens#453: an argument that is silently ignored would make every point the same."""
    first, *_, last = revisions_of(NAME)
    for ranges in (True, False):
        weights = [open_model(NAME, revision, ranges=ranges).layer(0).wq for revision in (first, last)]
        assert not torch.equal(*weights)


def test_a_schedule_that_a_repository_lacks(published):
    with pytest.raises(InputError, match=r"141 of the 154 steps of the schedule pythia are missing"):
        audited(NAME, "pythia")


def test_the_command(published, run, tmp_path):
    put(run, 8, run / "step4000")
    out = tmp_path / "revisions.csv"
    result = CliRunner().invoke(app, ["revisions", str(run), "--out", str(out)])
    assert (result.exit_code, result.stdout) == (0, "")
    written = pd.read_csv(out)
    assert list(written.columns) == [
        "revision", "step", "tokens", "commit", "content", "std", "distance", "verdict", "remark",
    ]  # fmt: skip
    assert list(written["step"]) == list(STEPS)
    result = CliRunner().invoke(app, ["revisions", NAME], env={"COLUMNS": "200"})
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == [f"step{step}" for step in STEPS]
    assert lines[-1] == "13 of 13 revisions are points of the run"
    result = CliRunner().invoke(app, ["revisions", NAME, "--schedule", "pythia"])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)


def test_the_static_audit_of_a_revision_fetches_operators_alone(published, run, tmp_path):
    tables = []
    for model, options in ((NAME, []), (NAME, ["--download"]), (str(run), [])):
        published.requests.clear()
        out = tmp_path / "heads.csv"
        command = ["audit", model, "--revision", "step64", "--static-only", *options, "--out", str(out)]
        assert CliRunner().invoke(app, command).exit_code == 0
        tables.append(pd.read_csv(out))
        assert tables[-1]["previous_token"].isna().all()
    by_ranges, whole, local = tables
    pd.testing.assert_frame_equal(by_ranges, whole)
    assert set(by_ranges["commit"]) == {published.refs[NAME]["step64"]}
    assert set(by_ranges["revision"]) == {"step64"}
    pd.testing.assert_frame_equal(by_ranges.drop(columns=["model", "commit"]), local.drop(columns=["model", "commit"]))

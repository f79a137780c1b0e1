"""`qkspectra train` on the command line, and its units: killed, resumed, refused."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from qkspectra.cli import app
from qkspectra.errors import InputError
from qkspectra.store import Store
from qkspectra.studies.training import ENSEMBLE, Training, condition, formations, split
from qkspectra.toy.model import ModelConfig
from qkspectra.toy.train import TrainConfig

TINY = TrainConfig(ModelConfig("rope", d_model=16, heads=2, d_head=4, length=12, vocab=8), horizon=20, cap=20, batch=4)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "qkspectra.cli", "train", *arguments]


def called(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return subprocess.run(command(*arguments), capture_output=True, text=True, env=environment, check=False)


def test_a_killed_command_resumes_without_losing_or_repeating_a_seed(tmp_path: Path) -> None:
    arguments = ["--scheme", "absolute", "--seeds", str(3 * ENSEMBLE), "--cap", "60", "--results", str(tmp_path / "r")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    finished: list[Path] = []
    while len(finished) < ENSEMBLE and process.poll() is None:
        time.sleep(0.01)
        finished = list((tmp_path / "r").glob("toy-*.json"))
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "r").glob("toy-*.json")}
    assert ENSEMBLE <= len(kept) < 3 * ENSEMBLE
    again = called(*arguments, "--out", str(tmp_path / "all.parquet"))
    assert again.returncode == 0, again.stderr
    after = list((tmp_path / "r").glob("toy-*.json"))
    assert len(after) == 3 * ENSEMBLE
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())
    table = pd.read_parquet(tmp_path / "all.parquet")
    assert sorted(table["seed"].unique()) == list(range(3 * ENSEMBLE))
    assert not table.duplicated(["seed", "step", "layer", "head"]).any()


def test_the_command_prints_a_line_a_seed_and_says_what_is_censored(tmp_path: Path) -> None:
    arguments = ["train", "--scheme", "absolute", "--seeds", "2", "--cap", "10", "--results", str(tmp_path)]
    printed = CliRunner().invoke(app, arguments)
    assert printed.exit_code == 0
    assert "accuracy 0.9 at step" in printed.stdout
    assert printed.stdout.count("> 10") == 4
    assert "diverged" not in printed.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scheme", "sinus"], "unknown position scheme 'sinus'"),
        (["--scheme", "rope", "--ban", "nothing"], "unknown ban 'nothing'"),
        (["--scheme", "alibi", "--ban", "phase"], "ban 'phase' has no meaning under alibi"),
        (["--scheme", "rope", "--seeds", "0"], "0 seeds train nothing"),
        (["--scheme", "rope", "--layer", "2"], "unknown layer '2'"),
        (["--scheme", "rope", "--cap", "15"], "multiples of every"),
        (["--scheme", "rope", "--workers", "0"], "0 workers cannot work"),
        (["--scheme", "rope", "--ensemble", "0"], "ensembles of 0 seeds train nothing"),
        (["--scheme", "rope", "--device", "tpu7"], "no device 'tpu7'"),
        (["--scheme", "rope", "--out", "table.txt"], "the suffix says the format"),
    ],
)
def test_bad_input_is_one_line_and_exit_two(tmp_path: Path, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["train", *arguments, "--results", str(tmp_path / "r")])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_a_result_of_another_configuration_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, second = Training(TINY, (0,)), Training(TrainConfig(TINY.model, horizon=20, cap=30, batch=4), (0,))
    first.run(store)
    for suffix in (".json", ".parquet"):
        shutil.copy(tmp_path / (first.address(0).key + suffix), tmp_path / (second.address(0).key + suffix))
    with pytest.raises(InputError, match=r"another configuration \(cap is 20 there and 30 here"):
        second.rest(store)


def test_processes_give_the_same_table_as_one(tmp_path: Path) -> None:
    from qkspectra.compute import run, workers

    unit = Training(TINY, (0, 1, 2))
    one, two = Store(tmp_path / "one"), Store(tmp_path / "two")
    unit.run(one)
    with workers(2) as executor:
        run(split(unit, 1), two, executor)
    # Sums of float32 in another order; the overlaps, which are large, move in proportion.
    pd.testing.assert_frame_equal(unit.table(one), unit.table(two), rtol=1e-4, atol=1e-4)
    assert unit.seconds(two) > 0


def test_only_missing_seeds_are_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    Training(TINY, (1,)).run(store)
    unit = Training(TINY, (0, 1))
    assert unit.missing(store) == [0]
    assert unit.rest(store) == Training(TINY, (0,))
    assert Training(TINY, (1,)).rest(store) is None
    with pytest.raises(KeyError, match="seed 0 has not been run"):
        unit.table(store)


def test_formations_keep_censored_and_diverged_runs(tmp_path: Path) -> None:
    store = Store(tmp_path)
    lost = TrainConfig(ModelConfig("absolute", d_model=16, heads=2, d_head=4, length=12, vocab=8, norm=False),
                       learning_rate=1e19, horizon=20, cap=20, batch=4)  # fmt: skip
    units = [Training(TINY, (0, 1), {"case": "slow"}), Training(lost, (0,), {"case": "lost"})]
    for unit in units:
        unit.run(store)
    runs = formations(units, store).set_index(["case", "seed", "threshold"])
    assert len(runs) == 6
    assert runs.loc[("slow", 0, 0.9), ["step", "censored", "diverged"]].tolist() == [20, True, False]
    assert runs.loc[("lost", 0, 0.9), ["step", "censored", "diverged"]].tolist() == [20, True, True]
    assert runs["accuracy"].isna().sum() == 2


def test_conditions_ban_the_layers_asked_for() -> None:
    assert condition("rope", "symmetric", "0").config.model.bans == ("symmetric", "none")
    assert condition("rope", "symmetric", "1").config.model.bans == ("none", "symmetric")
    unit = condition("alibi", "normal", seeds=3, d_model=32, learning_rate=1e-3)
    assert unit.config.model.bans == ("normal", "normal")
    assert (unit.config.model.d_model, unit.config.learning_rate, unit.seeds) == (32, 1e-3, (0, 1, 2))
    assert [part.seeds for part in split(unit, 2)] == [(0, 1), (2,)]

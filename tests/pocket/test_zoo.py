"""The shipped models are what their records say, and the command that makes them makes them again."""

from collections import Counter

import pytest
import torch
from tests.pocket.conftest import small
from typer.testing import CliRunner

from qkspectra import tables
from qkspectra.cli import app
from qkspectra.errors import InputError
from qkspectra.pocket import corpus, zoo
from qkspectra.pocket.cards import apart, card, measured
from qkspectra.pocket.recipe import ZOO
from qkspectra.pocket.train import STATE, Run
from qkspectra.verify import agreement
from qkspectra.weights import open_model
from qkspectra.weights.catalogue import CATALOGUE, POCKET, Shipped
from qkspectra.weights.wheels import sha256_of

SHIPPED = [entry.name for entry in CATALOGUE.values() if isinstance(entry, Shipped)]


def test_seven_models_of_three_schemes_are_shipped_in_few_bytes():
    assert list(ZOO) == SHIPPED
    assert sorted(path.name for path in POCKET.iterdir()) == sorted(SHIPPED)
    assert Counter(open_model(name).layout.scheme for name in SHIPPED) == {"rope": 3, "absolute": 2, "alibi": 2}
    assert all(open_model(name).layout.scheme == CATALOGUE[name].scheme for name in SHIPPED)
    assert sum(path.stat().st_size for path in POCKET.rglob("*")) < 16e6
    assert len({sha256_of(POCKET / name / "tokenizer.json") for name in SHIPPED}) == 1


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_model_is_what_its_record_says(name):
    folder, record = POCKET / name, zoo.record(POCKET / name)
    assert record.recipe == ZOO[name]
    assert record.package == f"{corpus.PACKAGE} {corpus.VERSION}"
    assert (record.training, record.held_out) == (corpus.TRAINING.sha256, corpus.HELD_OUT.sha256)
    assert record.tokenizer == sha256_of(folder / "tokenizer.json")
    assert record.weights == sha256_of(folder / "model.safetensors")
    assert (folder / "README.md").read_text() == card(record)
    head = record.measures.induction
    assert f"| induction | L{head.layer}H{head.head} | {head.score:.3f} |" in card(record)

    weights = open_model(name)
    assert agreement(weights, torch.float32).passed
    now, then = measured(weights), record.measures
    assert now.loss_second < now.loss_first / 2
    for part in ("previous_token", "induction"):
        assert getattr(now, part).model_dump() == pytest.approx(getattr(then, part).model_dump(), rel=1e-3)
    numbers = {"previous_token", "induction"}
    assert now.model_dump(exclude=numbers) == pytest.approx(then.model_dump(exclude=numbers), rel=1e-3)


def test_a_model_made_again_is_compared_with_the_shipped_one():
    same, other = zoo.shipped("pocket-gpt2"), zoo.shipped("pocket-opt")
    assert apart(same.measures, same.measures) == 0
    moved = same.measures.induction.model_copy(
        update={"score": same.measures.induction.score - 0.125, "head": 3, "z_eigen_rotation": 9}
    )
    changed = same.model_copy(
        update={"weights": "0", "measures": same.measures.model_copy(update={"induction": moved})}
    )
    assert apart(changed.measures, same.measures) == pytest.approx(0.125)
    shown = tables.pocket([same, changed, other], [same, same, other])
    assert list(shown.columns[-1].cells) == ["same weights", "0.125", "same weights"]


@pytest.fixture
def little(monkeypatch, texts):
    """A corpus of a few lines."""
    monkeypatch.setattr(corpus, "read", lambda text: texts)


def test_the_command_trains_all_that_is_asked_for_once(little, tmp_path, monkeypatch):
    wanted = [small("pocket-llama"), small("pocket-mpt")]
    monkeypatch.setattr(zoo, "ZOO", {recipe.name: recipe for recipe in wanted})
    run = CliRunner().invoke(app, ["pocket", str(tmp_path)])
    assert run.exit_code == 0, run.output
    assert [line.split()[0] for line in run.stdout.splitlines()[1:]] == ["pocket-llama", "pocket-mpt"]
    for name in ("pocket-llama", "pocket-mpt"):
        assert {path.name for path in (tmp_path / "models" / name).iterdir()} == {
            *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md", "recipe.json")
        }
        stored = open_model(str(tmp_path / "models" / name)).load().state_dict()
        last = open_model(str(tmp_path / "trajectory" / name), "step6").load().state_dict()
        assert all(torch.equal(stored[key], value.half().float()) for key, value in last.items())
        assert not (tmp_path / "trajectory" / name / STATE).exists()
    monkeypatch.setattr(Run, "advance", lambda run: pytest.fail("trained again"))
    again = CliRunner().invoke(app, ["pocket", str(tmp_path), "--only", "pocket-mpt"])
    assert again.exit_code == 0, again.output
    assert again.stdout.splitlines()[-1].split() == run.stdout.splitlines()[-1].split()


def test_a_model_trained_again_has_the_same_weights_and_measures(little, tmp_path):
    one, two = (zoo.make([small()], tmp_path / folder)[0] for folder in ("one", "two"))
    assert one.weights == two.weights
    assert one.measures == two.measures


def test_models_are_trained_in_processes_too(little, tmp_path):
    said = []
    [record] = zoo.make([small("pocket-gpt2")], tmp_path, 2, said.append)
    assert record.recipe.name == "pocket-gpt2"
    assert said[-1] == "pocket-gpt2 done"


def test_what_was_made_by_another_recipe_is_refused(little, tmp_path):
    zoo.make([small()], tmp_path)
    with pytest.raises(InputError, match="made by another recipe"):
        zoo.make([small(seed=1)], tmp_path)
    (tmp_path / "models" / "pocket-llama" / "recipe.json").write_text("{}")
    with pytest.raises(InputError, match="not a pocket model's record: delete"):
        zoo.make([small()], tmp_path)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--only", "pocket-falcon"], "there is no pocket model 'pocket-falcon': choose from pocket-gpt-neox,"),
        (["--workers", "0"], "0 workers cannot work"),
        ([], "the pocket corpus is the source of transformers 5.24.0 and 4.0.0 is installed: install"),
    ],
)
def test_wrong_input_is_one_line(arguments, line, tmp_path, monkeypatch):
    if not arguments:
        monkeypatch.setattr(corpus, "version", lambda _: "4.0.0")
        corpus._read.cache_clear()
    else:
        monkeypatch.setattr(corpus, "read", lambda text: pytest.fail("read"))
    run = CliRunner().invoke(app, ["pocket", str(tmp_path / "new"), *arguments])
    assert run.exit_code == 2, run.output
    assert run.stdout == ""
    assert run.stderr.startswith(f"qkspectra: {line}")
    assert len(run.stderr.splitlines()) == 1
    assert not (tmp_path / "new").exists()

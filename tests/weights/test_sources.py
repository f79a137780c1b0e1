"""What a name leads to, and what identifies it."""

import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.weights import tiny, tiny_gguf

from qkspectra.errors import InputError
from qkspectra.weights import open_model, sources
from qkspectra.weights.revisions import revisions_of


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("gpt2"), "gpt2")


def test_a_folder_is_used_as_it_is(saved, monkeypatch):
    source = sources.resolve(str(saved))
    assert (source.folder, source.gguf_file, source.revision, source.commit) == (saved, None, None, None)
    monkeypatch.chdir(saved.parent)
    assert sources.resolve(f"./{saved.name}").folder.samefile(saved)


def test_a_catalogue_name_wins_over_a_folder_of_that_name(saved, tmp_path, monkeypatch):
    shutil.copytree(saved, tmp_path / "minilm-l6")
    monkeypatch.chdir(tmp_path)
    assert open_model("minilm-l6").layout.family == "bert"
    assert open_model("./minilm-l6").layout.family == "gpt2"


def test_a_gguf_file_opens_as_the_model_it_was_made_from(tmp_path):
    model = tiny_gguf.save(tmp_path / "tiny.gguf")
    weights = open_model(str(tmp_path))
    assert weights.source.gguf_file == "tiny.gguf"
    attention = model.model.layers[1].self_attn
    assert torch.equal(weights.layer(1).wq.flatten(0, 1), attention.q_proj.weight.double())
    assert torch.equal(weights.layer(1).wk.flatten(0, 1), attention.k_proj.weight.double())
    running = weights.load(torch.float64)
    assert running.dtype == torch.float64
    assert torch.equal(running.model.layers[1].self_attn.q_proj.weight, attention.q_proj.weight.double())


def test_the_content_hash_depends_on_content_alone(saved, tmp_path):
    original = sources.resolve(str(saved)).content_hash
    copy = shutil.copytree(saved, tmp_path / "copy")
    (copy / "README.md").write_text("not part of the model")
    assert sources.resolve(str(copy)).content_hash == original
    for name in ("config.json", "model.safetensors"):
        changed = shutil.copytree(saved, tmp_path / name)
        data = (changed / name).read_bytes()
        (changed / name).write_bytes(
            data.replace(b'"n_head": 4', b'"n_head": 8') if name == "config.json" else data[:-1]
        )
        assert sources.resolve(str(changed)).content_hash != original


def test_the_content_hash_follows_a_file_that_changes_in_place(saved, tmp_path):
    copy = shutil.copytree(saved, tmp_path / "copy")
    before = sources.resolve(str(copy)).content_hash
    file = copy / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(0, 0))  # whatever the clock's resolution
    assert sources.resolve(str(copy)).content_hash != before


@pytest.mark.parametrize("name", ["someone/some\x00model", "a" * 300, "a/b/c", "-", "~no-such-user/a/b"])
def test_a_name_that_cannot_be_one_is_refused_without_asking_the_network(name, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InputError, match=r"unknown model .* and no such Hub id"):
        sources.resolve(name)


@pytest.fixture
def run(saved, tmp_path):
    """A trajectory of three copies that differ in their biases."""
    folder = tmp_path / "run"
    for step in (0, 16, 9):
        copy = shutil.copytree(saved, folder / f"step{step}")
        tensors = load_file(copy / "model.safetensors")
        save_file(
            {name: tensor + step * name.endswith("c_attn.bias") for name, tensor in tensors.items()},
            copy / "model.safetensors",
            {"format": "pt"},
        )
    (folder / "logs").mkdir()
    return folder


def test_a_trajectory_is_opened_revision_by_revision(run):
    listed = revisions_of(str(run))
    assert [(revision.name, revision.step) for revision in listed] == [("step0", 0), ("step9", 9), ("step16", 16)]
    first = open_model(str(run), "step0").layer(0).bq
    for revision in listed:
        weights = open_model(str(run), revision)
        assert torch.equal(weights.layer(0).bq, open_model(str(run), revision.name).layer(0).bq)
        assert torch.allclose(weights.layer(0).bq, first + revision.step)
        assert (weights.source.name, weights.source.revision) == (str(run), revision.name)
        assert weights.source.content_hash == sources.resolve(str(run / revision.name)).content_hash


@pytest.mark.parametrize(("revision", "asked"), [(None, "give one with --revision"), ("step7", "there is no step7")])
def test_a_trajectory_is_not_a_model(run, revision, asked):
    with pytest.raises(InputError, match=f"is a trajectory of 3 revisions, step0 to step16: {asked}"):
        open_model(str(run), revision)


def test_what_is_one_state_has_no_revisions(saved):
    with pytest.raises(InputError, match="has no revisions named by steps"):
        revisions_of(str(saved))
    with pytest.raises(InputError, match="minilm-l6 is one state of a model"):
        revisions_of("minilm-l6")

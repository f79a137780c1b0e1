"""Models from the Hub, through the real client and a small Hub on this machine."""

import errno
import os

import huggingface_hub.constants
import pytest

from ci import hub as small_hub
from qkspectra.errors import InputError
from qkspectra.weights import hub, open_model, sources
from qkspectra.weights.revisions import revisions_of

NAME = "someone/tiny-llama"


def disconnect(monkeypatch):
    small_hub.Hub.point_client("http://127.0.0.1:9", monkeypatch)  # the discard port: nothing listens


def test_one_revision_serves_configuration_and_tensors(server, folders):
    """A revision that reached only one of them would mix two models (transformers#21662)."""
    commits = [server.put(NAME, folders[0], "step0"), server.put(NAME, folders[1], "main")]
    old, new = open_model(NAME, "step0"), open_model(NAME)
    assert [old.source.commit, new.source.commit] == commits
    assert [old.source.revision, new.source.revision] == ["step0", None]
    assert [old.layout.d_model, new.layout.d_model] == [48, 64]
    assert [old.layer(0).wq.shape[-1], new.layer(0).wq.shape[-1]] == [48, 64]
    assert [old.load().config.hidden_size, new.load().config.hidden_size] == [48, 64]
    assert old.source.content_hash != new.source.content_hash
    assert old.source.content_hash == sources.resolve(str(folders[0])).content_hash


def test_only_configuration_and_safetensors_are_fetched(server, folders):
    files = {file.name: file.read_bytes() for file in folders[0].iterdir()}
    extra = ("modeling_tiny.py", "pytorch_model.bin", "onnx/model.onnx", "original/model.safetensors", "README.md")
    server.put(NAME, files | dict.fromkeys(extra, b"x"))
    source = sources.resolve(NAME)
    assert sorted(path.name for path in source.folder.rglob("*")) == ["config.json", "model.safetensors"]
    fetched = {request.rsplit("/", 1)[-1] for request in server.requests if "/resolve/" in request}
    assert fetched == {"config.json", "model.safetensors"}


def test_a_fetched_model_needs_no_network_afterwards(server, folders, monkeypatch):
    commit = server.put(NAME, folders[0])
    fetched = sources.resolve(NAME)
    disconnect(monkeypatch)
    assert sources.resolve(NAME) == fetched
    assert sources.resolve(NAME, commit).folder == fetched.folder
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert sources.resolve(NAME) == fetched


def test_a_moved_branch_is_followed(server, folders):
    server.put(NAME, folders[0])
    sources.resolve(NAME)
    commit = server.put(NAME, folders[1])
    assert sources.resolve(NAME).commit == commit


def test_an_unknown_repository_is_named(server):
    with pytest.raises(InputError, match=r"unknown model 'someone/no-such'.*no such Hub id"):
        sources.resolve("someone/no-such")


@pytest.mark.parametrize("revision", ["step7", "0" * 40])
def test_an_unknown_revision_is_named(server, folders, revision):
    server.put(NAME, folders[0])
    with pytest.raises(InputError, match=f"no revision {revision}"):
        sources.resolve(NAME, revision)


def test_a_gated_repository_says_how_to_get_in(server, folders):
    server.put(NAME, folders[0])
    server.gated.add(NAME)
    with pytest.raises(InputError, match="gated: accept its terms"):
        sources.resolve(NAME)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("pytorch_model.bin", "pickled weights only"),
        ("model.Q4_0.gguf", "GGUF files only"),
        ("adapter_model.safetensors", "no model.safetensors"),
        ("adapter_config.json", "is an adapter"),
    ],
)
def test_a_repository_without_safetensors_is_refused_before_its_weights_are_fetched(server, file, message):
    server.put(NAME, {"config.json": b'{"model_type": "llama"}', file: b"x"})
    with pytest.raises(InputError, match=message):
        sources.resolve(NAME)
    assert not any(request.endswith(file) for request in server.requests)


def test_no_network_is_one_question_and_one_line(server, monkeypatch):
    disconnect(monkeypatch)
    with pytest.raises(InputError, match=r"the Hub cannot be reached.*did you mean smollm2-135m") as caught:
        sources.resolve("smollm2-130m")
    assert "\n" not in str(caught.value)


def test_a_download_that_breaks_off_says_so_and_resumes(server, folders, monkeypatch):
    commit = server.put(NAME, folders[0])
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the client waits longer after each of its attempts
    server.faults.append(small_hub.Fault("reset", "model.safetensors"))
    with pytest.raises(InputError, match=r"broke off.*run again, it resumes") as caught:
        sources.resolve(NAME)
    assert "\n" not in str(caught.value)
    server.faults.clear()
    source = sources.resolve(NAME)
    assert (source.folder / "model.safetensors").read_bytes() == server.commits[commit]["model.safetensors"]


@pytest.mark.parametrize(
    ("kind", "file", "message"),
    [
        ("corrupt", "model.safetensors", "model.safetensors arrived damaged .*was not kept: run again"),
        ("corrupt", "config.json", "config.json arrived damaged .*was not kept: run again"),
        ("short", "model.safetensors", "arrived with the wrong length, and was not kept: run again"),
        (503, "model.safetensors", "the Hub answers 503.*: try again later"),
        (404, "model.safetensors", "the Hub answers 404.*: try again later"),
    ],
)
def test_nothing_damaged_is_kept_of_a_download(server, folders, monkeypatch, kind, file, message):
    """The client compares lengths; hashes are compared here (what the Hub lists is the file's SHA-256)."""
    commit = server.put(NAME, folders[0])
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    server.faults.append(small_hub.Fault(kind, file))
    for _ in range(2):
        with pytest.raises(InputError, match=message) as caught:
            sources.resolve(NAME)
        assert "\n" not in str(caught.value)
    server.faults.clear()
    source = sources.resolve(NAME)
    for name in ("config.json", "model.safetensors"):
        assert (source.folder / name).read_bytes() == server.commits[commit][name]


def test_a_busy_hub_is_asked_again_after_the_wait_it_calls_for(server, folders, monkeypatch):
    server.put(NAME, folders[0])
    waits = []
    monkeypatch.setattr("time.sleep", waits.append)
    server.faults.append(small_hub.Fault(429, "revision/main", times=2, headers={"Retry-After": "7"}))
    sources.resolve(NAME)
    assert waits == [8.0, 8.0]  # the client rounds up
    server.faults.append(small_hub.Fault(429, "revision/main"))
    with pytest.raises(InputError, match=r"no revision|unknown model") as caught:
        sources.resolve(NAME, "nothing")
    assert "\n" not in str(caught.value)


def test_a_hub_that_fails_without_end_is_one_line(server, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    server.faults.append(small_hub.Fault(500, "revision/main"))
    server.put(NAME, {"config.json": b"{}", "model.safetensors": b"x"})
    with pytest.raises(InputError, match=r"the Hub cannot be reached.*\(it answers 500\); check the network"):
        sources.resolve(NAME)


def test_a_revision_is_opened_at_the_commit_it_was_listed_with(server, folders):
    """A branch that moves between listing and opening would mix two models."""
    commit = server.put(NAME, folders[0], "step1")
    [listed] = revisions_of(NAME)
    moved = server.put(NAME, folders[1], "step1")
    server.refs[NAME]["old"] = commit
    assert listed.commit == commit != moved
    for ranges in (True, False):
        source = open_model(NAME, listed, ranges=ranges).source
        assert (source.revision, source.commit) == ("step1", commit)
    assert open_model(NAME, "step1").source.commit == moved


def test_branches_and_tags_are_listed_in_numeric_order(server, folders):
    for name in ("step1000", "main", "step99", "step2"):
        server.put(NAME, folders[0], name)
    server.tags.add("step99")
    assert [revision.name for revision in revisions_of(NAME)] == ["step2", "step99", "step1000"]
    with pytest.raises(InputError, match="unknown model 'someone/else'"):
        revisions_of("someone/else")


def test_a_disk_that_fills_during_a_download_is_one_line(server, folders, monkeypatch):
    server.put(NAME, folders[0])

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    with pytest.raises(InputError, match=r"No space left on device.*set HF_HOME to another folder"):
        sources.resolve(NAME)


def test_a_cache_that_lacks_the_weights_does_not_pass_for_the_model(server, folders, monkeypatch):
    """Another tool may have fetched the configuration alone."""
    files = {"config.json": (folders[0] / "config.json").read_bytes()}
    commit = server.put(NAME, files | {"model.safetensors": b"x"})
    huggingface_hub.hf_hub_download(NAME, "config.json", revision=commit)
    disconnect(monkeypatch)
    with pytest.raises(hub.UnreachableError):
        hub.fetch(NAME, commit)


def test_a_tokenizer_is_fetched_by_itself(server, folders, monkeypatch):
    without = server.put(NAME, folders[0], "step0")
    files = {file.name: file.read_bytes() for file in folders[0].iterdir()}
    commit = server.put(NAME, files | {"tokenizer.json": b"{}"})
    folder = sources.resolve(NAME).folder
    assert hub.tokenizer(NAME, commit) == folder / "tokenizer.json"
    with pytest.raises(InputError, match=r"has no tokenizer\.json"):
        hub.tokenizer(NAME, without)
    disconnect(monkeypatch)
    assert hub.tokenizer(NAME, commit).read_bytes() == b"{}"
    with pytest.raises(InputError, match="tokenizer of someone/tiny-llama is not in the cache"):
        hub.tokenizer(NAME, without[::-1])

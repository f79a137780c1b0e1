"""Checkpoints on a Hub on this machine: bytes fetched, time against loading each, and memory.

Models of four layers with d_model 128 and about a million parameters in float32, one for each of Pythia's 154 steps.
The Hub is in this process; whatever is measured runs in a fresh one, its imports not counted.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from benchmarks.row import Row
from ci.hub import Hub, serving
from qkspectra.weights.schedules import schedule

# Steps of a model, measured by ranges or loaded whole; prints seconds and the high-water mark of its memory.
CLIENT = """
import sys, time
from pathlib import Path
import torch, transformers
from transformers import AutoModelForCausalLM
from qkspectra.studies.audit import audit
from qkspectra.weights import open_model
from qkspectra.weights.revisions import revisions_of
torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()
how, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
start = time.perf_counter()
for revision in revisions_of(name)[:count]:
    if how == "ranges":
        audit(open_model(name, revision, ranges=True), static_only=True)
    else:
        AutoModelForCausalLM.from_pretrained(name, revision=revision.name)
seconds = time.perf_counter() - start
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(seconds, int(peak.split()[1]) * 1024)
"""


def _client(hub: Hub, how: str, name: str, count: int) -> tuple[float, float]:
    """Seconds and bytes of memory of a client with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": cache, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        command = [sys.executable, "-c", CLIENT, how, name, str(count)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    seconds, peak = map(float, done.stdout.split()[-2:])
    return seconds, peak


def _publish(hub: Hub, name: str, model: PreTrainedModel, steps: tuple[int, ...]) -> int:
    """Puts a model on the Hub, a little different at each step; returns the bytes of what queries and keys lie in."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config, tensors = Path(folder, "config.json").read_bytes(), load_file(Path(folder, "model.safetensors"))
    for step in steps:
        moved = {key: tensor * (1 + 1e-6 * step) for key, tensor in tensors.items()}
        hub.put(name, {"config.json": config, "model.safetensors": save(moved, {"format": "pt"})}, f"step{step}")
    parts = ("q_proj", "k_proj", "query_key_value")
    return sum(tensor.nbytes for key, tensor in tensors.items() if any(part in key for part in parts))


def rows() -> list[Row]:
    torch.manual_seed(0)
    sizes = {"vocab_size": 1024, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
    llama = LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=352, max_position_embeddings=256))
    neox = GPTNeoXForCausalLM(GPTNeoXConfig(**sizes, intermediate_size=512, max_position_embeddings=256))
    steps = schedule("pythia").steps
    with serving() as hub:
        result = []
        for name, model, what in (("bench/llama", llama, "q and k tensors"), ("bench/neox", neox, "fused QKV tensors")):
            needed = _publish(hub, name, model, steps if model is llama else steps[:1])
            hub.sent.clear()
            _client(hub, "ranges", name, 1)
            ratio = hub.sent["model.safetensors"] / needed
            result.append(Row("bytes fetched over needed", ratio, 1.02, "x", f"{what}; header and norms included"))
        ranges, _ = _client(hub, "ranges", "bench/llama", len(steps))
        whole, _ = _client(hub, "whole", "bench/llama", len(steps))
        few, many = (_client(hub, "ranges", "bench/llama", count)[1] for count in (15, 150))
    note = f"{len(steps)} revisions over loopback, one core and one thread each side"
    return [
        *result,
        Row("revisions measured by ranges", ranges, None, "s", f"audit --static-only; {note}"),
        Row("… over loading each", ranges / whole, 0.2, "x", "from_pretrained, nothing measured"),
        Row("peak memory of 150 over 15", many / few, 1.05, "x", f"{many / 1e6:.0f} MB, the whole process"),
    ]

"""Peak memory and time of `qkspectra audit --static-only` on a model of 2 GB that lies on disk, imports included."""

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.row import Row

LAYERS, D_MODEL, HEADS, KV_HEADS, D_HEAD, MLP, VOCAB = 16, 2048, 32, 8, 64, 8192, 32000

# The kernel's high-water mark of the process itself: `ru_maxrss` would start from that of the process that forks it.
AUDIT = """
import sys
from pathlib import Path
from qkspectra.cli import app
try:
    app(["audit", sys.argv[1], "--static-only", "--out", sys.argv[2]])
finally:
    print(Path("/proc/self/status").read_text())
"""


def write_model(folder: Path) -> int:
    """A Llama of random bfloat16 weights, one shard for each layer, never in memory as a whole; returns its bytes."""
    layer = {
        "self_attn.q_proj": (HEADS * D_HEAD, D_MODEL),
        "self_attn.k_proj": (KV_HEADS * D_HEAD, D_MODEL),
        "self_attn.v_proj": (KV_HEADS * D_HEAD, D_MODEL),
        "self_attn.o_proj": (D_MODEL, HEADS * D_HEAD),
        "mlp.gate_proj": (MLP, D_MODEL),
        "mlp.up_proj": (MLP, D_MODEL),
        "mlp.down_proj": (D_MODEL, MLP),
        "input_layernorm": (D_MODEL,),
        "post_attention_layernorm": (D_MODEL,),
    }
    shards = [{f"model.layers.{i}.{name}": shape for name, shape in layer.items()} for i in range(LAYERS)]
    shards.append({"model.embed_tokens": (VOCAB, D_MODEL), "model.norm": (D_MODEL,)})
    places, size = {}, 0
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = {f"{n}.weight": torch.empty(s, dtype=torch.bfloat16).normal_(std=0.02) for n, s in shard.items()}
        save_file(tensors, folder / file, {"format": "pt"})
        places |= dict.fromkeys(tensors, file)
        size += (folder / file).stat().st_size
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": D_MODEL, "head_dim": D_HEAD,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "intermediate_size": MLP, "vocab_size": VOCAB, "tie_word_embeddings": True, "rope_theta": 500000.0,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return size


def rows() -> list[Row]:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        size = write_model(folder)
        start = time.perf_counter()
        command = [sys.executable, "-c", AUDIT, str(folder), str(folder / "heads.csv")]
        status = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        seconds = time.perf_counter() - start
        heads = len((folder / "heads.csv").read_text().splitlines()) - 1
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
    note = f"audit --static-only, {heads} heads of a model of {size / 1e9:.2f} GB"
    return [
        Row("peak memory", peak / 1e6, 700, "MB", f"{note}; the whole process"),
        Row("… and time", seconds, None, "s", "imports included"),
    ]

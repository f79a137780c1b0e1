"""The toy laboratory's training step against its own matrix products, its peers, and a second process.

One core unless said otherwise. The floor replays exactly the matrix products that one step dispatches, forward and
backward, on operands of the same shapes and strides.
"""

import math
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.row import Row, best_times
from qkspectra.studies.training import ENSEMBLE
from qkspectra.threads import threads
from qkspectra.toy.model import ModelConfig, unflatten
from qkspectra.toy.train import Ensemble, TrainConfig

PRODUCTS = {torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm, torch.ops.aten.baddbmm}
STEPS = 20


class _Recorder(TorchDispatchMode):
    """Collects every matrix product as a call on fresh operands."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], object]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in PRODUCTS:
            # The two operands of the product alone: what it is added to is not the product's time.
            left, right = (torch.empty_strided(a.shape, a.stride(), dtype=a.dtype).normal_() for a in args[-2:])
            product = torch.ops.aten.bmm if left.ndim == 3 else torch.ops.aten.mm
            out = product(left, right)
            self.calls.append(lambda: product.out(left, right, out=out))
        return func(*args, **(kwargs or {}))


def products(step: Callable[[], object]) -> Callable[[], None]:
    """A function that runs the matrix products of `step` and nothing else."""
    with _Recorder() as recorder:
        step()

    def replay() -> None:
        for call in recorder.calls:
            call()

    return replay


def _ours(scheme: str, ban: str = "none", seeds: int = ENSEMBLE) -> Ensemble:
    return Ensemble(TrainConfig(ModelConfig(scheme, (ban, ban))), range(seeds), "cpu")


def _vmapped(config: TrainConfig) -> Callable[[], None]:
    """One `torch.vmap` ensemble of the same absolute model, seeds, batch and optimiser, written for one seed."""
    model, seeds = config.model, ENSEMBLE
    theta = _ours("absolute").theta.requires_grad_()
    optimiser = torch.optim.AdamW([theta], config.learning_rate, (config.beta1, config.beta2), fused=True)
    tokens, targets = _data(config, seeds)
    mask = torch.full((model.length, model.length), -torch.inf).triu(1)

    def loss(row: Tensor, tokens: Tensor, targets: Tensor) -> Tensor:
        p = {name: value[0] for name, value in unflatten(model, row[None]).items()}
        h = p["embed"][tokens] + p["position"]
        for layer in range(2):
            x = F.layer_norm(h, h.shape[-1:])
            q, k, v = (torch.einsum("bld,hnd->bhln", x, p[f"{layer}.{n}"]) for n in ("wq", "wk", "wv"))
            pattern = (q @ k.mT / model.d_head**0.5 + mask).softmax(-1)
            h = h + (pattern @ v).transpose(1, 2).flatten(2) @ p[f"{layer}.wo"].T
        logits = F.layer_norm(h, h.shape[-1:]) @ p["unembed"].T
        picked = logits.log_softmax(-1).gather(-1, targets.clamp_min(0)[..., None])[..., 0]
        scored = targets >= 0
        return -(picked * scored).sum() / scored.sum()

    per_seed = torch.vmap(torch.func.grad(loss))

    def step() -> None:
        theta.grad = per_seed(theta.detach(), tokens, targets)
        optimiser.step()

    return step


def _data(config: TrainConfig, seeds: int) -> tuple[Tensor, Tensor]:
    from qkspectra.toy.task import DATA, generator, repeats

    batch = repeats([generator(s, DATA) for s in range(seeds)], config.batch, config.model.length, config.model.vocab)
    return batch.tokens, batch.targets


def _transformer_lens(config: TrainConfig) -> Callable[[], None] | None:
    """The same absolute model in TransformerLens, one seed: attention only, its own loss, AdamW."""
    try:
        from transformer_lens.config import TransformerBridgeConfig
        from transformer_lens.model_bridge.sources.native import boot
    except ImportError:
        return None
    m = config.model
    model = boot(
        TransformerBridgeConfig(
            n_layers=len(m.bans),
            d_model=m.d_model,
            d_head=m.d_head,
            n_heads=m.heads,
            n_ctx=m.length,
            d_vocab=m.vocab,
            attn_only=True,
            normalization_type="LNPre",
            positional_embedding_type="standard",
            seed=0,
        )
    )
    optimiser = torch.optim.AdamW(model.parameters(), config.learning_rate, (config.beta1, config.beta2), fused=True)
    tokens, targets = _data(config, 1)

    def step() -> None:
        logits = model(tokens[0], return_type="logits")
        loss = F.cross_entropy(logits.flatten(0, 1), targets[0].flatten(), ignore_index=-100)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step


def _steps(start: float) -> float:
    """Steps of one seed ensemble in the six seconds from `start`, a common moment, in this process alone."""
    torch.set_num_threads(1)
    ensemble = _ours("rope")
    ensemble.step()
    time.sleep(max(0.0, start - time.time()))
    done, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < 6:
        ensemble.step()
        done += 1
    return done / (time.perf_counter() - begun)


def _scaling() -> float:
    """Steps a second of two processes together over those of one."""
    rates = {}
    for workers in (1, 2):
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            start = time.time() + 15  # after the slowest import
            rates[workers] = sum(pool.map(_steps, [start] * workers))
    return rates[2] / rates[1]


def rows() -> list[Row]:
    config = TrainConfig(ModelConfig("absolute"))
    tokens = config.batch * config.model.length
    result = []
    with threads(1):
        for scheme, ban in (("absolute", "none"), ("rope", "none"), ("rope", "symmetric")):
            ensemble = _ours(scheme, ban)
            seconds = best_times({"step": ensemble.step, "products": products(ensemble.step)}, STEPS)
            note = f"{scheme}, {ban}; {ENSEMBLE} seeds at once"
            result.append(Row("training step over its products", seconds["step"] / seconds["products"], 1.6, "x", note))
        peers: dict[str, Callable[[], object]] = {"ours": _ours("absolute").step, "vmap": _vmapped(config)}
        lens = _transformer_lens(config)
        if lens is None:
            print("TransformerLens is missing: pip install --no-deps -r benchmarks/requirements.txt", file=sys.stderr)
        else:
            peers["lens"] = lens
        seconds = best_times(peers, STEPS)
    speed = {name: tokens * (1 if name == "lens" else ENSEMBLE) / time for name, time in seconds.items()}
    speed.setdefault("lens", math.nan)
    result += [
        Row("training", speed["ours"], None, "tokens/s", f"absolute, none; {ENSEMBLE} seeds at once"),
        Row("… one torch.vmap ensemble", speed["vmap"], None, "tokens/s", "the same seeds, data drawn beforehand"),
        Row("… its time over ours, inverted", speed["vmap"] / speed["ours"], 1.0, "x", "torch.vmap"),
    ]
    if lens is None:
        result.append(Row("… TransformerLens", None, None, "tokens/s", "not installed"))
    else:
        result += [
            Row("… TransformerLens", speed["lens"], None, "tokens/s", "one seed, data drawn beforehand"),
            Row("… its speed over ours", speed["lens"] / speed["ours"], 1.0, "x", "TransformerLens"),
        ]
    # Limits are upper ones: two processes at least 1.8 times one.
    result.append(Row("one process over two", 1 / _scaling(), 1 / 1.8, "x", "steps a second, one thread each"))
    return result

"""The static audit of one model: one row a head, what it does beside what its operator looks like."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int64
from torch import Tensor, nn

from qkspectra.behaviour import CHUNK, Behaviour, behaviour, random_repeats, special_tokens
from qkspectra.errors import InputError
from qkspectra.intervene import ablated, check
from qkspectra.null import null_samples, z_scores
from qkspectra.operators import operator_of
from qkspectra.resume import kept, resumed
from qkspectra.spectrum import MEASURES, Spectrum, measure
from qkspectra.weights.model import Weights

COLUMNS = (
    *("model", "revision", "commit", "scheme", "layer", "head", "kv_head", "d_model", "d_head", "d_rot", "convention"),
    *("previous_token", "induction", "duplicate_token"),
    *("antisymmetric_energy", "eigen_rotation", "content_sign", "real_eigenvalues", "henrici", "spectral_radius"),
    *("overlap_median", "z_antisymmetric_energy", "z_eigen_rotation", "z_henrici"),
    *("phase_energy", "phase_symmetric_share", "bias_norm"),
)
"""Columns of an audit, in order."""

LENGTH, BATCH, NULL_SAMPLES = 64, 16, 512
"""Tokens in one copy, sequences, and heads of the null, unless the caller says otherwise."""

TOP = 8
"""Heads that stand for a model's induction."""

Say = Callable[[str], None]


def _silent(_: str) -> None:
    pass


def audit(
    weights: Weights,
    *,
    seed: int = 0,
    static_only: bool = False,
    convention: str = "raw",
    bos: int | None = None,
    batch: int = BATCH,
    length: int = LENGTH,
    samples: int = NULL_SAMPLES,
    also: Mapping[str, Callable[[Spectrum], Tensor]] = MappingProxyType({}),
    say: Say = _silent,
) -> pd.DataFrame:
    """Every head's behaviour and spectrum, one row each, columns `COLUMNS`; what has no meaning for a model is missing.

    Args:
        weights: from `open_model`.
        seed: of the random sequences and of the null.
        static_only: leave the behaviour columns empty and the model unloaded: only query and key tensors are read, one
            layer at a time.
        convention: of the operator, see `operators.operator_of`; the column also declares what an architecture imposes.
        bos: token in front of each sequence, `None` for none.
        batch, length: sequences, and tokens in one of their two copies (see `repeats`).
        samples: heads of the factored Gaussian null, rounded up to whole groups of heads that share keys.
        also: more columns, behind the others: a value a head from the spectra of a layer.
        say: told, in a few words, what is being done.

    Raises:
        InputError: see `operators.operator_of`, `behaviour.behaviour` and `Weights.load`.
    """
    layout = weights.layout
    layers = []
    for index in range(layout.n_layers):
        say(f"spectra of layer {index + 1} of {layout.n_layers}")
        layers.append(_spectra(weights, index, seed, convention, samples, also))
    # One table in the end: tables of layers, put together, cost more than the spectra of a small model.
    columns: dict[str, Any] = {name: np.concatenate([layer[name] for layer in layers]) for name in layers[0]}
    if static_only:
        columns |= dict.fromkeys(("previous_token", "induction", "duplicate_token"), float("nan"))
    else:
        say("loading the model")
        model = weights.load()
        say(f"running it on {batch} sequences")
        tokens = repeats(weights, seed=seed, bos=bos, batch=batch, length=length)
        seen = behaviour(model, weights.attention_modules(model), tokens)
        for name in ("previous_token", "induction", "duplicate_token"):
            columns[name] = getattr(seen, name).flatten().numpy()
    columns |= _about(weights, len(columns["head"]))
    return pd.DataFrame({name: columns[name] for name in (*COLUMNS, *also)})


def repeats(
    weights: Weights, *, seed: int = 0, bos: int | None = None, batch: int = BATCH, length: int = LENGTH
) -> Int64[Tensor, "batch position"]:
    """Repeated sequences of ordinary tokens; copies shrink to what the model's positions and vocabulary allow."""
    layout, reserved = weights.layout, special_tokens(weights.config)
    room = layout.max_positions or 2 * length
    fitting = min(length, (room - (bos is not None)) // 2, layout.vocab - len(reserved) - 1)
    return random_repeats(layout, batch, fitting, seed, bos, reserved)


def ablations(
    weights: Weights,
    heads: Sequence[tuple[int, int]],
    channels: Sequence[str],
    *,
    seed: int = 0,
    bos: int | None = None,
    batch: int = BATCH,
    length: int = LENGTH,
    say: Say = _silent,
) -> pd.DataFrame:
    """What becomes of a model that loses one channel of one head, for each of `heads` and each of `channels`.

    Args:
        weights: from `open_model`.
        heads: pairs `(layer, head)`.
        channels: what to remove, see `intervene.ablated`.
        seed, bos, batch, length: of the sequences, see `repeats`.
        say: told, in a few words, what is being done.

    Returns:
        See `effects`.

    Raises:
        InputError: no such layer, head or channel, or the phase of a model without rotary positions.
    """
    layout = weights.layout
    for index, head in heads:
        if not 0 <= index < layout.n_layers:
            raise InputError(f"{weights.source.name} has no layer {index}: its layers are 0 to {layout.n_layers - 1}")
        for channel in channels:
            check(weights.layer(index), [head], channel)
    say("loading the model")
    model = weights.load()
    tokens = repeats(weights, seed=seed, bos=bos, batch=batch, length=length)
    return effects(weights, model, tokens, heads, channels, say=say)


def effects(
    weights: Weights,
    model: nn.Module,
    tokens: Int64[Tensor, "batch position"],
    heads: Sequence[tuple[int, int]],
    channels: Sequence[str],
    *,
    matchers: Sequence[tuple[int, int]] | None = None,
    say: Say = _silent,
) -> pd.DataFrame:
    """The same as `ablations`, of a model that is loaded, on any sequences of two equal copies.

    Args:
        weights: from `open_model`.
        model: from `weights.load`.
        tokens: see `behaviour.behaviour`.
        heads: pairs `(layer, head)`.
        channels: what to remove, see `intervene.ablated`.
        matchers: heads that stand for the model's induction; by default the `TOP` with the highest induction scores on
            these sequences, before any ablation.
        say: told, in a few words, what is being done.

    Returns:
        One row per head and channel: `layer`, `head`, `channel`, and before and after the ablation (suffixes `_before`,
        `_after`) `previous_token` of that head, `induction`, the mean over `matchers`, and `loss_second`, `loss_first`
        in nats (missing where the model predicts no next token).
    """
    modules, blocks = weights.attention_modules(model), weights.blocks(model)
    whole: list[Behaviour] = []
    without: dict[tuple[int, int, str], list[Behaviour]] = {
        (index, head, channel): [] for index, head in heads for channel in channels
    }
    parts = tokens.split(CHUNK)
    for number, part in enumerate(parts, 1):
        which = f"sequences {CHUNK * (number - 1) + 1} to {min(CHUNK * number, len(tokens))} of {len(tokens)}"
        say(f"running it on {which}")
        with kept(blocks, {index for index, _ in heads}) as outputs:
            whole.append(behaviour(model, modules, part))
        for (index, head, channel), seen in without.items():
            say(f"running it without the {channel} channel of L{index}H{head} on {which}")
            with ablated(modules, weights.layer(index), [head], channel), resumed(blocks, index, outputs):
                seen.append(behaviour(model, modules, part, below=whole[-1]))
    sizes = [len(part) for part in parts]
    before = Behaviour.mean(whole, sizes)
    if matchers is None:
        flat = before.induction.flatten().topk(min(TOP, before.induction.numel())).indices
    else:
        flat = torch.tensor([index * weights.layout.n_heads + head for index, head in matchers])

    rows = []
    for (index, head, channel), seen in without.items():
        row: dict[str, int | str | float] = {"layer": index, "head": head, "channel": channel}
        for suffix, state in (("before", before), ("after", Behaviour.mean(seen, sizes))):
            row |= {
                f"previous_token_{suffix}": state.previous_token[index, head].item(),
                f"induction_{suffix}": state.induction.flatten()[flat].mean().item(),
                f"loss_second_{suffix}": state.loss_second,
                f"loss_first_{suffix}": state.loss_first,
            }
        rows.append(row)
    return pd.DataFrame(rows)


def offsets(
    weights: Weights,
    heads: Sequence[tuple[int, int]],
    without: tuple[int, int, str] | None = None,
    *,
    seed: int = 0,
    bos: int | None = None,
    batch: int = BATCH,
    length: int = LENGTH,
    say: Say = _silent,
) -> pd.DataFrame:
    """How far back heads look in the second copy, in the whole model or in one that lost a channel of one head.

    Args:
        weights: from `open_model`.
        heads: pairs `(layer, head)` to report.
        without: `(layer, head, channel)` to remove, see `intervene.ablated`; `None` for the whole model.
        seed, bos, batch, length: of the sequences, see `repeats`.
        say: told, in a few words, what is being done.

    Returns:
        One row per head and offset from 0 to the length of a copy: `layer`, `head`, `offset`, and `attention`, the mean
        over batch and second-copy rows of the pattern that many positions back.
    """
    say("loading the model")
    model = weights.load()
    modules = weights.attention_modules(model)
    tokens = repeats(weights, seed=seed, bos=bos, batch=batch, length=length)
    say(f"running it on {batch} sequences")
    with ExitStack() as stack:
        if without is not None:
            index, head, channel = without
            stack.enter_context(ablated(modules, weights.layer(index), [head], channel))
        seen = behaviour(model, modules, tokens).by_offset
    parts = [
        pd.DataFrame({"layer": index, "head": head, "offset": range(seen.shape[-1]), "attention": seen[index, head]})
        for index, head in heads
    ]
    return pd.concat(parts, ignore_index=True)


def _spectra(
    weights: Weights,
    index: int,
    seed: int,
    convention: str,
    samples: int,
    also: Mapping[str, Callable[[Spectrum], Tensor]],
) -> dict[str, np.ndarray]:
    """The static columns of one layer. On return its tensors are gone, before those of the next one are read."""
    group = weights.layout.n_heads // weights.layout.n_kv_heads
    layer = weights.layer(index)
    op = operator_of(layer, convention)
    spectrum = measure(op)
    null = null_samples(*op.wq.shape[1:], -(-samples // group) * group, seed, op.rotary, group)
    scores = {f"z_{name}": values.numpy() for name, values in z_scores(spectrum, null).items()}
    heads = weights.layout.n_heads
    columns = {
        "layer": np.full(heads, index),
        "head": np.arange(heads),
        "kv_head": layer.kv_head.numpy(),
        "convention": np.full(heads, op.convention, dtype=object),
    }
    more = {name: value(spectrum).numpy() for name, value in also.items()}
    return columns | _of_heads(spectrum) | scores | more


def _of_heads(spectrum: Spectrum) -> dict[str, Any]:
    return {name: getattr(spectrum, name).numpy() for name in MEASURES}


def _about(weights: Weights, rows: int) -> dict[str, Any]:
    source, layout = weights.source, weights.layout
    rotated = layout.d_rot if layout.scheme == "rope" else pd.NA
    return {
        "model": source.name,
        # Typed as they are made: a table converted afterwards costs as much as the spectra of a small model.
        "revision": pd.array([source.revision] * rows, dtype="str"),
        "commit": pd.array([source.commit] * rows, dtype="str"),
        "scheme": layout.scheme,
        "d_model": layout.d_model,
        "d_head": layout.d_head,
        "d_rot": pd.array([rotated] * rows, dtype="Int64"),
    }

"""The panel of seven models: what each shows by itself, one unit of work a model and study.

    units = pieces(PANELS["pocket"], seed=0, batch=32, length=64, samples=400, controls=8)
    compute.run(units, store)
    heads, phases = collected(units, store)

What the models say together is left to `studies.separation`.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from qkspectra.behaviour import Behaviour, behaviour, mean_diagonal, previous_token
from qkspectra.device import chosen, described
from qkspectra.errors import InputError
from qkspectra.operators import applicable
from qkspectra.pocket import corpus
from qkspectra.scores import position_alone
from qkspectra.store import Address, Store, source_hash
from qkspectra.studies.audit import TOP, audit, effects, repeats
from qkspectra.studies.static import SOURCES, Heads, null_of
from qkspectra.weights import hub, open_model
from qkspectra.weights.model import Weights
from qkspectra.weights.panels import Member, Panel

CONVENTIONS = ("raw", "norm_folded", "centred", "bias_augmented", "norm_folded+centred+bias_augmented")
"""Conventions under which the panel is compared; a model takes the steps that it has (`operators.applicable`)."""

SCORES = ("previous_token", "induction", "duplicate_token")


def panel_heads(weights: Weights, *, seed: int, batch: int, length: int, samples: int) -> pd.DataFrame:
    """Every head of a model under every convention, one row each.

    Args:
        weights: from `open_model`.
        seed: of the sequences and of the null.
        batch: sequences of repeated random tokens, an even number, and as many of held-out text.
        length: tokens in one of the two copies; half a sequence of text.
        samples: heads of the null.

    Returns:
        The columns of an audit, of which `convention` is the one that the model allows of the one in `under`;
        `previous_token_first` and `previous_token_second`, the score on each half of the random sequences, of which
        `previous_token` is the mean; `previous_token_text`, the score on held-out text; `previous_token_alone`, that of
        the head without an operator (`scores.position_alone`), and `previous_token_learned`, the score above it; and
        `null_low`, `null_median`, `null_high`, the central 95 % of the null's eigen-rotation and its median.
    """
    model = weights.load()
    modules = weights.attention_modules(model)
    tokens = repeats(weights, seed=seed, batch=batch, length=length)
    halves = [behaviour(model, modules, half) for half in tokens.chunk(2)]
    text = corpus.held_out(batch, tokens.shape[1], seed, _tokenizer(weights))
    columns = {name: sum(getattr(half, name) for half in halves) / 2 for name in SCORES} | {
        "previous_token_first": halves[0].previous_token,
        "previous_token_second": halves[1].previous_token,
        "previous_token_text": previous_token(model, modules, text),
        "previous_token_alone": _alone(weights, tokens.shape[1]),
    }
    scores = pd.DataFrame({name: values.flatten().numpy() for name, values in columns.items()})
    scores["previous_token_learned"] = scores["previous_token"] - scores["previous_token_alone"]
    null = null_of(weights, samples, seed).eigen_rotation.numpy()
    scores[["null_low", "null_median", "null_high"]] = np.quantile(null, [0.025, 0.5, 0.975])
    mine = {convention: applicable(weights.layer(0), convention) for convention in CONVENTIONS}
    audits = {  # several conventions may come to one
        each: audit(weights, seed=seed, static_only=True, convention=each, samples=samples).drop(columns=list(SCORES))
        for each in dict.fromkeys(mine.values())
    }
    return pd.concat(
        [audits[mine[convention]].join(scores).assign(under=convention) for convention in CONVENTIONS],
        ignore_index=True,
    )


def phase_zeroing(weights: Weights, *, seed: int, batch: int, length: int, controls: int) -> pd.DataFrame:
    """What zeroing the phase of a previous-token head does: chosen on one half of sequences, measured on the other.

    The strongest previous-token head, and the heads that stand for induction (an eighth of all, from 1 to 8), are those
    of the first half of the random sequences. What the ablation does is measured on the second half, and on as many
    repeated spans of held-out text. Control heads are drawn at random from all others.

    Args:
        weights: from `open_model`, of a model with rotary positions.
        seed: of the sequences and of the controls.
        batch, length: as in `panel_heads`.
        controls: heads to draw, or all others where there are fewer.

    Returns:
        The columns of `studies.audit.effects`, one row per kind of sequence and head, `sequences` (`random` or `text`)
        and `role` (`chosen` or `control`).
    """
    model = weights.load()
    first, second = repeats(weights, seed=seed, batch=batch, length=length).chunk(2)
    chosen, matchers = _identified(behaviour(model, weights.attention_modules(model), first))
    everyone = list(np.ndindex(weights.layout.n_layers, weights.layout.n_heads))
    others = [head for head in everyone if head != chosen]
    drawn = np.random.default_rng(seed).choice(len(others), min(controls, len(others)), replace=False)
    heads = [chosen, *(others[i] for i in sorted(drawn))]
    span = corpus.held_out(len(second), second.shape[1] // 2, seed, _tokenizer(weights))
    parts = []
    for name, tokens in {"random": second, "text": torch.cat([span, span], 1)}.items():
        table = effects(weights, model, tokens, heads, ["phase"], matchers=matchers)
        roles = ["chosen", *["control"] * len(drawn)]
        parts.append(table.assign(sequences=name, role=roles))
    return pd.concat(parts, ignore_index=True)


def _identified(seen: Behaviour) -> tuple[tuple[int, int], Heads]:
    """The strongest previous-token head and the strongest induction heads."""
    heads = seen.induction.shape[1]
    count = min(max(seen.induction.numel() // 8, 1), TOP)
    matchers = [divmod(flat, heads) for flat in seen.induction.flatten().topk(count).indices.tolist()]
    return divmod(int(seen.previous_token.argmax()), heads), matchers


def _tokenizer(weights: Weights) -> Path:
    source = weights.source
    path = source.folder / "tokenizer.json"
    if path.is_file():
        return path
    if source.commit is None:
        raise InputError(f"{source.name} comes without tokenizer.json: text cannot be put before it")
    return hub.tokenizer(source.name, source.commit)


def _alone(weights: Weights, length: int) -> Tensor:
    layers = [weights.layer(index) for index in range(weights.layout.n_layers)]
    return torch.stack([mean_diagonal(position_alone(layer, length)[None], 1) for layer in layers])


@dataclass(frozen=True)
class Piece:
    """One study of one member of a panel: a unit of work (see `compute.Unit`).

    Attributes:
        member: the model.
        study: what to compute.
        parameters: of the study.
    """

    member: Member
    study: Callable[..., pd.DataFrame]
    parameters: dict[str, Any] = field(hash=False)

    @property
    def label(self) -> str:
        return f"{self.member.title}, {self.study.__name__.replace('_', ' ')}"

    def open(self, *, ranges: bool = False) -> Weights:
        """The model, see `open_model`.

        Raises:
            InputError: see there; a model whose positions are not what the panel says.
        """
        weights = open_model(self.member.name, self.member.revision, ranges=ranges)
        if weights.layout.scheme != self.member.scheme:
            raise InputError(
                f"{self.member.name} has {weights.layout.scheme} positions, its panel says {self.member.scheme}:"
                " correct the panel"
            )
        return weights

    @cached_property
    def _content(self) -> str:
        """Hash of the weights; nothing is fetched but what states it."""
        return self.open(ranges=True).source.content_hash

    def address(self) -> Address:
        """Content of the weights, parameters, text of the code."""
        about = {"content": self._content, "text": corpus.HELD_OUT.sha256, **self.parameters}
        return Address(self.study.__name__, about, source_hash(*SOURCES, corpus, sys.modules[__name__]))

    def rest(self, store: Store) -> "Piece | None":
        return self if store.get(self.address()) is None else None

    def run(self, store: Store) -> None:
        def compute() -> pd.DataFrame:
            return self.study(self.open(), **self.parameters)

        store.cached(self.address(), compute, seeds=[self.parameters["seed"]], device=described(chosen()))


def pieces(panel: Panel, *, seed: int, batch: int, length: int, samples: int, controls: int) -> list[Piece]:
    """Every unit of a panel: the heads of every member, and the zeroed phases of the rotary ones."""
    sequences = {"seed": seed, "batch": batch, "length": length}
    heads = [Piece(member, panel_heads, sequences | {"samples": samples}) for member in panel.members]
    rotary = [member for member in panel.members if member.scheme == "rope"]
    return [*heads, *(Piece(member, phase_zeroing, sequences | {"controls": controls}) for member in rotary)]


def collected(units: Sequence[Piece], store: Store) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables of `panel_heads` and of `phase_zeroing`, of all models in one each; `model` is the member's title."""
    tables: dict[Callable[..., pd.DataFrame], list[pd.DataFrame]] = {panel_heads: [], phase_zeroing: []}
    for unit in units:
        result = store.get(unit.address())
        if result is None:
            raise InputError(f"the store lacks {unit.label}: run the panel first")
        tables[unit.study].append(result.table.assign(model=unit.member.title, scheme=unit.member.scheme))
    heads, phases = (pd.concat(parts, ignore_index=True) for parts in tables.values())
    return heads, phases

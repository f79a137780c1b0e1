"""What the readers of all families share: a family's entry, the tensors of one layer, sizes and norms."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from qkspectra.errors import InputError
from qkspectra.weights.layout import LayerQK, ModelLayout, Norm
from qkspectra.weights.reader import Tensors

# Values, output projections, and buffers that older versions of Transformers saved.
_VALUE_SIDE = re.compile(
    r"((v|o|out|c)_proj|value|dense|output\.dense)\.(weight|bias)|bias|masked_bias|causal_mask|(\w+\.)?inv_freq"
)

BASE = ("rope_theta",)
"""How a `config.json` states the base of the rotary frequencies."""

PARTIAL = ("partial_rotary_factor",)
"""How it states the rotated share of each head."""

Config = Any
"""A Transformers configuration."""


@dataclass(frozen=True)
class Family:
    """How one architecture stores its attention.

    Attributes:
        base: attribute of a head model that holds the base model, also the prefix of its tensors in a file.
        blocks: path of the layers inside the base model.
        attention: path of the attention module inside a layer; its input is `x`, and it calls softmax.
        layout: sizes and position scheme, from the configuration alone.
        read: the layer's queries and keys.
        options: names of configuration entries about attention or positions that `layout` and `read` honour.
        stated: what `config.json` has to say itself, each in one of several spellings (`a.b` inside `rope_parameters`),
            since the default that would be put in its place changes the scores.
    """

    base: str
    blocks: str
    attention: str
    layout: Callable[[Config], ModelLayout]
    read: Callable[[Config, ModelLayout, "LayerTensors"], LayerQK]
    options: frozenset[str] = frozenset()
    stated: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class LayerTensors:
    """The tensors of one layer, whichever prefix the file was saved with; each is checked against the configuration."""

    tensors: Tensors
    family: Family
    layer: int
    asked: set[str] = field(default_factory=set)

    def get(self, name: str, *shape: int) -> Float64[Tensor, "*shape"]:
        """The tensor `name` of this layer, e.g. `self_attn.q_proj.weight`.

        Raises:
            InputError: it is missing, quantised, or its shape is not the one the configuration calls for.
        """
        inside = f"{self.family.blocks}.{self.layer}.{name}"
        spellings = (f"{self.family.base}.{inside}", inside)
        for full in spellings:
            module = full.removesuffix("weight")
            beside = sorted(n for n in self._known if n.startswith(module) and n not in (full, f"{module}bias"))
            if beside:
                raise InputError(
                    f"{beside[0]} stands for quantised or adapted weights: give the original or merged ones"
                )
        full = next((full for full in spellings if full in self._known), None)
        if full is None:
            raise InputError(f"the weights lack {spellings[0]}, which the configuration calls for: they do not match")
        stored = self.tensors.shape(full)
        if stored != shape:
            raise InputError(f"{full} has shape {stored} where the configuration calls for {shape}: they do not match")
        self.asked.add(full)
        return self.tensors.get(full)

    def optional(self, name: str, expected: bool, *shape: int) -> Tensor | None:
        """`get` where the configuration expects the tensor, else `None` (`check_rest` catches one that is there)."""
        return self.get(name, *shape) if expected else None

    def check_rest(self) -> None:
        """Refuses a layer whose attention holds a tensor that was not read and that is not on the value side.

        Raises:
            InputError: naming the tensor, e.g. a bias, norm, gate or table that the configuration tells nothing of.
        """
        for base in (f"{self.family.base}.", ""):
            attention = f"{base}{self.family.blocks}.{self.layer}.{self.family.attention}."
            for full in sorted(self._known - self.asked):
                if full.startswith(attention) and not _VALUE_SIDE.fullmatch(full.removeprefix(attention)):
                    raise InputError(f"the weights hold {full}, which the configuration tells nothing of: refused")

    @cached_property
    def _known(self) -> frozenset[str]:
        within = tuple(f"{base}{self.family.blocks}.{self.layer}." for base in (f"{self.family.base}.", ""))
        return frozenset(name for name in self.tensors.names() if name.startswith(within))

    def norm(
        self,
        name: str,
        kind: Literal["layer", "rms"],
        eps: float,
        *shape: int,
        bias: bool = False,
        plus_one: bool = False,
    ) -> Norm:
        """A normalisation; `plus_one` for a stored gain `w` that multiplies as `1 + w` (Gemma)."""
        weight = self.get(f"{name}.weight", *shape)
        return Norm(kind, weight + 1.0 if plus_one else weight, self.get(f"{name}.bias", *shape) if bias else None, eps)


def sizes(
    c: Config,
    scheme: Literal["rope", "absolute", "alibi"],
    max_positions: int | None,
    *,
    d_head: int | None = None,
    n_kv_heads: int | None = None,
    d_rot: int = 0,
    causal: bool = True,
) -> ModelLayout:
    """The layout of a configuration; width of a head and key-value heads default to `d_model / heads` and `heads`.

    Raises:
        InputError: sizes that do not go together.
    """
    n_heads = c.num_attention_heads
    n_kv_heads = n_kv_heads or n_heads
    d_head = d_head or head_width(c.hidden_size, n_heads)
    if min(n_heads, n_kv_heads, d_head, c.hidden_size, c.num_hidden_layers, c.vocab_size) < 1:
        raise InputError("the configuration calls for a model without layers, heads, width or vocabulary")
    if n_heads % n_kv_heads:
        raise InputError(f"{n_heads} query heads do not share {n_kv_heads} key-value heads evenly")
    if getattr(c, "head_dim", None) not in (None, d_head):
        raise InputError(f"{c.model_type} with head_dim={c.head_dim} is not supported: its heads are {d_head} wide")
    return ModelLayout(
        family=c.model_type,
        scheme=scheme,
        n_layers=c.num_hidden_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_model=c.hidden_size,
        d_head=d_head,
        d_rot=d_rot,
        vocab=c.vocab_size,
        max_positions=max_positions,
        causal=causal,
    )


def head_width(d_model: int, n_heads: int) -> int:
    """`d_model / n_heads`, where the division is exact."""
    if n_heads < 1 or d_model % n_heads:
        raise InputError(f"a model width of {d_model} does not divide into {n_heads} heads")
    return d_model // n_heads


def grouped(m: ModelLayout) -> Int64[Tensor, " heads"]:
    """Key-value head of each query head: `h // (H / H_kv)` (Ainslie et al. 2023, grouped-query attention)."""
    return torch.arange(m.n_heads) // (m.n_heads // m.n_kv_heads)


def by_head(rows: Float64[Tensor, "rows *rest"] | None, heads: int) -> Float64[Tensor, "heads d_head *rest"] | None:
    """Rows of a projection, or its bias, head by head."""
    return None if rows is None else rows.reshape(heads, -1, *rows.shape[1:])


def fused_rows(t: LayerTensors, name: str, m: ModelLayout, bias: bool) -> dict[str, Tensor | None]:
    """`wq`, `wk`, `bq`, `bk` from one projection whose rows run (key-value head, its queries, key and value, d_head).

    With a key for each query that is (head, query/key/value, d_head); with a single key it is all queries, then the
    key, then the value.
    """
    blocks = m.n_heads // m.n_kv_heads + 2
    rows = m.n_kv_heads * blocks * m.d_head
    out = {}
    for side, tensor in (
        ("w", t.get(f"{name}.weight", rows, m.d_model)),
        ("b", t.optional(f"{name}.bias", bias, rows)),
    ):
        parts = None if tensor is None else tensor.reshape(m.n_kv_heads, blocks, m.d_head, *tensor.shape[1:])
        out[f"{side}q"] = None if parts is None else parts[:, :-2].flatten(0, 1)
        out[f"{side}k"] = None if parts is None else parts[:, -2]
    return out


def same_for_heads(norm: Norm, heads: int) -> Norm:
    """One gain of width `d_head` (and its shift), given to every head."""
    bias = None if norm.bias is None else norm.bias.expand(heads, -1)
    return Norm(norm.kind, norm.weight.expand(heads, -1), bias, norm.eps)


def refuse(c: Config, option: str, why: str) -> None:
    """Refuses an option that is set."""
    if getattr(c, option, None):
        raise InputError(f"{c.model_type} with {option}={getattr(c, option)} is not supported: {why}")

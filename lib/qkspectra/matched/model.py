"""A small transformer that reads from top to bottom, in which nothing but the position scheme can be changed.

    h = embed[token] (+ position)
    h = h + attention(norm(h));  h = h + mlp(norm(h))        four times
    logits = unembed norm(h)

`norm` is layer normalisation without gain or shift, so the raw operator is the norm-folded one. Position enters by
rotating all rows of queries and keys (`rope`) or the first quarter of them (`partial`), by a learned vector added to
the embedding (`absolute`), by a penalty on the distance (`alibi`), or only through the causal mask (`none`).

A parameter's initial values depend on the seed, its name and its shape alone: under every scheme a seed starts from the
same tensors, and only `absolute` has one more.
"""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from jaxtyping import Float, Float32, Int64
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from qkspectra.channels import CHANNELS, Mixture, channel_features
from qkspectra.errors import InputError
from qkspectra.pocket import recipe as pocket
from qkspectra.toy.model import ROPE_BASE, alibi_slopes
from qkspectra.toy.task import generator
from qkspectra.weights.layout import LayerQK, ModelLayout, Norm, Rotary

Scheme = Literal["rope", "partial", "absolute", "alibi", "none"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
NAMES = {"partial": "RoPE on a quarter", "none": "no positions"}
"""Of the schemes that only this experiment has, for readers."""
BANS = {"none": "full", "phase": "no_phase", "symmetric": "symmetric"}
"""What is banned in every head, and the channel of the score that is left (`channels.CHANNELS`)."""
Ban = Literal["none", "phase", "symmetric"]

OnLayer = Callable[[int, Tensor, Tensor], None]
Parameters = dict[str, Tensor]
_LAYER = ("wq", "wk", "wv", "wo", "up", "down")


class Recipe(pocket.Recipe):
    """One run; with the corpus it decides every weight. Fields that are not listed are those of the pocket models.

    Attributes:
        name: the scheme under which the run ends.
        ban: what is banned when it ends.
        before: the scheme of its first `branch` steps, in which nothing is banned; `None` where the run is under one
            scheme and one ban throughout.
        branch: the step at which scheme and ban change.
        expansion: hidden units of an MLP by width.
    """

    name: Scheme
    layers: int = Field(4, gt=0)
    width: int = Field(128, gt=0)
    deviation: float = Field(128**-0.5, gt=0)
    vocab: int = Field(512, gt=256)
    expansion: int = Field(2, gt=0)
    shortest: int = Field(16, gt=1)
    learning_rate: float = Field(3e-3, gt=0)
    forming: int = Field(1_000_000, ge=0)  # one loss throughout
    decay: int = Field(1, gt=0)  # and one rate, so that a change of either is never the cause of an event
    ban: Ban = "none"
    before: Scheme | None = None
    branch: int = Field(0, ge=0)

    @property
    def d_head(self) -> int:
        return self.width // self.heads

    @property
    def parent(self) -> "Recipe":
        """The run that this one branches off."""
        if self.before is None:
            raise ValueError("a run that does not branch off has no parent")
        return self.model_copy(update={"name": self.before, "ban": "none", "before": None, "branch": 0})

    @property
    def mixture(self) -> Mixture:
        return CHANNELS[BANS[self.ban]]

    @property
    def layout(self) -> ModelLayout:
        rotary = rotary_of(self)
        return ModelLayout(
            family="matched",
            scheme="rope" if rotary is not None else self.name,
            n_layers=self.layers,
            n_heads=self.heads,
            n_kv_heads=self.heads,
            d_model=self.width,
            d_head=self.d_head,
            d_rot=0 if rotary is None else rotary.pairs.numel(),
            vocab=self.vocab,
            max_positions=self.context,
        )


def checked(recipe: Recipe) -> Recipe:
    """The recipe, if it makes sense.

    Raises:
        InputError: a ban on the phase where there is none, a branch outside the run, or one to another set of tensors.
    """
    if recipe.ban == "phase" and rotary_of(recipe) is None:
        raise InputError(f"scheme {recipe.name!r} has no phase to ban: choose rope or partial")
    if recipe.before is not None:
        if not 0 < recipe.branch < recipe.steps:
            raise InputError(f"a branch at step {recipe.branch} is not within the {recipe.steps} steps of the run")
        if shapes(recipe) != shapes(recipe.parent):
            raise InputError(f"a model under {recipe.before!r} lacks what {recipe.name!r} needs: choose another pair")
    return recipe


def shapes(recipe: Recipe) -> dict[str, tuple[int, ...]]:
    """Shape of each parameter, in the order in which they lie in a row."""
    square, hidden = (recipe.width, recipe.width), recipe.expansion * recipe.width
    own = dict.fromkeys(("wq", "wk", "wv", "wo"), square) | {
        "up": (hidden, recipe.width),
        "down": (recipe.width, hidden),
    }
    found: dict[str, tuple[int, ...]] = {"embed": (recipe.vocab, recipe.width)}
    if recipe.name == "absolute":
        found["position"] = (recipe.context, recipe.width)
    for layer in range(recipe.layers):
        found |= {f"{layer}.{name}": shape for name, shape in own.items()}
    return found | {"unembed": (recipe.vocab, recipe.width)}


def initial(recipe: Recipe) -> Parameters:
    """Independent Gaussian entries, of the recipe's `embedding_deviation` in `embed` and `position`, else `deviation`.

    Every tensor has a generator of its own, of the seed and of its name.
    """
    order = ["embed", "position", "unembed", *(f"{i}.{name}" for i in range(recipe.layers) for name in _LAYER)]
    return {
        name: (recipe.embedding_deviation if name in ("embed", "position") else recipe.deviation)
        * torch.randn(shape, generator=generator(recipe.seed, order.index(name)))
        for name, shape in shapes(recipe).items()
    }


def rotary_of(recipe: Recipe) -> Rotary | None:
    """The rotated pairs `(2t, 2t + 1)` and `theta_t = base^(-2t / d_rot)`; `None` where nothing is rotated."""
    rows = {"rope": recipe.d_head, "partial": recipe.d_head // 4}.get(recipe.name)
    if rows is None:
        return None
    theta = ROPE_BASE ** (-torch.arange(0, rows, 2).double() / rows)
    return Rotary(torch.arange(rows).view(-1, 2), theta)


class Position:
    """Tables of a scheme: rotations, and the additive bias with the causal mask."""

    def __init__(self, recipe: Recipe) -> None:
        length = recipe.context
        back = torch.arange(length)[:, None] - torch.arange(length)  # (query, key)
        bias = torch.zeros(recipe.heads, length, length)
        if recipe.name == "alibi":
            bias = -alibi_slopes(recipe.heads)[:, None, None] * back
        self.bias = bias.masked_fill(back < 0, -torch.inf)  # (heads, query, key)
        self.rotate = None
        if (rotary := rotary_of(recipe)) is not None:
            theta = torch.zeros(recipe.d_head // 2, dtype=torch.float64)  # rows that do not turn: an angle of zero
            theta[: len(rotary.theta)] = rotary.theta
            angles = torch.arange(length)[:, None] * theta
            turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)  # (length, freq)
            self._turns = {1: turns, -1: turns.conj().resolve_conj()}
            self.rotate = self._rotate

    def _rotate(self, x: Tensor, sign: int) -> Tensor:
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self._turns[sign]).flatten(-2)


def forward(
    recipe: Recipe,
    p: Parameters,
    tokens: Int64[Tensor, "batch length"],
    position: Position,
    on_layer: OnLayer | None = None,
) -> Float[Tensor, "batch length vocab"]:
    """Logits of the next token at every position.

    Args:
        p: parameters by name.
        position: tables of the recipe's scheme; `tokens` fill its context.
        on_layer: called with each layer's index, the input of its attention and the pattern
            `(batch, heads, query, key)`. Without it the pattern is never formed, which is faster.
    """
    batch, length = tokens.shape
    heads, d_head, width = recipe.heads, recipe.d_head, recipe.width

    def project(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w.mT).view(batch, length, heads, d_head).transpose(1, 2)

    h = F.embedding(tokens, p["embed"])
    if recipe.name == "absolute":
        h = h + p["position"]
    for layer in range(recipe.layers):
        wq, wk, wv, wo, up, down = (p[f"{layer}.{name}"] for name in _LAYER)
        x = F.layer_norm(h, (width,))
        # The score scale sits in the queries.
        q, k, v = project(x, wq * d_head**-0.5), project(x, wk), project(x, wv)
        left, right = channel_features(q, k, recipe.mixture, position.rotate)
        if on_layer is None:
            mixed = F.scaled_dot_product_attention(left, right, v, attn_mask=position.bias[None], scale=1.0)
        else:
            pattern = (left @ right.mT + position.bias).softmax(-1)
            on_layer(layer, x, pattern)
            mixed = pattern @ v
        h = h + mixed.transpose(1, 2).reshape(batch, length, width) @ wo.mT
        x = F.layer_norm(h, (width,))
        h = h + F.relu(x @ up.mT) @ down.mT
    return F.layer_norm(h, (width,)) @ p["unembed"].mT


def layer_of(recipe: Recipe, p: Parameters, layer: int) -> LayerQK:
    """Queries and keys of one layer without any ban, as the rest of the library knows them, in float64."""
    wq, wk = (p[f"{layer}.{name}"].detach().double().unflatten(0, (recipe.heads, -1)) for name in ("wq", "wk"))
    return LayerQK(
        layer=layer,
        wq=wq,
        wk=wk,
        bq=None,
        bk=None,
        kv_head=torch.arange(recipe.heads),
        scale=recipe.d_head**-0.5,
        rotary=rotary_of(recipe),
        alibi=alibi_slopes(recipe.heads).double() if recipe.name == "alibi" else None,
        input_norm=Norm("layer", None, None, 1e-5),
    )


def flat(p: Parameters) -> Float32[Tensor, " parameters"]:
    """All parameters in a row."""
    return torch.cat([part.detach().flatten() for part in p.values()])


def unflat(recipe: Recipe, row: Float32[Tensor, " parameters"]) -> Parameters:
    """The parameters of a row, tensors of their own.

    Raises:
        InputError: a row of another length.
    """
    own = shapes(recipe)
    sizes = [torch.Size(shape).numel() for shape in own.values()]
    if sum(sizes) != len(row):
        raise InputError(f"{len(row)} numbers are no parameters of this model, which has {sum(sizes)}")
    return {name: part.view(own[name]).clone() for name, part in zip(own, row.split(sizes), strict=True)}

"""A two-layer attention-only transformer, for many seeds at once, readable from top to bottom.

    h = embed[token] (+ position)
    h = h + attention(norm(h))        twice
    logits = unembed norm(h)

`norm` is layer normalisation without gain or shift, or nothing. Position enters by rotating queries and keys (RoPE), by
a learned vector added to the embedding (learned-absolute) or by a penalty on the distance (ALiBi).

Every tensor has a leading axis of seeds, and no operation mixes seeds: an ensemble is that many separate models.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor
from torch.nn import functional as F

from qkspectra.channels import channel_features
from qkspectra.errors import InputError
from qkspectra.operators import QKOperator
from qkspectra.toy.bans import Ban, Scheme, ban_of
from qkspectra.toy.task import generator
from qkspectra.weights.layout import Rotary

OnPattern = Callable[[int, Tensor], None]
ROPE_BASE = 10_000.0


@dataclass(frozen=True)
class ModelConfig:
    """Sizes, position scheme and bans.

    Attributes:
        scheme: `rope`, `absolute` or `alibi`.
        bans: name of the ban in each layer; their number is the number of layers.
        norm: layer normalisation before each block and before the logits.
    """

    scheme: Scheme
    bans: tuple[str, ...] = ("none", "none")
    d_model: int = 64
    heads: int = 4
    d_head: int = 16
    length: int = 24
    vocab: int = 24
    norm: bool = True

    def __post_init__(self) -> None:
        for name in self.bans:
            ban_of(name, self.scheme)
        if self.d_head < 2 or self.d_head % 2:
            raise InputError(
                f"head size {self.d_head} is odd: rotations and antisymmetric operators need pairs of rows"
            )
        if min(self.heads, len(self.bans)) < 1:
            raise InputError("a model needs at least one layer and one head")
        if self.d_model < self.d_head:
            raise InputError(f"d_model {self.d_model} is below the head size {self.d_head}: operators need full rank")
        if self.length < 4 or self.vocab < self.length // 2:
            raise InputError(
                f"length {self.length}, vocabulary {self.vocab}: blocks of up to length/2 unique tokens are needed"
            )

    @property
    def layer_bans(self) -> tuple[Ban, ...]:
        return tuple(ban_of(name, self.scheme) for name in self.bans)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter of one seed, in the order in which they lie in a row."""
        rows = (self.heads, self.d_head, self.d_model)
        shapes: dict[str, tuple[int, ...]] = {"embed": (self.vocab, self.d_model)}
        if self.scheme == "absolute":
            shapes["position"] = (self.length, self.d_model)
        for layer, ban in enumerate(self.layer_bans):
            own = {
                "wq": rows,
                "wk": rows,
                "wv": rows,
                "wo": (self.d_model, self.heads * self.d_head),
                "core": (self.heads, self.d_head, self.d_head),
                "eigenvalues": (self.heads, self.d_head),
            }
            used = {"wq", "wv", "wo", *ban.uses}
            shapes |= {f"{layer}.{name}": shape for name, shape in own.items() if name in used}
        return shapes | {"unembed": (self.vocab, self.d_model)}


def initial(config: ModelConfig, seeds: Sequence[int]) -> Float32[Tensor, "seeds parameters"]:
    """Independent Gaussian parameters; a parameter's values depend on the seed and its own name and shape alone.

    So a seed starts from the same `wq` whatever is banned, and is paired across bans and schemes. Standard deviations:
    0.5 for embeddings and positions, `1/sqrt(d_model)` for matrices that read the residual stream and for eigenvalues
    (in units of `sqrt(d_model)`), `1/sqrt(d_head)` for cores, `1/sqrt(2 layers heads d_head)` for what a layer writes.
    """
    deviations = {
        "embed": 0.5,
        "position": 0.5,
        "core": config.d_head**-0.5,
        "wo": (2 * len(config.bans) * config.heads * config.d_head) ** -0.5,
    }
    order = ["embed", "position", "unembed", *(f"{i}.{n}" for i in range(len(config.bans)) for n in _LAYER)]
    rows = []
    for seed in seeds:
        row = []
        for name, shape in config.shapes().items():
            deviation = deviations.get(name.split(".")[-1], config.d_model**-0.5)
            values = torch.randn(shape, generator=generator(seed, order.index(name)))
            row.append(deviation * values.flatten())
        rows.append(torch.cat(row))
    return torch.stack(rows)


_LAYER = ("wq", "wk", "wv", "wo", "core", "eigenvalues")


def unflatten(config: ModelConfig, theta: Float[Tensor, "seeds parameters"]) -> dict[str, Tensor]:
    """Views of the flat rows: `name -> (seeds, *shape)`."""
    shapes = config.shapes()
    parts = theta.split([math.prod(shape) for shape in shapes.values()], -1)
    return {name: part.unflatten(-1, shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def layer_parameters(config: ModelConfig, parameters: dict[str, Tensor], layer: int) -> dict[str, Tensor]:
    """The parameters of one layer under their short names, eigenvalues in natural units."""
    own = {n: parameters[f"{layer}.{n}"] for n in _LAYER if f"{layer}.{n}" in parameters}
    if "eigenvalues" in own:
        # Stored in units of sqrt(d_model), so that under Adam an eigenvalue moves as fast for its size as a weight.
        own["eigenvalues"] = own["eigenvalues"] * config.d_model**0.5
    return own


def rotary_angles(config: ModelConfig) -> Float32[Tensor, "length freq"]:
    """`theta_t * position`, `theta_t = base^(-2t/d_head)`; frequency `t` turns the rows `(2t, 2t+1)`."""
    theta = ROPE_BASE ** (-torch.arange(0, config.d_head, 2).float() / config.d_head)
    return torch.arange(config.length).float()[:, None] * theta


def alibi_slopes(heads: int) -> Float32[Tensor, " heads"]:
    """Slopes from 2 down to 1/32 in equal ratios (2, 1/2, 1/8, 1/32 for four heads).

    Steeper than the usual `2^(-8h/heads)`, whose steepest head for four heads, 1/4, cannot give the previous token more
    than `1 - e^(-1/4) = 0.22` of its attention by position alone.
    """
    return 2.0 ** (1 - 6 * torch.arange(heads) / max(heads - 1, 1))


class Position:
    """Tables of a scheme: rotations, and the additive bias with the causal mask."""

    def __init__(self, config: ModelConfig, device: torch.device | str = "cpu") -> None:
        back = torch.arange(config.length)[:, None] - torch.arange(config.length)  # (query, key)
        bias = torch.zeros(config.heads, config.length, config.length)
        if config.scheme == "alibi":
            bias = -alibi_slopes(config.heads)[:, None, None] * back
        self.bias = bias.masked_fill(back < 0, -torch.inf).to(device)  # (heads, query, key)
        self.rotate = None
        if config.scheme == "rope":
            angles = rotary_angles(config)
            turns = torch.polar(torch.ones_like(angles), angles).to(device)  # (length, freq), complex
            self._turns = {1: turns, -1: turns.conj().resolve_conj()}
            self.rotate = self._rotate

    def _rotate(self, x: Tensor, sign: int) -> Tensor:
        # A pair of rows as one complex number: a single multiplication instead of four and a concatenation.
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self._turns[sign]).flatten(-2)


def forward(
    config: ModelConfig,
    p: dict[str, Tensor],
    tokens: Int64[Tensor, "seeds batch length"],
    position: Position,
    on_pattern: OnPattern | None = None,
) -> Float[Tensor, "seeds batch_length vocab"]:
    """Logits of the next token at every position.

    Args:
        p: parameters by name, each with a leading axis of seeds (`unflatten`).
        position: tables of the scheme, on the device and for the length of `tokens`.
        on_pattern: called with each layer's index and attention pattern `(seeds, batch, heads, query, key)`.
    """
    seeds, batch, length = tokens.shape
    heads, d_head = config.heads, config.d_head
    normed = (lambda x: F.layer_norm(x, x.shape[-1:])) if config.norm else (lambda x: x)

    offset = torch.arange(0, seeds * config.vocab, config.vocab, device=tokens.device)
    h = F.embedding(tokens + offset[:, None, None], p["embed"].flatten(0, 1))  # (seeds, batch, length, d_model)
    if config.scheme == "absolute":
        h = h + p["position"][:, None]
    h = h.flatten(1, 2)  # (seeds, batch * length, d_model)

    def project(x: Tensor, w: Tensor) -> Tensor:
        rows = torch.bmm(x, w.flatten(1, 2).mT).view(seeds * batch, length, heads, d_head)
        return rows.transpose(1, 2).reshape(seeds * batch * heads, length, d_head)

    for layer, ban in enumerate(config.layer_bans):
        own = layer_parameters(config, p, layer)
        wq, wk = ban.weights(own)  # (seeds, heads, d_head, d_model) each
        x = normed(h)
        q, k, v = (project(x, w) for w in (wq * d_head**-0.5, wk, own["wv"]))  # the score scale sits in the queries
        left, right = channel_features(q, k, ban.mixture, position.rotate)
        left, right = (x.unflatten(0, (seeds * batch, heads)) for x in (left, right))
        scores = (left @ right.mT).add_(position.bias)
        pattern = scores.softmax(-1)
        if on_pattern is not None:
            on_pattern(layer, pattern.unflatten(0, (seeds, batch)))
        out = torch.bmm(pattern.flatten(0, 1), v).view(seeds, batch, heads, length, d_head)
        out = out.transpose(2, 3).reshape(seeds, batch * length, heads * d_head)
        h = torch.baddbmm(h, out, own["wo"].mT)
    return torch.bmm(normed(h), p["unembed"].mT)


def effective(
    config: ModelConfig, theta: Float[Tensor, "seeds parameters"], layer: int
) -> tuple[Float64[Tensor, "seeds heads rows d_model"], Float64[Tensor, "seeds heads rows d_model"], Rotary | None]:
    """Query and key rows, and their rotation, of the plain operator that a layer's banned heads amount to.

    A ban's channels are blocks of rows of one operator, so everything known of operators (spectra, `M(Delta)`, phases)
    applies to banned heads: under RoPE, rows that turn backwards are pairs in the other order. `rows` is `d_head` times
    the number of channels. The score scale is left out.
    """
    ban = config.layer_bans[layer]
    wq, wk = ban.weights(layer_parameters(config, unflatten(config, theta.detach().double()), layer))
    forwards, backwards, exchanged, exchanged_backwards = ban.mixture
    if config.scheme != "rope":
        blocks = [(forwards + backwards, wq, wk), (exchanged + exchanged_backwards, wk, wq)]
        used = [(c, left, right) for c, left, right in blocks if c]
        return torch.cat([b[1] for b in used], -2), torch.cat([b[0] * b[2] for b in used], -2), None
    pairs = torch.arange(config.d_head).view(-1, 2)
    blocks = [
        (forwards, wq, wk, pairs),
        (backwards, wq, wk, pairs.flip(1)),
        (exchanged, wk, wq, pairs),
        (exchanged_backwards, wk, wq, pairs.flip(1)),
    ]
    used = [block for block in blocks if block[0]]
    theta_t = rotary_angles(config)[1].double().repeat(len(used))
    turning = torch.cat([block[3] + i * config.d_head for i, block in enumerate(used)])
    left = torch.cat([block[1] for block in used], -2)
    right = torch.cat([block[0] * block[2] for block in used], -2)
    return left, right, Rotary(turning, theta_t)


def phase_measures(op: QKOperator, frequencies: int) -> dict[str, Float64[Tensor, " heads"]]:
    """Phase energy and its symmetric share (see `Spectrum`) of an operator whose frequencies recur, as in `effective`.

    The channels of a ban hold one pair of rows each for every frequency, and `Im M_t` is the sum over them: measured
    pair by pair, a phase that cancels between channels would still count. Empty without rotary rows.
    """
    if op.rotary is None:
        return {}
    a, b = (op.rotary.pairs[:, side].view(-1, frequencies).T for side in (0, 1))  # (frequency, channel)
    same, turned = torch.cat([a, b], 1), torch.cat([b, a], 1)
    sign = torch.cat([torch.ones_like(a), -torch.ones_like(a)], 1).to(op.wq.dtype)
    q, real = op.wq[:, same], op.wk[:, same]  # (heads, frequency, 2 * channels, d_model)
    imaginary = op.wk[:, turned] * sign[..., None]

    def energy(k: Tensor) -> Tensor:
        return ((q @ q.mT) * (k @ k.mT)).sum((-3, -2, -1))

    core = imaginary @ q.mT
    odd, squared = energy(imaginary), (core * core.mT).sum((-3, -2, -1))
    total = energy(real) + odd
    nothing = odd <= torch.finfo(odd.dtype).eps * total
    return {
        "phase_energy": odd / total,
        "phase_symmetric_share": torch.where(nothing, torch.nan, ((1 + squared / odd) / 2).clamp(0, 1)),
    }

"""Does the extraction tell the truth? Rebuilt scores against the running model's own, head by head.

The model's scores are taken where it hands them to its softmax (`attention.tapped`), with its own weights, rotation,
norms and masks; the extraction code has no part in them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psutil
import torch
from jaxtyping import Bool, Float64
from torch import Tensor
from torch.overrides import TorchFunctionMode

from qkspectra.attention import tapped
from qkspectra.scores import rebuilt_scores
from qkspectra.weights.layout import LayerQK, ModelLayout
from qkspectra.weights.model import Weights

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}
"""Largest relative error that passes, by the precision the model runs in."""

LENGTH, BATCH = 64, 2
_MASKED = -1e30  # Transformers masks by adding or writing the most negative float32 or float64


@dataclass(frozen=True)
class Agreement:
    """Rebuilt scores against the model's, at one precision.

    The relative error of a head is `max |rebuilt - model| / max |model - row mean of model|` over all entries that the
    mask leaves: the largest fault, on the scale of what the softmax can see. It is infinite where the masks differ.
    Under ALiBi, whose bias is defined up to a constant of each row, the constant is taken out: one number for each head
    and query position, the same for every sequence.

    Attributes:
        precision: `float32` or `float64`.
        tolerance: largest relative error that passes.
        error: relative error of each head.
        control: the largest relative error over a layer's heads of a deliberately wrong operator: rotary pairs of the
            other kind, or key rows shifted by one where nothing rotates. It must be caught.
        positional: the largest change of a layer's scores, on the same scale, when every token is put at position 0;
            NaN where position does not act on the scores.
        compared: number of scores compared.
        parameters: of the model that ran.
    """

    precision: str
    tolerance: float
    error: Float64[Tensor, "layers heads"]
    control: Float64[Tensor, " layers"]
    positional: Float64[Tensor, " layers"]
    compared: int
    parameters: int

    @property
    def worst(self) -> tuple[int, int]:
        """Layer and head of the largest error."""
        return divmod(int(self.error.argmax()), self.error.shape[1])

    def summary(self) -> dict[str, Any]:
        """The agreement in numbers; `None` for an infinite error, and for the position where it does not act."""
        layer, head = self.worst
        positional = self.positional[~self.positional.isnan()]
        return {
            "precision": self.precision,
            "passed": self.passed,
            "largest_relative_error": _finite(self.error.max()),
            "layer": layer,
            "head": head,
            "tolerance": self.tolerance,
            "wrong_operator_error": _finite(self.control.min()),
            "position_dependence": _finite(positional.min()) if len(positional) else None,
            "layers": self.error.shape[0],
            "heads": self.error.numel(),
            "scores_compared": self.compared,
        }

    @property
    def passed(self) -> bool:
        """Every head within tolerance, by a comparison that is known to catch a wrong operator and a lost position."""
        positional = self.positional[~self.positional.isnan()]
        return bool(
            self.compared > 0
            and (self.error <= self.tolerance).all()
            and (self.control > self.tolerance).all()
            and (positional > self.tolerance).all()
        )


def agreements(model: Weights, seed: int = 0, say: Callable[[str], None] = lambda line: None) -> list[Agreement]:
    """Verifies a model in float32, and in float64 where that fits into memory.

    Args:
        model: weights and the running model.
        seed: of the tokens.
        say: told what is being done.

    Returns:
        One agreement for each precision.
    """
    single = agreement(model, torch.float32, seed, say)
    needed, available = 8 * single.parameters, psutil.virtual_memory().available
    if needed > available:
        return [single]
    return [single, agreement(model, torch.float64, seed, say)]


def agreement(
    model: Weights, precision: torch.dtype, seed: int = 0, say: Callable[[str], None] = lambda line: None
) -> Agreement:
    """Compares all heads at all query-key offsets on random tokens, 2 sequences of 64 (or what the model can take).

    Args:
        model: weights and the running model.
        precision: `torch.float32` or `torch.float64`. In float64 whatever the model computes in float32 by its code
            (rotary tables, norms, softmax) is computed in float64 as well.
        seed: of the tokens.
        say: told what is being done.
    """
    name = str(precision).removeprefix("torch.")
    say(f"running the model in {name}")
    taken, parameters = own_scores(model, precision, random_tokens(model.layout, seed))
    rows = []
    for layer, (x, scores) in enumerate(taken):
        say(f"comparing layer {layer} in {name}")
        rows.append(compare(model.layer(layer), x, scores))
    error, control, positional, compared = zip(*rows, strict=True)
    return Agreement(
        name,
        TOLERANCE[precision],
        torch.stack(error),
        torch.stack(control),
        torch.stack(positional),
        sum(compared),
        parameters,
    )


def own_scores(model: Weights, precision: torch.dtype, tokens: Tensor) -> tuple[list[tuple[Tensor, Tensor]], int]:
    """Each layer's input and pre-softmax scores in one run of the model, and its number of parameters."""
    inputs: dict[int, Tensor] = {}
    scores: dict[int, Tensor] = {}

    def on_input(layer: int, x: Tensor) -> None:
        inputs[layer] = x.clone()

    def on_scores(layer: int, own: Tensor) -> None:
        scores[layer] = own.clone()

    with _precision(precision), torch.no_grad():
        running = model.load(precision, device="cpu")  # the same arithmetic as what it is compared with
        with tapped(model.attention_modules(running), on_input=on_input, on_scores=on_scores):
            running(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
    taken = [(inputs[layer], scores[layer]) for layer in range(model.layout.n_layers)]
    return taken, sum(p.numel() for p in running.parameters())


def random_tokens(layout: ModelLayout, seed: int) -> Tensor:
    """Uniformly random token ids, `(2, 64)` or shorter where the model is."""
    length = min(LENGTH, layout.max_positions or LENGTH)
    return torch.randint(layout.vocab, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def compare(layer: LayerQK, x: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """One layer's `error`, `control` and `positional` as in `Agreement`, and the number of scores compared.

    Args:
        layer: extracted queries and keys.
        x: the attention block's input.
        scores: the model's own, `(batch, heads, query, key)`.
    """
    scores = scores.to(torch.float64)
    rebuilt = rebuilt_scores(layer, x)
    seen = torch.isfinite(rebuilt)
    scale = (scores - _row_mean(scores, seen)).masked_fill(~seen, 0.0).abs().amax((0, 2, 3))

    def distance(other: Tensor) -> Tensor:
        difference = (other - scores).masked_fill(~seen, 0.0)
        if layer.alibi is not None:
            constant = difference.sum((0, 3), keepdim=True) / seen.sum((0, 3), keepdim=True)
            difference = (difference - constant).masked_fill(~seen, 0.0)
        largest = difference.abs().amax((0, 2, 3))
        # A dead head, whose scores are all alike, agrees only if it is rebuilt exactly.
        return torch.where(largest == 0, 0.0, largest / scale)

    error = distance(rebuilt)
    if not torch.equal(scores > _MASKED, seen):
        error = torch.full_like(error, torch.inf)
    control = distance(rebuilt_scores(wrong(layer), x)).max()
    positional = torch.tensor(torch.nan, dtype=torch.float64)
    if layer.rotary is not None or layer.alibi is not None:
        still = rebuilt_scores(layer, x, positions=torch.zeros(x.shape[1], dtype=torch.int64))
        positional = ((still - rebuilt).masked_fill(~seen, 0.0).abs().amax((0, 2, 3)) / scale).nan_to_num(0.0).max()
    return error, control, positional, int(seen.sum())


def wrong(layer: LayerQK) -> LayerQK:
    """The layer with its rotary pairs of the other kind, or its key rows shifted by one where that changes nothing."""
    if layer.rotary is not None and len(layer.rotary.pairs) > 1:
        rows = layer.rotary.pairs.flatten().sort().values
        half_split = torch.equal(layer.rotary.pairs[0] + 1, layer.rotary.pairs[1])
        pairs = rows.reshape(-1, 2) if half_split else rows.reshape(2, -1).T
        return replace(layer, rotary=replace(layer.rotary, pairs=pairs.contiguous()))
    return replace(layer, wk=layer.wk.roll(1, 1))


def _finite(value: Tensor) -> float | None:
    return float(value) if torch.isfinite(value) else None


def _row_mean(scores: Float64[Tensor, "*shape"], seen: Bool[Tensor, "*shape"]) -> Tensor:
    return scores.masked_fill(~seen, 0.0).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)


class _Double(TorchFunctionMode):
    """Computes in float64 what code asks to be computed in float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.view:  # may reinterpret the bytes of a file
            return func(*args, **kwargs)
        func = Tensor.double if func is Tensor.float else func
        args = [torch.float64 if value is torch.float32 else value for value in args]
        kwargs = {name: torch.float64 if value is torch.float32 else value for name, value in kwargs.items()}
        return func(*args, **kwargs)


@contextmanager
def _precision(dtype: torch.dtype) -> Iterator[None]:
    """In float64, no detour of the model's code through float32: neither explicit nor by torch's default dtype."""
    if dtype != torch.float64:
        yield
        return
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Double():
            yield
    finally:
        torch.set_default_dtype(default)

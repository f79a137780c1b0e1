"""Exact removal of one channel of given heads inside the running model.

The scores of the named heads are replaced, before the softmax, by scores rebuilt from the layer's own input without the
channel. With `R_t = Re M_t`, `I_t = Im M_t` the parts of the operator at frequency `t`,

    score(i, j) = sum_t x_i (R_t cos(theta_t (i - j)) + I_t sin(theta_t (i - j))) x_j^T + (rows that are not rotated)

    phase          drops every I_t: the score becomes even in i - j
    symmetric      drops the symmetric part of R_t and of the rows that are not rotated
    antisymmetric  drops the antisymmetric part of the same

Biases belong to the operator, as one more dimension of `x`; a query-key norm is applied before the channel is taken.
Scale, soft cap, position bias and mask stay the model's.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from qkspectra.attention import tapped
from qkspectra.channels import CHANNELS, Mixture
from qkspectra.errors import InputError
from qkspectra.scores import rebuilt_scores
from qkspectra.weights.layout import LayerQK

_LEFT = {"phase": "no_phase", "symmetric": "antisymmetric", "antisymmetric": "symmetric"}


def check(layer: LayerQK, heads: Sequence[int], channel: str) -> None:
    """Refuses what cannot be ablated.

    Raises:
        InputError: an unknown channel or head, or the phase of a layer that does not rotate.
    """
    if channel not in _LEFT:
        raise InputError(f"there is no channel {channel!r}: choose from {', '.join(_LEFT)}")
    if channel == "phase" and layer.rotary is None:
        raise InputError(f"layer {layer.layer} has no rotary positions, so there is no phase to remove from its heads")
    if wrong := [head for head in heads if not 0 <= head < len(layer.wq)]:
        raise InputError(f"layer {layer.layer} has no head {wrong[0]}: its heads are 0 to {len(layer.wq) - 1}")


@contextmanager
def ablated(modules: list[nn.Module], layer: LayerQK, heads: Sequence[int], channel: str) -> Iterator[None]:
    """Within the context, the running model computes `heads` of `layer` without `channel`.

    Contexts nest, one layer each; other taps on the same modules see the ablated scores.

    Args:
        modules: the attention module of each layer, in order.
        layer: queries and keys of the layer, read from the same weights.
        heads: query heads; other heads of a shared key-value head keep their scores.
        channel: what to remove: `phase`, `symmetric` or `antisymmetric`.

    Raises:
        InputError: see `check`.
    """
    check(layer, heads, channel)
    with replaced(modules, layer, heads, CHANNELS[_LEFT[channel]]):
        yield


@contextmanager
def replaced(modules: list[nn.Module], layer: LayerQK, heads: Sequence[int], mixture: Mixture) -> Iterator[None]:
    """Within the context, the scores of `heads` are rebuilt from the layer's input under `mixture`, in float64.

    Entries that the model masks stay masked. Sequences start at position 0 and are not padded on the left.
    """
    chosen = list(heads)
    x: list[Tensor] = []

    def capture(_: int, hidden: Tensor) -> None:
        x[:] = [hidden]

    def rebuild(_: int, scores: Tensor) -> Tensor:
        rebuilt = rebuilt_scores(layer, x.pop().double().cpu(), mixture)[:, chosen].to(scores)
        kept = scores[:, chosen]
        masked = kept <= torch.finfo(scores.dtype).min / 2  # -inf, or the most negative number, by family
        scores = scores.clone()
        scores[:, chosen] = torch.where(masked, kept, rebuilt)
        return scores

    with tapped([modules[layer.layer]], on_input=capture, on_scores=rebuild):
        yield

"""The running model's own attention: scores before the softmax and patterns after it, layer by layer.

Every eager attention in Transformers ends in a softmax over keys. The tap intercepts that one call, so it sees what the
model itself computed, whatever the family, and needs none of the code that extracts operators.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_SOFTMAX = {torch.nn.functional.softmax, torch.softmax, Tensor.softmax}

# (layer, scores) -> scores to use instead, or None to leave them; scores are (batch, heads, query, key), mask included.
OnScores = Callable[[int, Tensor], Tensor | None]
# (layer, pattern) -> None
OnPattern = Callable[[int, Tensor], None]


class _SoftmaxTap(TorchFunctionMode):
    def __init__(self, on_scores: OnScores | None, on_pattern: OnPattern | None) -> None:
        super().__init__()
        self.layer: int | None = None
        self.calls: dict[int, int] = {}
        self._on_scores, self._on_pattern = on_scores, on_pattern

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _SOFTMAX or self.layer is None:
            return func(*args, **kwargs)
        args = list(args)
        scores = args[0] if args else kwargs["input"]
        self.calls[self.layer] = self.calls.get(self.layer, 0) + 1
        if self._on_scores is not None:
            replaced = self._on_scores(self.layer, scores)
            if replaced is not None:
                if args:
                    args[0] = replaced
                else:
                    kwargs["input"] = replaced
        pattern = func(*args, **kwargs)
        if self._on_pattern is not None:
            self._on_pattern(self.layer, pattern)
        return pattern


def block_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The hidden states an attention module was called with, `(batch, position, d_model)`."""
    return args[0] if args else kwargs["hidden_states"]


@contextmanager
def tapped(
    modules: list[nn.Module],
    *,
    on_input: OnScores | None = None,
    on_scores: OnScores | None = None,
    on_pattern: OnPattern | None = None,
) -> Iterator[None]:
    """Within the context, every forward pass reports each layer's attention as it is computed.

    Args:
        modules: the attention module of each layer, in order.
        on_input: called with the layer and the module's input, before its projections.
        on_scores: called with the layer and the pre-softmax scores; a returned tensor takes their place.
        on_pattern: called with the layer and the attention pattern.

    Raises:
        RuntimeError: a module ran without exactly one softmax, as fused kernels do: load the model with
            `attn_implementation="eager"`.
    """
    tap = _SoftmaxTap(on_scores, on_pattern)
    handles = []

    def enter(layer: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            tap.layer, tap.calls[layer] = layer, 0
            if on_input is not None:
                on_input(layer, block_input(args, kwargs))

        return hook

    def leave(layer: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            tap.layer = None
            if tap.calls[layer] != 1:
                raise RuntimeError(
                    f"layer {layer} computed {tap.calls[layer]} softmaxes instead of one: load it with eager attention"
                )

        return hook

    try:
        for layer, module in enumerate(modules):
            handles.append(module.register_forward_pre_hook(enter(layer), with_kwargs=True))
            handles.append(module.register_forward_hook(leave(layer)))
        with tap:
            yield
    finally:
        for handle in handles:
            handle.remove()

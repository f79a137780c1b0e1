"""Forward passes that begin at a later layer.

What is changed in one layer changes nothing before it. An ablation in layer 20 of 30 therefore need not run the first
20 again: the output of the block before it is kept from the unchanged model, and stands for all blocks up to there.

    with kept(blocks, {20}) as outputs:
        model(input_ids=tokens)
    with resumed(blocks, 20, outputs):
        model(input_ids=tokens)  # the same numbers, bit for bit, from layers 20 to 29 alone
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn


@contextmanager
def kept(blocks: list[nn.Module], layers: Collection[int]) -> Iterator[dict[int, Any]]:
    """Within the context, a forward pass leaves what each of `layers` receives, by layer; the last pass counts.

    Args:
        blocks: the residual block of each layer, in order.
        layers: from 0. The first layer receives what no block has made, and is left out.
    """
    outputs: dict[int, Any] = {}
    with ExitStack() as stack:
        for layer in set(layers) - {0}:

            def keep(module: nn.Module, args: Any, output: Any, layer: int = layer) -> None:
                outputs[layer] = output

            stack.callback(blocks[layer - 1].register_forward_hook(keep).remove)
        yield outputs


@contextmanager
def resumed(blocks: list[nn.Module], layer: int, outputs: Mapping[int, Any]) -> Iterator[None]:
    """Within the context, forward passes on the tokens of `outputs` run from `layer` on; attention before it is silent.

    Args:
        blocks, outputs: of `kept`.
        layer: one of those that were kept, or 0, with which everything runs.
    """
    with ExitStack() as stack:
        for block in blocks[:layer]:
            block.forward = lambda *_, **__: outputs[layer]  # hides the method of the class
            stack.callback(delattr, block, "forward")
        yield

"""Channels of the score: exact recombinations of one head's queries and keys that keep or drop a part of its operator.

With `R = Re M_t`, `I = Im M_t`, `Q+-` and `K+-` the queries and keys rotated by `+-theta * position`,

    S+  = <Q+, K+> = R   cos + I   sin        S-  = <Q-, K-> = R   cos - I   sin
    S'+ = <K+, Q+> = R^T cos - I^T sin        S'- = <K-, Q-> = R^T cos + I^T sin

where `S'` exchanges the roles of query and key. A channel is a fixed combination of the four; without rotation
`S+ = S- = S` and `S'+ = S'- = S'`, so one table serves every position scheme.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Mixture = tuple[float, float, float, float]

CHANNELS: dict[str, Mixture] = {
    "full": (1.0, 0.0, 0.0, 0.0),
    "symmetric": (3 / 4, -1 / 4, 1 / 4, 1 / 4),  # R symmetric, I free
    "antisymmetric": (3 / 4, -1 / 4, -1 / 4, -1 / 4),  # R antisymmetric, I free
    "no_phase": (1 / 2, 1 / 2, 0.0, 0.0),  # I = 0
    "symmetric_no_phase": (1 / 4, 1 / 4, 1 / 4, 1 / 4),
    "antisymmetric_no_phase": (1 / 4, 1 / 4, -1 / 4, -1 / 4),
    "phase_only": (1 / 2, -1 / 2, 0.0, 0.0),  # R = 0
}
"""Coefficients of `(S+, S-, S'+, S'-)`; each entry is named after what it leaves."""

Rotate = Callable[[Tensor, int], Tensor]


def channel_features(q: Tensor, k: Tensor, mixture: Mixture, rotate: Rotate | None = None) -> tuple[Tensor, Tensor]:
    """Features whose inner product is the channel: `scores = left @ right^T`.

    Args:
        q, k: queries and keys before rotation, `(..., position, d_head)`.
        mixture: coefficients of `(S+, S-, S'+, S'-)`.
        rotate: `rotate(x, sign)` turns the rows of `x` by `sign * theta * position`; `None` without rotary positions.

    Returns:
        `left, right`, each `(..., position, blocks * d_head)` with one block per nonzero coefficient.
    """
    if rotate is None:
        pairs = [(mixture[0] + mixture[1], q, k), (mixture[2] + mixture[3], k, q)]
        blocks = [(left, right if c == 1 else c * right) for c, left, right in pairs if c]
    else:
        blocks = []
        for sign, straight, exchanged in ((1, mixture[0], mixture[2]), (-1, mixture[1], mixture[3])):
            if not (straight or exchanged):
                continue
            turned_q, turned_k = rotate(q, sign), rotate(k, sign)
            if straight:
                blocks.append((turned_q, turned_k if straight == 1 else straight * turned_k))
            if exchanged:
                blocks.append((turned_k, exchanged * turned_q))
    if len(blocks) == 1:
        return blocks[0]
    if not blocks:  # phase_only without rotation: nothing is left
        return q, torch.zeros_like(k)
    return torch.cat([b[0] for b in blocks], -1), torch.cat([b[1] for b in blocks], -1)

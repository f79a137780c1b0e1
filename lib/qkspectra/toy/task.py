"""The repeat task: the smallest data that need a previous-token head and an induction head.

A sequence repeats one block of tokens, `x[i] = block[i mod period]`. Tokens are unique inside a block, so that the
previous occurrence of a token determines its successor, and the period differs from sequence to sequence, so that no
fixed offset does. The only predictions scored are those made from the second copy on: the first copy is random.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Sequences of several independent seeds.

    Attributes:
        tokens: token ids.
        period: length of each sequence's block.
    """

    tokens: Int64[Tensor, "seeds batch length"]
    period: Int64[Tensor, "seeds batch"]

    @property
    def targets(self) -> Int64[Tensor, "seeds batch length"]:
        """The next token where it is scored, -100 elsewhere: positions `period <= i <= length - 2`."""
        position = torch.arange(self.tokens.shape[-1], device=self.tokens.device)
        scored = (position >= self.period[..., None]) & (position < len(position) - 1)
        return torch.where(scored, self.tokens.roll(-1, -1), -100)

    def only(self, rows: Tensor) -> "Batch":
        """The batch of some of the seeds."""
        return Batch(self.tokens[rows], self.period[rows])


STREAMS = 1000
"""Random streams that a seed owns: `DATA`, `HELD_OUT`, and the lower numbers for initial parameters."""
DATA, HELD_OUT = STREAMS - 1, STREAMS - 2


def generator(seed: int, stream: int) -> torch.Generator:
    """A generator of one of a seed's own streams; no two seeds or streams share one."""
    # torch seeds its CPU generator with 32 bits, so the streams of a seed lie side by side and not high up.
    return torch.Generator().manual_seed(seed * STREAMS + stream)


def repeats(generators: Sequence[torch.Generator], batch: int, length: int, vocab: int) -> Batch:
    """Draw a batch for every seed, each from its own generator, with periods uniform on `length/4 ... length/2`.

    A seed's sequence of batches depends on its generator alone, not on its neighbours.
    """
    periods, draws = [], []
    for generator in generators:
        periods.append(torch.randint(length // 4, length // 2 + 1, (batch, 1), generator=generator))
        draws.append(torch.rand(batch, vocab, generator=generator))
    period = torch.stack(periods)
    block = torch.stack(draws).argsort(-1)  # permutations: tokens are unique
    return Batch(block.gather(-1, torch.arange(length) % period), period[..., 0])


def head_scores(
    pattern: Float[Tensor, "seeds batch heads length length"], period: Int64[Tensor, "seeds batch"]
) -> dict[str, Float[Tensor, "seeds heads"]]:
    """How far each head is a previous-token, an induction or a duplicate-token head, in [0, 1].

    Mean attention mass that query `i` puts on key `j`:

        previous_token    j = i - 1,                                         all i >= 1
        induction         j = i + 1 - m * period <= i,  m = 1, 2, ...        i >= period
        duplicate_token   j = i - m * period,           m = 1, 2, ...        i >= period

    All earlier copies count (`m`), because content alone cannot tell them apart: an ideal head scores exactly 1, a head
    that parks on the first token exactly 0 except where the first token is itself the target.
    """
    seeds, batch, heads, length, _ = pattern.shape
    position = torch.arange(length, device=pattern.device)
    back = position[:, None] - position  # (query, key)
    span = period[..., None, None]
    repeated = position[:, None] >= span  # (seeds, batch, query, 1)
    phase = back % span  # (seeds, batch, query, key)
    masks = {
        "previous_token": (back == 1).expand_as(phase),
        "induction": repeated & (back >= 0) & (phase == span - 1),
        "duplicate_token": repeated & (back > 0) & (phase == 0),
    }
    stacked = torch.stack([*masks.values()], -1).to(pattern.dtype).view(seeds * batch, length * length, len(masks))
    mass = torch.bmm(pattern.reshape(seeds * batch, heads, length * length), stacked)
    mass = mass.view(seeds, batch, heads, len(masks)).sum(1).unbind(-1)  # one (seeds, heads) for each mask
    every_row, second = batch * (length - 1), repeated.sum((1, 2))  # rows that count
    rows = {"previous_token": every_row, "induction": second, "duplicate_token": second}
    return {name: each / rows[name] for name, each in zip(masks, mass, strict=True)}

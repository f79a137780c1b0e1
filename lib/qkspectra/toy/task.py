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
    tokens, periods = [], []
    position = torch.arange(length)
    for generator in generators:
        period = torch.randint(length // 4, length // 2 + 1, (batch, 1), generator=generator)
        block = torch.rand(batch, vocab, generator=generator).argsort(-1)  # a permutation: tokens are unique
        tokens.append(block.gather(1, position % period))
        periods.append(period[:, 0])
    return Batch(torch.stack(tokens), torch.stack(periods))


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
    length = pattern.shape[-1]
    position = torch.arange(length, device=pattern.device)
    back = position[:, None] - position  # (query, key)
    causal, past = back >= 0, back > 0
    repeated = (position[:, None] >= period[..., None, None]).expand(-1, -1, length, length)
    phase = back % period[..., None, None]
    masks: dict[str, tuple[Tensor, int]] = {
        "previous_token": ((back == 1).expand_as(phase), 1),
        "induction": (repeated & causal & (phase == period[..., None, None] - 1), 0),
        "duplicate_token": (repeated & past & (phase == 0), 0),
    }
    rows = repeated[..., 0].sum((1, 2)).to(pattern.dtype)  # (seeds,)
    scores = {}
    for name, (mask, every_row) in masks.items():
        mass = torch.einsum("sbhij,sbij->sh", pattern, mask.to(pattern.dtype))
        scores[name] = mass / (pattern.shape[1] * (length - 1) if every_row else rows[:, None])
    return scores

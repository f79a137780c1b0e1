"""What heads do: previous-token, induction and duplicate-token attention, read in one forward pass.

A sequence is `[r, r]`, two copies of the same `n` random tokens, optionally behind a leading BOS. No token occurs
twice in `r`, so in the second copy the previous occurrence of the token at row `i` is at `i - n`, and every score is
the mean of the attention pattern on one diagonal, `pattern[i, i - offset]`:

    previous token    offset 1        every row
    duplicate token   offset n        rows of the second copy: the previous occurrence of token i
    induction         offset n - 1    rows of the second copy: the token after the previous occurrence of token i

Rows whose target is the first position of the sequence are left out. A head that puts all its weight on the target then
scores exactly 1, and one that parks on the first position exactly 0. The induction score is what Olsson et al. 2022,
"In-context Learning and Induction Heads", call prefix matching.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from qkspectra.attention import tapped
from qkspectra.errors import InputError
from qkspectra.weights.layout import ModelLayout

CHUNK = 4
"""Sequences in flight at once: bounds the memory that the logits and one layer's pattern take."""


@dataclass(frozen=True)
class Behaviour:
    """Attention scores of every head, each in [0, 1], and how well the model predicts the two copies.

    Attributes:
        previous_token, induction, duplicate_token: means over batch and rows, see the module's description.
        by_offset: mean attention of second-copy rows to the position `offset` back, offsets 0 to n.
        loss_first, loss_second: mean negative log-likelihood in nats of the tokens of each copy after its own first
            one, which nothing in the sequence predicts. NaN where the model returns no logits.
        accuracy_first, accuracy_second: share of the same tokens to which the model gives the highest logit.
    """

    previous_token: Float64[Tensor, "layers heads"]
    induction: Float64[Tensor, "layers heads"]
    duplicate_token: Float64[Tensor, "layers heads"]
    by_offset: Float64[Tensor, "layers heads offsets"]
    loss_first: float
    loss_second: float
    accuracy_first: float
    accuracy_second: float

    @classmethod
    def mean(cls, parts: "Sequence[Behaviour]", sequences: Sequence[int]) -> "Behaviour":
        """What several parts of a batch show together, each of so many sequences."""
        total = sum(sequences)
        names = [field.name for field in fields(cls)]
        weighted = {name: [n * getattr(part, name) for part, n in zip(parts, sequences, strict=True)] for name in names}
        return cls(**{name: sum(values) / total for name, values in weighted.items()})


def random_repeats(
    layout: ModelLayout,
    batch: int,
    length: int,
    seed: int,
    bos: int | None = None,
    reserved: Collection[int] = (),
) -> Int64[Tensor, "batch position"]:
    """Sequences `[r, r]` or `[bos, r, r]`; `r` is `length` distinct tokens drawn uniformly from the ordinary ids.

    Args:
        layout: bounds the token ids and the sequence's length.
        batch: number of sequences, each with its own `r`.
        length: tokens in one copy, at least 2.
        seed: of this draw alone; no global generator is used.
        bos: id of a leading token, `None` for no leading token.
        reserved: ids never drawn: the special tokens (`special_tokens`).

    Raises:
        InputError: the sequence is longer than the model accepts, or the vocabulary too small for distinct tokens.
    """
    total = 2 * length + (bos is not None)
    if length < 2:
        raise InputError(f"a copy of {length} tokens has no token after its first: use a length of at least 2")
    if layout.max_positions is not None and total > layout.max_positions:
        raise InputError(f"the model takes {layout.max_positions} positions, not {total}: shorten the sequences")
    if bos is not None and not 0 <= bos < layout.vocab:
        raise InputError(f"the leading token {bos} is not in the vocabulary of {layout.vocab} ids")
    ordinary = np.setdiff1d(np.arange(layout.vocab), [*reserved, *([] if bos is None else [bos])])
    if len(ordinary) < length:
        raise InputError(f"only {len(ordinary)} ordinary token ids for {length} distinct tokens: shorten the sequences")
    rng = np.random.default_rng(seed)
    copy = torch.from_numpy(np.stack([rng.choice(ordinary, length, replace=False) for _ in range(batch)]))
    leading = copy.new_full((batch, int(bos is not None)), bos or 0)
    return torch.cat([leading, copy, copy], 1)


def special_tokens(config: object) -> frozenset[int]:
    """Ids that a Transformers configuration names as special: every `..._token_id` it holds."""
    named = [value for key, value in vars(config).items() if key.endswith("_token_id") and value is not None]
    return frozenset(i for value in named for i in (value if isinstance(value, list | tuple) else [value]))


def behaviour(
    model: nn.Module,
    modules: list[nn.Module],
    tokens: Int64[Tensor, "batch position"],
    chunk: int = CHUNK,
    below: Behaviour | None = None,
) -> Behaviour:
    """Scores of every head on `tokens`, each sequence run once; patterns are reduced as they appear and never kept.

    Args:
        model: a Transformers model in evaluation mode with eager attention.
        modules: its attention modules, in order of layer.
        tokens: from `random_repeats`; all of one length, without padding.
        chunk: sequences in one forward pass; the result is the mean over all of them whatever it is.
        below: of the same tokens; its scores stand for layers that do not run (see `resume.resumed`).

    Raises:
        InputError: an attention pattern or the logits are not finite.
        ValueError: `tokens` are not two equal copies.
    """
    lead, length = tokens.shape[1] % 2, tokens.shape[1] // 2
    if not torch.equal(tokens[:, lead : lead + length], tokens[:, lead + length :]):
        raise ValueError("tokens are not two copies of one sequence, with at most one leading token")
    device = next(model.parameters()).device
    sums: list[list[Tensor]] = [[] for _ in modules]
    predicted = torch.zeros(2, 2, dtype=torch.float64)  # (loss, accuracy) x (first copy, second copy)
    speaks = False

    def reduce(layer: int, pattern: Tensor) -> None:
        sums[layer].append(len(pattern) * _diagonals(_finite(layer, pattern), lead + length))

    with torch.inference_mode(), tapped(modules, on_pattern=reduce):
        for part in tokens.split(chunk):
            output = model(input_ids=part.to(device))
            logits = getattr(output, "logits", None)
            if logits is not None:
                speaks = True
                predicted += len(part) * _prediction(logits, part.to(device), lead)
    silent = 0 if below is None else next((layer for layer, parts in enumerate(sums) if parts), len(sums))
    scores = torch.stack([torch.stack(parts).sum(0) for parts in sums[silent:]]) / len(tokens)
    if below is not None:
        lower = torch.cat([below.previous_token[:silent, :, None], below.by_offset[:silent]], -1)
        scores = torch.cat([lower, scores])
    loss, accuracy = (predicted / len(tokens) if speaks else torch.full_like(predicted, torch.nan)).tolist()
    return Behaviour(
        previous_token=scores[..., 0],
        induction=scores[..., 1 + length - 1],
        duplicate_token=scores[..., 1 + length],
        by_offset=scores[..., 1:],
        loss_first=loss[0],
        loss_second=loss[1],
        accuracy_first=accuracy[0],
        accuracy_second=accuracy[1],
    )


def previous_token(
    model: nn.Module, modules: list[nn.Module], tokens: Int64[Tensor, "batch position"], chunk: int = CHUNK
) -> Float64[Tensor, "layers heads"]:
    """The previous-token score of every head on any sequences, repeated or not, such as natural text.

    Args:
        model, modules, chunk: as in `behaviour`.
        tokens: all of one length, without padding.

    Raises:
        InputError: an attention pattern is not finite.
    """
    sums: list[list[Tensor]] = [[] for _ in modules]
    device = next(model.parameters()).device

    def reduce(layer: int, pattern: Tensor) -> None:
        sums[layer].append(len(pattern) * mean_diagonal(_finite(layer, pattern), 1).cpu())

    with torch.inference_mode(), tapped(modules, on_pattern=reduce):
        for part in tokens.split(chunk):
            model(input_ids=part.to(device))
    return torch.stack([torch.stack(parts).sum(0) for parts in sums]) / len(tokens)


def mean_diagonal(
    pattern: Float[Tensor, "batch heads query key"], offset: int, first_row: int = 0
) -> Float64[Tensor, " heads"]:
    """Mean of `pattern[i, i - offset]` over batch and rows from `first_row` on whose target is not position 0."""
    first_row = max(first_row, offset + 1)
    return pattern[:, :, first_row:].diagonal(first_row - offset, 2, 3).double().mean((0, 2))


def _diagonals(pattern: Float[Tensor, "batch heads query key"], second: int) -> Float64[Tensor, "heads columns"]:
    """Mean of the previous-token diagonal over all rows, then of every offset 0 to n over rows from `second` on."""
    offsets = range(pattern.shape[-1] - second + 1)
    return torch.stack([mean_diagonal(pattern, 1), *(mean_diagonal(pattern, o, second) for o in offsets)], -1).cpu()


def _finite(layer: int, pattern: Tensor) -> Tensor:
    if not torch.isfinite(pattern).all():
        raise InputError(f"the attention pattern of layer {layer} is not finite: load the model in float32")
    return pattern


def _prediction(
    logits: Float[Tensor, "batch position vocab"], tokens: Int64[Tensor, "batch position"], lead: int
) -> Float64[Tensor, "2 2"]:
    """Mean loss and accuracy (rows) on the tokens after the first of each copy (columns)."""
    length = tokens.shape[1] // 2
    columns = []
    for start in (lead, lead + length):
        seen, target = logits[:, start : start + length - 1].float(), tokens[:, start + 1 : start + length]
        loss = nn.functional.cross_entropy(seen.flatten(0, 1), target.flatten()).double()
        if not torch.isfinite(loss):
            raise InputError("the model's logits are not finite: load it in float32")
        columns.append(torch.stack([loss, (seen.argmax(-1) == target).double().mean()]))
    return torch.stack(columns, 1).cpu()

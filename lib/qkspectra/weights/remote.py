"""Tensors of safetensors files that stay on the Hub: headers first, then the bytes of the tensors that are asked for.

The format (https://github.com/huggingface/safetensors#format): eight bytes with the length of the header, the least
first; the header, JSON from names to dtype, shape and place; the tensors, without gaps.
"""

import json
import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Float64
from torch import Tensor

from qkspectra.errors import InputError
from qkspectra.weights.hub import Listing
from qkspectra.weights.ranges import Ranges
from qkspectra.weights.reader import FLOATS, INDEX, finite, places

CONNECTIONS = 8
"""Ranges in transfer at once."""

PIECE = 8 << 20
"""Bytes of the largest range: what is lost at most when a transfer fails for good."""

AHEAD = 64 << 20
"""Bytes that are read ahead of what is asked for, beside those of the next group."""

_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
# A header is read in one go where it is as short as most are, and where what is read too much is next to nothing.
_USUAL_HEADER, _LONGEST_HEADER = 1 << 16, 100_000_000


@dataclass(frozen=True)
class _Entry:
    """Where a tensor lies: bytes `start` to `stop - 1` of `file`."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass
class _Run:
    """Neighbouring tensors of one file, read together."""

    file: str
    start: int
    stop: int
    pieces: list[Future[bytearray]] = field(default_factory=list)

    def __len__(self) -> int:
        return self.stop - self.start

    def __contains__(self, place: int) -> bool:
        return self.start <= place < self.stop


class RemoteTensors:
    """Tensors of a repository at one commit; see `reader.Tensors`.

    Args:
        listing: of the repository.
        folder: holds the index, where there is one.

    Raises:
        InputError: a damaged header or index, a missing shard, or the Hub fails (see `Ranges.read`).
    """

    def __init__(self, listing: Listing, folder: Path) -> None:
        shards = places(folder / INDEX) if INDEX in listing.files else None
        names = sorted(set(shards.values())) if shards else ["model.safetensors"]
        if lost := [name for name in names if name not in listing.weights]:
            raise InputError(f"{listing.name} lacks the shard {lost[0]} at {listing.commit[:12]}: tell its owner")
        self._files = {name: Ranges(listing, name) for name in names}
        found = {
            name: entry for entries in _pool().map(_header, names, self._files.values()) for name, entry in entries
        }
        if shards and (
            lost := sorted(name for name, file in shards.items() if name not in found or found[name].file != file)
        ):
            raise InputError(f"{INDEX} places {lost[0]} in {shards[lost[0]]}, which does not hold it: tell its owner")
        self._entries: dict[str, _Entry] = {name: found[name] for name in shards or found}
        self.expect([])

    def names(self) -> list[str]:
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name].shape

    def expect(self, groups: Sequence[Sequence[str]]) -> None:
        """Says which tensors are going to be asked for, in which order, so that their bytes are already on the way.

        Asked for in another order, or twice, they are read all the same, at the cost of reading them again.

        Args:
            groups: names of tensors that are used together, such as a layer's.
        """
        self._next = 0
        self._groups = [_runs([self._entries[name] for name in names]) for names in groups]
        self._group_of = {name: index for index, names in enumerate(groups) for name in names}

    def get(self, name: str, rows: int | None = None) -> Float64[Tensor, "*shape"]:
        entry = self._entries[name]
        if entry.dtype not in FLOATS:
            raise InputError(
                f"{name} is stored as {entry.dtype}: quantised weights are not read, give the original ones"
            )
        shape = entry.shape if rows is None else (min(rows, entry.shape[0]), *entry.shape[1:])
        length = math.prod(shape) * _BYTES[entry.dtype]
        if rows is not None or name not in self._group_of:
            data = self._files[entry.file].read(entry.start, entry.start + length)
        else:
            data = self._expected(entry, self._group_of[name])
        values = torch.frombuffer(data, dtype=FLOATS[entry.dtype]) if length else torch.empty(0)
        return finite(name, values.reshape(shape).to(torch.float64))

    def _expected(self, entry: _Entry, group: int) -> bytearray:
        """The bytes of a tensor of a group, while those of the groups behind it are on the way."""
        self._start(group)
        self._next = max(self._next, group + 1)
        ahead = sum(len(run) for runs in self._groups[group + 1 : self._next] for run in runs)
        while self._next < len(self._groups) and (ahead <= AHEAD or self._next == group + 1):
            self._start(self._next)
            ahead += sum(map(len, self._groups[self._next]))
            self._next += 1
        for runs in self._groups[:group]:
            for run in runs:
                run.pieces.clear()
        run = next(run for run in self._groups[group] if run.file == entry.file and entry.start in run)
        first, last = (entry.start - run.start) // PIECE, (entry.stop - 1 - run.start) // PIECE
        data = bytearray().join(piece.result() for piece in run.pieces[first : last + 1])
        skipped = entry.start - run.start - first * PIECE
        return data[skipped : skipped + entry.stop - entry.start]

    def _start(self, group: int) -> None:
        for run in self._groups[group]:
            if not run.pieces:
                read = self._files[run.file].read
                starts = range(run.start, run.stop, PIECE)
                run.pieces = [_pool().submit(read, start, min(start + PIECE, run.stop)) for start in starts]


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="hub")


def _runs(entries: list[_Entry]) -> list[_Run]:
    """Ranges that hold the tensors: one for neighbours whose gap is below a hundredth of what they occupy."""
    runs: list[_Run] = []
    used = 0
    for entry in sorted(entries, key=lambda entry: (entry.file, entry.start)):
        size = entry.stop - entry.start
        if runs and runs[-1].file == entry.file and entry.start - runs[-1].stop <= (used + size) // 100:
            runs[-1].stop, used = entry.stop, used + size
        else:
            runs.append(_Run(entry.file, entry.start, entry.stop))
            used = size
    return runs


def _header(file: str, ranges: Ranges) -> list[tuple[str, _Entry]]:
    """The tensors of a file, whose places must fill it to its last byte."""
    damaged = InputError(f"{file} has a header that does not describe it: the file is damaged")
    size = ranges.listed.size
    if size < 8:
        raise damaged
    start = ranges.read(0, min(size, max(8, min(size // 512, _USUAL_HEADER))))
    length = int.from_bytes(start[:8], "little")
    if not 0 < length <= min(_LONGEST_HEADER, size - 8):
        raise damaged
    if len(start) < 8 + length:
        start += ranges.read(len(start), 8 + length)
    try:
        fields = json.loads(start[8 : 8 + length])
        entries = [
            (
                name,
                _Entry(
                    file, of["dtype"], tuple(map(int, of["shape"])), *(8 + length + int(o) for o in of["data_offsets"])
                ),
            )
            for name, of in fields.items()
            if name != "__metadata__"
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise damaged from None
    end = 8 + length
    for _, entry in sorted(entries, key=lambda pair: (pair[1].start, pair[1].stop)):
        stored = math.prod(entry.shape) * _BYTES.get(entry.dtype, 0)
        if entry.start != end or (entry.dtype in _BYTES and entry.stop - entry.start != stored):
            raise damaged
        end = entry.stop
    if end != size:
        raise damaged
    return entries

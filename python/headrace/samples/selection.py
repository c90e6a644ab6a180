"""Which items a dataset consists of, and in which order: arithmetic on numbers of chunks and rows, no I/O.

A selection is a list of pieces, each a part of one chunk, laid end to end; the items are numbered by their position in
that. Taking, splitting, repeating and concatenating make other selections of the same pieces. As long as positions
follow the order of storage, pieces stay few and whole, so that reading in windows of chunks pays; a selection in an
order of its own (`scattered`) is a list of positions on top.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["InStorage", "Located", "Selection"]

_Ints = npt.NDArray[np.int64]


class Located(NamedTuple):
    """Where items lie: arrays with an entry for each, int64, (items,)."""

    origin: _Ints
    """Which of the dataset's origins."""
    chunk: _Ints
    """Which of the origin's chunks."""
    row: _Ints
    """Which item of the chunk."""


@dataclass(frozen=True)
class Selection:
    """Items of some origins, by origin, chunk and row.

    Attributes:
        origin: int64, (pieces,): which origin.
        chunk: int64, (pieces,): which chunk of the origin.
        first: int64, (pieces,): the first row; where `rows` has an entry it is 0 and without meaning.
        count: int64, (pieces,): items.
        rows: the rows of pieces that are no stretch of neighbouring ones, by the piece's number. They never decrease.
        index: int64, (items,): positions among the pieces' items, for an order of its own; None for that of storage.
    """

    origin: _Ints
    chunk: _Ints
    first: _Ints
    count: _Ints
    rows: dict[int, _Ints] = field(default_factory=dict[int, _Ints])
    index: _Ints | None = None

    def __post_init__(self) -> None:
        starts = np.zeros(len(self.count) + 1, dtype=np.int64)
        np.cumsum(self.count, out=starts[1:])
        object.__setattr__(self, "starts", starts)

    starts: _Ints = field(init=False, repr=False)
    """int64, (pieces + 1,): the position of each piece's first item, and the number of items of all."""

    @staticmethod
    def whole(sizes: _Ints) -> "Selection":
        """All items of all chunks of one origin."""
        pieces = np.flatnonzero(sizes)
        zeros = np.zeros(len(pieces), dtype=np.int64)
        return Selection(zeros, pieces, zeros, np.asarray(sizes, dtype=np.int64)[pieces])

    def __len__(self) -> int:
        return len(self.index) if self.index is not None else int(self.starts[-1])

    @property
    def scattered(self) -> bool:
        """Whether items come in an order of their own."""
        return self.index is not None

    @property
    def pieces(self) -> int:
        """The number of pieces."""
        return len(self.count)

    def locate(self, positions: _Ints) -> Located:
        """Where the items at some positions lie.

        Args:
            positions: int64, each in ``range(len(self))``.
        """
        if self.index is not None:
            positions = self.index[positions]
        piece = np.searchsorted(self.starts, positions, side="right") - 1
        item = positions - self.starts[piece]
        row = self.first[piece] + item
        if self.rows:
            for number in np.unique(piece):
                if (rows := self.rows.get(int(number))) is not None:
                    mine = piece == number
                    row[mine] = rows[item[mine]]
        return Located(self.origin[piece], self.chunk[piece], row)

    def rows_of(self, piece: int) -> _Ints:
        """The rows of a piece in its chunk: int64, never decreasing."""
        rows = self.rows.get(piece)
        return self.first[piece] + np.arange(self.count[piece], dtype=np.int64) if rows is None else rows

    def chunks_used(self) -> tuple[_Ints, _Ints]:
        """Origins and chunks that hold an item, some of them several times."""
        if self.index is None:
            return self.origin, self.chunk
        piece = np.unique(np.searchsorted(self.starts, self.index, side="right") - 1)
        return self.origin[piece], self.chunk[piece]

    def part(self, start: int, stop: int) -> "Selection":
        """The items at ``range(start, stop)``, which lies within ``range(len(self))``."""
        if self.index is not None:
            return self._indexed(self.index[start:stop])
        start, stop = min(start, len(self)), min(stop, len(self))
        if start >= stop:
            return self._pieces(np.zeros(0, dtype=np.int64), {})
        begin = int(np.searchsorted(self.starts, start, side="right")) - 1
        end = int(np.searchsorted(self.starts, stop, side="left"))
        first, count = self.first[begin:end].copy(), self.count[begin:end].copy()
        rows = {piece - begin: rows for piece, rows in self.rows.items() if begin <= piece < end}
        cut = int(self.starts[end]) - stop
        count[-1] -= cut
        if (last := rows.get(end - begin - 1)) is not None:
            rows[end - begin - 1] = last[: len(last) - cut]
        cut = start - int(self.starts[begin])
        count[0] -= cut
        if 0 in rows:
            rows[0] = rows[0][cut:]
        else:
            first[0] += cut
        for piece in {0, end - begin - 1} & set(rows):
            _as_stretch(piece, first, rows)
        return Selection(self.origin[begin:end], self.chunk[begin:end], first, count, rows)

    def pick(self, positions: _Ints) -> "Selection":
        """The items at some positions, in that order; a position may occur several times."""
        if self.index is not None:
            return self._indexed(self.index[positions])
        return self._indexed(positions)

    def keep(self, kept: dict[int, _Ints]) -> "Selection":
        """Only some items of each piece: their numbers in it, increasing; pieces that are not named keep none."""
        numbers = np.array(sorted(number for number, items in kept.items() if len(items)), dtype=np.int64)
        chosen = self._pieces(numbers, {int(number): kept[int(number)] for number in numbers})
        if self.index is None:
            return chosen
        # Positions among the old pieces become positions among the new ones; what is gone falls out.
        mapping = np.full(int(self.starts[-1]), -1, dtype=np.int64)
        old = np.concatenate([self.starts[number] + kept[int(number)] for number in numbers] or [numbers])
        mapping[old] = np.arange(len(old))
        index = mapping[self.index]
        return chosen._indexed(index[index >= 0])

    def without(self, positions: _Ints) -> "Selection":
        """All items but those at some positions, ascending."""
        if self.index is not None:
            return self._indexed(np.delete(self.index, positions))
        pieces, begins = np.unique(np.searchsorted(self.starts, positions, side="right") - 1, return_index=True)
        first, count, rows = self.first.copy(), self.count.copy(), dict(self.rows)
        for piece, gone in zip(pieces.tolist(), np.split(positions, begins[1:]), strict=False):
            rows[piece] = np.delete(self.rows_of(piece), gone - self.starts[piece])
            first[piece], count[piece] = 0, len(rows[piece])
            _as_stretch(piece, first, rows)
        kept = np.flatnonzero(count)
        rows = {number: rows[piece] for number, piece in enumerate(kept.tolist()) if piece in rows}
        return Selection(self.origin[kept], self.chunk[kept], first[kept], count[kept], rows)

    def repeat(self, times: int) -> "Selection":
        """All items, several times over."""
        return Selection.concat([self] * times, [0] * times)

    @staticmethod
    def concat(parts: Sequence["Selection"], shifts: Sequence[int]) -> "Selection":
        """Items of several selections, one after another.

        Args:
            parts: at least one.
            shifts: what to add to the numbers of each one's origins.
        """
        scattered = any(part.scattered for part in parts)
        rows: dict[int, _Ints] = {}
        index: list[_Ints] = []
        pieces = items = 0
        for part in parts:
            rows |= {piece + pieces: value for piece, value in part.rows.items()}
            if scattered:
                index.append((np.arange(len(part), dtype=np.int64) if part.index is None else part.index) + items)
            pieces += part.pieces
            items += int(part.starts[-1])
        joined = Selection(
            np.concatenate([part.origin + shift for part, shift in zip(parts, shifts, strict=True)]),
            np.concatenate([part.chunk for part in parts]),
            np.concatenate([part.first for part in parts]),
            np.concatenate([part.count for part in parts]),
            rows,
        )
        return joined._indexed(np.concatenate(index)) if scattered else joined

    def in_storage_order(self) -> "InStorage":
        """The same items, piece by piece as they lie there; one that occurs several times does so as often."""
        if self.index is None:
            return InStorage(self, None)
        positions = np.argsort(self.index, kind="stable")
        return InStorage(self._stored(self.index[positions]), positions)

    def digest(self) -> str:
        """What tells this selection from others."""
        state = hashlib.blake2b(digest_size=16)
        for array in (self.origin, self.chunk, self.first, self.count):
            state.update(np.ascontiguousarray(array, dtype="<i8").tobytes() + b"|")
        for piece in sorted(self.rows):
            state.update(f"{piece}:".encode() + self.rows[piece].astype("<i8").tobytes())
        if self.index is not None:
            state.update(b"index" + self.index.astype("<i8").tobytes())
        return state.hexdigest()

    def _indexed(self, index: _Ints) -> "Selection":
        """The items at some positions among the pieces, as pieces if they come in the order of storage."""
        if len(index) and not bool(np.all(index[1:] > index[:-1])):
            return Selection(self.origin, self.chunk, self.first, self.count, self.rows, index)
        return self._stored(index)

    def _stored(self, index: _Ints) -> "Selection":
        """The items at some positions among the pieces, which never decrease."""
        piece = np.searchsorted(self.starts, index, side="right") - 1
        numbers, begins = np.unique(piece, return_index=True)
        items = np.split(index - self.starts[piece], begins[1:]) if len(numbers) else []
        return self._pieces(numbers, dict(zip(map(int, numbers), items, strict=True)))

    def _pieces(self, numbers: _Ints, items: dict[int, _Ints]) -> "Selection":
        """Some pieces, and of each the items with some numbers, which never decrease, and are at least one."""
        first = np.zeros(len(numbers), dtype=np.int64)
        count = np.zeros(len(numbers), dtype=np.int64)
        rows: dict[int, _Ints] = {}
        for place, number in enumerate(map(int, numbers)):
            chosen = items[number]
            old = self.rows.get(number)
            new = self.first[number] + chosen if old is None else old[chosen]
            count[place], rows[place] = len(new), new
            _as_stretch(place, first, rows)
        return Selection(self.origin[numbers], self.chunk[numbers], first, count, rows)


def _as_stretch(piece: int, first: _Ints, rows: dict[int, _Ints]) -> None:
    """Has a piece whose rows are neighbours be a stretch of them: the same items are told in one way only."""
    some = rows[piece]
    if len(some) and bool(np.all(np.diff(some) == 1)):
        first[piece] = some[0]
        del rows[piece]


class InStorage(NamedTuple):
    """Items in the order of storage, and what they are numbered in a selection that may have an order of its own."""

    selection: Selection
    positions: _Ints | None
    """int64, (items,): for each its position in the other selection; None if that is the same."""

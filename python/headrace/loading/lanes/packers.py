"""How documents become rows in one lane: pure, no I/O, exactly as docs/order.md defines it ("Dynamic lanes").

A packer is asked for one row after another, and asks for documents in their order. What it asks for is decided by its
state alone, so the state after a row is the same whatever lies ready. Between rows a state is a `Mark`: immutable,
small, and all that it takes to go on elsewhere.
"""

import bisect
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy.typing as npt

from headrace.errors import StateMismatch
from headrace.samples.packing import RowPacking

__all__ = ["Cursor", "Document", "Held", "Mark", "Packer", "Part", "first_item", "packer_of"]

Cursor = tuple[Any, int]
"""Where a document is in a lane: (item, its number among the item's documents); behind a `batch_map` the cursor of its
group's first document in the place of the item. Cursors of one lane compare as their documents follow each other."""

Held = tuple[Cursor, int, int]
"""Of a document that a packer keeps: the first entry that was not used, and where those end that were not; 0 for the
document's own end."""

Pull = Callable[[], "Document | None"]
"""Gives the next document; None after the last."""


_APART = 2**40
"""More than a lane's packer ever holds documents, one after another."""


class Document:
    """A document of a lane, as entries of flat arrays.

    Attributes:
        arrays: for each packed column, with those of other documents.
        begin: where its own entries begin.
        length: how many there are.
        cursor: where it is in its lane.
        after: where the lane goes on behind it.
        masked: whether its entries do not count for the loss.
    """

    __slots__ = ("after", "arrays", "begin", "cursor", "length", "masked")

    def __init__(
        self, arrays: list[npt.NDArray[Any]], begin: int, length: int, cursor: Cursor, after: Cursor, masked: bool
    ) -> None:
        self.arrays = arrays
        self.begin = begin
        self.length = length
        self.cursor = cursor
        self.after = after
        self.masked = masked


class Mark(NamedTuple):
    """Where a packer stands between two rows."""

    next: Cursor
    """Of the first document that it has to be given to go on, but for those that it holds."""
    offset: int = 0
    """Entries of that document that were used (concat, pad)."""
    held: tuple[Held, ...] = ()
    """Documents before it that wait for a row, in order; one of which full parts and another one are left may be there
    twice (best_fit)."""
    reached: Cursor | None = None
    """Behind the last document that a row holds an entry of (concat with an overlap); None if it is not known."""

    @property
    def begin(self) -> Cursor:
        """Of the first document that is needed."""
        return self.held[0][0] if self.held else self.next


class Part(NamedTuple):
    """What a row holds of a document."""

    cursor: Cursor
    first: int
    """Its first entry in the document."""
    entries: int
    length: int
    """Of the document."""
    masked: bool
    """Whether the document is."""


class Packer(ABC):
    """One lane's rows.

    Args:
        packing: what was asked for.
        mark: where it stands.
        pad: whether what is left when documents end is a row, filled up.
    """

    def __init__(self, packing: RowPacking, mark: Mark, *, pad: bool) -> None:
        self._packing = packing
        self._pad = pad
        self.mark = mark
        """Where it stands: replaced by each row."""
        self.dropped = 0
        """Documents left out, being longer than a row."""

    @abstractmethod
    def row(self, pull: Pull, rows: list[npt.NDArray[Any]], at: int) -> list[Part] | None:
        """Writes the next row, if there is one.

        Args:
            pull: gives documents from the mark's first on, without those before its `next` that are not held.
            rows: for each packed column an array (rows, width), which holds padding.
            at: which of these rows.

        Returns:
            What it holds, in order; None if documents have ended, and no row is left.

        Raises:
            StateMismatch: if documents are others than those that the mark was made with.
        """

    def _write(
        self, rows: list[npt.NDArray[Any]], at: int, place: int, document: Document, first: int, count: int
    ) -> Part:
        begin = document.begin + first
        for row, array in zip(rows, document.arrays, strict=True):
            row[at, place : place + count] = array[begin : begin + count]
        return Part(document.cursor, first, count, document.length, document.masked)


class _Concat(Packer):
    """Documents end to end."""

    def __init__(self, packing: RowPacking, mark: Mark, *, pad: bool) -> None:
        super().__init__(packing, mark, pad=pad)
        self._documents: deque[Document] = deque()
        """From the one that the next row begins in."""
        self._offset = mark.offset
        self._have = -mark.offset
        """Entries from the next row's first on."""

    def row(self, pull: Pull, rows: list[npt.NDArray[Any]], at: int) -> list[Part] | None:
        """See `Packer.row`."""
        width, documents = self._packing.width, self._documents
        while self._have < width:
            document = pull()
            if document is None:
                if not self._pad or self._have <= self._packing.overlap:
                    return None
                break
            if not documents and document.length <= self._offset and (document.length or self._offset):
                raise _other_document(document, f"more than {self._offset} tokens", f"{document.length}")
            if document.length:
                documents.append(document)
                self._have += document.length
        parts: list[Part] = []
        place, first = 0, self._offset
        for document in documents:
            count = min(document.length - first, width - place)
            if not count:
                break
            parts.append(self._write(rows, at, place, document, first, count))
            place += count
            first = 0
        self._advance(self._packing.seq_len)
        if self._packing.overlap:
            self.mark = self.mark._replace(reached=documents[-1].after if documents else self.mark.next)
        return parts

    def _advance(self, count: int) -> None:
        documents = self._documents
        self._have -= count
        while count and documents:
            document = documents[0]
            left = document.length - self._offset
            if left > count:
                self._offset += count
                self.mark = Mark(document.cursor, self._offset)
                return
            documents.popleft()
            self._offset = 0
            count -= left
            self.mark = Mark(document.after)


class _Alone(Packer):
    """A document a row: cut off, or cut into parts that are rows of their own."""

    def __init__(self, packing: RowPacking, mark: Mark, *, pad: bool) -> None:
        super().__init__(packing, mark, pad=pad)
        self._document: Document | None = None
        """The one that has parts left."""

    def row(self, pull: Pull, rows: list[npt.NDArray[Any]], at: int) -> list[Part] | None:
        """See `Packer.row`."""
        size = self._packing.seq_len
        document = self._document or self._next(pull)
        if document is None:
            return None
        first = self.mark.offset
        if first >= document.length:
            raise _other_document(document, f"more than {first} tokens", f"{document.length}")
        part = self._write(rows, at, 0, document, first, min(size, document.length - first))
        if self._packing.mode == "pad" and first + size < document.length:
            self._document = document
            self.mark = Mark(document.cursor, first + size)
        else:
            self._document = None
            self.mark = Mark(document.after)
        return [part]

    def _next(self, pull: Pull) -> Document | None:
        while (document := pull()) is not None:
            if self._packing.mode == "pad" and self._packing.long == "drop" and document.length > self._packing.seq_len:
                self.dropped += 1
            elif document.length or self.mark.offset:
                return document
        return None


class _Entry(NamedTuple):
    """What a best-fit packer can put into a row."""

    document: Document
    first: int
    """Of its entries in the document."""
    end: int
    """Where they end: full parts, or less than one."""


class _BestFit(Packer):
    """Whole documents, chosen among some: the oldest, then again and again the longest that fits."""

    def __init__(self, packing: RowPacking, mark: Mark, *, pad: bool) -> None:
        super().__init__(packing, mark, pad=pad)
        self._next = mark.next
        self._restoring = mark.held
        self._entries: dict[int, _Entry] = {}
        """By number, in order of arrival."""
        self._held: dict[int, Held] = {}
        """What a mark says of each entry, in the same order."""
        self._sorted: list[int] = []
        """length * 2^40 - number of each: of equally long ones the oldest is last, and only integers are compared."""
        self._number = 0
        self._ended = False

    def row(self, pull: Pull, rows: list[npt.NDArray[Any]], at: int) -> list[Part] | None:
        """See `Packer.row`."""
        if self._restoring:
            self._restore(pull)
        self._fill(pull)
        if not self._entries:
            self.mark = Mark(self._next)
            return None
        most = self._packing.max_documents or self._packing.seq_len
        room = self._packing.seq_len
        parts: list[Part] = []
        number = next(iter(self._entries))
        while True:
            entry, length = self._use(number)
            parts.append(self._write(rows, at, self._packing.seq_len - room, entry.document, entry.first, length))
            room -= length
            if not room or len(parts) == most:
                break
            if len(self._entries) < self._packing.lookahead:
                self._fill(pull)
            place = bisect.bisect_right(self._sorted, room * _APART) - 1
            if place < 0:
                break
            number = -self._sorted[place] % _APART
        self.mark = Mark(self._next, 0, tuple(self._held.values()))
        return parts

    def _fill(self, pull: Pull) -> None:
        while len(self._entries) < self._packing.lookahead and not self._ended:
            document = pull()
            if document is None:
                self._ended = True
                return
            self._next = document.after
            self._hold(document, 0, document.length)

    def _restore(self, pull: Pull) -> None:
        document: Document | None = None
        for cursor, first, end in self._restoring:
            while document is None or document.cursor != cursor:
                document = pull()
                if document is None or document.cursor > cursor:
                    raise StateMismatch(
                        f"the documents are not those of the state: expected one at {cursor}, found "
                        f"{'no more' if document is None else f'one at {document.cursor}'}"
                    )
            if document.length < max(first + 1, end):
                raise _other_document(document, f"{max(first + 1, end)} tokens or more", f"{document.length}")
            self._hold(document, first, end or document.length)
        self._restoring = ()

    def _hold(self, document: Document, first: int, end: int) -> None:
        """Keeps what is left of a document, as if it were one by itself."""
        size = self._packing.seq_len
        if end - first > size and self._packing.long == "drop":
            self.dropped += 1
            return
        # One entry stands for all full parts, of which only the first can be used, and one for what is left.
        middle = end - (end - first) % size
        if first < middle:
            self._add(_Entry(document, first, middle))
        if middle < end:
            self._add(_Entry(document, middle, end))

    def _add(self, entry: _Entry) -> None:
        number = self._number
        self._number += 1
        self._keep(number, entry)
        length = min(self._packing.seq_len, entry.end - entry.first)
        bisect.insort(self._sorted, length * _APART - number)

    def _keep(self, number: int, entry: _Entry) -> None:
        document, first, end = entry
        self._entries[number] = entry
        self._held[number] = (document.cursor, first, end if end < document.length else 0)

    def _use(self, number: int) -> tuple[_Entry, int]:
        """Takes an entry out, or its first part; and how long that is."""
        entry, size = self._entries[number], self._packing.seq_len
        if entry.end - entry.first > size:
            # Another full part follows, of the same age.
            self._keep(number, entry._replace(first=entry.first + size))
            return entry, size
        length = entry.end - entry.first
        del self._entries[number], self._held[number]
        del self._sorted[bisect.bisect_left(self._sorted, length * _APART - number)]
        return entry, length


def packer_of(packing: RowPacking, mark: Mark, *, pad: bool) -> Packer:
    """The packer of a mode."""
    if packing.mode == "concat":
        return _Concat(packing, mark, pad=pad)
    return (_BestFit if packing.mode == "best_fit" else _Alone)(packing, mark, pad=pad)


def first_item(cursor: Cursor) -> int:
    """The item that a document, or the first one of its group, was made of."""
    inner = cursor[0]
    while isinstance(inner, tuple):
        inner = cast("Cursor", inner)[0]
    return inner


def _other_document(document: Document, wanted: str, found: str) -> StateMismatch:
    return StateMismatch(
        f"the documents are not those of the state: expected {wanted} in the one at {document.cursor}, found {found}\n"
        "hint: functions of a pipeline must give the same whenever they are called with the same"
    )

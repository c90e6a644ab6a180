r"""Lines of text in blocks of bytes: how many there are, where they lie, and which of them are blank.

Files are looked through in blocks of any size, by several threads; what each block tells is put together in order.
Lines end with ``\n``; a line of nothing but JSON's white space (so also the ``\r`` of ``\r\n``) is blank.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["BOM", "Block", "Lines", "Span", "Spans", "find_lines", "joined", "look_through"]

BOM = b"\xef\xbb\xbf"
"""May stand at the start of a file of UTF-8."""

_NEWLINE = 10
_BLOCK = 1 << 20
"""Bytes that are compared at a time: what a processor's cache holds."""
_BLANKS = b" \t\r"
_IS_BLANK = np.zeros(256, np.bool_)
_IS_BLANK[list(_BLANKS + b"\n")] = True

Ints = npt.NDArray[np.int64]


class Lines(NamedTuple):
    """The lines of some bytes that are not blank."""

    starts: Ints
    """Where each begins."""
    stops: Ints
    r"""Where each ends, without its ``\n``."""
    numbers: Ints
    """Its number among all lines, from 0."""


class Block(NamedTuple):
    """What a block of a file tells of its lines."""

    newlines: int
    """How many lines end in it."""
    items: int
    """Lines that begin and end in it and are not blank."""
    stop: int
    r"""Behind its last ``\n``, counted from its start; 0 if it has none."""
    head: bool
    r"""Whether there is something before its first ``\n``, or at all if it has none."""
    tail: bool
    r"""Whether there is something behind its last ``\n``."""


class Span(NamedTuple):
    """Neighbouring lines of a file."""

    start: int
    stop: int
    line: int
    """The number of its first line, from 0."""
    items: int
    """Lines that are not blank."""


def find_lines(data: bytes | memoryview, *, is_start: bool = False) -> Lines:
    r"""The lines of whole spans of a file.

    Args:
        data: the bytes; the last line may lack its ``\n``.
        is_start: whether they are a file's first ones, where a byte order mark is no part of the line.
    """
    array = np.frombuffer(data, np.uint8)
    ends = _newlines(array)
    starts = np.concatenate(([0], ends + 1))
    if starts[-1] == len(array):
        starts = starts[:-1]
    else:
        ends = np.append(ends, len(array))
    if is_start and len(starts) and bytes(data[:3]) == BOM:
        starts[0] = 3
    numbers = np.flatnonzero(~_blank(array, starts, ends))
    return Lines(starts[numbers], ends[numbers], numbers)


def look_through(data: bytes | memoryview, *, is_start: bool = False) -> Block:
    """What a block tells, wherever in a file it was cut out.

    Args:
        data: the bytes.
        is_start: whether they are a file's first ones.
    """
    view = memoryview(data)
    if is_start and bytes(view[:3]) == BOM:
        block = look_through(view[3:])
        return block._replace(stop=block.stop and block.stop + 3)
    array = np.frombuffer(view, np.uint8)
    ends = _newlines(array)
    if not len(ends):
        return Block(0, 0, 0, _has_text(view), False)
    items = len(ends) - 1 - int(np.count_nonzero(_blank(array, ends[:-1] + 1, ends[1:])))
    first, last = int(ends[0]), int(ends[-1])
    return Block(len(ends), items, last + 1, _has_text(view[:first]), _has_text(view[last + 1 :]))


@dataclass(slots=True)
class Spans:
    """Cuts a file into spans: one for each block in which a line ends, without those that have no item.

    A file in one piece is put together just so.
    """

    spans: list[Span] = field(default_factory=list[Span])
    size: int = 0
    """Bytes so far."""
    _start: int = 0
    _line: int = 0
    _begun: bool = False
    """Whether the line that has not ended has something in it."""

    def add(self, block: Block, size: int) -> None:
        """Goes on with the next block, of `size` bytes."""
        if block.newlines:
            items = block.items + (self._begun or block.head)
            self._close(self.size + block.stop, items, block.newlines)
            self._begun = block.tail
        else:
            self._begun = self._begun or block.head
        self.size += size

    def end(self) -> list[Span]:
        r"""Ends the file, whose last line may lack its ``\n``."""
        if self._begun:
            self._close(self.size, 1, 1)
        return self.spans

    def _close(self, stop: int, items: int, lines: int) -> None:
        if items:
            self.spans.append(Span(self._start, stop, self._line, items))
        self._start = stop
        self._line += lines


def joined(spans: Iterable[Span], size: int) -> list[Span]:
    """Neighbouring spans as one, as far as that has at most so many bytes."""
    found: list[Span] = []
    for span in spans:
        if found and span.stop - found[-1].start <= size:
            found[-1] = found[-1]._replace(stop=span.stop, items=found[-1].items + span.items)
        else:
            found.append(span)
    return found


def _newlines(array: npt.NDArray[np.uint8]) -> Ints:
    """Where lines end: in blocks, so that what is compared does not take as much memory as the bytes."""
    blocks = [np.flatnonzero(array[at : at + _BLOCK] == _NEWLINE) + at for at in range(0, len(array), _BLOCK)]
    return np.concatenate(blocks) if blocks else np.zeros(0, np.int64)


def _blank(array: npt.NDArray[np.uint8], starts: Ints, stops: Ints) -> npt.NDArray[np.bool_]:
    """Which lines are blank. Few lines begin with white space; of these only long ones are looked at one by one."""
    blank = starts >= stops
    likely = np.flatnonzero(~blank)
    likely = likely[_IS_BLANK[array[starts[likely]]]]
    short = stops[likely] - starts[likely] == 1
    blank[likely[short]] = True
    for line in likely[~short].tolist():
        blank[line] = bool(_IS_BLANK[array[starts[line] : stops[line]]].all())
    return blank


def _has_text(data: memoryview) -> bool:
    # The first bytes tell it nearly always.
    return not (bool(_IS_BLANK[np.frombuffer(data[:64], np.uint8)].all()) and _all_blank(data[64:]))


def _all_blank(data: memoryview) -> bool:
    return bool(_IS_BLANK[np.frombuffer(data, np.uint8)].all())

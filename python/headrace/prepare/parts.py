"""A dataset in parts that are a moment's work each, for processes to read them.

Where a part begins depends on the data alone. What can be read in place is read by the process that works on it. A
file that is compressed as a whole is decompressed once, where parts are given out: no process has to hold it, or to
decompress what others work on.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from headrace.samples.cache import ChunkCache
from headrace.samples.pipeline import Fetched, OnError, Pipeline
from headrace.samples.source import Chunk

from .digests import Told

__all__ = ["Part", "PartReader", "Parts"]

_PART_BYTES = 1 << 20
"""Stored bytes of a part, about: a moment's tokenising, which a kill costs, and little enough to wait for its turn."""
_PART_ITEMS = 1 << 14
_CHUNK_CACHE = 64 << 20
"""Bytes of chunks that a process keeps for its next part; one chunk may be larger."""


class Given(NamedTuple):
    """The stored bytes of a part of a chunk, and where that part belongs."""

    origin: int
    chunk: int
    number: int
    """Of the part among those of the chunk."""
    first: int
    """Its first item."""
    data: bytes


class Part(NamedTuple):
    """Neighbouring positions of a dataset."""

    start: int
    stop: int
    given: Given | None = None
    """What it is made of, if it is not read in place."""

    def __repr__(self) -> str:
        return f"samples {self.start} to {self.stop - 1}"


class Parts(Sequence[Part], Told):
    """All of a dataset in parts. Those of compressed files cost least if they are asked for in order.

    Args:
        pipeline: the dataset.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        bounds: list[int] = [0]
        streamed: dict[int, tuple[int, int, int, int]] = {}
        for stop, place in _cut(pipeline):
            if place is not None:
                streamed[len(bounds) - 1] = place
            bounds.append(stop)
        self._bounds = np.array(bounds, np.int64)
        self._streamed = streamed
        self._open: _Stream | None = None

    def told_by(self) -> Any:
        """See `Told`: which samples they are is told by whoever reads them."""
        return self._bounds

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, index: int) -> Part: ...
    @overload
    def __getitem__(self, index: slice) -> list[Part]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        start, stop = self._bounds[index : index + 2].tolist()
        place = self._streamed.get(index)
        return Part(start, stop) if place is None else Part(start, stop, self._read(*place))

    def _read(self, origin: int, chunk: int, number: int, first: int) -> Given:
        stream = self._open
        if stream is None or stream.place != (origin, chunk) or stream.next > number:
            source = self._pipeline.origins[origin].source
            stream = self._open = _Stream((origin, chunk), source.stream(chunk))
        return Given(origin, chunk, number, first, stream.take(number))


class PartReader:
    """Reads parts. It pickles.

    Args:
        pipeline: the dataset.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._cache = ChunkCache(_CHUNK_CACHE)

    def fetch(self, part: Part, on_error: OnError) -> Fetched:
        """The samples of a part; see `Pipeline.fetch`."""
        cache = self._cache if part.given is None else self._with(part.given)
        return self._pipeline.fetch(np.arange(part.start, part.stop), cache, on_error=on_error)

    def _with(self, given: Given) -> ChunkCache:
        """A cache that has what was given: the chunk, of which it has a part."""
        cache = ChunkCache(0)
        origin = self._pipeline.origins[given.origin]

        def chunk() -> Chunk:
            part = origin.source.part(given.chunk, given.number, given.data, origin.columns)
            return _Shifted(part, given.first)

        cache.get(self._pipeline.key(given.origin, given.chunk), chunk)
        return cache


class _Stream:
    """A compressed chunk, as far as it is decompressed."""

    def __init__(self, place: tuple[int, int], parts: Iterator[bytes]) -> None:
        self.place = place
        self.next = 0
        """The part that comes next."""
        self._parts = parts

    def take(self, number: int) -> bytes:
        """A part; those before it are passed over."""
        data = b""
        while self.next <= number:
            data = next(self._parts)
            self.next += 1
        return data


class _Shifted(Chunk):
    """A part of a chunk, whose items keep their numbers."""

    def __init__(self, part: Chunk, first: int) -> None:
        self._part, self._first = part, first

    def __len__(self) -> int:
        return self._first + len(self._part)

    def __getitem__(self, row: int) -> Any:
        return self._part[row - self._first]

    def take(self, rows: Sequence[int]) -> list[Any]:
        return self._part.take([row - self._first for row in rows])


def _cut(pipeline: Pipeline) -> Iterator[tuple[int, tuple[int, int, int, int] | None]]:
    """The end of each part, and for one that is streamed its origin, chunk, number there, and first item."""
    selection = pipeline.selection
    if selection.scattered:
        yield from ((stop, None) for stop in range(_PART_ITEMS, len(selection), _PART_ITEMS))
        if len(selection):
            yield len(selection), None
        return
    waiting_bytes, waiting_from = 0.0, 0
    for piece, (start, stop) in enumerate(
        zip(selection.starts[:-1].tolist(), selection.starts[1:].tolist(), strict=True)
    ):
        origin, chunk = int(selection.origin[piece]), int(selection.chunk[piece])
        source = pipeline.origins[origin].source
        cuts = source.cuts(chunk)
        size = float(source.stored[chunk]) * (stop - start) / float(source.sizes[chunk])
        full = waiting_bytes + size > _PART_BYTES or stop - waiting_from > _PART_ITEMS
        if start > waiting_from and (cuts is not None or full):
            yield start, None
            waiting_bytes, waiting_from = 0.0, start
        if cuts is not None:
            rows = selection.rows.get(piece)
            for number, end in enumerate(_ends(cuts, rows, int(selection.first[piece]), stop - start)):
                if start + end > waiting_from:
                    yield start + end, (origin, chunk, number, int(cuts[number]))
                    waiting_from = start + end
            continue
        count = max(-(-int(size) // _PART_BYTES), -(-(stop - start) // _PART_ITEMS))
        for number in range(1, count):
            end = start + (stop - start) * number // count
            if end > waiting_from:
                yield end, None
                waiting_from = end
        waiting_bytes += size / max(count, 1)
    if len(selection) > waiting_from:
        yield len(selection), None


def _ends(cuts: npt.NDArray[np.int64], rows: npt.NDArray[np.int64] | None, first: int, count: int) -> list[int]:
    """How many of a piece's items lie before the end of each part of their chunk."""
    if rows is None:
        return np.clip(cuts[1:] - first, 0, count).tolist()
    return np.searchsorted(rows, cuts[1:]).tolist()

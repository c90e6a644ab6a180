"""Files of lines, plain or compressed: which lines lie in which chunk, and how they are read.

Plain files are cut at line ends into spans of about 4 MiB, each a chunk that is read in place. A file that is
compressed as a whole is one chunk, decompressed in memory. What a line is, is up to those who derive from this.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from headrace._files import Blob, File, MemoryBlob, Store
from headrace._traffic import Traffic
from headrace.errors import DataError
from headrace.samples.source import Chunk, Extent, Source, digest, files_in

from ._line_tables import SPAN, Progress, codec_of, find_tables, pieces
from ._lines import Lines, find_lines
from ._tables import Table

__all__ = ["LineChunk", "LineSource"]

IN_MEMORY = 1 << 20
"""Bytes of a file that is not worth an open descriptor for its chunk."""


class LineSource(Source):
    """Files of lines; blank ones are passed over.

    Attributes:
        is_json: whether a file that is one JSON array is taken for a mistake.
    """

    is_json: bool

    def __init__(
        self, store: Store, files: Sequence[File], tables: Sequence[tuple[Sequence[int], Table]], cache_dir: Path
    ) -> None:
        self.store, self.cache = store, cache_dir
        self.files = list(files)
        self.url = store.url
        self.remote = store.is_remote
        parts: list[npt.NDArray[np.int64]] = []
        for numbers, table in tables:
            part = table["spans"].copy()
            part[:, 0] = np.asarray(numbers, np.int64)[part[:, 0]]
            parts.append(part)
        spans = np.concatenate([*parts, np.zeros((0, 5), np.int64)])
        spans = spans[np.argsort(spans[:, 0], kind="stable")]
        packed = np.array([codec_of(file.path) is not None for file in self.files], np.bool_)[spans[:, 0]]
        self._parts = spans[packed]
        self.spans = _merged_spans(spans, packed)
        self.sizes = np.ascontiguousarray(self.spans[:, 4])
        owners: list[int] = self.spans[:, 0].tolist()
        compressed = np.array([codec_of(self.files[owner].path) is not None for owner in owners], np.bool_)
        lengths = np.array([self.files[owner].size for owner in owners], np.int64)
        self.stored = np.where(compressed, lengths, self.spans[:, 2] - self.spans[:, 1])

    @classmethod
    def open(cls, store: Store, files: Sequence[File], *, cache_dir: Path, progress: Progress) -> Self:
        """Counts lines, or finds in the cache what was counted before.

        Args:
            store: where the files lie.
            files: those to read, in storage order.
            cache_dir: where tables are kept.
            progress: called with a phase, bytes done and bytes in all; from any thread, one at a time.

        Raises:
            DataError: if a file is damaged, or is one JSON array instead of lines.
            StoreError: if the store does not answer.
        """
        tables = find_tables(store, files, cache_dir=cache_dir, progress=progress, is_json=cls.is_json)
        return cls(store, files, tables, cache_dir)

    @abstractmethod
    def make(
        self, blob: Blob, offset: int, lines: Lines, uri: str, line: int, columns: tuple[str, ...] | None
    ) -> "LineChunk":
        """The chunk of some lines; the arguments are those of `LineChunk`."""

    def load(self, chunk: int, columns: tuple[str, ...] | None = None) -> Chunk:
        """The lines of a span, or of a compressed file."""
        file, start, stop, line, items = self.span(chunk)
        uri = self.store.uri(file.path)
        codec = codec_of(file.path)
        if codec is not None:
            data = self.store.unpack(file, codec, size=stop)
            blob = MemoryBlob(data, uri)
        elif self.store.is_remote or file.size <= IN_MEMORY:
            data = self.store.read(file, start, stop)
            blob = MemoryBlob(data, uri)
        else:
            blob = self.store.open(file)
            data = blob.read(start, stop)
        lines = self._lines(data, file, start, stop, items)
        offset = 0 if isinstance(blob, MemoryBlob) else start
        return self.make(blob, offset, lines, uri, line, columns)

    def cuts(self, chunk: int) -> npt.NDArray[np.int64] | None:
        """See `Source.cuts`."""
        parts = self._parts_of(chunk)
        return np.concatenate([[0], np.cumsum(parts[:, 4])]) if len(parts) else None

    def stream(self, chunk: int) -> Iterator[bytes]:
        """See `Source.stream`."""
        file = self.span(chunk)[0]
        made, at = bytearray(), 0
        found = pieces(self.store, file, 0, file.size, SPAN)
        for start, stop in self._parts_of(chunk)[:, 1:3].tolist():
            while at + len(made) < stop and (piece := next(found, None)) is not None:
                made += piece
            yield bytes(made[start - at : stop - at])
            del made[: stop - at]
            at = stop

    def part(self, chunk: int, number: int, data: bytes, columns: tuple[str, ...] | None = None) -> Chunk:
        """See `Source.part`."""
        file = self.span(chunk)[0]
        start, stop, line, items = cast("list[int]", self._parts_of(chunk)[number, 1:].tolist())
        uri = self.store.uri(file.path)
        return self.make(MemoryBlob(data, uri), 0, self._lines(data, file, start, stop, items), uri, line, columns)

    def file(self, chunk: int) -> str:
        """The file that a chunk lies in."""
        return self.span(chunk)[0].path

    def identity(self, extent: Extent | None = None) -> str:
        """A digest of the files' names, sizes and numbers of items."""
        spans = self.spans if extent is None else self.spans[: extent.chunks]
        files = self.files[: files_in(extent, self.spans[:, 0], len(self.files))]
        items = np.bincount(spans[:, 0], spans[:, 4], len(files)).astype(np.int64)
        names = [[file.path, file.size] for file in files]
        return digest(self.format, names, items.tolist())

    def traffic(self) -> Traffic:
        """What the store counted."""
        return self.store.traffic()

    def span(self, chunk: int) -> tuple[File, int, int, int, int]:
        """File, start, stop, first line and items of a chunk."""
        number, start, stop, line, items = cast("list[int]", self.spans[chunk].tolist())
        return self.files[number], start, stop, line, items

    def _parts_of(self, chunk: int) -> npt.NDArray[np.int64]:
        """The spans of a compressed file; none of a plain one."""
        file, owners = int(self.spans[chunk, 0]), self._parts[:, 0]
        parts = self._parts[np.searchsorted(owners, file) : np.searchsorted(owners, file + 1)]
        return parts[parts[:, 4] > 0]

    def _lines(self, data: bytes | memoryview, file: File, start: int, stop: int, items: int) -> Lines:
        lines = find_lines(data, is_start=start == 0)
        if len(lines.starts) != items:
            raise DataError(
                f"{self.store.uri(file.path)} changed since it was opened: expected {items} lines that are not blank "
                f"in bytes {start} to {stop}, found {len(lines.starts)}"
            )
        return lines


def _merged_spans(spans: npt.NDArray[np.int64], packed: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The spans of plain files, and those of each compressed file as one of all its bytes."""
    if not packed.any():
        return spans
    same = np.concatenate([[False], packed[1:] & (spans[1:, 0] == spans[:-1, 0])])
    first = np.flatnonzero(~same)
    merged = spans[first]
    merged[:, 2] = spans[np.append(first[1:], len(spans)) - 1, 2]
    merged[:, 4] = np.add.reduceat(spans[:, 4], first)
    merged[packed[first], 1] = merged[packed[first], 3] = 0
    return merged


class LineChunk(Chunk):
    """Lines of one file, in place or in memory.

    Args:
        blob: the file, or some bytes of it.
        offset: where in that `lines` count from.
        lines: where they lie.
        uri: the file, for messages.
        line: the number of the first one, from 0.
    """

    def __init__(self, blob: Blob, offset: int, lines: Lines, uri: str, line: int) -> None:
        self._read = blob.read
        self._in_memory = isinstance(blob, MemoryBlob)
        # Views give Python's own integers.
        self._starts, self._stops = _compact(lines.starts), _compact(lines.stops)
        has_blanks = bool(len(lines.numbers)) and int(lines.numbers[-1]) + 1 != len(lines.numbers)
        self._numbers = _compact(lines.numbers) if has_blanks else range(len(lines.numbers))
        self._offset = offset
        self._uri = uri
        self._line = line
        self.nbytes = blob.nbytes + (2 + has_blanks) * self._stops.nbytes

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, row: int) -> Any:
        return self.sample(row, self.line_at(row))

    def take(self, rows: Sequence[int]) -> list[Any]:
        """Several samples; those near each other are read together."""
        if not rows or self._in_memory:
            return [self[row] for row in rows]
        starts, stops = self._starts, self._stops
        start, stop = min(starts[row] for row in rows), max(stops[row] for row in rows)
        if stop - start > 2 * sum(stops[row] - starts[row] for row in rows):
            return [self[row] for row in rows]
        data = self._read(self._offset + start, self._offset + stop)
        return [self.sample(row, data[starts[row] - start : stops[row] - start]) for row in rows]

    @abstractmethod
    def sample(self, row: int, line: bytes) -> Any:
        """What a line is.

        Raises:
            DataError: if it is damaged.
        """

    def line_at(self, row: int) -> bytes:
        """The bytes of a line."""
        return self._read(self._offset + self._starts[row], self._offset + self._stops[row])

    def where(self, row: int) -> str:
        """File and line, for messages."""
        return f"{self._uri}, line {self._line + self._numbers[row] + 1}"


def _compact(numbers: Any) -> memoryview:
    """Ascending integers, in half of the memory where they allow it."""
    return memoryview(numbers.astype(np.uint32 if not len(numbers) or numbers[-1] < 2**32 else np.int64))

"""Sequences of one length that never cross the end of a document: the last of each document is filled up."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.samples.source import Chunk, Extent, digest

from .documents import documents_of
from .layout import Records, Shard
from .reading import open_file
from .sequences import Shards, read_rows

__all__ = ["PieceSource"]

_Ints = npt.NDArray[np.int64]
_MASK = "loss_mask"


class PieceSource(Shards):
    """Pieces of documents. A sample is a dict with an array for each field, (length + overlap, ...), and
    ``loss_mask`` (uint8, (length + overlap,): 1 for records, 0 for what fills up).

    Where the pieces of each document begin is found when it is opened, and kept: 8 bytes for each document.

    Args:
        records: files of which it is known where documents end.
        length: records from one piece of a document to the next.
        overlap: further records in a piece, with which the next one of the document begins.
        pad: what fills up, in the first field; zero in the others.
        convert: see `Shards`.
    """  # noqa: D205

    def __init__(
        self, records: Records, *, length: int, overlap: int, pad: int, convert: np.dtype[Any] | None = None
    ) -> None:
        super().__init__(records, convert)
        self.length, self.overlap, self.pad = length, overlap, pad
        self.width = length + overlap
        self.pieces = [_pieces(shard, length, overlap) for shard in records.shards]
        """Of each shard, how many pieces lie before each document, and all: int64, (documents + 1,)."""
        self.sizes = np.array([starts[-1] for starts in self.pieces], np.int64)
        self.schema = {name: f"{self.type_of(name)}[{self.width}]" for name in records.columns}
        self.schema |= {_MASK: f"uint8[{self.width}]"}
        self.dtypes = {name: self.type_of(name).base for name in records.columns} | {_MASK: np.dtype(np.uint8)}

    def load(self, chunk: int, columns: tuple[str, ...] | None = None) -> Chunk:
        """See `Source.load`."""
        self.records.verify(chunk)
        return _PieceChunk(self, self.records.shards[chunk], self.pieces[chunk], columns or tuple(self.schema))

    def identity(self, extent: Extent | None = None) -> str:
        """See `Source.identity`."""
        return digest(*self.records.identity(extent), "pieces", self.length, self.overlap)


class _PieceChunk(Chunk):
    """A shard of which nothing was read yet."""

    def __init__(self, source: PieceSource, shard: Shard, pieces: _Ints, columns: tuple[str, ...]) -> None:
        self._source, self._shard, self._pieces, self._columns = source, shard, pieces, columns
        self._file = open_file(source.records.store, shard.file)

    def __len__(self) -> int:
        return int(self._pieces[-1])

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self.take([row])[0]

    def take(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """See `Chunk.take`."""
        number = np.array(rows, np.int64)
        found = self.gather([self], np.zeros(len(number), np.int64), number)
        return [{name: values[at] for name, values in found.items()} for at in range(len(number))]

    @classmethod
    def gather(cls, chunks: Sequence[Chunk], which: _Ints, rows: _Ints) -> dict[str, Any]:
        """See `Chunk.gather`; here there is always such a way."""
        mine = [chunk for chunk in chunks if isinstance(chunk, _PieceChunk)]
        source = mine[0]._source
        firsts, counts = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        for number, chunk in enumerate(mine):
            at = np.flatnonzero(which == number)
            firsts[at], counts[at] = chunk._places(rows[at])
        # A whole width is read of each, further back where the shard ends before.
        widths = np.array([min(source.width, chunk._shard.records) for chunk in mine], np.int64)
        width = int(widths.min())
        if width < source.width:
            return cls._one_by_one(mine, which, firsts, counts)
        lasts = np.array([chunk._shard.records - width for chunk in mine], np.int64)
        begins = np.minimum(firsts, lasts[which])
        shards, files = [chunk._shard for chunk in mine], [chunk._file for chunk in mine]
        values = read_rows(source, shards, files, which, begins, width)
        for at in np.flatnonzero(begins != firsts).tolist():
            for value in values.values():
                value[at] = np.roll(value[at], int(begins[at] - firsts[at]), axis=0)
        return mine[0]._filled(values, counts)

    def _places(self, rows: _Ints) -> tuple[_Ints, _Ints]:
        """The first records of pieces, and how many they have."""
        numbers = np.searchsorted(self._pieces, rows, side="right") - 1
        begins, ends = documents_of(self._shard).spans(numbers)
        firsts = begins + (rows - self._pieces[numbers]) * self._source.length
        return firsts, np.minimum(self._source.width, ends - firsts)

    @staticmethod
    def _one_by_one(
        chunks: "Sequence[_PieceChunk]", which: _Ints, firsts: _Ints, counts: _Ints
    ) -> dict[str, npt.NDArray[Any]]:
        """The same for shards that are shorter than a piece."""
        source = chunks[0]._source
        zero = np.zeros(1, np.int64)
        values: dict[str, npt.NDArray[Any]] = {}
        for at, (number, count) in enumerate(zip(which.tolist(), counts.tolist(), strict=True)):
            chunk = chunks[int(number)]
            part = read_rows(source, [chunk._shard], [chunk._file], zero, firsts[at : at + 1], count)
            for name, value in part.items():
                if name not in values:
                    values[name] = np.zeros((len(which), source.width, *value.shape[2:]), value.dtype)
                values[name][at, :count] = value[0]
        return chunks[0]._filled(values, counts)

    def _filled(self, values: dict[str, npt.NDArray[Any]], counts: _Ints) -> dict[str, npt.NDArray[Any]]:
        source = self._source
        mask = np.arange(source.width) < counts[:, None]
        for name, value in values.items():
            value[~mask] = source.pad if name == source.records.columns[0] else 0
        values[_MASK] = mask.view(np.uint8)
        return {name: values[name] for name in self._columns}


def _pieces(shard: Shard, length: int, overlap: int) -> _Ints:
    """How many pieces lie before each document: an empty one has none, others at least one."""
    documents = documents_of(shard)
    sizes = np.diff(documents.bounds(0, documents.count))
    counts = np.where(sizes > 0, np.maximum(1, -(-(sizes - overlap) // length)), 0)
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)

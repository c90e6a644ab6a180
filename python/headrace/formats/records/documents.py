"""Documents of records: of any length, each read by its number."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headrace.samples.source import Chunk, Extent, digest

from .layout import Documents, Records, Shard, fields_of
from .reading import open_file
from .sequences import Shards, read_rows

__all__ = ["DocumentSource", "documents_of"]

_RUN_BYTES = 1 << 20
"""Of documents one behind another that are read at once."""
_PLACE = np.zeros(1, np.int64)


class DocumentSource(Shards):
    """A sample is a dict: an array for each field of a record, (records of the document, ...), and what was stored with
    the document.

    Args:
        records: files of which it is known where documents end.
        convert: see `Shards`.
    """  # noqa: D205

    def __init__(self, records: Records, *, convert: np.dtype[Any] | None = None) -> None:
        super().__init__(records, convert)
        self.sizes = np.array([documents_of(shard).count for shard in records.shards], np.int64)
        self.schema = {name: f"{self.type_of(name)}[]" for name in records.columns}
        if records.meta is not None:
            self.schema |= {name: str(dtype) for name, dtype in fields_of(records.meta).items()}

    def load(self, chunk: int, columns: tuple[str, ...] | None = None) -> Chunk:
        """See `Source.load`."""
        self.records.verify(chunk)
        return _DocumentChunk(self, self.records.shards[chunk], columns or tuple(self.schema))

    def identity(self, extent: Extent | None = None) -> str:
        """See `Source.identity`."""
        return digest(*self.records.identity(extent), "documents")


class _DocumentChunk(Chunk):
    """A shard of which nothing was read yet."""

    def __init__(self, source: DocumentSource, shard: Shard, columns: tuple[str, ...]) -> None:
        self._source, self._shard, self._columns = source, shard, columns
        self._documents = documents_of(shard)
        self._file = open_file(source.records.store, shard.file)
        self._has_values = not set(columns).isdisjoint(source.records.columns)
        self._has_meta = not set(columns) <= set(source.records.columns)

    def __len__(self) -> int:
        return self._documents.count

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self.take([row])[0]

    def take(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """See `Chunk.take`."""
        numbers = np.array(rows, np.int64)
        found: list[dict[str, Any]] = [{} for _ in rows]
        if self._has_values:
            begins, stops = self._documents.spans(numbers)
            for first, stop in _runs(begins.tolist(), stops.tolist(), self._most):
                begin, end = int(begins[first]), int(stops[stop - 1])
                values = read_rows(
                    self._source, [self._shard], [self._file], _PLACE, begins[first : first + 1], end - begin
                )
                for at in range(first, stop):
                    part = slice(int(begins[at]) - begin, int(stops[at]) - begin)
                    # A copy, so that none keeps the memory of all.
                    found[at] = {name: value[0, part].copy() for name, value in values.items()}
        if self._has_meta:
            for sample, meta in zip(found, self._documents.meta(numbers), strict=True):
                sample |= meta
        return [{name: sample[name] for name in self._columns} for sample in found]

    @property
    def _most(self) -> int:
        """Records of documents that are read at once."""
        return _RUN_BYTES // self._source.records.dtype.itemsize


def _runs(begins: Sequence[int], stops: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Documents that lie one behind another, as ranges of their indexes: of at most so many records, or one."""
    first = 0
    for at in range(1, len(begins) + 1):
        if at == len(begins) or begins[at] != stops[at - 1] or stops[at] - begins[first] > most:
            yield first, at
            first = at


def documents_of(shard: Shard) -> Documents:
    """Where a shard's documents lie, which must be known."""
    assert shard.documents is not None
    return shard.documents

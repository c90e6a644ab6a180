"""Documents of records: of any length, each read by its number."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.errors import DataError
from headrace.samples.source import Chunk, digest

from .layout import Documents, Records, Shard, fields_of
from .sequences import Shards, open_shard, read_rows

__all__ = ["DocumentSource"]


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

    def identity(self) -> str:
        """See `Source.identity`."""
        return digest(*self.records.identity(), "documents")


class _DocumentChunk(Chunk):
    """A shard of which nothing was read yet."""

    def __init__(self, source: DocumentSource, shard: Shard, columns: tuple[str, ...]) -> None:
        self._source, self._shard, self._columns = source, shard, columns
        self._documents = documents_of(shard)
        self._opened = open_shard(source.records, shard)
        self._has_values = not set(columns).isdisjoint(source.records.columns)
        self._has_meta = not set(columns) <= set(source.records.columns)

    def __len__(self) -> int:
        return self._documents.count

    def __getitem__(self, row: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._has_values:
            first, stop = self._documents.bounds(row, row + 1).tolist()
            check_bounds(self._source.records, self._shard, first, stop)
            place = np.zeros(1, np.int64)
            begins = np.array([first], np.int64)
            values = read_rows(self._source, [(self._shard, self._opened)], place, begins, stop - first)
            found = {name: value[0] for name, value in values.items()}
        if self._has_meta:
            found |= self._documents.meta(row)
        return {name: found[name] for name in self._columns}

    def take(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """See `Chunk.take`."""
        return [self[row] for row in rows]


def documents_of(shard: Shard) -> Documents:
    """Where a shard's documents lie, which must be known."""
    assert shard.documents is not None
    return shard.documents


def check_bounds(records: Records, shard: Shard, first: int, stop: int) -> None:
    """Refuses a document that does not lie within its shard.

    Raises:
        DataError: naming it.
    """
    if not 0 <= first <= stop <= shard.records:
        raise DataError(
            f"{records.store.uri(shard.file.path)}: expected a document within its {shard.records} records, found one "
            f"from {first} to {stop}"
        )

"""Arrow IPC files and streams: a record batch is a chunk, its rows are the samples."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, cast

import numpy as np

from headrace import _core
from headrace._files import File, Store
from headrace.errors import DataError
from headrace.samples.source import Chunk, Source, digest

from ._line_tables import Progress, in_order

__all__ = ["ArrowChunk", "ArrowSource", "BatchSource", "Decode", "Footer", "read_footers"]

_THREADS = 16
"""Files whose footers are read at once."""
_OPEN = 64
"""Files that are kept open: what is known of their batches, no data."""

Decode = Callable[[dict[str, Any]], dict[str, Any]]
Footer = tuple[list[tuple[str, str]], list[int]]
"""A file's columns with their types, and the rows of each of its batches."""


class _Rows(Protocol):
    nbytes: int

    def __len__(self) -> int: ...
    def row(self, row: int) -> dict[str, Any]: ...
    def take(self, rows: list[int]) -> list[dict[str, Any]]: ...
    def arrays(self) -> Mapping[str, Any]: ...


class _ArrowFile(Protocol):
    schema: list[tuple[str, str]]
    rows: list[int]

    def read(self, batch: int, columns: list[str]) -> _Rows: ...


class BatchSource(Source):
    """Arrow files of one schema: that of the first file. Further columns of other files are left out."""

    def __init__(self, store: Store, files: Sequence[File], footers: Sequence[Footer]) -> None:
        self._store = store
        self._files = list(files)
        self.url = store.url
        self.remote = store.is_remote
        self.schema = dict(footers[0][0]) if footers else {}
        self._names: tuple[str, ...] = tuple(self.schema)
        _check_schemas(store, files, [schema for schema, _ in footers])
        rows = [np.array(batches, np.int64) for _, batches in footers]
        # Batches without rows are no chunks.
        batches = [np.flatnonzero(each) for each in rows]
        none = np.zeros(0, np.int64)
        self._owner = np.repeat(np.arange(len(rows)), [len(each) for each in batches])
        self._batch = np.concatenate([none, *batches])
        self.sizes = np.concatenate([none, *(each[each > 0] for each in rows)])
        shares = [_shares(file, each) for file, each in zip(files, rows, strict=True)]
        self.stored = np.concatenate([none, *(share[each > 0] for share, each in zip(shares, rows, strict=True))])
        self._start()

    def load(self, chunk: int, columns: tuple[str, ...] | None = None) -> Chunk:
        """Reads the columns of a record batch."""
        names = self._names if columns is None else columns
        return ArrowChunk(self._read(chunk, names), names, partial(self._where, chunk), None, frozenset())

    def file(self, chunk: int) -> str:
        """The file that a chunk lies in."""
        return self._files[int(self._owner[chunk])].path

    def identity(self) -> str:
        """A digest of the files' names and sizes, and the rows of each batch."""
        names = [[file.path, file.size] for file in self._files]
        return digest(self.format, names, self._owner.tolist(), self.sizes.tolist())

    def traffic(self) -> tuple[int, int, int]:
        """What the store counted."""
        return self._store.traffic()

    def _where(self, chunk: int, row: int) -> str:
        owner, batch = int(self._owner[chunk]), int(self._batch[chunk])
        return f"{self._store.uri(self._files[owner].path)}, batch {batch}, row {row}"

    def _read(self, chunk: int, columns: tuple[str, ...]) -> _Rows:
        owner, batch = int(self._owner[chunk]), int(self._batch[chunk])
        with self._lock:
            file = self._open.get(owner)
        if file is None:
            file = _open(self._store, self._files[owner])
        with self._lock:
            self._open[owner] = file
            self._open.move_to_end(owner)
            while len(self._open) > _OPEN:
                self._open.popitem(last=False)
        rows = file.read(batch, list(columns))
        if len(rows) != self.sizes[chunk]:
            raise DataError(f"{self._where(chunk, 0)}: expected {self.sizes[chunk]} rows, found {len(rows)}")
        return rows

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[int, _ArrowFile] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_open")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()


class ArrowSource(BatchSource):
    """Arrow IPC files and streams.

    A sample is a dict with a value for each column, as pyarrow's `to_pylist` gives it, but that lists of numbers are
    NumPy arrays.
    """

    format = "arrow"

    @classmethod
    def open(cls, store: Store, files: Sequence[File], *, progress: Progress) -> "ArrowSource":
        """Reads footers, or the headers of a stream's messages.

        Args:
            store: where the files lie.
            files: those to read, in storage order.
            progress: called with a phase, files done and files in all.

        Raises:
            DataError: if a file is damaged, or lacks a column of the first one.
            StoreError: if the store does not answer.
        """
        return cls(store, files, read_footers(store, files, progress))


class ArrowChunk(Chunk):
    """The rows of a record batch.

    Args:
        rows: the core's side of it.
        columns: the parts of a sample, in their order.
        where: names a row, for messages.
        decode: makes a sample of a row, in place.
        decoded: the columns that it changes.
    """

    def __init__(
        self,
        rows: _Rows,
        columns: tuple[str, ...],
        where: Callable[[int], str],
        decode: Decode | None,
        decoded: frozenset[str],
    ) -> None:
        self._rows = rows
        self._columns = columns
        self._where = where
        self._decode = decode
        self._decoded = decoded
        self.nbytes = rows.nbytes

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> dict[str, Any]:
        sample = self._rows.row(row)
        return sample if self._decode is None else self._made(row, sample, self._decode)

    def take(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Several samples, made by the core at once."""
        samples = self._rows.take(list(rows))
        decode = self._decode
        if decode is None:
            return samples
        return [self._made(row, sample, decode) for row, sample in zip(rows, samples, strict=True)]

    def arrays(self, columns: Sequence[str]) -> Mapping[str, Any]:
        """Whole columns as the core has them, those of numbers at least; others, and what is decoded, as lists."""
        plain = self._rows.arrays()
        found: dict[str, Any] = {name: plain[name] for name in columns if name in plain and name not in self._decoded}
        if len(found) < len(columns):
            samples = self.take(range(len(self)))
            found |= {name: [sample[name] for sample in samples] for name in columns if name not in found}
        return found

    def _made(self, row: int, sample: dict[str, Any], decode: Decode) -> dict[str, Any]:
        try:
            return decode(sample)
        except DataError as error:
            raise DataError(f"{self._where(row)}: {error}") from error.__cause__


def read_footers(store: Store, files: Sequence[File], progress: Progress) -> list[Footer]:
    """The schema and the rows of each batch of each file."""
    opened: list[Footer] = []

    def look(file: File) -> Footer:
        found = _open(store, file)
        return list(found.schema), list(found.rows)

    with ThreadPoolExecutor(min(_THREADS, max(len(files), 1)), "headrace-footers") as pool:
        for found in in_order(pool, look, files):
            opened.append(found)
            progress("reading footers", len(opened), len(files))
    return opened


def _open(store: Store, file: File) -> _ArrowFile:
    return cast(Any, _core).ArrowFile.open(cast(Any, store).core, file.path, file.size, file.version)


def _check_schemas(store: Store, files: Sequence[File], schemas: Sequence[list[tuple[str, str]]]) -> None:
    for file, schema in zip(files, schemas, strict=True):
        found = dict(schema)
        if len(found) != len(schema):
            raise DataError(f"{store.uri(file.path)}: expected columns of different names, found {schema}")
        for name, kind in schemas[0]:
            if found.get(name) != kind:
                raise DataError(
                    f"{store.uri(file.path)}: expected a column {name!r} of type {kind}, as in {files[0].path}, found "
                    f"{'one of ' + found[name] if name in found else 'none'}"
                )


def _shares(file: File, rows: "np.ndarray[Any, np.dtype[np.int64]]") -> "np.ndarray[Any, np.dtype[np.int64]]":
    """A file's bytes, shared among its batches by their rows."""
    ends = np.concatenate(([0], np.cumsum(rows)))
    return np.diff(file.size * ends // max(int(ends[-1]), 1)).astype(np.int64)

"""Arrow IPC files and streams: a record batch is a chunk, its rows are the samples."""

import json
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace import _core
from headrace._files import File, Store
from headrace._traffic import Traffic
from headrace.errors import DataError
from headrace.samples.source import Chunk, Extent, Source, digest, files_in

from ._line_tables import Progress, in_order
from ._tables import cached

__all__ = ["ArrowChunk", "ArrowSource", "BatchSource", "Decode", "Footer", "read_footers"]

_THREADS = 16
"""Files whose layout is found at once."""
_OPEN = 4096
"""Files whose layout is kept: where their batches are, no data. To find it in a stream is to pass over all of it."""
_MEANING = 1
"""Of the table in the cache: raised when its arrays come to mean something else."""

Decode = Callable[[dict[str, Any]], dict[str, Any]]
Ints = npt.NDArray[np.int64]


class Footer(NamedTuple):
    """What is known of a file once it was opened."""

    schema: list[tuple[str, str]]
    """Columns and their types."""
    rows: Ints
    """Of each batch."""
    stored: Ints
    """Bytes of each batch."""
    file: _core.ArrowFile | None
    """The file, if it had to be opened to tell."""


_sources: "weakref.WeakSet[BatchSource]" = weakref.WeakSet()


class BatchSource(Source):
    """Arrow files of one schema: that of the first file. Further columns of other files are left out."""

    def __init__(self, store: Store, files: Sequence[File], footers: Sequence[Footer]) -> None:
        self._store = store
        self._files = list(files)
        self.url = store.url
        self.remote = store.is_remote
        self.schema = dict(footers[0].schema) if footers else {}
        self._names: tuple[str, ...] = tuple(self.schema)
        _check_schemas(store, files, [footer.schema for footer in footers])
        # Batches without rows are no chunks.
        batches = [np.flatnonzero(footer.rows) for footer in footers]
        none = np.zeros(0, np.int64)
        self._owner = np.repeat(np.arange(len(footers)), [len(each) for each in batches])
        self._batch = np.concatenate([none, *batches])
        self.sizes = np.concatenate([none, *(footer.rows[footer.rows > 0] for footer in footers)])
        self.stored = np.concatenate([none, *(footer.stored[footer.rows > 0] for footer in footers)])
        self._start()
        opened = ((number, footer.file) for number, footer in enumerate(footers[:_OPEN]))
        self._open.update({number: file for number, file in opened if file is not None})

    def load(self, chunk: int, columns: tuple[str, ...] | None = None) -> Chunk:
        """Reads the columns of a record batch."""
        names = self._names if columns is None else columns
        return ArrowChunk(self._read(chunk, names), names, partial(self._where, chunk), None, frozenset())

    def file(self, chunk: int) -> str:
        """The file that a chunk lies in."""
        return self._files[int(self._owner[chunk])].path

    def identity(self, extent: Extent | None = None) -> str:
        """A digest of the files' names and sizes, and the rows of each batch."""
        chunks = slice(None if extent is None else extent.chunks)
        files = self._files[: files_in(extent, self._owner, len(self._files))]
        names = [[file.path, file.size] for file in files]
        return digest(self.format, names, self._owner[chunks].tolist(), self.sizes[chunks].tolist())

    def traffic(self) -> Traffic:
        """What the store counted."""
        return self._store.traffic()

    def _where(self, chunk: int, row: int) -> str:
        owner, batch = int(self._owner[chunk]), int(self._batch[chunk])
        return f"{self._store.uri(self._files[owner].path)}, batch {batch}, row {row}"

    def _read(self, chunk: int, columns: tuple[str, ...]) -> _core.Rows:
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

    def renew_lock(self) -> None:
        """Called in a forked child, where nobody lets go of a lock that another thread of its parent held."""
        self._lock = threading.Lock()

    def _start(self) -> None:
        _sources.add(self)
        self.renew_lock()
        self._open: OrderedDict[int, _core.ArrowFile] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_open")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()


def _renew_locks() -> None:
    for source in list(_sources):
        source.renew_lock()


os.register_at_fork(after_in_child=_renew_locks)


class ArrowSource(BatchSource):
    """Arrow IPC files and streams.

    A sample is a dict with a value for each column, as pyarrow's `to_pylist` gives it, but that lists of numbers are
    NumPy arrays.
    """

    format = "arrow"

    @classmethod
    def open(
        cls, store: Store, files: Sequence[File], *, progress: Progress, cache_dir: Path | None = None
    ) -> "ArrowSource":
        """Reads footers, or passes over streams, unless the cache has what they tell.

        Args:
            store: where the files lie.
            files: those to read, in storage order.
            progress: called with a phase, files done and files in all.
            cache_dir: where tables are kept, or None to keep none.

        Raises:
            DataError: if a file is damaged, or lacks a column of the first one.
            StoreError: if the store does not answer.
        """
        return cls(store, files, read_footers(store, files, progress, cache_dir))


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
        rows: _core.Rows,
        columns: tuple[str, ...],
        where: Callable[[int], str],
        decode: Decode | None,
        decoded: frozenset[str],
    ) -> None:
        self._rows = rows
        # The core keeps the stored order.
        self._order = None if rows.columns == list(columns) else columns
        self._where = where
        self._decode = decode
        self._decoded = decoded
        self.nbytes = rows.nbytes

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> dict[str, Any]:
        sample = self._rows.row(row)
        return sample if self._decode is None and self._order is None else self._made(row, sample)

    def take(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Several samples, made by the core at once."""
        samples = self._rows.take(list(rows))
        if self._decode is None and self._order is None:
            return samples
        return [self._made(row, sample) for row, sample in zip(rows, samples, strict=True)]

    def arrays(self, columns: Sequence[str]) -> Mapping[str, Any]:
        """Whole columns as the core has them, those of numbers at least; others, and what is decoded, as lists."""
        plain = self._rows.arrays()
        found: dict[str, Any] = {name: plain[name] for name in columns if name in plain and name not in self._decoded}
        if len(found) < len(columns):
            samples = self.take(range(len(self)))
            found |= {name: [sample[name] for sample in samples] for name in columns if name not in found}
        return found

    def _made(self, row: int, sample: dict[str, Any]) -> dict[str, Any]:
        if self._order is not None:
            sample = {name: sample[name] for name in self._order}
        if self._decode is None:
            return sample
        try:
            return self._decode(sample)
        except DataError as error:
            raise DataError(f"{self._where(row)}: {error}") from error.__cause__


def read_footers(
    store: Store, files: Sequence[File], progress: Progress, cache_dir: Path | None = None
) -> list[Footer]:
    """The columns and batches of files, from a table in the cache or by opening each."""
    found: list[Footer] = []

    def build() -> dict[str, Any]:
        found.extend(_open_all(store, files, progress))
        schemas = json.dumps([footer.schema for footer in found]).encode()
        return {
            "schemas": np.frombuffer(schemas, np.uint8),
            "batches": np.array([len(footer.rows) for footer in found], np.int64),
            "rows": np.concatenate([np.zeros(0, np.int64), *(footer.rows for footer in found)]),
            "stored": np.concatenate([np.zeros(0, np.int64), *(footer.stored for footer in found)]),
        }

    if cache_dir is None:
        return _open_all(store, files, progress)
    key = [_MEANING, store.url, [(file.path, file.size, file.version) for file in files]]
    table = cached(cache_dir, "batches", key, build)
    if found or not files:
        return found
    cuts = np.cumsum(table["batches"])[:-1]
    schemas = [[(name, kind) for name, kind in schema] for schema in json.loads(table["schemas"].tobytes())]
    parts = zip(schemas, np.split(table["rows"], cuts), np.split(table["stored"], cuts), strict=True)
    return [Footer(schema, rows, stored, None) for schema, rows, stored in parts]


def _open_all(store: Store, files: Sequence[File], progress: Progress) -> list[Footer]:
    found: list[Footer] = []

    def look(file: File) -> Footer:
        opened = _open(store, file)
        rows, stored = (
            np.frombuffer(memoryview(each), np.int64) for each in (opened.batch_rows(), opened.batch_bytes())
        )
        return Footer(opened.schema(), rows, stored, opened)

    with ThreadPoolExecutor(min(_THREADS, max(len(files), 1)), "headrace-footers") as pool:
        for footer in in_order(pool, look, files):
            found.append(footer if len(found) < _OPEN else footer._replace(file=None))
            progress("reading footers", len(found), len(files))
    return found


def _open(store: Store, file: File) -> _core.ArrowFile:
    return _core.ArrowFile.open(store.core, file.path, file.size, file.version)


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

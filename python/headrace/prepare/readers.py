"""Readers: what `optimize` and `map` make of inputs before the user's function sees them."""

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, SupportsIndex, cast

from headrace._files import File, Store
from headrace._units import as_int
from headrace.errors import DataError

from .digests import Told

__all__ = ["ParquetReader", "ParquetRows", "Reader"]

_FOOTERS_AT_ONCE = 16
_LOCAL_BUFFER = 1 << 20
_REMOTE_BUFFER = 8 << 20
"""Bytes that are read at once: a request to a store takes as long as some MiB of what it gives."""


class Reader(ABC):
    """Cuts inputs into parts of about the same work, and reads a part.

    A reader is pickled to the processes that read. For readers of your own, give `read`, and `split` where an input may
    be too large for one process.

    Example:
        >>> class Lines(headrace.Reader):
        ...     def split(self, inputs):
        ...         return [(path, half) for path in inputs for half in range(2)]
        ...     def read(self, part):
        ...         path, half = part
        ...         return path.upper(), half
        >>> made = headrace.optimize(
        ...     str, ["a", "b"], folder / "halves", reader=Lines(), num_workers=0, keep_data_ordered=True, verbose=False
        ... )
        >>> headrace.open(folder / "halves")[1]
        "('A', 1)"
    """

    def split(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The parts of inputs, in their order: the same ones in each run. Called once, where `optimize` is called.

        Example:
            >>> class Whole(headrace.Reader):
            ...     def read(self, part):
            ...         return part
            >>> Whole().split(["a", "b"])
            ['a', 'b']
        """
        return inputs

    @abstractmethod
    def read(self, part: Any) -> Any:
        """What the user's function gets of a part. Called in the process that calls that function.

        Example:
            >>> class Length(headrace.Reader):
            ...     def read(self, part):
            ...         return len(part)
            >>> Length().read("abc")
            3
        """


class ParquetRows(NamedTuple):
    """A part of a Parquet file: some rows of a row group."""

    path: str
    group: int
    start: int
    """The first row, from 0 in each row group."""
    stop: int
    """Behind the last one."""
    name: str = ""
    """The path without what signs or logs in, for messages."""
    version: str = ""
    """Tells the file that was cut from another one of this path."""

    def __repr__(self) -> str:
        return f"{self.name or self.path}, rows {self.start} to {self.stop - 1} of row group {self.group}"

    def told_by(self) -> Any:
        """See `Told`: what signs a URL is renewed."""
        return self.name or self.path, self.version, self.group, self.start, self.stop


Told.register(ParquetRows)


class ParquetReader(Reader, Told):
    """Cuts Parquet files into parts of some rows, so that one large file is work for all processes.

    The function gets a `pyarrow.Table` for each part. No part spans two row groups. A process that is given parts of
    one row group decodes it once, from front to back, and holds no more of it than a part and the page that it is at.

    Args:
        rows: rows of a part, at most.
        columns: those that are read; by default all of them.
        storage_options: settings of the store that files lie in.

    Raises:
        ValueError: if there is no row in a part.
        TypeError: if `columns` is no list of names.
        ImportError: if pyarrow is not installed.

    Example:
        >>> def count(table):
        ...     return {"rows": table.num_rows, "first": table["text"][0].as_py()}
        >>> reader = headrace.ParquetReader(rows=100, columns=["text"])
        >>> made = headrace.optimize(
        ...     count, [str(folder / "a.parquet")], folder / "counts", reader=reader, num_workers=0, verbose=False
        ... )
        >>> made.samples >= 1
        True
    """

    def __init__(
        self,
        *,
        rows: SupportsIndex = 65_536,
        columns: Sequence[str] | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        _parquet()
        self.rows = as_int(rows, "rows", least=1)
        if isinstance(columns, str):
            raise TypeError(f"columns must be a list of names, got {columns!r}")
        self.columns = None if columns is None else list(columns)
        self.storage_options = dict(storage_options or {})
        self._open: _Group | None = None

    def split(self, inputs: Sequence[Any]) -> Sequence[ParquetRows]:
        """See `Reader.split`.

        Raises:
            TypeError: if an input is no path.
            DataError: if a file is no Parquet file, or lacks a column.
            StoreError: if one cannot be read.

        Example:
            >>> parts = headrace.ParquetReader(rows=10).split([folder / "a.parquet"])
            >>> parts[0].group, parts[0].start, parts[0].stop <= 10
            (0, 0, True)
        """
        for path in inputs:
            if isinstance(path, bytes) or not isinstance(path, str | os.PathLike):
                raise TypeError(f"ParquetReader takes paths of Parquet files, got {path!r}")
        with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
            parts = list(pool.map(self._parts, [os.fspath(cast("str", path)) for path in inputs]))
        return [part for some in parts for part in some]

    def read(self, part: ParquetRows) -> Any:
        """See `Reader.read`.

        Raises:
            DataError: if the file is damaged, or is another one by now.
            StoreError: if it cannot be read.

        Example:
            >>> reader = headrace.ParquetReader(rows=10)
            >>> part = reader.split([folder / "a.parquet"])[0]
            >>> reader.read(part).num_rows == part.stop - part.start
            True
        """
        here = self._open
        if here is None or not here.is_before(part):
            place = self._place(part.path)
            if part.version and place.file.version != part.version:
                raise DataError(
                    f"{place.uri}: expected the file that was cut into parts, of version {part.version!r}, found "
                    f"another one of version {place.file.version!r}"
                )
            here = self._open = _Group(part, self._file(place), self.columns)
        return here.take(part)

    def told_by(self) -> Any:
        """What tells it from another: not settings of a store, as keys are renewed.

        Example:
            >>> headrace.ParquetReader(rows=100, columns=["text"]).told_by()
            (100, ['text'])
        """
        return self.rows, self.columns

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}

    def _parts(self, path: str) -> list[ParquetRows]:
        place = self._place(path)
        metadata = self._file(place).metadata
        name = place.uri
        if self.columns is not None:
            there = {metadata.schema.column(number).path for number in range(metadata.num_columns)}
            there |= {name.partition(".")[0] for name in there}
            if missing := [name for name in self.columns if name not in there]:
                raise DataError(f"{name}: expected a column {missing[0]!r}, found {', '.join(sorted(there))}")
        groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        return list(self._cut(path, place, groups))

    def _cut(self, path: str, place: "_Place", groups: Sequence[int]) -> Iterator[ParquetRows]:
        for group, count in enumerate(groups):
            # Equal parts: a rest of a few rows would cost as much as a part to begin with.
            parts = -(-count // self.rows)
            bounds = [count * number // parts for number in range(parts + 1)] if parts else []
            for start, stop in pairwise(bounds):
                yield ParquetRows(path, group, start, stop, place.uri, place.file.version)

    def _place(self, path: str) -> "_Place":
        store = Store([path], self.storage_options)
        if len(store.files) != 1:
            raise DataError(f"{store.url}: expected one Parquet file, found {len(store.files)} files")
        return _Place(store, store.files[0])

    def _file(self, place: "_Place") -> Any:
        arrow, parquet = _parquet()
        buffer = _REMOTE_BUFFER if place.store.is_remote else _LOCAL_BUFFER
        try:
            return parquet.ParquetFile(_Bytes(place.store, place.file), buffer_size=buffer, pre_buffer=False)
        except arrow.ArrowInvalid as error:
            raise DataError(f"{place.uri}: expected a Parquet file: {error}") from None


class _Place(NamedTuple):
    """Where a file lies."""

    store: Store
    file: File

    @property
    def uri(self) -> str:
        """Its full name, without secrets."""
        return self.store.uri(self.file.path)


class _Group:
    """A row group that is decoded from front to back, as parts of it are asked for."""

    def __init__(self, part: ParquetRows, file: Any, columns: list[str] | None) -> None:
        self._path, self._group = part.path, part.group
        self._name = part.name or part.path
        self._at = 0
        self._arrow, _ = _parquet()
        self._schema = None
        self._held: Any = None
        self._batches = iter(
            file.iter_batches(part.stop - part.start, row_groups=[part.group], columns=columns, use_threads=False)
        )

    def is_before(self, part: ParquetRows) -> bool:
        """Whether a part lies where it has not come yet."""
        return (self._path, self._group) == part[:2] and self._at <= part.start

    def take(self, part: ParquetRows) -> Any:
        """The rows of a part, as a table."""
        found: list[Any] = []
        while self._at < part.stop:
            batch, self._held = self._held, None
            if batch is None:
                batch = self._next(part)
            rows = batch.num_rows
            start, stop = max(part.start - self._at, 0), min(part.stop - self._at, rows)
            if start < stop:
                found.append(batch.slice(start, stop - start))
            if stop < rows:
                self._held = batch.slice(stop)
            self._at += stop
        return self._arrow.Table.from_batches(found)

    def _next(self, part: ParquetRows) -> Any:
        try:
            batch = next(self._batches, None)
        except (self._arrow.ArrowInvalid, OSError) as error:
            raise DataError(f"{self._name}: row group {self._group} cannot be read: {error}") from None
        if batch is None:
            raise DataError(f"{self._name}: expected {part.stop} rows in row group {self._group}, found {self._at}")
        return batch


class _Bytes(io.RawIOBase):
    """A file of a store, as Python has files."""

    def __init__(self, store: Store, file: File) -> None:
        self._read = partial(store.read, file)
        self._size, self._at = file.size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int = -1, /) -> bytes:
        stop = self._size if size < 0 else min(self._at + size, self._size)
        data = self._read(self._at, max(stop, self._at))
        self._at += len(data)
        return data


def _parquet() -> tuple[Any, Any]:
    try:
        import pyarrow as arrow  # pyright: ignore[reportMissingTypeStubs]
        import pyarrow.parquet as parquet  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise ImportError("ParquetReader needs pyarrow\nhint: pip install 'headrace[prepare]'") from error
    return cast("Any", arrow), cast("Any", parquet)

"""headrace's own stores of records (docs/formats/records.md): their index, and where documents end."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from headrace._files import File, Store, inside
from headrace.errors import DataError

from .layout import Documents, Reader, Records, Shard, fields_of

__all__ = ["INDEX_FORMAT", "VERSION", "descr_of", "dtype_of", "is_records", "read_store"]

INDEX_FORMAT = "headrace-records"
VERSION = 1

_Ints = npt.NDArray[np.int64]


def is_records(index: Mapping[str, Any]) -> bool:
    """Whether an ``index.json`` is of such a store."""
    return index.get("format") == INDEX_FORMAT


def read_store(store: Store, *, verify: bool = False) -> tuple[Records, Literal["stream", "documents"]]:
    """A store by its index.

    Args:
        store: the folder.
        verify: whether files are compared with their digests in the index when a shard is first opened.

    Returns:
        Its records, and its kind: ``"stream"`` or ``"documents"``.

    Raises:
        DataError: if the index is damaged, or a file is missing or not of its size.
        MissingError: if there is no index.
    """
    where = store.uri("index.json")
    files = {file.path: file for file in store.files}
    index: Any = json.loads(store.read(files["index.json"] if "index.json" in files else store.head("index.json")))
    try:
        if not is_records(index) or type(index["version"]) is not int or index["version"] != VERSION:
            raise DataError(
                f"{where}: expected an index of version {VERSION}, found {index.get('format')!r} of version "
                f"{index.get('version')!r}"
            )
        kind = index["kind"]
        if kind not in ("stream", "documents"):
            raise DataError(f'{where}: expected the kind "stream" or "documents", found {kind!r}')
        dtype = dtype_of(index["dtype"])
        meta = None if index["meta"] is None else dtype_of(index["meta"])
        if not isinstance(index["shards"], list):
            raise DataError(f"{where}: expected a list of shards, found a {type(index['shards']).__name__}")
        entries = [_Entry(store, where, files, entry) for entry in cast("list[Any]", index["shards"])]
        shards = [entry.shard(dtype, meta, index["documents"]) for entry in entries]
        content = [entry.text("digest") for entry in entries]
    except DataError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{where}: expected the index of a store of records: {type(error).__name__}: {error}") from None
    digests = [entry.digests() for entry in entries] if verify else []
    return Records("records", store, dtype, shards, None, meta, content, digests), kind


class _Entry:
    """A shard as the index tells it."""

    def __init__(self, store: Store, where: str, files: Mapping[str, File], entry: Mapping[str, Any]) -> None:
        self._store, self._where, self._files, self._entry = store, where, files, entry

    def shard(self, dtype: np.dtype[Any], meta: np.dtype[Any] | None, has_documents: bool) -> Shard:
        records = self.count("records")
        documents = None
        if has_documents:
            count = self.count("documents")
            # Nothing is written where there would be no byte.
            ends = self.file("ends", 8 * count) if count else None
            table = self.file("meta", meta.itemsize * count) if meta is not None and count else None
            documents = _Ends(self._store, ends, table, meta, count, records)
        return Shard(self.file("name", dtype.itemsize * records), 0, records, documents)

    def digests(self) -> list[tuple[File, str]]:
        """Files, and what their bytes give."""
        kinds = {"name": "digest", "ends": "ends_digest", "meta": "meta_digest"}
        return [
            (self._files[self.text(kind)], self.text(digest)) for kind, digest in kinds.items() if kind in self._entry
        ]

    def count(self, name: str) -> int:
        value = self._entry[name]
        if type(value) is not int or value < 0:
            raise ValueError(f"{name} is {value!r}")
        return value

    def text(self, name: str) -> str:
        return str(self._entry[name])

    def file(self, name: str, size: int) -> File:
        path = inside(self.text(name), self._where)
        file = self._files.get(path)
        if file is None:
            raise DataError(f"{self._store.uri(path)}: expected this file as {self._where} says, found none")
        if file.size != size:
            raise DataError(f"{self._store.uri(path)}: expected {size} bytes as {self._where} says, found {file.size}")
        return file


class _Ends(Documents):
    """Where documents end, one number of 64 bits each; and a table of what is stored with them."""

    def __init__(
        self,
        store: Store,
        ends: File | None,
        table: File | None,
        meta: np.dtype[Any] | None,
        count: int,
        records: int,
    ) -> None:
        self._ends = None if ends is None else Reader(store, ends)
        self._table = None if table is None else Reader(store, table)
        self._uri = "" if ends is None else store.uri(ends.path)
        self._meta = meta
        self.count, self._records = count, records

    def bounds(self, first: int, stop: int) -> _Ints:
        """See `Documents.bounds`."""
        if self._ends is None:
            return np.zeros(1, np.int64)
        ends = self._ends.numbers(0, "<i8", max(0, first - 1), stop)
        found = ends if first else np.concatenate(([0], ends))
        if not (np.diff(found) >= 0).all() or (len(found) and not 0 <= found[0] <= found[-1] <= self._records):
            raise self._damaged(first)
        return found

    def spans(self, numbers: _Ints) -> tuple[_Ints, _Ints]:
        """See `Documents.spans`."""
        if self._ends is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        stops = self._ends.many(8 * numbers, "<i8")
        begins = np.where(numbers > 0, self._ends.many(8 * np.maximum(0, numbers - 1), "<i8"), 0)
        wrong = (begins < 0) | (begins > stops) | (stops > self._records)
        if wrong.any():
            raise self._damaged(int(numbers[wrong][0]))
        return begins, stops

    def meta(self, numbers: _Ints) -> Sequence[Mapping[str, Any]]:
        """See `Documents.meta`."""
        if self._meta is None or self._table is None:
            return super().meta(numbers)
        names = fields_of(self._meta)
        records = self._table.many(numbers * self._meta.itemsize, self._meta)
        return [{name: record[name] for name in names} for record in records]

    def _damaged(self, number: int) -> DataError:
        return DataError(
            f"{self._uri}: expected ends of documents that increase up to {self._records}, found others from document "
            f"{number} on"
        )


def descr_of(dtype: np.dtype[Any]) -> list[list[Any]]:
    """A type with fields as JSON: a list of name, type and, for fields of several numbers, shape."""
    found: list[list[Any]] = []
    for name, field in fields_of(dtype).items():
        found.append([name, field.base.str, *([list(field.shape)] if field.shape else [])])
    return found


def dtype_of(descr: Any) -> np.dtype[Any]:
    """The type that `descr_of` wrote.

    Raises:
        ValueError: if it is none.
    """
    fields = [(name, kind, *(tuple(part) for part in shape)) for name, kind, *shape in cast("list[Any]", descr)]
    dtype = np.dtype(cast("Any", fields))
    if dtype.hasobject or not dtype.names or not dtype.itemsize:
        raise ValueError(f"{descr!r} is no type of records")
    return dtype

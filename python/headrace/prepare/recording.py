"""`StreamWriter` and `DocumentWriter`: headrace's own stores of records (docs/formats/records.md).

A shard is there whole or not at all: it is written under a hidden name, and renamed. Then the index is replaced, which
lists the shards that are whole. So whatever becomes of a writer, a reader finds a prefix of what was written.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, SupportsIndex

import numpy as np

from headrace._units import as_int, parse_bytes
from headrace.errors import DataError, StoreError
from headrace.formats.records.layout import fields_of
from headrace.formats.records.store import INDEX_FORMAT, VERSION, descr_of

from .arguments import check_choice, local_folder
from .record_shards import INDEX, OpenShard, files_of, lock, read_index, unlock, write_index
from .record_values import fitting, record_type, rows_of

__all__ = ["DocumentWriter", "StreamWriter"]

_MOST_PARTS = 100_000


class _Writer:
    """Shards of records, and the index that lists them."""

    _kind: Literal["stream", "documents"]

    def __init__(
        self,
        path: str | os.PathLike[str],
        dtype: Any,
        *,
        meta: Any = None,
        documents: bool,
        shard_bytes: str | SupportsIndex = "1GiB",
        mode: Literal["append", "overwrite"] | None = None,
        part: SupportsIndex | None = None,
        name: str = "tokens",
    ) -> None:
        check_choice("mode", mode, (None, "append", "overwrite"))
        self._folder = local_folder(path, "path")
        self._dtype = record_type(dtype, name)
        self._meta = None if meta is None else record_type(meta, "")
        if self._meta is not None and (both := set(fields_of(self._meta)) & set(fields_of(self._dtype))):
            raise ValueError(f"meta and values must have other names, both have {sorted(both)[0]!r}")
        self._documents = documents
        self._most = max(1, parse_bytes(shard_bytes, "shard_bytes") // self._dtype.itemsize)
        self._part = None if part is None else as_int(part, "part", least=0, most=_MOST_PARTS - 1)
        prefix = "" if self._part is None else f"{self._part:05d}-"
        self._stem = f"shard-{prefix}"
        self._index = INDEX if self._part is None else f"part-{self._part:05d}.json"
        self._open: OpenShard | None = None
        self._closed = False
        # The shards of a store that this one takes the place of when it is closed.
        self._replaced: list[dict[str, Any]] | None = None
        self._lock = lock(self._folder, f".lock-{self._index}")
        try:
            self._entries = self._begin(mode)
            self._before = len(self._entries) if (self._folder / self._index).exists() else None
        except BaseException:
            self._unlock()
            raise

    def _begin(self, mode: str | None) -> list[dict[str, Any]]:
        """The shards that are there and stay."""
        path = self._folder / self._index
        for left in self._folder.glob(f".{self._stem}*.tmp"):
            left.unlink()
        there = sorted(entry.name for entry in self._folder.iterdir() if not entry.name.startswith("."))
        if self._part is not None:
            # What other parts write lies beside it.
            there = [name for name in there if name == self._index or name.startswith(self._stem) or name == INDEX]
            if mode == "overwrite" and INDEX in there:
                raise ValueError(
                    f"{self._folder}: expected parts that are not complete yet, found {INDEX}\n"
                    'hint: mode="append" adds to what it lists; to replace that, remove the folder first'
                )
        if mode is None and there:
            raise ValueError(
                f"{self._folder}: expected an empty folder, found {', '.join(there[:3])}\n"
                'hint: mode="append" adds to what is there, mode="overwrite" replaces it'
            )
        if not path.exists():
            if mode == "append" and (self._folder / INDEX).exists():
                self._expect_alike(self._folder / INDEX)
            return []
        if mode == "append":
            self._expect_alike(path)
        index = read_index(path)
        if mode == "overwrite":
            self._replaced = list(index["shards"])
            return []
        for entry in index["shards"]:
            for file in files_of(entry):
                if not (self._folder / file).exists():
                    raise DataError(f"{self._folder / file}: expected this file as {path} says, found none")
        return list(index["shards"])

    def _expect_alike(self, path: Path) -> None:
        index = read_index(path)
        for key, value in self._head().items():
            if index[key] != value:
                raise ValueError(f"{path}: expected {key} {value!r} to add to it, found {index[key]!r}")

    def _head(self) -> dict[str, Any]:
        return {
            "format": INDEX_FORMAT,
            "version": VERSION,
            "kind": self._kind,
            "dtype": descr_of(self._dtype),
            "documents": self._documents,
            "meta": None if self._meta is None else descr_of(self._meta),
        }

    @property
    def records(self) -> int:
        """Records written, with those that were there before."""
        return sum(entry["records"] for entry in self._entries) + (0 if self._open is None else self._open.records)

    def _shard(self) -> OpenShard:
        if self._closed:
            raise ValueError(f"{self._folder}: this writer is closed")
        if self._open is not None and self._open.broken:
            raise StoreError(
                f"{self._folder}: a write has failed, and what belongs to its shard is lost\n"
                'hint: a writer with mode="append" goes on behind the shards that were finished'
            )
        if self._open is None:
            number = len(self._entries)
            while (self._folder / f"{self._stem}{number:05d}.bin").exists():
                number += 1
            self._open = OpenShard(self._folder, f"{self._stem}{number:05d}", self._documents, self._meta)
        return self._open

    def _end_shard(self) -> None:
        if self._open is None:
            return
        shard, self._open = self._open, None
        if (entry := shard.finish()) is not None:
            self._entries.append(entry)
            if self._replaced is None:
                self._write_index()

    def _write_index(self) -> None:
        write_index(self._folder / self._index, {**self._head(), "shards": self._entries})

    def close(self) -> None:
        """Ends the last shard and writes the index; what was written is there. Can be called again."""
        if self._closed:
            return
        try:
            self._end_shard()
            self._closed = True
            if self._replaced is not None or not (self._folder / self._index).exists():
                self._write_index()
            # Names that were free because files were missing are those of new ones by now.
            self._remove(self._replaced or [], keep=self._entries)
        finally:
            self._unlock()

    def discard(self) -> None:
        """Takes back what this writer wrote, and closes it; what it found in the folder and left stays.

        Does nothing to a writer that is closed.

        Example:
            >>> with headrace.StreamWriter(folder / "taken", "uint16") as writer:
            ...     writer.write([1, 2])
            ...     writer.discard()
            >>> list((folder / "taken").iterdir())
            []
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._open is not None:
                self._open.drop()
            before = self._before or 0
            written, self._entries = self._entries[before:], self._entries[:before]
            if self._before is None:
                (self._folder / self._index).unlink(missing_ok=True)
            elif self._replaced is None:
                self._write_index()
            self._remove(written)
        finally:
            self._unlock()

    def _remove(self, entries: Sequence[Mapping[str, Any]], keep: Sequence[Mapping[str, Any]] = ()) -> None:
        kept = {file for entry in keep for file in files_of(entry)}
        for entry in entries:
            for file in files_of(entry):
                if file not in kept:
                    (self._folder / file).unlink(missing_ok=True)

    def _unlock(self) -> None:
        held, self._lock = self._lock, -1
        unlock(held, self._folder / f".lock-{self._index}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class StreamWriter(_Writer):
    """Writes records of one type, one behind another: tokens, or tokens with something for each of them.

    What is written is read with `headrace.open`, and with NumPy alone: each shard is nothing but its records.

    Args:
        path: a folder, made if it is not there.
        dtype: of a record: a NumPy type with fields, such as ``[("tokens", "<u2"), ("weight", "<f4")]``, or one of
            numbers, which stands for one field of that type.
        documents: whether `end_document` will say where documents end.
        shard_bytes: bytes of a file, about.
        mode: None wants an empty folder, ``"append"`` adds to what is there, ``"overwrite"`` replaces it when the
            writer is closed.
        part: which of several writers of one store this is, each in a process of its own, on any machine that shares
            the folder. When all are done `headrace.complete_dataset` makes one store of them, in the order of parts.
        name: of the field, if `dtype` has none.

    Raises:
        ValueError: if an argument cannot be used, or the folder is not as `mode` wants it.
        StoreError: if it cannot be written to, or another writer is at it.

    Example:
        >>> with headrace.StreamWriter(folder / "stream", "uint16") as writer:
        ...     writer.write([5, 6, 7])
        >>> headrace.open(folder / "stream", sequence_length=3)[0]["tokens"]
        array([5, 6, 7], dtype=uint16)
    """

    _kind = "stream"

    def __init__(
        self,
        path: str | os.PathLike[str],
        dtype: Any,
        *,
        documents: bool = False,
        shard_bytes: str | SupportsIndex = "1GiB",
        mode: Literal["append", "overwrite"] | None = None,
        part: SupportsIndex | None = None,
        name: str = "tokens",
    ) -> None:
        super().__init__(
            path, dtype, documents=bool(documents), shard_bytes=shard_bytes, mode=mode, part=part, name=name
        )

    def write(self, records: Any) -> None:
        """Adds records: an array of the type, an array of numbers if it has one field, or a dict of arrays.

        Raises:
            TypeError: if they are of another type.
            ValueError: if a number does not fit into it.
            StoreError: if they cannot be written.

        Example:
            >>> with headrace.StreamWriter(folder / "two", [("tokens", "<u2"), ("weight", "<f4")]) as writer:
            ...     writer.write({"tokens": [5, 6], "weight": [0.5, 1]})
            >>> headrace.open(folder / "two")[1]["weight"]
            np.float32(1.0)
        """
        rows = rows_of(records, self._dtype, "records")
        if self._documents:
            # A shard holds whole documents.
            self._shard().write(rows)
            return
        while len(rows):
            shard = self._shard()
            some = rows[: self._most - shard.records]
            shard.write(some)
            rows = rows[len(some) :]
            if shard.records >= self._most:
                self._end_shard()

    def end_document(self) -> None:
        """Says that a document ends with the last record that was written; one without records is empty.

        What comes after the last one becomes a document when the writer is closed.

        Raises:
            ValueError: if the writer was made without ``documents=True``.

        Example:
            >>> with headrace.StreamWriter(folder / "ends", "uint16", documents=True) as writer:
            ...     for part in ([5], [6, 7]):
            ...         writer.write(part)
            ...         writer.end_document()
            >>> len(headrace.open(folder / "ends", sequence_length=1).documents())
            2
        """
        if not self._documents:
            raise ValueError("end_document needs a writer that was made with documents=True")
        shard = self._shard()
        shard.end_document(None)
        if shard.records >= self._most:
            self._end_shard()


class DocumentWriter(_Writer):
    """Writes documents: arrays of any length, each with something stored beside it if wanted. A shard holds whole ones.

    Args:
        path: a folder, made if it is not there.
        dtype: of the values, see `StreamWriter`.
        meta: a NumPy type with fields of what is stored with each document, such as ``[("id", "<i8")]``.
        shard_bytes: bytes of a file, about.
        mode: see `StreamWriter`.
        part: see `StreamWriter`.
        name: of the values, if `dtype` has no fields.

    Raises:
        ValueError: if an argument cannot be used, or the folder is not as `mode` wants it.
        StoreError: if it cannot be written to, or another writer is at it.

    Example:
        >>> with headrace.DocumentWriter(folder / "documents", "int32", meta=[("id", "<i8")]) as writer:
        ...     writer.write([5, 6, 7], {"id": 12})
        >>> headrace.open(folder / "documents")[0]
        {'tokens': array([5, 6, 7], dtype=int32), 'id': np.int64(12)}
    """

    _kind = "documents"

    def __init__(
        self,
        path: str | os.PathLike[str],
        dtype: Any,
        *,
        meta: Any = None,
        shard_bytes: str | SupportsIndex = "1GiB",
        mode: Literal["append", "overwrite"] | None = None,
        part: SupportsIndex | None = None,
        name: str = "tokens",
    ) -> None:
        super().__init__(
            path, dtype, meta=meta, documents=True, shard_bytes=shard_bytes, mode=mode, part=part, name=name
        )

    def write(self, document: Any, meta: Mapping[str, Any] | None = None) -> None:
        """Adds a document, which may be empty.

        Args:
            document: its values: as `StreamWriter.write` takes records.
            meta: what is stored with it, by name: all that the writer's `meta` has, and only then.

        Raises:
            TypeError: if they are of another type.
            ValueError: if a number does not fit into it.
            StoreError: if they cannot be written.

        Example:
            >>> with headrace.DocumentWriter(folder / "empty", "int32") as writer:
            ...     writer.write([])
            >>> headrace.open(folder / "empty")[0]["tokens"]
            array([], dtype=int32)
        """
        rows = rows_of(document, self._dtype, "document")
        record = self._meta_record(meta)
        if self._open is not None and self._open.records and self._open.records + len(rows) > self._most:
            self._end_shard()
        shard = self._shard()
        shard.write(rows)
        shard.end_document(record)

    def _meta_record(self, meta: Mapping[str, Any] | None) -> bytes | None:
        fields = {} if self._meta is None else fields_of(self._meta)
        given = dict(meta or {})
        if set(given) != set(fields):
            raise TypeError(
                f"meta must have {', '.join(fields) or 'nothing'}, got {', '.join(map(str, given)) or 'nothing'}"
            )
        if self._meta is None:
            return None
        record = np.zeros(1, self._meta)
        for name, value in given.items():
            record[name] = fitting(np.asarray([value]), fields[name], f"meta, {name}")
        return record.tobytes()

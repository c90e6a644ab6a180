"""`StreamWriter` and `DocumentWriter`: headrace's own stores of records (docs/formats/records.md).

A shard is there whole or not at all: it is written under a hidden name, and renamed. Then the index is replaced, which
lists the shards that are whole. So whatever becomes of a writer, a reader finds a prefix of what was written.
"""

import os
import threading
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, Self, SupportsIndex

import numpy as np

from headrace._units import as_int, parse_bytes
from headrace.errors import DataError, StoreError
from headrace.formats.records.layout import fields_of

from .arguments import check_choice, local_folder
from .record_shards import (
    INDEX,
    OpenShard,
    expect_alike,
    files_of,
    head_of,
    is_locked,
    lock,
    read_index,
    unlock,
    write_index,
)
from .record_values import as_array, fitting, record_type, rows_of

__all__ = ["DocumentWriter", "StreamWriter"]

_MOST_PARTS = 100_000


class _Writer:
    """Shards of records, and the index that lists them. For one thread at a time, in the process that made it."""

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
        self._held = -1
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
        self._entries: list[dict[str, Any]] = []
        self._listed: list[dict[str, Any]] | None = None
        """What the index lists; None if there is none."""
        self._found: int | None = None
        """How many shards it listed when this writer was made."""
        self._replaced: list[dict[str, Any]] = []
        """What it listed before this writer, of which nothing is to stay."""
        self._overwrites = mode == "overwrite"
        self._process = os.getpid()
        self._busy = threading.Lock()
        self._held = lock(self._folder, f".lock-{self._index}", "give each writer a part= of its own")
        try:
            self._expect_alone()
            self._begin(mode)
        except BaseException:
            self._unlock()
            raise

    def _expect_alone(self) -> None:
        """Refuses a place where a writer of the whole store and one of a part would meet."""
        others = (
            [f".lock-{INDEX}"] if self._part is not None else [path.name for path in self._folder.glob(".lock-part-*")]
        )
        if at_work := [name for name in others if is_locked(self._folder / name)]:
            raise StoreError(
                f"{self._folder}: another writer is at it ({at_work[0].removeprefix('.lock-')})\n"
                "hint: give each of several writers a part= of its own, and none to a writer that is alone"
            )

    def _begin(self, mode: str | None) -> None:
        """Looks at what is there, and which of it stays."""
        path = self._folder / self._index
        for left in self._folder.glob(f".{self._stem}?????.*.tmp"):
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
                expect_alike(self._folder / INDEX, read_index(self._folder / INDEX), self._head())
            return
        index = read_index(path)
        if mode == "append":
            expect_alike(path, index, self._head())
        self._listed = list(index["shards"])
        self._found = len(self._listed)
        if mode == "overwrite":
            self._replaced = list(self._listed)
            return
        for entry in self._listed:
            for file in files_of(entry):
                if not (self._folder / file).exists():
                    raise DataError(f"{self._folder / file}: expected this file as {path} says, found none")
        self._entries = list(self._listed)

    def _head(self) -> dict[str, Any]:
        return head_of(self._kind, self._dtype, self._documents, self._meta)

    @property
    def records(self) -> int:
        """Records written, with those that were there before."""
        return sum(entry["records"] for entry in self._entries) + (0 if self._open is None else self._open.records)

    # Writing

    @contextmanager
    def _writing(self) -> Generator[None]:
        """For one thread at a time, in the process that made the writer, until it is closed."""
        if self._held < 0:
            raise ValueError(f"{self._folder}: this writer is closed")
        if os.getpid() != self._process:
            raise RuntimeError(
                f"{self._folder}: this writer was made in another process\n"
                "hint: make one in each process, each with a part= of its own"
            )
        if not self._busy.acquire(blocking=False):
            raise RuntimeError(f"{self._folder}: another thread is writing with this writer")
        try:
            yield
        finally:
            self._busy.release()

    @contextmanager
    def _whole(self) -> Generator[OpenShard]:
        """The shard to write to, which is as it was before if that does not end well."""
        if self._open is None:
            number = len(self._entries)
            while (self._folder / f"{self._stem}{number:05d}.bin").exists():
                number += 1
            self._open = OpenShard(self._folder, f"{self._stem}{number:05d}", self._documents, self._meta)
        shard = self._open
        if shard.broken:
            raise StoreError(
                f"{self._folder}: a write has failed and could not be taken back: its shard is lost\n"
                'hint: close the writer; one with mode="append" goes on behind the shards that were finished'
            )
        mark = shard.mark()
        try:
            yield shard
        except BaseException:
            shard.take_back(mark)
            raise

    def _end_shard(self) -> None:
        """Makes the open shard visible. What failed or was interrupted is done by the next call."""
        if self._open is not None:
            entry = self._open.finish()
            if entry is not None and not any(entry is other for other in self._entries[-1:]):
                self._entries.append(entry)
            self._open = None
        if not self._overwrites:
            self._write_index()

    def _write_index(self) -> None:
        if self._listed is None or len(self._listed) != len(self._entries) or self._overwrites:
            write_index(self._folder / self._index, {**self._head(), "shards": self._entries})
            self._listed = list(self._entries)

    def _end_full(self) -> None:
        if self._open is not None and self._open.records >= self._most and not self._open.in_document:
            self._end_shard()

    # The end

    def close(self) -> None:
        """Ends the last shard and writes the index; what was written is there.

        After an error it can be called again, and goes on where it was; once it is done it does nothing.

        Raises:
            StoreError: if something cannot be written.
        """
        if self._is_over:
            return
        with self._writing():
            self._end_shard()
            self._write_index()
            # Names that were free because files were missing are those of new ones by now.
            self._remove(self._replaced, keep=self._entries)
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
        if self._is_over:
            return
        with self._writing():
            self._drop_open()
            before = 0 if self._overwrites or self._found is None else self._found
            written, self._entries = self._entries[before:], self._entries[:before]
            if not self._overwrites:
                if self._found is None:
                    (self._folder / self._index).unlink(missing_ok=True)
                else:
                    self._write_index()
            self._remove(written)
            self._unlock()

    def abandon(self) -> None:
        """Closes it as a kill would: the shard that is being written is lost, those that were finished stay.

        With ``mode="append"`` another writer goes on behind these. Does nothing to a writer that is closed.

        Example:
            >>> with headrace.StreamWriter(folder / "left", "uint16", shard_bytes=4) as writer:
            ...     writer.write([1, 2, 3])
            ...     writer.abandon()
            >>> len(headrace.open(folder / "left"))
            2
        """
        if self._is_over:
            return
        with self._writing():
            self._drop_open()
            self._unlock()

    def _drop_open(self) -> None:
        if self._open is not None:
            self._open.drop()
            self._open = None

    @property
    def _is_over(self) -> bool:
        """Whether it is closed, or another process' matter."""
        return self._held < 0 or os.getpid() != self._process

    def _remove(self, entries: Sequence[Mapping[str, Any]], keep: Sequence[Mapping[str, Any]] = ()) -> None:
        kept = {file for entry in keep for file in files_of(entry)}
        for entry in entries:
            for file in files_of(entry):
                if file not in kept:
                    (self._folder / file).unlink(missing_ok=True)

    def _unlock(self) -> None:
        held, self._held = self._held, -1
        unlock(held, self._folder / f".lock-{self._index}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_held", -1) >= 0 and os.getpid() == self._process:
            count = 0 if self._open is None else self._open.records
            warnings.warn(
                f"{self._folder}: a writer was not closed; {count} records of its last shard are lost",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
            self._drop_open()
            self._unlock()


class StreamWriter(_Writer):
    """Writes records of one type, one behind another: tokens, or tokens with something for each of them.

    What is written is read with `headrace.open`, and with NumPy alone: each shard is nothing but its records.

    Args:
        path: a folder, made if it is not there.
        dtype: of a record: a NumPy type with fields, such as ``[("tokens", "<u2"), ("weight", "<f4")]``, or one of
            numbers, which stands for one field of that type. Stored is the same without gaps, and little-endian.
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
        """Adds records: an array with the type's fields, an array of numbers if it has one field, or a dict of arrays.

        Raises:
            TypeError: if they are of another type, or have other fields.
            ValueError: if a number does not fit into it.
            StoreError: if they cannot be written.

        Example:
            >>> with headrace.StreamWriter(folder / "two", [("tokens", "<u2"), ("weight", "<f4")]) as writer:
            ...     writer.write({"tokens": [5, 6], "weight": [0.5, 1]})
            >>> headrace.open(folder / "two")[1]["weight"]
            np.float32(1.0)
        """
        rows = rows_of(records, self._dtype, "records")
        with self._writing():
            self._end_full()
            while len(rows):
                with self._whole() as shard:
                    # Of documents a shard holds whole ones.
                    some = rows if self._documents else rows[: self._most - shard.records]
                    shard.write(some)
                rows = rows[len(some) :]
                self._end_full()

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
        with self._writing():
            with self._whole() as shard:
                shard.end_document(None)
            self._end_full()


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
        with self._writing():
            if self._open is not None and self._open.records and self._open.records + len(rows) > self._most:
                self._end_shard()
            with self._whole() as shard:
                shard.write(rows)
                shard.end_document(record)

    def _meta_record(self, meta: Mapping[str, Any] | None) -> bytes | None:
        fields = {} if self._meta is None else fields_of(self._meta)
        try:
            given = {} if meta is None else dict(meta)
        except (TypeError, ValueError):
            raise TypeError(f"meta must be a dict, got {meta!r}") from None
        if set(given) != set(fields):
            raise TypeError(
                f"meta must have {', '.join(fields) or 'nothing'}, got {', '.join(map(str, given)) or 'nothing'}"
            )
        if self._meta is None:
            return None
        record = np.zeros(1, self._meta)
        for name, value in given.items():
            if isinstance(value, str | bytes) and value[-1:] in ("\0", b"\0"):
                raise ValueError(f"meta, {name}: expected text that does not end with a zero, got {value!r}")
            record[name] = fitting(as_array([value], f"meta, {name}"), fields[name], f"meta, {name}")
        return record.tobytes()

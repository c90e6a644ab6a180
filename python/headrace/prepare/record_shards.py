"""A shard of records that is being written, the index that lists the shards, and the lock of who writes them."""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np
import numpy.typing as npt

from headrace.errors import DataError, StoreError
from headrace.formats.records.store import INDEX_FORMAT, VERSION, descr_of, is_records

from .durable import sync

__all__ = [
    "INDEX",
    "OpenShard",
    "expect_alike",
    "files_of",
    "head_of",
    "is_locked",
    "lock",
    "parsed_index",
    "read_index",
    "unlock",
    "write_index",
]

INDEX: Final = "index.json"
_KEYS = ("kind", "dtype", "documents", "meta", "shards")


class OpenShard:
    """A shard that is being written, with its files under hidden names.

    Args:
        folder: where it lies.
        stem: of its files' names.
        documents: whether it holds where documents end.
        meta: the type of what is stored with each document, if there is anything.

    Raises:
        StoreError: if the files cannot be made.

    Attributes:
        records: that were written.
        broken: whether it is gone, because what failed could not be taken back.
    """

    def __init__(self, folder: Path, stem: str, documents: bool, meta: np.dtype[Any] | None) -> None:
        self.records = 0
        self.broken = False
        self._documents = self._ended = 0
        self._entry: dict[str, Any] | None = None
        self._files: list[_Aside] = []
        names = [
            f"{stem}.bin",
            *([f"{stem}.ends"] if documents else []),
            *([f"{stem}.meta"] if meta is not None else []),
        ]
        try:
            for name in names:
                self._files.append(_Aside(folder, name))
        except BaseException:
            self.drop()
            raise

    @property
    def in_document(self) -> bool:
        """Whether the last record's document has not ended."""
        return len(self._files) > 1 and self._ended < self.records

    def write(self, rows: npt.NDArray[Any]) -> None:
        """Adds records."""
        self._files[0].write(np.ascontiguousarray(rows).tobytes())
        self.records += len(rows)

    def end_document(self, meta: bytes | None) -> None:
        """Says that a document ends here, and what is stored with it."""
        self._files[1].write(self.records.to_bytes(8, "little"))
        if meta is not None:
            self._files[2].write(meta)
        self._ended = self.records
        self._documents += 1

    def mark(self) -> tuple[Any, ...]:
        """How far it is."""
        return self.records, self._documents, self._ended, [file.mark() for file in self._files]

    def take_back(self, mark: tuple[Any, ...]) -> None:
        """Is as far as it was at a mark; if that cannot be, it is gone, and `broken`."""
        self.records, self._documents, self._ended, marks = mark
        try:
            for file, at in zip(self._files, marks, strict=True):
                file.take_back(at)
        except OSError:
            self.broken = True
            self.drop()

    def finish(self) -> dict[str, Any] | None:
        """Makes the files visible; gives the entry of the index, or None if nothing was written.

        After an error it can be called again: then what was not done is.
        """
        if self._entry is not None:
            return self._entry
        if self.broken or (not self.records and not self._documents):
            self.drop()
            return None
        if self.in_document:
            mark = self.mark()
            try:
                self.end_document(None)
            except BaseException:
                self.take_back(mark)
                raise
        entry: dict[str, Any] = {"records": self.records}
        if len(self._files) > 1:
            entry["documents"] = self._documents
        # The records last: without them the others mean nothing.
        for file in reversed(self._files):
            digest = file.finish()
            kind = "name" if file.name.endswith(".bin") else file.name.rpartition(".")[2]
            entry[kind] = file.name
            entry["digest" if kind == "name" else f"{kind}_digest"] = digest
        self._entry = entry
        return entry

    def drop(self) -> None:
        """Removes the files."""
        for file in self._files:
            file.drop()


class _Aside:
    """A file under a hidden name. Nothing of it waits in memory, so that what failed can be taken back."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._target, self._path = folder / name, folder / f".{name}.tmp"
        self._size = 0
        self._digest = hashlib.blake2b(digest_size=16)
        try:
            self._file = self._path.open("wb", buffering=0)
        except OSError as error:
            raise _failed(self._path, error) from None

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) or 0 :]
        except OSError as error:
            raise _failed(self._path, error) from None
        self._digest.update(data)
        self._size += len(data)

    def mark(self) -> tuple[int, Any]:
        """How far it is."""
        return self._size, self._digest.copy()

    def take_back(self, mark: tuple[int, Any]) -> None:
        """Is as far as it was at a mark."""
        self._size, digest = mark
        self._digest = digest.copy()
        self._file.truncate(self._size)
        self._file.seek(self._size)

    def finish(self) -> str:
        """Makes the file visible; gives the digest of its bytes. Can be called again."""
        try:
            if not self._file.closed:
                os.fsync(self._file.fileno())
                self._file.close()
            with contextlib.suppress(FileNotFoundError):
                self._path.replace(self._target)
            # If it is not there under either name, somebody took it away.
            self._target.stat()
        except OSError as error:
            raise _failed(self._target, error) from None
        return self._digest.hexdigest()

    def drop(self) -> None:
        """Removes it, under whichever name."""
        with contextlib.suppress(OSError):
            self._file.close()
        if not self._path.exists():
            self._target.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)


def head_of(
    kind: Literal["stream", "documents"], dtype: np.dtype[Any], documents: bool, meta: np.dtype[Any] | None
) -> dict[str, Any]:
    """What an index says of all shards."""
    return {
        "format": INDEX_FORMAT,
        "version": VERSION,
        "kind": kind,
        "dtype": descr_of(dtype),
        "documents": documents,
        "meta": None if meta is None else descr_of(meta),
    }


def expect_alike(where: Path | str, index: Mapping[str, Any], head: Mapping[str, Any]) -> None:
    """Refuses a store of other records than those that are to be added to it.

    Args:
        where: its index lies.
        index: that one.
        head: `head_of` what is to be added.

    Raises:
        ValueError: if they differ; says in what.
    """
    for key, value in head.items():
        if index[key] != value:
            raise ValueError(f"{where}: expected {key} {value!r} to add to it, found {index[key]!r}")


def read_index(path: Path) -> dict[str, Any]:
    """The index of a store; see `parsed_index`."""
    return parsed_index(path.read_bytes(), path)


def parsed_index(data: bytes, where: Path | str) -> dict[str, Any]:
    """The index of a store, as its file has it.

    Raises:
        DataError: if it is none.
    """
    try:
        index: Any = json.loads(data)
    except ValueError as error:
        raise DataError(f"{where}: expected the index of a store of records: {error}") from None
    if not isinstance(index, dict) or not is_records(found := cast("dict[str, Any]", index)):
        raise DataError(f"{where}: expected the index of a store of records, found something else")
    if found.get("version") != VERSION:
        raise DataError(f"{where}: expected version {VERSION}, found {found.get('version')!r}")
    if missing := [key for key in _KEYS if key not in found]:
        raise DataError(f"{where}: expected an index with {missing[0]!r}, found none")
    return found


def files_of(entry: Mapping[str, Any]) -> list[str]:
    """The files of a shard, by its entry in an index."""
    names = [str(entry[kind]) for kind in ("name", "ends", "meta") if kind in entry]
    return [name for name in names if "/" not in name and name not in ("", ".", "..")]


def write_index(path: Path, index: Mapping[str, Any]) -> None:
    """Writes an index so that it is there whole or not at all.

    Raises:
        StoreError: if it cannot be written.
    """
    aside = path.with_name(f".{path.name}.tmp")
    try:
        with aside.open("w", encoding="utf-8") as out:
            json.dump(index, out, indent=1)
            out.flush()
            os.fsync(out.fileno())
        aside.replace(path)
        sync(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise _failed(path, error) from None


def is_locked(path: Path) -> bool:
    """Whether a writer holds a lock."""
    try:
        held = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(held)
    return False


def unlock(held: int, path: Path) -> None:
    """Gives up a lock, if it is held."""
    if held >= 0:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(held)


def lock(folder: Path, name: str, hint: str) -> int:
    """A lock on a writer's place, held until it is closed.

    Args:
        folder: of the store.
        name: of the lock's file there.
        hint: what to do if another writer has it.

    Raises:
        StoreError: if the folder cannot be written to, or another writer has it.
    """
    path = folder / name
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise StoreError(f"{folder}: expected a folder that can be written to: {error.strerror or error}") from None
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(held)
            raise StoreError(f"{folder}: another writer is at it\nhint: {hint}") from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(held), path.stat()):
                return held
        # The one that had it took it away just now.
        os.close(held)


def _failed(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{path}: {error.strerror or error}\n"
        'hint: shards that were finished are kept, and mode="append" goes on behind them'
    )

"""A shard of records that is being written, the index that lists the shards, and the lock of who writes them."""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from headrace.errors import DataError, StoreError
from headrace.formats.records.store import VERSION, is_records

from .durable import sync

__all__ = ["INDEX", "OpenShard", "files_of", "lock", "read_index", "unlock", "write_index"]

INDEX: Final = "index.json"
_KEYS = ("kind", "dtype", "documents", "meta", "shards")
_BUFFER_BYTES = 1 << 20


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
        broken: whether a write has failed, of which nobody knows how far it came; the files are gone then.
    """

    def __init__(self, folder: Path, stem: str, documents: bool, meta: np.dtype[Any] | None) -> None:
        self.records = 0
        self.broken = False
        self._meta = meta
        self._stem, self._folder = stem, folder
        self._documents = self._ended = 0
        names = [f"{stem}.bin"]
        if documents:
            names.append(f"{stem}.ends")
        if meta is not None:
            names.append(f"{stem}.meta")
        self._files: list[_Aside] = []
        try:
            for name in names:
                self._files.append(_Aside(folder, name))
        except BaseException:
            self.drop()
            raise

    def write(self, rows: npt.NDArray[Any]) -> None:
        """Adds records."""
        self._write(0, np.ascontiguousarray(rows).tobytes())
        self.records += len(rows)

    def end_document(self, meta: bytes | None) -> None:
        """Says that a document ends here, and what is stored with it."""
        self._write(1, self.records.to_bytes(8, "little"))
        self._ended = self.records
        if meta is not None:
            self._write(2, meta)
        self._documents += 1

    def _write(self, number: int, data: bytes) -> None:
        try:
            self._files[number].write(data)
        except BaseException:
            self.broken = True
            self.drop()
            raise

    def finish(self) -> dict[str, Any] | None:
        """Makes the files visible; gives the entry of the index, or None if nothing was written."""
        if self.broken or (not self.records and not self._documents):
            self.drop()
            return None
        if len(self._files) > 1 and self._ended < self.records:
            self.end_document(None)
        entry: dict[str, Any] = {"records": self.records}
        if len(self._files) > 1:
            entry["documents"] = self._documents
        # The records last: without them the others mean nothing.
        for file in reversed(self._files):
            try:
                digest = file.finish()
            except BaseException:
                self.drop()
                raise
            kind = "name" if file.name.endswith(".bin") else file.name.rpartition(".")[2]
            entry[kind] = file.name
            entry["digest" if kind == "name" else f"{kind}_digest"] = digest
        return entry

    def drop(self) -> None:
        """Removes the files."""
        for file in self._files:
            file.drop()


class _Aside:
    """A file under a hidden name."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._target, self._path = folder / name, folder / f".{name}.tmp"
        self._visible = False
        self._digest = hashlib.blake2b(digest_size=16)
        try:
            self._file = self._path.open("wb", buffering=_BUFFER_BYTES)
        except OSError as error:
            raise _failed(self._path, error) from None

    def write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise _failed(self._path, error) from None
        self._digest.update(data)

    def finish(self) -> str:
        """Makes the file visible; gives the digest of its bytes."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._path.replace(self._target)
            self._visible = True
        except OSError as error:
            raise _failed(self._path, error) from None
        return self._digest.hexdigest()

    def drop(self) -> None:
        """Removes it, under whichever name."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._path.unlink(missing_ok=True)
        if self._visible:
            self._target.unlink(missing_ok=True)


def read_index(path: Path) -> dict[str, Any]:
    """The index of a store.

    Raises:
        DataError: if it is none.
    """
    try:
        index: Any = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path}: expected the index of a store of records: {error}") from None
    if not isinstance(index, dict) or not is_records(found := cast("dict[str, Any]", index)):
        raise DataError(f"{path}: expected the index of a store of records, found something else")
    if found.get("version") != VERSION:
        raise DataError(f"{path}: expected version {VERSION}, found {found.get('version')!r}")
    if missing := [key for key in _KEYS if key not in found]:
        raise DataError(f"{path}: expected an index with {missing[0]!r}, found none")
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
        aside.unlink(missing_ok=True)
        raise _failed(path, error) from None


def unlock(held: int, path: Path) -> None:
    """Gives up a lock, if it is held."""
    if held >= 0:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(held)


def lock(folder: Path, name: str) -> int:
    """A lock on a writer's place, held until it is closed.

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
            raise StoreError(f"{folder}: another writer is at it\nhint: give each writer a part= of its own") from None
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

"""What lies in which file: shards of records, and where documents end in them."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace._files import Blob, File, Store
from headrace.errors import DataError
from headrace.samples.source import Extent

from .reading import Opened, open_file, read_many

__all__ = ["Documents", "Reader", "Records", "Shard", "fields_of"]

_Ints = npt.NDArray[np.int64]

_LOOKED_AT = 1 << 16
"""Records at each end of a shard that are compared with a vocabulary."""
_READ_AT_ONCE = 1 << 20
"""Numbers of a table, or bytes to be compared, that are read at once."""


class Documents(ABC):
    """Where the documents of a shard lie. It pickles by address."""

    count: int
    """Documents."""

    @abstractmethod
    def bounds(self, first: int, stop: int) -> _Ints:
        """int64, (stop - first + 1,): where the documents of ``range(first, stop)`` begin in records of the shard, and
        where the last one ends. What lies between two documents belongs to the first of them.

        Raises:
            DataError: if the file's numbers cannot be such bounds.
        """  # noqa: D205

    @abstractmethod
    def spans(self, numbers: _Ints) -> tuple[_Ints, _Ints]:
        """int64, (documents,) each: where some documents begin, and where they end, in records of the shard.

        Raises:
            DataError: if the file's numbers cannot be such bounds.
        """

    def meta(self, numbers: _Ints) -> Sequence[Mapping[str, Any]]:
        """What was stored with some documents."""
        nothing: Mapping[str, Any] = {}
        return [nothing] * len(numbers)


@dataclass(frozen=True)
class Shard:
    """A file of records."""

    file: File
    begin: int
    """Bytes before the first record."""
    records: int
    documents: Documents | None = None


@dataclass(frozen=True)
class Records:
    """Files that hold records of one type.

    Attributes:
        format: of the files.
        store: where they lie.
        dtype: of a record, with a field for each column.
        shards: in their order.
        length: records that belong together by the files themselves, if they say so.
        meta: what is stored with each document: a type with fields, or None.
        content: of each shard what tells its content from another beside name and size, if there is such.
        digests: of each shard, files and the digests that their bytes must have, if they are to be compared.
    """

    format: str
    store: Store
    dtype: np.dtype[Any]
    shards: Sequence[Shard]
    length: int | None = None
    meta: np.dtype[Any] | None = None
    content: Sequence[str] = ()
    digests: Sequence[Sequence[tuple[File, str]]] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the fields."""
        return self.dtype.names or ()

    @cached_property
    def types(self) -> dict[str, np.dtype[Any]]:
        """The type of each field."""
        return fields_of(self.dtype)

    @cached_property
    def offsets(self) -> dict[str, int]:
        """The first byte of each field in a record."""
        return {name: field[1] for name, field in (self.dtype.fields or {}).items()}

    @property
    def has_documents(self) -> bool:
        """Whether it is known where documents end."""
        return all(shard.documents is not None for shard in self.shards)

    def identity(self, extent: Extent | None = None) -> list[Any]:
        """What decides which records there are, as plain values; see `Source.identity`."""
        shards = self.shards if extent is None else self.shards[: extent.chunks]
        files = [[shard.file.path, shard.file.size, shard.begin, shard.records] for shard in shards]
        return [self.format, str(self.dtype.descr), files, list(self.content[: len(shards)])]

    def verify(self, chunk: int) -> None:
        """Compares a shard's files with their digests, if that was asked for.

        Raises:
            DataError: if the bytes of one are others.
        """
        for file, wanted in self.digests[chunk] if self.digests else ():
            found = hashlib.blake2b(digest_size=16)
            reader = Reader(self.store, file)
            for start in range(0, file.size, _READ_AT_ONCE):
                found.update(reader.read(start, min(start + _READ_AT_ONCE, file.size)))
            if found.hexdigest() != wanted:
                raise DataError(
                    f"{self.store.uri(file.path)}: expected bytes with the digest {wanted}, found {found.hexdigest()}"
                )

    def check_values(self, limit: int) -> None:
        """Refuses numbers that no vocabulary of this size has, as a wrong width makes them: looks at the ends of each
        shard.

        Args:
            limit: the size of the vocabulary.

        Raises:
            DataError: naming the number and where it stands.
        """  # noqa: D205
        for shard in self.shards:
            opened = Reader(self.store, shard.file)
            looked = min(shard.records, _LOOKED_AT)
            for first in {0, shard.records - looked}:
                start = shard.begin + first * self.dtype.itemsize
                values = np.frombuffer(opened.read(start, start + looked * self.dtype.itemsize), self.dtype)
                name = self.columns[0]
                wrong = (values[name] < 0) | (values[name] >= limit)
                if wrong.any():
                    at = int(np.flatnonzero(wrong)[0])
                    raise DataError(
                        f"{self.store.uri(shard.file.path)}: expected {name} below {limit} as vocab_size says, "
                        f"found {values[name][at]} at record {first + at}, read as {self.types[name]}\n"
                        "hint: is stored_dtype the type that the file was written with?"
                    )


def fields_of(dtype: np.dtype[Any]) -> dict[str, np.dtype[Any]]:
    """The types of a type's fields, by name."""
    return {name: dtype[name] for name in dtype.names or ()}


class Reader:
    """A file for small reads, wherever it lies: nothing of it is kept in memory. It pickles by address."""

    __slots__ = ("_blob", "_file", "_opened", "_store")

    def __init__(self, store: Store, file: File) -> None:
        self._store, self._file = store, file
        self._blob: Blob | None = None
        self._opened: Opened | None = None

    def read(self, start: int, stop: int) -> bytes:
        """Exactly the bytes of ``range(start, stop)``.

        Raises:
            DataError: if the file does not hold them, or is no longer what was listed.
            StoreError: if the store does not answer.
        """
        if self._store.is_remote:
            return self._store.read(self._file, start, stop)
        if self._blob is None:
            self._blob = self._store.open(self._file)
        return self._blob.read(start, stop)

    def many(self, starts: _Ints, dtype: Any) -> npt.NDArray[Any]:
        """Values of a type that begin at some bytes: (starts,).

        Raises:
            DataError: if the file does not hold them, or is no longer what was listed.
            StoreError: if the store does not answer.
        """
        if self._opened is None:
            self._opened = open_file(self._store, self._file)
        kind: np.dtype[Any] = np.dtype(dtype)
        memory = read_many(self._store, [self._opened], np.zeros(len(starts), np.int64), starts, kind.itemsize)
        return np.frombuffer(memory, kind)

    def numbers(self, begin: int, dtype: str, first: int, stop: int) -> _Ints:
        """Numbers of a table that begins at a byte: int64, (stop - first,)."""
        size = np.dtype(dtype).itemsize
        parts = [
            self.read(begin + at * size, begin + min(at + _READ_AT_ONCE, stop) * size)
            for at in range(first, stop, _READ_AT_ONCE)
        ]
        return np.frombuffer(b"".join(parts), dtype).astype(np.int64)

    def __reduce__(self) -> Any:
        return Reader, (self._store, self._file)

"""Megatron-LM's indexed datasets: tokens in ``name.bin``, and where sequences and documents lie in ``name.idx``."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace._files import File, Store
from headrace.errors import DataError

from .layout import Documents, Reader, Records, Shard

__all__ = ["has_megatron", "read_megatron"]

_MAGIC = b"MMIDIDX\x00\x00"
_HEAD_BYTES = 34
"""Magic number, version (u64), type (u8), sequences (u64) and documents (u64)."""
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}

_Ints = npt.NDArray[np.int64]


class _Head(NamedTuple):
    dtype: np.dtype[Any]
    sequences: int
    documents: int
    """Their bounds, one more than there are documents."""


def has_megatron(store: Store, files: Sequence[File]) -> bool:
    """Whether the files are ``.bin`` and ``.idx`` of Megatron-LM: decided by names and the beginning of one."""
    indexes = [file for file in files if file.name.endswith(".idx")]
    if not indexes or not all(file.name.endswith((".bin", ".idx")) for file in files):
        return False
    return store.read(indexes[0], 0, min(indexes[0].size, len(_MAGIC))) == _MAGIC


def read_megatron(store: Store, files: Sequence[File]) -> Records:
    """Pairs of ``.bin`` and ``.idx``, each a shard.

    A document is what the index says: the sequences between two of its bounds. Their tokens lie one behind another.

    Args:
        store: where they lie.
        files: both of each pair.

    Raises:
        DataError: if one lacks the other, is damaged, or has tokens of another type than the first.
    """
    by_path = {file.path: file for file in files}
    shards: list[Shard] = []
    found: np.dtype[Any] | None = None
    for file in files:
        stem, dot, suffix = file.path.rpartition(".")
        other = by_path.get(f"{stem}.{'idx' if suffix == 'bin' else 'bin'}")
        if not dot or other is None:
            raise DataError(
                f"{store.uri(file.path)}: expected {stem}.bin and {stem}.idx of Megatron-LM, found only one of them"
            )
        if suffix == "idx":
            continue
        head = _head(store, other)
        where = store.uri(file.path)
        if found is not None and head.dtype != found:
            raise DataError(f"{where}: expected {found} as in the first file, found {head.dtype}")
        found = head.dtype
        records, rest = divmod(file.size, found.itemsize)
        documents = _Index(store, other, head, records)
        if rest or documents.tokens != records:
            raise DataError(
                f"{where}: expected {documents.tokens} tokens of {found} as its index says, found {file.size} bytes"
            )
        shards.append(Shard(file, 0, records, documents))
    if found is None:
        raise DataError(f"{store.url}: expected .bin and .idx files of Megatron-LM, found none")
    return Records("megatron", store, np.dtype([("tokens", found)]), shards)


def _head(store: Store, file: File) -> _Head:
    where = store.uri(file.path)
    head = Reader(store, file).read(0, min(file.size, _HEAD_BYTES))
    if len(head) < _HEAD_BYTES or not head.startswith(_MAGIC):
        raise DataError(f"{where}: expected the index of a Megatron-LM dataset, found {head[:9]!r} at its beginning")
    version, code = int.from_bytes(head[9:17], "little"), head[17]
    if version != 1 or code not in _DTYPES:
        raise DataError(f"{where}: expected version 1 and a type of 1 to 8, found version {version} and type {code}")
    sequences, documents = (int.from_bytes(head[at : at + 8], "little") for at in (18, 26))
    plain = _HEAD_BYTES + 12 * sequences + 8 * documents
    # Datasets of several modes have a byte for each sequence at the end.
    if file.size not in (plain, plain + sequences):
        raise DataError(
            f"{where}: expected {plain} bytes for {sequences} sequences and {documents} bounds of documents, "
            f"found {file.size}"
        )
    return _Head(np.dtype(_DTYPES[code]), sequences, documents)


class _Index(Documents):
    """Bounds of documents from an index: sequence numbers, and where sequences begin in bytes."""

    def __init__(self, store: Store, file: File, head: _Head, records: int) -> None:
        self._head = head
        self.count = max(0, head.documents - 1)
        self._pointers = _HEAD_BYTES + 4 * head.sequences
        self._documents = self._pointers + 8 * head.sequences
        self._where = store.uri(file.path)
        self._records = records
        self._reader = Reader(store, file)
        self.tokens = 0
        """Tokens of all sequences."""
        if head.sequences:
            last = int(self._reader.numbers(self._pointers, "<i8", head.sequences - 1, head.sequences)[0])
            size = int(self._reader.numbers(_HEAD_BYTES, "<i4", head.sequences - 1, head.sequences)[0])
            self.tokens = last // head.dtype.itemsize + size
        if head.documents:
            begin = int(self._reader.numbers(self._documents, "<i8", 0, 1)[0])
            end = int(self._reader.numbers(self._documents, "<i8", head.documents - 1, head.documents)[0])
            if (begin, end) != (0, head.sequences):
                raise DataError(
                    f"{self._where}: expected documents of all {head.sequences} sequences, found them from {begin} to "
                    f"{end}"
                )

    def bounds(self, first: int, stop: int) -> _Ints:
        """See `Documents.bounds`."""
        sequences = self._reader.numbers(self._documents, "<i8", first, stop + 1)
        self._check_sequences(sequences[:-1], sequences[1:], first)
        low, high = int(sequences[0]), int(sequences[-1])
        # One more, for where the last document ends, if there is one behind it.
        pointers = self._reader.numbers(self._pointers, "<i8", low, min(high + 1, self._head.sequences))
        if high == self._head.sequences:
            pointers = np.append(pointers, self._records * self._head.dtype.itemsize)
        begins = self._records_at(pointers, first)
        self._check_begins(begins[:-1], begins[1:], first)
        return begins[sequences - low]

    def spans(self, numbers: _Ints) -> tuple[_Ints, _Ints]:
        """See `Documents.spans`."""
        firsts, stops = (self._reader.many(self._documents + 8 * (numbers + behind), "<i8") for behind in (0, 1))
        first = int(numbers[0]) if len(numbers) else 0
        self._check_sequences(firsts, stops, first)
        begins, ends = self._places(firsts, first), self._places(stops, first)
        self._check_begins(begins, ends, first)
        return begins, ends

    def _places(self, sequences: _Ints, first: int) -> _Ints:
        """Where sequences begin, in records; behind the last one is the end."""
        pointers = np.full(len(sequences), self._records * self._head.dtype.itemsize, np.int64)
        inside = sequences < self._head.sequences
        pointers[inside] = self._reader.many(self._pointers + 8 * sequences[inside], "<i8")
        return self._records_at(pointers, first)

    def _records_at(self, pointers: _Ints, first: int) -> _Ints:
        begins, rest = np.divmod(pointers, self._head.dtype.itemsize)
        if rest.any():
            raise self._misplaced(first)
        return begins

    def _check_sequences(self, firsts: _Ints, stops: _Ints, first: int) -> None:
        """Refuses documents that are no stretches of sequences."""
        if ((firsts < 0) | (firsts > stops) | (stops > self._head.sequences)).any():
            raise DataError(f"{self._where}: expected bounds of documents that increase, found others at {first}")

    def _check_begins(self, begins: _Ints, ends: _Ints, first: int) -> None:
        """Refuses stretches that lie elsewhere than one behind another in the file."""
        if ((begins < 0) | (begins > ends) | (ends > self._records)).any():
            raise self._misplaced(first)

    def _misplaced(self, first: int) -> DataError:
        return DataError(
            f"{self._where}: expected sequences one behind another, found other places for document {first} or behind"
        )

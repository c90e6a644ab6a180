"""Chunk files: from a file to the spans of its items, however it is compressed or encrypted.

Every number in a file is checked before it is used: for order, for bounds, and against the index.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np

from headrace._files import Blob, MemoryBlob, Store
from headrace._unpacking import check_size, unpack
from headrace.errors import DataError
from headrace.formats.options import Decryption

from .index import ChunkFile, Entry, Index, find_files, read_index, sizes_of

__all__ = ["Footer", "Items", "check_key", "decrypt", "open_chunk"]

_FRAMED = b"LDFZ01\0\0"
_FRAMED_VERSION = 1
_FRAMED_HEAD = struct.Struct("<8sHHIII")
_FRAME = np.dtype([("first", "<u4"), ("items", "<u4"), ("at", "<u8"), ("packed", "<u4"), ("size", "<u4")])
_ARROW = b"LDARW01\0"


@dataclass(frozen=True, slots=True)
class Items:
    """Items that can be read one by one."""

    read: Callable[[int, int], bytes]
    """The bytes of a span."""
    offsets: Any
    """A sequence of where items begin, and where the last one ends."""
    nbytes: int
    """Bytes of memory held."""


@dataclass(frozen=True, slots=True)
class Footer:
    """Rows in Arrow's layout, which stand in for the items."""

    data: bytes
    """An IPC file or stream."""


def open_chunk(
    store: Store, index: Index, entry: Entry, chunk: ChunkFile, decryption: Decryption | None
) -> Items | Footer:
    """The items of a chunk.

    Raises:
        DataError: if the file is not such a chunk.
    """
    where = store.uri(chunk.file.path)
    blob = _opened(store, entry, chunk, where)
    if index.encryption is not None and index.encryption[1] == "chunk":
        assert decryption is not None
        blob = MemoryBlob(decrypt(decryption, blob.read(0, blob.size), where), where)
    if blob.size >= 8 and blob.read(0, 8) == _FRAMED:
        return _framed(blob, entry.items, where)
    items = _table(blob, entry.items, where)
    end = int(items.offsets[entry.items])
    if end != blob.size:
        return _footer(blob, end, where)
    if index.level == "batch" and index.compression is not None:
        raise DataError(f"{where}: expected items compressed in batches, {_FRAMED!r}, found {blob.read(0, 8)!r}")
    return items


def decrypt(decryption: Decryption, data: bytes, where: str) -> bytes:
    """The bytes that were encrypted.

    Raises:
        DataError: if the key does not open them.
    """
    try:
        return decryption.decrypt(data)
    except Exception as error:
        detail = f": {error}" if str(error) else ""
        raise DataError(
            f"{where}: expected what the given key opens ({decryption.algorithm}, by {decryption.level}), "
            f"found {type(error).__name__}{detail}\nhint: either the key is another one, or the file is damaged"
        ) from None


def check_key(store: Store, decryption: Decryption) -> None:
    """Reads the first item of an encrypted dataset, if there is one.

    Raises:
        DataError: if the key does not open it, or the dataset is damaged.
    """
    index = read_index(store)
    for entry, file in zip(index.chunks[:1], find_files(index, store)[:1], strict=True):
        items = open_chunk(store, index, entry, file, decryption)
        if decryption.level == "sample" and isinstance(items, Items) and entry.items:
            decrypt(decryption, items.read(items.offsets[0], items.offsets[1]), store.uri(file.file.path))


def _opened(store: Store, entry: Entry, chunk: ChunkFile, where: str) -> Blob:
    if not chunk.compressed:
        return store.open(chunk.file)
    packed = memoryview(store.read(chunk.file))
    data = unpack("zstd", packed, size=None, most=max(sizes_of(entry)), where=where)
    if len(data) not in sizes_of(entry):
        raise DataError(f"{where}: expected {entry.bytes} bytes once decompressed, found {len(data)}")
    return MemoryBlob(data, where)


def _table(blob: Blob, expected: int, where: str) -> Items:
    """A header of ``u32 items | u32 offsets[items + 1]``, checked."""
    if blob.size < 4:
        raise DataError(f"{where}: expected a chunk's header, found {blob.size} bytes")
    count = int.from_bytes(blob.read(0, 4), "little")
    _same_count(count, expected, where)
    end = 4 + 4 * (count + 1)
    if end > blob.size:
        raise DataError(f"{where}: expected a header of {end} bytes for {count} items, found {blob.size} bytes")
    offsets = _offsets(blob.read(4, end), first=end, most=blob.size, where=where)
    return Items(blob.read, offsets, blob.nbytes + end)


def _same_count(count: int, expected: int, where: str) -> None:
    if count != expected:
        raise DataError(f"{where}: expected {expected} items as the index says, found {count}")


def _offsets(data: bytes, *, first: int, most: int, where: str) -> Any:
    offsets = np.frombuffer(data, "<u4")
    if int(offsets[0]) != first:
        raise DataError(f"{where}: expected the first item at {first}, found {int(offsets[0])}")
    wrong = np.flatnonzero(offsets[1:] < offsets[:-1])
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{where}, row {row}: expected offsets in order, found an item from {int(offsets[row])} "
            f"to {int(offsets[row + 1])}"
        )
    if int(offsets[-1]) > most:
        row = int(np.searchsorted(offsets, most, side="right")) - 1
        raise DataError(
            f"{where}, row {row}: expected items to end at {most}, found an item that ends at {int(offsets[row + 1])}"
        )
    # Indexing a memoryview gives an int in a third of the time that indexing an array takes.
    return memoryview(cast("Any", offsets.astype(np.uintc)))


def _footer(blob: Blob, end: int, where: str) -> Footer:
    tail = blob.read(max(end, blob.size - 12), blob.size)
    if len(tail) < 12 or tail[4:] != _ARROW:
        raise DataError(
            f"{where}: expected the last item to end with the file at {blob.size}, found it to end at {end}"
        )
    size = int.from_bytes(tail[:4], "little")
    if end + size + 12 != blob.size:
        raise DataError(f"{where}: expected {blob.size - end - 12} bytes of rows behind the items, found {size}")
    return Footer(blob.read(end, end + size))


def _framed(blob: Blob, expected: int, where: str) -> Items:
    """Batches of items, each compressed by itself. All are decompressed: rows are read in any order."""
    head = _FRAMED_HEAD.size
    if blob.size < head:
        raise DataError(f"{where}: expected a header of {head} bytes, found {blob.size}")
    _, version, _, count, _, frames = _FRAMED_HEAD.unpack(blob.read(0, head))
    if version != _FRAMED_VERSION:
        raise DataError(f"{where}: expected compressed batches of version {_FRAMED_VERSION}, found {version}")
    _same_count(count, expected, where)
    begin = head + 4 * (count + 1)
    end = begin + _FRAME.itemsize * frames
    if end > blob.size:
        raise DataError(f"{where}: expected a header of {end} bytes, found {blob.size}")
    offsets = _offsets(blob.read(head, begin), first=0, most=2**32, where=where)
    table = np.frombuffer(blob.read(begin, end), _FRAME).tolist()
    bounds = [*(first for first, *_ in table), count]
    if bounds[0] != 0 or any(
        stop - start != row[1] for (start, stop), row in zip(pairwise(bounds), table, strict=True)
    ):
        raise DataError(f"{where}: expected batches of all {count} items in order, found them to begin at {bounds}")
    check_size(offsets[count], where)
    data = bytearray()
    for number, (first, items, at, packed, size) in enumerate(table):
        wanted = offsets[first + items] - offsets[first]
        if size != wanted or at < end or at + packed > blob.size:
            raise DataError(
                f"{where}, batch {number}: expected {wanted} bytes from a place in {end} to {blob.size}, "
                f"found {size} from {at} to {at + packed}"
            )
        batch = memoryview(blob.read(at, at + packed))
        data += unpack("zstd", batch, size=size, where=f"{where}, batch {number}")
    whole = MemoryBlob(memoryview(data), where)
    return Items(whole.read, offsets, whole.nbytes + 4 * (count + 1))

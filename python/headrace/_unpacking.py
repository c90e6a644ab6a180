"""Data that is compressed as a whole, decompressed in memory.

A few bytes can become any number of them. They may become what an index or their own header declares, and never more
than a share of the memory that there is: beyond that is an error before the process is killed for it.
"""

import bz2
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache

from . import _core
from ._memory import Room, memory_size
from .errors import DataError

__all__ = ["PIECES", "check_size", "unpack", "unpacked"]

_SHARE = 2
"""One file may take a half of the memory; others that are unpacked meanwhile take a quarter of it together."""

PIECES = {"gzip": 64 << 10, "zstd": 4 << 10}
"""Compressed bytes to take at a time where nothing says what they become: at most 64 MiB and 128 MiB."""

_SMALL = 16 << 20
"""Bytes for which there is always room: to ask for it takes longer than to decompress some items."""

_MAGIC = 0xFD2FB528
_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
"""How frames of zstd begin, and such as hold nothing."""


def unpack(codec: str, data: memoryview, *, size: int | None, most: int | None = None, where: str) -> memoryview:
    """Decompresses all of some data.

    Args:
        codec: ``"zstd"`` or ``"gzip"``; with a size also ``"snappy"``, ``"brotli"`` or ``"bz2"``.
        data: the compressed bytes.
        size: bytes that they must become, if an index says it. The headers of zstd may say it as well.
        most: bytes that they may become, if something says that.
        where: what they are, for messages.

    Raises:
        DataError: if the data is damaged, becomes more or less than that, or does not fit into memory.
    """
    if size is None and codec == "zstd":
        size = zstd_size(data)
    if size is not None and size <= _SMALL and codec != "bz2":
        return memoryview(_core.decompress(codec, data, size=size, most=most or size, name=where))
    with unpacked(codec, data, size=size, most=most, where=where) as made:
        return made


@contextmanager
def unpacked(
    codec: str, data: memoryview, *, size: int | None = None, most: int | None = None, where: str
) -> Generator[memoryview]:
    """As `unpack`, for what is let go of at the end: until then other threads have as much less room."""
    if size is None and codec == "zstd":
        size = zstd_size(data)
    limit = size if size is not None else most
    with _room().entered() as hold:
        if limit is None:
            yield _streamed(codec, data, where, hold)
            return
        check_size(limit, where)
        hold(limit)
        if codec == "bz2":
            yield memoryview(_bunzip(data, limit, where))
        else:
            yield memoryview(_core.decompress(codec, data, size=size, most=most or limit, name=where))


def check_size(size: int, where: str, found: str | None = None) -> None:
    """Refuses what does not fit into memory once decompressed.

    Args:
        size: bytes.
        where: what they are, for messages.
        found: the size in words; by default it was declared.

    Raises:
        DataError: if it is more than the share of memory that one file may have.
    """
    if size > (most := _room().most):
        raise DataError(
            f"{where}: expected at most {most} bytes once decompressed, half of the memory there is, "
            f"found {found or f'a declared size of {size}'}\n"
            "hint: it is held in memory as a whole; write it as several files, or one that is not compressed"
        )


@cache
def _room() -> Room:
    return Room(memory_size() // _SHARE)


# Threads of the parent that hold some are not there in the child.
os.register_at_fork(after_in_child=_room.cache_clear)


def _streamed(codec: str, data: memoryview, where: str, hold: Callable[[int], None]) -> memoryview:
    stream = _core.Decompressor(codec, name=where)
    made = bytearray()
    try:
        for at in range(0, len(data), PIECES[codec]):
            made += stream.feed(data[at : at + PIECES[codec]])
            check_size(len(made), where, "more")
            hold(len(made))
        stream.finish()
    except BaseException:
        made.clear()  # An error holds on to what the function had.
        raise
    return memoryview(made)


def zstd_size(data: memoryview) -> int | None:
    """Bytes that the frames of zstd data declare, or None if one does not, or is damaged.

    Example:
        >>> zstd_size(memoryview(bytes.fromhex("28b52ffd2003190000616263")))
        3
    """
    total = at = 0
    while at < len(data):
        magic = int.from_bytes(data[at : at + 4], "little")
        if magic in _SKIPPABLE:
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
            continue
        if magic != _MAGIC or at + 5 > len(data):
            return None
        flags = data[at + 4]
        is_single, width = flags >> 5 & 1, (0, 2, 4, 8)[flags >> 6]
        width = width or is_single
        begin = at + 5 + (not is_single) + (0, 1, 2, 4)[flags & 3]
        if not width:
            return None
        # Two bytes count from 256: what is less takes one.
        total += int.from_bytes(data[begin : begin + width], "little") + (256 if width == 2 else 0)
        at = _behind_blocks(data, begin + width) + 4 * (flags >> 2 & 1)
    return total if at == len(data) else None


def _behind_blocks(data: memoryview, at: int) -> int:
    is_last = False
    while not is_last and at < len(data):
        head = int.from_bytes(data[at : at + 3], "little")
        is_last, kind, size = bool(head & 1), head >> 1 & 3, head >> 3
        at += 3 + (1 if kind == 1 else size)  # Of a byte that is repeated there is one.
    return at


def _bunzip(data: memoryview, size: int, where: str) -> bytearray:
    made, rest = bytearray(), bytes(data)
    try:
        while rest:
            stream = bz2.BZ2Decompressor()
            made += stream.decompress(rest, size + 1 - len(made))
            while not stream.eof and len(made) <= size:
                if stream.needs_input:
                    raise EOFError("an end in the middle of a stream")
                made += stream.decompress(b"", size + 1 - len(made))
            if len(made) > size:
                break
            rest = stream.unused_data
    except (OSError, EOFError) as error:
        raise DataError(f"{where}: expected bz2 data, found {error}") from None
    if len(made) != size:
        much = "more" if len(made) > size else f"{len(made)} bytes"
        raise DataError(f"{where}: expected {size} bytes of bz2 data once decompressed, found {much}")
    return made

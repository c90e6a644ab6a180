"""Where encoded samples wait for their chunk: files that outlive the process, so that no finished input is done again.

A file of the spool is records one after another: ``head | what is known of the block, as JSON | sizes | samples``. A
record that was cut short, by a kill or a full disk, is the last one, and counts for nothing.
"""

import json
import os
import struct
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.encryption import Encryption
from headrace.errors import DataError, StoreError

__all__ = ["Block", "Failure", "Segment", "Spool", "StoredBlock", "store_error"]

_HEAD = struct.Struct("<IIQQ")
"""Checksum of what follows, then bytes of the JSON, of the sizes, and of the samples."""
_SEGMENT_BYTES = 64 << 20
"""A file of the spool is removed when all of its blocks are in chunks: small ones go sooner."""
_NAME = "blocks-{:08}"


@dataclass(frozen=True, slots=True)
class Failure:
    """An input that was left out."""

    input: int
    """Its number."""
    value: str
    """What it is, cut short."""
    error: str
    samples: int
    """Samples of it that came before the error, which are kept."""


@dataclass(slots=True)
class Block:
    """Samples of some inputs, one after another, encoded together."""

    first: int
    """The first input; the others are those behind it."""
    skip: int
    """Samples of the first input that earlier blocks hold."""
    counts: list[int]
    """Samples of each input here."""
    done: bool
    """Whether the last input has no more."""
    schema: str | None
    sizes: npt.NDArray[np.int64]
    """Bytes that each sample counts for."""
    data: Any
    """The bytes of all samples."""
    failures: list[Failure] = field(default_factory=list[Failure])

    @property
    def last(self) -> int:
        """The last input."""
        return self.first + len(self.counts) - 1


@dataclass(eq=False, slots=True)
class Segment:
    """A file of the spool."""

    path: Path
    fd: int
    size: int = 0
    blocks: int = 0
    """Blocks that are not yet in chunks."""
    closed: bool = False
    """Whether nothing will be added."""


class StoredBlock:
    """A block in the spool, without its samples. A `Stored` of the formats."""

    __slots__ = ("_at", "_key", "_segment", "block", "nbytes", "serial", "sizes")

    def __init__(
        self, serial: int, block: Block, segment: Segment, at: int, nbytes: int, key: Encryption | None
    ) -> None:
        self.serial = serial
        self.block = block
        self.sizes = block.sizes
        self.nbytes = nbytes
        self._segment = segment
        self._at = at
        self._key = key

    @property
    def segment(self) -> Segment:
        """The file that it is in."""
        return self._segment

    def read(self, start: int, stop: int) -> memoryview:
        """A range of its samples' bytes."""
        if self._key is not None:
            return memoryview(self._key.decrypt(bytes(self._stored(0, self.nbytes))))[start:stop]
        return self._stored(start, stop)

    def _stored(self, start: int, stop: int) -> memoryview:
        data = bytearray(stop - start)
        view, at = memoryview(data), 0
        while at < len(data):
            got = os.preadv(self._segment.fd, [view[at:]], self._at + start + at)
            if not got:
                raise DataError(f"{self._segment.path} was cut short while it was in use")
            at += got
        return view


class Spool:
    """The blocks of a run. Threads may append at the same time.

    Args:
        folder: where its files are; those that are there are read by `recover`.
        key: what encrypts samples there, if anything does.
    """

    def __init__(self, folder: Path, key: Encryption | None = None) -> None:
        self._folder = folder
        self._key = key
        self._lock = threading.Lock()
        self._segment: Segment | None = None
        self._segments: list[Segment] = []
        self._serial = 0
        self._number = 0

    def append(self, block: Block) -> StoredBlock:
        """Keeps a block.

        Raises:
            StoreError: if it cannot be written; nothing of it is then there.
        """
        about = {
            "first": block.first,
            "skip": block.skip,
            "counts": block.counts,
            "done": block.done,
            "schema": block.schema,
            "failures": [[f.input, f.value, f.error, f.samples] for f in block.failures],
        }
        data = memoryview(block.data).cast("B")
        if self._key is not None:
            data = memoryview(self._key.encrypt(bytes(data)))
        sizes = block.sizes.astype("<i8").tobytes()
        with self._lock:
            serial = self._serial
            text = json.dumps({**about, "serial": serial}).encode()
            checksum = zlib.crc32(data, zlib.crc32(sizes, zlib.crc32(text)))
            head = _HEAD.pack(checksum, len(text), len(sizes), len(data))
            segment = self._writable()
            start = segment.size
            try:
                at = start
                for part in (head + text + sizes, data):
                    at = _write(segment.fd, part, at)
            except OSError as error:
                os.ftruncate(segment.fd, start)
                raise store_error(segment.path, error) from None
            segment.size = at
            segment.blocks += 1
            self._serial = serial + 1
        block.data = None
        return StoredBlock(serial, block, segment, at - len(data), len(data), self._key)

    def release(self, blocks: list[StoredBlock]) -> None:
        """Says that blocks are in chunks which will not be made again; files without any other are removed."""
        with self._lock:
            for stored in blocks:
                segment = stored.segment
                segment.blocks -= 1
                if not segment.blocks and segment.closed:
                    self._remove(segment)

    def recover(self, used: set[int]) -> list[StoredBlock]:
        """The blocks that a run left here, but those in chunks, in the order in which they came.

        Args:
            used: numbers of the blocks that are in chunks.
        """
        found: list[StoredBlock] = []
        for path in sorted(self._folder.glob("blocks-*")):
            self._number = int(path.name.rpartition("-")[2]) + 1
            segment = Segment(path, os.open(path, os.O_RDWR | os.O_CLOEXEC), closed=True)
            self._segments.append(segment)
            for stored in _records(segment, self._key):
                self._serial = max(self._serial, stored.serial + 1)
                if stored.serial not in used:
                    segment.blocks += 1
                    found.append(stored)
            if not segment.blocks:
                self._remove(segment)
        self._serial = max([self._serial, *(serial + 1 for serial in used)])
        return sorted(found, key=lambda stored: stored.serial)

    def close(self) -> None:
        """Closes its files, which stay."""
        with self._lock:
            for segment in self._segments:
                os.close(segment.fd)
            self._segments, self._segment = [], None

    def _writable(self) -> Segment:
        segment = self._segment
        if segment is not None and segment.size < _SEGMENT_BYTES:
            return segment
        if segment is not None:
            segment.closed = True
            if not segment.blocks:
                self._remove(segment)
        path = self._folder / _NAME.format(self._number)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise store_error(path, error) from None
        self._number += 1
        self._segment = Segment(path, fd)
        self._segments.append(self._segment)
        return self._segment

    def _remove(self, segment: Segment) -> None:
        segment.path.unlink(missing_ok=True)
        os.close(segment.fd)
        self._segments.remove(segment)


def store_error(path: Path, error: OSError) -> StoreError:
    """The error for a file that could not be written, which says what becomes of what was."""
    return StoreError(
        f"{path}: {error.strerror or error}\n"
        "hint: what was finished is kept; the same call goes on from there once the cause is gone"
    )


def _write(fd: int, part: bytes | memoryview, at: int) -> int:
    view = memoryview(part)
    while view:
        written = os.pwrite(fd, view, at)
        at += written
        view = view[written:]
    return at


def _records(segment: Segment, key: Encryption | None) -> Iterator[StoredBlock]:
    """The whole records of a file; what follows them is cut off."""
    end = os.fstat(segment.fd).st_size
    at = 0
    while at + _HEAD.size <= end:
        checksum, text, sizes, data = _HEAD.unpack(os.pread(segment.fd, _HEAD.size, at))
        start = at + _HEAD.size
        stop = start + text + sizes + data
        if stop > end or _checksum(segment.fd, start, stop) != checksum:
            break
        about: dict[str, Any] = json.loads(os.pread(segment.fd, text, start))
        block = Block(
            first=about["first"],
            skip=about["skip"],
            counts=about["counts"],
            done=about["done"],
            schema=about["schema"],
            sizes=np.frombuffer(os.pread(segment.fd, sizes, start + text), "<i8"),
            data=None,
            failures=[Failure(*parts) for parts in about["failures"]],
        )
        yield StoredBlock(about["serial"], block, segment, stop - data, data, key)
        at = segment.size = stop
    os.ftruncate(segment.fd, segment.size)


def _checksum(fd: int, start: int, stop: int) -> int:
    found = 0
    while start < stop:
        part = os.pread(fd, min(stop - start, 1 << 23), start)
        found = zlib.crc32(part, found)
        start += len(part)
    return found

"""Where encoded samples wait for their chunk: files that outlive the process, so that no finished input is done again.

What took next to no time to make waits in memory: to write it twice would cost more than to make it again after a kill.

A file of the spool is records one after another: ``head | what is known of the block, as JSON | sizes | samples``. A
record that was cut short, by a kill or a full disk, is the last one, and counts for nothing.
"""

import contextlib
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

from headrace.errors import DataError, StoreError

from .durable import store_error
from .sealing import Seal

__all__ = ["Block", "Failure", "Segment", "Spool", "StoredBlock"]

_HEAD = struct.Struct("<IIQQ")
"""Checksum of what follows, then bytes of the JSON, of the sizes, and of the samples."""
_SEGMENT_BYTES = 64 << 20
"""A file of the spool is removed when all of its blocks are in chunks: small ones go sooner."""
_NAME = "blocks-{:08}"
_HELD_BYTES = 128 << 20
"""Bytes of blocks that wait in memory, at most: two chunks of the usual size."""
_HELD_SECONDS = 3.0
"""Work in them, of all processes together, at most: what a kill costs."""
_HELD_RATE = 16 << 20
"""Bytes that were made in a second, at least: writing them is about as fast."""


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
    seconds: float = 1e9
    """How long it took to make it; by default so long that it is not to be made again."""
    read: int = 0
    """Bytes of the inputs, those that are files on a disk."""
    worker: str = ""
    """The process that made it, while the run lasts."""

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
    synced: int = 0
    """Bytes that outlive a power cut."""


class StoredBlock:
    """A block that waits, in a file or in memory. A `Stored` of the formats."""

    __slots__ = ("at", "block", "nbytes", "seal", "segment", "serial", "sizes", "stored")

    def __init__(self, serial: int, block: Block, nbytes: int) -> None:
        self.serial = serial
        self.block = block
        self.sizes = block.sizes
        self.nbytes = nbytes
        self.segment: Segment | None = None
        """The file that it is in; until then its samples are in memory."""
        self.at = self.stored = 0
        """Where its samples begin there, and their bytes."""
        self.seal: Seal | None = None
        """What they are encrypted with there."""

    def put(self, segment: Segment, at: int, stored: int, seal: Seal | None) -> None:
        """Says where in a file it is."""
        self.segment, self.at, self.stored, self.seal = segment, at, stored, seal
        # Whoever reads it now has what it needs: this is the last thing to change.
        self.block.data = None

    def read(self, start: int, stop: int) -> memoryview:
        """A range of its samples' bytes."""
        held = self.block.data
        if held is not None:
            return memoryview(held).cast("B")[start:stop]
        if self.seal is not None:
            return self.seal.open(self.serial, lambda: self._stored(0, self.stored))[start:stop]
        return self._stored(start, stop)

    def _stored(self, start: int, stop: int) -> memoryview:
        assert self.segment is not None
        data = bytearray(stop - start)
        view, at = memoryview(data), 0
        while at < len(data):
            got = os.preadv(self.segment.fd, [view[at:]], self.at + start + at)
            if not got:
                raise DataError(f"{self.segment.path} was cut short while it was in use")
            at += got
        return view


class Spool:
    """The blocks of a run. Threads may append at the same time.

    Args:
        folder: where its files are; those that are there are read by `recover`.
        seal: what encrypts samples there, if anything does.
    """

    def __init__(self, folder: Path, seal: Seal | None = None) -> None:
        self._folder = folder
        self._seal = seal
        self._lock = threading.Lock()
        self._segment: Segment | None = None
        self._segments: list[Segment] = []
        self._held: dict[int, StoredBlock] = {}
        self._serial = 0
        self._number = 0

    def append(self, block: Block) -> StoredBlock:
        """Keeps a block.

        Raises:
            StoreError: if it cannot be written; nothing of it is then there.
        """
        with self._lock:
            stored = StoredBlock(self._serial, block, memoryview(block.data).nbytes)
            self._serial += 1
            if self._may_hold(stored):
                self._held[stored.serial] = stored
                return stored
        data = self._sealed(block)
        with self._lock:
            self._save(stored, data)
        return stored

    def save(self) -> None:
        """Writes what is in memory.

        Raises:
            StoreError: if that cannot be done.
        """
        with self._lock:
            while self._held:
                stored = next(iter(self._held.values()))
                self._save(stored, self._sealed(stored.block))

    def sync(self) -> int:
        """Returns when the blocks in its files are on the disk; gives a number that none of those has or exceeds.

        Raises:
            StoreError: if that cannot be done.
        """
        with self._lock:
            serial = self._serial
            # Others may be closed meanwhile.
            open = [(part, os.dup(part.fd), part.size) for part in self._segments if part.synced < part.size]
        for segment, fd, size in open:
            try:
                os.fsync(fd)
            except OSError as error:
                raise store_error(segment.path, error) from None
            finally:
                os.close(fd)
            segment.synced = size
        return serial

    def _may_hold(self, stored: StoredBlock) -> bool:
        block = stored.block
        size = stored.nbytes + sum(other.nbytes for other in self._held.values())
        seconds = block.seconds + sum(other.block.seconds for other in self._held.values())
        return stored.nbytes >= _HELD_RATE * block.seconds and size <= _HELD_BYTES and seconds <= _HELD_SECONDS

    def _sealed(self, block: Block) -> memoryview:
        """The bytes of its samples, as they are in a file."""
        data = memoryview(block.data).cast("B")
        return data if self._seal is None else self._seal.close(data)

    def _save(self, stored: StoredBlock, data: memoryview) -> None:
        """Writes a block to a file."""
        block = stored.block
        about = {
            "serial": stored.serial,
            "first": block.first,
            "skip": block.skip,
            "counts": block.counts,
            "done": block.done,
            "schema": block.schema,
            "read": block.read,
            "failures": [[f.input, f.value, f.error, f.samples] for f in block.failures],
        }
        sizes = block.sizes.astype("<i8").tobytes()
        text = json.dumps(about).encode()
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
        stored.put(segment, at - len(data), len(data), self._seal)
        self._held.pop(stored.serial, None)

    def release(self, blocks: list[StoredBlock]) -> None:
        """Says that blocks are in chunks which will not be made again; files without any other are removed."""
        with self._lock:
            for stored in blocks:
                self._held.pop(stored.serial, None)
                segment = stored.segment
                if segment is None:
                    continue
                segment.blocks -= 1
                if not segment.blocks and segment.closed:
                    self._remove(segment)

    def recover(self, used: set[int], below: int | None) -> tuple[list[StoredBlock], list[int]]:
        """The blocks that a run left here, but those in chunks, in the order in which they came.

        Also gives the numbers of those that are not to be believed, now or later: a power cut came.

        Args:
            used: numbers of the blocks that are in chunks.
            below: a number that those which outlived a power cut are below of; None if there was none.
        """
        found: list[StoredBlock] = []
        lost: list[int] = []
        for path in sorted(self._folder.glob("blocks-*")):
            self._number = int(path.name.rpartition("-")[2]) + 1
            segment = Segment(path, os.open(path, os.O_RDWR | os.O_CLOEXEC), closed=True)
            self._segments.append(segment)
            for stored in _records(segment, self._seal):
                self._serial = max(self._serial, stored.serial + 1)
                if stored.serial in used:
                    continue
                if below is not None and stored.serial >= below:
                    lost.append(stored.serial)
                    continue
                segment.blocks += 1
                found.append(stored)
            if not segment.blocks:
                self._remove(segment)
        self._serial = max([self._serial, *(serial + 1 for serial in used)])
        return sorted(found, key=lambda stored: stored.serial), lost

    def close(self) -> None:
        """Closes its files, which stay, with what was in memory if there is room for it."""
        with contextlib.suppress(StoreError):
            self.save()
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


def _write(fd: int, part: bytes | memoryview, at: int) -> int:
    view = memoryview(part)
    while view:
        written = os.pwrite(fd, view, at)
        at += written
        view = view[written:]
    return at


def _records(segment: Segment, seal: Seal | None) -> Iterator[StoredBlock]:
    """The whole records of a file; what follows them is cut off."""
    end = os.fstat(segment.fd).st_size
    at = 0
    while at + _HEAD.size <= end:
        checksum, text, sizes, data = _HEAD.unpack(os.pread(segment.fd, _HEAD.size, at))
        start = at + _HEAD.size
        stop = start + text + sizes + data
        # What a power cut left as zeros would have the right checksum, of nothing.
        if not text or stop > end or _checksum(segment.fd, start, stop) != checksum:
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
            read=about["read"],
        )
        stored = StoredBlock(about["serial"], block, data)
        stored.put(segment, stop - data, data, seal)
        yield stored
        at = segment.size = stop
    os.ftruncate(segment.fd, segment.size)


def _checksum(fd: int, start: int, stop: int) -> int:
    found = 0
    while start < stop:
        part = os.pread(fd, min(stop - start, 1 << 23), start)
        found = zlib.crc32(part, found)
        start += len(part)
    return found

"""From blocks to chunks: which samples lie in which file. Only samples and their order decide, never who made them."""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace._frames import plain

from .output import Output
from .progress import Done, Meter
from .settling import Settler
from .spool import Block, Failure, Spool, StoredBlock
from .writing import Entry, Layout, Options, Piece

__all__ = ["Chunks"]

_MOST_WAITING = 256 << 20
"""Bytes of samples that may be in the spool and cannot be in a chunk yet, before those who make more of them wait."""

_At = tuple[int, int]
"""A place among samples: an input, and how many samples of it come before."""


class Chunks:
    """Makes chunks of blocks; a `Sink` of the engine.

    Args:
        output: where chunks go.
        spool: where blocks are.
        layout: of the format.
        options: how large chunks are.
        base: the number in their names, see `Layout.name`.
        ordered: whether samples keep the order of inputs, or that in which blocks come.
        aligned: whether a chunk that is full by its bytes before it has `chunk_size` samples is an error.
        bounded: whether those who make samples wait while too many of them wait for their turn.
        schema: of the dataset that is added to, if there is one.
        meter: what is shown.

    Attributes:
        known: called when the schema is known.
    """

    def __init__(
        self,
        output: Output,
        spool: Spool,
        layout: Layout,
        options: Options,
        *,
        base: int,
        ordered: bool,
        aligned: bool,
        bounded: bool,
        schema: str | None,
        meter: Meter,
    ) -> None:
        self._output, self._spool, self._layout, self._options = output, spool, layout, options
        self._base, self._ordered, self._aligned, self._bounded, self._meter = base, ordered, aligned, bounded, meter
        self.known: Callable[[], None] | None = None
        self._schema = schema
        self._settler = Settler(output, spool, layout)
        self._count = 0
        self.failures: list[Failure] = []
        self.read = 0
        """Bytes of inputs that are files."""
        self._pieces: list[Piece] = []
        self._samples = self._bytes = 0
        # Blocks all of whose samples are in the open chunk or before it, and what that finished.
        self._used: list[StoredBlock] = []
        self._done = Done()
        self._noted_failures = 0
        self._next = (0, 0)
        self._noted: dict[str, Any] = {"schema": schema, "next": self._next, "partial": None, "read": 0}
        # Of a block whose first samples are in a chunk already: how many are, and where they end.
        self._begun: dict[int, tuple[int, _At]] = {}
        self._early: dict[tuple[int, int], StoredBlock] = {}
        # Blocks of a run before, which are counted as done, though some wait for their turn.
        self._recovered: set[int] = set()
        self._waiting = 0
        self._changed = threading.Condition()

    @property
    def schema(self) -> str | None:
        """That of the dataset, as far as it is known."""
        return self._schema

    # The engine's side

    def keep(self, block: Block) -> StoredBlock:
        """Puts a block into the spool."""
        stored = self._spool.append(block)
        with self._changed:
            self._waiting += stored.nbytes
        return stored

    def accept(self, kept: StoredBlock) -> None:
        """Takes a block; makes the chunks that are full.

        Raises:
            TypeError: if its samples are not like those before.
            StoreError: if a chunk cannot be written.
        """
        if self._ordered:
            self._early[kept.block.first, kept.block.skip] = kept
            while (stored := self._early.pop(self._next, None)) is not None:
                self._consume(stored)
        else:
            self._consume(kept)

    def wait(self, first: int, stopped: Callable[[], bool]) -> None:
        """Waits while too much waits to be put into chunks, unless it waits for this input."""
        if not self._bounded:
            return
        with self._changed:
            while self._waiting > _MOST_WAITING and not (self._ordered and first <= self._next[0]) and not stopped():
                self._changed.wait(0.1)

    # The end, and the beginning after a kill

    def finish(self) -> tuple[list[Entry], str | None]:
        """Makes the last chunk; gives all of them, and the schema.

        Raises:
            RuntimeError: if samples of an input did not come.
            StoreError: if a chunk cannot be written.
        """
        if self._early:
            number, skip = self._next
            raise RuntimeError(
                f"expected the samples of input {number} from number {skip} on, found none of them, and "
                f"{len(self._early):,} blocks that come later: nothing was published"
            )
        self._settle(None)
        entries = self._layout.settle(self._output.chunks, self._settler.finish(), self._schema)
        return entries, self._schema

    def close(self) -> None:
        """Returns when nothing more is written."""
        self._settler.close()

    def recover(self, lines: Sequence[Any], below: int | None, boot: str) -> Done:
        """Goes on from what a run left; gives the inputs that are done.

        Args:
            lines: what holds of the journal.
            below: see `Spool.recover`.
            boot: this start of the machine.

        Raises:
            StoreError: if the journal cannot be written.
        """
        done = Done()
        used: set[int] = set()
        for line in lines:
            if "used" not in line:
                continue
            if line["chunk"] is not None:
                self._settler.entries.append(line["chunk"])
            used.update(line["used"])
            done.update(line["done"], line["taken"])
            self.failures += [Failure(*parts) for parts in line["failures"]]
            self._noted = {name: line[name] for name in ("schema", "next", "partial", "read")}
            self._schema, self._next, self.read = line["schema"], tuple(line["next"]), line["read"]
        self._count = len(self._settler.entries)
        self._noted_failures = len(self.failures)
        found, lost = self._spool.recover(used, below)
        if below is not None:
            # At once: a kill in between would leave blocks that a later run believes, and whose inputs were done again.
            self._output.rewrite([*lines, {"boot": boot}, {**self._refusal(lost), "chunk": None}])
        if (partial := self._noted["partial"]) is not None:
            serial, row, number, samples = partial
            if any(stored.serial == serial for stored in found):
                self._begun = {serial: (row, (number, samples))}
            else:
                self._next = (number, samples)
        self._recovered = {stored.serial for stored in found}
        for stored in found:
            if not self._follows(stored, done):
                self._refuse(stored)
                continue
            done.block(stored.block)
            self._waiting += stored.nbytes
            self.accept(stored)
        return done

    def _follows(self, stored: StoredBlock, done: Done) -> bool:
        """Whether the samples before those of a block are all there: they may have been in memory, and lost."""
        block = stored.block
        return not block.skip or stored.serial in self._begun or done.taken.get(block.first) == block.skip

    # Chunks

    def _consume(self, stored: StoredBlock) -> None:
        block = stored.block
        try:
            self._schema = self._layout.unify(self._schema, block.schema)
        except TypeError as error:
            self._refuse(stored)
            which = f"input {block.first}" if block.first == block.last else f"inputs {block.first} to {block.last}"
            refused = TypeError(f"{which}: {error}")
            plain(refused)
            raise refused from None
        if self._schema is not None and self.known is not None:
            self.known()
        # The first samples of the block that a killed run was at are in its last chunk.
        row, at = self._begun.pop(stored.serial, (0, (block.first, 0)))
        count = len(block.sizes)
        while row < count:
            room = self._room(stored.sizes[row:])
            if room:
                self._pieces.append(Piece(stored, row, row + room))
                self._samples += int(self._weights(stored.sizes[row : row + room]).sum())
                self._bytes += int(stored.sizes[row : row + room].sum())
                row += room
            if row < count:
                self._expect_aligned(stored.sizes[row : row + 1])
                at = self._settle_within(stored, row, at)
        self._next = (block.last + 1, 0)
        if not block.done:
            skip = block.skip if len(block.counts) == 1 else 0
            self._next = (block.last, skip + block.counts[-1])
        self._used.append(stored)
        self._done.block(block)
        self._fail(block, at)
        self.read += block.read
        if stored.serial not in self._recovered:
            self._meter.add(len(block.counts) - (not block.done), count, int(block.sizes.sum()), block.worker)
        with self._changed:
            self._waiting -= stored.nbytes
            self._changed.notify_all()

    def _room(self, sizes: npt.NDArray[np.int64]) -> int:
        """How many more samples fit into the open chunk; one always fits into an empty one."""
        options = self._options
        most = self._layout.most_bytes if options.chunk_bytes is None else options.chunk_bytes
        fits = int(np.searchsorted(np.cumsum(sizes), most - self._bytes, side="right"))
        if options.chunk_size is not None:
            count = np.cumsum(self._weights(sizes))
            fits = min(fits, int(np.searchsorted(count, options.chunk_size - self._samples, side="right")))
        if fits or self._pieces:
            return fits
        if int(sizes[0]) > self._layout.most_bytes:
            raise ValueError(
                f"expected samples of at most {self._layout.most_bytes} bytes, which {self._layout.format} holds, "
                f"found one of {int(sizes[0])}"
            )
        return 1

    def _expect_aligned(self, following: npt.NDArray[np.int64]) -> None:
        """Refuses a chunk that is full with less samples than it is to have."""
        size = self._options.chunk_size or 0
        if self._aligned and self._samples + int(self._weights(following)[0]) <= size:
            raise ValueError(
                f"align_chunking: expected {size:,} samples in each file of at most {self._layout.most_bytes:,} bytes, "
                f"found {self._samples:,} that fill one\nhint: a smaller chunk_size"
            )

    def _weights(self, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """What each sample counts for in `chunk_size`."""
        return self._layout.weights(sizes, self._schema)

    def _settle_within(self, stored: StoredBlock, row: int, at: _At) -> _At:
        """Has a chunk made that ends within a block; gives where it ends.

        Args:
            stored: the block, which may be in memory, and lost: so it is noted how far its inputs came.
            row: its first sample that is not in the chunk.
            at: up to where its failures were noted.
        """
        inside, samples = _place(stored.block, row)
        self._fail(stored.block, at, (inside, samples))
        self._done.add(stored.block.first, inside - 1)
        if samples:
            self._done.taken[inside] = samples
        self._settle([stored.serial, row, inside, samples])
        return inside, samples

    def _settle(self, partial: list[int] | None) -> None:
        """Has a chunk made of the pieces, if there are any, and noted what of the spool it took.

        Args:
            partial: of the block that it ends in: its number, samples that are in the chunk, the input that these end
                in, and samples of that in chunks.
        """
        done = self._done.clear()
        self._noted = {"schema": self._schema, "next": self._next, "partial": partial, "read": self.read}
        line = {
            **self._noted,
            "used": [stored.serial for stored in self._used],
            "done": done.ranges(),
            "taken": list(done.taken.items()),
            "failures": [dataclasses.astuple(failure) for failure in self.failures[self._noted_failures :]],
        }
        self._settler.put(self._layout.name(self._base, self._count), self._pieces, self._schema, line, self._used)
        self._count += bool(self._pieces)
        self._noted_failures = len(self.failures)
        self._pieces, self._samples, self._bytes, self._used = [], 0, 0, []

    def _fail(self, block: Block, start: _At, stop: _At | None = None) -> None:
        """Takes the failures in a part of a block: whoever makes the samples behind it again finds the others again."""
        self.failures += [
            failure
            for failure in block.failures
            if start <= (failure.input, failure.samples) and (stop is None or (failure.input, failure.samples) < stop)
        ]

    def _refuse(self, stored: StoredBlock) -> None:
        """Has it noted that a block is not to be used: its inputs are done again."""
        self._settler.put("", [], None, self._refusal([stored.serial]), [stored])

    def _refusal(self, serials: list[int]) -> dict[str, Any]:
        """The line that says so of the blocks of these numbers."""
        return {**self._noted, "used": serials, "done": [], "taken": [], "failures": []}


def _place(block: Block, row: int) -> _At:
    """The input that a sample of a block is of, and how many samples of that come before it."""
    ends = np.cumsum(block.counts)
    at = int(np.searchsorted(ends, row, side="right"))
    before = int(ends[at - 1]) if at else -block.skip
    return block.first + at, row - before

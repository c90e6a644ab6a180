"""The batches of an epoch over samples that the core gathers: no Python is run for one before it is given."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace import _core
from headrace.errors import StoreError
from headrace.samples.order import PermutedOrder, SequentialOrder
from headrace.samples.stored import StoredSamples

from . import sample_run as runs
from .make import AnyTask, Made, Task
from .pool import NotReady, add_note
from .sample_feed import Workers

__all__ = ["RowFeed"]

_Stretch = tuple[int, int, int, int, int]
"""A step, the place of its first row in the epoch, rows, places from one batch to the next, and batches."""


class GatheredTask(NamedTuple):
    """A task whose batch the core made: its numbers become arrays when they are asked for."""

    step: int
    epoch: int
    begin: int
    stretch: tuple[int, int]
    """The first of this rank's rows, and the row behind the last."""
    items: _core.Buffer
    """The samples that stand there."""

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """See `Task`."""
        return np.arange(*self.stretch, dtype=np.int64)

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """See `Task`."""
        return np.frombuffer(memoryview(self.items), np.int64)


class RowFeed:
    """The batches of the rest of an epoch, as `sample_feed.Feed` gives them.

    A batch that the core could not gather is made as those of other samples are: that says why, and which sample it is,
    or leaves it out.

    Args:
        run: in an order that the core knows: each epoch in storage order, or a permutation.
        position: where it stands.
        workers: make what the core cannot.
        stored: the samples.

    Raises:
        ValueError: if the core does not know its order.
    """

    def __init__(self, run: runs.Run, position: runs.Position, workers: Workers, stored: StoredSamples) -> None:
        self.epoch = run.order.epoch_of(position.row)
        order = run.order.of_epoch(self.epoch)
        if not isinstance(order, PermutedOrder | SequentialOrder):
            raise ValueError(f"expected samples in storage order or permuted, got {type(order).__name__}")
        self._run, self._position = run, position
        self._stored = stored
        self._make = workers.maker
        self._number = 0
        """Of the next batch."""
        self._alike = run.alike(position)
        """Steps from the next one on that hold whole batches of one size."""
        self._part: tuple[int, int] | None = None
        """Where this rank's rows of such a batch begin and end, counted from its first one."""
        resources = workers.resources
        self._core = _core.RowFeed(
            stored.rows,
            order.permutation(self.epoch) if isinstance(order, PermutedOrder) else None,
            list(_stretches(run, position)),
            workers=resources.workers,
            ahead=(resources.prefetch + 1) * max(1, resources.workers),
            memory=resources.memory,
        )

    def next(self, timeout: float | None) -> tuple[AnyTask, Made, runs.Position]:
        """See `Feed.next`."""
        run, position = self._run, self._position
        if run.order.epoch_of(position.row) != self.epoch:
            raise StopIteration
        first, end = self._stretch(position)
        step, items, arrays = self._next(timeout) if first < end else (position.step, None, None)
        if step != position.step:
            # Ctrl-C came between a batch and the note that it was given.
            raise StopIteration
        after = self._following(position)
        number, self._number, self._position = self._number, self._number + 1, after
        if items is not None and arrays is not None:
            task = GatheredTask(step, self.epoch, position.row, (first, end), items)
            return task, Made(step, self._stored.batch(end - first, arrays), end - first, 0, [], None), after
        rows = np.arange(first, end, dtype=np.int64)
        task = Task(step, self.epoch, position.row, rows, run.positions(rows), run.order.drawn(rows))
        try:
            return task, self._make(task), after
        except Exception as error:
            add_note(error, f"batch {number} of this iterator")
            raise

    def close(self) -> None:
        """See `Feed.close`."""
        self._core.close()

    def _stretch(self, position: runs.Position) -> tuple[int, int]:
        """`Run.stretch_of_rank`, likewise."""
        part, row = self._part, position.row
        if part is not None:
            return row + part[0], row + part[1]
        first, end = self._run.stretch_of_rank(position)
        if self._alike > 1:
            self._part = first - row, end - row
        return first, end

    def _following(self, position: runs.Position) -> runs.Position:
        """`Run.following`, which has less to look at where one whole batch follows another."""
        if self._alike > 1:
            self._alike -= 1
            return runs.Position(position.step + 1, position.row + position.batch, position.segments, position.skipped)
        after = self._run.following(position)
        self._alike, self._part = self._run.alike(after), None
        return after

    def _next(self, timeout: float | None) -> "tuple[int, _core.Buffer, list[_core.Buffer] | None]":
        try:
            found = self._core.next(timeout)
        except StoreError as error:
            add_note(error, f"batch {self._number} of this iterator")
            raise
        except TimeoutError:
            raise NotReady(f"no result after {timeout:g} s") from None
        if found is None:
            raise StopIteration
        return found


def _stretches(run: runs.Run, position: runs.Position) -> Iterator[_Stretch]:
    """The rest of an epoch, without batches of which this rank has no row."""
    epoch = run.order.epoch_of(position.row)
    begin = run.order.begin_of(epoch)
    while run.order.epoch_of(position.row) == epoch:
        first, end = run.stretch_of_rank(position)
        count = run.alike(position)
        if first < end:
            yield position.step, first - begin, end - first, position.batch, count
        position = run.following(run.at(position, position.step + count - 1))

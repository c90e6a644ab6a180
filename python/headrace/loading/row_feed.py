"""The batches of an epoch over samples that the core gathers: no Python is run for one before it is given."""

from collections.abc import Iterator

import numpy as np

from headrace import _core
from headrace.errors import StoreError
from headrace.samples.order import PermutedOrder, SequentialOrder
from headrace.samples.stored import StoredSamples

from . import sample_run as runs
from .make import Made, Task
from .pool import NotReady, add_note
from .sample_feed import Workers

__all__ = ["RowFeed"]

_Stretch = tuple[int, int, int, int, int]
"""A step, the place of its first row in the epoch, rows, places from one batch to the next, and batches."""


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
        resources = workers.resources
        self._core = _core.RowFeed(
            stored.rows,
            order.permutation(self.epoch) if isinstance(order, PermutedOrder) else None,
            list(_stretches(run, position)),
            workers=resources.workers,
            ahead=(resources.prefetch + 1) * max(1, resources.workers),
            memory=resources.memory,
        )

    def next(self, timeout: float | None) -> tuple[Task, Made, runs.Position]:
        """See `Feed.next`."""
        run, position = self._run, self._position
        if run.order.epoch_of(position.row) != self.epoch:
            raise StopIteration
        rows = run.rows_of_rank(position.row, position.batch, run.rank)
        arrays = None
        if len(rows):
            step, items, arrays = self._next(timeout)
            positions = np.frombuffer(memoryview(items), np.int64)
            if step != position.step:
                # Ctrl-C came between a batch and the note that it was given.
                raise StopIteration
        else:
            positions = run.positions(rows)
        task = Task(position.step, self.epoch, position.row, rows, positions, run.order.drawn(rows))
        after = run.following(position)
        number, self._number, self._position = self._number, self._number + 1, after
        if arrays is not None:
            return task, Made(task.step, self._stored.batch(arrays), len(rows), 0, [], None), after
        try:
            return task, self._make(task), after
        except Exception as error:
            add_note(error, f"batch {number} of this iterator")
            raise

    def close(self) -> None:
        """See `Feed.close`."""
        self._core.close()

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
        rows = run.rows_of_rank(position.row, position.batch, run.rank)
        count = run.alike(position)
        if len(rows):
            yield position.step, int(rows[0]) - begin, len(rows), position.batch, count
        position = run.following(run.at(position, position.step + count - 1))

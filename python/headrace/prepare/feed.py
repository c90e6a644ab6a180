"""Which inputs come next: a queue that threads take tasks from."""

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from .progress import Done

__all__ = ["Feed", "Task"]


@dataclass(slots=True)
class Task:
    """Inputs that follow each other."""

    first: int
    values: list[Any]
    skip: int = 0
    """Samples of the first one that are there already."""
    deaths: int = 0
    """Processes that ended in the middle of it."""
    losses: int = 0
    """Machines that were lost in the middle of it, one after another, without a block."""


class Feed:
    """Gives the inputs that are not done, each once, in order.

    Args:
        inputs: of which those with an index are taken by it, so that what is done is not even looked at.
        done: what earlier runs did.
        limit: inputs to take at most.
        alone: whether there may be only one task until `together` is called.
    """

    def __init__(self, inputs: Iterable[Any], done: Done, *, limit: int | None, alone: bool) -> None:
        self._sequence: Sequence[Any] | None = inputs if is_sequence(inputs) else None  # pyright: ignore
        count = None if self._sequence is None else len(self._sequence)
        self.total = count if limit is None or count is None else min(count, limit)
        """Inputs, if that is known."""
        self._stop = self.total if self.total is not None else limit
        self._rest = done.rest(self._stop)
        self._range = next(self._rest, None)
        self._taken = dict(done.taken)
        self._items: Iterator[Any] | None = None if self._sequence is not None else iter(inputs)
        self._passed = 0
        self.given = 0
        """Inputs in tasks so far."""
        self._again: deque[Task] = deque()
        self._alone = alone
        self._running = 0
        self._stopped = False
        self._changed = threading.Condition()

    def take(self, count: int) -> Task | None:
        """The next inputs, at most so many; None if there are no more. Waits while another task has to be alone."""
        with self._changed:
            while True:
                if self._stopped:
                    return None
                if not (self._alone and self._running):
                    # An error leaves it so, and nobody takes the run to be at its end.
                    self._running += 1
                    task = self._again.popleft() if self._again else self._next(count)
                    if task is not None:
                        return task
                    self._running -= 1
                    if not self._running:
                        return None
                # What others are at may come back, if their process ends.
                self._changed.wait()

    def finish(self, again: Iterable[Task]) -> None:
        """Says that a task is over, and what of it is to be done again."""
        with self._changed:
            self._again.extend(again)
            self._running -= 1
            self._changed.notify_all()

    def together(self) -> None:
        """From now on there may be several tasks."""
        if self._alone:
            with self._changed:
                self._alone = False
                self._changed.notify_all()

    def stop(self) -> None:
        """Gives no more tasks."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _next(self, count: int) -> Task | None:
        if self._range is None:
            return None
        first, stop = self._range
        # An input that is partly done begins a task: what is left out are samples of a task's first input.
        last = first + count if stop is None else min(first + count, stop)
        last = min([last, *(number for number in self._taken if first < number < last)])
        values = self._values(first, last)
        if len(values) < last - first:
            self._range = None
            if not values:
                return None
        elif last == stop:
            self._range = next(self._rest, None)
        else:
            self._range = (last, stop)
        self.given += len(values)
        return Task(first, values, self._taken.pop(first, 0))

    def _values(self, first: int, last: int) -> list[Any]:
        if self._sequence is not None:
            return [self._sequence[number] for number in range(first, last)]
        assert self._items is not None
        # Inputs that are done are passed over.
        next(islice(self._items, first - self._passed, first - self._passed), None)
        values = list(islice(self._items, last - first))
        self._passed = first + len(values)
        return values


def is_sequence(inputs: Any) -> bool:
    """Whether inputs can be counted, and taken by their numbers."""
    return hasattr(inputs, "__len__") and hasattr(inputs, "__getitem__") and not isinstance(inputs, dict)

"""Which inputs come next: a queue that threads take tasks from, over a source of inputs with numbers."""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from headrace.errors import StateMismatch

from .progress import Done

__all__ = ["Feed", "InputSource", "Iterated", "Listed", "Numbered", "Task", "is_sequence"]


class Numbered(Protocol):
    """Inputs that are counted, and taken by their numbers."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Any: ...


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


class InputSource(ABC):
    """Inputs that are not done, each once. One thread at a time asks for them."""

    total: int | None
    """Inputs, with those that are done; None if that is not known."""

    @abstractmethod
    def next(self, count: int, *, in_order: bool) -> Task | None:
        """Some inputs that follow each other; None if there are no more, or it was stopped.

        Args:
            count: at most so many.
            in_order: whether they have to be the first that are left.
        """

    def stop(self) -> None:  # noqa: B027
        """Lets go of whoever waits in `next`, if that can be done. Called by another thread."""


class Listed(InputSource):
    """Inputs with an index, taken by it, so that what is done is not even looked at.

    Args:
        inputs: all of them.
        done: what earlier runs did.
        limit: inputs to take at most.
        heavy: those that come first, in this order; the others follow in theirs.
    """

    def __init__(self, inputs: Sequence[Any], done: Done, *, limit: int | None, heavy: Sequence[int] = ()) -> None:
        self._inputs = inputs
        self.total = len(inputs) if limit is None else min(len(inputs), limit)
        self._taken = dict(done.taken)
        left = [range(first, self.total if stop is None else stop) for first, stop in done.rest(self.total)]
        numbers = done.numbers() if heavy else set[int]()
        self._heavy = deque(number for number in heavy if number < self.total and number not in numbers)
        ones = set(self._heavy)
        self._ranges = deque(part for numbers in left for part in _without(numbers, ones))

    def next(self, count: int, *, in_order: bool) -> Task | None:
        """See `InputSource.next`."""
        if self._heavy:
            first = min(self._heavy) if in_order else self._heavy[0]
            if not (in_order and self._ranges and self._ranges[0].start < first):
                self._heavy.remove(first)
                return self._task(first, first + 1)
        if not self._ranges:
            return None
        numbers = self._ranges.popleft()
        # An input that is partly done begins a task: what is left out are samples of a task's first input.
        last = min(
            [numbers.start + count, numbers.stop, *(n for n in self._taken if n in numbers and n > numbers.start)]
        )
        if last < numbers.stop:
            self._ranges.appendleft(range(last, numbers.stop))
        return self._task(numbers.start, last)

    def _task(self, first: int, stop: int) -> Task:
        try:
            values = [self._inputs[number] for number in range(first, stop)]
        except Exception as error:
            error.add_note("while an input was taken by its number")
            raise
        return Task(first, values, self._taken.pop(first, 0))


class Iterated(InputSource):
    """Inputs of an iterator: those that are done are taken from it and passed over.

    Args:
        inputs: gives the same ones in each run.
        done: what earlier runs did.
        limit: inputs to take at most.
        total: how many there are, if that is known.
    """

    def __init__(self, inputs: Iterable[Any], done: Done, *, limit: int | None, total: int | None) -> None:
        self.total = total if limit is None or total is None else min(total, limit)
        self._items = iter(inputs)
        self._least = max([last + 1 for _, last in done.ranges()], default=0)
        self._rest: Iterator[tuple[int, int | None]] = done.rest(limit)
        self._range = next(self._rest, None)
        self._taken = dict(done.taken)
        self._passed = 0

    def next(self, count: int, *, in_order: bool) -> Task | None:
        """See `InputSource.next`.

        Raises:
            StateMismatch: if there are less than were done before.
            Exception: what the iterator raised.
        """
        if self._range is None:
            return None
        first, stop = self._range
        last = first + count if stop is None else min(first + count, stop)
        last = min([last, *(number for number in self._taken if first < number < last)])
        try:
            self._passed += sum(1 for _ in islice(self._items, first - self._passed))
            values = list(islice(self._items, last - first))
        except Exception as error:
            error.add_note("while an input was taken from the iterator")
            raise
        self._passed += len(values)
        if self._passed < last:
            self._range = None
            if self._passed < self._least:
                raise StateMismatch(
                    f"the iterator gave {self._passed:,} inputs, and the unfinished run had done input "
                    f"{self._least - 1:,} of it\n"
                    "hint: to go on with a run it has to give the same inputs again; resume=False forgets the run"
                )
        else:
            self._range = next(self._rest, None) if last == stop else (last, stop)
        return Task(first, values, self._taken.pop(first, 0)) if values else None


class Feed:
    """Gives what a source has, and what has to be done again.

    Args:
        source: of inputs.
        alone: whether there may be only one task until `together` is called.
    """

    def __init__(self, source: InputSource, *, alone: bool) -> None:
        self._source = source
        self.given = 0
        """Inputs in tasks so far."""
        self.puller: threading.Thread | None = None
        """The thread that waits for the source, which may be the user's and never come back."""
        self._again: deque[Task] = deque()
        self._alone = alone
        self._running = 0
        self._ended = self._stopped = False
        self._changed = threading.Condition()

    @property
    def total(self) -> int | None:
        """Inputs, if that is known."""
        return self._source.total

    def take(self, count: int) -> Task | None:
        """The next inputs, at most so many; None if there are no more. Waits while another task has to be alone."""
        while True:
            with self._changed:
                while not (self._again or (self.puller is None and not self._ended)) or (self._alone and self._running):
                    # What others are at may come back, if their process ends.
                    if self._stopped or (self._ended and not self._again and not self._running):
                        return None
                    self._changed.wait()
                if self._stopped:
                    return None
                self._running += 1
                if self._again:
                    return self._again.popleft()
                self.puller = threading.current_thread()
            # The lock is not held: a source may wait for long.
            task = None
            try:
                task = self._source.next(count, in_order=self._alone)
                if task is None:
                    # An error leaves it so, and nobody takes the run to be at its end.
                    self.finish([])
            finally:
                with self._changed:
                    self.puller = None
                    self._ended = task is None
                    self.given += 0 if task is None else len(task.values)
                    self._changed.notify_all()
            if task is not None:
                return task

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
        self._source.stop()


def is_sequence(inputs: Any) -> bool:
    """Whether inputs can be counted, and taken by their numbers."""
    return hasattr(inputs, "__len__") and hasattr(inputs, "__getitem__") and not isinstance(inputs, dict)


def _without(numbers: range, ones: set[int]) -> Iterator[range]:
    """What is left of numbers without some of them."""
    start = numbers.start
    for number in sorted(ones.intersection(numbers)) if ones else ():
        if start < number:
            yield range(start, number)
        start = number + 1
    if start < numbers.stop:
        yield range(start, numbers.stop)

"""The items of one batch made at the same time, for data that is waited for rather than computed."""

from collections.abc import Callable, Sequence
from itertools import count
from queue import SimpleQueue
from typing import Any

from .pool import Pool

__all__ = ["Helpers"]


class Helpers:
    """Threads that lend a hand to whoever calls `map`; several may at once, and share them.

    Args:
        threads: how many, besides the caller.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: Pool[Any, Any] = Pool(lambda task: task, threads, name="headrace-item")

    def map(self, call: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """What ``[call(item) for item in items]`` gives. Of several errors the first in that order is raised."""
        job = _Job(call, items)
        self._pool.lend(job.help, min(self._threads, len(items) - 1))
        try:
            own = job.work()
            for _ in range(len(items) - own):
                job.done.get()
        except BaseException:
            job.stop = True
            raise
        if job.errors:
            error = job.errors[min(job.errors)]
            try:
                raise error
            finally:
                job.errors.clear()
                # The traceback refers to this frame.
                del error
        return job.results

    def close(self) -> None:
        """Ends the threads, each after the item that it is in."""
        self._pool.close()


class _Job:
    """The items of a batch: everyone who takes part takes the next one that nobody has."""

    def __init__(self, call: Callable[[Any], Any], items: Sequence[Any]) -> None:
        self._call = call
        self._items = items
        self._next = count()
        self.results: list[Any] = [None] * len(items)
        self.errors: dict[int, BaseException] = {}
        self.stop = False
        self.done: SimpleQueue[None] = SimpleQueue()
        """An entry for each item that a helper has done with."""

    def help(self) -> None:
        """What a helper does."""
        for number in self._next:
            if number >= len(self._items):
                return
            try:
                self._make(number)
            finally:
                self.done.put(None)

    def work(self) -> int:
        """What the caller does: the number of items that it did itself."""
        own = 0
        for number in self._next:
            if number >= len(self._items):
                break
            self._make(number)
            own += 1
        return own

    def _make(self, number: int) -> None:
        # After an error the items behind it need not be made: they are taken after it.
        if self.stop or self.errors:
            return
        try:
            self.results[number] = self._call(self._items[number])
        except BaseException as error:
            self.errors[number] = error

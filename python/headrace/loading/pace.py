"""How many threads of a pool work at once: all of them, or one where several only take turns at the GIL.

Two threads whose tasks let go of the GIL for moments (to read a file, to add up an array) wake each other at every such
moment, and can take twice as long as one thread alone. Which it is depends on the tasks, so it is tried.
"""

import time
from typing import Final

from .team import Team

__all__ = ["Pace"]

_TRIAL_SECONDS: Final = 0.1
"""How long results are counted for one measurement."""

_BUSY: Final = 0.7
"""A process that computes for less than this share of the time waits for something else than the GIL."""

_BOUND: Final = 0.5
"""Threads are what is waited for if the consumer waits for so much of the time."""

_BETTER: Final = 1.1
"""One thread must be so many times as fast as all."""

_PAUSE_SECONDS: Final = (5.0, 60.0)
"""Until it is tried again: at first, and at most."""


class Pace:
    """Watches the results of a pool as they are handed out, and says how many of its threads work.

    Args:
        team: of the pool.
        workers: its threads.
    """

    def __init__(self, team: Team, workers: int) -> None:
        self._team = team
        self._workers = workers
        self._all: float | None = None
        """Results a second of all threads, while one is tried."""
        self._pause = _PAUSE_SECONDS[0]
        self._next = 0.0
        """When it is tried again."""
        self._settling = 4 * workers
        """Results that do not count: of threads that begin, or end what they had."""
        self._begin()

    @property
    def is_limited(self) -> bool:
        """Whether some threads are kept from working."""
        return self._team.limit < self._workers

    def note(self, waited: float) -> None:
        """A result was handed out, after a wait of so many seconds."""
        if self._settling > 0:
            self._settling -= 1
            if self._settling == 0:
                self._begin()
            return
        self._count += 1
        self._waited += waited
        now = time.perf_counter()
        if now - self._since < _TRIAL_SECONDS or self._count < 2 * self._workers:
            return
        seconds, count = now - self._since, self._count
        is_bound = self._waited > _BOUND * seconds
        is_busy = time.process_time() - self._computed > _BUSY * seconds
        self._begin()
        if self._all is not None:
            # One thread was tried.
            is_better = is_bound and count / seconds > _BETTER * self._all
            self._all = None
            self._next, self._pause = now + self._pause, min(2 * self._pause, _PAUSE_SECONDS[1])
            if not is_better:
                self.release()
        elif now >= self._next and self.is_limited:
            # All are tried again first.
            self.release()
        elif now >= self._next and is_bound and is_busy:
            self._all = count / seconds
            self._team.limit = 1
            self._settling = 2 * self._workers

    def release(self) -> None:
        """Has all threads work."""
        self._all = None
        self._settling = 2 * self._workers
        self._team.release(self._workers)

    def _begin(self) -> None:
        self._since, self._computed = time.perf_counter(), time.process_time()
        self._count, self._waited = 0, 0.0

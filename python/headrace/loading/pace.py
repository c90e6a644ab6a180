"""How many threads of a pool work at once: all of them, or one where several only take turns at the GIL.

Two threads whose tasks let go of the GIL for moments (to read a file, to add up an array) wake each other at every such
moment, and can take twice as long as one thread alone. Which it is depends on the tasks, so it is tried.
"""

import time
from typing import Final

from .team import Team

__all__ = ["Pace"]

_COUNT_SECONDS: Final = 0.1
"""How long results are counted for one measurement, at least."""

_TRIAL_SECONDS: Final = 0.5
"""How long one thread is tried, at most."""

_LONGEST_SECONDS: Final = 0.1
"""Results that come more slowly are too few in that time to tell, were it one thread that makes them."""

_PATIENCE_SECONDS: Final = 1.0
"""How long a result is waited for before all threads work again: tasks may need each other."""

_BUSY: Final = 0.7
"""A process that computes for less than this share of the time waits for something else than the GIL."""

_BOUND: Final = 0.5
"""Threads are what is waited for if the consumer waits for so much of the time."""

_BETTER: Final = 1.1
"""One thread must be so many times as fast as all."""

_PAUSE_SECONDS: Final = (5.0, 300.0)
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
        self._deadline = 0.0
        """When that trial ends in any case."""
        self._pause = _PAUSE_SECONDS[0]
        self._next = 0.0
        """When it is tried again."""
        self._settling = 4 * workers
        """Results that do not count: of threads that begin, or end what they had."""
        self._begin(time.perf_counter())

    @property
    def is_limited(self) -> bool:
        """Whether some threads are kept from working."""
        return self._team.limit < self._workers

    @property
    def patience(self) -> float | None:
        """Seconds for which a result may be waited for now, before `release`; None for no end."""
        if not self.is_limited:
            return None
        return _PATIENCE_SECONDS if self._all is None else max(0.0, self._deadline - time.perf_counter())

    def note(self, waited: float) -> None:
        """A result was handed out, after a wait of so many seconds."""
        now = time.perf_counter()
        is_over = self._all is not None and now >= self._deadline
        if self._settling > 0 and not is_over:
            self._settling -= 1
            if self._settling == 0:
                self._begin(now)
            return
        self._count += 1
        self._waited += waited
        seconds = now - self._since
        is_enough = seconds >= _COUNT_SECONDS and self._count >= 4
        if not is_enough and not is_over:
            return
        rate = self._count / max(seconds, 1e-9)
        is_bound = self._waited > _BOUND * seconds
        is_busy = time.process_time() - self._computed > _BUSY * seconds
        self._begin(now)
        if self._all is not None:
            is_better = is_enough and is_bound and rate > _BETTER * self._all
            self._end_trial(now)
            if not is_better:
                self._let_all()
        elif now >= self._next and self.is_limited:
            # All are measured again first.
            self._let_all()
        elif now >= self._next and is_bound and is_busy and rate * _LONGEST_SECONDS > 1:
            self._all, self._deadline = rate, now + _TRIAL_SECONDS
            self._team.limit = 1
            self._settling = self._workers

    def release(self) -> None:
        """Has all threads work: a result was waited for too long."""
        self._end_trial(time.perf_counter())
        self._let_all()

    def _end_trial(self, now: float) -> None:
        self._all = None
        self._next, self._pause = now + self._pause, min(2 * self._pause, _PAUSE_SECONDS[1])

    def _let_all(self) -> None:
        self._settling = 2 * self._workers
        self._team.release(self._workers)

    def _begin(self, now: float) -> None:
        self._since, self._computed = now, time.process_time()
        self._count, self._waited = 0, 0.0

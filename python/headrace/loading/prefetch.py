"""Chunks of the window to come, read while the current one is used."""

import os
import threading
from collections import deque
from typing import NamedTuple

import numpy as np

from headrace.samples.cache import ChunkCache
from headrace.samples.order import Order, Window
from headrace.samples.pipeline import Pipeline

__all__ = ["Prefetcher", "View"]

_REMOTE_THREADS = 8
"""Chunks of a remote store that are read at once ahead of use: a read of one waits more than it works."""

_LOOK_AGAIN = 0.05
"""Seconds after which a thread looks again whether the cache has room."""


class View(NamedTuple):
    """What is read ahead for: one rank's part of a dataset in its order."""

    pipeline: Pipeline
    order: Order
    rank: int
    world_size: int


class Prefetcher:
    """Reads ahead for one iterator. Threads are made when there is something to read, and end with `close`.

    What it reads goes into the cache and nowhere else: it changes when a batch is ready, never what is in it. A chunk
    that cannot be read is left to the batch that needs it, which then says so.

    Args:
        pipeline: whose chunks.
        cache: where to.
        in_use: the chunks of the window that batches are given of, by origin and number; kept up to date.
        threads: at most this many; with 0 nothing is read ahead.
    """

    def __init__(self, pipeline: Pipeline, cache: ChunkCache, in_use: set[tuple[int, int]], *, threads: int) -> None:
        self._pipeline = pipeline
        self._cache = cache
        self._threads = threads
        self._team = _Team(pipeline, cache)
        self._window: Window | None = None
        self._in_use = in_use

    def reach(self, view: View, row: int) -> None:
        """Says that the batch with a row was given: another window may have begun."""
        if self._window is not None and self._window.begin <= row < self._window.end:
            return
        self._window = view.order.window_of(row)
        if self._window is None:
            return
        now = set(self._of_rank(view, self._window))
        self._cache.retire([self._pipeline.key(*pair) for pair in self._in_use - now])
        self._in_use.clear()
        self._in_use.update(now)
        if self._threads:
            self._team.want(
                [pair for pair in self._next(view, self._window) if pair not in now],
                self._count(view),
            )

    def close(self) -> None:
        """Ends the threads after the chunk that they are in."""
        self._team.stopped = True

    def __del__(self) -> None:
        self.close()

    def _next(self, view: View, window: Window) -> list[tuple[int, int]]:
        following = view.order.window_of(window.end)
        return [] if following is None else self._of_rank(view, following)

    def _count(self, view: View) -> int:
        remote = any(origin.source.remote for origin in view.pipeline.origins)
        return _REMOTE_THREADS if remote else min(2, self._threads)

    def _of_rank(self, view: View, window: Window) -> list[tuple[int, int]]:
        """The chunks of a window that this rank's lanes lie in, by origin and number."""
        used = slice(None)
        if view.order.lanes % view.world_size == 0:
            ends = np.cumsum(window.items)
            total = int(ends[-1]) if len(ends) else 0
            # A sample more at each end: lanes are equal to within one.
            begin = total * view.rank // view.world_size - view.order.lanes
            end = total * (view.rank + 1) // view.world_size + view.order.lanes
            used = (ends > begin) & (ends - window.items < end)
        return list(dict.fromkeys(zip(window.origin[used].tolist(), window.chunk[used].tolist(), strict=True)))


class _Team:
    """What the threads share; they do not refer to the prefetcher, so that it can be dropped."""

    def __init__(self, pipeline: Pipeline, cache: ChunkCache) -> None:
        self.stopped = False
        self._pipeline = pipeline
        self._cache = cache
        self._wanted: deque[tuple[int, int]] = deque()
        self._running = 0
        self._lock = threading.Lock()
        self._process = os.getpid()

    def want(self, pairs: list[tuple[int, int]], threads: int) -> None:
        with self._lock:
            # What was wanted for a window that has begun by now, its batches read.
            self._wanted.clear()
            self._wanted.extend(pairs)
            more = min(threads, len(self._wanted)) - self._running
            self._running += max(0, more)
        for _ in range(more):
            threading.Thread(target=self._work, name="headrace-ahead", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if self.stopped or not self._wanted:
                    self._running -= 1
                    return
                pair = self._wanted.popleft()
            key = self._pipeline.key(*pair)
            expected = int(self._pipeline.origins[pair[0]].source.stored[pair[1]])
            while not self.stopped and not self._cache.has_room(expected):
                threading.Event().wait(_LOOK_AGAIN)
            if self.stopped:
                continue
            try:
                self._cache.get(key, self._pipeline.load(*pair))
            except Exception:
                continue

"""Chunks of the window to come, read while the current one is used."""

import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headrace.samples.cache import ChunkCache
from headrace.samples.order import Order, Window
from headrace.samples.pipeline import AnyPipeline

__all__ = ["Prefetcher", "View"]

_REMOTE_THREADS = 8
"""Chunks of a remote store that are read at once ahead of use: a read of one waits more than it works."""

_LOOK_AGAIN = 0.05
"""Seconds after which a thread looks again whether the cache has room."""


class View(NamedTuple):
    """What is read ahead for: one rank's part of a dataset in its order."""

    pipeline: AnyPipeline
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

    def __init__(self, pipeline: AnyPipeline, cache: ChunkCache, in_use: set[tuple[int, int]], *, threads: int) -> None:
        self._pipeline = pipeline
        self._cache = cache
        self._threads = threads
        self._team = _Team(pipeline, cache)
        self._windows: tuple[Window, ...] = ()
        self._in_use = in_use

    def reach(self, view: View, row: int) -> None:
        """Says that the batch with a row was given: another window may have begun."""
        if self._windows and all(window.begin <= row < window.end for window in self._windows):
            return
        self._windows = view.order.windows_of(row)
        if not self._windows:
            return
        now = set(self._of_rank(view, self._windows))
        # Two sources of a zip may be one, and hold the same chunk.
        still = {self._pipeline.key(*pair) for pair in now}
        gone = [self._pipeline.key(*pair) for pair in self._in_use - now]
        self._cache.retire([key for key in gone if key not in still])
        self._in_use.clear()
        self._in_use.update(now)
        if self._threads:
            self._team.want(
                [pair for pair in self._next(view, self._windows) if pair not in now],
                self._count(view),
            )

    def close(self) -> None:
        """Ends the threads after the chunk that they are in."""
        self._team.stopped = True

    def __del__(self) -> None:
        self.close()

    def _next(self, view: View, windows: Sequence[Window]) -> list[tuple[int, int]]:
        """What is needed when these windows end: of the one first that ends first."""
        ends = sorted({window.end for window in windows})
        following = [self._of_rank(view, view.order.windows_of(end)) for end in ends]
        return list(dict.fromkeys(pair for pairs in following for pair in pairs))

    def _count(self, view: View) -> int:
        remote = any(origin.source.remote for origin in view.pipeline.origins)
        return _REMOTE_THREADS if remote else min(2, self._threads)

    def _of_rank(self, view: View, windows: Sequence[Window]) -> list[tuple[int, int]]:
        """The chunks of windows that this rank's lanes lie in, by origin and number."""
        found: dict[tuple[int, int], None] = {}
        for window in windows:
            used = slice(None)
            lanes = window.lanes
            if lanes == view.order.lanes and lanes % view.world_size == 0:
                ends = np.cumsum(window.items)
                total = int(ends[-1]) if len(ends) else 0
                count = lanes // view.world_size
                first = (view.rank * count + window.turned) % lanes
                # A sample more at each end: lanes are equal to within one.
                begin, end = total * first // lanes - lanes, total * (first + count) // lanes + lanes
                used = (ends > begin) & (ends - window.items < end)
                if first + count > lanes:
                    used |= ends - window.items < end - total
            found |= dict.fromkeys(zip(window.origin[used].tolist(), window.chunk[used].tolist(), strict=True))
        return list(found)


class _Team:
    """What the threads share; they do not refer to the prefetcher, so that it can be dropped."""

    def __init__(self, pipeline: AnyPipeline, cache: ChunkCache) -> None:
        self.stopped = False
        self._pipeline = pipeline
        self._cache = cache
        self._wanted: deque[tuple[int, int]] = deque()
        self._running = 0
        self._lock = threading.Lock()

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

"""Chunks that were opened or read, kept as far as a bound on their bytes allows."""

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from .source import Chunk

__all__ = ["ChunkCache"]

_LEAST_BYTES = 4096
"""What a chunk counts at least: its object and table. Chunks that are read in place hold little more."""


_caches: "weakref.WeakSet[ChunkCache]" = weakref.WeakSet()


class ChunkCache:
    """Chunks by key. Any thread may use it; a chunk is read once at a time.

    The oldest go first, but for those that were used since it was last looked at them (the clock algorithm): that needs
    no order of use, and so little is done where a chunk is found.

    What is handed out stays valid when it goes: a caller may hold it longer.

    Args:
        limit: bytes of memory; a single chunk may be larger, and is then the only one that is kept.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        _caches.add(self)
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._bytes = 0
        self._peak = 0
        self._hits = 0
        self._loads = 0

    def find(self, key: Hashable) -> Chunk | None:
        """The chunk of a key if it is there."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry.chunk is None:
                return None
            entry.used = True
            self._hits += 1
            return entry.chunk

    def get(self, key: Hashable, load: Callable[[], Chunk]) -> Chunk:
        """The chunk of a key, by `load` if it is not there; whoever asks meanwhile waits for that.

        Raises:
            Exception: what `load` raised, for all who waited for it; the next call tries again.
        """
        while True:
            mine, entry = self._claim(key)
            if mine:
                return self._fill(key, entry, load)
            if (chunk := entry.wait()) is not None:
                return chunk
            # Its load was interrupted, by Ctrl-C say, which concerns that thread alone.

    def get_all(self, wanted: dict[Hashable, Callable[[], Chunk]]) -> dict[Hashable, Chunk]:
        """Several chunks. What nobody reads yet is read before waiting for others: several callers share the work."""
        found: dict[Hashable, Chunk] = {}
        others: list[Hashable] = []
        for key, load in wanted.items():
            mine, entry = self._claim(key)
            if mine:
                found[key] = self._fill(key, entry, load)
            elif entry.chunk is not None:
                found[key] = entry.chunk
            else:
                others.append(key)
        for key in others:
            found[key] = self.get(key, wanted[key])
        return found

    def retire(self, keys: Iterable[Hashable]) -> None:
        """Says that these are not needed any more: they go first."""
        with self._lock:
            for key in keys:
                if key in self._entries:
                    self._entries.move_to_end(key, last=False)
                    self._entries[key].retired = True
                    self._entries[key].used = False

    def has_room(self, nbytes: int) -> bool:
        """Whether that much could be added without losing what was not retired."""
        with self._lock:
            going = sum(entry.nbytes for entry in self._entries.values() if entry.retired)
            return self._bytes - going + nbytes <= self.limit

    def stats(self) -> dict[str, int]:
        """``chunk_cache_bytes`` now, ``chunk_cache_peak`` (bytes), ``chunks_loaded`` and ``chunk_hits``."""
        with self._lock:
            return {
                "chunk_cache_bytes": self._bytes,
                "chunk_cache_peak": self._peak,
                "chunks_loaded": self._loads,
                "chunk_hits": self._hits,
            }

    def _claim(self, key: Hashable) -> "tuple[bool, _Entry]":
        """The entry of a key, and whether the caller has to fill it."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry()
                self._loads += 1
                return True, entry
            self._hits += 1
            entry.used = True
            return False, entry

    def _fill(self, key: Hashable, entry: "_Entry", load: Callable[[], Chunk]) -> Chunk:
        try:
            chunk = load()
        except BaseException as error:
            with self._lock:
                if self._entries.get(key) is entry:
                    del self._entries[key]
            entry.fail(error if isinstance(error, Exception) else None)
            raise
        with self._lock:
            if self._entries.get(key) is entry:
                entry.nbytes = max(chunk.nbytes, _LEAST_BYTES)
                self._bytes += entry.nbytes
                self._shrink(entry)
                self._peak = max(self._peak, self._bytes)
        entry.set(chunk)
        return chunk

    def _shrink(self, newest: "_Entry") -> None:
        # Twice around: the first time passes over what was used.
        for key in [*self._entries, *self._entries]:
            if self._bytes <= self.limit:
                return
            entry = self._entries.get(key)
            if entry is None or entry is newest or not entry.nbytes:  # gone, or being read
                continue
            if entry.used:
                entry.used = entry.retired = False
                self._entries.move_to_end(key)
                continue
            del self._entries[key]
            self._bytes -= entry.nbytes

    def __reduce__(self) -> Any:
        return ChunkCache, (self.limit,)


class _Entry:
    """A chunk, or the wait for it."""

    __slots__ = ("_done", "_error", "chunk", "nbytes", "retired", "used")

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: Exception | None = None
        self.chunk: Chunk | None = None
        self.nbytes = 0
        self.retired = False
        self.used = False

    def set(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self._done.set()

    def fail(self, error: Exception | None) -> None:
        self._error = error
        self._done.set()

    def wait(self) -> Chunk | None:
        if self.chunk is None:
            self._done.wait()
        if self._error is not None:
            raise self._error
        return self.chunk


def _begin_anew() -> None:
    """In a forked child, where nobody ends the reads that its parent's threads had begun."""
    for cache in list(_caches):
        ChunkCache.__init__(cache, cache.limit)


os.register_at_fork(after_in_child=_begin_anew)

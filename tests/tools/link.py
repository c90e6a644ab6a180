"""A link of some latency and bandwidth, and what went over it: how many requests, one after which other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Counts", "Link", "depth"]


class Counts(NamedTuple):
    """What went over a link."""

    requests: int
    bytes: int
    """Of bodies, towards the client."""
    depth: int
    """Sequential round trips: the most requests of which each began after another one had ended."""
    faults: int
    """Requests that were struck."""
    connections: int
    most_connections: int
    """At a time."""


class Link:
    """One link, which all connections share.

    Args:
        latency: Seconds from a request to the first byte of its answer.
        bandwidth: Bytes a second; None is no limit.
    """

    def __init__(self, latency: float = 0.0, bandwidth: float | None = None) -> None:
        self.latency = latency
        self.bandwidth = bandwidth
        self._free = 0.0
        self._lock = threading.Lock()

    def delay(self, count: int) -> float:
        """Seconds until so many bytes are through; the link is taken for as long."""
        if self.bandwidth is None:
            return 0.0
        with self._lock:
            now = time.monotonic()
            self._free = max(now, self._free) + count / self.bandwidth
            return self._free - now


def depth(spans: Iterable[tuple[float, float]]) -> int:
    """The most of the spans (begin, end) that lie one behind the other."""
    longest, last = 0, float("-inf")
    for begin, end in sorted(spans, key=lambda span: span[1]):
        if begin >= last:
            longest, last = longest + 1, end
    return longest

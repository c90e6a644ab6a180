"""What stores were asked for, in numbers."""

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Traffic"]


class Traffic(NamedTuple):
    """What a store was asked for so far."""

    requests: int = 0
    bytes: int = 0
    """That were asked for and came."""
    retries: int = 0
    cached: int = 0
    """Bytes that came from the disk cache instead."""
    hedged: int = 0
    """Second requests for reads of which nothing came for a while."""

    @classmethod
    def total(cls, parts: Iterable["Traffic"]) -> "Traffic":
        """The sum of several."""
        return cls(*map(sum, zip(cls(), *parts, strict=True)))

    def stats(self) -> dict[str, int]:
        """By the names that a loader's statistics have."""
        return {
            "bytes_read": self.bytes,
            "bytes_cached": self.cached,
            "requests": self.requests,
            "retries": self.retries,
            "hedged": self.hedged,
        }

"""The disk cache for what is read of remote stores: where it lies, how large it may be, and what hindered it."""

import os
import shutil
import threading
import warnings
from pathlib import Path
from typing import NamedTuple, SupportsIndex

from . import _core
from ._units import parse_bytes

__all__ = ["CacheSize", "Place", "cache_folder", "opened", "place", "warn"]

CacheSize = str | SupportsIndex | float
"""Bytes as a number or text, or a fraction of the disk."""

_open: dict["Place", _core.DiskCache] = {}
_opening = threading.Lock()


class Place(NamedTuple):
    """A cache, by what tells it from others."""

    folder: str
    size: int | float
    """Bytes, or a fraction of the disk."""

    @property
    def limit(self) -> int:
        """Bytes that it may hold: a fraction is of what is free on the disk, with what the cache holds already."""
        if isinstance(self.size, int):
            return self.size
        folder = Path(self.folder)
        free = shutil.disk_usage(_existing(folder)).free
        return max(1, int(self.size * (free + _core.DiskCache.usage(folder)[1])))


def cache_folder(given: str | None) -> Path:
    """The folder that caches are kept in: the given one, or that which the environment names."""
    if given is not None:
        return Path(given)
    if own := os.environ.get("HEADRACE_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "headrace"


def place(folder: Path, size: CacheSize | None) -> Place | None:
    """The cache that is wanted, if one is: by default `$HEADRACE_CACHE_SIZE` says.

    Args:
        folder: where caches are kept.
        size: bytes, or a fraction of what is free on that disk.

    Raises:
        ValueError: if it is no size.
        TypeError: if it is neither a number nor text.
    """
    name, given = "cache_size", size
    if given is None:
        name, given = "HEADRACE_CACHE_SIZE", os.environ.get("HEADRACE_CACHE_SIZE") or None
    if given is None or given == 0 or given == "0":
        return None
    fraction = _fraction(given)
    if fraction is None:
        return Place(str(folder), parse_bytes(given, name))  # pyright: ignore[reportArgumentType]
    if not 0 < fraction < 1:
        raise ValueError(
            f'{name} must be a size such as "50GiB", a number of bytes, or a fraction of the free disk between 0 and '
            f"1, got {given!r}"
        )
    return Place(str(folder), fraction)


def _fraction(given: object) -> float | None:
    if isinstance(given, float):
        return given
    if isinstance(given, str) and given.replace(".", "", 1).isdigit() and "." in given:
        return float(given)
    return None


def _existing(folder: Path) -> Path:
    """The folder, or the first one above it that exists."""
    folder = folder.absolute()
    return next((above for above in (folder, *folder.parents) if above.is_dir()), Path("/"))


def opened(where: Place) -> _core.DiskCache:
    """The cache at a place, one for this process."""
    with _opening:
        if where not in _open:
            _open[where] = _core.DiskCache(where.folder, where.limit)
        return _open[where]


def _renew_lock() -> None:
    """In a forked child, where nobody lets go of a lock that another thread of its parent held."""
    global _opening
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def warn() -> None:
    """Warns of what hindered a cache of this process since the last call: nothing is lost by it but speed."""
    for cache in list(_open.values()):
        if (problem := cache.take_problem()) is not None:
            warnings.warn(problem, RuntimeWarning, stacklevel=3)

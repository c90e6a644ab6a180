"""A disk that is full, for tests of what becomes of writers."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["largest_file"]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file may become larger, which is what a full disk comes to."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

"""Tells whether keys are those that were drawn before, by a checksum of them that does not depend on batches."""

import operator
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, cast

__all__ = ["checksum"]


def checksum(keys: Sequence[Any], before: int = 0) -> int:
    """The checksum of all keys so far.

    Integers, floats, text, bytes, and lists and tuples of them count by their value; of keys of other types, whose
    text may differ from process to process, only the type does.

    Args:
        keys: the next ones.
        before: the checksum of those before them.

    Returns:
        A number of 32 bits; 0 for no key.

    Example:
        >>> checksum([1, 2, 3]) == checksum([3], checksum([1, 2]))
        True
    """
    return zlib.crc32(_packed(keys), before)


def _packed(keys: Sequence[Any]) -> bytes:
    try:
        return _packer(len(keys))(*keys)
    except Exception:
        # Not all of them are integers of 64 bits.
        return b"".join(map(_bytes, keys))


@lru_cache(maxsize=64)
def _packer(count: int) -> Callable[..., bytes]:
    return struct.Struct(f"<{count}q").pack


def _bytes(key: Any) -> bytes:
    """The same for an integer as `_packed` has in its place."""
    if isinstance(key, list | tuple):
        text = _packed(cast("Sequence[Any]", key))
    elif isinstance(key, str):
        text = key.encode("utf-8", "surrogatepass")
    elif isinstance(key, bytes):
        text = key
    elif isinstance(key, float):
        text = struct.pack("<d", key)
    else:
        try:
            number = operator.index(key)
            if -(2**63) <= number < 2**63:
                return struct.pack("<q", number)
            text = str(number).encode()
        except Exception:
            text = f"{key.__class__.__module__}.{key.__class__.__qualname__}".encode()
    return b"%d:" % len(text) + text

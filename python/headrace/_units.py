"""Sizes and counts as people write them."""

import operator
import re
from typing import SupportsIndex

_DECIMAL = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_UNITS = _DECIMAL | _BINARY


def parse_bytes(value: str | SupportsIndex, name: str) -> int:
    """Bytes from a number or from text such as ``"2GiB"``, ``"500 MB"`` or ``"1.5GiB"``.

    Raises:
        ValueError: if it is no size, or not positive.
        TypeError: if it is neither text nor an integer.
    """
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([A-Za-z]*)\s*", value)
        unit = _UNITS.get(match.group(2).upper()) if match else None
        if match is None or unit is None:
            raise ValueError(f'{name} must be a size such as "2GiB" or a number of bytes, got {value!r}')
        count = int(float(match.group(1)) * unit)
    else:
        count = as_int(value, name)
    if not 0 < count < 2**62:
        raise ValueError(f"{name} must be positive and less than 2**62 bytes, got {value!r}")
    return count


def as_int(value: SupportsIndex, name: str, *, least: int | None = None, most: int | None = None) -> int:
    """An integer within bounds.

    Raises:
        ValueError: if it is out of bounds.
        TypeError: if it is no integer; a bool is none.
    """
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if least is not None and number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    if most is not None and number > most:
        raise ValueError(f"{name} must be at most {most}, got {number}")
    return number


def show_bytes(count: int) -> str:
    """A size with a binary unit, for people: ``"1.5 GiB"``."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"

"""The ``json`` leaf: lists and dicts in a compact layout of their own, a byte of type before each value."""

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.errors import DataError

__all__ = ["nested"]

_U32 = struct.Struct("<I").unpack_from
_I64 = struct.Struct("<q").unpack_from
_F64 = struct.Struct("<d").unpack_from

_Value = tuple[Any, int]


def nested(data: bytes, start: int, stop: int) -> Any:
    """The value: compact, or plain JSON as older releases wrote it."""
    if start == stop:
        raise DataError("expected a value, found no bytes")
    if data[start] > 0x20 or data[start] in b"\r ":
        return json.loads(data[start:stop])
    # A slice of its own ends reads where the leaf ends.
    own = data[start:stop]
    value, end = _value(own, 0)
    if end != len(own):
        raise DataError(f"expected a value of {end} bytes, found {len(own)}")
    return value


def _value(data: bytes, at: int) -> _Value:
    tag = data[at]
    if tag >= len(_TAGS):
        raise DataError(f"expected the type of a value, 0 to {len(_TAGS) - 1}, found {tag}")
    return _TAGS[tag](data, at + 1)


def _span(data: bytes, at: int, size: int) -> bytes:
    if size > len(data) - at:
        raise DataError(f"expected {size} bytes, found {len(data) - at}")
    return data[at : at + size]


def _count(data: bytes, at: int, least: int) -> int:
    """A declared number of values, each of which takes at least so many bytes: no more than can be there."""
    count = _U32(data, at)[0]
    if count * least > len(data) - at - 4:
        raise DataError(f"expected {count} values, found {len(data) - at - 4} bytes")
    return count


def _json(data: bytes, at: int) -> _Value:
    size = _U32(data, at)[0]
    return json.loads(_span(data, at + 4, size)), at + 4 + size


def _text(data: bytes, at: int) -> tuple[str, int]:
    size = _U32(data, at)[0]
    return str(_span(data, at + 4, size), "utf-8"), at + 4 + size


def _texts(data: bytes, at: int) -> _Value:
    values: list[str] = []
    count = _count(data, at, 4)
    at += 4
    for _ in range(count):
        value, at = _text(data, at)
        values.append(value)
    return values, at


def _numbers(kind: str) -> Callable[[bytes, int], _Value]:
    def decode(data: bytes, at: int) -> _Value:
        count = _count(data, at, 8)
        return np.frombuffer(data, kind, count, at + 4).tolist(), at + 4 + 8 * count

    return decode


def _bools(data: bytes, at: int) -> _Value:
    count = _count(data, at, 1)
    return [byte != 0 for byte in data[at + 4 : at + 4 + count]], at + 4 + count


def _dict(data: bytes, at: int) -> _Value:
    values: dict[str, Any] = {}
    count = _count(data, at, 5)
    at += 4
    for _ in range(count):
        key, at = _text(data, at)
        values[key], at = _value(data, at)
    return values, at


def _records(data: bytes, at: int) -> _Value:
    rows, width = _U32(data, at)[0], _count(data, at + 4, 4)
    at += 8
    keys: list[str] = []
    for _ in range(width):
        key, at = _text(data, at)
        keys.append(key)
    if rows * max(width, 1) > len(data) - at:
        raise DataError(f"expected {rows} records of {width} values, found {len(data) - at} bytes")
    values: list[dict[str, Any]] = []
    for _ in range(rows):
        row: dict[str, Any] = {}
        for key in keys:
            tag = data[at]
            decode = _IN_RECORDS.get(tag)
            if decode is None:
                raise DataError(f"expected the type of a record's value, 16 to 20, found {tag}")
            row[key], at = decode(data, at + 1)
        values.append(row)
    return values, at


def _int(data: bytes, at: int) -> _Value:
    return _I64(data, at)[0], at + 8


def _float(data: bytes, at: int) -> _Value:
    return _F64(data, at)[0], at + 8


def _bool(data: bytes, at: int) -> _Value:
    return data[at] != 0, at + 1


def _none(data: bytes, at: int) -> _Value:
    return None, at


_TAGS: tuple[Callable[[bytes, int], _Value], ...] = (
    _json, _texts, _numbers("<i8"), _numbers("<f8"), _bools, _dict, _records, _text, _int, _float, _bool, _none,
)  # fmt: skip
_IN_RECORDS: dict[int, Callable[[bytes, int], _Value]] = {16: _none, 17: _text, 18: _int, 19: _float, 20: _bool}

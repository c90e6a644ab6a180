"""Values of tables: what Arrow type a Python value has, and which type holds the values of two."""

import datetime
import decimal
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]

from headrace.media import Encoded, Image

from .arrays import is_array, is_number, is_pil, is_tensor, tensor_array
from .base import at_key, kind_of
from .graphs import Graph, is_graph

__all__ = ["NULL", "SCALARS", "Cell", "cell", "merge"]

Cell = tuple[Any, Any, int]
"""A value as pyarrow takes it, its type, and the bytes that it counts for."""

_arrow: Any = pa

NULL: Any = _arrow.null()

SCALARS: dict[type, Any] = {
    bool: _arrow.bool_(), int: _arrow.int64(), float: _arrow.float64(), str: _arrow.string(), bytes: _arrow.binary(),
}  # fmt: skip

_POSSIBLE = (
    "\nParquet and Arrow hold None, bool, int, float, str, bytes, dates, times, decimals, arrays of NumPy and torch, "
    "images, graphs and what headrace.Audio and the like hold as bytes, and lists and dicts of these"
)
_TIMES = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal)


def cell(value: Any) -> Cell:
    """A value for a column.

    Raises:
        TypeError: if no table can hold it.
        ValueError: if it is beyond the range of its type.
    """
    kind = cast("Any", type(value))
    if (found := SCALARS.get(kind)) is not None:
        return value, found, scalar_bytes(value)
    if value is None:
        return None, NULL, 1
    if (make := _BY_TYPE.get(kind)) is not None:
        return make(value)
    if is_number(value):
        if isinstance(value, str):
            return cell(str(value))
        array: Any = np.asarray(value)
        return array.item(), _number(array.dtype), array.nbytes
    if is_array(value):
        return _array(value)
    if isinstance(value, _TIMES):
        return value, _arrow.scalar(value).type, 8
    if is_tensor(value):
        if str(value.dtype) == "torch.bfloat16":
            raise TypeError("expected a tensor of a type that Arrow has, found one of bfloat16")
        return _array(tensor_array(value))
    if isinstance(value, Encoded):
        return cell(value.encoded())
    if is_pil(value):
        return cell(Image(value).encoded())
    if is_graph(value):
        return cell(Graph(value).encoded())
    raise TypeError(f"expected a value that a table can hold, found {kind_of(value)}{_POSSIBLE}")


def scalar_bytes(value: Any) -> int:
    """The bytes that a value of `SCALARS` counts for; refuses integers that are too large."""
    if type(value) is int:
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"expected an int of 64 bits, found {value}")
        return 8
    if type(value) is str:
        try:
            return len(value) if value.isascii() else len(value.encode())
        except UnicodeEncodeError as error:
            raise ValueError(f"expected text that UTF-8 can hold: {error.reason} at {error.start}") from None
    return len(value) if type(value) is bytes else 8


def merge(known: Any, found: Any) -> Any:
    """The type that holds values of both.

    Raises:
        TypeError: if there is none.
    """
    if known == found or found == NULL:
        return known
    if known == NULL:
        return found
    types = _arrow.types
    if types.is_list(known) and types.is_list(found):
        return _arrow.list_(merge(known.value_type, found.value_type))
    if types.is_struct(known) and types.is_struct(found):
        fields = {field.name: field.type for field in known}
        for field in found:
            try:
                fields[field.name] = merge(fields.get(field.name, NULL), field.type)
            except (TypeError, ValueError) as error:
                raise at_key(field.name, error) from None
        return _arrow.struct(list(fields.items()))
    if types.is_decimal(known) and types.is_decimal(found):
        scale = max(known.scale, found.scale)
        digits = max(known.precision - known.scale, found.precision - found.scale) + scale
        return (_arrow.decimal128 if digits <= 38 else _arrow.decimal256)(digits, scale)
    raise TypeError(f"expected {known} as in the samples before, found {found}")


def _number(dtype: np.dtype[Any]) -> Any:
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise TypeError(f"expected numbers of a type that Arrow has, found {dtype}")
    return _arrow.from_numpy_dtype(dtype.newbyteorder("="))


def _array(array: Any) -> Cell:
    kind = _number(array.dtype)
    if not array.ndim:
        return array.item(), kind, array.nbytes
    array = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))
    for _ in range(array.ndim):
        kind = _arrow.list_(kind)
    return _rows(array), kind, array.nbytes + 8


def _rows(array: Any) -> Any:
    """An array as lists of arrays with one dimension, which pyarrow takes."""
    return array if array.ndim == 1 else [_rows(row) for row in array]


def _list(value: Any) -> Cell:
    parts: list[Cell] = []
    kind = NULL
    for number, part in enumerate(value):
        try:
            made = cell(part)
            kind = merge(kind, made[1])
        except (TypeError, ValueError) as error:
            raise at_key(str(number), error) from None
        parts.append(made)
    return [part for part, _, _ in parts], _arrow.list_(kind), sum(size for _, _, size in parts) + 8


def _dict(value: Any) -> Cell:
    parts: dict[str, Cell] = {}
    for key, part in value.items():
        if type(key) is not str:
            raise TypeError(f"expected keys of text, found {key!r}")
        try:
            parts[key] = cell(part)
        except (TypeError, ValueError) as error:
            raise at_key(key, error) from None
    kind = _arrow.struct([(key, found) for key, (_, found, _) in parts.items()])
    return {key: part for key, (part, _, _) in parts.items()}, kind, sum(size for _, _, size in parts.values())


_BY_TYPE: dict[type, Callable[[Any], Cell]] = {
    list: _list, tuple: _list, dict: _dict, bytearray: lambda value: cell(bytes(value)),
}  # fmt: skip

"""What users give as records, as records."""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from headrace.formats.records.layout import fields_of
from headrace.formats.records.store import descr_of, dtype_of

__all__ = ["as_array", "fitting", "record_type", "rows_of"]

_Rows = npt.NDArray[Any]


def rows_of(values: Any, dtype: np.dtype[Any], what: str) -> _Rows:
    """Records of what a user gives for them: records with its fields, numbers for a type of one field, or a dict.

    Args:
        values: what was given.
        dtype: of a record.
        what: they are, for messages.

    Raises:
        TypeError: if they are of another type.
        ValueError: if a number does not fit, or columns are not equally long.
    """
    fields = fields_of(dtype)
    if isinstance(values, Mapping):
        given = {
            str(name): as_array(value, f"{what}, {name}") for name, value in cast("Mapping[Any, Any]", values).items()
        }
        if set(given) != set(fields):
            raise TypeError(f"{what} must have the columns {', '.join(fields)}, got {', '.join(given)}")
        if alone := [name for name, value in given.items() if not value.ndim]:
            raise ValueError(f"{what} must have columns, got a single value for {alone[0]!r}")
        lengths = {len(value) for value in given.values()}
        if len(lengths) != 1:
            raise ValueError(
                f"{what} must have columns of one length, got "
                + ", ".join(f"{name}: {len(value)}" for name, value in given.items())
            )
        rows = np.empty(lengths.pop(), dtype)
        for name, value in given.items():
            rows[name] = fitting(value, fields[name], f"{what}, {name}")
        return rows
    array = as_array(values, what)
    if array.dtype == dtype:
        return _one_dimension(array, what)
    if set(names := array.dtype.names or ()) == set(fields):
        # Laid out otherwise: with gaps, another order of bytes or of fields.
        array = _one_dimension(array, what)
        return rows_of({name: array[name] for name in names}, dtype, what)
    if names or len(fields) != 1:
        raise TypeError(f"{what} must be records of {dtype}, or a dict of its columns, got {array.dtype}")
    (field,) = fields.values()
    if not field.shape:
        _one_dimension(array, what)
    return np.ascontiguousarray(fitting(array, field, what)).view(dtype).reshape(-1)


def record_type(dtype: Any, name: str) -> np.dtype[Any]:
    """A type with fields, of fixed size, with its numbers in little-endian order.

    Raises:
        TypeError: if it is none.
    """
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"dtype must be a NumPy type of fixed size, got {dtype!r}: {error}") from None
    if found.names is None and name:
        found = np.dtype([(name, found)])
    if found.names is None or found.hasobject or not found.itemsize:
        raise TypeError(f"dtype must be a NumPy type of fixed size, and one with fields for meta, got {dtype!r}")
    if nested := [name for name, field in fields_of(found).items() if field.base.names is not None]:
        raise TypeError(
            f"dtype must have fields of single values or arrays of them, got records in the field {nested[0]!r}: "
            f"{found[nested[0]]}\nhint: give each of their fields a name of its own"
        )
    # Without gaps, so that the file is what the index says.
    return dtype_of(descr_of(found.newbyteorder("<")))


def as_array(values: Any, what: str) -> _Rows:
    """Values as an array.

    Raises:
        TypeError: if some of them are masked, which no file could say.
        ValueError: if they are no array.
    """
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(f"{what}: expected plain values, got a masked array\nhint: filled(...) gives values for all")
    try:
        array = np.asarray(values)
        if array.dtype.kind == "f" and isinstance(values, list | tuple):
            given = cast("list[Any]", values)
            if given and all(type(value) is int for value in given):
                # NumPy has no type of its own for those that only 64 bits without a sign hold, and negative ones.
                return np.array(given, dtype=object)
        return array
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{what}: expected an array: {error}") from None


def fitting(values: _Rows, dtype: np.dtype[Any], what: str) -> _Rows:
    """Values as a type that holds them all. Fractions are rounded to what the type can tell apart, and nothing else is.

    Args:
        values: of any number of entries of the type, in the first dimension.
        dtype: the type, which may have a shape of its own.
        what: they are, for messages.

    Raises:
        TypeError: if they are of another kind.
        ValueError: if one does not fit, or they have another shape.
    """
    base = dtype.base
    if values.shape[1:] != dtype.shape:
        raise ValueError(f"{what}: expected entries of shape {dtype.shape}, got {values.shape[1:]}")
    if values.size == 0:
        return np.zeros(values.shape, base)
    kinds = {"i": "iub", "u": "iub", "f": "iubf", "c": "iubfc", "b": "b"}.get(base.kind, base.kind)
    if base.kind in "iu" and values.dtype == object:
        # Python's numbers beyond 64 bits, or those that no type of NumPy holds together.
        values = _whole_numbers(values, base, what)
    if values.dtype.kind not in kinds:
        wanted = {"i": "whole numbers", "u": "whole numbers", "b": "booleans"}.get(base.kind, "values")
        raise TypeError(f"{what}: expected {wanted} for {base}, got {values.dtype}")
    wrong: Any
    with np.errstate(all="ignore"):
        try:
            found: _Rows = values.astype(base)
        except (UnicodeError, TypeError) as error:
            raise ValueError(f"{what}: expected values that fit into {base}: {error}") from None
    if base.kind in "fc" and values.dtype.kind in "fc":
        wrong = np.isfinite(values) & ~np.isfinite(found)
    elif base.kind in "SU":
        wrong = found != values
    elif base.kind in "iu":
        wrong = (found != values) | ((found < 0) != (values < 0))
    elif base.kind in "fc" and values.dtype.kind in "iu":
        real: Any = np.real(found)
        wrong = ~np.isfinite(real) | (real >= 2.0 ** (64 if values.dtype.kind == "u" else 63))
        with np.errstate(all="ignore"):
            wrong |= real.astype(values.dtype) != values
    else:
        wrong = np.zeros(values.shape, np.bool_)
    if wrong.any():
        shown = values[wrong].reshape(-1)[0].item()
        raise ValueError(f"{what}: expected values that fit into {base}, got some that do not, such as {shown!r}")
    return found


def _whole_numbers(values: _Rows, base: np.dtype[Any], what: str) -> _Rows:
    limits = np.iinfo(base)
    for value in values.reshape(-1).tolist():
        if not isinstance(value, int):
            raise TypeError(f"{what}: expected whole numbers for {base}, got a {type(value).__name__}")
        if not limits.min <= value <= limits.max:
            raise ValueError(f"{what}: expected values that fit into {base}, got some that do not, such as {value}")
    return values.astype(base)


def _one_dimension(array: _Rows, what: str) -> _Rows:
    if array.ndim != 1:
        raise ValueError(f"{what} must have one dimension, got shape {array.shape}")
    return array

"""What users give as records, as records."""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from headrace.formats.records.layout import fields_of
from headrace.formats.records.store import descr_of, dtype_of

__all__ = ["fitting", "record_type", "rows_of"]

_Rows = npt.NDArray[Any]


def rows_of(values: Any, dtype: np.dtype[Any], what: str) -> _Rows:
    """Records of what a user gives for them: an array of the type, one of numbers for a type of one field, or a dict.

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
        given = {str(name): np.asarray(value) for name, value in cast("Mapping[Any, Any]", values).items()}
        if set(given) != set(fields):
            raise TypeError(f"{what} must have the columns {', '.join(fields)}, got {', '.join(given)}")
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
    array = np.asarray(values)
    if array.dtype == dtype:
        return array.reshape(-1) if array.ndim == 1 else _one_dimension(array, what)
    if array.dtype.names is not None or len(fields) != 1:
        raise TypeError(f"{what} must be records of {dtype}, or a dict of its columns, got {array.dtype}")
    (field,) = fields.values()
    _one_dimension(array.reshape(array.shape[: max(1, array.ndim - field.ndim)]) if field.shape else array, what)
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
    # Without gaps, so that the file is what the index says.
    return dtype_of(descr_of(found.newbyteorder("<")))


def fitting(values: _Rows, dtype: np.dtype[Any], what: str) -> _Rows:
    """Values as a type that holds them all.

    Raises:
        TypeError: if they are of another kind.
        ValueError: if one does not fit.
    """
    base = dtype.base
    if values.size == 0:
        return values.astype(base)
    if base.kind in "iu" and values.dtype.kind not in "iub":
        raise TypeError(f"{what}: expected whole numbers for {base}, got {values.dtype}")
    if base.kind in "fc" and values.dtype.kind not in "iubfc":
        raise TypeError(f"{what}: expected numbers for {base}, got {values.dtype}")
    with np.errstate(all="ignore"):
        found = values.astype(base)
    if base.kind in "iu":
        fits = bool((found == values).all()) and not bool(((found < 0) != (values < 0)).any())
    elif base.kind in "SUV":
        fits = values.dtype.itemsize <= base.itemsize or bool((found == values).all())
    else:
        fits = True
    if not fits:
        wrong = np.flatnonzero((found != values).reshape(-1))
        shown = values.reshape(-1)[int(wrong[0]) if len(wrong) else 0].item()
        raise ValueError(f"{what}: expected values that fit into {base}, got some that do not, such as {shown!r}")
    return found


def _one_dimension(array: _Rows, what: str) -> _Rows:
    if array.ndim != 1:
        raise ValueError(f"{what} must have one dimension, got shape {array.shape}")
    return array

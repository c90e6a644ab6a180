"""Which parts of a dataset's samples become records, and of which types."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from headrace.records import DocumentDataset, StreamDataset
from headrace.samples.dataset import SampleDataset

__all__ = ["columns_of", "kept_of", "record_type_of"]

_Values = npt.NDArray[Any]


def columns_of(dataset: SampleDataset, sample: Mapping[str, Any], given: Sequence[str] | None) -> list[str]:
    """The parts of a sample that become fields of a record.

    Args:
        dataset: whose samples these are.
        sample: one that says what all are like.
        given: those that are wanted; None for all fields of records, ``tokens``, or the only part that is an array of
            whole numbers.

    Raises:
        ValueError: if there are none such, or it is not clear which are meant.
    """
    if given:
        if missing := [name for name in given if name not in sample]:
            raise ValueError(f"{dataset.url}: expected a column {missing[0]!r}, found {', '.join(sample)}")
        return list(given)
    if isinstance(dataset, StreamDataset | DocumentDataset):
        return [name for name in dataset.dtype.names or () if name in sample]
    found = [name for name, value in sample.items() if _is_column(value)]
    if "tokens" in found or len(found) == 1:
        return ["tokens"] if "tokens" in found else found
    raise ValueError(
        f"{dataset.url}: expected a column of whole numbers, tokens or only one, found "
        f"{', '.join(found) or 'none'} among {', '.join(sample)}\nhint: say which columns are meant"
    )


def _is_column(value: Any) -> bool:
    if not isinstance(value, np.ndarray | list):
        return False
    try:
        array = np.asarray(cast("Any", value))
    except ValueError:  # lists of different lengths
        return False
    return array.ndim == 1 and array.dtype.kind in "iu"


def record_type_of(sample: Mapping[str, Any], columns: Sequence[str], dtype: str | None) -> np.dtype[Any]:
    """A record, with a field for each of these parts of a sample.

    Args:
        sample: one that says what all are like.
        columns: the parts.
        dtype: of the numbers in the only one; None for the sample's.

    Raises:
        ValueError: if they are no arrays of numbers, or the type is none of numbers.
    """
    if dtype is not None and len(columns) != 1:
        raise ValueError(f"dtype is for one column, got it for {', '.join(columns)}")
    fields: list[Any] = []
    for name in columns:
        array = np.asarray(sample[name])
        try:
            base = array.dtype if dtype is None else np.dtype(dtype)
        except TypeError:
            raise ValueError(f'dtype must be a type of numbers, such as "uint16", got {dtype!r}') from None
        if base.kind not in "iufb" or array.ndim == 0:
            raise ValueError(f"column {name!r}: expected arrays of numbers, found {_shown(array)}")
        fields.append((name, base, array.shape[1:]))
    return np.dtype(fields)


def kept_of(sample: Mapping[str, Any], columns: Sequence[str], given: Sequence[str] | None) -> list[str]:
    """The parts that are stored beside a document.

    Args:
        sample: one that says what all are like.
        columns: the parts that are records.
        given: those that are wanted; None for all that are single numbers.

    Raises:
        ValueError: if one of them is no single number, or there is none.
    """
    if given is None:
        others = [name for name in sample if name not in columns]
        return [name for name in others if np.isscalar(sample[name]) and np.asarray(sample[name]).dtype.kind in "iufb"]
    for name in given:
        if name not in sample or name in columns:
            raise ValueError(f"keep: expected another part of a sample, got {name!r}; there are {', '.join(sample)}")
        array = np.asarray(sample[name])
        if array.ndim or array.dtype.kind not in "iufb":
            raise ValueError(f"keep: expected a number in {name!r}, found {_shown(array)}")
    return list(given)


def _shown(array: _Values) -> str:
    return f"{array.dtype} of shape {array.shape}"

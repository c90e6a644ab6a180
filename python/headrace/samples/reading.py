"""Samples by their numbers, or one after another: what the datasets that have such numbers have in common."""

import operator
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from .dynamic import Chain
from .pipeline import AnyPipeline

__all__ = ["Readable", "numbers_of"]

_Ints = npt.NDArray[np.int64]

_READ_AHEAD = 64
"""Samples that plain iteration asks for at once."""


class Readable(Chain):
    """Samples that can be read where they lie, in the order that nothing shuffles."""

    @property
    @abstractmethod
    def pipeline(self) -> AnyPipeline:
        """What it consists of, for loaders."""

    def __len__(self) -> int:
        self._counted("len()")
        return len(self.pipeline)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, index: slice | Sequence[SupportsIndex] | npt.NDArray[Any]) -> list[Any]: ...
    def __getitem__(self, index: Any) -> Any:
        """A sample by its number, or a list of them by a slice, a list or an array of numbers.

        Raises:
            IndexError: if there is no such sample.
        """
        self._counted("an index")
        count = len(self.pipeline)
        if not hasattr(index, "__index__") or getattr(index, "ndim", 0):
            return self._read(numbers_of(index, count))
        return self._read(np.array([number_of(index, count)], dtype=np.int64))[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several samples, as PyTorch's loader asks for them."""
        return self[list(indices)]

    def __iter__(self) -> Iterator[Any]:
        """All samples, in storage order, without those that filters drop."""
        count = len(self.pipeline)
        for begin in range(0, count, _READ_AHEAD):
            yield from self._read(np.arange(begin, min(begin + _READ_AHEAD, count), dtype=np.int64))

    def _read(self, numbers: _Ints) -> list[Any]:
        return self.pipeline.fetch(self.pipeline.in_order(numbers), self._cache, rows=numbers).samples

    def _place(self, index: SupportsIndex) -> Any:
        number = np.array([number_of(index, len(self.pipeline))], dtype=np.int64)
        return self.pipeline.place(self.pipeline.in_order(number)[0].tolist())

    def _counted(self, what: str) -> None:
        if self.pipeline.filtered:
            raise TypeError(
                f"{what}: a filter decides only when samples are read how many there are\n"
                "hint: filter last, or use where(condition), which counts"
            )


def number_of(index: Any, count: int) -> int:
    """The number of one of `count` samples, in ``range(count)``.

    Raises:
        TypeError: if it is no integer.
        IndexError: if there is no such sample.
    """
    try:
        number = operator.index(index)
    except TypeError:
        raise TypeError(f"a sample's number must be an integer, a slice or a list, got {index!r}") from None
    if not -count <= number < count:
        raise IndexError(f"sample {number} of {count}")
    return number % count


def numbers_of(indices: Any, count: int) -> _Ints:
    """The numbers of several of `count` samples: int64, each in ``range(count)``.

    Args:
        indices: a slice, integers, or an array that says of each sample whether it is wanted.
        count: samples.

    Raises:
        TypeError: if they are something else.
        IndexError: if there is no such sample.
    """
    if isinstance(indices, slice):
        return np.arange(*indices.indices(count), dtype=np.int64)
    array = np.asarray(indices)
    if array.size == 0:
        return np.zeros(0, dtype=np.int64)
    if array.ndim == 1 and array.dtype == np.bool_ and len(array) == count:
        return np.flatnonzero(array)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(f"numbers of samples must be integers in one row, got {array.dtype} of shape {array.shape}")
    wrong = (array < -count) | (array >= count)
    if wrong.any():
        raise IndexError(f"sample {array[wrong][0]} of {count}")
    array = array.astype(np.int64)
    return np.where(array < 0, array + count, array)

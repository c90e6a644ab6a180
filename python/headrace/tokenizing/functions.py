"""Any function from a text to its ids."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .backend import Backend, Part, digest

__all__ = ["Function"]


class Function(Backend):
    """A function of a text, that gives a list or an array of ids.

    Args:
        function: it has to pickle if other processes are to call it.
    """

    def __init__(self, function: Callable[[str], Any]) -> None:
        self._function = function
        self._path = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', _kind(function))}"
        self.name = getattr(function, "__qualname__", _kind(function))

    @property
    def vocab_size(self) -> int | None:
        """Nothing says it."""
        return None

    def ids(self, texts: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """See `Backend.ids`."""
        parts = [self._one(text) for text in texts]
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        return np.concatenate(parts) if parts else np.zeros(0, np.int64), lengths

    def find(self, part: Part) -> int:
        """Nothing says it.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"{self.name}: expected the id of the {part} token, which a function does not tell\n"
            f"hint: give it, {part}=<id>, or leave it out with {part}=False"
        )

    def digest(self) -> str:
        """Of the function's name: what it does cannot be told."""
        return digest([self._path.encode()])

    def _one(self, text: str) -> npt.NDArray[Any]:
        found = self._function(text)
        try:
            ids: npt.NDArray[Any] = np.asarray(found)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{self.name}: expected a list of ids, found one that is no array: {error}") from None
        if ids.ndim == 1 and not len(ids):
            return np.zeros(0, np.int64)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            what = f"an array of {ids.dtype} with {ids.ndim} dimensions" if ids.ndim else _kind(found)
            raise TypeError(f"{self.name}: expected a list or an array of ids with 1 dimension, found {what}")
        if ids.dtype == np.uint64 and int(ids.max()) >= 2**63:
            raise ValueError(f"{self.name}: expected ids of at most 63 bits, found {int(ids.max())}")
        return ids.astype(np.int64, copy=False)


def _kind(value: Any) -> str:
    return cast("type[Any]", type(value)).__qualname__

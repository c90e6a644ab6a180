"""What comes next: the endless line of rows, each a position in a dataset.

Epoch e is the rows e * M to (e + 1) * M - 1 of M samples, each of them once. The three orders and their definitions
(docs/order.md, "Items" and "Permutation") are the core's; here they meet a selection.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace import _core

from .pipeline import Pipeline

__all__ = ["LaneOrder", "Order", "PermutedOrder", "SequentialOrder", "Window", "kind_of", "make_order"]

_Ints = npt.NDArray[np.int64]

_WINDOWS_KEPT = 2
"""Windows whose order is in memory: the one in use, and at its end the next. Of 65,536 samples each takes 1 MiB."""


class Window(NamedTuple):
    """A stretch of rows whose samples lie in the same chunks."""

    begin: int
    """The first row."""
    end: int
    """The row after the last."""
    pieces: _Ints
    """int64: the pieces of the selection that they lie in, in the order of storage of the lanes' slices."""


class Order(ABC):
    """Positions for rows.

    Attributes:
        size: M, the samples of an epoch.
        lanes: N; 1 where rows are not dealt to lanes.
        window: W, in pieces; 0 where there are no windows.
    """

    size: int
    lanes: int = 1
    window: int = 0

    @abstractmethod
    def positions(self, begin: int, end: int) -> _Ints:
        """The positions of ``range(begin, end)``: int64, (end - begin,); rows of one epoch."""

    def window_of(self, row: int) -> Window | None:
        """The window that a row lies in, if the order has windows."""
        del row
        return None


class SequentialOrder(Order):
    """Storage order, the same in each epoch."""

    def __init__(self, size: int) -> None:
        self.size = size

    def positions(self, begin: int, end: int) -> _Ints:
        """See `Order.positions`."""
        return np.arange(begin, end, dtype=np.int64) % self.size


class PermutedOrder(Order):
    """A keyed permutation of all samples for each epoch, for data that can be read at random."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self._seed = seed
        self._epoch: tuple[int, _core.Permutation] | None = None

    def positions(self, begin: int, end: int) -> _Ints:
        """See `Order.positions`."""
        epoch = begin // self.size
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = epoch, _core.Permutation(self.size, seed=self._seed, epoch=epoch)
        first = epoch * self.size
        return np.frombuffer(memoryview(self._epoch[1].take(begin - first, end - first)), dtype=np.int64)


class LaneOrder(Order):
    """Windows of chunks, dealt to lanes: see docs/order.md."""

    def __init__(self, pipeline: Pipeline, seed: int, lanes: int, window: int) -> None:
        selection = pipeline.selection
        self.size = len(selection)
        self.lanes = lanes
        self.window = window
        self._starts = selection.starts
        weights = np.ascontiguousarray(selection.count, dtype=np.int64)
        self._core = _core.ItemOrder(weights, seed=seed, shuffle=True, lanes=lanes, window=window)
        self._kept: OrderedDict[int, tuple[int, _Ints]] = OrderedDict()
        """Windows by their first row: the row after the last, and their positions."""

    def positions(self, begin: int, end: int) -> _Ints:
        """See `Order.positions`."""
        parts: list[_Ints] = []
        while begin < end:
            first, last, positions = self._window(begin)
            parts.append(positions[begin - first : end - first])
            begin = last
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.zeros(0, dtype=np.int64)])

    def window_of(self, row: int) -> Window:
        """See `Order.window_of`."""
        begin, end, chunks = self._core.window_chunks(row)
        return Window(begin, end, np.array(chunks, dtype=np.int64))

    def _window(self, row: int) -> tuple[int, int, _Ints]:
        for begin, (end, positions) in self._kept.items():
            if begin <= row < end:
                return begin, end, positions
        begin, end, chunks, items = self._core.window_at(row)
        pieces = np.frombuffer(memoryview(chunks), dtype=np.uint32)
        positions = self._starts[pieces] + np.frombuffer(memoryview(items), dtype=np.uint32)
        self._kept[begin] = end, positions
        while len(self._kept) > _WINDOWS_KEPT:
            self._kept.popitem(last=False)
        return begin, end, positions


def kind_of(pipeline: Pipeline, shuffle: bool) -> str:
    """``"sequential"``, ``"permutation"`` or ``"lanes"``: which order suits a dataset."""
    if not shuffle:
        return "sequential"
    cheap = all(origin.source.random_access for origin in pipeline.origins)
    return "permutation" if cheap or pipeline.selection.scattered else "lanes"


def make_order(pipeline: Pipeline, kind: str, seed: int, lanes: int, window: int) -> Order:
    """An order of a kind that `kind_of` names; `lanes` and `window` count for lanes only."""
    if kind == "sequential":
        return SequentialOrder(len(pipeline))
    if kind == "permutation":
        return PermutedOrder(len(pipeline), seed)
    return LaneOrder(pipeline, seed, lanes, window)

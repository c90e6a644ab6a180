"""What comes next: the endless line of rows, each a position in a dataset.

Epoch e is the rows e * M to (e + 1) * M - 1 of M samples, each of them once; where data was added, epochs differ in M
(`GrownOrder`). The three orders and their definitions
(docs/order.md, "Items" and "Permutation") are the core's; here they meet a selection.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace import _core

from .pipeline import Origin, Pipeline
from .selection import InStorage, Selection

__all__ = [
    "ENDLESS",
    "GrownOrder",
    "LaneOrder",
    "Order",
    "PermutedOrder",
    "SequentialOrder",
    "Window",
    "ZipOrder",
    "default_window",
    "kind_of",
]

_Ints = npt.NDArray[np.int64]

_WINDOWS_KEPT = 2
"""Windows whose order is in memory: the one in use, and at its end the next. Of 65,536 samples each takes 1 MiB."""

_BLOCK = 65_536
"""Rows of a stretch in an order without windows: half a mebibyte of positions."""


ENDLESS = 2**61
"""The samples of an epoch that has no end: as many rows as orders have."""


class Window(NamedTuple):
    """A stretch of rows whose samples lie in the same chunks.

    The arrays have an entry for each piece of the data that they lie in, int64, in the order of the lanes' slices.
    """

    begin: int
    """The first row."""
    end: int
    """The row after the last."""
    origin: _Ints
    """Which of the dataset's origins a piece is of."""
    chunk: _Ints
    """Which of the origin's chunks it is a part of."""
    items: _Ints
    """How many of its items the dataset has."""
    lanes: int
    """N of the order that it is a window of."""
    turned: int = 0
    """The lane of row 0, as the slices are in order: that of row g is what is left of g + `turned` by N."""


class Order(ABC):
    """Positions for rows.

    Attributes:
        size: M, the samples of an epoch; where epochs differ, of the last ones.
        lanes: N; 1 where rows are not dealt to lanes.
        window: W, in pieces; 0 where there are no windows.
    """

    size: int
    lanes: int = 1
    window: int = 0

    @abstractmethod
    def positions(self, begin: int, end: int) -> _Ints:
        """The positions of ``range(begin, end)``: int64, (end - begin,); rows of one epoch.

        Of a zip they are (end - begin, sources).
        """

    def epoch_of(self, row: int) -> int:
        """The epoch that a row is of."""
        return row // self.size

    def begin_of(self, epoch: int) -> int:
        """The first row of an epoch."""
        return epoch * self.size

    def change_after(self, epoch: int) -> int | None:
        """The first epoch behind an epoch that has other samples; None if there is none."""
        del epoch
        return None

    def of_epoch(self, epoch: int) -> "Order":
        """The order that has the same positions in an epoch, if under other rows: that of its data alone."""
        del epoch
        return self

    def drawn(self, rows: _Ints) -> _Ints:
        """Rows as random numbers for functions count them: in epochs of `size` rows. See `AnyPipeline.fetch`."""
        return rows

    def windows_of(self, row: int) -> tuple[Window, ...]:
        """The windows that a row lies in: one for each source that has windows."""
        del row
        return ()

    def stretch(self, row: int) -> tuple[int, int]:
        """A row's neighbours whose positions cost little more than its own: from which row to before which, all of one
        epoch.
        """  # noqa: D205
        first = row // self.size * self.size
        begin = first + (row - first) // _BLOCK * _BLOCK
        return begin, min(begin + _BLOCK, first + self.size)


class GrownOrder(Order):
    """Several orders, each from an epoch on: data was added between them (docs/order.md, "Added data").

    Args:
        parts: for each its first epoch, 0 and increasing, and the order of its data. They have the same N.
    """

    def __init__(self, parts: Sequence[tuple[int, Order]]) -> None:
        self._epochs = [epoch for epoch, _ in parts]
        self._orders = [order for _, order in parts]
        last = self._orders[-1]
        self.size, self.lanes, self.window = last.size, last.lanes, last.window
        self._begins = [0]
        """The first row of each part."""
        for (epoch, order), (end, _) in pairwise(parts):
            self._begins.append(self._begins[-1] + (end - epoch) * order.size)
        self._shifts = [begin - epoch * order.size for begin, (epoch, order) in zip(self._begins, parts, strict=True)]
        """How many rows later a row comes than in the part's own line."""

    def positions(self, begin: int, end: int) -> _Ints:
        """See `Order.positions`."""
        order, shift = self._part(begin)
        return order.positions(begin - shift, end - shift)

    def epoch_of(self, row: int) -> int:
        """See `Order.epoch_of`."""
        order, shift = self._part(row)
        return order.epoch_of(row - shift)

    def begin_of(self, epoch: int) -> int:
        """See `Order.begin_of`."""
        number = bisect_right(self._epochs, epoch) - 1
        return self._orders[number].begin_of(epoch) + self._shifts[number]

    def change_after(self, epoch: int) -> int | None:
        """See `Order.change_after`."""
        number = bisect_right(self._epochs, epoch)
        return self._epochs[number] if number < len(self._epochs) else None

    def of_epoch(self, epoch: int) -> Order:
        """See `Order.of_epoch`."""
        return self._orders[bisect_right(self._epochs, epoch) - 1]

    def drawn(self, rows: _Ints) -> _Ints:
        """See `Order.drawn`: each keeps its epoch, and its place there."""
        number = np.searchsorted(self._begins, rows, side="right") - 1
        shifts, sizes = np.array([self._shifts, [order.size for order in self._orders]], dtype=np.int64)[:, number]
        epoch, place = np.divmod(rows - shifts, sizes)
        return epoch * self.size + place

    def windows_of(self, row: int) -> tuple[Window, ...]:
        """See `Order.windows_of`."""
        order, shift = self._part(row)
        return tuple(
            window._replace(begin=window.begin + shift, end=window.end + shift, turned=-shift % window.lanes)
            for window in order.windows_of(row - shift)
        )

    def stretch(self, row: int) -> tuple[int, int]:
        """See `Order.stretch`."""
        order, shift = self._part(row)
        begin, end = order.stretch(row - shift)
        return begin + shift, end + shift

    def _part(self, row: int) -> tuple[Order, int]:
        """The order that a row is of, and its shift."""
        number = bisect_right(self._begins, row) - 1
        return self._orders[number], self._shifts[number]


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
        first = epoch * self.size
        return np.frombuffer(memoryview(self.permutation(epoch).take(begin - first, end - first)), dtype=np.int64)

    def permutation(self, epoch: int) -> _core.Permutation:
        """The order of an epoch."""
        # Taken once: another thread may ask for another epoch.
        kept = self._epoch
        if kept is None or kept[0] != epoch:
            kept = self._epoch = epoch, _core.Permutation(self.size, seed=self._seed, epoch=epoch)
        return kept[1]


class LaneOrder(Order):
    """Windows of chunks, dealt to lanes: see docs/order.md.

    Args:
        stored: the dataset's items as they lie.
        seed: of the order.
        lanes: N.
        window: W, in pieces.
        kept: windows whose order stays in memory.
    """

    def __init__(self, stored: InStorage, seed: int, lanes: int, window: int, *, kept: int = _WINDOWS_KEPT) -> None:
        self._stored = stored
        self._most = kept
        self.size = len(stored.selection)
        self.lanes = lanes
        self.window = window
        weights = np.ascontiguousarray(stored.selection.count, dtype=np.int64)
        self._core = _core.ItemOrder(weights, seed=seed, shuffle=True, lanes=lanes, window=window)
        self._kept: tuple[tuple[int, int, _Ints], ...] = ()
        """Windows: the first row, the row after the last, and their positions. Replaced as a whole: several threads may
        ask at a time."""

    def positions(self, begin: int, end: int) -> _Ints:
        """See `Order.positions`."""
        parts: list[_Ints] = []
        while begin < end:
            first, last, positions = self._window(begin)
            parts.append(positions[begin - first : end - first])
            begin = last
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.zeros(0, dtype=np.int64)])

    def windows_of(self, row: int) -> tuple[Window, ...]:
        """See `Order.windows_of`."""
        begin, end, chunks = self._core.window_chunks(row)
        pieces = np.array(chunks, dtype=np.int64)
        selection = self._stored.selection
        origin, chunk, items = selection.origin[pieces], selection.chunk[pieces], selection.count[pieces]
        return (Window(begin, end, origin, chunk, items, self.lanes),)

    def stretch(self, row: int) -> tuple[int, int]:
        """See `Order.stretch`: the row's window."""
        begin, end, _ = self._window(row)
        return begin, end

    def _window(self, row: int) -> tuple[int, int, _Ints]:
        for begin, end, positions in self._kept:
            if begin <= row < end:
                return begin, end, positions
        begin, end, chunks, items = self._core.window_at(row)
        pieces = np.frombuffer(memoryview(chunks), dtype=np.uint32)
        positions = self._stored.selection.starts[pieces] + np.frombuffer(memoryview(items), dtype=np.uint32)
        if self._stored.positions is not None:
            positions = self._stored.positions[positions]
        self._kept = (*self._kept, (begin, end, positions))[-self._most :]
        return begin, end, positions


class ZipOrder(Order):
    """The lines of several sources side by side: row g is row g of each.

    Args:
        orders: of the sources, each over its own positions.
        shifts: for each source the number of origins of those before it.
        epochs: an order that has the zip's own epochs, whatever comes in them: of `ENDLESS` rows for no end.
    """

    def __init__(self, orders: Sequence[Order], shifts: Sequence[int], epochs: Order) -> None:
        self._orders = tuple(orders)
        self._shifts = tuple(shifts)
        self._epochs = epochs
        self.size = epochs.size
        # By which rows are shared out: of the source that gains most from a rank's rows being whole lanes.
        self.lanes = max(order.lanes for order in orders)

    def positions(self, begin: int, end: int) -> _Ints:
        """See `Order.positions`: a column for each source."""
        return np.stack([_line(order, begin, end) for order in self._orders], axis=1)

    def epoch_of(self, row: int) -> int:
        """See `Order.epoch_of`."""
        return self._epochs.epoch_of(row)

    def begin_of(self, epoch: int) -> int:
        """See `Order.begin_of`."""
        return self._epochs.begin_of(epoch)

    def change_after(self, epoch: int) -> int | None:
        """See `Order.change_after`."""
        return self._epochs.change_after(epoch)

    def drawn(self, rows: _Ints) -> _Ints:
        """See `Order.drawn`: a column for each source, and one for the zip, where they differ."""
        lines = (*self._orders, self._epochs)
        if not any(isinstance(order, GrownOrder) for order in lines):
            return rows
        return np.stack([order.drawn(rows) for order in lines], axis=1)

    def windows_of(self, row: int) -> tuple[Window, ...]:
        """See `Order.windows_of`."""
        return tuple(
            window._replace(origin=window.origin + shift)
            for order, shift in zip(self._orders, self._shifts, strict=True)
            for window in order.windows_of(row)
        )


def _line(order: Order, begin: int, end: int) -> _Ints:
    """The positions of rows of any epochs."""
    parts: list[_Ints] = []
    while begin < end:
        stop = min(end, order.begin_of(order.epoch_of(begin) + 1))
        parts.append(order.positions(begin, stop))
        begin = stop
    return np.concatenate(parts or [np.zeros(0, dtype=np.int64)])


def kind_of(pipeline: Pipeline, shuffle: bool) -> str:
    """``"sequential"``, ``"permutation"`` or ``"lanes"``: which order suits a dataset."""
    if not shuffle:
        return "sequential"
    return "permutation" if all(origin.source.random_access for origin in pipeline.origins) else "lanes"


def default_window(pipeline: Pipeline, stored: InStorage, lanes: int) -> int:
    """W where it is not given: see docs/order.md.

    Args:
        pipeline: of the dataset.
        stored: its items as they lie.
        lanes: N, or the largest global batch size where that is not given.
    """
    selection = stored.selection
    size = sum(_stored(origin, selection, number) for number, origin in enumerate(pipeline.origins))
    return _core.default_item_window(selection.pieces, len(selection), size, lanes)


def _stored(origin: Origin, selection: Selection, number: int) -> int:
    """Bytes of the chunks of an origin that are used, each as often as it is."""
    mine = selection.origin == number
    source = origin.source
    chunks = selection.chunk[mine]
    shares = selection.count[mine] / source.sizes[chunks].clip(1)
    return int((source.stored[chunks] * shares).sum())

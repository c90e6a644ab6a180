"""Which items each lane takes: its k-th one is row k * N + i of the dataset's item order, for lane i of N."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.samples.order import Order

__all__ = ["Dealing", "LaneItems"]

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Dealing:
    """Items as they are dealt to lanes."""

    order: Order
    """Of the dataset's items."""
    lanes: int
    """N."""
    epochs: int | None
    """Passes over the items after which lanes end; None for no end."""

    def position(self, lane: int, item: int) -> int:
        """The number in the dataset of a lane's item."""
        row = item * self.lanes + lane
        return int(self.order.positions(row, row + 1)[0])

    def pass_of(self, lane: int, item: int) -> int:
        """The pass that a lane's item is of."""
        return self.order.epoch_of(item * self.lanes + lane)

    def end(self, lane: int) -> int | None:
        """How many items a lane has; None if it never ends."""
        if self.epochs is None:
            return None
        return -(-(self.order.begin_of(self.epochs) - lane) // self.lanes)


class LaneItems:
    """The items of some lanes, each asked for in about its own order.

    Args:
        dealing: of the items.
        own: int64, (own lanes,): the numbers of lanes that are asked for, by their index.
    """

    def __init__(self, dealing: Dealing, own: _Ints) -> None:
        self._order = dealing.order
        self._lanes = dealing.lanes
        self._own: list[int] = own.tolist()
        self._known: list[tuple[int, _Ints] | None] = [None] * len(self._own)
        """For each lane the items of the stretch that it was last in: the first one's number, and their positions."""

    def positions(self, index: int, numbers: list[int]) -> _Ints:
        """The positions of some of a lane's items: int64, (items,).

        Args:
            index: of the lane.
            numbers: k of each, increasing.
        """
        found = np.empty(len(numbers), dtype=np.int64)
        done = 0
        while done < len(numbers):
            first, positions = self._stretch(index, numbers[done])
            end = done
            while end < len(numbers) and numbers[end] - first < len(positions):
                end += 1
            found[done:end] = positions[np.array(numbers[done:end], dtype=np.int64) - first]
            done = end
        return found

    def _stretch(self, index: int, number: int) -> tuple[int, _Ints]:
        known = self._known[index]
        if known is not None and 0 <= number - known[0] < len(known[1]):
            return known
        lane, lanes = self._own[index], self._lanes
        begin, end = self._order.stretch(number * lanes + lane)
        first = -(-(begin - lane) // lanes)
        positions = self._order.positions(begin, end)[first * lanes + lane - begin :: lanes]
        # A copy, so that it does not keep all lanes' positions.
        known = self._known[index] = (first, positions.copy())
        return known

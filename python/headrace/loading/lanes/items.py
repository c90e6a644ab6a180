"""Which items each lane takes: its k-th one is row k * N + i of the dataset's item order, for lane i of N."""

import numpy as np
import numpy.typing as npt

from headrace.samples.order import Order

__all__ = ["LaneItems"]

_Ints = npt.NDArray[np.int64]


class LaneItems:
    """The items of some lanes, each asked for in about its own order.

    Args:
        order: of the dataset's items.
        lanes: N.
        own: int64, (own lanes,): the numbers of lanes that are asked for, by their index.
    """

    def __init__(self, order: Order, lanes: int, own: _Ints) -> None:
        self._order = order
        self._lanes = lanes
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

"""The rows of a mixture's lanes, each taken from the same lane of the source that it is drawn from."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from headrace import _core

from .source import LaneSource, Rows

__all__ = ["MixtureSource"]

_Ints = npt.NDArray[np.int64]

_LISTED: Final = 100
"""Documents that were left out of which `stats` tells the place."""


class MixtureSource(LaneSource):
    """The rows of a mixture of sources whose rows come lane by lane.

    Args:
        core: which source each row is of.
        total: the lanes of the run.
        shown: int32, (sources,): the number that batches have for each source.
        lanes: the own lanes.
        states: where they are.
        opened: the sources that have rows to come, by their number in `core`: each with the same lanes, and with the
            state of a lane of it of which nothing was taken yet.
        coming: which of them have rows from a round on.
    """

    def __init__(
        self,
        core: _core.Mixture,
        total: int,
        shown: npt.NDArray[np.int32],
        lanes: _Ints,
        states: Mapping[int, Any],
        opened: Mapping[int, tuple[LaneSource, Any]],
        coming: Callable[[int], list[int]],
    ) -> None:
        self.lanes = lanes
        self._core = core
        self._total = total
        self._shown = shown
        self._states = states
        self._sources = {number: source for number, (source, _) in opened.items()}
        self._firsts = {number: first for number, (_, first) in opened.items()}
        self._coming = coming
        self._rows = np.array([states[lane]["row"] for lane in lanes.tolist()], dtype=np.int64)
        """int64, (own lanes,): the next row of each, counted in the lane."""

    def want(self, counts: _Ints) -> None:
        """See `LaneSource.want`."""
        ahead, own = np.arange(int(counts.max(initial=0)), dtype=np.int64)[:, None], len(self.lanes)
        drawn = self._drawn(self._rows + ahead, self.lanes)
        places = (drawn * own + np.arange(own))[ahead < counts]
        wanted = np.bincount(places, minlength=len(self._shown) * own).reshape(-1, own)
        for number, source in self._sources.items():
            source.want(wanted[number])

    def take(self, lanes: Sequence[int], into: Rows, at: Sequence[int]) -> list[int]:
        """See `LaneSource.take`."""
        indices, places = np.array(lanes, dtype=np.int64), np.array(at, dtype=np.int64)
        drawn = self._drawn(self._rows[indices], self.lanes[indices])
        ended: list[int] = []
        for number in np.unique(drawn).tolist():
            own = np.flatnonzero(drawn == number)
            short = self._sources[number].take(indices[own].tolist(), into, places[own].tolist())
            into.source[places[own]] = self._shown[number]
            ended += own[short].tolist()
        into.source[places[ended]] = -1
        taken = np.ones(len(indices), dtype=np.bool_)
        taken[ended] = False
        self._rows[indices[taken]] += 1
        return sorted(ended)

    def snapshot(self) -> object:
        """See `LaneSource.snapshot`."""
        return self._rows.copy(), {number: source.snapshot() for number, source in self._sources.items()}

    def state(self, snapshot: Any) -> dict[int, Any]:
        """See `LaneSource.state`. A source of which a lane has taken nothing is None there."""
        rows, snapshots = snapshot
        states = {number: source.state(snapshots[number]) for number, source in self._sources.items()}

        def state(lane: int, number: int, before: Any) -> Any:
            if number not in states:
                return before
            now = states[number][lane]
            return None if now == self._firsts[number] else now

        return {
            lane: {
                "row": row,
                "sources": [state(lane, number, one) for number, one in enumerate(self._states[lane]["sources"])],
            }
            for lane, row in zip(self.lanes.tolist(), rows.tolist(), strict=True)
        }

    def epoch(self, snapshot: Any) -> int:
        """See `LaneSource.epoch`: of sources that have rows to come."""
        rows, snapshots = snapshot
        coming = [number for number in self._coming(int(rows.min())) if number in snapshots]
        return min((self._sources[number].epoch(snapshots[number]) for number in coming), default=0)

    def stats(self) -> dict[str, Any]:
        """See `LaneSource.stats`."""
        total: dict[str, Any] = {}
        for source in self._sources.values():
            for key, value in source.stats().items():
                total[key] = total[key] + value if key in total and not isinstance(value, str) else value
        return total | {"skipped": total["skipped"][:_LISTED]}

    def close(self) -> None:
        """See `LaneSource.close`."""
        for source in self._sources.values():
            source.close()

    def _drawn(self, rows: _Ints, lanes: _Ints) -> _Ints:
        """The source of some rows, counted in their lanes: int64, of the shape of `rows`."""
        numbers = rows * self._total + lanes
        if not numbers.size:
            return numbers
        begin, end = int(numbers.min()), int(numbers.max()) + 1
        sources = np.frombuffer(memoryview(self._core.sources(begin, end)), dtype=np.uint32)
        return sources[numbers - begin].astype(np.int64)

"""Rows of documents: a packer for each lane, given documents by their supply, and where lanes stand after each row."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.samples.order import kind_of

from .marks import mark_from, mark_state
from .packers import Mark, Packer, first_item, packer_of
from .records import Origin, RowRecord, SampleRecord
from .source import LaneResources, LaneSource, Record, Rows, Setup
from .supply import DocumentSupply

__all__ = ["DocumentSource"]

_Ints = npt.NDArray[np.int64]


class DocumentSource(LaneSource):
    """See `headrace.loading.lanes.documents.DocumentPlan`.

    Args:
        origin: of the documents.
        setup: of the run.
        lanes: the own lanes.
        states: where they are.
        resources: what may be used.
        name: of the source in a mixture; None outside of one.
    """

    def __init__(
        self,
        origin: Origin,
        setup: Setup,
        lanes: _Ints,
        states: Mapping[int, Any],
        resources: LaneResources,
        *,
        name: str | None,
    ) -> None:
        self.lanes = lanes
        self._origin = origin
        self._kind = kind_of(origin.pipeline.base, setup.shuffle)
        packing = origin.pipeline.packing
        self._packing = packing
        self._columns = [] if packing is None else [column.name for column in packing.columns]
        self._numbers: list[int] = lanes.tolist()
        self._marks = [mark_from(states[lane], origin.pipeline) for lane in self._numbers]
        self._packers: list[Packer] = (
            [] if packing is None else [packer_of(packing, mark, pad=setup.pad) for mark in self._marks]
        )
        self._rows = self._entries = 0
        """That were given."""
        self._supply = DocumentSupply(origin, lanes, self._marks, resources, name=name)

    def want(self, counts: _Ints) -> None:
        """See `LaneSource.want`."""
        self._supply.want(counts)

    def take(self, lanes: Sequence[int], into: Rows, at: Sequence[int]) -> list[int]:
        """See `LaneSource.take`."""
        ended: list[int] = []
        arrays = [into.arrays[name] for name in self._columns]
        for index, (lane, place) in enumerate(zip(lanes, at, strict=True)):
            record = self._row(lane, arrays, into, place)
            if record is None:
                ended.append(index)
            into.records[place] = record
        return ended

    def snapshot(self) -> object:
        """See `LaneSource.snapshot`."""
        return tuple(self._marks)

    def state(self, snapshot: Any) -> dict[int, Any]:
        """See `LaneSource.state`."""
        return {lane: mark_state(mark) for lane, mark in zip(self._numbers, snapshot, strict=True)}

    def epoch(self, snapshot: Any) -> int:
        """See `LaneSource.epoch`."""
        marks: tuple[Mark, ...] = snapshot
        return min(self._epoch_of(lane, mark) for lane, mark in zip(self._numbers, marks, strict=True))

    def stats(self) -> dict[str, Any]:
        """See `LaneSource.stats`."""
        found: dict[str, Any] = {"order": self._kind, "rows": self._rows, **self._supply.stats()}
        if self._packing is not None:
            found["tokens"] = self._entries
            found["padding"] = self._rows * self._packing.width - self._entries
            found["documents_too_long"] = sum(packer.dropped for packer in self._packers)
        return found

    def close(self) -> None:
        """See `LaneSource.close`."""
        self._supply.close()

    def _epoch_of(self, lane: int, mark: Mark) -> int:
        """The pass that a lane is in."""
        return self._origin.dealing.pass_of(lane, first_item(mark.begin))

    def _row(self, lane: int, arrays: list[npt.NDArray[Any]], into: Rows, place: int) -> Record | None:
        if not self._packers:
            sample = self._supply.pull(lane)
            if sample is None:
                return None
            into.samples[place] = sample.value
            self._marks[lane] = Mark(sample.after)
            self._count(1)
            return SampleRecord(self._origin, self._numbers[lane], first_item(sample.cursor), sample.masked)
        packer = self._packers[lane]
        parts = packer.row(lambda: self._supply.pull(lane), arrays, place)
        self._marks[lane] = packer.mark
        if parts is None:
            return None
        self._count(sum(part.entries for part in parts))
        return RowRecord(self._origin, self._numbers[lane], parts)

    def _count(self, entries: int) -> None:
        self._rows += 1
        self._entries += entries

"""How much is asked for ahead, and for which lanes: estimates that change speed, and never what rows hold."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.samples.document_pipeline import DocumentPipeline

from .make import Block, Made, Run, Task

__all__ = ["Sizing"]

_Ints = npt.NDArray[np.int64]

_TASK_SECONDS = 0.1
"""What a task should take: so much that handing it over is next to nothing, so little that a first row comes soon."""

_MOST_ITEMS = 512
"""Of one task."""

_FIRST_ITEMS = 16
"""Of a task before anything is known."""


class Sizing:
    """What lanes have, what they need, and what items turned out to be.

    Args:
        lanes: how many there are.
        pipeline: what makes documents.
        memory: bytes for what was made and is not used.
        tasks: that are on their way at a time.
        share: of what all threads do ahead of use.

    Attributes:
        rows: int64, (lanes,): rows that will be taken soon of each.
    """

    def __init__(self, lanes: int, pipeline: DocumentPipeline, memory: int, tasks: int, *, share: float) -> None:
        self.rows: _Ints = np.ones(lanes, dtype=np.int64)
        packing = pipeline.packing
        self._by_entry = packing is not None and packing.mode in ("concat", "best_fit")
        self._row = 1 if packing is None or not self._by_entry else packing.width
        self._last = len(pipeline.levels) - 1
        self._tasks = max(1, tasks)
        self._share = share
        self._most_bytes = memory // (2 * self._tasks)
        self._fill = [packing.lookahead if packing and packing.mode == "best_fit" else 0] * lanes
        """Documents that packers take before their first row, beside those that make up rows."""
        self._have = [0] * lanes
        """What lies ready for each lane's packer, in entries or documents."""
        self._coming = [0] * lanes
        """Items that are on their way, of each lane."""
        self._waiting = [0] * lanes
        """Documents of levels before the last one that are not grouped, or on their way in a group."""
        self._items = self._documents = self._made = 0
        """Items that were made of all lanes, documents of these, and what became of them, in entries or documents."""
        self._seconds: float | None = None
        """For an item, about."""
        sources = [origin.source for origin in pipeline.base.origins]
        stored, count = (sum(int(getattr(one, name).sum()) for one in sources) for name in ("stored", "sizes"))
        self._bytes = stored / max(1, count)
        """That become of an item, about; as many as are stored of it, before one was made."""

    @property
    def documents(self) -> int:
        """How many documents are worth a task."""
        return self._worth()

    def shares(self, is_open: npt.NDArray[np.bool_], hungry: int | None) -> Iterator[tuple[int, int]]:
        """Whose items are to be made next, and how many.

        Args:
            is_open: bool, (lanes,): whether a lane has more items.
            hungry: the lane that is waited for, if one is.

        Yields:
            Indices of lanes, each once, and a number of items.
        """
        left = self._worth()
        each = self._made / self._items if self._made else float(self._row)
        # As much as is asked for, or as keeps all threads at work: in whole items, or else each lane would have one.
        wanted = np.maximum(self.rows * self._row, self._share * left * self._tasks // len(self.rows) * each)
        missing = wanted + (np.array(self._fill) - self._coming) * each - self._have
        if self._last:
            missing -= np.array(self._waiting) * (self._made / max(1, self._documents))
        if hungry is not None and not self._coming[hungry]:
            # Before all others: nothing of it is on its way.
            missing[hungry] = max(each, float(missing.max()) + each)
        missing[~is_open] = 0
        count = min(left, len(missing))
        some = np.argpartition(missing, len(missing) - count)[-count:] if count < len(missing) else np.arange(count)
        for lane in some[np.argsort(-missing[some], kind="stable")].tolist():
            if left <= 0 or missing[lane] <= 0:
                return
            number = int(min(left, max(1, -(-missing[lane] // each))))
            left -= number
            yield lane, number

    def asked(self, lane: int, items: int) -> None:
        """Notes that items of a lane are on their way."""
        self._coming[lane] += items

    def received(self, run: Run, block: Block, level: int) -> None:
        """Notes what became of a run."""
        lane, count, made = run.lane, len(run.positions), sum(block.counts)
        if level == 0:
            self._coming[lane] -= count
            self._items += count
            self._documents += made
            self._bytes = _smoothed(self._bytes, _bytes_of(block) / max(1, count))
        else:
            self._waiting[lane] -= sum(len(group.documents) for group in run.groups)
        if level < self._last:
            self._waiting[lane] += made
            return
        amount = sum(block.flat.lengths) if self._by_entry and block.flat is not None else made
        self._made += amount
        self._have[lane] += amount

    def timed(self, task: Task, made: Made) -> None:
        """Notes what a task took."""
        if task.level == 0 and (count := sum(len(run.positions) for run in task.runs)):
            self._seconds = _smoothed(self._seconds, made.seconds / count)

    def took(self, lane: int, length: int) -> None:
        """Notes that a lane's packer was given a document."""
        self._have[lane] -= length if self._by_entry else 1
        if self._fill[lane]:
            self._fill[lane] -= 1

    def _worth(self) -> int:
        most = _FIRST_ITEMS
        if self._seconds is not None:
            most = min(_MOST_ITEMS, _TASK_SECONDS / max(self._seconds, 1e-9))
        return max(1, int(min(most, self._most_bytes / max(self._bytes, 1e-9))))


def _smoothed(known: float | None, value: float) -> float:
    return value if known is None else known + (value - known) / 8


def _bytes_of(block: Block) -> int:
    if block.flat is not None:
        return sum(array.nbytes for array in block.flat.arrays)
    return sum(map(_size, block.documents))


def _size(value: Any) -> int:
    """Bytes of a document, about."""
    if isinstance(value, dict):
        return sum(map(_size, value.values()))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return int(getattr(value, "nbytes", 0)) or (len(value) if isinstance(value, str | bytes) else 64)

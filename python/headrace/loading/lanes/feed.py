"""The batches of a run over lanes, made ahead of use by one thread that takes rows from the source."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from headrace.loading.base import END
from headrace.loading.fetch import pin
from headrace.loading.masking import masked, not_a_dict
from headrace.loading.pool import OrderedResults, Pool

from .boundaries import boundaries, hide
from .run import LaneRun, Position
from .sharing import rows_of_rank
from .source import LaneResources, LaneSource, Record, Rows

__all__ = ["LaneFeed", "Made"]

_Ints = npt.NDArray[np.int64]


class Made(NamedTuple):
    """A step's batch, or that there is none: the run has ended."""

    step: int
    batch: Any
    """Arrays by name, or what collation made; `END` after the last step."""
    rows: _Ints
    """int64: the number of each row in the run."""
    records: list[Record | None]
    """Of each row; None for one of padding."""
    before: object
    """The source's snapshot before the step."""
    after: object
    """The source's snapshot after it."""


class LaneFeed:
    """Begins with a position, and goes on until it is closed or dropped.

    Args:
        run: what is given.
        position: the first step.
        resources: of the source.
        collate: makes a batch of a list of samples, where rows are samples.
        ahead: batches that may be ready; 0 to make them where they are asked for.
        pin_memory: whether tensors are copied to pinned memory.

    Attributes:
        source: of the rows.
    """

    def __init__(
        self,
        run: LaneRun,
        position: Position,
        resources: LaneResources,
        *,
        collate: Callable[[list[Any]], Any],
        ahead: int,
        pin_memory: bool,
    ) -> None:
        self.source = run.plan.open(run.own, position.places.states(), resources)
        lead = _Lead(run, position, self.source, collate, ahead, pin_memory)
        self._pool: Pool[int, Made] = Pool(lead, min(1, ahead), name="headrace-lead")
        steps = _given(position)
        self._results: OrderedResults[int, Made] = self._pool.run(steps, ahead=max(0, ahead - 1))

    def next(self, timeout: float | None) -> Made:
        """The next step's batch.

        Raises:
            NotReady: if it takes longer.
            Exception: in place of a batch that could not be made.
        """
        return self._results.next(timeout)

    def close(self) -> None:
        """Ends the thread, and what works for it. Waits for nothing and takes no lock."""
        self._results.close()
        self.source.close()
        self._pool.close()

    def __del__(self) -> None:
        if hasattr(self, "_results"):
            self.close()


def _given(position: Position) -> Iterator[int]:
    """The steps from a position on that are not passed over."""
    for step in count(position.step):
        if position.skipped.first_left(step) == step:
            yield step


class _Lead:
    """What the thread does: one step after another."""

    def __init__(
        self,
        run: LaneRun,
        position: Position,
        source: LaneSource,
        collate: Callable[[list[Any]], Any],
        ahead: int,
        pin_memory: bool,
    ) -> None:
        self._run = run
        self._position = position
        self._source = source
        self._collate = collate
        self._ahead = ahead
        self._pin = pin_memory
        self._step = position.step
        self._ended = False
        self._end = run.end(position)
        self._index = np.full(run.lanes, -1, dtype=np.int64)
        """int64, (lanes,): the index of each own lane."""
        self._index[run.own] = np.arange(len(run.own))

    def __call__(self, step: int) -> Made:
        """The batch of a step, which is behind those that it was called with before."""
        before = self._source.snapshot()
        while self._step < step and not self._ended:
            # Passed over: lanes go on, and nothing is given.
            self._take(self._step)
            before = self._source.snapshot()
        layout = self._run.plan.layout
        numbers, rows, is_over = self._take(step) if not self._ended else (_NOTHING, Rows(layout, 0), True)
        if is_over:
            return Made(step, END, _NOTHING, [], before, before)
        records = rows.records
        if layout.packed:
            batch: Any = {**rows.arrays, **boundaries(layout, records)}
            if layout.masked:
                hide(batch["loss_mask"], records)
            if layout.source:
                batch["source"] = rows.source
        else:
            # Samples need no padding where lanes have ended.
            kept = [place for place, record in enumerate(records) if record is not None]
            numbers, records = numbers[kept], [records[place] for place in kept]
            batch = self._collate([rows.samples[place] for place in kept])
            if layout.source and type(batch) is dict:
                batch = _with_source(cast("dict[str, Any]", batch), rows.source[kept])
            if layout.masked:
                batch = _with_mask(batch, records)
            if self._pin:
                batch = pin(batch)
        return Made(step, batch, numbers, records, before, self._source.snapshot())

    def _take(self, step: int) -> tuple[_Ints, Rows, bool]:
        """A step's rows of this rank: their numbers, the rows, and whether the run has ended before it."""
        if self._end is not None and step >= self._end:
            self._ended = True
            return _NOTHING, Rows(self._run.plan.layout, 0), True
        run, steps, setup = self._run, self._position.steps, self._run.plan.setup
        ranks = (run.world_size, run.rank)
        numbers = rows_of_rank(run.lanes, steps.batch_of(step), steps.row_of(step), *ranks)
        lanes = self._index[numbers % run.lanes]
        own = len(run.own)
        soon = -(-len(numbers) // own) * (1 + self._ahead)
        self._source.want(np.full(own, soon, dtype=np.int64))
        rows = Rows(run.plan.layout, len(numbers))
        for begin in range(0, len(numbers), own):
            end = min(begin + own, len(numbers))
            ended = self._source.take(lanes[begin:end].tolist(), rows, range(begin, end))
            if ended and not setup.pad:
                self._ended = True
                break
        self._step = step + 1
        self._ended = self._ended or all(record is None for record in rows.records)
        return numbers, rows, self._ended


def _with_mask(batch: Any, records: Sequence[Record | None]) -> dict[str, Any]:
    if type(batch) is not dict:
        raise ValueError(not_a_dict(batch))
    hidden = np.array([record is not None and record.masked[0] for record in records], dtype=np.bool_)
    return masked(cast("dict[str, Any]", batch), hidden)


def _with_source(batch: dict[str, Any], source: npt.NDArray[np.int32]) -> dict[str, Any]:
    if "source" in batch:
        raise ValueError("samples of a mixture must have no part 'source': batches have the number of the source there")
    return batch | {"source": source}


_NOTHING = np.zeros(0, dtype=np.int64)

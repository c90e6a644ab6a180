"""From arguments and a loaded state to a run over samples: its order, its steps, and where it stands."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace._changes import changes_of, told
from headrace.errors import StateMismatch
from headrace.samples.order import ENDLESS, Order
from headrace.samples.pipeline import AnyPipeline
from headrace.state import ORDER, SCHEMA

from . import steps
from .exclusion import Masks, exclusion_of
from .run_arguments import NO_BATCH_SIZE, RunArguments, choose
from .sample_data import adapted, data_of
from .sample_orders import order_of
from .schedule import Schedule, Skipped, check_divides

__all__ = ["Given", "Position", "Run", "start"]

Segment = tuple[int, int, int]
"""From which step on, its first row, and the global batch size from there on."""

_BEGIN = itemgetter(0)


@dataclass(frozen=True, kw_only=True)
class Given(RunArguments):
    """What the user said, with what samples alone have."""

    drop_last: bool
    allow_empty: bool


@dataclass(frozen=True)
class Position:
    """A place in a run: the next step and its first row, and what was decided about batch sizes."""

    step: int
    row: int
    segments: tuple[Segment, ...]
    """In order; the first begins at or before the step."""
    skipped: Skipped

    @property
    def batch(self) -> int:
        """The global batch size of the next step."""
        return self.segment(self.step)[2]

    def segment(self, step: int) -> Segment:
        """What holds at a step."""
        if len(self.segments) == 1:
            return self.segments[0]
        return self.segments[bisect_right(self.segments, step, key=_BEGIN) - 1]


@dataclass(frozen=True)
class Run:
    """A dataset in its order, shared out among ranks."""

    pipeline: AnyPipeline
    order: Order
    kind: str
    """Of the order."""
    seed: int
    shuffle: bool
    world_size: int
    rank: int
    drop_last: bool
    allow_empty: bool
    fixed: Mapping[str, Any] = field(repr=False)
    """The part of a state that does not change during a run."""
    masks: tuple[Masks, ...] = field(repr=False)
    """What is masked of the samples of each source; nothing if none ever is."""
    first_masked: int | None
    """The first row from which on batches are masked; None if none is."""

    @property
    def ranks(self) -> tuple[int, int]:
        """The rank, and the number of ranks."""
        return self.rank, self.world_size

    @property
    def size(self) -> int:
        """Samples in an epoch; where data was added, in those to come."""
        return self.order.size

    def state(self, position: Position) -> dict[str, Any]:
        """The state at a position, as plain JSON types."""
        history = [list(segment) for segment in self._history(position)]
        return dict(self.fixed) | {
            "step": position.step,
            "position": position.row,
            "history": history,
            "skipped": [list(part) for part in position.skipped],
            "changes": told(self.fixed["changes"], history),
        }

    def _history(self, position: Position) -> list[Segment]:
        """The segments up to a position, and where its epoch begins: other ranks could not tell its first step."""
        past = self.needed([segment for segment in position.segments if segment[0] <= position.step])
        epoch = self.order.epoch_of(position.row)
        first = self.first_step(self.before(position, epoch), epoch)
        batch = max(segment for segment in past if segment[0] <= first)[2]
        begin = self.order.begin_of(epoch)
        return sorted({segment[0]: segment for segment in [*past, (first, begin, batch)]}.values())

    def needed(self, segments: Sequence[Segment]) -> list[Segment]:
        """Segments without those that say what follows from the ones before them."""
        kept: list[Segment] = []
        for segment in segments:
            if not kept or kept[-1][2] != segment[2] or not self._leads(kept[-1], segment):
                kept.append(segment)
        return kept

    def check_known(self, position: Position, step: int) -> None:
        """Refuses a step whose rows depend on how many ranks there were, if those were not as many as now.

        Raises:
            ValueError: naming the first step that is known.
        """
        changes = [other[0] for one, other in pairwise(position.segments) if not self._leads(one, other)]
        if changes and step < changes[-1]:
            raise ValueError(
                f"step {step} is not known here: before step {changes[-1]} the run had other ranks or another "
                "drop_last, which decide what the last batch of an epoch holds\nhint: load a state of that time"
            )

    def _leads(self, segment: Segment, other: Segment) -> bool:
        try:
            return self.next_row(self._row(segment, other[0]), other[2]) == other[1]
        except ValueError:  # with too few samples left for the ranks of now
            return False

    # Which samples

    def masks_at(self, position: Position) -> bool:
        """Whether the batches of the next step are masked."""
        return self.first_masked is not None and self.first_masked < self._end_of_step(position)

    def masked(self, positions: npt.NDArray[np.int64], position: Position) -> npt.NDArray[np.bool_]:
        """Which samples of the next step are masked: bool, (samples,). Of a zip those of which any part is."""
        end = self._end_of_step(position)
        columns = positions.reshape(len(positions), len(self.masks)).T
        held = [masks.hold(column, end) for masks, column in zip(self.masks, columns, strict=True)]
        return np.logical_or.reduce(held)

    def _end_of_step(self, position: Position) -> int:
        return self.rows_of(position.row, position.batch)[0]

    def rows_of_rank(self, row: int, batch: int, rank: int) -> npt.NDArray[np.int64]:
        """The rows of one rank in the step that begins with a row: int64, in order."""
        begin, end = row, self.rows_of(row, batch)[0]
        ranks, lanes = self.world_size, self.order.lanes
        rows = np.arange(begin, end, dtype=np.int64)
        if end - begin == batch and batch % lanes == 0 and lanes % ranks == 0 and ranks > 1:
            # Whole lanes, which lie side by side in storage.
            return rows[rows % lanes * ranks // lanes == rank]
        first, last = steps.rank_rows(0, end - begin, rank, ranks)
        return rows[first:last]

    def stretch_of_rank(self, position: Position) -> tuple[int, int]:
        """The same of the next step and this rank, in an order of one lane: the first row, and that behind the last."""
        end = self.rows_of(position.row, position.batch)[0]
        return steps.rank_rows(position.row, end, self.rank, self.world_size)

    def positions(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The samples that stand at some rows of one step."""
        if not len(rows):
            return self.order.positions(0, 0)
        begin, end = int(rows[0]), int(rows[-1]) + 1
        found = self.order.positions(begin, end)
        return found if len(rows) == end - begin else found[rows - begin]

    # Steps and rows

    def end_of(self, row: int) -> int:
        """The row behind the last one of a row's epoch."""
        return self.order.begin_of(self.order.epoch_of(row) + 1)

    def steps_in(self, row: int, batch: int) -> int:
        """Steps from a row to the end of its epoch."""
        return self._steps(self.end_of(row) - row, batch)

    def _steps(self, rows: int, batch: int) -> int:
        return steps.epoch_steps(rows, batch, self.world_size, self.drop_last, self.allow_empty)

    def rows_of(self, row: int, batch: int) -> tuple[int, int]:
        """The rows of all ranks in the step that begins with a row: its end, and the first row of the next step."""
        end = self.end_of(row)
        if end - row >= 2 * batch:
            return row + batch, row + batch
        _, stop = steps.step_rows(0, end - row, batch, self.world_size, self.drop_last, self.allow_empty)
        return row + stop, self.next_row(end, batch) if self._steps(end - row, batch) == 1 else row + stop

    def row_of(self, position: Position, step: int) -> int:
        """The first row of a step."""
        return self._row(position.segment(step), step)

    def _row(self, segment: Segment, step: int) -> int:
        first, row, batch = segment
        ahead = step - first
        while ahead >= (here := self.steps_in(row, batch)):
            ahead -= here
            row = self.end_of(row)
            # As many whole epochs as are alike.
            epoch, each = self.order.epoch_of(row), self.steps_in(row, batch)
            change = self.order.change_after(epoch)
            if each:
                whole = ahead // each if change is None else min(ahead // each, change - epoch)
            elif change is None:
                raise ValueError(f"an epoch of {self.size} samples has no step of {batch}")
            else:
                whole = change - epoch
            ahead -= whole * each
            row = self.order.begin_of(epoch + whole)
        return row + ahead * batch

    def first_step(self, position: Position, epoch: int) -> int:
        """The first step of an epoch that is not before the next step's, as the batch sizes are now."""
        step, row = position.step, position.row
        while self.order.epoch_of(row) < epoch:
            batch = position.segment(step)[2]
            change = min((segment[0] for segment in position.segments if segment[0] > step), default=None)
            here = self.steps_in(row, batch)
            if change is not None and change < step + here:
                step, row = change, self.row_of(position, change)
                continue
            step, row = step + here, self.end_of(row)
            if change is None:
                # As many whole epochs as are alike.
                next_one = self.order.epoch_of(row)
                until = min(epoch, self.order.change_after(next_one) or epoch)
                step, row = step + (until - next_one) * self.steps_in(row, batch), self.order.begin_of(until)
        return step

    def at(self, position: Position, step: int) -> Position:
        """Another step of the run."""
        return replace(position, step=step, row=self.row_of(position, step))

    def after(self, position: Position) -> Position:
        """The place after the next step."""
        row = self.rows_of(position.row, position.batch)[1]
        step = position.step + 1
        if len(position.segments) > 1 and position.segment(step)[0] == step:
            row = self.row_of(position, step)
        return Position(step, row, position.segments, position.skipped)

    def following(self, position: Position) -> Position:
        """The next place, at a step that is not passed over."""
        after = self.after(position)
        return self.at(after, after.skipped.first_left(after.step)) if after.skipped else after

    def alike(self, position: Position) -> int:
        """How many steps from a place on hold whole batches of one size, one behind another; at least 1."""
        whole = (self.end_of(position.row) - position.row) // position.batch
        # The last one may hold what is left of the epoch besides.
        ends = [position.step + whole - 1]
        for changes in (position.segments, position.skipped):
            at = bisect_right(changes, position.step, key=_BEGIN)
            ends += [begin for begin, *_ in changes[at : at + 1]]
        return max(1, min(ends) - position.step)

    def before(self, position: Position, epoch: int) -> Position:
        """A place that is not behind the start of an epoch, for `first_step`."""
        step, row, _ = max(segment for segment in position.segments if segment[1] <= self.order.begin_of(epoch))
        return replace(position, step=step, row=row)

    def with_batch(self, position: Position, step: int, batch: int) -> Position:
        """The same place, with another batch size from a step on, which is not before the next one."""
        kept = tuple(segment for segment in position.segments if segment[0] < step)
        row = position.row if step == position.step else self.row_of(position, step)
        return replace(position, segments=(*kept, (step, self.next_row(row, batch), batch)))

    def next_row(self, row: int, batch: int) -> int:
        """The row that a step begins with: if none is left of the epoch, the first of the next one."""
        if self.steps_in(row, batch):
            return row
        row = self.end_of(row)
        # Epochs before data was added may have none.
        change: int | None = self.order.epoch_of(row)
        while not self.steps_in(row, batch) and (change := self.order.change_after(change)) is not None:
            row = self.order.begin_of(change)
        return row

    def check_end(self) -> None:
        """Refuses to count an epoch that has no end.

        Raises:
            TypeError: naming why it has none.
        """
        if self.size == ENDLESS:
            raise TypeError("len(): an epoch of a zip with length=math.inf has no end\nhint: take(n) gives it one")

    def check_enough(self, batch: int) -> None:
        """Refuses a dataset that has no whole step.

        Raises:
            ValueError: naming what there is and what is needed.
        """
        if self._steps(self.size, batch):
            return
        if self.size == 0:
            raise ValueError("the dataset has no samples")
        wanted = f"a global batch of {batch}" if self.drop_last else f"one for each of {self.world_size} ranks"
        raise ValueError(
            f"the dataset has {self.size} samples, which is less than {wanted}\n"
            f"hint: {'a smaller batch, or drop_last=False' if self.drop_last else 'allow_empty=True, or repeat(k)'}"
        )


def start(
    pipeline: AnyPipeline,
    given: Given,
    world_size: int,
    rank: int,
    state: Mapping[str, Any] | None,
    *,
    strict: bool,
) -> tuple[Run, Position, tuple[str, ...]]:
    """The run that arguments and state describe, where it stands, and what its user is to be told of the state.

    Args:
        pipeline: whose samples.
        given: what the user said.
        world_size: ranks.
        rank: whose part.
        state: whose form is right; None for the beginning.
        strict: False allows data to which more was added.

    Raises:
        ValueError: if something is missing, or does not fit the data or the number of ranks.
        StateMismatch: if an argument contradicts the state, or the data is other than the state's.
    """
    schedule = given.rows(world_size)
    if schedule is None and state is None:
        raise ValueError(NO_BATCH_SIZE)
    past = [] if state is None else _past(state)
    for batch in (schedule or {0: past[-1][2]}).values():
        check_divides(batch, world_size)
    largest = max((schedule or {0: past[-1][2]}).values())
    seed = choose("seed", given.seed, state, 0)
    shuffle = choose("shuffle", given.shuffle, state, True)
    exclusion, changes = exclusion_of(given.exclude, state)
    masks: tuple[Masks, ...] = ()
    if exclusion is not None:
        pipeline, masks = exclusion.applied_to_all(pipeline)
    if not len(pipeline):
        raise ValueError("the dataset has no samples")
    data = data_of(pipeline, shuffle)
    texts: tuple[str, ...] = ()
    if state is not None:
        state, texts = adapted(pipeline, data, state, epochs=given.epochs, strict=strict)
    order, windows = order_of(pipeline, data, seed, given, largest, state)
    fixed: dict[str, Any] = {
        "schema": SCHEMA,
        "order": ORDER,
        "kind": "samples",
        "seed": seed,
        "shuffle": shuffle,
        "changes": changes if state is None else changes_of(state),
        "lanes": order.lanes,
        "window": max(1, order.window),
        "pipeline": data.samples | windows,
        "sources": data.sources,
    }
    first_masked = None if exclusion is None else exclusion.first_masked
    ends = (given.drop_last, given.allow_empty)
    run = Run(pipeline, order, data.kind, seed, shuffle, world_size, rank, *ends, fixed, masks, first_masked)
    return run, _position(run, schedule, past, state), texts


def _position(
    run: Run, schedule: Schedule | None, past: Sequence[Segment], state: Mapping[str, Any] | None
) -> Position:
    """Where the run stands, with the history from the state and the sizes to come from the arguments."""
    if state is None:
        step = row = 0
        skipped = Skipped()
    else:
        step, row = state["step"], state["position"]
        skipped = Skipped((begin, stop) for begin, stop in state["skipped"])
    if schedule is None:
        batch = past[-1][2]
    else:
        batch = schedule[max(begin for begin in schedule if begin <= step)]
    run.check_enough(batch)
    # What lies ahead depends on ranks and drop_last, which may be others now: where it does, it is counted from here.
    kept = [segment for segment in past if segment[0] < step]
    row = run.next_row(row, batch)
    position = Position(step, row, tuple(run.needed([*kept, (step, row, batch)])), skipped)
    for begin, batch in sorted((schedule or {}).items()):
        if begin > step:
            run.check_enough(batch)
            position = run.with_batch(position, begin, batch)
    # At the row of its step: if no step is left in the epoch, that is the next one's first.
    return run.at(position, skipped.first_left(step))


def _past(state: Mapping[str, Any]) -> list[Segment]:
    """The history of a state.

    Raises:
        StateMismatch: if it cannot be one that leads to the state's position.
    """
    past: list[Segment] = [(step, row, batch) for step, row, batch in state["history"]]
    ordered = all(one[0] < other[0] and one[1] <= other[1] for one, other in pairwise(past))
    if not past or past[0][:2] != (0, 0) or not ordered or min(batch for *_, batch in past) < 1:
        raise StateMismatch(f"state: expected a history from step 0 on, found {state['history'][:8]}")
    # The last entry is of the epoch that the position is in, so that no number of ranks plays a part.
    step, row, batch = past[-1]
    if row + (state["step"] - step) * batch != state["position"] or step > state["step"]:
        raise StateMismatch(
            f"state: its history ends with {list(past[-1])}, which does not lead to step {state['step']} at position "
            f"{state['position']}"
        )
    return past

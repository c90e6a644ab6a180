"""Lanes of documents that are made of items: the plan and the source of a dynamic pipeline.

    items of all lanes ──► tasks ──► pool of threads or processes ──► blocks of documents, in the order of tasks
                                                                          │ each lane's buffer, in its own order
                                                                          ▼
                                                            packers, one a lane ──► rows

How much is asked for ahead, by which lanes, and when it is there changes speed and nothing else: what a packer is given
is decided by its mark alone.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace._changes import Adapted
from headrace._traffic import Traffic
from headrace.batch import Source
from headrace.errors import DataError
from headrace.loading.added import eras_of, first_samples, order_of_eras
from headrace.loading.exclusion import Masks
from headrace.loading.lengths import with_length
from headrace.loading.prefetch import Prefetcher, View
from headrace.samples.dynamic import DocumentPipeline
from headrace.samples.order import (
    LaneOrder,
    Order,
    PermutedOrder,
    SequentialOrder,
    default_window,
    kind_of,
)
from headrace.samples.pipeline import OnError, Pipeline

from .buffers import LaneBuffer
from .comparing import check_same
from .items import LaneItems
from .make import DocumentMaker, Group, Made, Run, Skipped, Task
from .marks import check_mark, first_mark, item_of, mark_from, mark_state, version_of
from .packers import Mark, Packer, Part, first_item, packer_of
from .sizing import Sizing
from .source import Column, LanePlan, LaneResources, LaneSource, Layout, Maker, Record, Rows, Setup
from .starving import starved

__all__ = ["DocumentPlan", "layout_of"]

_Ints = npt.NDArray[np.int64]

_WINDOWS = 8
"""Windows whose order stays in memory, at least: lanes use their items up at different speeds, and drift apart."""

_WINDOW_ITEMS = 2**20
"""Items whose order stays in memory: where lanes need as many passes over few items at a time, all windows of these."""

_AHEAD = 2
"""Tasks whose results may be ready, beyond one that each thread works for."""

_PATIENCE = 4096
"""Items of a lane, at least, of which nothing may be left before the run ends with an error rather than never."""

_PASSES = 4
"""Passes of a lane over its items, at least, of which nothing may be left."""

_LISTED = 100
"""Documents that were left out of which `stats` tells the place."""


class DocumentPlan(LanePlan):
    """The rows of a dynamic pipeline.

    Args:
        pipeline: what makes rows.
        setup: of the run.
        changes: that the run's state tells of.
        name: of the source in a mixture, for errors and in changes; None outside of one.

    Raises:
        ValueError: if there is no item.
        StateMismatch: if the changes are not of such a run.
    """

    def __init__(
        self,
        pipeline: DocumentPipeline,
        setup: Setup,
        changes: Sequence[Mapping[str, Any]] = (),
        *,
        name: str | None = None,
    ) -> None:
        self.name = name
        self.masks: Masks | None = None
        if setup.exclusion is not None:
            base, masks = setup.exclusion.applied(pipeline.base)
            pipeline = replace(pipeline, base=base)
            self.masks = masks if setup.masks else None
        self.documents = pipeline
        self.setup = setup
        base = pipeline.base
        self.items = len(base)
        if not self.items:
            raise ValueError("the dataset has no samples")
        self.kind = kind_of(base, setup.shuffle)
        if self.kind != "lanes" and setup.window not in (None, 1):
            raise ValueError(f"window must be left out for a {self.kind} order, got {setup.window}")
        eras = eras_of(changes, self.items, source=name)
        self.order = order_of_eras(eras, lambda count: self._order(first_samples(base, count)))
        self.window = max(1, self.order.window)
        self.layout = layout_of(pipeline, pad=setup.pad, masked=setup.masks)

    def _order(self, base: Pipeline) -> Order:
        """The order of some items."""
        setup = self.setup
        if self.kind == "sequential":
            return SequentialOrder(len(base))
        if self.kind == "permutation":
            return PermutedOrder(len(base), setup.seed)
        stored = base.selection.in_storage_order()
        window = setup.window or default_window(base, stored, setup.lanes)
        kept = max(_WINDOWS, _WINDOW_ITEMS // len(base))
        return LaneOrder(stored, setup.seed, setup.lanes, window, kept=kept)

    def pipeline(self) -> dict[str, Any]:
        """See `LanePlan.pipeline`."""
        base, packing = self.documents.base, self.documents.packing
        return {
            "order": self.kind,
            "samples": self.items,
            "selection": base.selection.digest(),
            "stages": [[stage.identity() for stage in origin.stages] for origin in base.origins],
            "document_stages": [stage.identity() for stage in self.documents.stages],
            **({"mode": None} if packing is None else packing.identity()),
            "marks": version_of(self.documents),
        }

    def stages(self) -> list[str]:
        """See `LanePlan.stages`."""
        return [repr(stage) for origin in self.documents.base.origins for stage in origin.stages] + [
            repr(stage) for stage in self.documents.stages
        ]

    def sources(self) -> list[dict[str, Any]]:
        """See `LanePlan.sources`."""
        return [origin.summary() for origin in self.documents.base.origins]

    def adapted(self, state: Mapping[str, Any], *, strict: bool) -> Adapted:
        """See `LanePlan.adapted`."""
        begin, names = Adapted(dict(state)), self.stages()
        if renamed := check_same(self.pipeline(), self.sources(), names, state, strict=strict):
            begin = begin.noted("functions", state["functions"], names, renamed)
        packing = self.documents.packing
        if packing is None:
            return begin
        return begin.then(with_length(begin.state, state["pipeline"]["seq_len"], packing.seq_len, strict=strict))

    def makers(self, *, memory: int, on_error: OnError) -> list[Maker]:
        """See `LanePlan.makers`."""
        masked = None if self.masks is None else self.masks.positions
        return [DocumentMaker(self.documents, seed=self.setup.seed, on_error=on_error, memory=memory, masked=masked)]

    def first(self, lane: int) -> Any:
        """See `LanePlan.first`."""
        del lane
        return mark_state(first_mark(self.documents))

    def open(self, lanes: _Ints, states: Mapping[int, Any], resources: LaneResources) -> LaneSource:
        """See `LanePlan.open`."""
        return _DocumentSource(self, lanes, states, resources)

    def check_state(self, lane: int, state: Any) -> None:
        """See `LanePlan.check_state`."""
        check_mark(lane, state, self.documents, self.setup.lanes)

    def position(self, lane: int, item: int) -> int:
        """The number in the dataset of a lane's item."""
        row = item * self.setup.lanes + lane
        return int(self.order.positions(row, row + 1)[0])

    def epoch(self, states: Mapping[int, Any]) -> int:
        """See `LanePlan.epoch`."""
        return min(self.pass_of(lane, item_of(state)) for lane, state in states.items())

    def epoch_of(self, lane: int, mark: Mark) -> int:
        """The pass that a lane is in."""
        return self.pass_of(lane, first_item(mark.begin))

    def pass_of(self, lane: int, item: int) -> int:
        """The pass that a lane's item is of."""
        return self.order.epoch_of(item * self.setup.lanes + lane)

    def end(self, lane: int) -> int | None:
        """How many items a lane has; None if it never ends."""
        if self.setup.epochs is None:
            return None
        return -(-(self.order.begin_of(self.setup.epochs) - lane) // self.setup.lanes)


class _DocumentSource(LaneSource):
    """See `DocumentPlan`.

    Args:
        plan: which rows.
        lanes: the own lanes.
        states: where they are.
        resources: what may be used.
    """

    def __init__(self, plan: DocumentPlan, lanes: _Ints, states: Mapping[int, Any], resources: LaneResources) -> None:
        self.lanes = lanes
        self._plan = plan
        packing = plan.documents.packing
        self._columns = [] if packing is None else [column.name for column in packing.columns]
        self._numbers: list[int] = lanes.tolist()
        self._marks = [mark_from(states[lane], plan.documents) for lane in self._numbers]
        self._buffers = [
            LaneBuffer(plan.documents, mark, plan.end(lane))
            for lane, mark in zip(self._numbers, self._marks, strict=True)
        ]
        self._packers: list[Packer] = (
            [] if packing is None else [packer_of(packing, mark, pad=plan.setup.pad) for mark in self._marks]
        )
        self._items = LaneItems(plan.order, plan.setup.lanes, lanes)
        self._sizing = Sizing(
            len(lanes), plan.documents, resources.memory, resources.workers.count + _AHEAD, share=resources.share
        )
        self._groups: deque[tuple[int, int, Group]] = deque()
        """Groups to be handed over: their level, and their lane's index."""
        self._issued: deque[Task] = deque()
        """Tasks whose results were not taken, in order."""
        self._is_open = np.array([buffer.is_open for buffer in self._buffers], dtype=np.bool_)
        """bool, (own lanes,): whether more items can be asked for."""
        self._useful = [mark.begin for mark in self._marks]
        """For each lane the cursor of the last document that was of use."""
        self._longest = math.inf if packing is None else packing.longest
        self._patience = max(_PATIENCE, _PASSES * -(-plan.items // plan.setup.lanes))
        """Items of a lane without a document of use after which it is given up."""
        self._hungry: int | None = None
        """The lane that is waited for."""
        self._skips: list[Skipped] = []
        self._counts: dict[str, int] = dict.fromkeys(
            ("rows", "entries", "items", "documents", "items_dropped", "documents_skipped"), 0
        )
        self._ahead: Prefetcher | None = None
        maker = resources.workers.makers[resources.makers]
        assert isinstance(maker, DocumentMaker)  # what the plan gave
        self._cache = maker.cache
        self._sources = {id(origin.source): origin.source for origin in plan.documents.base.origins}.values()
        if not resources.workers.in_processes:
            self._ahead = Prefetcher(plan.documents.base, maker.cache, set(), threads=resources.workers.count)
        self._view = _view(plan, lanes)
        ahead = _AHEAD if resources.workers.count else 0
        self._results = resources.workers.run(resources.makers, self._tasks(), ahead=ahead)

    def want(self, counts: _Ints) -> None:
        """See `LaneSource.want`."""
        self._sizing.rows = counts

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
        return min(self._plan.epoch_of(lane, mark) for lane, mark in zip(self._numbers, marks, strict=True))

    def stats(self) -> dict[str, Any]:
        """See `LaneSource.stats`."""
        counts = dict(self._counts)
        packing = self._plan.documents.packing
        if packing is not None:
            counts["tokens"] = counts.pop("entries")
            counts["padding"] = counts["rows"] * packing.width - counts["tokens"]
            counts["documents_too_long"] = sum(packer.dropped for packer in self._packers)
        else:
            del counts["entries"]
        return {
            "order": self._plan.kind,
            **counts,
            "skipped": [tuple(skip) for skip in self._skips],
            **self._cache.stats(),
            **Traffic.total(source.traffic() for source in self._sources).stats(),
        }

    def close(self) -> None:
        """See `LaneSource.close`."""
        self._results.close()
        if self._ahead is not None:
            self._ahead.close()

    # Rows

    def _row(self, lane: int, arrays: list[npt.NDArray[Any]], into: Rows, place: int) -> Record | None:
        if not self._packers:
            sample = self._pull(lane)
            if sample is None:
                return None
            into.samples[place] = sample.value
            self._marks[lane] = Mark(sample.after)
            self._count(1)
            return _SampleRecord(self._plan, self._numbers[lane], first_item(sample.cursor), sample.masked)
        packer = self._packers[lane]
        parts = packer.row(lambda: self._pull(lane), arrays, place)
        self._marks[lane] = packer.mark
        if parts is None:
            return None
        self._count(sum(part.entries for part in parts))
        return _RowRecord(self._plan, self._numbers[lane], parts)

    def _count(self, entries: int) -> None:
        self._counts["rows"] += 1
        self._counts["entries"] += entries

    def _pull(self, lane: int) -> Any:
        """A lane's next document, waited for; None after its last one."""
        buffer = self._buffers[lane]
        while (document := buffer.take()) is None:
            if buffer.is_done:
                return None
            if buffer.reached - first_item(self._useful[lane]) > self._patience:
                raise self._starved(lane)
            self._hungry = lane
            self._receive()
        length = document.length
        self._sizing.took(lane, length)
        if 0 < length <= self._longest:
            self._useful[lane] = document.cursor
        elif first_item(document.cursor) - first_item(self._useful[lane]) > self._patience:
            raise self._starved(lane)
        return document

    def _starved(self, lane: int) -> DataError:
        begin, plan = first_item(self._useful[lane]), self._plan
        return starved(
            self._items.positions(lane, list(range(begin, begin + self._patience))),
            name=plan.name,
            lane=self._numbers[lane],
            begin=begin,
            items=plan.items,
            lanes=plan.setup.lanes,
            window=plan.order.window,
            steps=plan.stages(),
        )

    # Work

    def _receive(self) -> None:
        """Waits for the result of the oldest task."""
        made: Made = self._results.next()
        task = self._issued.popleft()
        for run, block in zip(task.runs, made.blocks, strict=True):
            count = len(run.groups) if task.level else len(run.positions)
            self._sizing.received(run, block, task.level)
            for level, group in self._buffers[run.lane].add(task.level, block, count):
                self._groups.append((level, run.lane, group))
            if block.failure is not None:
                self._is_open[run.lane] = False
            if task.level == 0:
                self._counts["items"] += count
            self._counts["documents"] += sum(block.counts) if not block.keys else 0
        self._sizing.timed(task, made)
        self._counts["items_dropped"] += made.dropped
        self._counts["documents_skipped"] += len(made.skipped)
        self._skips += made.skipped[: max(0, _LISTED - len(self._skips))]

    def _tasks(self) -> Iterator[Task]:
        """Work to be done, without end: what lanes need soonest first. Drawn by the thread that takes rows."""
        while True:
            task = self._grouped() if self._groups else self._next_items()
            self._issued.append(task)
            yield task

    def _grouped(self) -> Task:
        """Groups of one level."""
        level = self._groups[0][0]
        runs: list[Run] = []
        count = 0
        while self._groups and self._groups[0][0] == level and count < self._sizing.documents:
            _, lane, group = self._groups.popleft()
            count += len(group.documents)
            if runs and runs[-1].lane == lane:
                runs[-1].groups.append(group)
            else:
                runs.append(Run(lane, _NO_POSITIONS, [], [group]))
        return Task(level, runs)

    def _next_items(self) -> Task:
        """Items of the lanes that have least, as many as are worth a task."""
        runs: list[Run] = []
        for lane, count in self._sizing.shares(self._is_open, self._hungry):
            numbers = self._buffers[lane].ask(count)
            self._is_open[lane] = self._buffers[lane].is_open
            positions = self._items.positions(lane, numbers)
            epochs = [self._plan.pass_of(self._numbers[lane], number) for number in numbers]
            runs.append(Run(lane, positions, epochs, []))
            self._sizing.asked(lane, len(numbers))
            self._reach(numbers[0])
        return Task(0, runs)

    def _reach(self, item: int) -> None:
        """Has chunks of the window to come read."""
        if self._ahead is not None:
            self._ahead.reach(self._view, item * self._plan.setup.lanes)


_NO_POSITIONS = np.zeros(0, dtype=np.int64)


class _RowRecord(Record):
    """What a packed row was made of."""

    __slots__ = ("_lane", "_parts", "_plan")

    def __init__(self, plan: DocumentPlan, lane: int, parts: list[Part]) -> None:
        self._plan = plan
        self._lane = lane
        self._parts = parts

    @property
    def lengths(self) -> list[int]:
        """See `Record.lengths`."""
        return [part.entries for part in self._parts]

    @property
    def masked(self) -> list[bool]:
        """See `Record.masked`."""
        return [part.masked for part in self._parts]

    @property
    def position(self) -> int:
        """See `Record.position`."""
        return self._plan.position(self._lane, first_item(self._parts[0].cursor))

    def sources(self) -> list[Source]:
        """See `Record.sources`."""
        packing = self._plan.documents.packing
        assert packing is not None  # of a packed row
        before = int(packing.bos_id is not None)
        added = before + (packing.eos_id is not None)
        found: list[Source] = []
        for part in self._parts:
            place = self._plan.documents.base.place(self._plan.position(self._lane, first_item(part.cursor)))
            stored = part.length - added
            first, end = (min(max(0, at - before), stored) for at in (part.first, part.first + part.entries))
            found.append(Source(place.file, place.chunk, place.row, first, end - first))
        return found


class _SampleRecord(Record):
    """Which item a document was made of."""

    __slots__ = ("_item", "_lane", "_masked", "_plan")

    def __init__(self, plan: DocumentPlan, lane: int, item: int, masked: bool) -> None:
        self._plan = plan
        self._lane = lane
        self._item = item
        self._masked = masked

    @property
    def lengths(self) -> list[int]:
        """See `Record.lengths`."""
        return []

    @property
    def masked(self) -> list[bool]:
        """See `Record.masked`."""
        return [self._masked]

    @property
    def position(self) -> int:
        """See `Record.position`."""
        return self._plan.position(self._lane, self._item)

    def sources(self) -> list[Any]:
        """See `Record.sources`."""
        return [self._plan.documents.base.place(self.position)]


def layout_of(pipeline: DocumentPipeline, *, pad: bool, masked: bool = False) -> Layout:
    """What a row of a pipeline is; with `pad` its last ones may hold padding, with `masked` documents may be masked."""
    packing = pipeline.packing
    if packing is None:
        return Layout(columns={}, masked=masked)
    names = [column.name for column in packing.columns]
    return Layout(
        columns={column.name: Column(column.dtype, packing.width, column.pad) for column in packing.columns},
        seq_len=packing.seq_len,
        boundaries=packing.boundaries,
        cu_seqlens_size=packing.cu_seqlens_size,
        loss_mask=(packing.mode != "concat" or pad or masked) and "loss_mask" not in names,
        masked=masked,
    )


def _view(plan: DocumentPlan, lanes: _Ints) -> View:
    """What is read ahead for: a rank whose lanes lie side by side, or all of them."""
    count, total = len(lanes), plan.setup.lanes
    side_by_side = bool(lanes[-1] - lanes[0] == count - 1) and total % count == 0 and int(lanes[0]) % count == 0
    world_size, rank = (total // count, int(lanes[0]) // count) if side_by_side else (1, 0)
    return View(plan.documents.base, plan.order, rank, world_size)

"""Documents of some lanes, made by workers ahead of use: which tasks there are, in which order, and what comes of them.

    items of all lanes ──► tasks ──► pool of threads or processes ──► blocks of documents, in the order of tasks
                                                                          │ each lane's buffer, in its own order
                                                                          ▼
                                                                  one by one, to whoever packs them

How much is asked for ahead, by which lanes, and when it is there changes speed and nothing else: what a lane gives next
is decided by its mark alone.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace._traffic import Traffic
from headrace.errors import DataError
from headrace.loading.prefetch import Prefetcher, View
from headrace.samples.document_pipeline import DocumentPipeline

from .buffers import LaneBuffer
from .items import Dealing, LaneItems
from .make import DocumentMaker, Group, Made, Run, Skipped, Task
from .packers import Mark, first_item
from .records import Origin
from .sizing import Sizing
from .source import LaneResources
from .starving import starved

__all__ = ["DocumentSupply"]

_Ints = npt.NDArray[np.int64]

_AHEAD = 2
"""Tasks whose results may be ready, beyond one that each thread works for."""

_PATIENCE = 4096
"""Items of a lane, at least, of which nothing may be left before the run ends with an error rather than never."""

_PASSES = 4
"""Passes of a lane over its items, at least, of which nothing may be left."""

_LISTED = 100
"""Documents that were left out of which `stats` tells the place."""

_NO_POSITIONS = np.zeros(0, dtype=np.int64)


class DocumentSupply:
    """Gives each lane's documents from its mark on, without those that the mark says are not needed.

    One thread calls it, but for `stats` and `close`.

    Args:
        origin: of the documents.
        lanes: int64, (own lanes,): the numbers of the lanes. Methods name a lane by its index in this array.
        marks: where each stands.
        resources: what may be used.
        name: of the source in a mixture, for errors; None outside of one.
    """

    def __init__(
        self, origin: Origin, lanes: _Ints, marks: Sequence[Mark], resources: LaneResources, *, name: str | None
    ) -> None:
        dealing, pipeline = origin
        packing, workers = pipeline.packing, resources.workers
        self._dealing = dealing
        self._pipeline = pipeline
        self._name = name
        self._numbers: list[int] = lanes.tolist()
        self._buffers = [
            LaneBuffer(pipeline, mark, dealing.end(lane)) for lane, mark in zip(self._numbers, marks, strict=True)
        ]
        self._items = LaneItems(dealing, lanes)
        self._sizing = Sizing(len(lanes), pipeline, resources.memory, workers.count + _AHEAD, share=resources.share)
        self._groups: deque[tuple[int, int, Group]] = deque()
        """Groups to be handed over: their level, and their lane's index."""
        self._issued: deque[Task] = deque()
        """Tasks whose results were not taken, in order."""
        self._is_open = np.array([buffer.is_open for buffer in self._buffers], dtype=np.bool_)
        """bool, (own lanes,): whether more items can be asked for."""
        self._useful = [mark.begin for mark in marks]
        """For each lane the cursor of the last document that was of use."""
        self._longest = math.inf if packing is None else packing.longest
        self._patience = max(_PATIENCE, _PASSES * -(-len(pipeline.base) // dealing.lanes))
        """Items of a lane without a document of use after which it is given up."""
        self._hungry: int | None = None
        """The lane that is waited for."""
        self._skips: list[Skipped] = []
        self._counts = dict.fromkeys(("items", "documents", "items_dropped", "documents_skipped"), 0)
        self._ahead: Prefetcher | None = None
        maker = workers.makers[resources.makers]
        assert isinstance(maker, DocumentMaker)  # what the plan gave
        self._cache = maker.cache
        self._sources = {id(one.source): one.source for one in pipeline.base.origins}.values()
        if not workers.in_processes:
            self._ahead = Prefetcher(pipeline.base, maker.cache, set(), threads=workers.count)
        self._view = _view(dealing, pipeline, lanes)
        ahead = _AHEAD if workers.count else 0
        self._results = workers.run(resources.makers, self._tasks(), ahead=ahead)

    def want(self, counts: _Ints) -> None:
        """Says how many rows of each lane will be taken soon: a hint, see `LaneSource.want`."""
        self._sizing.rows = counts

    def pull(self, lane: int) -> Any:
        """A lane's next document, waited for; None after its last one.

        Raises:
            DataError: if nothing of use is left of the lane's items, however many it comes to.
            BaseException: what was raised where the document would be made.
        """
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

    def stats(self) -> dict[str, Any]:
        """Counts for people and logs. Any thread may ask."""
        return {
            **self._counts,
            "skipped": [tuple(skip) for skip in self._skips],
            **self._cache.stats(),
            **Traffic.total(source.traffic() for source in self._sources).stats(),
        }

    def close(self) -> None:
        """Ends what works for it. Any thread may call it; it waits for nothing."""
        self._results.close()
        if self._ahead is not None:
            self._ahead.close()

    def _starved(self, lane: int) -> DataError:
        begin, pipeline = first_item(self._useful[lane]), self._pipeline
        return starved(
            self._items.positions(lane, list(range(begin, begin + self._patience))),
            name=self._name,
            lane=self._numbers[lane],
            begin=begin,
            items=len(pipeline.base),
            lanes=self._dealing.lanes,
            window=self._dealing.order.window,
            steps=pipeline.functions(),
        )

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
            epochs = [self._dealing.pass_of(self._numbers[lane], number) for number in numbers]
            runs.append(Run(lane, positions, epochs, []))
            self._sizing.asked(lane, len(numbers))
            self._reach(numbers[0])
        return Task(0, runs)

    def _reach(self, item: int) -> None:
        """Has chunks of the window to come read."""
        if self._ahead is not None:
            self._ahead.reach(self._view, item * self._dealing.lanes)


def _view(dealing: Dealing, pipeline: DocumentPipeline, lanes: _Ints) -> View:
    """What is read ahead for: a rank whose lanes lie side by side, or all of them."""
    count, total = len(lanes), dealing.lanes
    side_by_side = bool(lanes[-1] - lanes[0] == count - 1) and total % count == 0 and int(lanes[0]) % count == 0
    world_size, rank = (total // count, int(lanes[0]) // count) if side_by_side else (1, 0)
    return View(pipeline.base, dealing.order, rank, world_size)

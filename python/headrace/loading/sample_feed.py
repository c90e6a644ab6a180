"""The batches of an epoch over samples, made ahead of use by threads or processes."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from headrace.samples.pipeline import OnError
from headrace.samples.stored import StoredSamples

from . import sample_run as runs
from .choose import Choice, choose
from .fetch import pin
from .make import Broken, Made, Maker, Task
from .pool import NotReady, OrderedResults, Pool, add_note, as_raised
from .prefetch import Prefetcher, View
from .processes import Processes
from .run_arguments import RunResources

__all__ = ["Feed", "Resources", "Workers"]

_Make = Callable[[list[Task]], list[Made | Broken]]

_TOGETHER = 8
"""Batches that are made at once, at most."""

_TOGETHER_BYTES = 4 << 20
"""Of these, about: so much stays in memory as long as one of them is kept."""


@dataclass(frozen=True, kw_only=True)
class Resources(RunResources):
    """What a driver may use, and how it makes samples."""

    collate: Callable[[list[Any]], Any] | None
    init: Callable[[int], object] | None
    on_error: OnError
    pin_memory: bool
    parallel: int
    """Samples of one batch that are made at the same time."""
    worker_type: Literal["thread", "process", "auto"]

    @property
    def choice(self) -> Choice:
        """The kind of workers that was asked for."""
        return Choice(self.worker_type, "asked for")


class Workers:
    """Who makes the batches: threads of this process, or processes of their own.

    Attributes:
        maker: what makes them in threads; its cache is what chunks are read ahead into.
        choice: threads or processes, and why.
        seed: of the random numbers that they give to functions.
        stored: the samples, if the core's threads can gather them by their numbers and there is nothing else to do.
        pool: the threads that do it, or that wait for the processes.
    """

    def __init__(self, run: runs.Run, position: runs.Position, resources: Resources) -> None:
        self.resources = resources
        self.process = os.getpid()
        self.choice = resources.choice
        self.in_use: set[tuple[int, int]] = set()
        """Chunks of the window that batches were last given of, by origin and number."""
        self.seed = run.seed
        count = resources.workers
        self.maker = self._maker(run, resources.memory)
        if resources.worker_type == "auto":
            first = run.positions(run.rows_of_rank(position.row, position.batch, run.rank)).tolist()
            self.choice = choose(self.maker.read, first, count)
        processes = None
        if self.choice.worker_type == "process" and count:
            try:
                # Each has chunks of its own.
                maker = self._maker(run, max(1, resources.memory // count))
                processes = Processes(maker, count, init=resources.init, seed=run.seed)
            except Exception as error:
                if resources.worker_type != "auto":
                    raise
                self.choice = Choice("thread", f"it cannot be pickled to processes: {error}")
        self.together = processes is None and self.maker.reads_together
        """Whether several batches are made at once."""
        is_plain = self.together and resources.init is None and self.choice.worker_type == "thread"
        self.stored = StoredSamples.of(run.pipeline) if is_plain else None
        make = self.maker.together if self.together else _one_by_one(processes or self.maker)
        if resources.pin_memory:
            make = _pinned(make)
        if processes is None:
            self.pool: Pool[list[Task], list[Made | Broken]] = Pool(make, count, init=resources.init)
        else:
            self.pool = processes.pool(make)

    def check_process(self) -> None:
        """Refuses to go on in a forked child.

        Raises:
            RuntimeError: if this is not the process that they were made in.
        """
        if os.getpid() != self.process:
            raise RuntimeError(
                "this loader was started in another process: files and connections that it uses were not made for two\n"
                "hint: make the loader in the process that uses it, or start processes with the 'spawn' method"
            )

    @property
    def read_ahead(self) -> int:
        """Threads that may read chunks ahead of use: none if processes read them."""
        return 0 if self.choice.worker_type == "process" else self.resources.workers

    @property
    def ahead(self) -> int:
        """Batches that may be ready or begun, besides one for each thread of the pool."""
        return (self.resources.prefetch + 1) * max(1, self.resources.workers) - self.pool.workers

    def _maker(self, run: runs.Run, memory: int) -> Maker:
        resources = self.resources
        return Maker(
            run.pipeline,
            seed=run.seed,
            collate=resources.collate,
            on_error=resources.on_error,
            allow_empty=run.allow_empty,
            parallel=resources.parallel,
            memory=memory,
        )


def _one_by_one(make: Callable[[Task], Made]) -> _Make:
    return lambda tasks: [make(task) for task in tasks]


def _pinned(make: _Make) -> _Make:
    def pinned(tasks: list[Task]) -> list[Made | Broken]:
        return [made._replace(batch=pin(made.batch)) if isinstance(made, Made) else made for made in make(tasks)]

    return pinned


class Feed:
    """The batches of the rest of an epoch, made ahead of use; and the process that they are made in."""

    def __init__(self, run: runs.Run, position: runs.Position, workers: Workers) -> None:
        self.epoch = run.order.epoch_of(position.row)
        self._tasks: deque[tuple[Task, runs.Position]] = deque()
        """Those that were drawn and whose batches were not given, each with the place after it."""
        self._made: deque[Made | Broken] = deque()
        """Those of a list of tasks that were not given yet."""
        self._together = workers.together
        self._most = 1
        """Batches that are made at once."""
        self._number = 0
        """Of the next batch."""
        self._view = View(run.pipeline, run.order, run.rank, run.world_size)
        self._ahead = Prefetcher(run.pipeline, workers.maker.cache, workers.in_use, threads=workers.read_ahead)
        self._results: OrderedResults[list[Task], list[Made | Broken]] = workers.pool.run(
            self._draw(run, position), ahead=workers.ahead
        )

    def next(self, timeout: float | None) -> tuple[Task, Made, runs.Position]:
        """The next task, its batch, and the place after it.

        Raises:
            StopIteration: after the last one.
            Exception: in place of a batch that could not be made.
        """
        number, self._number = self._number, self._number + 1
        try:
            if not self._made:
                self._made.extend(self._results.next(timeout))
            made = self._made.popleft()
            if isinstance(made, Broken):
                raise as_raised(made.error)
        except (NotReady, KeyboardInterrupt):
            self._number = number
            raise
        except StopIteration:
            raise
        except BaseException as error:
            add_note(error, f"batch {number} of this iterator")
            if self._tasks:
                self._tasks.popleft()
            raise
        task, after = self._tasks.popleft()
        if self._together and made.samples:
            size = sum(values.nbytes for values in made.batch.values() if isinstance(values, np.ndarray))
            self._most = max(1, min(_TOGETHER, _TOGETHER_BYTES // max(1, size)))
        self._ahead.reach(self._view, task.begin)
        return task, made, after

    def close(self) -> None:
        """Leaves what was begun."""
        self._results.close()
        self._ahead.close()

    def _draw(self, run: runs.Run, position: runs.Position) -> Iterator[list[Task]]:
        epoch = self.epoch
        tasks: list[Task] = []
        while run.order.epoch_of(position.row) == epoch:
            rows = run.rows_of_rank(position.row, position.batch, run.rank)
            task = Task(position.step, epoch, position.row, rows, run.positions(rows), run.order.drawn(rows))
            position = run.following(position)
            self._tasks.append((task, position))
            tasks.append(task)
            if len(tasks) >= self._most:
                yield tasks
                tasks = []
        if tasks:
            yield tasks

"""What feeds a loader over samples: where the run stands, and the threads that make batches ahead of use."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace._traffic import Traffic
from headrace._units import as_int
from headrace.errors import StoreError
from headrace.samples.batch import SampleBatch
from headrace.samples.cache import ChunkCache
from headrace.samples.pipeline import Skip
from headrace.samples.reading import Readable
from headrace.state import State, check_state

from . import sample_run as runs
from .arguments import Arguments
from .base import END
from .exclusion import adapted
from .make import AnyTask, Made
from .masking import masked, not_a_dict
from .pool import NotReady
from .row_feed import RowFeed
from .run_arguments import RunArguments, RunResources
from .run_driver import RunDriver
from .sample_feed import Feed, Resources, Workers
from .schedule import check_divides

__all__ = ["SampleDriver"]

_Ints = npt.NDArray[np.int64]

_LISTED = 100
"""Samples that were skipped of which `stats` tells the place."""

_MOST_ROWS = 2**61
"""More than any run gives: orders count no further (docs/order.md)."""

_MEANINGLESS = ("sampler", "batch_sampler", "generator", "remainder")


class SampleDriver(RunDriver[runs.Given, runs.Run, runs.Position]):
    """The position in a run over samples, moved by whoever iterates."""

    kind = "samples"

    def __init__(self, dataset: Readable, given: runs.Given, resources: Resources, arguments: Arguments) -> None:
        super().__init__(dataset, given, arguments)
        self._resources = resources
        self._workers: Workers | None = None
        self._feed: Feed | RowFeed | None = None
        self._counts = {"batches": 0, "samples": 0, "samples_dropped": 0, "samples_skipped": 0}
        self._skips: list[Skip] = []

    @classmethod
    def of(cls, dataset: Readable, arguments: Arguments) -> "SampleDriver":
        """The driver that a loader's arguments describe.

        Raises:
            TypeError: if a value is of the wrong type.
            ValueError: if one cannot be used, or they do not go together.
        """
        arguments.refuse(cls.kind, _MEANINGLESS)
        given = runs.Given(
            **vars(RunArguments.of(arguments, dataset)),
            drop_last=bool(arguments.drop_last),
            allow_empty=bool(arguments.allow_empty),
        )
        resources = Resources(
            **vars(RunResources.of(arguments, fewest=0)),
            collate=arguments.collate_fn,
            init=arguments.worker_init_fn,
            on_error=arguments.on_error,
            pin_memory=bool(arguments.pin_memory),
            parallel=as_int(arguments.items_in_parallel, "items_in_parallel", least=1, most=1024),
            worker_type=arguments.worker_type,
        )
        driver = cls(dataset, given, resources, arguments)
        driver.check()
        return driver

    def _start(
        self, world_size: int, rank: int, state: Mapping[str, Any] | None
    ) -> tuple[runs.Run, runs.Position, tuple[str, ...]]:
        return runs.start(self.dataset.pipeline, self.given, world_size, rank, state, strict=self.strict)

    def _on_other_ranks(
        self, run: runs.Run, position: runs.Position, world_size: int, rank: int
    ) -> tuple[runs.Run, runs.Position]:
        return self._start(world_size, rank, run.state(position))[:2]

    # Where the run stands

    @property
    def position(self) -> int:
        """See `Driver`."""
        return self.here()[1].row

    @property
    def epoch(self) -> int:
        """See `Driver`."""
        run, position = self.here()
        return run.order.epoch_of(position.row)

    @property
    def global_batch_size(self) -> int:
        """See `Driver`."""
        return self.here()[1].batch

    def length(self) -> int:
        """See `Driver.length`; what is passed over by `skip` does not count."""
        run, position = self.here()
        run.check_end()
        epoch = self.epoch
        if self.given.epochs is not None and epoch >= self.given.epochs:
            epoch = self.given.epochs - 1
        first, last = (run.first_step(run.before(position, epoch), number) for number in (epoch, epoch + 1))
        return position.skipped.left(first, last)

    def left(self, epoch: int) -> int:
        """See `EpochDriver.left`."""
        run, position = self.here()
        run.check_end()
        return position.skipped.left(position.step, run.first_step(position, epoch + 1))

    # Going elsewhere

    def load(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, strict: bool) -> None:
        """See `Driver.load`."""
        checked = check_state(state if isinstance(state, Mapping) else State.merge(state), "samples")
        begin = adapted(self.given.exclude, checked, strict=strict)
        with self.exclusive():
            self._resume(begin, strict=strict)
            run = self.here()[0]
            workers = self._workers
            if workers is not None and (workers.seed != run.seed or workers.maker.pipeline is not run.pipeline):
                self._workers = None

    def seek(self, step: int) -> None:
        """See `Driver.seek`."""
        run, position = self.here()
        end = self._end(run, position)
        if end is not None and step > end:
            raise ValueError(f"step must be in 0..{end}, the end of the run, got {step}")
        run.check_known(position, step)
        self._check_countable(run, position, step)
        self._change(run, run.at(position, step), elsewhere=True)

    def _check_skip(self, run: runs.Run, position: runs.Position, stop: int) -> None:
        end = self._end(run, position)
        self._check_countable(run, position, stop if end is None else min(stop, end))

    def _end(self, run: runs.Run, position: runs.Position) -> int | None:
        """The step behind the last one; None if the run has no end."""
        return None if self.given.epochs is None else run.first_step(run.before(position, 0), self.given.epochs)

    def _check_countable(self, run: runs.Run, position: runs.Position, step: int) -> None:
        if run.row_of(position, step) >= _MOST_ROWS:
            raise ValueError(f"step {step} lies beyond the 2^61 rows that can be counted")

    def set_global_batch_size(self, rows: int) -> None:
        """See `Driver.set_global_batch_size`."""
        run, position = self.here()
        check_divides(rows, run.world_size)
        run.check_enough(rows)
        changed = run.with_batch(position, position.step, rows)
        self._change(run, run.at(changed, changed.step))

    # Telling

    def sources(self, step: int, rank: int | None) -> list[Any]:
        """See `Driver.sources`."""
        run, position = self.here()
        run.check_known(position, step)
        there = run.at(position, step)
        if self.given.epochs is not None and there.row >= run.order.begin_of(self.given.epochs):
            raise ValueError(f"step {step} lies behind the end of the run")
        rows = run.rows_of_rank(there.row, there.batch, run.rank if rank is None else rank)
        return [run.pipeline.place(number) for number in run.positions(rows).tolist()]

    def stats(self) -> dict[str, Any]:
        """See `Driver.stats`."""
        run, position = self.here()
        choice = self._resources.choice if self._workers is None else self._workers.choice
        sources = {id(origin.source): origin.source for origin in run.pipeline.origins}.values()
        return {
            "step": position.step,
            "epoch": self.epoch,
            "position": position.row,
            "order": run.kind,
            "lanes": run.order.lanes,
            "window": run.order.window,
            **self._counts,
            "skipped": [(skip.position, str(skip.place), skip.error) for skip in self._skips],
            **(ChunkCache(0) if self._workers is None else self._workers.maker.cache).stats(),
            "worker_type": choice.worker_type,
            "worker_reason": choice.reason,
            **Traffic.total(source.traffic() for source in sources).stats(),
        }

    def settings(self) -> dict[str, Any]:
        """See `Driver.settings`."""
        return {name: value for name, value in vars(self.given).items() if value not in (None, False)}

    # Iterating

    def _next(self, epoch: int) -> Any:
        while True:
            run, position = self.still_here()
            finished = self.given.epochs is not None and position.row >= run.order.begin_of(self.given.epochs)
            here = run.order.epoch_of(position.row)
            if self._feed is not None and self._feed.epoch != here:
                self.close()
            if finished or here > epoch:
                return END
            if self._workers is not None:
                self._workers.check_process()
            fresh = self._feed is None
            if self._feed is None:
                if self._workers is None:
                    self._workers = Workers(run, position, self._resources)
                stored = self._workers.stored
                self._feed = (
                    Feed(run, position, self._workers)
                    if stored is None
                    else RowFeed(run, position, self._workers, stored)
                )
            given = None
            try:
                given = self._feed.next(self._resources.timeout)
            except NotReady:
                raise
            except StopIteration:
                pass
            except (StoreError, KeyboardInterrupt):
                # It may have been for a while only: the next call begins at this step again.
                self.close()
                raise
            except BaseException:
                # It would fail again: the next call gives the step after it.
                self._stand(run, run.after(position))
                raise
            if given is None or not given[0].step == given[1].step == position.step:
                if fresh:
                    raise RuntimeError(f"the batch of step {position.step} was not made; please report it")
                # Ctrl-C came between a batch and the note that it was given.
                self.close()
                continue
            task, made, after = given
            after = self._stand(run, after)
            self._count(made)
            if not made.samples and not run.allow_empty:
                if run.world_size == 1:
                    continue  # nothing is left of this step, and no other rank takes it
                raise ValueError(
                    f"step {task.step}: filters and skipped samples left nothing for rank {run.rank}, and every "
                    "rank must take the step\nhint: allow_empty=True, a larger batch, or where(...), which counts"
                )
            if type(made.batch) is dict:
                return self._wrapped(run, position, task, made, after)
            if made.samples and run.masks_at(position):
                raise ValueError(not_a_dict(made.batch))
            return made.batch

    def _wrapped(
        self, run: runs.Run, position: runs.Position, task: AnyTask, made: Made, after: runs.Position
    ) -> SampleBatch:
        def numbers() -> tuple[_Ints, _Ints]:
            rows, positions = task.rows, task.positions
            return (rows, positions) if made.kept is None else (rows[made.kept], positions[made.kept])

        batch = made.batch
        if run.masks_at(position):
            batch = masked(batch, run.masked(numbers()[1], position))
        return SampleBatch(
            batch,
            step=task.step,
            epoch=task.epoch,
            numbers=numbers,
            sources=lambda: [run.pipeline.place(position) for position in numbers()[1].tolist()],
            state=lambda: run.state(after),
        )

    def _count(self, made: Made) -> None:
        counts = self._counts
        counts["batches"] += 1
        counts["samples"] += made.samples
        if made.kept is not None:
            counts["samples_dropped"] += made.dropped
            counts["samples_skipped"] += len(made.skipped)
            self._skips += made.skipped[: max(0, _LISTED - len(self._skips))]

    def close(self) -> None:
        """See `Driver.close`; threads stay for the next iterator, what they have begun is left."""
        # Taken once: a finalizer in another thread may come here too.
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()

    def _change(self, run: runs.Run, position: runs.Position, *, elsewhere: bool = False) -> None:
        """See `RunDriver`; refused while another thread waits for a batch."""
        with self.exclusive():
            super()._change(run, position, elsewhere=elsewhere)

"""What feeds a loader over lanes: where the run stands, and the source that rows are taken from ahead of use."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from headrace._ranks import all_gather
from headrace.batch import RowBatch
from headrace.loading.arguments import Arguments
from headrace.loading.base import END
from headrace.loading.collate import default_collate
from headrace.loading.exclusion import adapted, exclusion_of
from headrace.loading.pool import NotReady
from headrace.loading.run_arguments import RunArguments, RunResources
from headrace.loading.run_driver import RunDriver
from headrace.loading.sample_feed import Resources
from headrace.samples.batch import SampleBatch
from headrace.state import State, check_state

from . import run as runs
from .feed import LaneFeed, Made
from .source import LaneResources, LaneSource, Planner
from .workers import LaneWorkers

__all__ = ["LaneDriver"]

_MEANINGLESS = ("sampler", "batch_sampler", "generator", "allow_empty", "items_in_parallel")
_OWN = ("pad", "skips")
"""Arguments of lanes, which follow from others of the loader."""
_MEANINGLESS_PACKED = (*_MEANINGLESS, "collate_fn", "pin_memory")


class LaneDriver(RunDriver[runs.Given, runs.LaneRun, runs.Position]):
    """The position in a run over lanes, moved by whoever iterates."""

    kind = "a dynamic pipeline"

    def __init__(
        self,
        dataset: Any,
        planner: Planner,
        given: runs.Given,
        resources: Resources,
        arguments: Arguments,
    ) -> None:
        super().__init__(dataset, given, arguments)
        self._planner = planner
        self._resources = resources
        self._workers: LaneWorkers | None = None
        self._feed: LaneFeed | None = None
        self._source: LaneSource | None = None
        """The latest, for what it counted."""

    @classmethod
    def of(cls, dataset: Any, planner: Planner, arguments: Arguments, *, packed: bool) -> "LaneDriver":
        """The driver that a loader's arguments describe.

        Args:
            dataset: what is loaded.
            planner: makes the plans of the dataset.
            arguments: of the loader.
            packed: whether rows are lines of arrays.

        Raises:
            TypeError: if a value is of the wrong type.
            ValueError: if one cannot be used, or they do not go together.
        """
        arguments.refuse(cls.kind, _MEANINGLESS_PACKED if packed else _MEANINGLESS)
        given = runs.Given(
            **vars(RunArguments.of(arguments, dataset)),
            pad=arguments.remainder == "pad",
            skips=arguments.on_error == "skip",
        )
        resources = Resources(
            **vars(RunResources.of(arguments, fewest=0)),
            collate=arguments.collate_fn,
            init=arguments.worker_init_fn,
            on_error=arguments.on_error,
            pin_memory=bool(arguments.pin_memory),
            parallel=1,
            worker_type=arguments.worker_type,
        )
        driver = cls(dataset, planner, given, resources, arguments)
        driver.check()
        return driver

    def _start(
        self, world_size: int, rank: int, state: Mapping[str, Any] | None
    ) -> tuple[runs.LaneRun, runs.Position, tuple[str, ...]]:
        return runs.start(self._planner, self.given, world_size, rank, state, strict=self.strict)

    def _on_other_ranks(
        self, run: runs.LaneRun, position: runs.Position, world_size: int, rank: int
    ) -> tuple[runs.LaneRun, runs.Position]:
        return self._start(world_size, rank, run.state(position))[:2]

    # Where the run stands

    @property
    def step(self) -> int:
        """See `Driver`."""
        position = self.here()[1]
        return position.skipped.first_left(position.step)

    @property
    def position(self) -> int:
        """See `Driver`."""
        return self.here()[1].row

    @property
    def epoch(self) -> int:
        """See `Driver`."""
        return self.here()[1].places.epoch()

    @property
    def global_batch_size(self) -> int:
        """See `Driver`."""
        position = self.here()[1]
        return position.steps.batch_of(position.skipped.first_left(position.step))

    def length(self) -> int:
        """See `Driver.length`: known of mixtures that end where rows are counted. Steps passed over do not count.

        Raises:
            TypeError: where only reading tells.
        """
        return self._count(0)

    def left(self, epoch: int) -> int:
        """See `EpochDriver.left` and `length`."""
        del epoch  # one that is known to end has one
        return self._count(self.here()[1].step)

    def _count(self, first: int) -> int:
        run, position = self.here()
        end = run.end(position)
        if end is not None:
            return position.skipped.left(first, end)
        raise TypeError(
            f"len(): how many batches {self.kind} gives only reading tells\n"
            "hint: estimated_len() of the dataset reads a sample; stop after a number of steps"
        )

    # Going elsewhere

    def load(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, strict: bool) -> None:
        """See `Driver.load`."""
        whole = state if isinstance(state, Mapping) else State.merge(state)
        begin = adapted(self.given.exclude, check_state(whole, "dynamic"), strict=strict)
        exclusion, _ = exclusion_of(self.given.exclude, begin.state)
        with self.exclusive():
            epochs = self.given.epochs
            begin = begin.then(self._planner.adapted(begin.state, exclusion, epochs=epochs, strict=strict))
            self._resume(begin, strict=strict)
            # Those of another seed, or another window.
            self._workers = None

    def seek(self, step: int) -> None:
        """See `Driver.seek`."""
        raise TypeError(
            f"seek: rows of {self.kind} are found by making those before them, got step {step}\n"
            "hint: load a state, or skip(range) steps to come"
        )

    def set_global_batch_size(self, rows: int) -> None:
        """See `Driver.set_global_batch_size`."""
        run, position = self.here()
        changed = replace(position, steps=position.steps.with_batch(position.step, rows))
        run.check_batches(changed)
        plan = self._planner.plan(replace(run.plan.setup, steps=changed.steps), run.fixed)
        self._change(replace(run, plan=plan), changed)

    def _change(self, run: runs.LaneRun, position: runs.Position, *, elsewhere: bool = False) -> None:
        """See `RunDriver`; refused while another thread waits for a batch."""
        with self.exclusive():
            super()._change(run, position, elsewhere=elsewhere)

    def _stand(self, run: runs.LaneRun, position: runs.Position) -> runs.Position:
        """See `RunDriver`: steps that are passed over are made, so the run stands before them."""
        self._resolved = (run, position)
        self._moved = True
        return position

    # Telling

    def gather(self, group: Any) -> dict[str, Any]:
        """See `Driver.gather`."""
        run, position = self.here()
        state = run.state(position)
        return State.merge(all_gather(state, group, run.world_size)) if state["part"] else state

    def sources(self, step: int, rank: int | None) -> list[Any]:
        """See `Driver.sources`."""
        del rank
        raise TypeError(
            f"sources: rows of {self.kind} are found by making those before them, got step {step}\n"
            "hint: batch.sources() tells those of a batch"
        )

    def stats(self) -> dict[str, Any]:
        """See `Driver.stats`."""
        run, position = self.here()
        choice = self._resources.choice if self._workers is None else self._workers.choice
        return {
            "step": position.step,
            "epoch": self.epoch,
            "position": position.row,
            "lanes": run.lanes,
            "window": run.plan.window,
            **({} if self._source is None else self._source.stats()),
            **run.plan.progress(position.row, position.places.states),
            "worker_type": choice.worker_type,
            "worker_reason": choice.reason,
        }

    def settings(self) -> dict[str, Any]:
        """See `Driver.settings`."""
        return {name: value for name, value in vars(self.given).items() if value is not None and name not in _OWN}

    # Iterating

    def _next(self, epoch: int) -> Any:
        del epoch  # lanes end a pass at different rows, and run on
        run, position = self.still_here()
        if self._workers is not None:
            self._workers.check_process()
        try:
            feed = self._feed = self._feed or self._begin(run, position)
            made = feed.next(self._resources.timeout)
            if made.batch is END:
                return END
            places = runs.SnapshotPlaces(feed.source, made.after)
            after = self._stand(run, replace(position, step=made.step + 1, places=places))
        except NotReady:
            raise
        except BaseException:
            # Interrupted or failed somewhere between the source and here: the next call begins at this step again.
            self.close()
            raise
        return self._wrapped(run, feed, made, after)

    def _begin(self, run: runs.LaneRun, position: runs.Position) -> LaneFeed:
        resources = self._resources
        # Also where it is still to be found out: each process has chunks of its own.
        in_processes = resources.worker_type != "thread" and resources.workers > 0
        if self._workers is None:
            # Half for chunks, half for what is made of them.
            memory = resources.memory // 2 // (resources.workers if in_processes else 1)
            makers = run.plan.makers(memory=max(1, memory), on_error=resources.on_error)
            self._workers = LaneWorkers(makers, resources, run.plan.setup.seed)
        feed = LaneFeed(
            run,
            position,
            LaneResources(workers=self._workers, makers=0, memory=resources.memory // 2),
            collate=resources.collate or default_collate,
            ahead=resources.prefetch if resources.workers else 0,
            pin_memory=resources.pin_memory,
        )
        self._source = feed.source
        return feed

    def _wrapped(self, run: runs.LaneRun, feed: LaneFeed, made: Made, after: runs.Position) -> Any:
        source = feed.source

        def state() -> dict[str, Any]:
            return run.state(after)

        def epoch() -> int:
            return source.epoch(made.before)

        if run.plan.layout.packed:
            return RowBatch(
                made.batch,
                step=made.step,
                rows=made.rows,
                epoch=epoch,
                sources=lambda: [[] if record is None else record.sources() for record in made.records],
                state=state,
            )
        parts: Any = made.batch
        if type(parts) is not dict:
            return parts
        records = [record for record in made.records if record is not None]
        return SampleBatch(
            cast("dict[str, Any]", parts),
            step=made.step,
            epoch=epoch(),
            numbers=lambda: (made.rows, np.array([record.position for record in records], dtype=np.int64)),
            sources=lambda: [place for record in records for place in record.sources()],
            state=state,
        )

    def close(self) -> None:
        """See `Driver.close`; threads stay for the next iterator, what they have begun is left."""
        # Taken once: a finalizer in another thread may come here too.
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()

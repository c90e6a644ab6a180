"""What feeds a loader over packed tokens: where the run stands, and the engine that prepares what comes next."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex

from headrace import _core
from headrace._ranks import default_workers, resolve_rank
from headrace._units import as_int, parse_bytes
from headrace.batch import Batch, Source
from headrace.dataset import PackedDataset
from headrace.state import MAX_LANES, State, check_state

from . import packed_run as runs
from .arguments import UNSET, Arguments, optional_int
from .base import END, EpochDriver
from .schedule import check_schedule, pass_over

__all__ = ["PackedDriver", "Resources"]

_PREFETCH = 2
"""Batches that are ready ahead of use by default."""

_MEANINGLESS = (
    *("sampler", "batch_sampler", "collate_fn", "worker_init_fn", "pin_memory", "generator"),
    *("worker_type", "items_in_parallel", "allow_empty", "on_error"),
)


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What an engine may use."""

    workers: int
    memory: int
    prefetch: int
    timeout: float | None


class PackedDriver(EpochDriver):
    """The position in a run, moved by whoever iterates."""

    kind = "a packed dataset"

    def __init__(
        self,
        dataset: PackedDataset,
        given: runs.Given,
        resources: Resources,
        rank: SupportsIndex | None,
        world_size: SupportsIndex | None,
    ) -> None:
        super().__init__()
        self.dataset = dataset
        self.given = given
        self.resources = resources
        self.spill = str(dataset.cache / "spill")
        self._ranks = (rank, world_size)
        self._loaded: dict[str, Any] | None = None
        self._resolved: tuple[runs.Run, runs.Position] | None = None
        self._moved = False
        """Whether the run stands elsewhere than `given` and the loaded state say."""
        self._feed: _Feed | None = None
        self._stop: tuple[runs.Run, Any, int, int] | None = None
        """The run, its steps, an epoch, and the step after it."""
        self._counts: dict[str, int] = dict.fromkeys(
            ("windows", "windows_spilled", "window_bytes", "chunk_bytes", "preview_bytes"), 0
        )

    @classmethod
    def of(cls, dataset: PackedDataset, arguments: Arguments) -> "PackedDriver":
        """The driver that a loader's arguments describe.

        Raises:
            ValueError: if one cannot be used, or they do not go together.
        """
        arguments.refuse(cls.kind, _MEANINGLESS)
        batch_size = None if arguments.batch_size is UNSET else arguments.batch_size
        schedule = arguments.global_batch_size
        given = runs.Given(
            seed=optional_int(arguments.seed, "seed", 0, 2**64 - 1),
            shuffle=arguments.shuffle,
            lanes=optional_int(arguments.lanes, "lanes", 1, MAX_LANES),
            window=optional_int(arguments.window, "window", 1, 2**32 - 1),
            batch_size=optional_int(batch_size, "batch_size", 1, 2**32 - 1),
            schedule=None if schedule is None else check_schedule(schedule),
            epochs=optional_int(arguments.epochs, "epochs", 1, 2**32 - 1),
            pad=arguments.remainder == "pad",
        )
        workers, prefetch = arguments.num_workers, arguments.prefetch_factor
        resources = Resources(
            workers=default_workers()
            if workers is None
            else max(1, as_int(workers, "num_workers", least=0, most=1024)),
            memory=parse_bytes(arguments.memory, "memory"),
            prefetch=_PREFETCH if prefetch is None else as_int(prefetch, "prefetch_factor", least=1, most=1024),
            timeout=arguments.seconds,
        )
        resolve_rank(arguments.rank, arguments.world_size)
        driver = cls(dataset, given, resources, arguments.rank, arguments.world_size)
        if batch_size is not None or schedule is not None:
            # Arguments that do not go together are refused now rather than at the first batch.
            driver.here()
        return driver

    def here(self) -> tuple[runs.Run, runs.Position]:
        """The run and where it stands; the rank is looked up again, for a process group may have come or gone since."""
        rank, world_size = resolve_rank(*self._ranks)
        if self._resolved is None or (not self._moved and (rank, world_size) != self._resolved[0].ranks):
            # Nothing was done yet: as if the loader had been made now.
            self._resolved = runs.start(self.dataset, self.given, world_size, rank, self._loaded)
        elif (rank, world_size) != self._resolved[0].ranks:
            self.iteration += 1
            self.close()
            self._resolved = runs.on_other_ranks(self.dataset, self.given, *self._resolved, world_size, rank)
        return self._resolved

    # Where the run stands

    @property
    def rank(self) -> int:
        """See `Driver`."""
        return self.here()[0].rank

    @property
    def world_size(self) -> int:
        """See `Driver`."""
        return self.here()[0].world_size

    @property
    def step(self) -> int:
        """See `Driver`."""
        return self.here()[1].step

    @property
    def position(self) -> int:
        """See `Driver`."""
        position = self.here()[1]
        return position.steps.row_of(position.step)

    @property
    def epoch(self) -> int:
        """See `Driver`."""
        run, position = self.here()
        return position.steps.epoch_of(run.core, position.step)

    @property
    def global_batch_size(self) -> int:
        """See `Driver`."""
        position = self.here()[1]
        return position.steps.batch_of(position.step)

    def length(self) -> int:
        """See `Driver.length`; what is passed over by `skip` does not count."""
        run, position = self.here()
        epoch = self.epoch
        if self.given.epochs is not None and epoch >= self.given.epochs:
            epoch = self.given.epochs - 1
        first, last = (position.steps.first_step(run.core, number) for number in (epoch, epoch + 1))
        return position.count(first, last)

    def left(self, epoch: int) -> int:
        """See `EpochDriver.left`."""
        run, position = self.here()
        return position.count(position.step, position.steps.first_step(run.core, epoch + 1))

    # Going elsewhere

    def load(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, strict: bool) -> None:
        """See `Driver.load`."""
        checked = check_state(state, "counted") if isinstance(state, Mapping) else State.merge(state)
        runs.check_same_data(self.dataset, checked, strict=strict)
        rank, world_size = resolve_rank(*self._ranks)
        resolved = runs.start(self.dataset, self.given, world_size, rank, checked)
        self._resolved = resolved
        self._loaded, self._moved = checked, False
        self.iteration += 1
        self.close()

    def seek(self, step: int) -> None:
        """See `Driver.seek`."""
        run, position = self.here()
        end = position.steps.end(run.core)
        if end is not None and step > end:
            raise ValueError(f"step must be in 0..{end}, the end of the run, got {step}")
        run.core.check_row(position.steps.row_of(step))
        self.iteration += 1
        self._change(position.at(step))

    def skip(self, steps: range) -> None:
        """See `Driver.skip`."""
        position = self.here()[1]
        self._change(replace(position, skipped=pass_over(position.skipped, position.step, steps)))

    def set_global_batch_size(self, rows: int) -> None:
        """See `Driver.set_global_batch_size`."""
        run, position = self.here()
        runs.check_divides(rows, run.world_size)
        run.core.check_enough(rows)
        self._change(replace(position, steps=position.steps.with_batch(position.step, rows)))

    # Telling

    def state(self) -> dict[str, Any]:
        """See `Driver.state`."""
        run, position = self.here()
        runs.keep_file_table(self.dataset, run)
        return run.state(position)

    def sources(self, step: int, rank: int | None) -> list[Any]:
        """See `Driver.sources`."""
        run, position = self.here()
        end = position.steps.end(run.core)
        if end is not None and step >= end:
            raise ValueError(f"step must be in range({end}), the steps of the run, got {step}")
        run.core.check_row(position.steps.row_of(step))
        rows = _core.sources(
            run.core,
            position.steps,
            world=run.world_size,
            rank=run.rank if rank is None else rank,
            step=step,
            workers=self.resources.workers,
            memory=self.resources.memory,
            spill=self.spill,
        )
        return [[Source(*part) for part in row] for row in rows]

    def stats(self) -> dict[str, Any]:
        """See `Driver.stats`."""
        run, position = self.here()
        steps, end = position.steps, position.steps.end(run.core)
        cuts = run.core.windows * (run.lanes - 1)
        stats: dict[str, Any] = {
            "step": position.step,
            "epoch": self.epoch,
            "position": self.position,
            "tokens": self.position * self.dataset.packing.seq_len,
            "lanes": run.lanes,
            "window": run.window,
            "documents_cut": min(1.0, cuts / max(1, self.dataset.rows)),
        }
        if end is not None:
            stats |= {"steps": end, "remainder_tokens": run.core.left_out(steps.row_of(end))}
        counts = dict(self._counts)
        if self._feed is not None:
            _add(counts, self._feed.core.counters())
        requests, read, retries = self.dataset.core.traffic()
        return stats | counts | {"bytes_read": read, "requests": requests, "retries": retries}

    def settings(self) -> dict[str, Any]:
        """See `Driver.settings`."""
        return {name: value for name, value in vars(self.given).items() if value is not None and name != "pad"}

    # Iterating

    def next(self, epoch: int) -> Any:
        """See `EpochDriver.next`."""
        with self.exclusive():
            return self._next(epoch)

    def _next(self, epoch: int) -> Any:
        run, position = self.here()
        # The same for all batches of an epoch, unless the batch size changes or the run becomes another one.
        if self._stop is None or self._stop[:3] != (run, position.steps, epoch):
            self._stop = (run, position.steps, epoch, position.steps.first_step(run.core, epoch + 1))
        if position.step >= self._stop[3]:
            return END
        try:
            feed = self._feed = self._feed or _Feed(self, run, position)
            core = feed.next(position.step, self.resources.timeout)
            after = self._stand(run, position.at(position.step + 1))
        except TimeoutError:
            raise
        except BaseException:
            # Interrupted or failed somewhere between the engine and here: the next call begins at this step again.
            self.close()
            raise
        return Batch(core, {"tokens": self.dataset.packing.name}, _Snapshot(self.dataset, run, after))

    def close(self) -> None:
        """See `Driver.close`."""
        if self._feed is not None:
            feed, self._feed = self._feed, None
            _add(self._counts, feed.core.counters())
            feed.core.close()

    def _change(self, position: runs.Position) -> None:
        """Changes what comes next; what was prepared is made anew."""
        self._stand(self.here()[0], position)
        self.close()

    def _stand(self, run: runs.Run, position: runs.Position) -> runs.Position:
        """Notes where the run stands: at a step that is not passed over."""
        if position.skipped:
            position = position.at(position.passed_over(position.step))
        self._resolved = (run, position)
        self._moved = True
        return position


def _add(counts: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        # The largest window is no sum.
        counts[name] = max(counts[name], count) if name == "window_bytes" else counts[name] + count


class _Snapshot:
    """Makes the state after a batch when it is asked for."""

    def __init__(self, dataset: PackedDataset, run: runs.Run, position: runs.Position) -> None:
        self._saved = (dataset, run, position)

    def __call__(self) -> dict[str, Any]:
        dataset, run, position = self._saved
        runs.keep_file_table(dataset, run)
        return run.state(position)


class _Feed:
    """An engine, and the process that it lives in."""

    def __init__(self, driver: PackedDriver, run: runs.Run, position: runs.Position) -> None:
        self._process = os.getpid()
        self.core = _core.Engine(
            run.core,
            position.steps,
            world=run.world_size,
            rank=run.rank,
            start=position.step,
            skip=list(position.skipped),
            workers=driver.resources.workers,
            memory=driver.resources.memory,
            prefetch=driver.resources.prefetch,
            spill=driver.spill,
        )

    def next(self, step: int, timeout: float | None) -> _core.Batch:
        """The engine's next batch, which must be that of `step`."""
        if os.getpid() != self._process:
            raise RuntimeError(
                "this loader was started in another process: its threads did not survive the fork\n"
                "hint: make the loader in the process that uses it, or start processes with the 'spawn' method"
            )
        batch = self.core.next(timeout)
        if batch is None or batch.step != step:
            found = "nothing" if batch is None else f"step {batch.step}"
            raise RuntimeError(f"expected the batch of step {step}, the engine gave {found}; please report it")
        return batch

"""What feeds a loader over packed tokens: where the run stands, and the engine that prepares what comes next."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace import _core
from headrace._traffic import Traffic
from headrace.batch import Batch, Source
from headrace.dataset import PackedDataset
from headrace.state import State, check_state

from . import packed_run as runs
from .arguments import Arguments
from .base import END
from .run_arguments import RunArguments, RunResources
from .run_driver import RunDriver

__all__ = ["PackedDriver"]

_MEANINGLESS = (
    *("sampler", "batch_sampler", "collate_fn", "worker_init_fn", "pin_memory", "generator"),
    *("worker_type", "items_in_parallel", "allow_empty", "on_error"),
)


class PackedDriver(RunDriver[runs.Given, runs.Run, runs.Position]):
    """The position in a run over packed tokens, moved by whoever iterates."""

    kind = "a packed dataset"

    def __init__(
        self, dataset: PackedDataset, given: runs.Given, resources: RunResources, arguments: Arguments
    ) -> None:
        super().__init__(dataset, given, arguments)
        self.resources = resources
        self.spill = str(dataset.cache / "spill")
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
            TypeError: if a value is of the wrong type.
            ValueError: if one cannot be used, or they do not go together.
        """
        arguments.refuse(cls.kind, _MEANINGLESS)
        given = runs.Given(**vars(RunArguments.of(arguments)), pad=arguments.remainder == "pad")
        driver = cls(dataset, given, RunResources.of(arguments, fewest=1), arguments)
        driver.check()
        return driver

    def _start(self, world_size: int, rank: int, state: Mapping[str, Any] | None) -> tuple[runs.Run, runs.Position]:
        return runs.start(self.dataset, self.given, world_size, rank, state)

    def _on_other_ranks(
        self, run: runs.Run, position: runs.Position, world_size: int, rank: int
    ) -> tuple[runs.Run, runs.Position]:
        return runs.on_other_ranks(self.dataset, self.given, run, position, world_size, rank)

    # Where the run stands

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
        return position.skipped.left(first, last)

    def left(self, epoch: int) -> int:
        """See `EpochDriver.left`."""
        run, position = self.here()
        return position.skipped.left(position.step, position.steps.first_step(run.core, epoch + 1))

    # Going elsewhere

    def load(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, strict: bool) -> None:
        """See `Driver.load`."""
        checked = check_state(state, "counted") if isinstance(state, Mapping) else State.merge(state)
        runs.check_same_data(self.dataset, checked, strict=strict)
        self._resume(checked)

    def seek(self, step: int) -> None:
        """See `Driver.seek`."""
        run, position = self.here()
        end = position.steps.end(run.core)
        if end is not None and step > end:
            raise ValueError(f"step must be in 0..{end}, the end of the run, got {step}")
        run.core.check_row(position.steps.row_of(step))
        self._change(run, position.at(step), elsewhere=True)

    def set_global_batch_size(self, rows: int) -> None:
        """See `Driver.set_global_batch_size`."""
        run, position = self.here()
        runs.check_divides(rows, run.world_size)
        run.core.check_enough(rows)
        self._change(run, replace(position, steps=position.steps.with_batch(position.step, rows)))

    # Telling

    def _state_of(self, run: runs.Run, position: runs.Position) -> dict[str, Any]:
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
        feed = self._feed
        if feed is not None:
            _add(counts, feed.core.counters())
        return stats | counts | Traffic(*self.dataset.core.traffic()).stats()

    def settings(self) -> dict[str, Any]:
        """See `Driver.settings`."""
        return {name: value for name, value in vars(self.given).items() if value is not None and name != "pad"}

    # Iterating

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
        # Taken once: a finalizer in another thread may come here too.
        feed, self._feed = self._feed, None
        if feed is not None:
            _add(self._counts, feed.core.counters())
            feed.core.close()


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

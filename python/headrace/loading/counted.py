"""What the drivers over packed tokens have in common: the engine that prepares what comes next, and its batches."""

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from headrace import _core
from headrace._changes import told
from headrace.batch import Batch

from .arguments import Arguments
from .base import END
from .packed_exclusion import Kept, Masking
from .run_arguments import RunArguments, RunResources
from .run_driver import RunDriver
from .schedule import Skipped

__all__ = ["MEANINGLESS", "CountedDriver", "CountedRun", "Position"]

MEANINGLESS: Final = (
    *("sampler", "batch_sampler", "collate_fn", "worker_init_fn", "pin_memory", "generator"),
    *("worker_type", "items_in_parallel", "allow_empty", "on_error"),
)
"""Arguments of a loader that mean nothing for packed tokens."""


@dataclass(frozen=True)
class Position:
    """A place in a run: the next step, and what was decided about steps."""

    step: int
    steps: _core.Steps
    skipped: Skipped

    @property
    def row(self) -> int:
        """The first row of the next step."""
        return self.steps.row_of(self.step)

    def at(self, step: int) -> "Position":
        """Another step, all else equal."""
        return Position(step, self.steps, self.skipped)

    def batches_to_come(self) -> list[int]:
        """The batch size of the next step, and those that follow it; of past ones other ranks need not know."""
        coming = [batch for step, _, batch in self.steps.segments if step > self.step]
        return [self.steps.batch_of(self.step), *coming]

    def state(self, changes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What a state says of it and of the changes on the way, as plain JSON types."""
        history = [list(segment) for segment in self.steps.segments if segment[0] <= self.step]
        return {
            "step": self.step,
            "position": self.row,
            "history": history,
            "skipped": [list(steps) for steps in self.skipped],
            "changes": told(changes, history),
        }


class CountedRun(Protocol):
    """A run of which any row can be the next."""

    @property
    def ranks(self) -> tuple[int, int]:
        """The rank, and the number of ranks."""
        ...

    def at(self, position: Position, step: int) -> Position:
        """Another step of the run."""
        ...

    def state(self, position: Position) -> dict[str, Any]:
        """The state at a position, as plain JSON types."""
        ...

    def end(self, position: Position) -> int | None:
        """Steps of the run; None for one without end."""
        ...

    def stop(self, position: Position, epoch: int) -> int | None:
        """The step after the last one of an epoch; None for one without end."""
        ...

    def check_row(self, row: int) -> None:
        """Raises ValueError if a row is beyond counting."""
        ...

    def engine(self, position: Position, resources: RunResources, spill: str) -> _core.Engine:
        """What prepares the batches from a position on."""
        ...

    @property
    def masking(self) -> Masking | None:
        """How batches are masked."""
        ...


_Given = TypeVar("_Given", bound=RunArguments)
_Run = TypeVar("_Run", bound=CountedRun)


class CountedDriver(RunDriver[_Given, _Run, Position]):
    """The position in a run over packed tokens, moved by whoever iterates."""

    def __init__(self, dataset: Any, given: _Given, resources: RunResources, arguments: Arguments, spill: str) -> None:
        super().__init__(dataset, given, arguments)
        self.resources = resources
        self.spill = spill
        self.kept = Kept(given.exclude)
        self._feed: _Feed | None = None
        self._stop: tuple[_Run, Any, int, int | None] | None = None
        """The run, its steps, an epoch, and the step after it."""
        self._counts: dict[str, int] = dict.fromkeys(
            ("windows", "windows_spilled", "window_bytes", "chunk_bytes", "preview_bytes"), 0
        )

    @abstractmethod
    def _snapshot(self, run: _Run, position: Position) -> Callable[[], dict[str, Any]]:
        """What makes the state at a position when it is asked for; it must not keep this driver alive."""

    @abstractmethod
    def _names(self) -> Mapping[str, str]:
        """What batches call the core's arrays, if not as it does."""

    # Where the run stands

    @property
    def position(self) -> int:
        """See `Driver`."""
        return self.here()[1].row

    @property
    def global_batch_size(self) -> int:
        """See `Driver`."""
        position = self.here()[1]
        return position.steps.batch_of(position.step)

    # Going elsewhere

    def seek(self, step: int) -> None:
        """See `Driver.seek`."""
        run, position = self.here()
        end = run.end(position)
        if end is not None and step > end:
            raise ValueError(f"step must be in 0..{end}, the end of the run, got {step}")
        run.check_row(position.steps.row_of(step))
        self._change(run, position.at(step), elsewhere=True)

    def _check_skip(self, run: _Run, position: Position, stop: int) -> None:
        end = run.end(position)
        run.check_row(position.steps.row_of(stop if end is None else min(stop, end)))

    # Telling

    def _state_of(self, run: _Run, position: Position) -> dict[str, Any]:
        return self._snapshot(run, position)()

    def settings(self) -> dict[str, Any]:
        """See `Driver.settings`."""
        return {name: value for name, value in vars(self.given).items() if value is not None and name != "pad"}

    def _place_of(self, step: int) -> tuple[_Run, Position]:
        """The run, and its place before a step that it must have."""
        run, position = self.here()
        end = run.end(position)
        if end is not None and step >= end:
            raise ValueError(f"step must be in range({end}), the steps of the run, got {step}")
        run.check_row(position.steps.row_of(step))
        return run, position

    def _engine_counts(self) -> dict[str, int]:
        """What the engines did so far."""
        counts = dict(self._counts)
        feed = self._feed
        if feed is not None:
            _add(counts, feed.core.counters())
        return counts

    # Iterating

    def _next(self, epoch: int) -> Any:
        run, position = self.still_here()
        # The same for all batches of an epoch, unless the batch size changes or the run becomes another one.
        if self._stop is None or self._stop[:3] != (run, position.steps, epoch):
            self._stop = (run, position.steps, epoch, run.stop(position, epoch))
        stop = self._stop[3]
        if stop is not None and position.step >= stop:
            return END
        try:
            feed = self._feed = self._feed or _Feed(run.engine(position, self.resources, self.spill))
            core = feed.next(position.step, self.resources.timeout)
            if run.masking is not None:
                core = run.masking(core, position.steps.row_of(position.step + 1))
            after = self._stand(run, position.at(position.step + 1))
        except TimeoutError:
            raise
        except BaseException:
            # Interrupted or failed somewhere between the engine and here: the next call begins at this step again.
            self.close()
            raise
        return self._batch(run, Batch(core, self._names(), self._snapshot(run, after)))

    def _batch(self, run: _Run, batch: Batch) -> Batch:
        """A batch as it is given."""
        del run
        return batch

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


class _Feed:
    """An engine, and the process that it lives in."""

    def __init__(self, core: _core.Engine) -> None:
        self._process = os.getpid()
        self.core = core

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

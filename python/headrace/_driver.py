"""What drives a loader: where the run stands, and the engine that prepares what comes next.

A driver is not for users; `DataLoader` is its facade and adds documentation and checks of arguments.
"""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, SupportsIndex

from . import _core, _run
from ._ranks import resolve_rank
from .batch import Batch
from .dataset import PackedDataset


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What an engine may use."""

    workers: int
    memory: int
    prefetch: int
    timeout: float | None


class Driver:
    """The position in a run, moved by whoever iterates."""

    def __init__(
        self,
        dataset: PackedDataset,
        given: _run.Given,
        resources: Resources,
        rank: SupportsIndex | None,
        world_size: SupportsIndex | None,
    ) -> None:
        self.dataset = dataset
        self.given = given
        self.resources = resources
        self.spill = str(dataset.cache / "spill")
        self.iteration = 0
        """Counts up whenever an iterator that is alive must not go on."""
        self._ranks = (rank, world_size)
        self._loaded: dict[str, Any] | None = None
        self._resolved: tuple[_run.Run, _run.Position] | None = None
        self._moved = False
        """Whether the run stands elsewhere than `given` and the loaded state say."""
        self._feed: _Feed | None = None
        self._stop: tuple[_run.Run, Any, int, int] | None = None
        """The run, its steps, an epoch, and the step after it."""
        # Reentrant: an interrupt between taking it and the next line must not lock this thread out.
        self._busy = threading.RLock()
        self._counts: dict[str, int] = dict.fromkeys(
            ("windows", "windows_spilled", "window_bytes", "chunk_bytes", "preview_bytes"), 0
        )

    def here(self) -> tuple[_run.Run, _run.Position]:
        """The run and where it stands; the rank is looked up again, for a process group may have come or gone since."""
        rank, world_size = resolve_rank(*self._ranks)
        if self._resolved is None or (not self._moved and (rank, world_size) != self._resolved[0].ranks):
            # Nothing was done yet: as if the loader had been made now.
            self._resolved = _run.start(self.dataset, self.given, world_size, rank, self._loaded)
        elif (rank, world_size) != self._resolved[0].ranks:
            self.iteration += 1
            self.close()
            self._resolved = _run.on_other_ranks(self.dataset, self.given, *self._resolved, world_size, rank)
        return self._resolved

    def load(self, state: dict[str, Any]) -> None:
        """Goes on from a state, which was checked against the data; on an error everything is as it was."""
        rank, world_size = resolve_rank(*self._ranks)
        self._resolved = _run.start(self.dataset, self.given, world_size, rank, state)
        self._loaded, self._moved = state, False
        self.iteration += 1
        self.close()

    def move(self, position: _run.Position) -> None:
        """Goes elsewhere: iterators that are alive end."""
        self.iteration += 1
        self.change(position)

    def change(self, position: _run.Position) -> None:
        """Changes what comes next; what was prepared is made anew."""
        self._stand(self.here()[0], position)
        self.close()

    def epoch(self) -> int:
        """The epoch of the next step."""
        run, position = self.here()
        return position.steps.epoch_of(run.core, position.step)

    def first_step(self, epoch: int) -> int:
        """The first step of an epoch, as the batch sizes are now."""
        run, position = self.here()
        return position.steps.first_step(run.core, epoch)

    def next(self, epoch: int) -> Batch | None:
        """The next batch, if its step comes before the end of `epoch`."""
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("another thread is waiting for this loader's next batch")
        try:
            return self._next(epoch)
        finally:
            self._busy.release()

    def _next(self, epoch: int) -> Batch | None:
        run, position = self.here()
        # The same for all batches of an epoch, unless the batch size changes or the run becomes another one.
        if self._stop is None or self._stop[:3] != (run, position.steps, epoch):
            self._stop = (run, position.steps, epoch, position.steps.first_step(run.core, epoch + 1))
        if position.step >= self._stop[3]:
            return None
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

    def counters(self) -> dict[str, int]:
        """What the engines of this loader did so far, together."""
        counts = dict(self._counts)
        if self._feed is not None:
            _add(counts, self._feed.core.counters())
        return counts

    def close(self) -> None:
        """Ends the engine's threads; the position stays."""
        if self._feed is not None:
            feed, self._feed = self._feed, None
            _add(self._counts, feed.core.counters())
            feed.core.close()

    def _stand(self, run: _run.Run, position: _run.Position) -> _run.Position:
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

    def __init__(self, dataset: PackedDataset, run: _run.Run, position: _run.Position) -> None:
        self._saved = (dataset, run, position)

    def __call__(self) -> dict[str, Any]:
        dataset, run, position = self._saved
        _run.keep_file_table(dataset, run)
        return run.state(position)


class _Feed:
    """An engine, and the process that it lives in."""

    def __init__(self, driver: Driver, run: _run.Run, position: _run.Position) -> None:
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

"""What drives a loader: where the run stands, and the engine that prepares what comes next.

A driver is not for users; `DataLoader` is its facade and adds documentation and checks of arguments.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
        self._feed: _Feed | None = None

    def here(self) -> tuple[_run.Run, _run.Position]:
        """The run and where it stands; the rank is looked up again, for a process group may have come up since."""
        ranks = resolve_rank(*self._ranks)
        if self._resolved is None or (self._resolved[0].rank, self._resolved[0].world_size) != ranks:
            self._resolved = self._resolve(self._loaded)
        return self._resolved

    def load(self, state: dict[str, Any]) -> None:
        """Goes on from a state, which was checked against the data; on an error everything is as it was."""
        self._resolved = self._resolve(state)
        self._loaded = state
        self.iteration += 1
        self.close()

    def move(self, position: _run.Position) -> None:
        """Goes elsewhere: iterators that are alive end."""
        self.iteration += 1
        self.change(position)

    def change(self, position: _run.Position) -> None:
        """Changes what comes next; what was prepared is made anew."""
        self._resolved = (self.here()[0], position)
        self.close()

    def epoch(self) -> int:
        """The epoch of the next step that is given."""
        run, position = self.here()
        return position.steps.epoch_of(run.core, position.passed_over(position.step))

    def first_step(self, epoch: int) -> int:
        """The first step of an epoch, as the batch sizes are now."""
        run, position = self.here()
        return position.steps.first_step(run.core, epoch)

    def next(self, stop: int) -> Batch | None:
        """The next batch, if its step comes before `stop`."""
        run, position = self.here()
        step = position.passed_over(position.step)
        if step >= stop:
            self._resolved = (run, replace(position, step=step))
            return None
        if self._feed is None or self._feed.step != step:
            self.close()
            self._feed = _Feed(self, run, replace(position, step=step))
        core = self._feed.next(self.resources.timeout)
        after = replace(position, step=step + 1)
        self._feed.step = after.passed_over(after.step)
        self._resolved = (run, after)
        return Batch(core, {"tokens": self.dataset.packing.name}, _Snapshot(self.dataset, run, after))

    def counters(self) -> dict[str, int]:
        """What the engine did since it was started, if there is one."""
        return self._feed.core.counters() if self._feed else {}

    def close(self) -> None:
        """Ends the engine's threads; the position stays."""
        if self._feed is not None:
            self._feed.core.close()
            self._feed = None

    def _resolve(self, state: Mapping[str, Any] | None) -> tuple[_run.Run, _run.Position]:
        rank, world_size = resolve_rank(*self._ranks)
        return _run.start(self.dataset, self.given, world_size, rank, state)


class _Snapshot:
    """Makes the state after a batch when it is asked for."""

    def __init__(self, dataset: PackedDataset, run: _run.Run, position: _run.Position) -> None:
        self._saved = (dataset, run, position)

    def __call__(self) -> dict[str, Any]:
        dataset, run, position = self._saved
        _run.keep_file_table(dataset)
        return run.state(position)


class _Feed:
    """An engine, the step of the batch that it gives next, and the process that it lives in."""

    def __init__(self, driver: Driver, run: _run.Run, position: _run.Position) -> None:
        self.step = position.step
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

    def next(self, timeout: float | None) -> _core.Batch:
        """The engine's next batch, which must be that of `step`."""
        if os.getpid() != self._process:
            raise RuntimeError(
                "this loader was started in another process: its threads did not survive the fork\n"
                "hint: make the loader in the process that uses it, or start processes with the 'spawn' method"
            )
        batch = self.core.next(timeout)
        if batch is None or batch.step != self.step:
            found = "nothing" if batch is None else f"step {batch.step}"
            raise RuntimeError(f"expected the batch of step {self.step}, the engine gave {found}; please report it")
        return batch

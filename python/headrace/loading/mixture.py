"""What feeds a loader over a mixture of packed datasets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from headrace import _core
from headrace._traffic import Traffic
from headrace.batch import Batch, Source
from headrace.mixing import MixDataset
from headrace.state import State, check_state

from . import mixture_run as runs
from . import mixture_state as states
from .arguments import Arguments
from .counted import MEANINGLESS, CountedDriver, Position
from .exclusion import adapted
from .packed_run import keep_file_table
from .run_arguments import RunArguments, RunResources
from .schedule import check_divides

__all__ = ["MixtureDriver"]


class MixtureDriver(CountedDriver[RunArguments, runs.Run]):
    """The position in a run over a mixture, moved by whoever iterates. It has one epoch, mostly without end."""

    kind = "a mixture"

    @classmethod
    def of(cls, dataset: MixDataset, arguments: Arguments) -> "MixtureDriver":
        """The driver that a loader's arguments describe.

        Raises:
            TypeError: if a value is of the wrong type.
            ValueError: if one cannot be used, or they do not go together.
        """
        arguments.refuse(cls.kind, MEANINGLESS)
        if arguments.epochs is not None:
            raise ValueError(
                f"epochs has no meaning for a mixture, whose sources have each their own, got {arguments.epochs}\n"
                'hint: mix(..., max_epochs={name: passes}), or on_exhausted="stop" or "drop"; or end after some steps'
            )
        if arguments.remainder == "pad":
            raise ValueError('remainder must be "drop" for a mixture, got "pad"')
        given, resources = RunArguments.of(arguments, dataset), RunResources.of(arguments, fewest=1)
        cache = next(iter(dataset.packed.values())).cache
        driver = cls(dataset, given, resources, arguments, str(cache / "spill"))
        driver.check()
        return driver

    def _start(
        self, world_size: int, rank: int, state: Mapping[str, Any] | None
    ) -> tuple[runs.Run, Position, tuple[str, ...]]:
        return *runs.start(self.kept.of_mixture(self.dataset, state), self.given, world_size, rank, state), ()

    def _on_other_ranks(
        self, run: runs.Run, position: Position, world_size: int, rank: int
    ) -> tuple[runs.Run, Position]:
        return runs.on_other_ranks(self.given, run, position, world_size, rank)

    def _snapshot(self, run: runs.Run, position: Position) -> Callable[[], dict[str, Any]]:
        return partial(_state, run, position)

    def _names(self) -> Mapping[str, str]:
        return {"tokens": next(iter(self.dataset.packed.values())).packing.name}

    def _batch(self, run: runs.Run, batch: Batch) -> Batch:
        """A batch whose sources have the numbers that they have in the dataset.

        In the run they are numbered as they came to it. Of one that was taken out, whose rows its state may still
        lead to, the number lies behind those of `names`.
        """
        names = self.dataset.names
        kept = [part.name for part in run.parts]
        if tuple(kept) != tuple(names):
            gone = [name for name in kept if name not in names]
            numbers = {name: number for number, name in enumerate([*names, *gone])}
            sources = batch["source"]
            sources[:] = np.array([numbers[name] for name in kept], dtype=np.int32)[sources]
        return batch

    # Where the run stands

    @property
    def epoch(self) -> int:
        """See `Driver`: 0, and 1 once a mixture that ends has ended."""
        run, position = self.here()
        end = run.end(position)
        return int(end is not None and position.step >= end)

    def length(self) -> int:
        """See `Driver.length`; what is passed over by `skip` does not count."""
        return self._count(0)

    def left(self, epoch: int) -> int:
        """See `EpochDriver.left`."""
        return self._count(self.here()[1].step) if epoch == 0 else 0

    def _count(self, first: int) -> int:
        run, position = self.here()
        end = run.end(position)
        if end is None:
            raise TypeError(
                'a mixture whose sources repeat has no length\nhint: on_exhausted="stop" or "drop" gives it an end'
            )
        return position.skipped.left(first, end)

    # Going elsewhere

    def load(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, strict: bool) -> None:
        """See `Driver.load`."""
        checked = check_state(state if isinstance(state, Mapping) else State.merge(state), "mixture")
        begin = adapted(self.given.exclude, checked, strict=strict)
        dataset = self.kept.of_mixture(self.dataset, begin.state)
        begin = begin.then(states.adapted(dataset, begin.state, strict=strict))
        self._resume(begin.then(runs.with_added(dataset, self.given, begin.state)))

    def seek(self, step: int) -> None:
        """See `Driver.seek`."""
        self.here()[0].lengths.check_seek(step)
        super().seek(step)

    def set_global_batch_size(self, rows: int) -> None:
        """See `Driver.set_global_batch_size`."""
        run, position = self.here()
        check_divides(rows, run.world_size)
        position = replace(position, steps=position.steps.with_batch(position.step, rows))
        self._change(runs.with_steps(run, position), position)

    # Telling

    def sources(self, step: int, rank: int | None) -> list[Any]:
        """See `Driver.sources`."""
        run, position = self._place_of(step)
        rows = _core.mixed_sources(
            run.core,
            [part.core for part in run.parts],
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
        weights = run.core.weights(position.row // run.lanes)
        sources = {
            part.name: given
            | {"weight": weight / sum(weights), "lanes": part.lanes, "window": part.window, "documents_cut": part.cut()}
            for part, given, weight in zip(run.parts, run.progress(position.row), weights, strict=True)
        }
        stats: dict[str, Any] = {
            "step": position.step,
            "epoch": self.epoch,
            "position": position.row,
            "tokens": run.lengths.tokens(position.row),
            "lanes": run.lanes,
            "sources": sources,
        }
        end = run.end(position)
        if end is not None:
            stats["steps"] = end
        # Sources may be of the same files.
        indexes = {id(part.dataset.core): part.dataset.core for part in run.parts if part.dataset is not None}
        traffic = Traffic.total(Traffic(*core.traffic()) for core in indexes.values())
        return stats | self._engine_counts() | traffic.stats()


def _state(run: runs.Run, position: Position) -> dict[str, Any]:
    for part in run.parts:
        if part.dataset is not None:
            keep_file_table(part.dataset, part.fixed["identity"])
    return run.state(position)

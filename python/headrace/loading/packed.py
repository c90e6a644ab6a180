"""What feeds a loader over packed tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from headrace import _core
from headrace._traffic import Traffic
from headrace.batch import Source
from headrace.dataset import PackedDataset
from headrace.state import State, check_state

from . import packed_run as runs
from .arguments import Arguments
from .counted import MEANINGLESS, CountedDriver, Position
from .exclusion import adapted
from .run_arguments import RunArguments, RunResources
from .schedule import check_divides

__all__ = ["PackedDriver"]


class PackedDriver(CountedDriver[runs.Given, runs.Run]):
    """The position in a run over packed tokens, moved by whoever iterates."""

    kind = "a packed dataset"

    @classmethod
    def of(cls, dataset: PackedDataset, arguments: Arguments) -> "PackedDriver":
        """The driver that a loader's arguments describe.

        Raises:
            TypeError: if a value is of the wrong type.
            ValueError: if one cannot be used, or they do not go together.
        """
        arguments.refuse(cls.kind, MEANINGLESS)
        given = runs.Given(**vars(RunArguments.of(arguments, dataset)), pad=arguments.remainder == "pad")
        resources = RunResources.of(arguments, fewest=1)
        driver = cls(dataset, given, resources, arguments, str(dataset.cache / "spill"))
        driver.check()
        return driver

    def _start(
        self, world_size: int, rank: int, state: Mapping[str, Any] | None
    ) -> tuple[runs.Run, Position, tuple[str, ...]]:
        return *runs.start(self.kept.of(self.dataset, state), self.given, world_size, rank, state), ()

    def _on_other_ranks(
        self, run: runs.Run, position: Position, world_size: int, rank: int
    ) -> tuple[runs.Run, Position]:
        dataset = self.kept.of(self.dataset, run.state(position))
        return runs.on_other_ranks(dataset, self.given, run, position, world_size, rank)

    def _snapshot(self, run: runs.Run, position: Position) -> Callable[[], dict[str, Any]]:
        return partial(_state, self.dataset, run, position)

    def _names(self) -> Mapping[str, str]:
        return {"tokens": self.dataset.packing.name}

    # Where the run stands

    @property
    def epoch(self) -> int:
        """See `Driver`."""
        run, position = self.here()
        return position.steps.epoch_of(run.core, position.step)

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
        begin = adapted(self.given.exclude, checked, strict=strict)
        dataset = self.kept.of(self.dataset, begin.state)
        self._resume(begin.then(runs.adapted(dataset, begin.state, epochs=self.given.epochs, strict=strict)))

    def seek(self, step: int) -> None:
        """See `Driver.seek`."""
        self.here()[0].lengths.check_seek(step)
        super().seek(step)

    def set_global_batch_size(self, rows: int) -> None:
        """See `Driver.set_global_batch_size`."""
        run, position = self.here()
        check_divides(rows, run.world_size)
        run.core.check_enough(rows)
        self._change(run, replace(position, steps=position.steps.with_batch(position.step, rows)))

    # Telling

    def sources(self, step: int, rank: int | None) -> list[Any]:
        """See `Driver.sources`."""
        run, position = self._place_of(step)
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
        steps, end = position.steps, run.end(position)
        cuts = run.core.windows * (run.lanes - 1)
        stats: dict[str, Any] = {
            "step": position.step,
            "epoch": self.epoch,
            "position": self.position,
            "tokens": run.core.tokens_before(self.position),
            "lanes": run.lanes,
            "window": run.window,
            "documents_cut": min(1.0, cuts / max(1, self.dataset.rows)),
        }
        if end is not None:
            stats |= {"steps": end, "remainder_tokens": run.core.left_out(steps.row_of(end))}
        return stats | self._engine_counts() | Traffic(*self.dataset.core.traffic()).stats()


def _state(dataset: PackedDataset, run: runs.Run, position: Position) -> dict[str, Any]:
    runs.keep_file_table(dataset, run.fixed["sources"][0]["identity"])
    return run.state(position)

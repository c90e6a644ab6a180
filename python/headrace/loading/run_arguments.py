"""The arguments of a loader as they are meant for datasets of headrace, whether of packed tokens or of samples."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from headrace._base import Dataset
from headrace._ranks import default_workers
from headrace._units import as_int, parse_bytes
from headrace.errors import StateMismatch
from headrace.samples.document_ids import DocumentIds
from headrace.state import MAX_LANES

from .arguments import UNSET, Arguments, optional_int
from .exclusion import exclude_of
from .schedule import Schedule, check_schedule

__all__ = ["NO_BATCH_SIZE", "RunArguments", "RunResources", "choose"]

_T = TypeVar("_T")

NO_BATCH_SIZE: Final = "a batch size is missing: give batch_size= or global_batch_size=, or load a state"

_PREFETCH: Final = 2
"""Batches ahead of use by default; of samples for each worker, as PyTorch has it."""


@dataclass(frozen=True, kw_only=True)
class RunArguments:
    """What the user said of a run, checked as far as it can be alone; None for what was left open."""

    seed: int | None
    shuffle: bool | None
    lanes: int | None
    window: int | None
    batch_size: int | None
    """Rows or samples of one rank."""
    schedule: Schedule | None
    """Rows or samples of all ranks."""
    epochs: int | None
    exclude: DocumentIds | None
    """Documents that the run is to do without."""

    @staticmethod
    def of(arguments: Arguments, dataset: Dataset) -> "RunArguments":
        """What a loader's arguments say of a run over a dataset.

        Raises:
            TypeError: if a value is of the wrong type.
            ValueError: if it is out of range.
        """
        batch_size = None if arguments.batch_size is UNSET else arguments.batch_size
        schedule = arguments.global_batch_size
        return RunArguments(
            seed=optional_int(arguments.seed, "seed", 0, 2**64 - 1),
            shuffle=arguments.shuffle,
            lanes=optional_int(arguments.lanes, "lanes", 1, MAX_LANES),
            window=optional_int(arguments.window, "window", 1, 2**32 - 1),
            batch_size=optional_int(batch_size, "batch_size", 1, 2**32 - 1),
            schedule=None if schedule is None else check_schedule(schedule),
            epochs=optional_int(arguments.epochs, "epochs", 1, 2**32 - 1),
            exclude=exclude_of(arguments.exclude, dataset),
        )

    def rows(self, world_size: int) -> Schedule | None:
        """The rows of all ranks in a step; None if they were left open."""
        return self.schedule if self.batch_size is None else {0: self.batch_size * world_size}


@dataclass(frozen=True, kw_only=True)
class RunResources:
    """What a driver may use."""

    workers: int
    prefetch: int
    memory: int
    """Bytes."""
    timeout: float | None
    """Seconds; None for no end."""

    @staticmethod
    def of(arguments: Arguments, *, fewest: int) -> "RunResources":
        """What a loader's arguments allow; at least `fewest` workers.

        Raises:
            TypeError: if a value is of the wrong type.
            ValueError: if it is out of range.
        """
        workers, prefetch = arguments.num_workers, arguments.prefetch_factor
        return RunResources(
            workers=default_workers()
            if workers is None
            else max(fewest, as_int(workers, "num_workers", least=0, most=1024)),
            prefetch=_PREFETCH if prefetch is None else as_int(prefetch, "prefetch_factor", least=1, most=1024),
            memory=parse_bytes(arguments.memory, "memory"),
            timeout=arguments.seconds,
        )


def choose(name: str, given: _T | None, state: Mapping[str, Any] | None, default: _T) -> _T:
    """What holds in a run: what its state says, else what was given, else the default.

    Raises:
        StateMismatch: if what was given contradicts the state.
    """
    if state is None:
        return default if given is None else given
    if given is not None and given != state[name]:
        raise StateMismatch(
            f"{name} is {given!r} here and {state[name]!r} in the state\nhint: leave {name} out to go on"
        )
    return state[name]

"""What the parts of the benchmark of samples agree upon: a case, its data, and the loaders that read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

__all__ = ["SEED", "Case", "DataModule", "Items", "Loader", "LoaderModule", "Place"]

SEED = 0  # of every loader's order


@dataclass(frozen=True, kw_only=True)
class Case:
    """One thing that is measured, and what is hoped for.

    Args:
        name: the name of the task, with what distinguishes this case of it.
        about: what it is, in a line.
        data: the module in `headrace.bench.samples.data`.
        loaders: from the names that are shown to modules in `headrace.bench.samples.loaders`.
        aim: how many times as fast as the others headrace is to be.
        aside: loaders that are measured without an aim.
        samples: how many there are.
        quick: how many there are in a trial.
        batch: samples in a batch.
        workers: of each loader.
        measure: what counts: the rate, or the seconds from asking for another epoch to its first batch.
        epochs: that are timed in a round, behind the first one.
        decode: whether images are decoded.
        worker_type: of headrace.
        items_in_parallel: of headrace.
    """

    name: str
    about: str
    data: str
    loaders: Mapping[str, str]
    aim: float
    aside: tuple[str, ...] = ()
    samples: int
    quick: int
    batch: int
    workers: int = 2
    measure: Literal["samples_per_second", "next_epoch_seconds"] = "samples_per_second"
    epochs: int = 1
    decode: bool = False
    worker_type: Literal["thread", "process", "auto"] = "thread"
    items_in_parallel: int = 1

    @property
    def task(self) -> str:
        """The task that it belongs to."""
        return self.name.partition("-")[0]

    def part(self, share: float) -> int:
        """How many samples a share of the data has; at least as many as a trial."""
        return max(self.quick, round(self.samples * share))


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a loader is to read.

    Args:
        case: the case.
        samples: how many there are here.
        data: the folder that the data's ``write`` has filled; it does not exist for data that needs none.
        copy: a folder for what the loader itself wants to keep.
        workers: in place of the case's, for tests.
    """

    case: Case
    samples: int
    data: Path
    copy: Path
    workers: int = field(default=-1)

    def __post_init__(self) -> None:
        if self.workers < 0:
            object.__setattr__(self, "workers", self.case.workers)


class Items(Protocol):
    """A dataset of the user's: what PyTorch calls map-style. It can be pickled."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """An integer that is its number, or a dict whose ``id`` is."""
        ...


class DataModule(Protocol):
    """What a module in `headrace.bench.samples.data` holds; either may be missing."""

    def write(self, folder: Path, samples: int, /) -> None:
        """Write the data into a folder, which exists and is empty."""
        ...

    def open(self, folder: Path, samples: int, /) -> Items:
        """The dataset, for loaders that take one."""
        ...


class Loader(Protocol):
    """One loader, opened; made by ``Loader(place)`` of its module, where clocks begin to run."""

    def epoch(self) -> Iterator[Any]:
        """All samples once, in a random order, in batches.

        Yields:
            Numbers of samples, as an array of NumPy's or PyTorch's; or a dict of arrays and lists whose ``id`` they
            are.
        """
        ...


class LoaderModule(Protocol):
    """What a module in `headrace.bench.samples.loaders` holds."""

    def Loader(self, place: Place, /) -> Loader:
        """Open it."""
        ...

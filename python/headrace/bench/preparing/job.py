"""What the parts of the benchmark of preparing agree upon: a case, its data, and who makes something of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

__all__ = ["Case", "DataModule", "Maker", "MakerModule", "Place"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One thing that is made, and what is hoped for.

    Args:
        name: the name of the task.
        about: what it is, in a line.
        data: the module in `headrace.bench.preparing.data`.
        makers: from the names that are shown to modules in `headrace.bench.preparing.makers`.
        aims: how many times as fast as another one headrace is to be; those that are not named have no aim.
        unit: what is counted.
        size: of the data, in the unit of its module.
        quick: its size in a trial.
    """

    name: str
    about: str
    data: str
    makers: Mapping[str, str]
    aims: Mapping[str, float]
    unit: str
    size: int
    quick: int


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a maker works.

    Args:
        data: the folder that the data's ``write`` has filled.
        output: an empty folder for what is made.
        workers: processes or threads at once.
    """

    data: Path
    output: Path
    workers: int


class DataModule(Protocol):
    """What a module in `headrace.bench.preparing.data` holds."""

    def write(self, folder: Path, size: int, /) -> None:
        """Write the data into a folder, which exists and is empty."""
        ...


class Maker(Protocol):
    """Someone who makes a dataset; ``Maker(place)`` of its module is done before the clock runs."""

    def run(self) -> int:
        """Do the work; how much it was, in the case's unit."""
        ...

    def content(self) -> Iterator[Any]:
        """What was made, as arrays of NumPy's, one behind another the same for all makers."""
        ...


class MakerModule(Protocol):
    """What a module in `headrace.bench.preparing.makers` holds."""

    def Maker(self, place: Place, /) -> Maker:
        """Make ready."""
        ...

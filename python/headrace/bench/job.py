"""The job that every loader does, and what a module in `headrace.bench.loaders` must have.

A loader gives batches of 32 rows of 2,048 tokens, shuffled, as integer arrays in CPU memory. A row is cut from the
documents' tokens laid end to end, so that each pass visits every token but those of the last incomplete batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

__all__ = ["BATCH", "COLUMN", "SEED", "SEQ_LEN", "Loader", "Module", "Place"]

COLUMN = "input_ids"
SEQ_LEN = 2048  # tokens in a row
BATCH = 32  # rows
SEED = 0  # of every loader's order


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a loader finds its data.

    Args:
        parquet: the folder with the Parquet files.
        copy: the folder with what the loader's `convert` has made of them; it does not exist for a loader that
            converts nothing.
        vocabulary: one more than the largest token id.
        epochs: how many passes will be asked for; None for no end.
    """

    parquet: Path
    copy: Path
    vocabulary: int
    epochs: int | None = None

    @property
    def files(self) -> list[str]:
        """Paths of the Parquet files, in the order of their names."""
        return sorted(str(path) for path in self.parquet.glob("*.parquet"))

    @property
    def narrowest(self) -> str:
        """The smallest unsigned NumPy dtype that holds every token id."""
        return "uint16" if self.vocabulary <= 2**16 else "uint32"


class Loader(Protocol):
    """One loader, opened; made by ``Loader(place, state)`` of its module.

    The first argument of its initialiser is a `Place`, the second what `state` gave in another process, or None.
    """

    def epoch(self) -> Iterator[Any]:
        """The next pass, or what is left of it after a state was loaded.

        Yields:
            Arrays, NumPy's or PyTorch's, of int32 or int64 and shape (32, 2048). One may be overwritten by the next.
        """
        ...

    def state(self) -> Any:
        """What it takes to go on behind the last batch that `epoch` gave; it can be pickled."""
        ...


class Module(Protocol):
    """What a module in `headrace.bench.loaders` holds. `convert` may be missing."""

    def Loader(self, place: Place, state: Any, /) -> Loader:
        """Open it. Clocks run from here on."""
        ...

    def convert(self, place: Place, /) -> None:
        """Write what the loader reads into the folder `place.copy`, which exists and is empty."""
        ...

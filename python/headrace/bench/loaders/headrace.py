"""headrace, from the Parquet files as they are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headrace
from headrace.bench.job import BATCH, COLUMN, SEED, SEQ_LEN, Place

__all__ = ["Loader", "convert"]

WINDOW = 64  # row groups, about 64 M tokens: its default for data of this shape


def packed_tokens(place: Place, files: Path | list[str]) -> headrace.PackedDataset:
    """Tokens of some of the job's Parquet files, packed to its rows."""
    packed = headrace.open(files, cache_dir=place.copy).pack(SEQ_LEN, column=COLUMN)
    assert isinstance(packed, headrace.PackedDataset)  # a column of Parquet files is counted
    return packed


def convert(place: Place) -> None:
    """Nothing is converted; but the first opening makes an index of the footers, which belongs here in fairness."""
    _open(place)


def _open(place: Place) -> headrace.PackedDataset:
    return packed_tokens(place, place.parquet)


class Loader:
    """Threads of its own, as many as there are CPUs."""

    def __init__(self, place: Place, state: Any) -> None:
        self.loader = headrace.DataLoader(
            _open(place), global_batch_size=BATCH, seed=SEED, window=WINDOW, epochs=place.epochs
        )
        if state:
            self.loader.load_state_dict(state)

    def epoch(self) -> Iterator[Any]:
        """Batches as they come."""
        for batch in self.loader:
            yield batch["tokens"]

    def state(self) -> Any:
        """A dict of plain values."""
        return self.loader.state_dict()

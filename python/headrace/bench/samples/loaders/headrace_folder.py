"""headrace over files as they are: LitData's chunks, MDS shards or Parquet."""

from collections.abc import Iterator
from typing import Any

import headrace
from headrace.bench.samples.job import SEED, Place
from headrace.bench.samples.jpeg import decoded

__all__ = ["Loader"]


class Loader:
    """`open`, `map` where there is something to decode, and a DataLoader of threads."""

    def __init__(self, place: Place) -> None:
        samples = headrace.open(place.data, cache_dir=place.copy)
        if place.case.decode:
            samples = samples.map(decoded)
        self.loader = headrace.DataLoader(samples, batch_size=place.case.batch, num_workers=place.workers, seed=SEED)

    def epoch(self) -> Iterator[Any]:
        """Dicts of NumPy arrays and lists."""
        return iter(self.loader)

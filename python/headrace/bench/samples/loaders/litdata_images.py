"""LitData over its chunks: a StreamingDataset, shuffled, below its StreamingDataLoader."""

# pyright: basic, reportMissingImports=false

from collections.abc import Iterator
from typing import Any

import litdata

from headrace.bench.samples.job import SEED, Place
from headrace.bench.samples.jpeg import decoded

__all__ = ["Loader"]


class Loader:
    """Workers that stay; images are decoded by the dataset's transform."""

    def __init__(self, place: Place) -> None:
        dataset = litdata.StreamingDataset(
            str(place.data),
            shuffle=True,
            seed=SEED,
            drop_last=False,
            transform=decoded if place.case.decode else None,
        )
        self.loader = litdata.StreamingDataLoader(
            dataset,
            batch_size=place.case.batch,
            num_workers=place.workers,
            drop_last=False,
            persistent_workers=place.workers > 0,
        )

    def epoch(self) -> Iterator[Any]:
        """Dicts of PyTorch tensors and lists."""
        return iter(self.loader)

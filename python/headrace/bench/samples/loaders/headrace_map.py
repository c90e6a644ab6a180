"""headrace over a dataset of the user's: threads, or processes where the case says so."""

from collections.abc import Iterator
from typing import Any

import headrace
from headrace.bench.samples import data
from headrace.bench.samples.job import SEED, Place

__all__ = ["Loader"]


class Loader:
    """A DataLoader as PyTorch's is written, with what the case asks for."""

    def __init__(self, place: Place) -> None:
        case = place.case
        self.loader = headrace.DataLoader(
            data.load(case.data).open(place.data, place.samples),
            batch_size=case.batch,
            shuffle=True,
            num_workers=place.workers,
            seed=SEED,
            worker_type=case.worker_type,
            items_in_parallel=case.items_in_parallel,
        )

    def epoch(self) -> Iterator[Any]:
        """NumPy arrays."""
        return iter(self.loader)

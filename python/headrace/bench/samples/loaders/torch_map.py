"""PyTorch's DataLoader as it is by default: its workers start anew with each epoch."""

# pyright: basic

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from headrace.bench.samples import data
from headrace.bench.samples.job import SEED, Place

__all__ = ["Loader"]


class Loader:
    """A DataLoader over the dataset.

    Args:
        place: what to read.
        persistent: whether workers live as long as the loader.
    """

    def __init__(self, place: Place, persistent: bool = False) -> None:
        self.loader = DataLoader(
            data.load(place.case.data).open(place.data, place.samples),  # type: ignore[arg-type]
            batch_size=place.case.batch,
            shuffle=True,
            num_workers=place.workers,
            generator=torch.Generator().manual_seed(SEED),
            persistent_workers=persistent and place.workers > 0,
        )

    def epoch(self) -> Iterator[Any]:
        """PyTorch tensors."""
        return iter(self.loader)

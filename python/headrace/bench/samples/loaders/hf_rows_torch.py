"""PyTorch's DataLoader over Hugging Face `datasets` in streaming mode.

Rows as Python's values, collated by hand: the format "torch", which makes each value a tensor, takes several times as
long.
"""

# pyright: basic, reportMissingImports=false

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from headrace.bench.samples.collate import row_batch
from headrace.bench.samples.job import Place
from headrace.bench.samples.loaders.hf_rows import stream

__all__ = ["Loader"]


class Loader:
    """Workers that stay, each with files of its own."""

    def __init__(self, place: Place) -> None:
        self.dataset = stream(place)
        self.loader = DataLoader(
            self.dataset,
            batch_size=place.case.batch,
            collate_fn=row_batch,
            num_workers=place.workers,
            persistent_workers=place.workers > 0,
        )
        self.number = 0

    def epoch(self) -> Iterator[Any]:
        """Dicts of arrays and lists."""
        self.dataset.set_epoch(self.number)
        self.number += 1
        return iter(self.loader)

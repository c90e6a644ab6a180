"""MosaicML Streaming over its shards: a StreamingDataset, shuffled, below its StreamingDataLoader."""

# pyright: basic, reportMissingImports=false

from collections.abc import Iterator
from typing import Any

import streaming

from headrace.bench.samples.job import SEED, Place
from headrace.bench.samples.jpeg import decoded

__all__ = ["Loader"]


class _Decoded(streaming.StreamingDataset):
    """Images are decoded where its documentation does it."""

    def __getitem__(self, at: Any) -> Any:
        return decoded(super().__getitem__(at))


class Loader:
    """Workers that stay."""

    def __init__(self, place: Place) -> None:
        streaming.base.util.clean_stale_shared_memory()
        kind = _Decoded if place.case.decode else streaming.StreamingDataset
        dataset = kind(local=str(place.data), shuffle=True, shuffle_seed=SEED, batch_size=place.case.batch)
        self.loader = streaming.StreamingDataLoader(
            dataset,
            batch_size=place.case.batch,
            num_workers=place.workers,
            persistent_workers=place.workers > 0,
        )

    def epoch(self) -> Iterator[Any]:
        """Dicts of PyTorch tensors and lists."""
        return iter(self.loader)

"""LitData over Parquet files as they are, with its ParquetLoader."""

# pyright: basic, reportMissingImports=false

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import litdata
from litdata.streaming.item_loader import ParquetLoader

from headrace.bench.samples.collate import row_batch
from headrace.bench.samples.job import SEED, Place

__all__ = ["Loader"]


class Loader:
    """A StreamingDataset, shuffled, below its StreamingDataLoader. An index of the files is kept."""

    def __init__(self, place: Place) -> None:
        files = place.copy / "files"
        if not files.exists():
            files.mkdir()
            for path in sorted(place.data.glob("*.parquet")):  # LitData puts its index beside the files that it reads
                (files / path.name).symlink_to(Path(path).resolve())
            litdata.index_parquet_dataset(str(files))
        dataset = litdata.StreamingDataset(
            str(files), item_loader=ParquetLoader(), shuffle=True, seed=SEED, drop_last=False
        )
        self.loader = litdata.StreamingDataLoader(
            dataset,
            batch_size=place.case.batch,
            num_workers=place.workers,
            collate_fn=row_batch,
            drop_last=False,
            persistent_workers=place.workers > 0,
            multiprocessing_context="spawn" if place.workers else None,  # Polars cannot be forked, as LitData says
        )

    def epoch(self) -> Iterator[Any]:
        """Dicts of arrays and lists."""
        return iter(self.loader)

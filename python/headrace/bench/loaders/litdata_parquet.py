"""LitData on the Parquet files as they are, with its ParquetLoader; packed by a generator of the user's."""

# pyright: basic, reportMissingImports=false

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import litdata
import numpy as np
from litdata.streaming.item_loader import ParquetLoader

from headrace.bench.job import BATCH, COLUMN, SEED, SEQ_LEN, Place

__all__ = ["Loader", "convert"]

WORKERS = 0  # two have to be spawned, because of Polars; they start for seconds and then give a fifth of the rate


def convert(place: Place) -> None:
    """An index of the files; nothing else is written."""
    files = place.copy / "files"
    files.mkdir()
    for path in place.files:  # links, as LitData puts its index beside the files that it reads
        (files / Path(path).name).symlink_to(Path(path).resolve())
    litdata.index_parquet_dataset(str(files))


def _documents(rows: list[dict[str, Any]]) -> np.ndarray[Any, Any]:
    """The rows of a batch, which come as lists of Python's integers, as one array."""
    return np.concatenate([np.fromiter(row[COLUMN], np.int32, len(row[COLUMN])) for row in rows])


class Loader:
    """A StreamingDataset of documents below LitData's StreamingDataLoader, whose batches are packed here."""

    def __init__(self, place: Place, state: Any) -> None:
        dataset = litdata.StreamingDataset(
            str(place.copy / "files"),
            item_loader=ParquetLoader(columns=[COLUMN]),
            shuffle=True,
            seed=SEED,
            drop_last=False,
        )
        self.loader = litdata.StreamingDataLoader(
            dataset,
            batch_size=BATCH,
            num_workers=WORKERS,
            collate_fn=_documents,
            drop_last=False,
            persistent_workers=WORKERS > 0,
            multiprocessing_context="spawn" if WORKERS else None,  # Polars cannot be forked, as LitData says
        )
        self.rest = np.empty(0, np.int32)
        if state:
            loader_state, self.rest = state
            self.loader.load_state_dict(loader_state)

    def epoch(self) -> Iterator[Any]:
        """Documents as they come, cut into batches; what is left of the last ones is carried over."""
        size = BATCH * SEQ_LEN
        for tokens in self.loader:
            joined = np.concatenate([self.rest, tokens])
            self.rest = joined
            while len(self.rest) >= size:
                batch, self.rest = self.rest[:size], self.rest[size:]
                yield batch.reshape(BATCH, SEQ_LEN)
        self.rest = np.empty(0, np.int32)

    def state(self) -> Any:
        """The tool's own, and the tokens that the packer holds."""
        return self.loader.state_dict(), self.rest.copy()

"""MosaicML Streaming: MDS shards of rows that are cut beforehand.

Rows lie where they lie: a pass shuffles rows, not documents, and cuts the data at the same places every time.
"""

# pyright: basic, reportMissingImports=false

from collections.abc import Iterator
from typing import Any

import numpy as np
import streaming
import torch

from headrace.bench.data import flat_tokens
from headrace.bench.job import BATCH, SEED, SEQ_LEN, Place

__all__ = ["Loader", "convert"]

WORKERS = 2  # processes; a quarter to a half faster than none on two cores, as each row opens, seeks and reads a file


def convert(place: Place) -> None:
    """Shards of rows, uncompressed, without hashes."""
    with streaming.MDSWriter(out=str(place.copy / "mds"), columns={"tokens": f"ndarray:int32:{SEQ_LEN}"}) as writer:
        rest = np.empty(0, np.int32)
        for tokens in flat_tokens(place.files):
            joined = np.concatenate([rest, tokens])
            rows = joined[: len(joined) // SEQ_LEN * SEQ_LEN].reshape(-1, SEQ_LEN)
            rest = joined[rows.size :]
            for row in rows:
                writer.write({"tokens": row})


def _stack(rows: list[dict[str, np.ndarray[Any, Any]]]) -> dict[str, torch.Tensor]:
    """What PyTorch's own collating does, but for its look at each row, and its warning that rows are read-only."""
    return {"tokens": torch.from_numpy(np.stack([row["tokens"] for row in rows]))}


class Loader:
    """A StreamingDataset below a StreamingDataLoader, whose batches are PyTorch's."""

    def __init__(self, place: Place, state: Any) -> None:
        streaming.base.util.clean_stale_shared_memory()
        dataset = streaming.StreamingDataset(
            local=str(place.copy / "mds"), shuffle=True, shuffle_seed=SEED, batch_size=BATCH
        )
        self.loader = streaming.StreamingDataLoader(
            dataset,
            batch_size=BATCH,
            num_workers=WORKERS,
            collate_fn=_stack,
            drop_last=True,
            persistent_workers=WORKERS > 0,
        )
        if state:
            self.loader.load_state_dict(state)

    def epoch(self) -> Iterator[Any]:
        """PyTorch tensors."""
        for batch in self.loader:
            yield batch["tokens"]

    def state(self) -> Any:
        """The tool's own."""
        return self.loader.state_dict()

"""LitData with its TokensLoader: chunks of tokens end to end, rows cut while loading.

Rows lie where they lie: a pass shuffles chunks and the rows in them, not documents.
"""

# pyright: basic, reportMissingImports=false

from collections.abc import Iterator
from typing import Any

import litdata
import torch

from headrace.bench.data import flat_tokens
from headrace.bench.job import BATCH, SEED, SEQ_LEN, Place

__all__ = ["Loader", "convert"]

WORKERS = 0  # two gave a quarter of the rate: batches go from process to process
CHUNK = 2048 * SEQ_LEN  # tokens in a chunk, 16 MiB


def _tokens(path: str) -> Iterator[torch.Tensor]:
    for tokens in flat_tokens([path]):
        yield torch.from_numpy(tokens.copy())


def convert(place: Place) -> None:
    """Chunks of a whole number of rows, written by two processes, which take ten times as long if not forked."""
    litdata.optimize(
        fn=_tokens,
        inputs=place.files,
        output_dir=str(place.copy / "chunks"),
        num_workers=2,
        start_method="fork",
        chunk_size=CHUNK,
        item_loader=litdata.TokensLoader(block_size=SEQ_LEN),
    )


class Loader:
    """A StreamingDataset below LitData's StreamingDataLoader."""

    def __init__(self, place: Place, state: Any) -> None:
        dataset = litdata.StreamingDataset(
            str(place.copy / "chunks"),
            item_loader=litdata.TokensLoader(block_size=SEQ_LEN),
            shuffle=True,
            seed=SEED,
            drop_last=False,
        )
        self.loader = litdata.StreamingDataLoader(
            dataset, batch_size=BATCH, num_workers=WORKERS, drop_last=True, persistent_workers=WORKERS > 0
        )
        if state:
            self.loader.load_state_dict(state)

    def epoch(self) -> Iterator[Any]:
        """PyTorch tensors."""
        yield from self.loader

    def state(self) -> Any:
        """The tool's own."""
        return self.loader.state_dict()

"""A flat token file, mapped into memory, and NumPy: what nanoGPT does, without a worker.

Rows lie where they lie: a pass shuffles rows, not documents, and cuts the data at the same places every time.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace.bench.data import flat_tokens
from headrace.bench.job import BATCH, SEED, SEQ_LEN, Place

__all__ = ["Loader", "convert"]


def convert(place: Place) -> None:
    """One file, with two bytes a token where ids allow it, else four."""
    with (place.copy / "tokens.bin").open("wb") as file:
        for tokens in flat_tokens(place.files):
            tokens.astype(place.narrowest).tofile(file)


class Loader:
    """Its position is the number of the pass and of the row in that pass's order."""

    def __init__(self, place: Place, state: Any) -> None:
        # A plain array over the map: slices of np.memmap itself cost more.
        tokens = np.asarray(np.memmap(place.copy / "tokens.bin", place.narrowest, mode="r"))
        self.rows = tokens[: len(tokens) // SEQ_LEN * SEQ_LEN].reshape(-1, SEQ_LEN)
        self.number, self.at = state or (0, 0)

    def epoch(self) -> Iterator[Any]:
        """A gather of 32 rows, widened."""
        order = np.random.default_rng((SEED, self.number)).permutation(len(self.rows))
        while self.at + BATCH <= len(order):
            self.at += BATCH
            yield self.rows[order[self.at - BATCH : self.at]].astype(np.int32)
        self.number, self.at = self.number + 1, 0

    def state(self) -> Any:
        """Two numbers."""
        return self.number, self.at

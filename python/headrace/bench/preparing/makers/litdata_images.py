"""LitData: `optimize`, chunks of images."""

# litdata has no complete types:
# pyright: basic

from __future__ import annotations

import litdata

from headrace.bench.preparing.job import Place
from headrace.bench.preparing.makers._optimize import CHUNK_BYTES, Samples

__all__ = ["Maker"]


class Maker(Samples):
    """With its defaults."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, "images")

    def run(self) -> int:
        """Make the dataset; its samples."""
        litdata.optimize(
            self.fn,
            list(range(self.rows.count)),
            self.output,
            chunk_bytes=CHUNK_BYTES,
            num_workers=self.place.workers,
            verbose=False,
        )
        return self.rows.count

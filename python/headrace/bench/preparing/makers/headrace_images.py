"""headrace: `optimize`, LitData chunks of images."""

from __future__ import annotations

import headrace
from headrace.bench.preparing.job import Place
from headrace.bench.preparing.makers._optimize import CHUNK_BYTES, Samples

__all__ = ["Maker"]


class Maker(Samples):
    """With its defaults, and files as large as the others'."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, "images")

    def run(self) -> int:
        """Make the dataset; its samples."""
        return headrace.optimize(
            self.fn,
            range(self.rows.count),
            self.output,
            chunk_bytes=CHUNK_BYTES,
            num_workers=self.place.workers,
            progress=False,
            verbose=False,
        ).samples

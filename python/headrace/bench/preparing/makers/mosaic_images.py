"""MosaicML Streaming: `MDSWriter` over encoded images. It works in the calling process, and has no others."""

# streaming has no types:
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import streaming

from headrace.bench.preparing.job import Place
from headrace.bench.preparing.makers._optimize import CHUNK_BYTES, Samples

__all__ = ["Maker"]


class Maker(Samples):
    """Images as bytes, as they are."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, "images")

    def run(self) -> int:
        """Make the dataset; its samples."""
        with streaming.MDSWriter(
            out=self.output, columns={"image": "bytes", "number": "int"}, size_limit=CHUNK_BYTES
        ) as writer:
            for number in range(self.rows.count):
                writer.write(self.fn(number))
        return self.rows.count

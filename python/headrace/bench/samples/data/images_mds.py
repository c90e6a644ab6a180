"""Images in MDS shards, written by MosaicML Streaming: their JPEG bytes, and a number."""

# pyright: basic, reportMissingImports=false

from pathlib import Path

import streaming

from headrace.bench.samples.jpeg import encoded

__all__ = ["write"]

SHARD = 4 << 20  # bytes: about as many images as a chunk of LitData's holds here


def write(folder: Path, samples: int) -> None:
    """The shards and their index."""
    with streaming.MDSWriter(
        out=str(folder), columns={"id": "int", "image": "bytes"}, size_limit=min(SHARD, 4096 * samples)
    ) as writer:
        for number in range(samples):
            writer.write({"id": number, "image": encoded(number)})

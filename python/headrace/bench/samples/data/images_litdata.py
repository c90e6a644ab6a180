"""Images in the chunks of LitData, written by it: their JPEG bytes, and a number."""

# pyright: basic, reportMissingImports=false

from pathlib import Path
from typing import Any

import litdata

from headrace.bench.samples.jpeg import encoded

__all__ = ["write"]

CHUNK = 256  # images: some MiB


def _sample(number: int) -> dict[str, Any]:
    return {"id": number, "image": encoded(number)}


def write(folder: Path, samples: int) -> None:
    """The chunks and their index."""
    litdata.optimize(
        fn=_sample,
        inputs=list(range(samples)),
        output_dir=str(folder),
        num_workers=1,
        start_method="fork",
        chunk_size=min(CHUNK, max(1, samples // 4)),
    )

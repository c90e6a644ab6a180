"""JPEG files of 64x64 pixels, about 2 KB each: 4,096 different ones."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from headrace.bench.preparing.data.rows import save

__all__ = ["write"]

DIFFERENT = 4_096
SIDE = 64  # pixels
GRID = 10  # random pixels each way, of which the others are made: as smooth as photographs are


def write(folder: Path, size: int) -> None:
    """The images; `size` is the number of inputs."""
    save(folder, _images(min(DIFFERENT, size)), size)


def _images(count: int) -> Iterator[bytes]:
    draws = np.random.PCG64(3)
    for _ in range(count):
        raw = draws.random_raw(GRID * GRID * 3).astype(np.uint8).reshape(GRID, GRID, 3)
        out = io.BytesIO()
        Image.fromarray(raw).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
        yield out.getvalue()

"""Arrays of tokens, 200 to 1,800 of uint16, 1,000 in the mean: 4,096 different ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from headrace.bench.preparing.data.rows import save

__all__ = ["write"]

DIFFERENT = 4_096


def write(folder: Path, size: int) -> None:
    """The arrays; `size` is the number of inputs."""
    save(folder, _arrays(min(DIFFERENT, size)), size)


def _arrays(count: int) -> Iterator[bytes]:
    draws = np.random.PCG64(4)
    for length in (200 + draws.random_raw(count) % 1_601).tolist():
        raw = cast("npt.NDArray[np.uint64]", draws.random_raw(-(-length // 4)))
        yield raw.tobytes()[: 2 * length]

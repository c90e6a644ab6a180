"""Arrays of 64 KiB in files of their own, normalised when they are read."""

from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Arrays", "open", "write"]

SHAPE = (128, 128)  # of float32


def write(folder: Path, samples: int) -> None:
    """A file for each sample."""
    for number in range(samples):
        raw = np.random.PCG64([SHAPE[0], number]).random_raw(SHAPE[0] * SHAPE[1] // 2).view(np.uint32)
        np.save(folder / f"{number:06}.npy", (raw >> np.uint32(8)).astype(np.float32).reshape(SHAPE) / 2**24)


class Arrays:
    """Item i is what file i holds, less its mean, over its deviation."""

    def __init__(self, folder: Path, samples: int) -> None:
        self.files = [str(folder / f"{number:06}.npy") for number in range(samples)]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, Any]:
        array = np.load(self.files[index])
        array -= array.mean()
        array /= array.std()
        return {"id": index, "array": array}


def open(folder: Path, samples: int) -> Arrays:
    """The dataset."""
    return Arrays(folder, samples)

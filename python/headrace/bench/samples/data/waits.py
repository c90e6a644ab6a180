"""Items that are waited for, as those of a network are."""

import time
from pathlib import Path

__all__ = ["Waits", "open"]

SECONDS = 0.005


class Waits:
    """Item i is i, after a while."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        time.sleep(SECONDS)
        return index


def open(folder: Path, samples: int) -> Waits:
    """The dataset."""
    del folder
    return Waits(samples)

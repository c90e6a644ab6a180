"""What the tests of packed datasets do in other processes, which import it from here."""

from typing import Any

import headrace as hr


class PackedSteps:
    """The tokens of each step, for PyTorch's loader: a worker makes a loader of its own."""

    def __init__(self, packed: hr.PackedDataset, batch: int) -> None:
        self.packed = packed
        self.batch = batch

    def __len__(self) -> int:
        return len(hr.DataLoader(self.packed, self.batch))

    def __getitem__(self, step: int) -> Any:
        loader = hr.DataLoader(self.packed, self.batch, num_workers=1)
        loader.seek(step)
        return next(iter(loader))["tokens"].copy()


def steps_of(packed: hr.PackedDataset, rank: int, world_size: int) -> list[list[list[int]]]:
    """The tokens of a rank's steps in one epoch of global batches of 4."""
    loader = hr.DataLoader(packed, global_batch_size=4, rank=rank, world_size=world_size, num_workers=1)
    return [batch["tokens"].tolist() for batch in loader]

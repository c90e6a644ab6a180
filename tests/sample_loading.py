"""What the tests of loaders over samples need: loaders, and batches as tests compare them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import headrace as hr

WORLDS = (1, 2, 3, 4, 6)
ORDERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lanes": ({"random_access": False}, {"lanes": 4, "window": 2}),
    "permutation": ({"random_access": True}, {}),
    "sequential": ({}, {"shuffle": False}),
}
"""How the source is, and what the loader is told."""

SIZES = (5, 1, 7, 0, 4, 9, 3)
"""29 samples."""


class Given(NamedTuple):
    """A batch as a test compares it."""

    step: int
    epoch: int
    rows: list[int]
    ids: list[int]
    state: dict[str, Any]


def load(data: Any, batch: Any = None, **options: Any) -> hr.DataLoader:
    return hr.DataLoader(data, global_batch_size=batch, **{"num_workers": 0, **options})


def given_by(loader: hr.DataLoader, count: int = 10**9) -> list[Given]:
    """The next batches of a loader, epoch after epoch, to the end of a finite run."""
    found: list[Given] = []
    while len(found) < count:
        before, epoch = loader.step, loader.epoch
        for batch in loader:
            if batch == []:
                found.append(Given(loader.step - 1, epoch, [], [], loader.state_dict()))
            else:
                found.append(Given(batch.step, batch.epoch, batch.rows.tolist(), batch["id"].tolist(), batch.state))
            if len(found) == count:
                break
        if loader.step == before:
            break
    return found


def merged(ranks: Sequence[Sequence[Given]]) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """Step, epoch, and (row, id) of all ranks in the order of rows."""
    assert len({len(batches) for batches in ranks}) == 1, "all ranks take equally many steps"
    found = []
    for parts in zip(*ranks, strict=True):
        assert len({(part.step, part.epoch) for part in parts}) == 1
        assert all(part.state == parts[0].state for part in parts)
        assert all(part.rows == sorted(part.rows) for part in parts)
        pairs = sorted(pair for part in parts for pair in zip(part.rows, part.ids, strict=True))
        found.append((parts[0].step, parts[0].epoch, pairs))
    return found


def every_rank(make: Callable[[], Any], world: int, batch: Any, **options: Any) -> list[list[Given]]:
    return [given_by(load(make(), batch, rank=rank, world_size=world, **options)) for rank in range(world)]


def ids_of(loader: Iterable[Any]) -> list[int]:
    return [number for batch in loader for number in batch["id"].tolist()]

"""headrace, from a mixture of eight sources: the same files, dealt to them, in shares that follow their tokens.

What it takes beside `headrace` is what mixing costs. Each source ends where the first of its lanes does, so that a
few rows of each lane are left out at the end.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import headrace
from headrace.bench.job import BATCH, SEED, Place
from headrace.bench.loaders.headrace import packed_tokens

__all__ = ["Loader", "convert"]

SOURCES = 8  # fewer where there are fewer files


def convert(place: Place) -> None:
    """Nothing is converted; but the first opening makes indexes of the footers, which belong here in fairness."""
    _open(place)


def _open(place: Place) -> headrace.MixDataset:
    parts = [place.files[number::SOURCES] for number in range(min(SOURCES, len(place.files)))]
    sources = [packed_tokens(place, part) for part in parts]
    names = [f"source {number}" for number in range(len(sources))]
    return headrace.mix(
        {name: (source, source.tokens) for name, source in zip(names, sources, strict=True)},
        on_exhausted="drop",
        max_epochs=dict.fromkeys(names, place.epochs or 1),
    )


class Loader:
    """Threads of its own, as many as there are CPUs."""

    def __init__(self, place: Place, state: Any) -> None:
        self.loader = headrace.DataLoader(_open(place), global_batch_size=BATCH, seed=SEED)
        self._steps = len(self.loader) // (place.epochs or 1)
        if state:
            self.loader.load_state_dict(state)
        self._batches = iter(self.loader)

    def epoch(self) -> Iterator[Any]:
        """A pass' batches as they come. A mixture has no passes of its own: these are equal parts of the run."""
        for batch in islice(self._batches, self._steps):
            yield batch["tokens"]

    def state(self) -> Any:
        """A dict of plain values."""
        return self.loader.state_dict()

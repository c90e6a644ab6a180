"""headrace: from JSON Lines to Parquet files with everything in place, processes started and all."""

# pyarrow has no type stubs:
# pyright: basic

from collections.abc import Iterator
from typing import Any

import headrace
from headrace.bench.preparing.data.text import LINES, TOKENIZER
from headrace.bench.preparing.job import Place

__all__ = ["Maker"]


class Maker:
    """`headrace.tokenize` with its defaults."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def run(self) -> int:
        """Make the dataset; its tokens."""
        place = self._place
        headrace.tokenize(
            place.data / LINES,
            place.data / TOKENIZER,
            place.output / "tokens",
            num_workers=place.workers,
            progress=False,
            verbose=False,
        )
        return headrace.open(place.output / "tokens").info()["columns"]["tokens"]["tokens"]

    def content(self) -> Iterator[Any]:
        """The tokens of each document."""
        for sample in headrace.open(self._place.output / "tokens"):
            yield sample["tokens"]

"""What makers of datasets of samples have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import headrace
from headrace.bench.preparing.data.rows import Numbers, Rows, checksums
from headrace.bench.preparing.job import Place

__all__ = ["CHUNK_BYTES", "Samples"]

CHUNK_BYTES = 64 << 20


class Samples:
    """The inputs, and a look at what was made of them.

    Args:
        place: where it is made.
        kind: of `Numbers`.
    """

    def __init__(self, place: Place, kind: str) -> None:
        self.place = place
        self.rows = Rows(place.data)
        self.fn = Numbers(self.rows, kind)
        self.output = str(place.output / "made")

    def content(self) -> Iterator[Any]:
        """Checksums of all samples."""
        data = headrace.open(self.output)
        return checksums(data[number] for number in range(len(data)))

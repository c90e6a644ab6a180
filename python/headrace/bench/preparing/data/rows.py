"""Encoded samples in one file, for those whose function has next to nothing to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np

__all__ = ["Numbers", "Rows", "checksums", "save"]

_BYTES, _ENDS, _COUNT = "rows.bin", "ends.npy", "count.npy"


def save(folder: Path, rows: Iterable[bytes], count: int) -> None:
    """Write rows, and of how many inputs each is the sample: input n has row n modulo their number."""
    ends: list[int] = []
    with (folder / _BYTES).open("wb") as file:
        for row in rows:
            file.write(row)
            ends.append(file.tell())
    np.save(folder / _ENDS, np.array([0, *ends], np.int64))
    np.save(folder / _COUNT, np.array(count))


class Rows:
    """Rows in memory; it pickles as its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data = (folder / _BYTES).read_bytes()
        self._ends: list[int] = np.load(folder / _ENDS).tolist()
        self.count = int(np.load(folder / _COUNT))
        """Inputs."""

    def __getitem__(self, number: int) -> bytes:
        row = number % (len(self._ends) - 1)
        return self._data[self._ends[row] : self._ends[row + 1]]

    def __reduce__(self) -> Any:
        return Rows, (self._folder,)


class Numbers:
    """The function that is called with an input, which is its number.

    Args:
        rows: of all.
        kind: ``"images"`` for a dict of the encoded image and its number, ``"tokens"`` for an array of uint16,
            ``"token columns"`` for a dict of one.
    """

    def __init__(self, rows: Rows, kind: str) -> None:
        self._rows, self._kind = rows, kind

    def __call__(self, number: int) -> Any:
        """The sample."""
        row = self._rows[number]
        if self._kind == "images":
            return {"image": row, "number": number}
        tokens = np.frombuffer(row, np.uint16)
        return tokens if self._kind == "tokens" else {"tokens": tokens}


def checksums(samples: Iterable[Any]) -> Iterator[Any]:
    """Of each sample the sum of its bytes and the last one, in an order that is not that of writing."""
    found: list[tuple[int, ...]] = []
    for sample in samples:
        data, number = sample, 0
        if isinstance(sample, dict):
            parts = cast("dict[str, Any]", sample)
            data, number = parts.get("image", parts.get("tokens")), int(parts.get("number", 0))
        raw: Any = (
            np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data).view(np.uint8)
        )
        found.append((number, len(raw), int(raw.sum()), int(raw[-1])))
    yield np.array(sorted(found))

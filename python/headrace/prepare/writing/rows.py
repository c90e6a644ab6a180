"""Formats whose samples lie one behind another: what their encoders and layouts have in common."""

import os
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .base import Encoder, Layout, Piece

__all__ = ["RowEncoder", "RowLayout"]


class RowEncoder(Encoder):
    """Keeps each sample's bytes until they are taken."""

    def __init__(self) -> None:
        self._rows: list[bytes] = []

    def add(self, sample: Any) -> int:
        """See `Encoder.add`."""
        row = self.encode(sample)
        self._rows.append(row)
        return len(row)

    @abstractmethod
    def encode(self, sample: Any) -> bytes:
        """The bytes of a sample; see `add`."""

    def drop(self, count: int) -> None:
        """See `Encoder.drop`."""
        del self._rows[len(self._rows) - count :]

    def take(self) -> bytes:
        """See `Encoder.take`."""
        rows, self._rows = self._rows, []
        return b"".join(rows)


class RowLayout(Layout):
    """Writes ``u32 samples | u32 offsets[samples + 1] | what the format has here | samples``."""

    most_bytes = 2**32 - 2**28
    """Offsets are 32 bits; the rest is for the header."""

    def header(self, pieces: Sequence[Piece], behind: bytes = b"") -> bytes:
        """All that lies before the samples."""
        sizes = np.concatenate([piece.sizes for piece in pieces])
        start = 4 + 4 * (len(sizes) + 1) + len(behind)
        offsets = np.concatenate([[start], start + np.cumsum(sizes)])
        return len(sizes).to_bytes(4, "little") + offsets.astype("<u4").tobytes() + behind

    def save(self, path: Path, parts: Iterable[bytes | memoryview]) -> int:
        """Writes a file of its parts; gives its size."""
        with path.open("wb", buffering=0) as out:
            return sum(_write(out, part) for part in parts)


def _write(out: BinaryIO, part: bytes | memoryview) -> int:
    view = memoryview(part)
    at = 0
    while at < len(view):
        at += os.write(out.fileno(), view[at:])
    return at

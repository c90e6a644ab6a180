"""How the data of the benchmark of fetching is cut up."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MB", "SHAPES", "Shape"]

MB = 10**6
FILE = 64 * MB  # about, of a file


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Files of row groups whose column chunks have about `chunk` bytes.

    Args:
        chunk: bytes of a column chunk.
        total: bytes of all of them, about.
    """

    chunk: int
    total: int

    @property
    def groups(self) -> int:
        """Row groups in a file."""
        return max(1, min(FILE, self.total) // self.chunk)

    @property
    def files(self) -> list[str]:
        """The files' names."""
        return [f"{number:04}.parquet" for number in range(max(1, self.total // (self.groups * self.chunk)))]

    @property
    def folder(self) -> str:
        """The name of their folder."""
        return f"fetch-{self.chunk}-{self.total}"


SHAPES = {"1 MB": MB, "8 MB": 8 * MB, "32 MB": 32 * MB}
"""Bytes of a column chunk: what writers make of a thousand documents, one request as long as requests get, and more."""

"""Samples that are rows of one width in files: the core gathers them by their numbers alone."""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace import _core
from headrace._files import files_kept

from .pipeline import AnyPipeline, Pipeline
from .source import InPlace, InPlaceColumn

__all__ = ["BATCHES_KEPT", "StoredSamples"]

BATCHES_KEPT: Final = 64
"""Batches that went whose memory is used again: more than are ready ahead of use."""


class StoredSamples(NamedTuple):
    """The samples of a pipeline by their numbers."""

    rows: "_core.StoredRows"
    columns: tuple[InPlaceColumn, ...]

    @staticmethod
    def of(pipeline: AnyPipeline) -> "StoredSamples | None":
        """Those of a pipeline, if they are stored so, in the order of their numbers, and nothing is done to them."""
        if not isinstance(pipeline, Pipeline):
            return None
        selection = pipeline.selection
        if selection.scattered or selection.rows or any(origin.stages for origin in pipeline.origins):
            return None
        parts: list[InPlace] = []
        for origin in pipeline.origins:
            part = origin.source.in_place(origin.columns)
            if part is None or (parts and _kind(part) != _kind(parts[0])):
                return None
            parts.append(part)
        first = parts[0]
        firsts = np.cumsum([0, *(len(part.files) for part in parts)])
        which = firsts[selection.origin] + selection.chunk
        begins = np.array([begin for part in parts for begin in part.begins], np.int64)
        stores = [part.store for part in parts for _ in part.files if part.store is not None]
        rows = _core.StoredRows(
            [file for part in parts for file in part.files],
            None if first.store is None else stores,
            np.ascontiguousarray(which, dtype=np.int64),
            begins[which] + selection.first * first.stride,
            np.ascontiguousarray(selection.count, dtype=np.int64),
            stride=first.stride,
            width=first.width,
            convert=first.convert,
            split=first.split,
            keep=BATCHES_KEPT,
            keep_open=files_kept(),
        )
        return StoredSamples(rows, first.columns)

    def batch(self, samples: int, arrays: "list[_core.Buffer]") -> dict[str, npt.NDArray[Any]]:
        """The bytes of some samples as a batch."""
        return {
            column.name: np.ndarray((samples, *column.shape), column.dtype, memoryview(memory))
            for column, memory in zip(self.columns, arrays, strict=True)
        }


def _kind(part: InPlace) -> tuple[Any, ...]:
    """What parts that are gathered alike have in common."""
    return part.store is None, part.stride, part.width, part.convert, part.split, part.columns

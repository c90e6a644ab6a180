"""Datasets of which only reading tells how many rows there are: what is known of them, and what can be estimated."""

from abc import abstractmethod
from typing import Any

import numpy as np

from headrace._base import Dataset

from .cache import ChunkCache
from .document_pipeline import DocumentPipeline
from .document_reading import documents_at
from .packing import RowPacking

__all__ = ["DynamicDataset", "DynamicRows"]

_MEASURED = 256
"""Items that `estimated_len` reads."""


class DynamicDataset(Dataset):
    """What documents and rows of them have in common: how many there are only reading tells."""

    def __init__(self, pipeline: DocumentPipeline, cache: ChunkCache) -> None:
        self._pipeline = pipeline
        self._cache = cache

    @property
    def pipeline(self) -> DocumentPipeline:
        """What it consists of, for loaders."""
        return self._pipeline

    @property
    def url(self) -> str:
        """The root, without secrets; of several datasets the first one's."""
        return self._pipeline.base.origins[0].source.url

    def __len__(self) -> int:
        raise TypeError(
            f"len(): how many there are of {self._what} only reading tells\nhint: estimated_len() reads a sample"
        )

    @property
    @abstractmethod
    def _what(self) -> str: ...

    @abstractmethod
    def estimated_len(self) -> int:
        """About how many a pass over the data gives, by some of its items, which are read."""

    def info(self) -> dict[str, Any]:
        """What is known without reading samples.

        Returns:
            ``url``, ``format``, ``samples`` (stored items), ``steps`` (what is done to them, as text), and the
            arguments of `pack` that shape rows, if there are rows.
        """
        base, packing = self._pipeline.base, self._pipeline.packing
        origin = base.origins[0]
        return {
            "url": self.url,
            "format": origin.source.format,
            "samples": len(base),
            "steps": [repr(stage) for stage in (*origin.stages, *self._pipeline.stages)],
            **({} if packing is None else packing.identity()),
        }

    def _measured(self) -> tuple[list[Any], float]:
        """The documents of some items that are spread over the data, and how many times as many items there are."""
        pipeline = self._pipeline
        count = len(pipeline.base)
        some = np.unique(np.linspace(0, max(0, count - 1), min(count, _MEASURED)).astype(np.int64))
        return list(documents_at(pipeline, some, self._cache)), count / max(1, len(some))

    def __repr__(self) -> str:
        base = self._pipeline.base
        origin, more = base.origins[0], len(base.origins) - 1
        steps = "".join(f".{stage!r}" for stage in (*origin.stages, *self._pipeline.stages))
        packing = self._pipeline.packing
        if packing is not None:
            steps += f".pack({packing.seq_len}, mode={packing.mode!r})"
        others = f" and {more} more" if more else ""
        return f"Dataset({self.url!r}{others}, format={origin.source.format!r}, samples={len(base):,}){steps}"


class DynamicRows(DynamicDataset):
    """Documents packed to rows, as `pack` gives them where documents have to be made first.

    A loader's rows come lane by lane and without end, packed in each lane by itself.
    """

    @property
    def _what(self) -> str:
        return "rows"

    def estimated_len(self) -> int:
        """About how many rows a pass over the data gives, by some of its items, which are read. What padding takes is
        not counted.
        """  # noqa: D205
        packing = self._packing
        documents, times = self._measured()
        lengths = np.array([packing.lines(document).length for document in documents], dtype=np.int64)
        if packing.mode == "truncate":
            return round(int((lengths > 0).sum()) * times)
        if packing.mode == "pad":
            if packing.long == "drop":
                lengths = lengths[lengths <= packing.seq_len]
            return round(int((-(-lengths // packing.seq_len)).sum()) * times)
        return round(int(lengths.sum()) * times / packing.seq_len)

    @property
    def _packing(self) -> RowPacking:
        packing = self._pipeline.packing
        assert packing is not None  # made by `pack` alone
        return packing

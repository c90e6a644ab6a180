"""What a run over packed tokens does without: datasets that lack documents, and batches that mask them."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from headrace import _core
from headrace._progress import index_progress
from headrace.dataset import PackedDataset
from headrace.formats.parquet import RowGroups
from headrace.mixing import MixDataset
from headrace.samples.document_ids import DocumentIds
from headrace.samples.excluding import Found, found_in

from .exclusion import Exclusion, exclusion_of

__all__ = ["Kept", "Masking", "masking"]


class Masking(NamedTuple):
    """Masks of a run's batches."""

    rows: tuple[int, ...]
    """From which on more is masked, ascending."""
    documents: tuple[_core.Masked, ...]
    """All that is masked from each of them on."""

    def __call__(self, batch: _core.Batch, end: int) -> _core.Batch:
        """A batch with its mask, if it has one; its step ends before row `end`."""
        number = bisect_left(self.rows, end)
        return batch.masked(self.documents[number - 1]) if number else batch


class Kept:
    """Datasets without what a run leaves out. Lengths of documents are read for them, once each."""

    def __init__(self, ids: DocumentIds | None) -> None:
        self._ids = ids
        self._made: dict[tuple[str | None, int], PackedDataset] = {}
        """By the name in a mixture, and how many documents are left out."""

    def of(self, dataset: PackedDataset, state: Mapping[str, Any] | None, name: str | None = None) -> PackedDataset:
        """A dataset, or the source of a mixture with a name, as a run has it that begins with a state.

        Raises:
            ValueError: if nothing is left.
            DataError: if a row group that holds such documents is damaged.
            StoreError: if the store does not answer.
        """
        exclusion, _ = exclusion_of(self._ids, state)
        if exclusion is None or not exclusion.left_out:
            return dataset
        key = (name, exclusion.left_out)
        if key not in self._made:
            self._made[key] = _without(dataset, exclusion)
        return self._made[key]

    def of_mixture(self, mixture: MixDataset, state: Mapping[str, Any] | None) -> MixDataset:
        """The same of a mixture."""
        sources = {name: self.of(one, state, name) for name, one in mixture.packed.items()}
        return replace(mixture, sources=sources)


def masking(exclusion: Exclusion | None, datasets: Sequence[PackedDataset | None]) -> Masking | None:
    """How a run masks its batches: of a mixture by the numbers of its sources. None if it never does."""
    if exclusion is None or exclusion.first_masked is None:
        return None
    founds = [None if one is None else found_in(RowGroups(one.core), exclusion.ids) for one in datasets]
    rows = tuple(sorted({row for row, _ in exclusion.masked}))
    return Masking(rows, tuple(_core.Masked([_masked(exclusion, found, row) for found in founds]) for row in rows))


def _masked(exclusion: Exclusion, found: Found | None, row: int) -> tuple[Any, Any, Any]:
    """What of a dataset is masked in steps that hold a row: row groups, rows in them, and that it is at any step."""
    if found is None:
        return _NONE, _NONE, _NONE
    some = np.flatnonzero(found.number >= exclusion.left_out)
    some = some[exclusion.since(found.number[some]) <= row]
    return found.chunk[some], found.row[some], np.zeros(len(some), dtype=np.int64)


def _without(dataset: PackedDataset, exclusion: Exclusion) -> PackedDataset:
    found = found_in(RowGroups(dataset.core), exclusion.ids)
    some = found.number < exclusion.left_out
    with index_progress() as progress:
        core = dataset.core.without(dataset.packing.column, found.chunk[some], found.row[some], progress=progress)
    kept = PackedDataset(core, dataset.cache, dataset.packing, dataset.open_again)
    if dataset.weight and not kept.weight:
        raise ValueError(f"exclude leaves no token of {core.url}")
    return kept


_NONE = np.zeros(0, dtype=np.int64)

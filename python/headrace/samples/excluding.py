"""Which items names of documents mean: in a source, and in the numbers of a pipeline."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .document_ids import DocumentIds, read_ids
from .pipeline import Pipeline
from .selection import Selection
from .source import Named, Place

__all__ = ["Found", "Marked", "among", "document_ids", "found_in", "marked", "without"]

_Ints = npt.NDArray[np.int64]


class Found(NamedTuple):
    """Items of a source that were named, each once, by chunk and row."""

    chunk: _Ints
    """int64, (items,): never decreasing."""
    row: _Ints
    """int64, (items,): ascending in each chunk."""
    number: _Ints
    """int64, (items,): which of the names."""


class Marked(NamedTuple):
    """Items of a pipeline that were named."""

    position: _Ints
    """int64, (items,): ascending."""
    number: _Ints
    """int64, (items,): which of the names."""


def document_ids(what: Any, sources: Iterable[Named], pipelines: Sequence[Pipeline] | None) -> DocumentIds:
    """The documents that a user means, who is warned of those that there are not.

    Args:
        what: see `read_ids`; or a function that is called with the `Place` of every item of the sources, and says
            whether it is meant.
        sources: that documents may lie in.
        pipelines: in place of `what`, those whose samples are meant: in the order of storage.

    Raises:
        TypeError: if it is nothing of that kind.
        ValueError: if a name is none.
    """
    distinct = list({id(source): source for source in sources}.values())
    if pipelines is not None:
        return DocumentIds(place for pipeline in pipelines for place in _all_places(pipeline))
    if callable(what):
        return DocumentIds(place for source in distinct for place in _meant(what, source))
    ids = DocumentIds(read_ids(what))
    missing = np.ones(len(ids), dtype=np.bool_)
    for source in distinct:
        missing[_named(source, ids)[2]] = False
    if missing.any():
        warnings.warn(
            f"headrace: exclude: {int(missing.sum()):,} of {len(ids):,} documents are not in the dataset, the first is "
            f"{ids.text(int(missing.argmax()))!r}\nhint: names are those that batch.sources() tells of this dataset",
            stacklevel=7,
        )
    return ids


def found_in(source: Named, ids: DocumentIds) -> Found:
    """The items of a source that are named."""
    chunk, row, number = _named(source, ids)
    order = np.lexsort((number, row, chunk))
    chunk, row, number = chunk[order], row[order], number[order]
    # One that has two names goes by that which came first.
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = (np.diff(chunk) != 0) | (np.diff(row) != 0)
    return Found(chunk[is_first], row[is_first], number[is_first])


def marked(pipeline: Pipeline, ids: DocumentIds) -> Marked:
    """The items of a pipeline that are named."""
    selection = pipeline.selection
    sources = {id(origin.source): origin.source for origin in pipeline.origins}
    found = {key: _by_chunk(found_in(source, ids)) for key, source in sources.items()}
    chunks = [found[id(origin.source)] for origin in pipeline.origins]
    items: list[_Ints] = [_NONE]
    numbers: list[_Ints] = [_NONE]
    for piece, origin, chunk in _pieces(selection):
        there = chunks[origin].get(chunk)
        if there is None:
            continue
        own = selection.rows_of(piece)
        at, hit = among(there.row, own)
        items.append(selection.starts[piece] + np.flatnonzero(hit))
        numbers.append(there.number[at[hit]])
    stored = Marked(np.concatenate(items), np.concatenate(numbers))
    if selection.index is None:
        return stored
    at, hit = among(stored.position, selection.index)
    return Marked(np.flatnonzero(hit), stored.number[at[hit]])


def without(pipeline: Pipeline, positions: _Ints) -> Pipeline:
    """A pipeline without the items at some positions, ascending."""
    return replace(pipeline, selection=pipeline.selection.without(positions)) if len(positions) else pipeline


def _named(source: Named, ids: DocumentIds) -> tuple[_Ints, _Ints, _Ints]:
    """The chunks and rows in a source of those names that mean something there, and the names' numbers."""
    chunks: list[_Ints] = [_NONE]
    rows: list[_Ints] = [_NONE]
    numbers: list[_Ints] = [_NONE]
    for file, number, some, names in ids.by_chunk():
        found = source.named(file, number, some)
        if found is not None:
            chunk, is_there = found
            rows.append(some[is_there])
            chunks.append(np.full(len(rows[-1]), chunk, dtype=np.int64))
            numbers.append(names[is_there])
    return np.concatenate(chunks), np.concatenate(rows), np.concatenate(numbers)


def _by_chunk(found: Found) -> dict[int, Found]:
    if not len(found.chunk):
        return {}
    ends = np.flatnonzero(np.diff(found.chunk)) + 1
    parts = zip(*(np.split(column, ends) for column in found), strict=True)
    return {int(part[0][0]): Found(*part) for part in parts}


def among(some: _Ints, values: _Ints) -> tuple[_Ints, npt.NDArray[np.bool_]]:
    """For each value its place in an ascending array, and whether it is there."""
    at = np.searchsorted(some, values)
    hit = at < len(some)
    hit[hit] = some[at[hit]] == values[hit]
    return at, hit


def _meant(function: Callable[[Place], object], source: Named) -> Iterator[Place]:
    for chunk, size in enumerate(source.sizes.tolist()):
        for row in range(size):
            place = source.place(chunk, row)
            if function(place):
                yield place


def _pieces(selection: Selection) -> Iterator[tuple[int, int, int]]:
    """Pieces by number, with their origin and chunk."""
    origins: list[int] = selection.origin.tolist()
    chunks: list[int] = selection.chunk.tolist()
    return zip(range(selection.pieces), origins, chunks, strict=True)


def _all_places(pipeline: Pipeline) -> Iterator[Place]:
    selection = pipeline.selection
    for piece, origin, chunk in _pieces(selection):
        source = pipeline.origins[origin].source
        for row in selection.rows_of(piece).tolist():
            yield source.place(chunk, row)


_NONE: _Ints = np.zeros(0, dtype=np.int64)

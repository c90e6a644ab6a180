"""Which items names of documents mean: in a source, and in the numbers of a pipeline."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace._frames import warn

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


def document_ids(what: Any, sources: Iterable[Named], pipeline: Pipeline | None) -> DocumentIds:
    """The documents that a user means, who is warned of those that there are not.

    Args:
        what: see `read_ids`; or a function that is called with the `Place` of every item of the sources, and says
            whether it is meant.
        sources: that documents may lie in.
        pipeline: in place of `what`, one whose samples are meant: in the order of storage.

    Raises:
        TypeError: if it is nothing of that kind.
        ValueError: if a name is none, or the pipeline has other samples of a file than a source.
    """
    distinct = list({id(source): source for source in sources}.values())
    if callable(what):
        return DocumentIds(place for source in distinct for place in _meant(what, source))
    if pipeline is None:
        ids, hint = DocumentIds(read_ids(what)), "names are those that batch.sources() tells of this dataset"
    else:
        ids, hint = DocumentIds(_all_places(pipeline)), "files are told from each other by their whole URLs"
        _expect_alike(ids.files, pipeline, distinct)
    missing = np.ones(len(ids), dtype=np.bool_)
    for source in distinct:
        missing[_named(source, ids)[2]] = False
    if missing.any():
        warn(
            f"exclude: {int(missing.sum()):,} of {len(ids):,} documents are not in the dataset, the first is "
            f"{ids.text(int(missing.argmax()))!r}\nhint: {hint}"
        )
    # By names that say nothing of where the data lies, as long as one source has them.
    return ids if pipeline is None or len(distinct) > 1 else _renamed(ids, distinct[0])


def _expect_alike(files: Iterable[str], pipeline: Pipeline, sources: Sequence[Named]) -> None:
    """Refuses a pipeline whose source makes other samples of a file than one of those that documents may lie in."""
    own = {id(origin.source): origin.source for origin in pipeline.origins}.values()
    for file in files:
        counts = [found for source in own if (found := source.items_in(file)) is not None]
        for source in sources:
            found = source.items_in(file)
            if found is not None and found not in counts:
                raise ValueError(
                    f"exclude: expected a dataset that has {sum(found):,} samples of {file}, as the loader's, found "
                    f"one with {sum(counts[0]):,} or in other chunks\nhint: open both in the same way"
                )


def _renamed(ids: DocumentIds, source: Named) -> DocumentIds:
    """The same documents by the places that their source tells; those that it lacks as they are."""
    places = [Place(ids.files[file], *rest) for file, *rest in zip(ids.file, ids.chunk, ids.row, strict=True)]
    for chunk, row, number in zip(*_named(source, ids), strict=True):
        places[number] = source.place(int(chunk), int(row))
    return DocumentIds(places)


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
            rows.append(found.rows)
            chunks.append(np.full(len(found.rows), found.chunk, dtype=np.int64))
            numbers.append(names[found.is_there])
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
        yield from source.whole_places(chunk, selection.rows_of(piece).tolist())


_NONE: _Ints = np.zeros(0, dtype=np.int64)

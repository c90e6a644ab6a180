"""Documents of some items one after another, with seed 0, without a loader: groups are those of a single lane."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from .applying import Failed, add_note
from .cache import ChunkCache
from .document_pipeline import DocumentPipeline
from .draws import Key
from .stages import BatchMap

__all__ = ["documents_at"]

_READ_AHEAD = 64
"""Items that are asked for at once."""


def documents_at(pipeline: DocumentPipeline, positions: Any, cache: ChunkCache) -> Iterator[Any]:
    """The documents of the items at some positions, in order."""
    found: Iterator[tuple[Any, Key]] = _of_items(pipeline, positions, cache)
    for level in range(1, len(pipeline.levels)):
        found = _of_groups(pipeline, level, found)
    for document, _ in found:
        yield document


def _of_items(pipeline: DocumentPipeline, positions: Any, cache: ChunkCache) -> Iterator[tuple[Any, Key]]:
    base = pipeline.base
    for begin in range(0, len(positions), _READ_AHEAD):
        some = positions[begin : begin + _READ_AHEAD]
        keys = [Key(0, 0, position) for position in some.tolist()]
        items = base.expand(some, cache, key_of=keys.__getitem__, then=pipeline.levels[0])
        for key, item in zip(keys, items, strict=True):
            if isinstance(item, Failed):
                add_note(item.error, base.note(key.position))
                raise item.error
            for number, document in enumerate(item):
                yield document, replace(key, document=key.part(number))


def _of_groups(pipeline: DocumentPipeline, level: int, found: Iterator[tuple[Any, Key]]) -> Iterator[tuple[Any, Key]]:
    stage = pipeline.levels[level][0]
    assert isinstance(stage, BatchMap)  # as `levels` cuts them
    while group := list(islice(found, stage.size)):
        key = group[0][1]
        made = pipeline.group(level, [document for document, _ in group], key)
        if isinstance(made, Failed):
            add_note(made.error, pipeline.base.note(key.position))
            raise made.error
        for number, document in enumerate(made):
            yield document, replace(key, document=key.part(number))

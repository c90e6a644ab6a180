"""Stages applied to samples: each item becomes a list of documents, none of which depends on any other item."""

from collections.abc import Callable, Sequence
from typing import Any, final

from headrace.errors import StoreError

from .draws import Draws, Key
from .stages import DROPPED, Stage, Tokenize

__all__ = ["Failed", "add_note", "apply_stages"]


@final
class Failed:
    """Stands for an item that could not be read, or of which a function raised."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


def apply_stages(
    stages: Sequence[Stage],
    items: list[list[Any] | Failed],
    key_of: Callable[[int], Key],
    *,
    first: int,
    skip: Callable[[int, Exception], None] | None,
) -> None:
    """Makes of each item's documents, in place, what the stages make of them; no `BatchMap` among them.

    An item's documents go through all stages before the next item's, but for those stages that take many texts at once.

    Args:
        stages: in order.
        items: the documents of each; one that failed stays as it is.
        key_of: of the random numbers for the item with an index.
        first: the number of the first stage in its pipeline.
        skip: called with an item's index and an error for each document that is left out for it; None to let the item
            fail with it.

    Raises:
        StoreError: if a function asks a store that does not answer.
    """
    begin = 0
    for number, stage in enumerate(stages):
        if isinstance(stage, Tokenize):
            _apply_each(stages[begin:number], items, key_of, first + begin, skip)
            _apply_wide(stage, items, skip)
            begin = number + 1
    _apply_each(stages[begin:], items, key_of, first + begin, skip)


def _apply_each(
    stages: Sequence[Stage],
    items: list[list[Any] | Failed],
    key_of: Callable[[int], Key],
    first: int,
    skip: Callable[[int, Exception], None] | None,
) -> None:
    if not stages:
        return
    for index, documents in enumerate(items):
        if type(documents) is not Failed and documents:
            try:
                items[index] = _through(stages, documents, index, key_of, first, skip)
            except StoreError:
                raise
            except Exception as error:
                items[index] = Failed(error)


def _through(
    stages: Sequence[Stage],
    documents: Any,
    index: int,
    key_of: Callable[[int], Key],
    first: int,
    skip: Callable[[int, Exception], None] | None,
) -> list[Any]:
    """The documents of one item, through some stages."""
    for number, stage in enumerate(stages, first):
        made: list[Any] = []
        key = key_of(index) if stage.random else None
        for place, document in enumerate(documents):
            try:
                found = stage(document, None if key is None else Draws(key, number, place))
            except StoreError:
                raise
            except Exception as error:
                named = _named(error, stage)
                if skip is None:
                    if named is error:
                        raise
                    raise named from error
                skip(index, named)
                continue
            if stage.many:
                made += found
            elif found is not DROPPED:
                made.append(found)
        documents = made
    return documents


def _apply_wide(
    stage: Tokenize, items: list[list[Any] | Failed], skip: Callable[[int, Exception], None] | None
) -> None:
    alive = [(index, documents) for index, documents in enumerate(items) if type(documents) is not Failed]
    try:
        made = stage.all([document for _, documents in alive for document in documents])
    except StoreError:
        raise
    except Exception:
        # One by one it fails likewise, and tells which.
        for index, documents in alive:
            items[index] = _one_by_one(stage, documents, index, skip)
        return
    begin = 0
    for index, documents in alive:
        items[index] = made[begin : begin + len(documents)]
        begin += len(documents)


def _one_by_one(
    stage: Tokenize, documents: list[Any], index: int, skip: Callable[[int, Exception], None] | None
) -> list[Any] | Failed:
    made: list[Any] = []
    for document in documents:
        try:
            made += stage.all([document])
        except Exception as error:
            named = _named(error, stage)
            if skip is None:
                return Failed(named)
            skip(index, named)
    return made


def _named(error: Exception, stage: Stage) -> Exception:
    """The error of a stage, with a note that names it."""
    if isinstance(error, StopIteration):
        # Where samples are asked for, it would pass for the end of the data.
        wrapped = RuntimeError(f"{stage!r} raised StopIteration")
        wrapped.__cause__ = error
        return wrapped
    add_note(error, f"headrace: raised in {stage!r}")
    return error


def add_note(error: BaseException, note: str) -> None:
    """Adds a note once: a function may raise the same exception again and again."""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)

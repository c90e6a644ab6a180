"""How items become documents, and these rows: a description, and what becomes of a group of documents."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .applying import Failed, apply_stages
from .draws import Key
from .packing import RowPacking
from .pipeline import Pipeline
from .stages import BatchMap, Filter, Stage

__all__ = ["DocumentPipeline"]


@dataclass(frozen=True)
class DocumentPipeline:
    """Items, and how they become documents, and these rows. It never changes and pickles."""

    base: Pipeline
    """What happens to each item alone, one to one or none."""
    stages: tuple[Stage, ...] = ()
    """What happens then: one to many, and many to many."""
    packing: RowPacking | None = None
    """How documents become rows; None if each is a row."""

    @cached_property
    def levels(self) -> tuple[tuple[Stage, ...], ...]:
        """The stages cut before each `BatchMap`: the first level makes documents of items, and each further one of
        groups of the documents before it, beginning with its `BatchMap`.
        """  # noqa: D205
        levels: list[list[Stage]] = [[]]
        for stage in self.stages:
            if isinstance(stage, BatchMap):
                levels.append([])
            levels[-1].append(stage)
        return tuple(map(tuple, levels))

    @property
    def is_counted(self) -> bool:
        """Whether each item is one row, as far as none is left out for an error."""
        drops = self.base.filtered or any(isinstance(stage, Filter) or stage.many for stage in self.stages)
        return self.packing is None and not drops

    def functions(self) -> list[str]:
        """What is done to items, origin after origin, and then to documents, as text: the user's functions by name."""
        stages = [stage for origin in self.base.origins for stage in origin.stages]
        return [repr(stage) for stage in (*stages, *self.stages)]

    def first_stage(self, level: int) -> int:
        """The number of a level's first stage."""
        return self.base.stages + sum(len(stages) for stages in self.levels[:level])

    def group(
        self, level: int, documents: list[Any], key: Key, skip: Callable[[int, Exception], None] | None = None
    ) -> list[Any] | Failed:
        """What becomes of a group of documents at a level above the first.

        Args:
            level: which.
            documents: as many as its `BatchMap` takes, or what is left at the end.
            key: of the first of them, by its part.
            skip: called with 0 and an error for each document that is left out for it; for the group likewise.
        """
        items: list[list[Any] | Failed] = [[documents]]
        apply_stages(self.levels[level], items, lambda _: key, first=self.first_stage(level), skip=skip)
        return items[0]

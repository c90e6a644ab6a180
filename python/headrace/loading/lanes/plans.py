"""Which plans a dataset has."""

from collections.abc import Mapping
from typing import Any

from headrace._changes import Adapted, changes_of
from headrace.loading.added import Held, is_grown, noted
from headrace.loading.exclusion import Exclusion
from headrace.mixing import MixDataset, documents_of
from headrace.samples.document_pipeline import DocumentPipeline
from headrace.samples.dynamic_dataset import DynamicDataset

from .added import first_unused, held_by, with_held
from .documents import DocumentPlan
from .mixture_planner import MixturePlanner
from .source import LanePlan, Planner, Setup

__all__ = ["has_rows", "planner_of"]


class _DocumentPlanner(Planner):
    """Plans of a dynamic pipeline."""

    def __init__(self, pipeline: DocumentPipeline) -> None:
        self._pipeline = pipeline

    def plan(self, setup: Setup, state: Mapping[str, Any] | None) -> LanePlan:
        """See `Planner.plan`."""
        return DocumentPlan(self._pipeline, setup, changes_of(state))

    def adapted(
        self, state: Mapping[str, Any], exclusion: Exclusion | None, *, epochs: int | None, strict: bool
    ) -> Adapted:
        """See `Planner.adapted`: items may have been added."""
        base = self._pipeline.base if exclusion is None else exclusion.kept(self._pipeline.base)
        before = held_by(state)
        if not is_grown(base, before):
            return Adapted(dict(state))
        begin = Adapted(with_held(state, Held.by(base)))
        marks = state["lane_states"]

        def reached() -> int:
            return first_unused(self._pipeline, state, marks)

        return noted(begin, base, before, reached, epochs=epochs, strict=strict)


def planner_of(dataset: DynamicDataset | MixDataset) -> Planner:
    """What makes the plans of a dataset."""
    return MixturePlanner(dataset) if isinstance(dataset, MixDataset) else _DocumentPlanner(dataset.pipeline)


def has_rows(dataset: DynamicDataset | MixDataset) -> bool:
    """Whether rows are lines of arrays, not samples."""
    if isinstance(dataset, MixDataset):
        return any(documents_of(one).packing is not None for one in dataset.sources.values())
    return dataset.pipeline.packing is not None

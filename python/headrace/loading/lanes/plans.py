"""Which plans a dataset has."""

from collections.abc import Mapping
from typing import Any

from headrace.mixing import MixDataset, documents_of
from headrace.samples.dynamic import DocumentPipeline, DynamicDataset

from .documents import DocumentPlan
from .mixture import MixturePlanner
from .source import LanePlan, Planner, Setup

__all__ = ["has_rows", "planner_of"]


class _DocumentPlanner(Planner):
    """Plans of a dynamic pipeline."""

    def __init__(self, pipeline: DocumentPipeline) -> None:
        self._pipeline = pipeline

    def plan(self, setup: Setup, state: Mapping[str, Any] | None) -> LanePlan:
        """See `Planner.plan`."""
        del state
        return DocumentPlan(self._pipeline, setup)


def planner_of(dataset: DynamicDataset | MixDataset) -> Planner:
    """What makes the plans of a dataset."""
    return MixturePlanner(dataset) if isinstance(dataset, MixDataset) else _DocumentPlanner(dataset.pipeline)


def has_rows(dataset: DynamicDataset | MixDataset) -> bool:
    """Whether rows are lines of arrays, not samples."""
    if isinstance(dataset, MixDataset):
        return any(documents_of(one).packing is not None for one in dataset.sources.values())
    return dataset.pipeline.packing is not None

"""Which plan a dataset has."""

from collections.abc import Callable

from headrace.mixing import MixDataset
from headrace.samples.dynamic import DynamicDataset

from .documents import DocumentPlan
from .mixture import MixturePlan, documents_of
from .source import LanePlan, Setup

__all__ = ["has_rows", "plan_of"]


def plan_of(dataset: DynamicDataset | MixDataset) -> Callable[[Setup], LanePlan]:
    """A function that makes the plan of a dataset for a run."""
    if isinstance(dataset, MixDataset):
        return lambda setup: MixturePlan(dataset, setup)
    return lambda setup: DocumentPlan(dataset.pipeline, setup)


def has_rows(dataset: DynamicDataset | MixDataset) -> bool:
    """Whether rows are lines of arrays, not samples."""
    if isinstance(dataset, MixDataset):
        return any(documents_of(one).packing is not None for one in dataset.sources.values())
    return dataset.pipeline.packing is not None

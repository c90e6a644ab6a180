"""Which plan a dataset has."""

from collections.abc import Callable

from headrace.samples.dynamic import DynamicDataset

from .documents import DocumentPlan
from .source import LanePlan, Setup

__all__ = ["plan_of"]


def plan_of(dataset: DynamicDataset) -> Callable[[Setup], LanePlan]:
    """A function that makes the plan of a dataset for a run."""
    return lambda setup: DocumentPlan(dataset.pipeline, setup)

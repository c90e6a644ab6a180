"""Which plans a dataset has."""

from collections.abc import Mapping
from typing import Any

from headrace._changes import Adapted, changes_of
from headrace.errors import StateMismatch
from headrace.loading.added import is_grown, with_added
from headrace.loading.exclusion import Exclusion
from headrace.mixing import MixDataset, documents_of
from headrace.samples.dynamic import DocumentPipeline, DynamicDataset

from .documents import DocumentPlan
from .marks import check_mark, items_used, mark_from
from .mixture import MixturePlanner
from .source import LanePlan, Planner, Setup

__all__ = ["has_rows", "planner_of"]


class _DocumentPlanner(Planner):
    """Plans of a dynamic pipeline."""

    def __init__(self, pipeline: DocumentPipeline) -> None:
        self._pipeline = pipeline

    def plan(self, setup: Setup, state: Mapping[str, Any] | None) -> LanePlan:
        """See `Planner.plan`."""
        return DocumentPlan(self._pipeline, setup, changes_of(state))

    def adapted(self, state: Mapping[str, Any], exclusion: Exclusion | None, *, strict: bool) -> Adapted:
        """See `Planner.adapted`: items may have been added."""
        base = self._pipeline.base if exclusion is None else exclusion.kept(self._pipeline.base)
        if not is_grown(base, state):
            return Adapted(dict(state))
        return with_added(base, state, lambda: _reached(self._pipeline, state), strict=strict)


def planner_of(dataset: DynamicDataset | MixDataset) -> Planner:
    """What makes the plans of a dataset."""
    return MixturePlanner(dataset) if isinstance(dataset, MixDataset) else _DocumentPlanner(dataset.pipeline)


def _reached(pipeline: DocumentPipeline, state: Mapping[str, Any]) -> int:
    """The first row of the order of items behind all of which anything was used.

    Raises:
        StateMismatch: if that cannot be known.
    """
    if state["part"]:
        raise StateMismatch(
            "state: it is a part, and from which pass on added data is used depends on all lanes\n"
            "hint: load the parts of all ranks as a list, or what gather_state or State.merge made of them"
        )
    rows = [0]
    for number, saved in state["lane_states"].items():
        lane = int(number)
        check_mark(lane, saved, pipeline, state["lanes"])
        items = items_used(lane, mark_from(saved, pipeline), pipeline)
        if items:
            rows.append((items - 1) * state["lanes"] + lane + 1)
    return max(rows)


def has_rows(dataset: DynamicDataset | MixDataset) -> bool:
    """Whether rows are lines of arrays, not samples."""
    if isinstance(dataset, MixDataset):
        return any(documents_of(one).packing is not None for one in dataset.sources.values())
    return dataset.pipeline.packing is not None

"""Lanes of documents that are made of items: the plan of a dynamic pipeline, and what its rows are."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace._changes import Adapted
from headrace.loading.added import eras_of, first_samples, order_of_eras
from headrace.loading.exclusion import Masks
from headrace.loading.lengths import with_length
from headrace.samples.document_pipeline import DocumentPipeline
from headrace.samples.order import LaneOrder, Order, PermutedOrder, SequentialOrder, default_window, kind_of
from headrace.samples.pipeline import OnError, Pipeline

from .comparing import check_same
from .document_source import DocumentSource
from .items import Dealing
from .make import DocumentMaker
from .marks import check_mark, first_mark, item_of, mark_state, version_of
from .records import Origin
from .source import Column, LanePlan, LaneResources, LaneSource, Layout, Maker, Setup

__all__ = ["DocumentPlan", "layout_of"]

_Ints = npt.NDArray[np.int64]

_WINDOWS = 8
"""Windows whose order stays in memory, at least: lanes use their items up at different speeds, and drift apart."""

_WINDOW_ITEMS = 2**20
"""Items whose order stays in memory: where lanes need as many passes over few items at a time, all windows of these."""


class DocumentPlan(LanePlan):
    """The rows of a dynamic pipeline.

    Args:
        pipeline: what makes rows.
        setup: of the run.
        changes: that the run's state tells of.
        name: of the source in a mixture, for errors and in changes; None outside of one.

    Raises:
        ValueError: if there is no item.
        StateMismatch: if the changes are not of such a run.
    """

    def __init__(
        self,
        pipeline: DocumentPipeline,
        setup: Setup,
        changes: Sequence[Mapping[str, Any]] = (),
        *,
        name: str | None = None,
    ) -> None:
        self.name = name
        self.masks: Masks | None = None
        if setup.exclusion is not None:
            base, masks = setup.exclusion.applied(pipeline.base)
            pipeline = replace(pipeline, base=base)
            self.masks = masks if setup.masks else None
        self.documents = pipeline
        self.setup = setup
        base = pipeline.base
        self.items = len(base)
        if not self.items:
            raise ValueError("the dataset has no samples")
        self.kind = kind_of(base, setup.shuffle)
        if self.kind != "lanes" and setup.window not in (None, 1):
            raise ValueError(f"window must be left out for a {self.kind} order, got {setup.window}")
        eras = eras_of(changes, self.items, source=name)
        self.order = order_of_eras(eras, lambda count: self._order(first_samples(base, count)))
        self.window = max(1, self.order.window)
        self.origin = Origin(Dealing(self.order, setup.lanes, setup.epochs), pipeline)
        self.layout = layout_of(pipeline, pad=setup.pad, masked=setup.masks)

    def _order(self, base: Pipeline) -> Order:
        """The order of some items."""
        setup = self.setup
        if self.kind == "sequential":
            return SequentialOrder(len(base))
        if self.kind == "permutation":
            return PermutedOrder(len(base), setup.seed)
        stored = base.selection.in_storage_order()
        window = setup.window or default_window(base, stored, setup.lanes)
        kept = max(_WINDOWS, _WINDOW_ITEMS // len(base))
        return LaneOrder(stored, setup.seed, setup.lanes, window, kept=kept)

    def pipeline(self) -> dict[str, Any]:
        """See `LanePlan.pipeline`."""
        base, packing = self.documents.base, self.documents.packing
        return {
            "order": self.kind,
            "samples": self.items,
            "selection": base.selection.digest(),
            "stages": [[stage.identity() for stage in origin.stages] for origin in base.origins],
            "document_stages": [stage.identity() for stage in self.documents.stages],
            **({"mode": None} if packing is None else packing.identity()),
            "marks": version_of(self.documents),
        }

    def stages(self) -> list[str]:
        """See `LanePlan.stages`."""
        return self.documents.functions()

    def sources(self) -> list[dict[str, Any]]:
        """See `LanePlan.sources`."""
        return [origin.summary() for origin in self.documents.base.origins]

    def adapted(self, state: Mapping[str, Any], *, strict: bool) -> Adapted:
        """See `LanePlan.adapted`."""
        begin, names = Adapted(dict(state)), self.stages()
        if renamed := check_same(self.pipeline(), self.sources(), names, state, strict=strict):
            begin = begin.noted("functions", state["functions"], names, renamed)
        packing = self.documents.packing
        if packing is None:
            return begin
        return begin.then(with_length(begin.state, state["pipeline"]["seq_len"], packing.seq_len, strict=strict))

    def makers(self, *, memory: int, on_error: OnError) -> list[Maker]:
        """See `LanePlan.makers`."""
        masked = None if self.masks is None else self.masks.positions
        return [DocumentMaker(self.documents, seed=self.setup.seed, on_error=on_error, memory=memory, masked=masked)]

    def first(self, lane: int) -> Any:
        """See `LanePlan.first`."""
        del lane
        return mark_state(first_mark(self.documents))

    def open(self, lanes: _Ints, states: Mapping[int, Any], resources: LaneResources) -> LaneSource:
        """See `LanePlan.open`."""
        return DocumentSource(self.origin, self.setup, lanes, states, resources, name=self.name)

    def check_state(self, lane: int, state: Any) -> None:
        """See `LanePlan.check_state`."""
        check_mark(lane, state, self.documents, self.setup.lanes)

    def epoch(self, states: Mapping[int, Any]) -> int:
        """See `LanePlan.epoch`."""
        return min(self.origin.dealing.pass_of(lane, item_of(state)) for lane, state in states.items())


def layout_of(pipeline: DocumentPipeline, *, pad: bool, masked: bool = False) -> Layout:
    """What a row of a pipeline is; with `pad` its last ones may hold padding, with `masked` documents may be masked."""
    packing = pipeline.packing
    if packing is None:
        return Layout(columns={}, masked=masked)
    names = [column.name for column in packing.columns]
    return Layout(
        columns={column.name: Column(column.dtype, packing.width, column.pad) for column in packing.columns},
        seq_len=packing.seq_len,
        boundaries=packing.boundaries,
        cu_seqlens_size=packing.cu_seqlens_size,
        loss_mask=(packing.mode != "concat" or pad or masked) and "loss_mask" not in names,
        masked=masked,
    )

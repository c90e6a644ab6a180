"""Lanes of a mixture: each takes its rows from the same lane of the sources, one of them at a time.

Which source a lane's next row is of depends on the number of that row alone (docs/order.md, "Mixtures"), so a lane's
state is that number, and the states of its lanes in the sources.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import accumulate
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from headrace import _core
from headrace.errors import StateMismatch
from headrace.loading.mixture_weights import Weighting, phases
from headrace.mixing import Mixable, MixDataset
from headrace.samples.dataset import SampleDataset
from headrace.samples.dynamic import DocumentPipeline, DynamicDataset
from headrace.samples.pipeline import OnError

from .documents import DocumentPlan, layout_of
from .source import LanePlan, LaneResources, LaneSource, Layout, Maker, Rows, Setup

__all__ = ["MixturePlan", "check_alike", "documents_of"]

_Ints = npt.NDArray[np.int64]

_LISTED: Final = 100
"""Documents that were left out of which `stats` tells the place."""


def check_alike(dataset: MixDataset) -> None:
    """Refuses sources whose rows do not fit into one batch.

    Raises:
        ValueError: naming two sources, and what differs.
    """
    layouts = {name: layout_of(documents_of(one), pad=False) for name, one in dataset.sources.items()}
    (first, one), *others = layouts.items()
    for name, other in others:
        for field in fields(Layout):
            here, there = getattr(one, field.name), getattr(other, field.name)
            # A mask is made for all rows if one may hold padding.
            if here != there and field.name != "loss_mask":
                raise ValueError(
                    f"the rows of all sources must be alike: {field.name} is {here!r} for source {first!r} "
                    f"and {there!r} for source {name!r}"
                )
    if "source" in one.columns:
        raise ValueError(f"no column of source {first!r} must be named 'source', as the numbers of sources are")


def documents_of(dataset: Mixable) -> DocumentPipeline:
    """What a source of a mixture is made of, where its rows come lane by lane."""
    if isinstance(dataset, SampleDataset):
        return DocumentPipeline(dataset.pipeline)
    return dataset.pipeline if isinstance(dataset, DynamicDataset) else dataset.documents


class MixturePlan(LanePlan):
    """The rows of a mixture of sources whose rows come lane by lane.

    Args:
        dataset: what is mixed.
        setup: of the run, and of each source.

    Raises:
        ValueError: if a source has no item, or batches do not go with the weights.
    """

    def __init__(self, dataset: MixDataset, setup: Setup) -> None:
        if setup.epochs is not None:
            raise ValueError(
                f"epochs has no meaning for a mixture, whose sources have each their own, got {setup.epochs}\n"
                "hint: stop after a number of steps"
            )
        self.dataset = dataset
        self.setup = setup
        self.plans = [DocumentPlan(documents_of(one), setup) for one in dataset.sources.values()]
        layouts = [plan.layout for plan in self.plans]
        self.layout = replace(layouts[0], loss_mask=any(one.loss_mask for one in layouts), source=True)
        self.window = setup.window
        self.items = sum(plan.items for plan in self.plans)
        if dataset.weights.over == "tokens" and not self.layout.packed:
            raise ValueError("a schedule over tokens needs sources that are packed: samples have none")
        self._weights = Weighting(0, dataset.weights)
        self.core = _core.Mixture(
            seed=setup.seed,
            lanes=setup.lanes,
            together=dataset.per_batch,
            source_lanes=[setup.lanes] * len(self.plans),
            phases=phases(
                [self._weights],
                dataset.names,
                setup.steps,
                setup.lanes,
                self.layout.seq_len,
                per_batch=dataset.per_batch,
            ),
            limits=[None] * len(self.plans),
            stop=False,
        )

    def pipeline(self) -> dict[str, Any]:
        """See `LanePlan.pipeline`."""
        return {
            "mode": "mixture",
            "names": list(self.dataset.names),
            "per_batch": self.dataset.per_batch,
            "weights": self._weights.state(),
            "of_sources": [plan.pipeline() for plan in self.plans],
        }

    def stages(self) -> list[str]:
        """See `LanePlan.stages`."""
        return [name for plan in self.plans for name in plan.stages()]

    def sources(self) -> list[dict[str, Any]]:
        """See `LanePlan.sources`."""
        return [source for plan in self.plans for source in plan.sources()]

    def makers(self, *, memory: int, on_error: OnError) -> list[Maker]:
        """See `LanePlan.makers`."""
        share = max(1, memory // len(self.plans))
        return [maker for plan in self.plans for maker in plan.makers(memory=share, on_error=on_error)]

    def first(self, lane: int) -> Any:
        """See `LanePlan.first`."""
        return {"row": 0, "sources": [plan.first(lane) for plan in self.plans]}

    def open(self, lanes: _Ints, states: Mapping[int, Any], resources: LaneResources) -> LaneSource:
        """See `LanePlan.open`."""
        return _MixtureSource(self, lanes, states, resources)

    def epoch(self, states: Mapping[int, Any]) -> int:
        """See `LanePlan.epoch`."""
        return min(plan.epoch(_of(states, number)) for number, plan in enumerate(self.plans))

    def check_state(self, lane: int, state: Any) -> None:
        """See `LanePlan.check_state`."""
        empty: dict[str, Any] = {}
        found = cast("Mapping[str, Any]", state) if isinstance(state, Mapping) else empty
        row, sources = found.get("row"), found.get("sources")
        if set(found) != {"row", "sources"} or type(row) is not int or not 0 <= row < _core.Mixture.MOST_ROUNDS:
            raise StateMismatch(f"state: expected lane {lane} to have a row and the states of sources, found {state!r}")
        if not isinstance(sources, list) or len(cast("list[Any]", sources)) != len(self.plans):
            raise StateMismatch(f"state: expected lane {lane} to have {len(self.plans)} sources, found {sources!r}")
        for plan, one in zip(self.plans, cast("list[Any]", sources), strict=True):
            plan.check_state(lane, one)

    def progress(self, row: int) -> dict[str, Any]:
        """See `LanePlan.progress`."""
        weights = self.core.weights(row // self.setup.lanes)
        counts = zip(self.dataset.names, self.core.counts(row), weights, strict=True)
        return {"sources": {name: {"rows": rows, "weight": weight / sum(weights)} for name, rows, weight in counts}}


def _of(states: Mapping[int, Any], number: int) -> dict[int, Any]:
    """The states of lanes in one source."""
    return {lane: state["sources"][number] for lane, state in states.items()}


class _MixtureSource(LaneSource):
    """See `MixturePlan`.

    Args:
        plan: which rows.
        lanes: the own lanes.
        states: where they are.
        resources: what may be used.
    """

    def __init__(self, plan: MixturePlan, lanes: _Ints, states: Mapping[int, Any], resources: LaneResources) -> None:
        self.lanes = lanes
        self._plan = plan
        self._rows = np.array([states[lane]["row"] for lane in lanes.tolist()], dtype=np.int64)
        """int64, (own lanes,): the next row of each, counted in the lane."""
        share = max(1, resources.memory // len(plan.plans))
        counts = [len(one.makers(memory=1, on_error="raise")) for one in plan.plans]
        firsts = accumulate(counts[:-1], initial=resources.makers)
        self._sources: list[LaneSource] = [
            one.open(lanes, _of(states, number), replace(resources, makers=first, memory=share))
            for number, (one, first) in enumerate(zip(plan.plans, firsts, strict=True))
        ]

    def want(self, counts: _Ints) -> None:
        """See `LaneSource.want`."""
        ahead = np.arange(int(counts.max(initial=0)), dtype=np.int64)[:, None]
        drawn = self._drawn(self._rows + ahead, self.lanes)
        for number, source in enumerate(self._sources):
            source.want(((drawn == number) & (ahead < counts)).sum(axis=0))

    def take(self, lanes: Sequence[int], into: Rows, at: Sequence[int]) -> list[int]:
        """See `LaneSource.take`."""
        indices, places = np.array(lanes, dtype=np.int64), np.array(at, dtype=np.int64)
        drawn = self._drawn(self._rows[indices], self.lanes[indices])
        ended: list[int] = []
        for number, source in enumerate(self._sources):
            own = np.flatnonzero(drawn == number)
            if own.size:
                short = source.take(indices[own].tolist(), into, places[own].tolist())
                into.source[places[own]] = number
                ended += own[short].tolist()
        into.source[places[ended]] = -1
        taken = np.ones(len(indices), dtype=np.bool_)
        taken[ended] = False
        self._rows[indices[taken]] += 1
        return sorted(ended)

    def snapshot(self) -> object:
        """See `LaneSource.snapshot`."""
        return self._rows.copy(), tuple(source.snapshot() for source in self._sources)

    def state(self, snapshot: Any) -> dict[int, Any]:
        """See `LaneSource.state`."""
        rows, snapshots = snapshot
        states = [source.state(one) for source, one in zip(self._sources, snapshots, strict=True)]
        return {
            lane: {"row": row, "sources": [one[lane] for one in states]}
            for lane, row in zip(self.lanes.tolist(), rows.tolist(), strict=True)
        }

    def epoch(self, snapshot: Any) -> int:
        """See `LaneSource.epoch`."""
        return min(source.epoch(one) for source, one in zip(self._sources, snapshot[1], strict=True))

    def stats(self) -> dict[str, Any]:
        """See `LaneSource.stats`."""
        total: dict[str, Any] = {}
        for source in self._sources:
            for key, value in source.stats().items():
                total[key] = total[key] + value if key in total and not isinstance(value, str) else value
        return total | {"skipped": total["skipped"][:_LISTED]}

    def close(self) -> None:
        """See `LaneSource.close`."""
        for source in self._sources:
            source.close()

    def _drawn(self, rows: _Ints, lanes: _Ints) -> _Ints:
        """The source of some rows, counted in their lanes: int64, of the shape of `rows`."""
        numbers = rows * self._plan.setup.lanes + lanes
        if not numbers.size:
            return numbers
        begin, end = int(numbers.min()), int(numbers.max()) + 1
        sources = np.frombuffer(memoryview(self._plan.core.sources(begin, end)), dtype=np.uint32)
        return sources[numbers - begin].astype(np.int64)

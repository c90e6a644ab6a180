"""Lanes of a mixture: each takes its rows from the same lane of the sources, one of them at a time.

Which source a lane's next row is of depends on the number of that row alone (docs/order.md, "Mixtures"), so a lane's
state is that number, and the states of its lanes in the sources.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from headrace import _core
from headrace._changes import Adapted, changes_of
from headrace.errors import StateMismatch
from headrace.loading.lengths import Lengths
from headrace.loading.mixture_changes import check_counts, rules
from headrace.loading.mixture_changes import fields as fields_of
from headrace.loading.mixture_weights import Weighting, check_enough, largest_shares, phases
from headrace.mixing import MixDataset, documents_of, is_empty
from headrace.samples.pipeline import OnError

from .comparing import check_same
from .documents import DocumentPlan, layout_of
from .mixture_source import MixtureSource
from .source import LanePlan, LaneResources, LaneSource, Layout, Maker, Setup

__all__ = ["MixturePlan", "check_alike", "core_of"]

_Ints = npt.NDArray[np.int64]


def check_alike(dataset: MixDataset) -> None:
    """Refuses sources whose rows do not fit into one batch.

    Raises:
        ValueError: naming two sources, and what differs.
    """
    layouts = {name: layout_of(documents_of(one), pad=False) for name, one in dataset.sources.items()}
    (first, one), *others = layouts.items()
    for name, other in others:
        for key in map(attrgetter("name"), fields(Layout)):
            here, there = getattr(one, key), getattr(other, key)
            # A mask is made for all rows if one may hold padding.
            if here != there and key != "loss_mask":
                raise ValueError(
                    f"the rows of all sources must be alike: {key} is {here!r} for source {first!r} "
                    f"and {there!r} for source {name!r}"
                )
    if "source" in one.columns:
        raise ValueError(f"no column of source {first!r} must be named 'source', as the numbers of sources are")


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A source of a mixture, as the run has it."""

    name: str
    plan: DocumentPlan | None
    """None if it has no row, or was taken out of the mixture."""
    limit: int | None
    """Rows after which it is exhausted; None if it never is."""
    fixed: Mapping[str, Any] = field(repr=False)
    """What a state says of it."""


class MixturePlan(LanePlan):
    """The rows of a mixture of sources whose rows come lane by lane.

    Args:
        dataset: what is mixed.
        setup: of the run, and of each source.
        state: see `Planner.plan`.

    Raises:
        ValueError: if batches do not go with the weights, or there are too few rows for one.
    """

    def __init__(self, dataset: MixDataset, setup: Setup, state: Mapping[str, Any] | None) -> None:
        if setup.epochs is not None:
            raise ValueError(
                f"epochs has no meaning for a mixture, whose sources have each their own, got {setup.epochs}\n"
                'hint: mix(..., max_epochs={name: passes}), or on_exhausted="stop" or "drop", for samples; or stop '
                "after a number of steps"
            )
        self.dataset = dataset
        self.setup = setup
        self.window = setup.window
        layouts = [layout_of(documents_of(one), pad=setup.pad, masked=setup.masks) for one in dataset.sources.values()]
        self.layout = replace(layouts[0], loss_mask=any(one.loss_mask for one in layouts), source=True)
        if dataset.weights.over == "tokens" and not self.layout.packed:
            raise ValueError("a schedule over tokens needs sources that are packed: samples have none")
        saved: dict[str, Any] = {} if state is None else {entry["name"]: entry for entry in state["sources"]}
        self.parts = tuple(
            _part(dataset, name, setup, changes_of(state))
            if name in dataset.sources
            else _Part(name=name, plan=None, limit=saved[name]["limit"], fixed=saved[name])
            for name in dict.fromkeys([*saved, *dataset.names])
        )
        self.items = sum(part.plan.items for part in self.parts if part.plan is not None)
        names = [part.name for part in self.parts]
        gone = [name for name in names if name not in dataset.sources]
        self._shown = np.array([[*dataset.names, *gone].index(name) for name in names], dtype=np.int32)
        """int32, (sources,): the number that batches have for each source, which are those of the dataset's names."""
        self._weights = (
            [Weighting(0, dataset.weights)]
            if state is None
            else [Weighting.load(entry) for entry in state["pipeline"]["weights"]]
        )
        self._rules = rules(dataset, state)
        self._shares = [share / 2**48 for share in largest_shares(self._weights[-1], names)]
        self._lengths = Lengths.told(changes_of(state), self.layout.seq_len)
        self.core = core_of(
            dataset,
            self._weights,
            names,
            setup.steps,
            lanes=setup.lanes,
            lengths=self._lengths,
            seed=setup.seed,
            limits=[part.limit for part in self.parts],
        )
        check_enough(self.core, setup.steps, {part.name: part.limit for part in self.parts})
        self.rows = self.core.rows
        self._rounds = _core.Mixture.MOST_ROUNDS if self.rows is None else self.rows // setup.lanes
        self._given = self.core.counts(self._rounds * setup.lanes)
        """Rows that each source gives in the whole run."""
        if self.rows is not None and setup.pad:
            raise ValueError('remainder must be "drop" for a mixture that ends, got "pad"')

    def pipeline(self) -> dict[str, Any]:
        """See `LanePlan.pipeline`."""
        return self._rules | {"weights": [weighting.state() for weighting in self._weights]}

    def sources(self) -> list[dict[str, Any]]:
        """See `LanePlan.sources`: those that were taken out included."""
        return [dict(part.fixed) for part in self.parts]

    def adapted(self, state: Mapping[str, Any], *, strict: bool) -> Adapted:
        """See `LanePlan.adapted`."""
        renamed: dict[str, Any] = {}
        texts: list[str] = []
        for part, entry in zip(self.parts, state["sources"], strict=True):
            if entry is part.fixed or set(entry) == {"name"}:
                continue  # taken out, or new
            here = part.fixed
            of = f" of source {part.name!r}"
            if text := check_same(here["pipeline"], here["sources"], here["functions"], entry, strict=strict, of=of):
                renamed[part.name] = entry["functions"]
                texts.append(text)
        begin = Adapted(dict(state))
        if renamed:
            now = {part.name: part.fixed["functions"] for part in self.parts if part.name in renamed}
            begin = begin.noted("functions", renamed, now, *texts)
        old = [entry for entry in state["sources"] if "given" in entry]
        check_counts({"sources": old}, self.given(state["position"])[: len(old)])
        return begin

    def makers(self, *, memory: int, on_error: OnError) -> list[Maker]:
        """See `LanePlan.makers`: one for each source that has rows."""
        plans = [part.plan for part in self.parts if part.plan is not None]
        share = max(1, memory // len(plans))
        return [maker for plan in plans for maker in plan.makers(memory=share, on_error=on_error)]

    def first(self, lane: int) -> Any:
        """See `LanePlan.first`."""
        del lane
        return {"row": 0, "sources": [None] * len(self.parts)}

    def open(self, lanes: _Ints, states: Mapping[int, Any], resources: LaneResources) -> LaneSource:
        """See `LanePlan.open`: of the sources those that have rows to come."""
        coming = self._coming(_first_round(states))
        opened: dict[int, tuple[LaneSource, Any]] = {}
        made = resources.makers
        for number, part in enumerate(self.parts):
            if part.plan is None:
                continue
            if number in coming:
                # Half by weight, and half alike: a source that is drawn rarely has some, too.
                share = self._shares[number]
                memory = int(resources.memory / 2 * (share + 1 / len(coming)))
                own = replace(resources, makers=made, memory=max(1, memory), share=share)
                first = part.plan.first(0)
                opened[number] = part.plan.open(lanes, _of(states, number, first), own), first
            made += 1
        return MixtureSource(self.core, self.setup.lanes, self._shown, lanes, states, opened, self._coming)

    def epoch(self, states: Mapping[int, Any]) -> int:
        """See `LanePlan.epoch`: of sources that have rows to come, or had some in the last round."""
        coming = ((number, self.parts[number].plan) for number in self._coming(_first_round(states)))
        epochs = (plan.epoch(_of(states, number, plan.first(0))) for number, plan in coming if plan is not None)
        return min(epochs, default=0)

    def check_state(self, lane: int, state: Any) -> None:
        """See `LanePlan.check_state`."""
        found = fields_of(state)
        row, sources = found.get("row"), found.get("sources")
        if set(found) != {"row", "sources"} or type(row) is not int or not 0 <= row < _core.Mixture.MOST_ROUNDS:
            raise StateMismatch(f"state: expected lane {lane} to have a row and the states of sources, found {state!r}")
        if not isinstance(sources, list) or len(cast("list[Any]", sources)) != len(self.parts):
            raise StateMismatch(f"state: expected lane {lane} to have {len(self.parts)} sources, found {sources!r}")
        for part, one in zip(self.parts, cast("list[Any]", sources), strict=True):
            if part.plan is not None and one is not None:
                part.plan.check_state(lane, one)

    def given(self, row: int) -> list[dict[str, int]]:
        """See `LanePlan.given`: ``rows``, and ``tokens`` where they are packed."""
        rows = self.core.counts(row)
        if not self.layout.packed:
            return [{"rows": count} for count in rows]
        tokens = self._lengths.tokens_of(self.core, rows)
        return [{"rows": count, "tokens": own} for count, own in zip(rows, tokens, strict=True)]

    def progress(self, row: int, states: Callable[[], Mapping[int, Any]]) -> dict[str, Any]:
        """See `LanePlan.progress`: what each source gave, its ``weight`` now, and ``epoch``.

        That is the epoch of its slowest own lane; a source that has no row or was taken out has none.
        """
        weights = self.core.weights(row // self.setup.lanes)
        own = states()
        told: dict[str, dict[str, Any]] = {}
        for number, (part, given, weight) in enumerate(zip(self.parts, self.given(row), weights, strict=True)):
            told[part.name] = given | {"weight": weight / sum(weights)}
            if part.plan is not None:
                told[part.name]["epoch"] = part.plan.epoch(_of(own, number, part.plan.first(0)))
        return {"sources": told}

    def _coming(self, first: int) -> list[int]:
        """The numbers of the sources that have rows from a round on, or in the last one if it is behind that."""
        before = self.core.counts(min(first, self._rounds - 1) * self.setup.lanes)
        return [number for number, rows in enumerate(self._given) if rows > before[number]]


def core_of(
    dataset: MixDataset,
    weights: Sequence[Weighting],
    names: Sequence[str],
    steps: _core.Steps,
    *,
    lanes: int,
    lengths: Lengths,
    seed: int,
    limits: Sequence[int | None],
) -> _core.Mixture:
    """Which source each row is of, in a run of sources with these names and limits."""
    together = dataset.per_batch
    return _core.Mixture(
        seed=seed,
        lanes=lanes,
        together=together,
        source_lanes=[lanes] * len(names),
        phases=phases(weights, names, steps, lanes, lengths, per_batch=together),
        limits=list(limits),
        stop=dataset.on_exhausted == "stop",
    )


def _part(dataset: MixDataset, name: str, setup: Setup, changes: Sequence[Mapping[str, Any]]) -> _Part:
    """A source as the dataset has it."""
    one, passes = dataset.sources[name], dataset.passes(name)
    documents = documents_of(one)
    fixed: dict[str, Any] = {"name": name, "limit": 0, "pipeline": {}, "functions": []}
    if is_empty(one):
        return _Part(
            name=name,
            plan=None,
            limit=0,
            fixed=fixed | {"sources": [origin.summary() for origin in documents.base.origins]},
        )
    plan = DocumentPlan(documents, replace(setup, epochs=passes), changes, name=name)
    limit = None if passes is None else plan.order.begin_of(passes)
    if limit is not None and setup.skips:
        raise ValueError(
            f'on_error must be "raise" where rows are counted to tell the end of source {name!r}, got "skip"\n'
            'hint: on_exhausted="repeat" without max_epochs, and stop after a number of steps'
        )
    described = {"limit": limit, "pipeline": plan.pipeline(), "functions": plan.stages(), "sources": plan.sources()}
    return _Part(name=name, plan=plan, limit=limit, fixed=fixed | described)


def _first_round(states: Mapping[int, Any]) -> int:
    """The first round of which some lanes have a row to come."""
    return min(state["row"] for state in states.values())


def _of(states: Mapping[int, Any], number: int, first: Any) -> dict[int, Any]:
    """The states of lanes in one source, that of which nothing was taken yet included."""
    found = {lane: state["sources"][number] for lane, state in states.items()}
    return {lane: first if state is None else state for lane, state in found.items()}

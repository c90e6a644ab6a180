"""Is a mixture whose rows come lane by lane that of a state? What of it may be another, and what holds then."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from headrace._changes import Adapted
from headrace.errors import StateMismatch
from headrace.loading.added import Held, is_grown, noted
from headrace.loading.exclusion import Exclusion
from headrace.loading.lengths import Lengths, length_of, with_length
from headrace.loading.mixture_changes import changed, check_kept, check_pipeline, fields, is_count
from headrace.loading.mixture_weights import Weighting
from headrace.mixing import MixDataset, documents_of
from headrace.samples.document_pipeline import DocumentPipeline
from headrace.state import steps_of

from .added import first_unused, held_by, with_held
from .documents import layout_of
from .mixture import MixturePlan, core_of
from .source import LanePlan, Planner, Setup

__all__ = ["MixturePlanner"]

_SAVED: Final = ("name", "limit", "pipeline", "functions", "sources", "given")
"""What a state says of a source."""


class MixturePlanner(Planner):
    """Plans of a mixture."""

    def __init__(self, dataset: MixDataset) -> None:
        self._dataset = dataset

    def plan(self, setup: Setup, state: Mapping[str, Any] | None) -> LanePlan:
        """See `Planner.plan`."""
        return MixturePlan(self._dataset, setup, state)

    def adapted(
        self, state: Mapping[str, Any], exclusion: Exclusion | None, *, epochs: int | None, strict: bool
    ) -> Adapted:
        """See `Planner.adapted`: items may have been added to sources, weights and rows' length may be others from here
        on, and sources may come and go.
        """  # noqa: D205
        del epochs  # mixtures have none
        if state["pipeline"].get("mode") != "mixture":
            raise StateMismatch(
                "the pipeline is not that of the state: mode is 'mixture' here and "
                f"{state['pipeline'].get('mode')!r} in the state\nhint: to start a new run, load no state"
            )
        names = [_checked_name(entry) for entry in state["sources"]]
        check_pipeline(state["pipeline"], names)
        check_kept(self._dataset, state, names)
        begin = self._with_length(state, strict=strict)
        begin = begin.then(self._with_items(begin.state, names, exclusion, strict=strict))
        begin = begin.then(changed(self._dataset, begin.state, names, strict=strict))
        added = [name for name in self._dataset.names if name not in names]
        if not added:
            return begin
        more: dict[str, Any] = {
            "sources": [*begin.state["sources"], *({"name": name} for name in added)],
            "lane_states": {lane: _with_more(one, len(added)) for lane, one in state["lane_states"].items()},
        }
        return begin._replace(state=begin.state | more)

    def _with_length(self, state: Mapping[str, Any], *, strict: bool) -> Adapted:
        """A state as the beginning of a run with rows as they are here, which all sources have alike.

        Raises:
            StateMismatch: if their length is another one, and may not be, or is not what the state's changes lead to.
        """
        layout = layout_of(documents_of(next(iter(self._dataset.sources.values()))), pad=False)
        before = length_of(state, _saved_length(state))
        if before is None or not layout.packed:
            return Adapted(dict(state))
        begin = with_length(state, before, layout.seq_len, strict=strict)
        Lengths.of(begin.state, layout.seq_len)
        return begin

    def _with_items(
        self, state: Mapping[str, Any], names: Sequence[str], exclusion: Exclusion | None, *, strict: bool
    ) -> Adapted:
        """A state of sources with these names, over items that were added to some of them.

        Raises:
            StateMismatch: naming a source to which some were added, if that is not allowed here.
        """
        begin = Adapted(dict(state))
        for number, (name, entry) in enumerate(zip(names, state["sources"], strict=True)):
            if name not in self._dataset.sources:
                continue
            documents = documents_of(self._dataset.sources[name])
            base = documents.base if exclusion is None else exclusion.kept(documents.base)
            before = held_by(entry)
            if not is_grown(base, before):
                continue

            def reached(number: int = number, documents: DocumentPipeline = documents) -> int:
                marks = {lane: _source_of(lane, one, number) for lane, one in state["lane_states"].items()}
                unused = first_unused(documents, state, marks)
                # One that has left stays away: it comes to no pass behind those that it had.
                return max(unused, state["sources"][number]["limit"]) if self._has_left(number, state) else unused

            sources = [*begin.state["sources"]]
            sources[number] = with_held(entry, Held.by(base))
            begin = begin._replace(state=begin.state | {"sources": sources})
            epochs = self._dataset.passes(name)
            begin = noted(begin, base, before, reached, source=name, epochs=epochs, strict=strict)
        return begin

    def _has_left(self, number: int, state: Mapping[str, Any]) -> bool:
        """Whether a source of a state was short of a row in a round that has begun."""
        names = [entry["name"] for entry in state["sources"]]
        if state["sources"][number]["limit"] is None:
            return False
        weights = [Weighting.load(entry) for entry in state["pipeline"]["weights"]]
        lengths = Lengths.told(state["changes"], _saved_length(state) or 1)
        core = core_of(
            self._dataset,
            weights,
            names,
            steps_of(state["history"]),
            lanes=state["lanes"],
            lengths=lengths,
            seed=state["seed"],
            limits=[entry["limit"] for entry in state["sources"]],
        )
        return core.has_left(number, state["position"])


def _saved_length(state: Mapping[str, Any]) -> Any:
    """How long rows are by a state's sources, if it never changed; None where they are not packed."""
    lengths = (fields(entry.get("pipeline")).get("seq_len") for entry in state["sources"])
    return next((length for length in lengths if length is not None), None)


def _checked_name(found: object) -> str:
    """The name of a source of a state, if its form is right."""
    entry = fields(found)
    kinds: tuple[type[Any], ...] = (str, object, dict, list, list, dict)
    if set(entry) != set(_SAVED) or not all(map(isinstance, map(entry.get, _SAVED), kinds)):
        raise StateMismatch(f"state: expected sources with {', '.join(_SAVED)}, found {found!r}")
    if entry["limit"] is not None and not is_count(entry["limit"], 0):
        raise StateMismatch(
            f"state: expected 'limit' of source {entry['name']!r} to be 0 or more, found {entry['limit']!r}"
        )
    return entry["name"]


def _source_of(number: str, lane: object, source: int) -> Any:
    """What the state of a lane that was checked by nobody says of a source."""
    sources = fields(lane).get("sources")
    if not isinstance(sources, list) or source >= len(cast("list[Any]", sources)):
        raise StateMismatch(f"state: expected lane {number} to have the states of sources, found {lane!r}")
    return cast("list[Any]", sources)[source]


def _with_more(lane: object, count: int) -> object:
    """The state of a lane that was checked by nobody, with further sources at their beginning."""
    found = fields(lane)
    sources = found.get("sources")
    return found | {"sources": [*cast("list[Any]", sources), *[None] * count]} if isinstance(sources, list) else lane

"""What may change in a mixture where its state is loaded: its weights, and which sources it has."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from headrace._changes import Adapted
from headrace.errors import StateMismatch
from headrace.mixing import MixDataset, WeightSchedule

from .mixture_weights import Weighting

__all__ = ["changed", "check_counts", "check_kept", "check_pipeline", "fields", "is_count", "rules"]

DRAWS: Final = 2
"""The version of how a mixture draws its rows (docs/order.md, "Mixtures")."""


def rules(dataset: MixDataset, state: Mapping[str, Any] | None) -> dict[str, Any]:
    """What beside the weights decides which row comes when, and what it holds, and the version of how.

    Args:
        dataset: what is mixed.
        state: that the run goes on from, by `check_kept`: it says the same of sources that were taken out.
    """
    before: Mapping[str, int] = {} if state is None else state["pipeline"]["max_epochs"]
    return {
        "mode": "mixture",
        "draws": DRAWS,
        "on_exhausted": dataset.on_exhausted,
        "per_batch": dataset.per_batch,
        "max_epochs": {**before, **dataset.max_epochs},
    }


def check_pipeline(found: object, names: Sequence[str]) -> None:
    """Refuses what has not the form of a mixture's pipeline, with its weights, or is of another version.

    Args:
        found: what a state says.
        names: of its sources.

    Raises:
        StateMismatch: naming what is wrong.
    """
    there = fields(found)
    wanted = {"mode", "draws", "on_exhausted", "per_batch", "max_epochs", "weights"}
    if {*there, "draws"} != wanted or not isinstance(there["max_epochs"], Mapping):
        raise StateMismatch(f"state: expected a pipeline of {', '.join(sorted(wanted))}, found {there!r}")
    # States of earlier builds do not tell.
    if (version := there.get("draws", 1)) != DRAWS:
        raise StateMismatch(
            f"state: this build draws mixtures by version {DRAWS}, the state is of version {version!r}\n"
            "hint: the build that saved it goes on with it; to start a new run, load no state"
        )
    if not names or len(set(names)) < len(names):
        raise StateMismatch(f"state: expected sources of different names, found {names}")
    for name, passes in fields(cast("object", there["max_epochs"])).items():
        if name not in names or not is_count(passes, 1):
            raise StateMismatch(f"state: expected max_epochs of its sources, 1 or more, found {name!r}: {passes!r}")
    before = -1
    for entry in _items(there["weights"]) or [None]:
        if not _is_weighting(entry, set(names)) or not _follows(entry["round"], before):
            raise StateMismatch(f"state: expected weights from round 0 on with their points, found {entry!r}")
        before = entry["round"]


def check_kept(dataset: MixDataset, state: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuses a state of a mixture with other rules. Its sources have these `names`.

    Raises:
        StateMismatch: naming the first difference.
    """
    here, there = rules(dataset, None), state["pipeline"]
    for key in ("mode", "on_exhausted", "per_batch"):
        if here[key] != there[key]:
            raise StateMismatch(f"{key} is {here[key]!r} here and {there[key]!r} in the state")
    for name in names:
        one, other = dataset.max_epochs.get(name), there["max_epochs"].get(name)
        if one != other and name in dataset.sources:
            raise StateMismatch(f"max_epochs of source {name!r} is {one} here and {other} in the state")


def check_counts(state: Mapping[str, Any], progress: Sequence[Mapping[str, Any]]) -> None:
    """Refuses a state by whose weights sources have given other rows than it says.

    Raises:
        StateMismatch: naming the first source.
    """
    for entry, given in zip(state["sources"], progress, strict=True):
        if entry["given"] != given:
            raise StateMismatch(
                f"state: by its weights source {entry['name']!r} has given {given}, it says {entry['given']}"
            )


def changed(dataset: MixDataset, state: Mapping[str, Any], names: Sequence[str], *, strict: bool) -> Adapted:
    """A state of a mixture with the same rules, with the pipeline of the mixture as it is here from the next round on.

    Args:
        dataset: which sources there are, and what they weigh.
        state: of sources with these `names`, those included that were taken out before.
        names: see `state`.
        strict: False allows other weights and other sources, of which the state then tells.

    Raises:
        StateMismatch: naming the first difference, if it is `strict`, or a source that cannot be taken out here.
    """
    begin = Adapted(dict(state))
    weights = list(state["pipeline"]["weights"])
    last = Weighting.load(weights[-1])
    current = last.names
    gone = [name for name in names if name in current - set(dataset.names)]
    differences: list[str] = []
    for name in dataset.names:
        if name not in names:
            differences.append(f"source {name!r} is only here")
        elif name not in current:
            differences.append(f"source {name!r} was taken out before")
    differences += [f"source {name!r} is only in the state" for name in gone]
    if not differences and dataset.weights != last.schedule:
        differences.append(_first_weight(dataset.weights, last.schedule))
    if differences:
        if strict:
            raise StateMismatch(
                f"the mixture is not that of the state: {differences[0]}\n"
                "hint: strict=False goes on with the mixture as it is here"
            )
        first = -(-state["position"] // state["lanes"])
        row = first * state["lanes"]
        if gone and state["position"] < row:
            raise StateMismatch(
                f"source {gone[0]!r} cannot be taken out here: row {state['position']} is in the middle of a round of "
                f"{state['lanes']} rows, of which some may be its own\n"
                f"hint: take it out where a round ends, as at row {row}"
            )
        text = f"the mixture changes from row {row} on: {differences[0]}"
        weighting = Weighting(first, dataset.weights).state()
        if current != set(dataset.names):
            begin = begin.noted("sources", sorted(current), sorted(dataset.names), text, row=row)
        else:
            begin = begin.noted("weights", weights[-1], weighting, text, row=row)
        weights = [*(entry for entry in weights if entry["round"] < first), weighting]
    return begin._replace(state=begin.state | {"pipeline": rules(dataset, state) | {"weights": weights}})


def fields(value: object) -> dict[str, Any]:
    """A dict as it is, and anything else as one without an entry."""
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else {}


def is_count(value: object, least: int) -> bool:
    """Whether something is a number of rows, lanes or tokens."""
    return type(value) is int and least <= value < 2**61


def _first_weight(here: WeightSchedule, there: WeightSchedule) -> str:
    for key in ("over", "shape"):
        if getattr(here, key) != getattr(there, key):
            return f"the schedule's {key} is {getattr(here, key)!r} here and {getattr(there, key)!r} in the state"
    for at in sorted({*here.points, *there.points}):
        one, other = here.points.get(at), there.points.get(at)
        if one is None or other is None:
            return f"the schedule has a point at {at} only {'in the state' if one is None else 'here'}"
        for name, weight in one.items():
            if weight != other[name]:
                return f"the weight of source {name!r} at {at} is {weight} here and {other[name]} in the state"
    return "the order of the sources"


def _is_weighting(found: object, names: set[str]) -> bool:
    entry = fields(found)
    if set(entry) != {"round", "over", "shape", "points"}:
        return False
    if entry["over"] not in ("steps", "tokens") or entry["shape"] not in ("constant", "linear"):
        return False
    points = [_items(point) for point in _items(entry["points"])]
    before = -1
    for point in points:
        weights = fields(point[1]) if len(point) == 2 else {}
        if not _follows(point[0] if point else None, before) or set(weights) != set(fields(points[0][1])):
            return False
        if any(type(weight) is not float or not 0 <= weight < math.inf for weight in weights.values()):
            return False
        if not any(weights.values()) or not set(weights) <= names:
            return False
        before = point[0]
    return bool(points)


def _follows(number: object, before: int) -> bool:
    """Whether a count comes after another one, or is 0 if that is -1."""
    return type(number) is int and before < number < 2**63 and (before >= 0 or number == 0)


def _items(value: object) -> list[Any]:
    """A list as it is, and anything else as one without an entry."""
    return cast("list[Any]", value) if isinstance(value, list) else []

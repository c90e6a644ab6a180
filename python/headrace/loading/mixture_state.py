"""What a state says of a mixture: checked, compared with the dataset of now, and changed where that is allowed."""

import math
import warnings
from collections.abc import Mapping
from typing import Any, Final, cast

from headrace._changes import noted
from headrace.dataset import PackedDataset
from headrace.errors import StateMismatch
from headrace.mixing import MixDataset, WeightSchedule
from headrace.state import MAX_LANES

from .mixture_weights import Weighting
from .packed_run import check_source, source

__all__ = ["SOURCE", "adapted", "check_counts", "described", "pipeline"]

SOURCE: Final = ("name", "identity", "content", "files", "row_groups", "rows", "tokens", "weight", "packing")
"""What a state says of a source's data."""


def pipeline(dataset: MixDataset) -> dict[str, Any]:
    """What beside the weights decides which row comes when, and what it holds."""
    return {
        "mode": "mixture",
        "on_exhausted": dataset.on_exhausted,
        "per_batch": dataset.per_batch,
        "max_epochs": dict(dataset.max_epochs),
    }


def described(name: str, dataset: PackedDataset) -> dict[str, Any]:
    """What a state says of a source's data."""
    return {"name": name} | source(dataset) | {"weight": dataset.weight, "packing": dataset.packing.identity()}


def adapted(dataset: MixDataset, state: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
    """A state whose form was checked, as the beginning of a run over a dataset.

    With `strict` off weights may be others from here on, sources may come and go, and data may have moved; each is
    warned of. What was given before stays as it was.

    Raises:
        StateMismatch: naming the first difference that is not allowed.
    """
    _check_form(state)
    here, there = pipeline(dataset), state["pipeline"]
    saved = {entry["name"]: entry for entry in state["sources"]}
    for key in ("mode", "on_exhausted", "per_batch"):
        if here[key] != there[key]:
            raise StateMismatch(f"{key} is {here[key]!r} here and {there[key]!r} in the state")
    for name in saved:
        one, other = dataset.max_epochs.get(name), there["max_epochs"].get(name)
        if one != other and name in dataset.sources:
            raise StateMismatch(f"max_epochs of source {name!r} is {one} here and {other} in the state")
    last = Weighting.load(there["weights"][-1])
    current = set(next(iter(last.schedule.points.values())))
    differences: list[str] = []
    moved: dict[str, str] = {}
    sources = [dict(entry) for entry in state["sources"]]
    for name, data in dataset.packed.items():
        if name not in saved:
            differences.append(f"source {name!r} is only here")
            blank = {"lanes": None, "window": None, "limit": None, "given": {"rows": 0, "tokens": 0, "epoch": 0}}
            sources.append(described(name, data) | blank)
            continue
        packing = saved[name]["packing"]
        for key, wanted in data.packing.identity().items():
            if key not in packing or packing[key] != wanted:
                found = packing.get(key)
                raise StateMismatch(f"{key} of source {name!r} is {wanted!r} here and {found!r} in the state")
        now = source(data)
        if check_source(data, now, saved[name], strict=strict, which=f"source {name!r}"):
            moved[name] = now["identity"]
        if name not in current:
            differences.append(f"source {name!r} was taken out before")
    differences += [f"source {name!r} is only in the state" for name in saved if name in current - set(dataset.names)]
    if not differences and dataset.weights != last.schedule:
        differences.append(_first_weight(dataset.weights, last.schedule))
    weights = list(there["weights"])
    if moved:
        state = noted(state, "data moved", {name: saved[name]["identity"] for name in moved}, moved)
    if differences:
        if strict:
            raise StateMismatch(
                f"the mixture is not that of the state: {differences[0]}\n"
                "hint: strict=False goes on with the mixture as it is here"
            )
        first = -(-state["position"] // state["lanes"])
        gone = [name for name in saved if name in current - set(dataset.names)]
        if gone and state["position"] % state["lanes"]:
            raise StateMismatch(
                f"source {gone[0]!r} cannot be taken out here: row {state['position']} is in the middle of a round of "
                f"{state['lanes']} rows, of which some may be its own\n"
                f"hint: take it out where a round ends, as at row {first * state['lanes']}"
            )
        warnings.warn(
            f"headrace: the mixture changes from row {first * state['lanes']} on: {differences[0]}", stacklevel=4
        )
        weighting = Weighting(first, dataset.weights).state()
        row = first * state["lanes"]
        if current != set(dataset.names):
            state = noted(state, "sources", sorted(current), sorted(dataset.names), row=row)
        else:
            state = noted(state, "weights", weights[-1], weighting, row=row)
        weights = [*(entry for entry in weights if entry["round"] < first), weighting]
    return dict(state) | {"sources": sources, "pipeline": here | {"weights": weights}}


def check_counts(state: Mapping[str, Any], progress: list[dict[str, Any]]) -> None:
    """Refuses a state by whose weights sources have given other rows than it says.

    Raises:
        StateMismatch: naming the first source.
    """
    for entry, given in zip(state["sources"], progress, strict=True):
        if entry["given"] != given:
            raise StateMismatch(
                f"state: by its weights source {entry['name']!r} has given {given}, it says {entry['given']}"
            )


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


def _check_form(state: Mapping[str, Any]) -> None:
    """Refuses what has not the form of a mixture's state.

    Raises:
        StateMismatch: naming what is wrong.
    """
    there = _fields(state["pipeline"])
    wanted = {"mode", "on_exhausted", "per_batch", "max_epochs", "weights"}
    if set(there) != wanted or not isinstance(there["max_epochs"], Mapping):
        raise StateMismatch(f"state: expected a pipeline of {', '.join(sorted(wanted))}, found {there!r}")
    names = [_check_source(entry, state["lanes"]) for entry in state["sources"]]
    if not names or len(set(names)) < len(names):
        raise StateMismatch(f"state: expected sources of different names, found {names}")
    before = -1
    for entry in _items(there["weights"]) or [None]:
        if not _is_weighting(entry, set(names)) or not _follows(entry["round"], before):
            raise StateMismatch(f"state: expected weights from round 0 on with their points, found {entry!r}")
        before = entry["round"]


def _check_source(found: object, lanes: int) -> str:
    """The name of a source whose form is right."""
    entry = _fields(found)
    keys = {*SOURCE, "lanes", "window", "limit", "given"}
    if set(entry) != keys or not isinstance(entry["name"], str) or not isinstance(entry["packing"], Mapping):
        raise StateMismatch(f"state: expected sources with {', '.join(sorted(keys))}, found {found!r}")
    for key, least in (("lanes", 1), ("window", 1), ("weight", 0), ("limit", 0)):
        count = entry[key]
        endless = key == "limit" and count is None
        if not endless and (type(count) is not int or not least <= count < 2**61):
            raise StateMismatch(
                f"state: expected {key!r} of source {entry['name']!r} to be {least} or more, found {count!r}"
            )
    if entry["lanes"] > MAX_LANES or lanes % entry["lanes"]:
        raise StateMismatch(
            f"state: expected the lanes of source {entry['name']!r} to divide {lanes}, found {entry['lanes']}"
        )
    return entry["name"]


def _is_weighting(found: object, names: set[str]) -> bool:
    entry = _fields(found)
    if set(entry) != {"round", "over", "shape", "points"}:
        return False
    if entry["over"] not in ("steps", "tokens") or entry["shape"] not in ("constant", "linear"):
        return False
    points = [_items(point) for point in _items(entry["points"])]
    before = -1
    for point in points:
        weights = _fields(point[1]) if len(point) == 2 else {}
        if not _follows(point[0] if point else None, before) or set(weights) != set(_fields(points[0][1])):
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


def _fields(value: object) -> dict[str, Any]:
    """A dict as it is, and anything else as one without an entry."""
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else {}


def _items(value: object) -> list[Any]:
    """A list as it is, and anything else as one without an entry."""
    return cast("list[Any]", value) if isinstance(value, list) else []

"""Which data a run over samples is of, and in which order: made of arguments, or found in a state."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from headrace import _core
from headrace._changes import Adapted, changes_of
from headrace.errors import StateMismatch
from headrace.samples.draws import seed_of
from headrace.samples.order import (
    ENDLESS,
    GrownOrder,
    LaneOrder,
    Order,
    PermutedOrder,
    SequentialOrder,
    ZipOrder,
    default_window,
    kind_of,
)
from headrace.samples.pipeline import AnyPipeline, Pipeline
from headrace.samples.zipped import ZipPipeline
from headrace.state import MAX_LANES

from .added import described, eras_of, first_samples, is_grown, with_added
from .run_arguments import RunArguments, choose

__all__ = ["Data", "adapted", "data_of", "order_of"]

_State = Mapping[str, Any] | None


class Data(NamedTuple):
    """What a state says of data, as plain JSON types."""

    kind: str
    """Of the order: see `kind_of`; or ``"zip"``."""
    samples: dict[str, Any]
    """Which samples there are."""
    sources: list[dict[str, Any]]
    """Where they lie."""


def data_of(pipeline: AnyPipeline, shuffle: bool) -> Data:
    """What a state says of a pipeline's data."""
    if isinstance(pipeline, ZipPipeline):
        each = [data_of(source, shuffle) for source in pipeline.sources]
        samples = None if pipeline.length == ENDLESS else pipeline.length
        return Data("zip", {"order": "zip", "samples": samples}, [one.samples | {"parts": one.sources} for one in each])
    plain = cast("Pipeline", pipeline)
    kind = kind_of(plain, shuffle)
    return Data(kind, {"order": kind} | described(plain), [origin.summary() for origin in plain.origins])


def adapted(pipeline: AnyPipeline, data: Data, state: Mapping[str, Any], *, strict: bool) -> Adapted:
    """A state whose form was checked, as the beginning of a run over some data.

    With `strict` off samples may have been added: the state tells of it.

    Raises:
        StateMismatch: naming the first difference that is not allowed.
    """
    try:
        _check_same(data, state)
    except StateMismatch:
        if not isinstance(pipeline, Pipeline) or data.kind != state["pipeline"].get("order"):
            raise
        if not is_grown(pipeline, state):
            raise
    else:
        return Adapted(dict(state))
    return with_added(pipeline, state, lambda: state["position"], strict=strict)


def _check_same(data: Data, state: Mapping[str, Any]) -> None:
    """Refuses the state of a run over other samples.

    Raises:
        StateMismatch: naming the first difference.
    """
    _check_sources(data.sources, state["sources"], "source")
    for key, value in data.samples.items():
        if state["pipeline"].get(key) != value:
            raise StateMismatch(
                f"the samples are not those of the state: {key} is {value!r} here and "
                f"{state['pipeline'].get(key)!r} in the state"
            )


def _check_sources(here: Sequence[Mapping[str, Any]], there: Any, kind: str, of: str = "") -> None:
    """Compares what is said of sources; of a zip's, then of the parts of each."""
    others = cast("list[Any]", there if isinstance(there, list) else [])
    if len(here) != len(others):
        raise StateMismatch(
            f"the data is not that of the state: {len(here)} {kind}s{of} here, {len(others)} in the state"
        )
    for number, (new, old) in enumerate(zip(here, others, strict=True)):
        found = cast("dict[str, Any]", old if isinstance(old, dict) else {})
        for key, value in new.items():
            if key == "parts":
                _check_sources(value, found.get(key), "part", f" of source {number}")
            elif found.get(key) != value:
                raise StateMismatch(
                    f"the data is not that of the state: {key} of {kind} {number}{of} is {value!r} here and "
                    f"{found.get(key)!r} in the state\nhint: to start a new run, load no state"
                )


def order_of(
    pipeline: AnyPipeline, data: Data, seed: int, given: RunArguments, largest: int, state: _State
) -> tuple[Order, dict[str, Any]]:
    """The order of a run, and what its state says of it beside N and W.

    Args:
        pipeline: whose samples.
        data: of it; that of the state, if there is one.
        seed: of the run.
        given: what the user said.
        largest: the largest global batch size to come.
        state: that the run goes on from, `adapted`.

    Raises:
        ValueError: if the order has no such lanes or windows.
        StateMismatch: if what was given contradicts the state.
    """
    if not isinstance(pipeline, ZipPipeline):
        _check_given(data.kind, given)
        plain = cast("Pipeline", pipeline)
        parts = [
            (era.epoch, _order(first_samples(plain, era.samples), data.kind, seed, given, largest, state))
            for era in eras_of(changes_of(state), len(plain))
        ]
        return parts[0][1] if len(parts) == 1 else GrownOrder(parts), {}
    kinds: list[str] = [source["order"] for source in data.sources]
    _check_given("lanes" if "lanes" in kinds else kinds[0], given)
    known: Sequence[_State] = [None] * len(kinds) if state is None else _known(kinds, state)
    orders = [
        _order(pipeline.sources[number], kind, seed_of(seed, number), given, largest, known[number])
        for number, kind in enumerate(kinds)
    ]
    dealt = [{"lanes": order.lanes, "window": order.window} for order in orders]
    return ZipOrder(orders, pipeline.shifts, pipeline.length), {"dealt": dealt}


def _order(source: Pipeline, kind: str, seed: int, given: RunArguments, largest: int, state: _State) -> Order:
    if kind == "sequential":
        return SequentialOrder(len(source))
    if kind == "permutation":
        return PermutedOrder(len(source), seed)
    stored = source.selection.in_storage_order()
    selection = stored.selection
    window = choose("window", given.window, state, default_window(source, stored, given.lanes or largest))
    lanes = _core.default_lanes(largest, len(selection), selection.pieces, window)
    return LaneOrder(stored, seed, choose("lanes", given.lanes, state, lanes), window)


def _known(kinds: Sequence[str], state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """N and W of each source of a zip, as a state has them.

    Raises:
        StateMismatch: if it has none such.
    """
    dealt: Any = state["pipeline"].get("dealt")
    found = cast("list[Any]", dealt if isinstance(dealt, list) else [])
    if len(found) != len(kinds) or not all(map(_is_dealt, found, kinds)):
        raise StateMismatch(f"state: expected 'dealt' to have lanes and a window for each source, found {dealt!r}")
    return found


def _is_dealt(found: Any, kind: str) -> bool:
    numbers = cast("dict[str, Any]", found if isinstance(found, dict) else {})
    bounds = {"lanes": (1, MAX_LANES), "window": (int(kind == "lanes"), 2**32 - 1)}
    return all(
        type(numbers.get(name)) is int and least <= numbers[name] <= most for name, (least, most) in bounds.items()
    )


def _check_given(kind: str, given: RunArguments) -> None:
    for name in ("lanes", "window"):
        if kind != "lanes" and getattr(given, name) not in (None, 1):
            raise ValueError(f"{name} must be left out for a {kind} order, got {getattr(given, name)}")

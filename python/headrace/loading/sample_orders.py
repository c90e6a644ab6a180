"""In which order a run over samples is: made of arguments, or found in a state."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from headrace import _core
from headrace._changes import changes_of
from headrace.errors import StateMismatch
from headrace.samples.draws import seed_of
from headrace.samples.order import (
    LaneOrder,
    Order,
    PermutedOrder,
    SequentialOrder,
    ZipOrder,
    default_window,
)
from headrace.samples.pipeline import AnyPipeline, Pipeline
from headrace.samples.zipped import ZipPipeline
from headrace.state import MAX_LANES

from .added import eras_of, first_samples, order_of_eras
from .run_arguments import RunArguments, choose
from .sample_data import Data

__all__ = ["order_of"]

_State = Mapping[str, Any] | None


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
    changes = changes_of(state)
    if not isinstance(pipeline, ZipPipeline):
        _check_given(data.kind, given)
        plain = cast("Pipeline", pipeline)
        eras = eras_of(changes, len(plain))
        return order_of_eras(
            eras, lambda count: _order(first_samples(plain, count), data.kind, seed, given, largest, state)
        ), {}
    kinds: list[str] = [source["order"] for source in data.sources]
    _check_given("lanes" if "lanes" in kinds else kinds[0], given)
    known: Sequence[_State] = [None] * len(kinds) if state is None else _known(kinds, state)

    def line(number: int, source: Pipeline) -> Order:
        def order(count: int) -> Order:
            part, own = first_samples(source, count), seed_of(seed, number)
            return _order(part, kinds[number], own, given, largest, known[number])

        return order_of_eras(eras_of(changes, len(source), source=number), order)

    orders = [line(number, source) for number, source in enumerate(pipeline.sources)]
    epochs = order_of_eras(eras_of(changes, pipeline.length, length=True), SequentialOrder)
    dealt = [{"lanes": order.lanes, "window": order.window} for order in orders]
    return ZipOrder(orders, pipeline.shifts, epochs), {"dealt": dealt}


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

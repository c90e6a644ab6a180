"""From arguments and a loaded state to a run over lanes: its lanes, its steps, and where each lane stands."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace import _core
from headrace._changes import changes_of, noted, told
from headrace.errors import StateMismatch
from headrace.loading.run_arguments import NO_BATCH_SIZE, RunArguments, choose
from headrace.loading.schedule import Skipped
from headrace.state import ORDER, SCHEMA, missing_lanes, steps_of

from .sharing import check_shape, lanes_of_rank
from .source import LanePlan, LaneSource, Setup

__all__ = ["Given", "LaneRun", "Places", "Position", "SavedPlaces", "SnapshotPlaces", "start"]

_Ints = npt.NDArray[np.int64]

MakePlan = Callable[[Setup], LanePlan]


@dataclass(frozen=True, kw_only=True)
class Given(RunArguments):
    """What the user said, with what lanes alone have."""

    pad: bool


class Places(ABC):
    """Where own lanes stand."""

    @abstractmethod
    def states(self) -> Mapping[int, Any]:
        """The state of each lane, by its number."""

    @abstractmethod
    def epoch(self) -> int:
        """The pass that the slowest lane is in."""


class SavedPlaces(Places):
    """Places that a state says, or the beginning."""

    def __init__(self, plan: LanePlan, states: Mapping[int, Any]) -> None:
        self._plan = plan
        self._states = states

    def states(self) -> Mapping[int, Any]:
        """See `Places.states`."""
        return self._states

    def epoch(self) -> int:
        """See `Places.epoch`."""
        return self._plan.epoch(self._states)


class SnapshotPlaces(Places):
    """Places that a source came to."""

    def __init__(self, source: LaneSource, snapshot: object) -> None:
        self._source = source
        self._snapshot = snapshot

    def states(self) -> Mapping[int, Any]:
        """See `Places.states`."""
        return self._source.state(self._snapshot)

    def epoch(self) -> int:
        """See `Places.epoch`."""
        return self._source.epoch(self._snapshot)


@dataclass(frozen=True)
class Position:
    """A place in a run: the next step to be made or passed over, and where lanes stand before it."""

    step: int
    steps: _core.Steps
    skipped: Skipped
    places: Places

    @property
    def row(self) -> int:
        """The first row of the next step."""
        return self.steps.row_of(self.step)

    @property
    def batch(self) -> int:
        """The global batch size of the next step."""
        return self.steps.batch_of(self.step)

    def batches_to_come(self) -> list[tuple[int, int]]:
        """From which steps on which batch sizes hold, from the next step on."""
        coming = [(step, batch) for step, _, batch in self.steps.segments if step > self.step]
        return [(self.step, self.batch), *coming]


@dataclass(frozen=True)
class LaneRun:
    """A plan, shared out among ranks."""

    plan: LanePlan
    world_size: int
    rank: int
    own: _Ints = field(repr=False)
    """int64: the lanes of this rank."""
    fixed: Mapping[str, Any] = field(repr=False)
    """The part of a state that does not change during a run."""

    @property
    def ranks(self) -> tuple[int, int]:
        """The rank, and the number of ranks."""
        return self.rank, self.world_size

    @property
    def lanes(self) -> int:
        """N."""
        return self.plan.setup.lanes

    def at(self, position: Position, step: int) -> Position:
        """Never asked for: lanes are where they are, and steps that are passed over are made."""
        raise NotImplementedError

    def state(self, position: Position) -> dict[str, Any]:
        """The state at a position, as plain JSON types: of the own lanes."""
        states = position.places.states()
        history = [list(segment) for segment in position.steps.segments if segment[0] <= position.step]
        return dict(self.fixed) | {
            "step": position.step,
            "position": position.row,
            "history": history,
            "skipped": [list(steps) for steps in position.skipped],
            "changes": told(self.fixed["changes"], history),
            "part": len(states) < self.lanes,
            "lane_states": {str(lane): state for lane, state in states.items()},
        }

    def check_batches(self, position: Position) -> None:
        """Refuses batch sizes to come by which ranks would have other lanes than now.

        Raises:
            ValueError: naming the size and its step.
        """
        for step, batch in position.batches_to_come():
            check_shape(self.lanes, batch, self.world_size)
            row = position.steps.row_of(step)
            if not np.array_equal(lanes_of_rank(self.lanes, batch, row, self.world_size, self.rank), self.own):
                raise ValueError(
                    f"a global batch of {batch} from step {step} on would give lanes to other ranks than now\n"
                    f"hint: multiples of {self.lanes}, the number of lanes, leave them where they are; or load a whole "
                    "state (gather_state) with another batch size"
                )


def start(
    make_plan: MakePlan,
    given: Given,
    world_size: int,
    rank: int,
    state: Mapping[str, Any] | None,
    *,
    strict: bool,
) -> tuple[LaneRun, Position]:
    """The run that arguments and a state describe, and where it stands.

    Args:
        make_plan: the plan of the dataset for a setup.
        given: what the user said.
        world_size: ranks.
        rank: whose part.
        state: whose form is right; None for the beginning.
        strict: False allows functions with other names than in the state, with a warning.

    Raises:
        ValueError: if something is missing, or does not fit the number of ranks.
        StateMismatch: if an argument contradicts the state, it is of another run, or lacks a lane.
    """
    if given.epochs is not None and world_size > 1:
        raise ValueError(
            f"epochs must be left out with several ranks, got {given.epochs}: lanes end a pass at different rows, and "
            "no rank knows of the others'\nhint: stop after a number of steps"
        )
    steps, step, skipped = _steps(given, world_size, state)
    coming = [batch for begin, _, batch in steps.segments if begin > step]
    batches = [steps.batch_of(step), *coming]
    seed = choose("seed", given.seed, state, 0)
    shuffle = choose("shuffle", given.shuffle, state, True)
    lanes = choose("lanes", given.lanes, state, math.gcd(*batches))
    for batch in batches:
        check_shape(lanes, batch, world_size)
    window = given.window if state is None else choose("window", given.window, state, 1)
    setup = Setup(
        seed=seed, shuffle=shuffle, lanes=lanes, window=window, epochs=given.epochs, pad=given.pad, steps=steps
    )
    plan = make_plan(setup)
    own = lanes_of_rank(lanes, steps.batch_of(step), steps.row_of(step), world_size, rank)
    fixed: dict[str, Any] = {
        "schema": SCHEMA,
        "order": ORDER,
        "kind": "dynamic",
        "seed": seed,
        "shuffle": shuffle,
        "changes": changes_of(state),
        "lanes": lanes,
        "window": plan.window,
        "pipeline": plan.pipeline(),
        "functions": plan.stages(),
        "sources": plan.sources(),
    }
    if state is not None:
        fixed["changes"] = _adapted(fixed, state, strict=strict)["changes"]
    run = LaneRun(plan, world_size, rank, own, fixed)
    position = Position(step, steps, skipped, SavedPlaces(plan, _states(run, state)))
    run.check_batches(position)
    return run, position


def _adapted(fixed: Mapping[str, Any], state: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
    """A state whose form was checked, as the beginning of a run with what is `fixed` here.

    With `strict` off functions may have other names, of which a warning tells, and the state from there on.

    Raises:
        StateMismatch: naming the first difference that is not allowed.
    """
    for key, wanted in fixed["pipeline"].items():
        if key not in state["pipeline"] or state["pipeline"][key] != wanted:
            raise StateMismatch(
                f"the pipeline is not that of the state: {key} is {wanted!r} here and {state['pipeline'].get(key)!r} "
                "in the state\nhint: to start a new run, load no state"
            )
    if unknown := set(state["pipeline"]) - set(fixed["pipeline"]):
        raise StateMismatch(f"state: unknown key {sorted(unknown)[0]!r} in its pipeline")
    here, there = fixed["sources"], state["sources"]
    if len(here) != len(there):
        raise StateMismatch(f"the data is not that of the state: {len(here)} sources here, {len(there)} in the state")
    for number, (new, old) in enumerate(zip(here, there, strict=True)):
        for key, value in new.items():
            found = old.get(key) if isinstance(old, dict) else old  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            if not isinstance(old, dict) or found != value:
                raise StateMismatch(
                    f"the data is not that of the state: {key} of source {number} is {value!r} here and {found!r} in "
                    "the state\nhint: to start a new run, load no state"
                )
    here, there = fixed["functions"], state["functions"]
    if here != there:
        names = f"{', '.join(here)} here and {', '.join(map(str, there))} in the state"
        if strict:
            raise StateMismatch(
                f"the functions have other names than in the state: {names}\nhint: strict=False allows it"
            )
        warnings.warn(f"headrace: the functions have other names than in the state: {names}", stacklevel=4)
        return noted(state, "functions", there, here)
    return dict(state)


def _states(run: LaneRun, state: Mapping[str, Any] | None) -> dict[int, Any]:
    """The states of the own lanes."""
    own: list[int] = run.own.tolist()
    if state is None:
        return {lane: run.plan.first(lane) for lane in own}
    found: Mapping[str, Any] = state["lane_states"]
    if missing := [lane for lane in own if str(lane) not in found]:
        raise StateMismatch(
            f"state: it is a part, and lacks lanes of rank {run.rank}: {missing_lanes(missing)} of {run.lanes}\n"
            "hint: load the parts of all ranks as a list, or what gather_state or State.merge made of them"
        )
    states = {lane: found[str(lane)] for lane in own}
    for lane, value in states.items():
        run.plan.check_state(lane, value)
    return states


def _steps(given: Given, world_size: int, state: Mapping[str, Any] | None) -> tuple[_core.Steps, int, Skipped]:
    """The steps of a run, with the history from the state and the sizes to come from the arguments; the next one; and
    those that are passed over.
    """  # noqa: D205
    schedule = given.rows(world_size)
    if state is None:
        if schedule is None:
            raise ValueError(NO_BATCH_SIZE)
        steps, step, skipped = _core.Steps([(0, 0, schedule[0])]), 0, Skipped()
    else:
        steps, step = steps_of(state["history"]), state["step"]
        skipped = Skipped((begin, stop) for begin, stop in state["skipped"])
    if schedule is not None:
        steps = steps.with_batch(step, schedule[max(begin for begin in schedule if begin <= step)])
        for begin, batch in schedule.items():
            if begin > step:
                steps = steps.with_batch(begin, batch)
    return steps, step, skipped

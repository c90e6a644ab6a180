"""From arguments and a loaded state to a run over lanes: its lanes, its steps, and where each lane stands."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace import _core
from headrace._changes import changes_of, told
from headrace.errors import StateMismatch
from headrace.loading.exclusion import exclusion_of
from headrace.loading.run_arguments import NO_BATCH_SIZE, RunArguments, choose
from headrace.loading.schedule import Skipped
from headrace.state import ORDER, SCHEMA, missing_lanes, steps_of

from .sharing import check_shape, lanes_of_rank
from .source import LanePlan, LaneSource, Planner, Setup

__all__ = ["Given", "LaneRun", "Places", "Position", "SavedPlaces", "SnapshotPlaces", "start"]

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Given(RunArguments):
    """What the user said, with what lanes alone have."""

    pad: bool
    skips: bool
    """Whether documents that cannot be made are left out."""


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

    def end(self, position: Position) -> int | None:
        """Steps of the run; None for one without an end that is known."""
        return None if self.plan.rows is None else position.steps.whole(self.plan.rows)

    def at(self, position: Position, step: int) -> Position:
        """Never asked for: lanes are where they are, and steps that are passed over are made."""
        raise NotImplementedError

    def state(self, position: Position) -> dict[str, Any]:
        """The state at a position, as plain JSON types: of the own lanes."""
        states = position.places.states()
        sources: list[dict[str, Any]] = self.fixed["sources"]
        if given := self.plan.given(position.row):
            sources = [entry | {"given": one} for entry, one in zip(sources, given, strict=True)]
        history = [list(segment) for segment in position.steps.segments if segment[0] <= position.step]
        return dict(self.fixed) | {
            "step": position.step,
            "position": position.row,
            "history": history,
            "skipped": [list(steps) for steps in position.skipped],
            "changes": told(self.fixed["changes"], history),
            "part": len(states) < self.lanes,
            "sources": sources,
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
    planner: Planner,
    given: Given,
    world_size: int,
    rank: int,
    state: Mapping[str, Any] | None,
    *,
    strict: bool,
) -> tuple[LaneRun, Position, tuple[str, ...]]:
    """The run that arguments and a state describe, where it stands, and what its user is to be told of the state.

    Args:
        planner: makes the plan of the dataset.
        given: what the user said.
        world_size: ranks.
        rank: whose part.
        state: whose form is right; None for the beginning.
        strict: False allows what `LanePlan.adapted` says.

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
    exclusion, changes = exclusion_of(given.exclude, state)
    setup = Setup(
        seed=seed,
        shuffle=shuffle,
        lanes=lanes,
        window=window,
        epochs=given.epochs,
        pad=given.pad,
        skips=given.skips,
        steps=steps,
        exclusion=exclusion,
    )
    plan = planner.plan(setup, state)
    own = lanes_of_rank(lanes, steps.batch_of(step), steps.row_of(step), world_size, rank)
    texts: tuple[str, ...] = ()
    if state is not None:
        state, texts = plan.adapted(state, strict=strict)
    fixed: dict[str, Any] = {
        "schema": SCHEMA,
        "order": ORDER,
        "kind": "dynamic",
        "seed": seed,
        "shuffle": shuffle,
        "changes": changes if state is None else changes_of(state),
        "lanes": lanes,
        "window": plan.window,
        "pipeline": plan.pipeline(),
        "functions": plan.stages(),
        "sources": plan.sources(),
    }
    run = LaneRun(plan, world_size, rank, own, fixed)
    position = Position(step, steps, skipped, SavedPlaces(plan, _states(run, state)))
    run.check_batches(position)
    return run, position, texts


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

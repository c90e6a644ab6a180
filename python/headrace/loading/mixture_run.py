"""From arguments and a loaded state to a run over a mixture: whose row comes when, and where it stands."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Any, Final

import numpy as np

from headrace import _core
from headrace._changes import Adapted
from headrace.dataset import PackedDataset
from headrace.mixing import MixDataset
from headrace.state import ORDER, SCHEMA

from . import mixture_state as states
from .added import ADDED
from .counted import Position
from .exclusion import exclusion_of
from .lengths import Lengths
from .mixture_changes import check_counts, rules
from .mixture_weights import Weighting, check_enough, largest_shares, phases
from .packed_added import Era, epoch_of, eras_of, noted_of, tokens_of, told_of
from .packed_exclusion import Masking, masking
from .packed_run import core_run, position_of
from .run_arguments import RunArguments, RunResources, choose
from .schedule import check_divides

__all__ = ["Run", "on_other_ranks", "start", "with_added", "with_steps"]

_WINDOW_TOKENS: Final = 64 << 20
"""Tokens that the default windows of all sources hold together at least, on average."""

_WINDOW_TOKENS_PER_LANE: Final = 256 << 10
"""And this many for each lane of the mixture."""

_COUNTED_ON: Final = 1 << 16
"""Rows that are counted one by one rather than from the run's beginning."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A source of a mixture, as the run has it."""

    name: str
    dataset: PackedDataset | None
    """None once the source was taken out of the mixture."""
    lanes: int
    window: int
    dealt: int | None
    """Tokens of all its passes; None if it never is exhausted."""
    limit: int | None
    """Rows that it holds, as long as they are; None likewise."""
    core: _core.Run | None
    """None if it has no token, or was taken out."""
    fixed: Mapping[str, Any] = field(repr=False)
    """What a state says of its data."""
    eras: Sequence[Era] = field(repr=False)
    """Which of the data its passes are over."""

    def within(self, mixture: _core.Mixture, number: int) -> "Part":
        """The same where rows of the mixture change their length."""
        if self.core is None:
            return self
        core = self.core.in_mixture(mixture, number)
        return replace(self, core=core, limit=core.row_count)

    def cut(self) -> float:
        """The share of documents that a lane's end cuts, at most."""
        if self.core is None or self.dataset is None:
            return 0.0
        return min(1.0, self.core.windows * (self.lanes - 1) / max(1, self.dataset.rows))


@dataclass(frozen=True, eq=False)
class Run:
    """A mixture in its order, and what a state of it says beside the position."""

    core: _core.Mixture
    dataset: MixDataset
    parts: tuple[Part, ...]
    """By their number in batches: those of the dataset, and others that were taken out."""
    world_size: int
    rank: int
    lanes: int
    weights: tuple[Weighting, ...]
    """Which weights hold from which round on: a past that was changed by hand stays."""
    lengths: Lengths
    """seq_len, and where it changed."""
    fixed: Mapping[str, Any] = field(repr=False)
    """The part of a state that does not change during a run."""
    masking: Masking | None
    """How batches are masked."""
    _counted: list[tuple[int, tuple[int, ...]]] = field(default_factory=list[tuple[int, tuple[int, ...]]], repr=False)
    """Rows that were counted last, and how many of them each source gave; replaced as a whole."""

    @property
    def ranks(self) -> tuple[int, int]:
        """The rank, and the number of ranks."""
        return self.rank, self.world_size

    def at(self, position: Position, step: int) -> Position:
        """Another step of the run."""
        return position.at(step)

    def end(self, position: Position) -> int | None:
        """Steps of the run; None for one without end."""
        return None if self.core.rows is None else position.steps.whole(self.core.rows)

    def stop(self, position: Position, epoch: int) -> int | None:
        """The step after the last one of an epoch; None for one without end. There is one epoch."""
        return self.end(position) if epoch == 0 else position.step

    def check_row(self, row: int) -> None:
        """Raises ValueError if a row is beyond counting."""
        if row // self.lanes >= _core.Mixture.MOST_ROUNDS:
            raise ValueError(f"row {row} lies beyond the {_core.Mixture.MOST_ROUNDS} rounds that can be counted")
        for part in self.parts:
            if part.core is not None:
                part.core.check_row(row)

    def engine(self, position: Position, resources: RunResources, spill: str) -> _core.Engine:
        """What prepares the batches from a position on.

        Raises:
            ValueError: if some of their rows are of a source that was taken out of the mixture.
        """
        self._check_there(position)
        return _core.Engine.mixed(
            self.core,
            [part.core for part in self.parts],
            position.steps,
            world=self.world_size,
            rank=self.rank,
            start=position.step,
            skip=list(position.skipped),
            workers=resources.workers,
            memory=resources.memory,
            prefetch=resources.prefetch,
            spill=spill,
        )

    def _check_there(self, position: Position) -> None:
        # Of several that were taken out the last one says from where on there is none of their rows.
        gone = ((self._taken_out(part.name), number) for number, part in enumerate(self.parts) if part.dataset is None)
        for since, number in sorted(gone, reverse=True):
            if position.row < since and self.core.counts(position.row)[number] < self.core.counts(since)[number]:
                name, step = self.parts[number].name, position.steps.whole(since)
                step += position.steps.row_of(step) < since
                raise ValueError(
                    f"step {position.step}: rows from there on are of source {name!r}, which was taken out of the "
                    f"mixture before row {since}\nhint: go to step {step} or a later one, or to earlier ones with a "
                    "loader that has the source"
                )

    def _taken_out(self, name: str) -> int:
        """The row before which a source was taken out for the last time: it has no weight from there on."""
        without = itertools.takewhile(lambda one: name not in one.names, reversed(self.weights))
        return [weighting.round for weighting in without][-1] * self.lanes

    def given(self, row: int) -> tuple[int, ...]:
        """How many of the first `row` rows each source gave."""
        last, counts = self._counted[0] if self._counted else (0, (0,) * len(self.parts))
        if last <= row <= last + _COUNTED_ON:
            sources = np.frombuffer(memoryview(self.core.sources(last, row)), dtype=np.uint32)
            more = np.bincount(sources, minlength=len(self.parts))
            counts = tuple(int(one) for one in more + np.array(counts, dtype=np.int64))
        else:
            counts = tuple(self.core.counts(row))
        self._counted[:] = [(row, counts)]
        return counts

    def progress(self, row: int) -> list[dict[str, Any]]:
        """What each source gave up to a row: ``rows``, ``tokens`` and in which ``epoch`` it is."""
        counts = self.given(row)
        tokens = self.lengths.tokens_of(self.core, counts)
        return [
            {"rows": rows, "tokens": own, "epoch": epoch_of(part.eras, own)}
            for part, rows, own in zip(self.parts, counts, tokens, strict=True)
        ]

    def state(self, position: Position) -> dict[str, Any]:
        """The state at a position, as plain JSON types."""
        sources = [
            dict(part.fixed) | {"lanes": part.lanes, "window": part.window, "limit": part.limit, "given": given}
            for part, given in zip(self.parts, self.progress(position.row), strict=True)
        ]
        weights = [weighting.state() for weighting in self.weights]
        pipeline = self.fixed["pipeline"] | {"weights": weights}
        return dict(self.fixed) | position.state(self.fixed["changes"]) | {"pipeline": pipeline, "sources": sources}


def start(
    dataset: MixDataset, given: RunArguments, world_size: int, rank: int, state: Mapping[str, Any] | None
) -> tuple[Run, Position]:
    """The run that arguments and a state that fits the dataset describe, and where it stands.

    Raises:
        ValueError: if something is missing, or does not fit the data or the number of ranks.
        StateMismatch: if an argument contradicts the state.
    """
    position = position_of(given, world_size, state)
    batches = position.batches_to_come()
    for batch in batches:
        check_divides(batch, world_size)
    lanes = choose("lanes", given.lanes, state, gcd(*batches))
    seed = choose("seed", given.seed, state, 0)
    shuffle = choose("shuffle", given.shuffle, state, True)
    exclusion, changes = exclusion_of(given.exclude, state)
    fixed: dict[str, Any] = {
        "schema": SCHEMA,
        "order": ORDER,
        "kind": "mixture",
        "pipeline": rules(dataset, state),
        "seed": seed,
        "shuffle": shuffle,
        "changes": changes,
        "lanes": lanes,
    }
    saved = {entry["name"]: entry for entry in state["sources"]} if state is not None else {}
    names = list(dict.fromkeys([*saved, *dataset.names]))
    weights = (
        (Weighting(0, dataset.weights),)
        if state is None
        else tuple(Weighting.load(entry) for entry in state["pipeline"]["weights"])
    )
    shares = largest_shares(weights[-1], names)
    lengths = Lengths.of(state, states.packing_of(dataset).seq_len)
    parts = tuple(
        _part(dataset, name, fixed, given, share, lengths.first, saved.get(name))
        for name, share in zip(names, shares, strict=True)
    )
    masked = masking(exclusion, [part.dataset for part in parts])
    run = _run(dataset, parts, (world_size, rank), weights, lengths, fixed, masked, position)
    if state is not None:
        check_counts(state, run.progress(position.row))
    return run, position


def with_added(dataset: MixDataset, given: RunArguments, state: dict[str, Any]) -> Adapted:
    """A state that fits a dataset but for data that was added to sources, as the beginning of a run over all of it.

    A source changes with the first pass that begins behind all that the mixture has drawn of it. The passes after which
    it is exhausted are as many as before, and one that has left stays away.
    """
    entries = {entry["name"]: entry for entry in state["sources"]}
    grown = {
        name: states.described(name, data)
        for name, data in dataset.packed.items()
        if data.core.file_count > entries[name]["files"]
    }
    begin = Adapted(state)
    if not grown:
        return begin
    # What is given of batches to come says nothing of rows that were.
    run, _ = start(dataset, replace(given, batch_size=None, schedule=None), 1, 0, state)
    after: dict[str, Any] = {}
    texts: list[str] = []
    for number, part in enumerate(run.parts):
        if part.name not in grown or part.dataset is None:
            continue
        epoch = 0 if part.core is None else run.core.pass_after(number, part.core, state["position"])
        passes = dataset.passes(part.name)
        if passes is not None and run.core.has_left(number, state["position"]):
            epoch = max(epoch, passes)
        use = f"they are used from its pass {epoch} on"
        if passes is not None and epoch >= passes:
            use = f"none of its {passes} passes is to come, so they are not used"
        texts.append(f"{told_of(part.dataset, entries[part.name], f'source {part.name!r}')}; {use}")
        after[part.name] = {"epoch": epoch} | noted_of(grown[part.name])
    before = {name: noted_of(entries[name]) for name in after}
    sources = [entry | grown.get(entry["name"], {}) for entry in state["sources"]]
    return begin._replace(state=state | {"sources": sources}).noted(ADDED, before, after, *texts)


def with_steps(run: Run, position: Position) -> Run:
    """The same run, where batch sizes have changed: what follows steps changes with them.

    Raises:
        ValueError: if a batch is too large for the data, or does not go with the lanes.
    """
    return _run(
        run.dataset,
        run.parts,
        (run.world_size, run.rank),
        run.weights,
        run.lengths,
        run.fixed,
        run.masking,
        position,
    )


def on_other_ranks(
    given: RunArguments, run: Run, position: Position, world_size: int, rank: int
) -> tuple[Run, Position]:
    """The same run at the same place, when the ranks have changed under it.

    Raises:
        ValueError: if the new number of ranks does not divide a batch.
    """
    moved, restarted = start(run.dataset, given, world_size, rank, run.state(position))
    if given.batch_size is not None:
        return moved, restarted
    for batch in position.batches_to_come():
        check_divides(batch, world_size)
    return with_steps(moved, position), position


def _run(
    dataset: MixDataset,
    parts: tuple[Part, ...],
    ranks: tuple[int, int],
    weights: tuple[Weighting, ...],
    lengths: Lengths,
    fixed: Mapping[str, Any],
    masked: Masking | None,
    position: Position,
) -> Run:
    lanes: int = fixed["lanes"]
    names = [part.name for part in parts]
    core = _core.Mixture(
        seed=fixed["seed"],
        lanes=lanes,
        together=dataset.per_batch,
        source_lanes=[part.lanes for part in parts],
        phases=phases(weights, names, position.steps, lanes, lengths, per_batch=dataset.per_batch),
        limits=[part.dealt for part in parts],
        stop=dataset.on_exhausted == "stop",
        seq_len=lengths.first,
        overlap=states.packing_of(dataset).overlap,
        changes=[(row // lanes, seq_len) for row, seq_len in lengths.changes],
    )
    if lengths.changes:
        parts = tuple(part.within(core, number) for number, part in enumerate(parts))
    run = Run(core, dataset, parts, *ranks, lanes, weights, lengths, fixed, masked)
    check_enough(core, position.steps, {part.name: part.limit for part in parts})
    run.check_row(position.row)
    return run


def _part(
    dataset: MixDataset,
    name: str,
    fixed: Mapping[str, Any],
    given: RunArguments,
    share: int,
    seq_len: int,
    saved: Mapping[str, Any] | None,
) -> Part:
    """A source in its order: as it was saved, or as its defaults are.

    Raises:
        StateMismatch: if a window is given that is not the saved one.
    """
    data = dataset.packed.get(name)
    fresh = None if data is None else states.described(name, data)
    # Of data that was added a state may not know yet.
    known = saved or fresh
    if known is None:
        raise AssertionError(f"source {name!r} is neither in the dataset nor in the state")
    kept = fresh or {key: known[key] for key in states.SOURCE}
    eras = eras_of(fixed["changes"], known, name)
    rules = fixed["pipeline"]
    passes: int | None = rules["max_epochs"].get(name, None if rules["on_exhausted"] == "repeat" else 1)
    dealt = tokens_of(eras, passes)
    if data is None:
        own = {key: known[key] for key in ("lanes", "window", "limit")}
        return Part(name=name, dataset=None, dealt=dealt, **own, core=None, fixed=kept, eras=eras)
    chunks = data.core.row_group_count
    if saved is not None and saved["lanes"] is not None:
        lanes, window = saved["lanes"], choose("window", given.window, saved, 1)
    else:
        tokens = max(_WINDOW_TOKENS, fixed["lanes"] * _WINDOW_TOKENS_PER_LANE) * share >> 48
        window = given.window or min(max(1, -(-tokens * chunks // max(1, data.weight))), max(1, chunks))
        lanes = _core.default_lanes(fixed["lanes"], data.rows, chunks, window) if fixed["shuffle"] else 1
    core = known["weight"] and core_run(
        data,
        seed=fixed["seed"],
        shuffle=fixed["shuffle"],
        lanes=lanes,
        window=window,
        lengths=Lengths(seq_len, (), None),
        eras=eras,
        epochs=passes,
    )
    return Part(
        name=name,
        dataset=data,
        lanes=lanes,
        window=window,
        dealt=dealt,
        limit=core.row_count if core else 0,
        core=core or None,
        fixed=kept,
        eras=eras,
    )

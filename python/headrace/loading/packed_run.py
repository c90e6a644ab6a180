"""From arguments and a loaded state to a run: which order, how many rows a step, where it stands."""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace import _core
from headrace._changes import Adapted
from headrace.dataset import PackedDataset
from headrace.errors import StateMismatch
from headrace.state import ORDER, SCHEMA, steps_of

from .added import ADDED
from .counted import Position
from .exclusion import exclusion_of
from .lengths import Lengths, with_length
from .packed_added import Era, check_added, eras_of, first_files, noted_of, row_groups, told_of
from .packed_exclusion import Masking, masking
from .run_arguments import NO_BATCH_SIZE, RunArguments, RunResources, choose
from .schedule import Skipped, check_divides


@dataclass(frozen=True, kw_only=True)
class Given(RunArguments):
    """What the user said, with what packed tokens alone have."""

    pad: bool


@dataclass(frozen=True)
class Run:
    """A dataset in its order, and what a state of it says beside the position."""

    core: _core.Run
    world_size: int
    rank: int
    seed: int
    shuffle: bool
    lanes: int
    window: int
    lengths: Lengths
    """seq_len, and where it changed."""
    fixed: Mapping[str, Any] = field(repr=False)
    """The part of a state that does not change during a run."""
    masking: Masking | None
    """How batches are masked."""

    @property
    def ranks(self) -> tuple[int, int]:
        """The rank, and the number of ranks."""
        return self.rank, self.world_size

    def at(self, position: Position, step: int) -> Position:
        """Another step of the run."""
        return position.at(step)

    def end(self, position: Position) -> int | None:
        """Steps of the run; None for one without end."""
        return position.steps.end(self.core)

    def stop(self, position: Position, epoch: int) -> int:
        """The step after the last one of an epoch."""
        return position.steps.first_step(self.core, epoch + 1)

    def check_row(self, row: int) -> None:
        """Raises ValueError if a row is beyond counting."""
        self.core.check_row(row)

    def engine(self, position: Position, resources: RunResources, spill: str) -> _core.Engine:
        """What prepares the batches from a position on."""
        return _core.Engine(
            self.core,
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

    def state(self, position: Position) -> dict[str, Any]:
        """The state at a position, as plain JSON types."""
        return json.loads(json.dumps(self.fixed)) | position.state(self.fixed["changes"])


def start(
    dataset: PackedDataset, given: Given, world_size: int, rank: int, state: Mapping[str, Any] | None
) -> tuple[Run, Position]:
    """The run that arguments and state describe, and where it stands.

    Raises:
        ValueError: if something is missing, or does not fit the data or the number of ranks.
        StateMismatch: if an argument contradicts the state.
    """
    position = position_of(given, world_size, state)
    for batch in position.batches_to_come():
        check_divides(batch, world_size)
    chunks, batch = dataset.core.row_group_count, position.steps.largest_batch
    seed = choose("seed", given.seed, state, 0)
    shuffle = choose("shuffle", given.shuffle, state, True)
    if not shuffle and given.lanes not in (None, 1):
        raise ValueError(f"lanes must be left out with shuffle=False, got {given.lanes}")
    window = _core.default_window(chunks, dataset.weight, given.lanes or batch)
    window = choose("window", given.window, state, window)
    lanes = _core.default_lanes(batch, dataset.rows, chunks, window) if shuffle else 1
    lanes = choose("lanes", given.lanes, state, lanes)
    lengths = Lengths.of(state, dataset.packing.seq_len)
    sources = [source(dataset)]
    exclusion, changes = exclusion_of(given.exclude, state)
    core = core_run(
        dataset,
        seed=seed,
        shuffle=shuffle,
        lanes=lanes,
        window=window,
        lengths=lengths,
        eras=eras_of(changes, sources[0]),
        epochs=given.epochs,
        pad=given.pad,
    )
    for batch in position.batches_to_come():
        core.check_enough(batch)
    core.check_row(position.steps.row_of(position.step))
    fixed: dict[str, Any] = {
        "schema": SCHEMA,
        "order": ORDER,
        "kind": "counted",
        "seed": seed,
        "shuffle": shuffle,
        "changes": changes,
        "lanes": lanes,
        "window": window,
        "pipeline": dataset.packing.identity(),
        "sources": sources,
    }
    masked = masking(exclusion, [dataset])
    return Run(core, world_size, rank, seed, shuffle, lanes, window, lengths, fixed, masked), position


def core_run(
    dataset: PackedDataset,
    *,
    seed: int,
    shuffle: bool,
    lanes: int,
    window: int,
    lengths: Lengths,
    eras: Sequence[Era],
    epochs: int | None = None,
    pad: bool = False,
) -> _core.Run:
    """A dataset in its order: with rows of these lengths, and of these eras.

    Raises:
        ValueError: if it holds no token, or something is out of range.
    """
    packing = dataset.packing
    return _core.Run(
        dataset.core,
        packing.column,
        seed=seed,
        shuffle=shuffle,
        lanes=lanes,
        window=window,
        seq_len=lengths.first,
        overlap=packing.overlap,
        bos_id=packing.bos_id,
        eos_id=packing.eos_id,
        boundaries=packing.boundaries,
        wide=packing.wide,
        pad_id=packing.pad_id,
        epochs=epochs,
        pad=pad,
        changes=list(lengths.changes),
        data=row_groups(eras),
    )


def on_other_ranks(
    dataset: PackedDataset, given: Given, run: Run, position: Position, world_size: int, rank: int
) -> tuple[Run, Position]:
    """The same run at the same place, when the ranks have changed under it.

    Raises:
        ValueError: if the new number of ranks does not divide a batch.
    """
    moved, restarted = start(dataset, given, world_size, rank, run.state(position))
    if given.batch_size is not None:
        return moved, restarted
    for batch in position.batches_to_come():
        check_divides(batch, world_size)
    return moved, position


def source(dataset: PackedDataset) -> dict[str, Any]:
    """What a state says of a dataset: the same on every machine that sees the same bytes."""
    identity, content = dataset.core.identity(dataset.packing.column)
    return {
        "identity": identity,
        "content": content,
        "files": dataset.core.file_count,
        "row_groups": dataset.core.row_group_count,
        "rows": dataset.rows,
        "tokens": dataset.tokens,
    }


def adapted(dataset: PackedDataset, state: Mapping[str, Any], *, epochs: int | None = None, strict: bool) -> Adapted:
    """A state whose form was checked, as the beginning of a run over a dataset.

    With `strict` off data may have other paths, more may have come behind it, and rows may have another length where a
    round of lanes begins: the state tells of each.

    Args:
        dataset: whose tokens.
        state: see above.
        epochs: of the run; None for no end.
        strict: see above.

    Raises:
        StateMismatch: naming the first difference that is not allowed.
    """
    check_packing(dataset, state["pipeline"])
    if unknown := set(state["pipeline"]) - set(dataset.packing.identity()):
        raise StateMismatch(f"state: unknown key {sorted(unknown)[0]!r} in its pipeline")
    here = source(dataset)
    there: dict[str, Any] = state["sources"][0] if len(state["sources"]) == 1 else {}
    if not isinstance(there, dict) or set(there) != set(here):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise StateMismatch(f"state: expected one source with {', '.join(here)}, found {state['sources']!r}")
    known = first_files(dataset, here, there) or here
    begin = Adapted(dict(state))
    if moved := check_source(dataset, known, there, strict=strict):
        begin = begin.noted("data moved", there["identity"], known["identity"], moved)
    if known is not here:
        check_added(dataset, there, strict=strict)
        begin = _with_added(dataset, known, here, begin, epochs)
    before = state["pipeline"]["seq_len"]
    return begin.then(with_length(begin.state, before, dataset.packing.seq_len, strict=strict))


def _with_added(
    dataset: PackedDataset, before: Mapping[str, Any], after: Mapping[str, Any], begin: Adapted, epochs: int | None
) -> Adapted:
    """A state over the first files of a dataset, as the beginning of a run over all of them."""
    state = begin.state
    core = core_run(
        dataset,
        seed=state["seed"],
        shuffle=state["shuffle"],
        lanes=state["lanes"],
        window=state["window"],
        lengths=Lengths.of(state, state["pipeline"]["seq_len"]),
        eras=eras_of(state["changes"], before),
    )
    core.check_row(state["position"])
    epoch = core.pass_after(state["position"])
    is_late = epochs is not None and epoch >= epochs
    use = "no epoch to come is of them" if is_late else f"they are used from epoch {epoch} on"
    text = f"{told_of(dataset, before)}; {use}"
    return begin.noted(ADDED, noted_of(before), {"epoch": epoch} | noted_of(after), text)


def check_packing(dataset: PackedDataset, saved: Mapping[str, Any], *, of: str = "") -> None:
    """Refuses rows that hold something else than those of a state. How long they are is not compared.

    Args:
        dataset: whose rows.
        saved: what the state says of them; those of earlier builds do not tell what fills rows up.
        of: text behind what differs, such as " of source 'web'".

    Raises:
        StateMismatch: naming the first difference.
    """
    for key, wanted in dataset.packing.identity().items():
        if key == "pad_id" and key not in saved:
            continue
        if key not in saved or (saved[key] != wanted and key != "seq_len"):
            raise StateMismatch(f"{key}{of} is {wanted!r} here and {saved.get(key)!r} in the state")


def check_source(
    dataset: PackedDataset, here: Mapping[str, Any], there: Mapping[str, Any], *, strict: bool, which: str = "the data"
) -> str | None:
    """Whether data has moved since a state was saved, by what `source` says of both: the words for it, None if not.

    Raises:
        StateMismatch: naming the first difference of other data, or with `strict` of other paths.
    """
    if there["identity"] == here["identity"]:
        return None
    difference = _first_difference(dataset, here, there)
    if there["content"] != here["content"]:
        raise StateMismatch(f"{which} is not that of the state: {difference}\nhint: to start a new run, load no state")
    if strict:
        raise StateMismatch(
            f"{which} has other paths than in the state: {difference}\n"
            "hint: the content is the same; strict=False allows it"
        )
    return f"{which} has moved since the state was saved: {difference}"


def keep_file_table(dataset: PackedDataset, identity: str) -> None:
    """Keeps the table of a dataset's files beside its index, so that a later mismatch can be named to the file."""
    path = _table_path(dataset, identity)
    if path.exists():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            json.dump(dataset.core.file_table(), file)
        os.replace(file.name, path)  # noqa: PTH105
    except OSError:
        # It only serves messages: without a cache folder they name digests.
        return


def _table_path(dataset: PackedDataset, identity: str) -> Path:
    return dataset.cache / "files" / f"{identity}.json"


def _first_difference(dataset: PackedDataset, here: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    for key in ("files", "row_groups", "rows", "tokens"):
        if here[key] != there[key]:
            counts = f"{here[key]} {key.replace('_', ' ')} here, {there[key]} in the state"
            break
    else:
        counts = f"digest {here['identity']} here, {there['identity']} in the state"
    try:
        saved = json.loads(_table_path(dataset, str(there["identity"])).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return counts
    new = dataset.core.file_table()
    for old_file, new_file in zip(saved, new, strict=False):
        if tuple(old_file) != tuple(new_file):
            return f"{counts}; the first file that differs is {new_file[0]!r} here, {old_file[0]!r} in the state"
    if len(saved) != len(new):
        longer, which = (new, "here") if len(new) > len(saved) else (saved, "in the state")
        return f"{counts}; {longer[min(len(saved), len(new))][0]!r} is only {which}"
    return counts


def position_of(given: RunArguments, world_size: int, state: Mapping[str, Any] | None) -> Position:
    """Where the run stands, with the history from the state and the sizes to come from the arguments."""
    schedule = given.rows(world_size)
    if state is not None:
        steps, step = steps_of(state["history"]), state["step"]
        skipped = Skipped((start, stop) for start, stop in state["skipped"])
    elif schedule is not None:
        steps, step, skipped = _core.Steps([(0, 0, schedule[0])]), 0, Skipped()
    else:
        raise ValueError(NO_BATCH_SIZE)
    if schedule is not None:
        current = max(start for start in schedule if start <= step)
        steps = steps.with_batch(step, schedule[current])
        for start, batch in schedule.items():
            if start > step:
                steps = steps.with_batch(start, batch)
    return Position(skipped.first_left(step), steps, skipped)

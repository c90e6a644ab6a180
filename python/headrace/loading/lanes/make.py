"""Makes documents of items, and of groups of documents: what threads or processes do for lanes."""

import pickle
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.errors import DataError
from headrace.loading.pool import add_note
from headrace.samples.applying import Failed
from headrace.samples.cache import ChunkCache
from headrace.samples.document_pipeline import DocumentPipeline
from headrace.samples.draws import Key
from headrace.samples.excluding import among
from headrace.samples.packing import Flat
from headrace.samples.pipeline import OnError

from .source import Maker

__all__ = ["Block", "DocumentMaker", "Failure", "Group", "Made", "Run", "Skipped", "Task"]

_Ints = npt.NDArray[np.int64]

_PROBED = 64
"""Items that are read at most to find out whether threads or processes suit."""


class Group(NamedTuple):
    """Documents that one call of a `batch_map` gets."""

    documents: list[Any]
    key: Key
    """Of the first of them, by its part."""


class Run(NamedTuple):
    """Work for one lane, in its order: items, or groups."""

    lane: int
    """The index of the lane."""
    positions: _Ints
    """int64, (items,): of items."""
    epochs: list[int]
    """Of items."""
    groups: list[Group]


class Task(NamedTuple):
    """Work of one level for some lanes."""

    level: int
    runs: list[Run]


class Skipped(NamedTuple):
    """A document that was left out by ``on_error="skip"``."""

    position: int
    """Of its item."""
    place: str
    error: str


class Failure:
    """What was raised for an item; it pickles whatever that is.

    Args:
        error: what was raised. Several items may have the same.
        note: names the item.
    """

    def __init__(self, error: BaseException, note: str) -> None:
        self._error = error
        self._note = note

    def raised(self) -> BaseException:
        """The error, with a note that names the item."""
        add_note(self._error, self._note)
        return self._error

    def __reduce__(self) -> Any:
        text = "".join(traceback.format_exception(self._error)).rstrip()
        try:
            whole = pickle.dumps(self._error, protocol=5)
            pickle.loads(whole)
        except Exception:
            whole = pickle.dumps(RuntimeError("raised in a worker process"), protocol=5)
        return _again, (whole, text, self._note)


class Block(NamedTuple):
    """What became of a run."""

    counts: list[int]
    """Documents of each of its items or groups, in order, up to one that failed."""
    documents: list[Any]
    """Of all of them in order, if they are not packed."""
    flat: Flat | None
    """The same as arrays, if they are."""
    keys: list[Key]
    """Of each item or group, for those that are made of its documents; empty on the last level."""
    failure: Failure | None
    """Of the item or group after the last one in `counts`."""
    masked: list[bool]
    """Whether the documents of each of its items or groups are masked; empty if none ever is."""


class Made(NamedTuple):
    """What became of a task."""

    blocks: list[Block]
    """One for each run."""
    skipped: list[Skipped]
    dropped: int
    """Items and groups of which no document is left."""
    seconds: float
    """That it took."""


class DocumentMaker(Maker):
    """Reads the items of a task, and applies a level's stages. Several threads may call it; pickles.

    Args:
        pipeline: whose documents.
        seed: of random numbers for functions.
        on_error: whether documents that cannot be made are left out.
        memory: bytes of chunks that are kept.
        masked: int64, ascending: the positions of items whose documents are masked; None if there are none.
    """

    def __init__(
        self,
        pipeline: DocumentPipeline,
        *,
        seed: int,
        on_error: OnError,
        memory: int,
        masked: _Ints | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.cache = ChunkCache(memory)
        self._seed = seed
        self._skip = on_error == "skip"
        self._masked = masked

    def __call__(self, task: Task) -> Made:
        """What becomes of a task. What is raised for an item is part of it.

        Raises:
            StoreError: if the store does not answer.
        """
        begin = time.perf_counter()
        skipped: list[Skipped] = []
        if task.level == 0:
            keys = [
                Key(self._seed, epoch, position)
                for run in task.runs
                for position, epoch in zip(run.positions.tolist(), run.epochs, strict=True)
            ]
            items = self._items(task.runs, keys, skipped)
        else:
            keys = [group.key for run in task.runs for group in run.groups]
            items = self._groups(task, skipped)
        is_last = task.level == len(self.pipeline.levels) - 1
        blocks: list[Block] = []
        first = 0
        for run in task.runs:
            end = first + (len(run.groups) if task.level else len(run.positions))
            blocks.append(self._block(items[first:end], keys[first:end], is_last, skipped))
            first = end
        return Made(blocks, skipped, sum(not item for item in items), time.perf_counter() - begin)

    def probes(self) -> list[int]:
        """See `Maker.probes`: positions of items."""
        return list(range(min(_PROBED, len(self.pipeline.base))))

    def probe(self, some: list[int]) -> None:
        """See `Maker.probe`."""
        self(Task(0, [Run(0, np.array(some, dtype=np.int64), [0] * len(some), [])]))

    def _items(self, runs: list[Run], keys: list[Key], skipped: list[Skipped]) -> list[list[Any] | Failed]:
        if not keys:
            return []
        return self.pipeline.base.expand(
            np.concatenate([run.positions for run in runs]),
            self.cache,
            key_of=keys.__getitem__,
            then=self.pipeline.levels[0],
            skip=self._skipping(keys, skipped),
        )

    def _groups(self, task: Task, skipped: list[Skipped]) -> list[list[Any] | Failed]:
        made: list[list[Any] | Failed] = []
        for run in task.runs:
            for group in run.groups:
                skip = self._skipping([group.key], skipped)
                made.append(self.pipeline.group(task.level, group.documents, group.key, skip))
        return made

    def _skipping(self, keys: Sequence[Key], skipped: list[Skipped]) -> Callable[[int, Exception], None] | None:
        def leave_out(index: int, error: Exception) -> None:
            self._leave_out(error, keys[index], skipped)

        return leave_out if self._skip else None

    def _leave_out(self, error: Exception, key: Key, skipped: list[Skipped]) -> None:
        place = self.pipeline.base.place(key.position)
        skipped.append(Skipped(key.position, str(place), f"{type(error).__name__}: {error}"))

    def _block(self, items: list[list[Any] | Failed], keys: list[Key], is_last: bool, skipped: list[Skipped]) -> Block:
        """What a run's lane gets, up to an item that failed; one that is left out is one without documents."""
        counts: list[int] = []
        documents: list[Any] = []
        failure: Failure | None = None
        packing = self.pipeline.packing if is_last else None
        for item, key in zip(items, keys, strict=True):
            made = item
            if packing is not None and not isinstance(made, Failed):
                made = self._packable(made, key, skipped)
            if isinstance(made, Failed):
                if not self._skip:
                    failure = Failure(made.error, self.pipeline.base.note(key.position))
                    break
                self._leave_out(made.error, key, skipped)
                made = []
            counts.append(len(made))
            documents += made
        flat = None if packing is None else Flat.joined(documents, packing.columns)
        masked = self._is_masked(keys[: len(counts)]) if is_last else []
        return Block(counts, [] if packing is not None else documents, flat, [] if is_last else keys, failure, masked)

    def _is_masked(self, keys: Sequence[Key]) -> list[bool]:
        """See `Block.masked`. Documents of a group are those of the item that its first one was made of."""
        if self._masked is None:
            return []
        positions = np.array([key.position for key in keys], dtype=np.int64)
        return among(self._masked, positions)[1].tolist()

    def _packable(self, documents: list[Any], key: Key, skipped: list[Skipped]) -> list[Any] | Failed:
        """Documents as what is packed of them."""
        packing = self.pipeline.packing
        assert packing is not None
        made: list[Any] = []
        for document in documents:
            try:
                made.append(packing.lines(document))
            except DataError as error:
                if not self._skip:
                    return Failed(error)
                self._leave_out(error, key, skipped)
        return made


def _again(whole: bytes, text: str, note: str) -> Failure:
    error: BaseException = pickle.loads(whole)
    add_note(error, f"in a worker process:\n{text}")
    return Failure(error, note)

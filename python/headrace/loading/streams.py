"""What a loader over an object of the user's draws from: the tasks of an epoch, and how many there are."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from headrace.errors import StateMismatch

from .base import END
from .fetch import pin
from .pool import add_note
from .samplers import (
    BatchSamplerStream,
    OrderStream,
    Place,
    SamplerStream,
    Sharing,
    Task,
    is_sharded,
    load_inner,
    wants_integers,
)

__all__ = ["Caller", "IterableSource", "MapSource", "Reader", "Source", "length_of", "read_pinned"]


class Source(ABC):
    """Where tasks come from.

    Attributes:
        keys: how it is told what to read, for states: ``"order"``, ``"sampler"``, ``"batch_sampler"``, ``"iterable"``.
    """

    keys: str

    @abstractmethod
    def size(self) -> int | None:
        """Samples of an epoch, if what is known says so."""

    @abstractmethod
    def left(self, place: Place, sharing: Sharing) -> int:
        """Steps from a place to the end of its epoch.

        Raises:
            TypeError: if there is no length.
        """

    @abstractmethod
    def stream(self, place: Place, sharing: Sharing, seed: int | None, epoch: int) -> Iterator[Any]:
        """The tasks from a place on."""


@dataclass(frozen=True)
class MapSource(Source):
    """Keys for an object with ``__getitem__`` or ``__getitems__``."""

    dataset: Any
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Any] | None

    @property
    def keys(self) -> str:  # type: ignore[override]
        """See `Source`."""
        if self.batch_sampler is not None:
            return "batch_sampler"
        return "order" if self.sampler is None else "sampler"

    def size(self) -> int | None:
        """See `Source.size`."""
        return length_of(self.dataset, "dataset") if hasattr(self.dataset, "__len__") else None

    def left(self, place: Place, sharing: Sharing) -> int:
        """See `Source.left`."""
        if self.batch_sampler is not None:
            return max(0, length_of(self.batch_sampler, "batch_sampler") - self._lists(place, sharing))
        if self.sampler is None:
            return sharing.steps(max(0, length_of(self.dataset, "dataset") - place.row))
        own, rows = self._of(self.sampler, sharing)
        return own.steps(max(0, length_of(self.sampler, "sampler") - place.row // rows))

    def stream(self, place: Place, sharing: Sharing, seed: int | None, epoch: int) -> Iterator[Task]:
        """See `Source.stream`."""
        integers = wants_integers(self.dataset)
        if self.batch_sampler is not None:
            own, rows = self._of(self.batch_sampler, sharing)
            given = self._given(self.batch_sampler, place, rows)
            return BatchSamplerStream(self.batch_sampler, own, place, given, integers, rows)
        if self.sampler is not None:
            own, rows = self._of(self.sampler, sharing)
            given = self._given(self.sampler, place, rows)
            return SamplerStream(self.sampler, own, place, given, integers, rows)
        size = length_of(self.dataset, "dataset")
        # What cannot be shared out is refused before the first step.
        sharing.steps(max(0, size - place.row))
        return OrderStream(size, sharing, place, seed, epoch)

    def _of(self, sampler: Any, sharing: Sharing) -> tuple[Sharing, int]:
        """How the keys of a sampler are shared out, and the rows of all ranks that one of them stands for."""
        if not is_sharded(sampler):
            return sharing, 1
        return replace(sharing, batch=sharing.batch // sharing.ranks, rank=0, ranks=1), sharing.ranks

    def _given(self, sampler: Any, place: Place, rows: int) -> int:
        """Keys that a sampler gave before; of one that is sharded without those that fill up the ranks' parts.

        Raises:
            StateMismatch: if the ranks cannot have had equal parts of what was given.
        """
        size = self.size() if is_sharded(sampler) else None
        if place.row % rows and (size is None or place.row < size):
            raise StateMismatch(
                f"{type(sampler).__name__} gives one of {rows} ranks its keys, and the {place.row} samples that were "
                f"given before the state was saved are no multiple of {rows}\nhint: resume on another number of ranks, "
                "or pass a sampler that gives the keys of all ranks, which are shared out among them"
            )
        return (place.row if size is None else min(place.row, size)) // rows

    def _lists(self, place: Place, sharing: Sharing) -> int:
        """Lists that a batch sampler gave before: as many as steps, but for one that is sharded on other ranks."""
        size = getattr(self.batch_sampler, "batch_size", None)
        if not is_sharded(self.batch_sampler) or not isinstance(size, int):
            return place.step
        return -(-self._given(self.batch_sampler, place, sharing.ranks) // size)


class IterableSource(Source):
    """Samples in the order in which an iterable gives them; each rank its own."""

    keys = "iterable"

    def __init__(self, dataset: Iterable[Any], collate: Callable[[Any], Any] | None) -> None:
        self._dataset = dataset
        self._collate = collate
        self._used = False

    def size(self) -> int | None:
        """See `Source.size`."""
        return None

    def left(self, place: Place, sharing: Sharing) -> int:
        """See `Source.left`."""
        own = replace(sharing, batch=sharing.batch // sharing.ranks, rank=0, ranks=1)
        return own.steps(max(0, length_of(self._dataset, "dataset") - place.row // sharing.ranks))

    def stream(self, place: Place, sharing: Sharing, seed: int | None, epoch: int) -> Iterator["Reader"]:
        """See `Source.stream`."""
        del seed, epoch
        if isinstance(self._dataset, Iterator):
            if self._used:
                raise RuntimeError(
                    f"{type(self._dataset).__name__} is an iterator, which can be read once, and was\n"
                    "hint: pass an object whose __iter__ begins anew, such as a list or a PyTorch IterableDataset"
                )
            self._used = True
        return repeat(Reader(self._dataset, self._collate, place, sharing))


class Reader:
    """Reads batches one after the other; called by one thread at a time."""

    def __init__(
        self, dataset: Iterable[Any], collate: Callable[[Any], Any] | None, place: Place, sharing: Sharing
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self._sharing = sharing
        self._size = sharing.batch // sharing.ranks
        self._place = place
        self._iterator: Iterator[Any] | None = None
        self._samples: list[Any] = []
        self._ended = False
        self._error: Exception | None = None

    def read(self) -> tuple[Any, Place]:
        """The next batch and the place after it; or `END`, and the beginning of the next epoch."""
        try:
            self._draw()
        except Exception as error:
            self._error = error
            add_note(error, f"while reading from {type(self._dataset).__name__}, batch {self._place.step}")
            raise
        samples = self._samples
        if len(samples) < self._size and (self._sharing.drop_last or not samples):
            return END, Place(inner=self._state())
        self._samples = []
        rows = self._place.row + len(samples) * self._sharing.ranks
        inner = self._state()
        over = self._ended and inner is not None
        place = self._place = Place(rows, self._place.step + 1, inner, over=over)
        value = samples if self._sharing.batched else samples[0]
        return value if self._collate is None else self._collate(value), place

    def _draw(self) -> None:
        if self._iterator is None:
            self._iterator = self._begin()
        while len(self._samples) < self._size and not self._ended:
            try:
                self._samples.append(next(self._iterator))
            except StopIteration:
                if self._error is not None:
                    # A generator that raised is finished; that is no end of the epoch.
                    self._ended = True
                    raise RuntimeError(
                        "the dataset's iterator ended after an error: what should have followed is lost"
                    ) from self._error
                self._ended = True
            else:
                self._error = None

    def _begin(self) -> Iterator[Any]:
        inner, dataset = self._place.inner, self._dataset
        if inner is not None and hasattr(dataset, "load_state_dict"):
            dataset.load_state_dict(inner)  # type: ignore[attr-defined]
            return iter(dataset)
        iterator = iter(dataset)
        if inner is not None:
            load_inner(iterator, type(dataset).__name__, inner)
        else:
            for _ in range(self._place.row // self._sharing.ranks):
                next(iterator, None)
        return iterator

    def _state(self) -> Any:
        for stateful in (self._dataset, self._iterator):
            if hasattr(stateful, "state_dict") and hasattr(stateful, "load_state_dict"):
                return stateful.state_dict()  # type: ignore[union-attr]
        return None


class Caller:
    """What a worker thread does with a task."""

    def __init__(self, fetch: Callable[[Any], Any], pinned: bool) -> None:
        self._fetch = fetch
        self._pinned = pinned

    def __call__(self, task: Task) -> tuple[Any, Place]:
        """The batch, and the place after it."""
        batch = self._fetch(task.keys)
        return pin(batch) if self._pinned else batch, task.after


def read_pinned(reader: Reader) -> tuple[Any, Place]:
    """See `Reader.read`."""
    batch, place = reader.read()
    return pin(batch), place


def length_of(sized: Any, what: str) -> int:
    """What ``len`` says, with a note to the error of one that raises.

    Raises:
        TypeError: if it has no length.
    """
    if not hasattr(sized, "__len__"):
        raise TypeError(f"the {what} has no length: {type(sized).__name__} has no __len__")
    try:
        return len(sized)
    except Exception as error:
        add_note(error, f"while asking len() of the {what}, {type(sized).__name__}")
        raise

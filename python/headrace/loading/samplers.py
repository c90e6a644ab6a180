"""Which keys come next: streams of tasks for one rank, from any place in an epoch.

A task is the keys of this rank's part of one step, and the place after that step. Streams are iterators whose
`__next__` moves them in one statement, so that Ctrl-C in the middle of it loses nothing.
"""

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, cast

from headrace import _core
from headrace.errors import StateMismatch

from .keys import checksum
from .pool import add_note
from .steps import epoch_steps, rank_rows, step_rows

__all__ = [
    "BatchSamplerStream",
    "OrderStream",
    "Place",
    "SamplerStream",
    "Sharing",
    "Stream",
    "Task",
    "is_sharded",
    "load_inner",
    "wants_integers",
]


_AT_ONCE: Final = 4096
"""Keys that are passed over at once: enough that the loop costs nothing, few enough for memory and Ctrl-C."""


class Place(NamedTuple):
    """How far into an epoch: what comes next."""

    row: int = 0
    """Rows of all ranks given."""
    step: int = 0
    """Steps given."""
    inner: Any = None
    """What the sampler or dataset itself said, if it has a `state_dict`."""
    drawn: int | None = None
    """The checksum of the keys given by a sampler that has none; None if it is not known."""
    over: bool = False
    """Whether `inner` was said when all of the epoch had been drawn, and so may be of the next one."""


class Task(NamedTuple):
    """What a worker gets."""

    keys: Any
    after: Place


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """How the rows of an epoch become batches of ranks.

    Attributes:
        batch: rows of all ranks in a step.
        rank: whose part.
        ranks: R.
        drop_last: whether the rows after the last whole batch are left out.
        allow_empty: whether a rank may have none in a step.
        batched: False if a batch is one sample and its key no list.
    """

    batch: int
    rank: int
    ranks: int
    drop_last: bool
    allow_empty: bool
    batched: bool

    def steps(self, left: int) -> int:
        """Steps that are left with these rows."""
        if not self.batched and self.ranks > 1 and left % self.ranks and not self.drop_last:
            raise ValueError(
                f"{left} single samples cannot be shared out evenly among {self.ranks} ranks\n"
                "hint: give a batch_size, whose last batch may hold fewer"
            )
        return epoch_steps(left, self.batch, self.ranks, self.drop_last, self.allow_empty)

    def rows(self, left: int) -> int:
        """Rows of all ranks in the next step."""
        return step_rows(0, left, self.batch, self.ranks, self.drop_last, self.allow_empty)[1]

    def share(self, begin: int, end: int) -> tuple[int, int]:
        """The part of this rank."""
        return rank_rows(begin, end, self.rank, self.ranks)


class Stream(Iterator[Task]):
    """The tasks of an epoch, or of what is left of it."""

    def end(self) -> Any:
        """What the sampler says of itself now that it has ended; None if it says nothing."""
        return None


class OrderStream(Stream):
    """Storage order, or an epoch's permutation.

    Args:
        size: M, the samples.
        sharing: how they are shared out.
        place: where to begin.
        seed: of the permutation; None for storage order.
        epoch: of the permutation.
    """

    def __init__(self, size: int, sharing: Sharing, place: Place, seed: int | None, epoch: int) -> None:
        self._size = size
        self._sharing = sharing
        self._place = place
        self._permutation = None if seed is None else _core.Permutation(size, seed=seed, epoch=epoch)

    def __next__(self) -> Task:
        row, step = self._place[:2]
        sharing = self._sharing
        left = self._size - row
        if left < 2 * sharing.batch:
            if sharing.steps(left) == 0:
                raise StopIteration
            end = row + sharing.rows(left)
        else:
            end = row + sharing.batch
        first, last = (row, end) if sharing.ranks == 1 else sharing.share(row, end)
        if self._permutation is None:
            keys = list(range(first, last))
        else:
            keys = memoryview(self._permutation.take(first, last)).tolist() if first < last else []
        after = Place(end, step + 1)
        task = Task(keys if sharing.batched else keys[0], after)
        self._place = after
        return task


class _Drawn:
    """An iterator over a sampler, and the state after what was drawn, if the sampler can say it.

    Args:
        sampler: what gives keys, or lists of them.
        name: of it, for messages.
        place: where to begin.
        passed: keys, or lists of them, that it gave before.
        given: the keys among them.
        lists: whether it gives lists of keys.

    Attributes:
        place: where to begin, with the checksum of what was given before. There is none if the sampler says its state,
            or gives one rank's keys alone: a state is the same for all ranks.

    Raises:
        StateMismatch: if the sampler gives other keys than before, or fewer, or only one of the two says its state.
    """

    def __init__(
        self, sampler: Iterable[Any], name: str, place: Place, passed: int, given: int, *, lists: bool
    ) -> None:
        self._name = name
        if place.inner is not None and hasattr(sampler, "load_state_dict"):
            cast("Any", sampler).load_state_dict(place.inner)
        self._iterator = _noted(lambda: iter(sampler), name, "beginning to iterate over")
        self._stateful: Any = next(filter(_has_state, (sampler, self._iterator)), None)
        sharded = is_sharded(sampler)
        drawn: int | None = None
        if place.inner is not None:
            if not hasattr(sampler, "load_state_dict"):
                load_inner(self._iterator, name, place.inner)
        elif place.drawn is not None and self._stateful is not None:
            raise StateMismatch(
                f"{name} has a state_dict, the state is of a run with a sampler that has none\n"
                "hint: give the sampler that the run had; a state from the run's beginning takes any"
            )
        else:
            drawn = self._compare(place, passed, given, lists=lists, sharded=sharded)
        self.place = place._replace(drawn=None if sharded or self._stateful is not None else drawn)

    def _compare(self, place: Place, passed: int, given: int, *, lists: bool, sharded: bool) -> int:
        """Passes over what was given before, and refuses other keys; its checksum."""
        # As many lists as steps only hold as many keys on the same number of ranks.
        by_keys = lists and sharded
        found, drawn, ended = self._pass_over(given if by_keys else passed, lists=lists, by_keys=by_keys)
        if by_keys and found > given and self.draw([], 1):
            raise StateMismatch(
                f"{self._name}: {given} of its keys were given before the state was saved, and its lists of them end "
                f"behind {found}\nhint: resume on the same number of ranks, or pass one that gives the keys of all "
                "ranks: each list is shared out among them"
            )
        if sharded:
            # It may pad what it gives, or share out lists of its own, by the number of ranks: it can only be short.
            other, short = False, ended and found < given
        elif found == given and place.drawn in (None, drawn):
            other = short = False
        else:
            ended = ended or not self.draw([], 1)
            # Where all was given and none is left there is none to go wrong.
            other, short = found > given or not ended, found < given and ended
        if other:
            raise StateMismatch(
                f"{self._name}: its first {given} keys are not those that it gave before the state was saved\nhint: "
                "give it a seed for each epoch, or a state_dict and load_state_dict, or use shuffle=True and seed"
            )
        if short:
            raise StateMismatch(
                f"{self._name}: it gave {given} keys before the state was saved, and has {found} now\n"
                "hint: give it the keys that it had, those that were given included"
            )
        return drawn

    def _pass_over(self, left: int, *, lists: bool, by_keys: bool) -> tuple[int, int, bool]:
        """Keys that were given before, their checksum, and whether it ended before; samples are not read."""
        found = drawn = 0
        while left > 0:
            some: list[Any] = []
            # Lists of keys may draw from what the next ones draw from.
            self.draw(some, 1 if lists else min(left, _AT_ONCE))
            if not some:
                return found, drawn, True
            keys = list(some[0]) if lists else some
            left -= len(keys) if by_keys else len(some)
            found += len(keys)
            drawn = _list_checksum(keys, drawn) if lists else checksum(keys, drawn)
        return found, drawn, False

    def state(self) -> Any:
        """What the sampler says of itself after what was drawn; None if it says nothing."""
        return None if self._stateful is None else self._stateful.state_dict()

    def draw(self, into: list[Any], count: int) -> bool:
        """Draws keys up to a number of them; False if there are no more. What was drawn before an error is kept."""
        try:
            into.extend(islice(self._iterator, max(0, count - len(into))))
        except Exception as error:
            add_note(error, f"while drawing from {self._name}")
            raise
        return len(into) >= count


class SamplerStream(Stream):
    """Keys from a sampler, gathered into batches.

    Args:
        sampler: what gives keys.
        sharing: how they are shared out; of a sampler that is sharded already, as if there were one rank.
        place: where to begin.
        given: keys of this sampler that were given before, without those that only fill up the ranks' parts.
        integers: whether keys must be integers.
        rows: rows of all ranks that one key stands for: 1, or R for a sampler that is sharded.
    """

    def __init__(
        self, sampler: Iterable[Any], sharing: Sharing, place: Place, given: int, integers: bool, rows: int
    ) -> None:
        self._name = f"sampler {type(sampler).__name__}"
        passed = place.row // rows
        self._drawn = _Drawn(sampler, self._name, place, passed, given, lists=False)
        self._sharing = sharing
        self._place = self._drawn.place
        self._passed = passed
        self._integers = integers
        self._rows = rows
        self._keys: list[Any] = []
        self._state: tuple[int, Any] | None = None

    def __next__(self) -> Task:
        sharing, keys, place = self._sharing, self._keys, self._place
        batch, ranks = sharing.batch, sharing.ranks
        more = self._drawn.draw(keys, batch)
        if len(keys) == batch:
            # Before keys are drawn that a later step may need.
            self._state = (batch, self._drawn.state())
        # A whole step, unless what follows is not enough for one of its own.
        if more and (ranks == 1 or sharing.drop_last or self._drawn.draw(keys, batch + ranks)):
            count = batch
        else:
            left = len(keys)
            if left == 0 or sharing.steps(left) == 0:
                raise StopIteration
            count = sharing.rows(left)
        over = False
        if self._state is None or self._state[0] != count:
            self._state = (count, self._drawn.state())
            over = self._state[1] is not None
        given = keys[:count]
        first, last = (0, count) if ranks == 1 else sharing.share(0, count)
        mine = given if ranks == 1 else given[first:last]
        if self._integers:
            _check_integers(mine, self._name, self._passed + first)
        drawn = None if place.drawn is None else checksum(given, place.drawn)
        after = Place(place.row + count * self._rows, place.step + 1, self._state[1], drawn, over)
        task = Task(mine if sharing.batched else mine[0], after)
        self._place, self._state, self._passed = after, None, self._passed + count
        del keys[:count]
        return task

    def end(self) -> Any:
        """See `Stream.end`."""
        return self._drawn.state()


class BatchSamplerStream(Stream):
    """Lists of keys, each a step."""

    def __init__(
        self, sampler: Iterable[Any], sharing: Sharing, place: Place, given: int, integers: bool, rows: int
    ) -> None:
        self._name = f"batch_sampler {type(sampler).__name__}"
        self._drawn = _Drawn(sampler, self._name, place, place.step, given, lists=True)
        self._sharing = sharing
        self._place = self._drawn.place
        self._integers = integers
        self._rows = rows
        self._lists = _length(sampler) if rows == 1 and _has_state(sampler) else None
        self._next: list[Any] = []

    def __next__(self) -> Task:
        if not self._drawn.draw(self._next, 1):
            raise StopIteration
        keys = list(self._next[0])
        place = self._place
        if len(keys) < self._sharing.ranks and not self._sharing.allow_empty:
            del self._next[:]
            raise ValueError(
                f"{self._name}: batch {place.step} has {len(keys)} keys for {self._sharing.ranks} ranks\n"
                "hint: allow_empty=True lets ranks have none"
            )
        first, last = (0, len(keys)) if self._sharing.ranks == 1 else self._sharing.share(0, len(keys))
        mine = keys if self._sharing.ranks == 1 else keys[first:last]
        if self._integers:
            _check_integers(mine, self._name, first)
        drawn = None if place.drawn is None else _list_checksum(keys, place.drawn)
        over = place.step + 1 == self._lists
        after = Place(place.row + len(keys) * self._rows, place.step + 1, self._drawn.state(), drawn, over)
        task = Task(mine, after)
        self._place = after
        del self._next[:]
        return task

    def end(self) -> Any:
        """See `Stream.end`."""
        return self._drawn.state()


def is_sharded(sampler: Any) -> bool:
    """Whether a sampler gives one rank's keys alone, as PyTorch's DistributedSampler, or holds one that does."""
    # As deep as anybody nests them; one that names itself must not hold this up.
    for _ in range(8):
        ranked = any(hasattr(sampler, name) for name in ("rank", "_rank", "process_index"))
        if ranked and any(
            hasattr(sampler, name) for name in ("num_replicas", "world_size", "_world_size", "num_processes")
        ):
            return True
        sampler = getattr(sampler, "sampler", None)
    return False


def load_inner(iterator: Any, name: str, inner: Any) -> None:
    """Gives what was said before to an iterator, of something that does not take it itself.

    Raises:
        StateMismatch: if it does not take it either.
    """
    if not hasattr(iterator, "load_state_dict"):
        raise StateMismatch(
            f"{name} has no load_state_dict, the state is of a run with one that has a state_dict\n"
            "hint: give the one that the run had; a state from the run's beginning takes any"
        )
    iterator.load_state_dict(inner)


def _list_checksum(keys: list[Any], before: int) -> int:
    """See `checksum`: of a list of keys, where lists come one after another."""
    return checksum([len(keys), *keys], before)


def _has_state(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _length(sized: Any) -> int | None:
    """How long something is; None if it does not know."""
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None


def wants_integers(dataset: Any) -> bool:
    """Whether other keys than integers mean nothing to a dataset."""
    return isinstance(dataset, Sequence)


def _check_integers(keys: list[Any], name: str, position: int) -> None:
    for number, key in enumerate(keys):
        try:
            operator.index(key)
        except TypeError:
            raise TypeError(f"{name} gave {key!r} at position {position + number}, expected an integer") from None


def _noted(call: Any, name: str, what: str) -> Any:
    try:
        return call()
    except Exception as error:
        add_note(error, f"while {what} {name}")
        raise

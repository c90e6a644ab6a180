"""A sampler without a state of its own resumes exactly or not at all: its keys must be those that it gave before."""

import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler
from torch.utils.data.distributed import DistributedSampler

import headrace as hr
from headrace.loading.keys import checksum
from loading_data import Numbers, ResumableSampler


class Seeded:
    """The same order in each epoch, as one that makes its generator anew."""

    def __init__(self, size: int, seed: int = 0) -> None:
        self.size = size
        self.seed = seed

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.default_rng(self.seed).permutation(self.size).tolist())


def _random(size: int, seed: int | None = None) -> Any:
    """PyTorch's, with a generator that runs on, or with a seed that it draws itself."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return RandomSampler(range(size), generator=generator)


def _batched(sampler: Any, batch: int) -> dict[str, Any]:
    return {"batch_sampler": BatchSampler(sampler, batch, False)}


def _taken(loader: hr.DataLoader, count: int) -> dict[str, Any]:
    """The state after some batches, as it is read from a file."""
    list(itertools.islice(loader, count))
    return json.loads(json.dumps(loader.state_dict()))


def _flat(batches: Iterable[list[int]]) -> list[int]:
    return [key for batch in batches for key in batch]


def _rest(loader: hr.DataLoader, state: dict[str, Any]) -> list[Any]:
    loader.load_state_dict(state)
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batched", [False, True])
def test_a_sampler_with_a_seed_goes_on(workers: int, batched: bool) -> None:
    def loader() -> hr.DataLoader:
        how: Any = _batched(Seeded(50), 4) if batched else {"batch_size": 4, "sampler": Seeded(50)}
        return hr.DataLoader(Numbers(50), num_workers=workers, **how)

    unbroken = [batch.tolist() for batch in loader()]
    for stop in (0, 1, 7, 12, 13):
        state = _taken(loader(), stop)
        assert _rest(loader(), state) == (unbroken[stop:] or unbroken)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batched", [False, True])
def test_a_sampler_without_a_seed_is_refused(workers: int, batched: bool) -> None:
    def loader() -> hr.DataLoader:
        how: Any = _batched(_random(50), 4) if batched else {"batch_size": 4, "sampler": _random(50)}
        return hr.DataLoader(Numbers(50), num_workers=workers, **how)

    state = _taken(loader(), 3)
    other = loader()
    other.load_state_dict(state)
    name = "batch_sampler BatchSampler" if batched else "sampler RandomSampler"
    for _ in range(2):
        with pytest.raises(hr.StateMismatch, match=f"{name}: its first 12 keys are not those .*\nhint: give it a seed"):
            iter(other)
        assert other.state_dict() == state
    # Nothing was given yet, so nothing can differ.
    assert sorted(_flat(_rest(other, _taken(loader(), 0)))) == list(range(50))


def test_a_generator_that_runs_on_is_refused_from_the_second_epoch_on() -> None:
    def loader() -> hr.DataLoader:
        return hr.DataLoader(Numbers(20), 4, sampler=_random(20, seed=1))

    first = loader()
    assert _rest(loader(), _taken(first, 2)) == [batch.tolist() for batch in loader()][2:]
    assert first.epoch == 0
    second = _taken(first, 2)
    assert second["epoch"] == 1
    with pytest.raises(hr.StateMismatch, match="its first 8 keys"):
        _rest(loader(), second)


def test_an_epoch_that_was_given_whole_is_over_whatever_the_sampler_gives() -> None:
    loader = hr.DataLoader(Numbers(20), 4, sampler=_random(20))
    iterator = iter(loader)
    state = [loader.state_dict() for _ in zip(range(5), iterator, strict=False)][-1]
    assert (state["row"], state["epoch"]) == (20, 0)
    assert sorted(_flat(_rest(hr.DataLoader(Numbers(20), 4, sampler=_random(20)), state))) == list(range(20))
    with pytest.raises(hr.StateMismatch, match="its first 20 keys"):
        _rest(hr.DataLoader(Numbers(21), 4, sampler=_random(21)), state | {"size": 21})


def test_a_sampler_that_gives_fewer_keys_is_refused_only_where_some_are_left() -> None:
    state = _taken(hr.DataLoader(Numbers(20), 4, sampler=list(range(20))), 3)
    for keys in ([*range(11), 19, 12], [0, *range(20)]):
        with pytest.raises(hr.StateMismatch, match="its first 12 keys"):
            _rest(hr.DataLoader(Numbers(20), 4, sampler=keys), state)
    # What comes after what was given is the sampler's to say.
    assert _rest(hr.DataLoader(Numbers(20), 4, sampler=[*range(12), 5]), state) == [[5]]


@pytest.mark.parametrize("keys", [[], [39, 38, 37], list(range(11))])
def test_a_sampler_that_ends_before_the_saved_place_is_refused(keys: list[int]) -> None:
    state = _taken(hr.DataLoader(Numbers(40), 4, sampler=list(range(40))), 3)
    # A state of an earlier build has no checksum, but a count.
    for saved in (state, state | {"drawn": None}):
        other = hr.DataLoader(Numbers(40), 4, sampler=keys)
        other.load_state_dict(saved)
        for _ in range(2):
            with pytest.raises(
                hr.StateMismatch, match=f"sampler list: it gave 12 keys before .* and has {len(keys)} now\nhint: "
            ):
                iter(other)
            assert other.state_dict() == saved
    ended = hr.DataLoader(Numbers(40), 4, sampler=list(range(12)))
    assert _flat(_rest(ended, state)) == list(range(12))
    assert ended.epoch == 2


def test_batches_that_end_before_the_saved_place_are_refused() -> None:
    def loader(size: int, batch: int) -> hr.DataLoader:
        return hr.DataLoader(Numbers(40), batch_sampler=[list(range(at, at + batch)) for at in range(0, size, batch)])

    state = _taken(loader(40, 4), 3)
    # Fewer batches, batches of fewer keys, and none.
    for size, batch, found in ((8, 4, 8), (9, 3, 9), (0, 4, 0)):
        with pytest.raises(hr.StateMismatch, match=f"batch_sampler list: it gave 12 keys .* has {found} now"):
            _rest(loader(size, batch), state)
    # Its three batches hold keys that were not given.
    with pytest.raises(hr.StateMismatch, match="batch_sampler list: its first 12 keys are not those"):
        _rest(loader(24, 8), state)
    for batch in (4, 6):
        assert _flat(_rest(loader(12, batch), state)) == list(range(12))


def test_a_sharded_sampler_may_end_by_other_ranks_but_not_sooner() -> None:
    def loader(size: int, rank: int, ranks: int) -> hr.DataLoader:
        numbers: Any = Numbers(10)
        keys: Any = range(size)
        sampler: Any = DistributedSampler(keys, num_replicas=ranks, rank=rank, shuffle=False)
        return hr.DataLoader(numbers, 2, sampler=sampler, rank=rank, world_size=ranks)

    iterator = iter(last := loader(10, 0, 3))
    state = [last.state_dict() for _ in zip(range(2), iterator, strict=False)][-1]
    # The sampler fills up the ranks' parts: it was read to its end.
    assert state["row"] == 12
    for ranks in (1, 2, 3):
        assert _rest(loader(10, 0, ranks), state) == [batch.tolist() for batch in loader(10, 0, ranks)]
    with pytest.raises(hr.StateMismatch, match=r"sampler DistributedSampler: it gave 5 keys .* and has 3 now"):
        _rest(loader(6, 0, 2), state)


def test_a_state_of_a_sampler_with_a_state_needs_one_too() -> None:
    def loader(sampler: Any) -> hr.DataLoader:
        return hr.DataLoader(Numbers(20), 4, sampler=sampler)

    for own, other, message in (
        (ResumableSampler(20), list(range(20)), "sampler list has no load_state_dict, the state is of a run with one"),
        (list(range(20)), ResumableSampler(20), "sampler ResumableSampler has a state_dict, the state is of a run "),
    ):
        state = _taken(loader(own), 2)
        again = loader(other)
        again.load_state_dict(state)
        for _ in range(2):
            with pytest.raises(hr.StateMismatch, match=message):
                iter(again)
            assert again.state_dict() == state
    # Where an epoch begins there is nothing to take over.
    assert sorted(_flat(_rest(loader(list(range(20))), _taken(loader(ResumableSampler(20)), 0)))) == list(range(20))


class Rewound:
    """Goes on where a loaded state says; where that is a pass' end, it gives nothing before it begins the next one."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.number, self.given, self.loaded = -1, 0, False

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        if not self.loaded:
            self.number, self.given = self.number + 1, 0
        self.loaded = False
        for key in np.random.default_rng(self.number).permutation(self.size).tolist()[self.given :]:
            self.given += 1
            yield key

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number, "given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number, self.given, self.loaded = state["number"], state["given"], True


class RunningOn:
    """Draws each pass from a generator that runs on; its iterators say where they are."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.generator = np.random.default_rng(0)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return _RunningOn(self)


class _RunningOn(Iterator[int]):
    def __init__(self, sampler: RunningOn) -> None:
        self.sampler = sampler
        self.begin = sampler.generator.bit_generator.state
        self.given = 0
        self.order: list[int] | None = None

    def __next__(self) -> int:
        if self.order is None:
            self.order = self.sampler.generator.permutation(self.sampler.size).tolist()
        if self.given == len(self.order):
            raise StopIteration
        self.given += 1
        return self.order[self.given - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"begin": self.begin, "given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.generator.bit_generator.state = self.begin = state["begin"]
        self.given = state["given"]


class InLists:
    """The keys of a sampler in lists of four."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        keys = iter(self.sampler)
        while some := list(itertools.islice(keys, 4)):
            yield some

    def __len__(self) -> int:
        return -(-len(self.sampler) // 4)

    def state_dict(self) -> Any:
        return self.sampler.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.sampler.load_state_dict(state)


HOW: dict[str, Any] = {
    "sampler": lambda size: {"batch_size": 4, "sampler": ResumableSampler(size)},
    "rewound": lambda size: {"batch_size": 4, "sampler": Rewound(size)},
    "iterator": lambda size: {"batch_size": 4, "sampler": RunningOn(size)},
    "lists": lambda size: {"batch_sampler": InLists(ResumableSampler(size))},
    "rewound lists": lambda size: {"batch_sampler": InLists(Rewound(size))},
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [8, 9, 3])
@pytest.mark.parametrize("how", [*HOW, "iterable", "rewound iterable"])
def test_a_sampler_with_a_state_goes_on_from_one_epoch_to_the_next(how: str, size: int, workers: int) -> None:
    """Saved at an epoch's end it began its first pass again, or counted two passes as one epoch."""

    def loader() -> hr.DataLoader:
        if how.endswith("iterable"):
            stream: Any = {"iterable": ResumableSampler, "rewound iterable": Rewound}[how](size)
            return hr.DataLoader(_Stream(stream), 4, num_workers=workers)
        return hr.DataLoader(Numbers(size), num_workers=workers, **HOW[how](size))

    unbroken = loader()
    epochs: list[list[Any]] = []
    saved: list[tuple[int, int, dict[str, Any]]] = []
    for epoch in range(5):
        given: list[Any] = []
        for batch in unbroken:
            given.append(batch.tolist())
            saved.append((epoch, len(given), json.loads(json.dumps(unbroken.state_dict()))))
        saved.append((epoch + 1, 0, json.loads(json.dumps(unbroken.state_dict()))))
        epochs.append(given)
    assert len({str(epoch) for epoch in epochs}) == 5 or size == 3
    for epoch, taken, state in saved:
        if epoch > 2:
            break
        later = loader()
        later.load_state_dict(state)
        assert later.state_dict() == state
        rest = epochs[epoch][taken:]
        first, second = ([batch.tolist() for batch in later] for _ in range(2))
        assert first == (rest or epochs[epoch + 1])
        assert second == epochs[epoch + 1 if rest else epoch + 2]
        assert later.epoch == (epoch + 2 if rest else epoch + 3)
        assert later.step == sum(map(len, epochs[: later.epoch]))


def test_an_epoch_that_was_begun_is_saved_before_its_first_batch() -> None:
    first = hr.DataLoader(Numbers(9), 4, sampler=ResumableSampler(9))
    epochs = [[batch.tolist() for batch in first] for _ in range(2)]
    iterator = iter(first)
    state = first.state_dict()
    later = hr.DataLoader(Numbers(9), 4, sampler=ResumableSampler(9))
    later.load_state_dict(state)
    third = [batch.tolist() for batch in later]
    assert third == [batch.tolist() for batch in iterator]
    assert third not in epochs


class _Stream(IterableDataset[int]):
    def __init__(self, keys: Any) -> None:
        self.keys = keys

    def __iter__(self) -> Iterator[int]:
        return iter(self.keys)

    def state_dict(self) -> Any:
        return self.keys.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.keys.load_state_dict(state)


def test_ranks_do_not_change_the_state_of_a_batch_sampler() -> None:
    """It told the number of ranks as the batch size, and of a change where that became another one."""
    lists = [list(range(first, first + 6)) for first in range(0, 30, 6)]
    states = {
        ranks: _taken(hr.DataLoader(Numbers(30), batch_sampler=lists, rank=0, world_size=ranks), 2)
        for ranks in (1, 2, 3)
    }
    assert states[1] == states[2] == states[3]
    later = hr.DataLoader(Numbers(30), batch_sampler=lists, rank=0, world_size=3)
    later.load_state_dict(states[2])
    assert _taken(later, 1)["changes"] == []


@given(st.data())
def test_keys_are_compared_whatever_the_ranks_and_batches(data: st.DataObject) -> None:
    size, seed = 60, data.draw(st.integers(0, 3))

    def loaders(seed: int) -> list[hr.DataLoader]:
        ranks, part = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
        return [
            hr.DataLoader(Numbers(size), part, sampler=Seeded(size, seed), rank=rank, world_size=ranks)
            for rank in range(ranks)
        ]

    first = loaders(seed)
    states = [_taken(loader, 3) for loader in first]
    assert all(state == states[0] for state in states)
    given = 3 * first[0].global_batch_size
    second = loaders(seed)
    for loader in second:
        loader.load_state_dict(states)
    iterators = [iter(loader) for loader in second]
    rest = [key for parts in zip(*iterators, strict=True) for part in parts for key in part.tolist()]
    assert rest == list(Seeded(size, seed))[given:]
    for loader in loaders(seed + 1):
        loader.load_state_dict(states)
        with pytest.raises(hr.StateMismatch, match=f"its first {given} keys"):
            iter(loader)


def test_ranks_of_a_batch_sampler_compare_the_same_keys() -> None:
    def loader(seed: int, rank: int, ranks: int) -> hr.DataLoader:
        return hr.DataLoader(Numbers(40), rank=rank, world_size=ranks, **_batched(Seeded(40, seed), 6))

    states = [_taken(loader(0, rank, 2), 2) for rank in range(2)]
    assert states[0] == states[1]
    parts = [_rest(loader(0, rank, 3), states[0]) for rank in range(3)]
    assert _flat(part for step in zip(*parts, strict=True) for part in step) == list(Seeded(40))[12:]
    with pytest.raises(hr.StateMismatch, match="its first 12 keys"):
        _rest(loader(1, 2, 3), states[0])


def test_batches_that_are_drawn_as_they_are_asked_for() -> None:
    class Lazy:
        """Its batches draw from one line of keys, so that each must be read before the next."""

        def __init__(self, keys: list[int]) -> None:
            self.keys = keys

        def __iter__(self) -> Iterator[Iterator[int]]:
            line = iter(self.keys)
            return (itertools.islice(line, 5) for _ in range(len(self.keys) // 5))

    state = _taken(hr.DataLoader(Numbers(20), batch_sampler=Lazy(list(range(20)))), 2)  # type: ignore[arg-type]
    again = hr.DataLoader(Numbers(20), batch_sampler=Lazy(list(range(20))))  # type: ignore[arg-type]
    assert _rest(again, state) == [list(range(10, 15)), list(range(15, 20))]
    other = hr.DataLoader(Numbers(20), batch_sampler=Lazy(list(reversed(range(20)))))  # type: ignore[arg-type]
    with pytest.raises(hr.StateMismatch, match="its first 10 keys"):
        _rest(other, state)


def test_states_without_a_checksum_load() -> None:
    state = _taken(hr.DataLoader(Numbers(20), 4, sampler=Seeded(20)), 2)
    assert state.pop("drawn") is not None
    expected = list(Seeded(20))[8:]
    again = hr.DataLoader(Numbers(20), 4, sampler=Seeded(20))
    assert _flat(_rest(again, state)) == expected
    # From there on keys are compared again.
    again.load_state_dict(state)
    later = _taken(again, 1)
    assert _flat(_rest(hr.DataLoader(Numbers(20), 4, sampler=Seeded(20)), later)) == expected[4:]
    with pytest.raises(hr.StateMismatch, match="its first 12 keys"):
        _rest(hr.DataLoader(Numbers(20), 4, sampler=Seeded(20, seed=1)), later)
    for damaged in (-1, 2**32, "a", True):
        with pytest.raises(hr.StateMismatch, match="checksum of 32 bits"):
            again.load_state_dict(state | {"drawn": damaged})


def test_samplers_that_say_their_state_or_are_sharded_have_no_checksum() -> None:
    assert _taken(hr.DataLoader(Numbers(20), 4, sampler=ResumableSampler(20)), 2)["drawn"] is None
    assert _taken(hr.DataLoader(Numbers(20), 4, shuffle=True), 2)["drawn"] is None
    numbers: Any = Numbers(20)

    def loader(rank: int) -> hr.DataLoader:
        sampler: Any = DistributedSampler(numbers, num_replicas=2, rank=rank, seed=3)
        return hr.DataLoader(numbers, 2, sampler=sampler, rank=rank, world_size=2)

    states = [_taken(loader(rank), 2) for rank in range(2)]
    assert states[0] == states[1]
    for rank in range(2):
        assert _rest(loader(rank), states[0]) == [batch.tolist() for batch in loader(rank)][2:]


# The checksum


_KEYS = st.recursive(
    st.integers() | st.text() | st.binary() | st.floats() | st.booleans() | st.none(),
    lambda keys: st.lists(keys, max_size=3).map(tuple),
    max_leaves=5,
)


@given(st.lists(_KEYS), st.data())
def test_a_checksum_does_not_depend_on_batches(keys: list[Any], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(keys)))
    assert checksum(keys[cut:], checksum(keys[:cut])) == checksum(keys)
    assert 0 <= checksum(keys) < 2**32


def test_a_checksum_tells_keys_apart_by_their_value() -> None:
    class Point:
        pass

    lines: list[list[Any]] = [
        [],
        [0],
        [0, 0],
        [1, 2],
        [2, 1],
        [2**70],
        [2**70 + 1],
        [1.5],
        ["1"],
        ["a", "b"],
        ["ab"],
        [("a", 1)],
        [("a", 2)],
        [[0, 1], [2]],
        [[0], [1, 2]],
        [b"a"],
        [None],
        [Point()],
    ]
    assert len({checksum(line) for line in lines}) == len(lines)
    # Of the same value, or of none that is the same in another process.
    assert checksum([np.int64(3), torch.tensor(4)]) == checksum([3, 4])
    assert checksum([(np.int32(3), "a")]) == checksum([(3, "a")])
    assert checksum([Point(), 1]) == checksum([Point(), 1])


def test_keys_of_text_are_compared() -> None:
    class Named:
        def __getitem__(self, key: str) -> str:
            return key

    def loader(keys: list[str]) -> hr.DataLoader:
        return hr.DataLoader(Named(), 2, sampler=keys)

    state = _taken(loader(["c", "a", "b", "d"]), 1)
    again = loader(["c", "a", "b", "d"])
    again.load_state_dict(state)
    assert list(again) == [["b", "d"]]
    again = loader(["a", "c", "b", "d"])
    again.load_state_dict(state)
    with pytest.raises(hr.StateMismatch, match="sampler list: its first 2 keys"):
        iter(again)


def sharded(ranks: int, rank: int, *, lists: bool) -> hr.DataLoader:
    """A loader over PyTorch's sampler for one rank, by itself or below its batch sampler."""
    sampler: Any = DistributedSampler(Numbers(96), num_replicas=ranks, rank=rank, seed=1)  # type: ignore[arg-type]
    how: dict[str, Any] = {"batch_sampler": BatchSampler(sampler, 4, False)} if lists else {"sampler": sampler}
    how |= {} if lists else {"batch_size": 4}
    return hr.DataLoader(Numbers(96), rank=rank, world_size=ranks, collate_fn=list, **how)


@pytest.mark.parametrize("lists", [False, True], ids=["sampler", "batch_sampler"])
@pytest.mark.parametrize("ranks, is_exact", [(1, True), (2, True), (3, True), (4, True), (6, True), (5, False)])
def test_one_ranks_keys_go_on_with_other_ranks(ranks: int, is_exact: bool, lists: bool) -> None:
    loaders = [sharded(2, rank, lists=lists) for rank in range(2)]
    iterators = [iter(loader) for loader in loaders]
    given = [key for _ in range(6) for iterator in iterators for key in next(iterator)]
    state = loaders[0].state_dict()
    others = [sharded(ranks, rank, lists=lists) for rank in range(ranks)]
    for loader in others:
        loader.load_state_dict(state)
    if not is_exact:
        # 48 samples are no multiple of 5: some rank would give one again.
        with pytest.raises(hr.StateMismatch, match="no multiple of 5"):
            list(others[0])
        return
    rest = [list(loader) for loader in others]
    assert sorted(given + [key for batches in rest for batch in batches for key in batch]) == list(range(96))
    again = sharded(ranks, 0, lists=lists)
    again.load_state_dict(state)
    assert len(iter(again)) == len(rest[0])


def test_lists_of_one_rank_that_end_elsewhere_are_refused() -> None:
    loader = sharded(2, 0, lists=True)
    iterator = iter(loader)
    for _ in range(6):
        next(iterator)
    other = sharded(8, 0, lists=True)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(hr.StateMismatch, match=r"6 of its keys were given .* end behind 8"):
        list(other)

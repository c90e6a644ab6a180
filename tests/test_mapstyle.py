"""Objects of the user's are loaded as PyTorch's DataLoader would, in every rank's part, and resumed exactly."""

import gc
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data.distributed import DistributedSampler

import headrace as hr
from loading_data import Faulty, Lists, Numbers, ResumableSampler, Rows


class TorchNumbers(Dataset[int]):
    """The same, as PyTorch's users write it."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    """Numbers in order, in one process."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        assert get_worker_info() is None
        return iter(range(self.size))


class ResumableStream(IterableDataset[int]):
    """Knows where it is."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.at = 0
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.size:
            self.read += 1
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def _plain(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: _plain(value) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [_plain(value) for value in batch]
    return batch.tolist() if hasattr(batch, "tolist") else batch


def _batches(loader: Any) -> list[Any]:
    return [_plain(batch) for batch in loader]


def _flat(batches: list[list[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


def _ranks(dataset: Any, ranks: int, **arguments: Any) -> list[hr.DataLoader]:
    return [hr.DataLoader(dataset, rank=rank, world_size=ranks, **arguments) for rank in range(ranks)]


# As PyTorch does


_size = st.integers(0, 30)


@given(
    size=_size,
    batch_size=st.integers(1, 8) | st.none(),
    drop_last=st.booleans(),
    workers=st.sampled_from([0, 0, 2]),
    sampler=st.sampled_from(["", "sampler", "batch_sampler"]),
    kind=st.sampled_from([Numbers, TorchNumbers, Lists, Stream, Rows]),
    collate=st.booleans(),
)
def test_batches_are_those_of_torch(
    size: int, batch_size: int | None, drop_last: bool, workers: int, sampler: str, kind: Any, collate: bool
) -> None:
    dataset = kind(size)
    arguments: dict[str, Any] = {"batch_size": batch_size, "drop_last": drop_last and batch_size is not None}
    keys = list(range(size))[::-1] + list(range(size // 2))
    if sampler == "sampler" and kind is not Stream:
        arguments["sampler"] = keys
    elif sampler == "batch_sampler" and kind is not Stream:
        arguments = {"batch_sampler": [keys[first : first + 3] for first in range(0, len(keys), 3)]}
    if collate:
        arguments["collate_fn"] = lambda samples: samples
    ours, theirs = hr.DataLoader(dataset, num_workers=workers, **arguments), TorchLoader(dataset, **arguments)
    assert len(ours) == len(theirs)
    iterator = iter(ours)
    assert len(iterator) == len(theirs)  # type: ignore[arg-type]
    expected = _batches(theirs)
    assert _batches(iterator) == expected
    assert len(iterator) == 0  # type: ignore[arg-type]
    assert _batches(ours) == expected
    assert len(ours) == len(theirs)


@pytest.mark.parametrize("workers", [0, 2])
def test_datasets_and_samplers_of_torch_work_unchanged(workers: int) -> None:
    tensors = TensorDataset(torch.arange(10), torch.arange(10) * 2.0)
    loader = hr.DataLoader(tensors, 4, num_workers=workers)
    first, second = next(iter(loader))
    assert isinstance(first, torch.Tensor)
    assert (first.tolist(), second.tolist()) == ([0, 1, 2, 3], [0.0, 2.0, 4.0, 6.0])
    for dataset in (Subset(TorchNumbers(20), [3, 5, 7]), ConcatDataset([TorchNumbers(3), TorchNumbers(2)])):
        assert _batches(hr.DataLoader(dataset, 2, num_workers=workers)) == _batches(TorchLoader(dataset, 2))
    numbers = TorchNumbers(50)

    def samplers() -> list[Any]:
        seeded = torch.Generator().manual_seed(3)
        return [
            RandomSampler(numbers, generator=seeded),
            WeightedRandomSampler(torch.rand(50, generator=seeded), 30, generator=torch.Generator().manual_seed(1)),
            SequentialSampler(numbers),
            DistributedSampler(numbers, num_replicas=3, rank=1, seed=5),
        ]

    for ours, theirs in zip(samplers(), samplers(), strict=True):
        loader = hr.DataLoader(numbers, 4, sampler=ours, num_workers=workers)
        assert _batches(loader) == _batches(TorchLoader(numbers, 4, sampler=theirs))
    for ours, theirs in zip(samplers(), samplers(), strict=True):
        loader = hr.DataLoader(numbers, batch_sampler=BatchSampler(ours, 4, True), num_workers=workers)
        assert len(loader) == len(BatchSampler(theirs, 4, True))
        assert _batches(loader) == _batches(TorchLoader(numbers, batch_sampler=BatchSampler(theirs, 4, True)))


@pytest.mark.parametrize("workers", [0, 3])
def test_each_epoch_has_an_order_of_its_own(workers: int) -> None:
    def epochs(**arguments: Any) -> list[list[int]]:
        loader = hr.DataLoader(Numbers(40), 8, shuffle=True, num_workers=workers, **arguments)
        return [_flat(_batches(loader)) for _ in range(3)]

    first = epochs(seed=1)
    assert all(sorted(epoch) == list(range(40)) for epoch in first)
    assert len({tuple(epoch) for epoch in first}) == 3
    assert epochs(seed=1) == first
    assert epochs(seed=2) != first
    assert epochs(generator=torch.Generator().manual_seed(1)) == first
    assert epochs(generator=1) == first
    assert epochs(generator=np.random.default_rng(4)) == epochs(generator=np.random.default_rng(4))
    assert epochs(seed=2**64 - 1) == epochs(seed=2**64 - 1)


def test_arguments_that_do_not_go_together_are_refused() -> None:
    numbers = Numbers(4)
    for arguments, message in [
        ({"sampler": [0], "shuffle": True}, "sampler or shuffle"),
        ({"batch_sampler": [[0]], "batch_size": 2}, "give it alone"),
        ({"batch_sampler": [[0]], "drop_last": True}, "give it alone"),
        ({"batch_sampler": [[0]], "sampler": [0]}, "give it alone"),
        ({"batch_size": None, "drop_last": True}, "drop_last has no meaning"),
        ({"batch_size": None, "global_batch_size": 4}, "global_batch_size has no meaning"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"num_workers": -1}, "num_workers"),
        ({"timeout": 1}, "timeout needs workers"),
        ({"seed": 1, "generator": 1}, "seed or generator"),
        ({"window": 3}, "window has no meaning"),
        ({"global_batch_size": {0: 2, 5: 4}}, "schedule"),
        ({"items_in_parallel": 0}, "items_in_parallel"),
        ({"global_batch_size": 3, "rank": 0, "world_size": 2}, "multiple of world_size=2"),
    ]:
        with pytest.raises(ValueError, match=message):
            hr.DataLoader(numbers, **arguments)  # type: ignore[arg-type]
    for arguments, message in [({"shuffle": True}, "shuffle"), ({"sampler": [1]}, "sampler")]:
        with pytest.raises(ValueError, match=f"{message} has no meaning for an iterable"):
            hr.DataLoader(Stream(3), **arguments)  # type: ignore[arg-type]
    for arguments, message in [
        ({"generator": "x"}, "generator must be"),
        ({"collate_fn": 3}, "collate_fn must be"),
        ({"sampler": 3}, "sampler must be iterable"),
    ]:
        with pytest.raises(TypeError, match=message):
            hr.DataLoader(numbers, **arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected a dataset: .*got int"):
        hr.DataLoader(3)


@pytest.mark.parametrize("workers", [0, 2])
def test_any_key_will_do(workers: int) -> None:
    data = {"a": 1, "b": 2, ("c", 3): 3}
    assert _batches(hr.DataLoader(data, 2, sampler=list(data), num_workers=workers)) == [[1, 2], [3]]
    assert _batches(hr.DataLoader(data, batch_sampler=[["b"], ["b", "a"]], num_workers=workers)) == [[2], [2, 1]]
    loader = hr.DataLoader([5, 6, 7], 2, sampler=[0, 1.5], num_workers=workers)
    with pytest.raises(TypeError, match=r"sampler list gave 1.5 at position 1, expected an integer"):
        next(iter(loader))
    assert _batches(hr.DataLoader([5, 6, 7], 2, sampler=[np.int64(2), torch.tensor(0)])) == [[7, 5]]
    with pytest.raises(TypeError, match=r"batch_sampler list gave 'x' at position 1"):
        next(iter(hr.DataLoader([5, 6], batch_sampler=[[0, "x"]])))


def test_lengths() -> None:
    assert len(hr.DataLoader(Numbers(10), 4, drop_last=True)) == 2
    assert len(hr.DataLoader(Numbers(10), 4)) == 3
    assert len(hr.DataLoader(Numbers(10), None)) == 10
    assert len(hr.DataLoader(Stream(10), 4)) == 3
    with pytest.raises(TypeError, match="dataset has no length: generator"):
        len(hr.DataLoader(number for number in range(3)))
    with pytest.raises(TypeError, match="sampler has no length"):
        len(hr.DataLoader(Numbers(3), sampler=itertools.count()))

    class NoLength(Numbers):
        def __len__(self) -> int:
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone") as caught:
        len(hr.DataLoader(NoLength(3)))
    assert caught.value.__notes__ == ["while asking len() of the dataset, NoLength"]
    loader = hr.DataLoader(Numbers(10), 4)
    iterator = iter(loader)
    next(iterator)
    assert (len(iterator), len(loader)) == (2, 3)  # type: ignore[arg-type]


# Ranks


@given(
    size=st.integers(1, 60),
    part=st.integers(1, 5),
    ranks=st.integers(1, 5),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    sampler=st.booleans(),
)
def test_ranks_share_each_batch(
    size: int, part: int, ranks: int, shuffle: bool, drop_last: bool, sampler: bool
) -> None:
    arguments: dict[str, Any] = {"batch_size": part, "drop_last": drop_last}
    if sampler:
        arguments["sampler"] = list(range(size))[::-1]
    else:
        arguments["shuffle"] = shuffle
    loaders = _ranks(Numbers(size), ranks, **arguments)
    if size < ranks and not drop_last:
        for loader in loaders:
            with pytest.raises(ValueError, match="cannot be shared out"):
                list(loader)
        return
    parts = [_batches(loader) for loader in loaders]
    assert {len(batches) for batches in parts} == {len(loader) for loader in loaders}
    whole = [_flat(list(batches)) for batches in zip(*parts, strict=True)]
    alone = _flat(_batches(hr.DataLoader(Numbers(size), **(arguments | {"batch_size": part * ranks}))))
    assert _flat(whole) == alone[: len(_flat(whole))]
    assert len(_flat(whole)) == (size // (part * ranks) * part * ranks if drop_last else size)
    assert all(batch for batches in parts for batch in batches)
    assert {loader.epoch for loader in loaders} == {1}


def test_ranks_without_a_sample() -> None:
    with pytest.raises(ValueError, match=r"3 samples .* 4 ranks\nhint: allow_empty=True"):
        next(iter(_ranks(Numbers(3), 4)[0]))
    loaders = _ranks(Numbers(5), 4, allow_empty=True)
    assert [_batches(loader) for loader in loaders] == [[[0], []], [[1], []], [[2], []], [[3], [4]]]
    sampled = _ranks(Lists(5), 4, allow_empty=True, sampler=range(5), collate_fn=len)
    assert [list(loader) for loader in sampled] == [[1, 0], [1, 0], [1, 0], [1, 1]]
    whole = _ranks(Numbers(4), 2, batch_size=None)
    assert [_batches(loader) for loader in whole] == [[0, 2], [1, 3]]
    with pytest.raises(ValueError, match="single samples cannot be shared out"):
        next(iter(_ranks(Numbers(5), 2, batch_size=None)[0]))


def test_a_batch_sampler_is_shared_out_and_a_sharded_one_is_not() -> None:
    numbers = Numbers(10)
    loaders = _ranks(numbers, 2, batch_sampler=[[0, 1, 2], [3, 4]])
    assert [_batches(loader) for loader in loaders] == [[[0], [3]], [[1, 2], [4]]]
    with pytest.raises(ValueError, match="batch 0 has 1 keys for 2 ranks"):
        next(iter(_ranks(numbers, 2, batch_sampler=[[0]])[0]))
    for rank in range(2):
        sampler: Any = DistributedSampler(TorchNumbers(10), num_replicas=2, rank=rank, shuffle=False)
        loader = hr.DataLoader(numbers, 2, sampler=sampler, rank=rank, world_size=2)
        assert _batches(loader) == [[rank, rank + 2], [rank + 4, rank + 6], [rank + 8]]
        assert (len(loader), loader.position) == (3, 10)
        batches: Any = BatchSampler(sampler, 4, False)
        loader = hr.DataLoader(numbers, batch_sampler=batches, rank=rank, world_size=2)
        assert _batches(loader) == [[rank, rank + 2, rank + 4, rank + 6], [rank + 8]]


def test_rank_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = hr.DataLoader(Numbers(8), 2)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert _batches(loader) == [[2, 3], [6, 7]]
    assert (loader.rank, loader.world_size, loader.global_batch_size) == (1, 2, 4)


# State


@settings(max_examples=25)
@given(
    size=st.integers(4, 40),
    batch=st.integers(1, 4),
    stop=st.integers(0, 12),
    workers=st.sampled_from([0, 0, 2]),
    kind=st.sampled_from(["shuffle", "order", "sampler", "own_sampler", "batch_sampler", "stream", "own_stream"]),
)
def test_the_rest_is_that_of_the_unbroken_run(size: int, batch: int, stop: int, workers: int, kind: str) -> None:
    def loader() -> tuple[Any, Any]:
        numbers: Any = Numbers(size)
        keys = [(number * 7 + 3) % size for number in range(size)]
        common: dict[str, Any] = {"num_workers": workers}
        if kind == "batch_sampler":
            common["batch_sampler"] = [keys[first : first + batch] for first in range(0, size, batch)]
        else:
            common["batch_size"] = batch
        if kind == "shuffle":
            common["shuffle"] = True
        if kind == "sampler":
            common["sampler"] = keys
        if kind == "own_sampler":
            common["sampler"] = ResumableSampler(size)
        if kind.endswith("stream"):
            numbers = ResumableStream(size) if kind == "own_stream" else Stream(size)
        return hr.DataLoader(numbers, **common), common.get("sampler", numbers)

    unbroken, _ = loader()
    epochs = [_batches(unbroken) for _ in range(4)]
    first, _ = loader()
    taken, state = 0, first.state_dict()
    for _ in range(2):
        for got in first:
            assert got.tolist() == [row for epoch in epochs for row in epoch][taken]
            taken += 1
            state = first.state_dict()
            if taken == stop:
                break
        if taken == stop:
            break
    state = json.loads(json.dumps(state))
    second, source = loader()
    for _ in range(3):
        # Any number of times in a row.
        second.load_state_dict(state)
        assert second.state_dict() == state
    per_epoch = len(epochs[0])
    rest = epochs[taken // per_epoch][taken % per_epoch :]
    assert second.step == taken
    assert _batches(second) == rest
    assert _batches(second) == epochs[taken // per_epoch + 1]
    if kind == "own_sampler":
        assert source.drawn <= size * 2, "keys that were given before are not drawn again"


@settings(max_examples=25)
@given(st.data())
def test_a_run_goes_on_with_other_ranks_and_batches(data: st.DataObject) -> None:
    size = data.draw(st.integers(8, 60))
    sampler = data.draw(st.booleans())
    arguments: dict[str, Any] = {"sampler": [(7 * n) % size for n in range(size)]} if sampler else {"shuffle": True}
    expected = _flat(_batches(hr.DataLoader(Numbers(size), 1, **arguments)))
    state: dict[str, Any] | None = None
    seen: list[int] = []
    while True:
        ranks, part = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
        if 0 < size - len(seen) < ranks:
            ranks = 1
        loaders = _ranks(Numbers(size), ranks, batch_size=part, **arguments)
        if state is not None:
            for loader in loaders:
                loader.load_state_dict(state)
        assert loaders[0].position == len(seen)
        iterators = [iter(loader) for loader in loaders]
        left = len(iterators[0])  # type: ignore[arg-type]
        steps = min(left, data.draw(st.integers(1, 5)))
        for _ in range(steps):
            seen += [row for iterator in iterators for row in next(iterator).tolist()]
        states = [loader.state_dict() for loader in loaders]
        assert all(other == states[0] for other in states)
        state = states[0]
        if steps == left:
            break
    assert seen == expected
    assert (state["epoch"], state["row"]) == (1, 0) or sampler


def test_a_state_of_another_run_is_refused() -> None:
    loader = hr.DataLoader(Numbers(10), 2, shuffle=True, seed=3)
    list(itertools.islice(loader, 2))
    state = loader.state_dict()
    assert {"schema": 1, "kind": "map", "seed": 3, "epoch": 0, "step": 2, "row": 4, "size": 10}.items() <= state.items()
    for other, message in [
        (hr.DataLoader(Numbers(11), 2, shuffle=True), "length is 11 here, the state is of a run with 10"),
        (hr.DataLoader(Numbers(10), 2, shuffle=True, seed=4), "seed is 4 here, .* 3"),
        (hr.DataLoader(Numbers(10), 2, shuffle=False), "shuffle is False here"),
        (hr.DataLoader(Numbers(10), 2, sampler=[1]), "'sampler' here, .*'order'"),
    ]:
        before = other.state_dict()
        with pytest.raises(hr.StateMismatch, match=message):
            other.load_state_dict(state)
        assert other.state_dict() == before
    fresh = hr.DataLoader(Numbers(10), 2)
    for key in ("row", "size", "seed", "epoch"):
        with pytest.raises(hr.StateMismatch, match=key):
            fresh.load_state_dict({name: value for name, value in state.items() if name != key})
    with pytest.raises(hr.StateMismatch, match="row"):
        fresh.load_state_dict(state | {"row": -1})
    with pytest.raises(hr.StateMismatch, match="got 2 states"):
        fresh.load_state_dict([state, state | {"row": 2}])
    # A seed that was drawn is not one that was given.
    hr.DataLoader(Numbers(10), 2, shuffle=True, generator=np.random.default_rng()).load_state_dict([state, state])
    # What is not given comes from the state.
    fresh.load_state_dict(state)
    assert _batches(fresh) == _batches(_loaded(hr.DataLoader(Numbers(10), 2, shuffle=True, seed=3), state))
    assert fresh.state_dict()["seed"] == 3


@pytest.mark.parametrize(
    "change, message",
    [
        ({"row": 11}, "expected 'row' in 0..10, the dataset's length, found 11"),
        ({"row": 4.0}, "expected 'row' to be int, found 4.0"),
        ({"row": 2}, "its 'row' is 2 in epoch 0: expected 'position' to be the same, found 4"),
        ({"position": 0}, "its 'row' is 4 in epoch 0: expected 'position' to be the same, found 0"),
        ({"position": 3, "epoch": 1}, "its 'row' is 4 in epoch 1: expected 'position' to be as many or more, found 3"),
        ({"epoch_step": 3}, "its 'epoch_step' is 3 in epoch 0: expected 'step' to be the same, found 2"),
        ({"batch": "x"}, "expected 'batch' to be int, found 'x'"),
        ({"batch": 0}, "expected 'batch' to be 1 or more, found 0"),
        ({"size": "x"}, "expected 'size' to be int or None, found 'x'"),
        ({"size": -1}, "expected 'size' to be 0 or more, found -1"),
        ({"shuffle": 1}, "expected 'shuffle' to be bool, found 1"),
        ({"keys": 3}, "expected 'keys' to be str, found 3"),
        ({"epoch": 10**30}, f"expected 'epoch' in 0..2**64, found {10**30}"),
        ({"position": 2**64}, f"expected 'position' in 0..2**64, found {2**64}"),
    ],
)
def test_a_state_that_was_changed_is_refused(change: dict[str, Any], message: str) -> None:
    loader = hr.DataLoader(Numbers(10), 2, shuffle=True)
    list(itertools.islice(loader, 2))
    state = loader.state_dict()
    with pytest.raises(hr.StateMismatch, match=f"^state: {re.escape(message)}$"):
        loader.load_state_dict(state | change)
    assert loader.state_dict() == state
    with pytest.raises(hr.StateMismatch, match=re.escape(message)):
        hr.State.to_bytes(state | change)


def test_an_iterable_that_cannot_take_a_state_over_says_so() -> None:
    first = hr.DataLoader(ResumableStream(10), 2)
    list(itertools.islice(first, 2))
    other = hr.DataLoader(Stream(10), 2)
    other.load_state_dict(first.state_dict())
    with pytest.raises(hr.StateMismatch, match="Stream has no load_state_dict, the state is of a run with one"):
        next(iter(other))


def _loaded(loader: hr.DataLoader, state: dict[str, Any]) -> hr.DataLoader:
    loader.load_state_dict(state)
    return loader


def test_samples_that_are_passed_over_are_not_read() -> None:
    read: Counter[int] = Counter()

    class Counting(Numbers):
        def __getitem__(self, index: int) -> int:
            read[index] += 1
            return index

    for arguments in ({}, {"sampler": list(range(100))}):
        loader = hr.DataLoader(Counting(100), 10, **arguments)  # type: ignore[arg-type]
        list(itertools.islice(loader, 9))
        state = loader.state_dict()
        read.clear()
        assert _batches(_loaded(hr.DataLoader(Counting(100), 10, **arguments), state)) == [list(range(90, 100))]  # type: ignore[arg-type]
        assert sum(read.values()) == 10


def test_an_older_iterator_is_refused() -> None:
    loader = hr.DataLoader(Numbers(10), 2, num_workers=2)
    old = iter(loader)
    next(old)
    new = iter(loader)
    with pytest.raises(RuntimeError, match="not the loader's latest"):
        next(old)
    assert next(new).tolist() == [0, 1]
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(RuntimeError, match="not the loader's latest"):
        next(new)


# Errors


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("parallel", [1, 4])
def test_a_key_error_is_raised_in_its_place(workers: int, parallel: int) -> None:
    dataset = Faulty(20, {5: "key", 7: "key", 13: "stop"})
    loader = hr.DataLoader(dataset, 4, num_workers=workers, items_in_parallel=parallel)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1, 2, 3]
    with pytest.raises(KeyError) as caught:
        next(iterator)
    assert caught.value.args == (5,)
    assert "while reading sample 5" in caught.value.__notes__[0]
    assert caught.value.__notes__[-1] == "batch 1 of epoch 0"
    assert loader.step == 1
    assert next(iterator).tolist() == [8, 9, 10, 11]
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(iterator)
    assert next(iterator).tolist() == [16, 17, 18, 19]
    assert loader.step == 5
    with pytest.raises(StopIteration):
        next(iterator)


def test_wrong_counts_and_functions_are_errors() -> None:
    class Short(Lists):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return indices[1:]

    with pytest.raises(RuntimeError, match=r"__getitems__ of Short gave 1 samples for 2 keys"):
        next(iter(hr.DataLoader(Short(4), 2)))
    with pytest.raises(ZeroDivisionError) as caught:
        next(iter(hr.DataLoader(Numbers(4), 2, collate_fn=lambda samples: 1 // 0)))
    assert "made a batch of the samples 0, 1" in caught.value.__notes__[0]

    def begins(number: int) -> None:
        raise OSError(number)

    with pytest.raises(OSError, match="0"):
        next(iter(hr.DataLoader(Numbers(4), 2, num_workers=1, worker_init_fn=begins)))


def test_an_iterable_that_raises_does_not_end_silently() -> None:
    class Broken(Stream):
        def __iter__(self) -> Iterator[int]:
            yield 0
            raise ConnectionError("cut")

    for workers in (0, 1):
        iterator = iter(hr.DataLoader(Broken(5), 1, num_workers=workers))
        assert next(iterator).tolist() == [0]
        with pytest.raises(ConnectionError, match="cut") as caught:
            next(iterator)
        assert "while reading from Broken, batch 1" in caught.value.__notes__[0]
        with pytest.raises(RuntimeError, match="ended after an error"):
            next(iterator)
        with pytest.raises(StopIteration):
            next(iterator)


def test_an_iterator_is_read_once() -> None:
    loader = hr.DataLoader(iter(range(5)), 2)
    assert _batches(loader) == [[0, 1], [2, 3], [4]]
    with pytest.raises(RuntimeError, match=r"can be read once"):
        iter(loader)
    assert [_batches(hr.DataLoader({1, 2}, 2)) for _ in range(2)] == [[[1, 2]], [[1, 2]]]


def test_a_batch_that_takes_too_long() -> None:
    gate = threading.Event()

    class Slow(Numbers):
        def __getitem__(self, index: int) -> int:
            assert gate.wait(30)
            return index

    iterator = iter(hr.DataLoader(Slow(4), 2, num_workers=1, timeout=0.02))
    with pytest.raises(TimeoutError, match="batch 0 of epoch 0"):
        next(iterator)
    gate.set()
    deadline = time.monotonic() + 30
    while True:
        try:
            assert next(iterator).tolist() == [0, 1]
            break
        except TimeoutError:
            assert time.monotonic() < deadline


# Workers


def test_items_of_one_batch_are_made_at_once() -> None:
    together = threading.Barrier(4, timeout=30)

    class Meeting(Numbers):
        def __getitem__(self, index: int) -> int:
            together.wait()
            return index

    assert _batches(hr.DataLoader(Meeting(8), 4, items_in_parallel=4)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_workers_are_made_once_and_end_with_the_loader() -> None:
    begun: list[int] = []

    def threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("headrace-")}

    before = threads()
    loader = hr.DataLoader(
        Numbers(100), 4, num_workers=2, items_in_parallel=3, worker_init_fn=begun.append, persistent_workers=True
    )
    assert threads() == before, "nothing is started before it is needed"
    for _ in range(3):
        assert len(list(loader)) == 25
    assert sorted(begun) == [0, 1]
    own = threads() - before
    assert len(own) == 4
    for _ in range(1000):
        next(iter(loader))
    assert threads() - before == own
    del loader
    gc.collect()
    deadline = time.monotonic() + 20
    while threads() - before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_forked_child_goes_on(workers: int) -> None:
    loader = hr.DataLoader(Numbers(40), 4, num_workers=workers, items_in_parallel=2)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1, 2, 3]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if _flat(_batches(iterator)) == list(range(4, 40)) and len(list(loader)) == 10 else 2
        finally:
            os._exit(status)
    deadline = time.monotonic() + 30
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(ended[1]) == 0
    assert _flat(_batches(iterator)) == list(range(4, 40))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_endless_sampler_can_be_interrupted(workers: int) -> None:
    code = f"""if True:
        import itertools, os, signal, threading, time
        import headrace as hr
        class Never:
            def __iter__(self):
                yield [0]
                while True:
                    pass
        loader = hr.DataLoader([0, 1], sampler=itertools.cycle([0, 1]), num_workers={workers})
        assert [batch.tolist() for batch in itertools.islice(loader, 3)] == [[0], [1], [0]]
        loader = hr.DataLoader([0], batch_sampler=Never(), num_workers={workers})
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            for batch in loader:
                pass
        except KeyboardInterrupt:
            print("stopped")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "stopped\n", "")


def test_leaving_early_ends_at_once() -> None:
    code = """if True:
        import threading, time
        import headrace as hr
        class Slow:
            def __len__(self): return 1000
            def __getitem__(self, index):
                time.sleep(0.01)
                return index
        loader = hr.DataLoader(Slow(), 2, num_workers=2, items_in_parallel=2)
        iterator = iter(loader)
        next(iterator)
        print(time.time(), flush=True)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.time() - float(done.stdout) < 20


def test_stats_say_what_was_done() -> None:
    loader = hr.DataLoader(Numbers(10), 4, num_workers=1)
    list(loader)
    list(loader)
    stats = loader.stats()
    assert stats["batches"] == 6
    assert stats["samples"] == 20
    assert stats["epoch"] == 2
    assert stats["worker_type"] == "thread"
    assert stats["waits"] >= 1
    assert stats["wait_seconds"] >= 0
    assert loader.stats()["worker_reason"]
    assert "batch_size=4" in repr(loader)


def test_pin_memory_is_quiet_without_a_gpu() -> None:
    tensors = TensorDataset(torch.arange(4))
    assert _batches(hr.DataLoader(tensors, 2, pin_memory=True)) == [[[0, 1]], [[2, 3]]]
    assert _batches(hr.DataLoader(Stream(2), 2, pin_memory=True)) == [[0, 1]]

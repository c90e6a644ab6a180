"""Loaders over samples: the order of docs/order.md, each sample once an epoch, steps and resumes on any ranks."""

import gc
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from files import finish, run_python, start_python
from reference import Reference, default_item_window, permuted
from sample_sources import Calls, MadeUp, dataset_of, drawn, ids, made_up, source_of

WORLDS = (1, 2, 3, 4, 6)
ORDERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lanes": ({"random_access": False}, {"lanes": 4, "window": 2}),
    "permutation": ({"random_access": True}, {}),
    "sequential": ({}, {"shuffle": False}),
}
"""How the source is, and what the loader is told."""

SIZES = (5, 1, 7, 0, 4, 9, 3)
"""29 samples."""


class Given(NamedTuple):
    """A batch as a test compares it."""

    step: int
    epoch: int
    rows: list[int]
    ids: list[int]
    state: dict[str, Any]


def load(data: Any, batch: Any = None, **options: Any) -> hr.DataLoader:
    return hr.DataLoader(data, global_batch_size=batch, **{"num_workers": 0, **options})


def given_by(loader: hr.DataLoader, count: int = 10**9) -> list[Given]:
    """The next batches of a loader, epoch after epoch, to the end of a finite run."""
    found: list[Given] = []
    while len(found) < count:
        before, epoch = loader.step, loader.epoch
        for batch in loader:
            if batch == []:
                found.append(Given(loader.step - 1, epoch, [], [], loader.state_dict()))
            else:
                found.append(Given(batch.step, batch.epoch, batch.rows.tolist(), batch["id"].tolist(), batch.state))
            if len(found) == count:
                break
        if loader.step == before:
            break
    return found


def merged(ranks: Sequence[Sequence[Given]]) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """Step, epoch, and (row, id) of all ranks in the order of rows."""
    assert len({len(batches) for batches in ranks}) == 1, "all ranks take equally many steps"
    found = []
    for parts in zip(*ranks, strict=True):
        assert len({(part.step, part.epoch) for part in parts}) == 1
        assert all(part.state == parts[0].state for part in parts)
        assert all(part.rows == sorted(part.rows) for part in parts)
        pairs = sorted(pair for part in parts for pair in zip(part.rows, part.ids, strict=True))
        found.append((parts[0].step, parts[0].epoch, pairs))
    return found


def every_rank(make: Callable[[], Any], world: int, batch: Any, **options: Any) -> list[list[Given]]:
    return [given_by(load(make(), batch, rank=rank, world_size=world, **options)) for rank in range(world)]


# The order again, from docs/order.md


def order_of(kind: str, sizes: Sequence[int], rows: int, *, seed: int, lanes: int, window: int) -> list[int]:
    """The number of the sample at each of the first rows."""
    total = sum(sizes)
    if kind == "sequential":
        return [row % total for row in range(rows)]
    if kind == "permutation":
        return [permuted(row % total, total, seed=seed, epoch=row // total) for row in range(rows)]
    used = [size for size in sizes if size]  # a selection has no empty pieces
    begins = [sum(used[:chunk]) for chunk in range(len(used))]
    reference = Reference(
        [[[0]] * size for size in used], seed=seed, lanes=lanes, window=window, seq_len=1, global_batch_size=1
    )
    places = [reference.row_units(row)[0].source for row in range(rows)]
    return [begins[place.chunk] + place.row for place in places]


def steps_of(
    total: int, epochs: int, batch: int, ranks: int, drop_last: bool, allow_empty: bool
) -> list[tuple[int, list[int]]]:
    """(epoch, rows) of each step."""
    found = []
    for epoch in range(epochs):
        rows = list(range(epoch * total, (epoch + 1) * total))
        cut = [rows[begin : begin + batch] for begin in range(0, total, batch)]
        if len(cut[-1]) < batch and drop_last:
            cut.pop()
        elif len(cut[-1]) < ranks and not allow_empty:
            last = cut.pop()
            cut[-1] += last
        found += [(epoch, part) for part in cut]
    return found


def part_of(rows: list[int], batch: int, lanes: int, rank: int, ranks: int) -> list[int]:
    """A rank's rows of a step."""
    if len(rows) == batch and batch % lanes == 0 and lanes % ranks == 0:
        return [row for row in rows if row % lanes in range(lanes * rank // ranks, lanes * (rank + 1) // ranks)]
    return rows[len(rows) * rank // ranks : len(rows) * (rank + 1) // ranks]


@given(
    sizes=st.lists(st.integers(0, 7), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) >= 12),
    kind=st.sampled_from(["lanes", "permutation", "sequential"]),
    seed=st.integers(0, 2**64 - 1),
    lanes=st.integers(1, 6),
    window=st.integers(1, 7),
    share=st.integers(1, 5),
    world=st.sampled_from(WORLDS),
    drop_last=st.booleans(),
    allow_empty=st.booleans(),
)
def test_batches_are_those_of_the_written_order(
    sizes: list[int],
    kind: str,
    seed: int,
    lanes: int,
    window: int,
    share: int,
    world: int,
    drop_last: bool,
    allow_empty: bool,
) -> None:
    batch, total, epochs = share * world, sum(sizes), 2
    if drop_last and batch > total:
        share, batch = 1, world
    options: dict[str, Any] = {"shuffle": kind != "sequential", "drop_last": drop_last, "allow_empty": allow_empty}
    if kind == "lanes":
        options |= {"lanes": lanes, "window": window}
    else:
        lanes = 1
    data = made_up(sizes, random_access=kind == "permutation")
    order = order_of(kind, sizes, epochs * total, seed=seed, lanes=lanes, window=window)
    wanted = steps_of(total, epochs, batch, world, drop_last, allow_empty)
    for rank in range(world):
        loader = load(data, batch, seed=seed, epochs=epochs, rank=rank, world_size=world, **options)
        assert loader.stats()["order"] == kind
        found = []
        for _ in range(epochs):
            assert len(loader) == len(wanted) // epochs
            for step in loader:
                # An empty batch is an empty list.
                assert (step == []) == isinstance(step, list)
                found.append(step if step == [] else (step.step, step.epoch, step.rows.tolist(), step["id"].tolist()))
        assert list(loader) == []
        rows = [part_of(part, batch, lanes, rank, world) for _, part in wanted]
        assert found == [
            (step, epoch, mine, [order[row] for row in mine]) if mine else []
            for step, ((epoch, _), mine) in enumerate(zip(wanted, rows, strict=True))
        ]
        assert allow_empty or [] not in found


@given(
    sizes=st.lists(st.integers(0, 7), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) >= 6),
    kind=st.sampled_from(["lanes", "permutation", "sequential"]),
    seed=st.integers(0, 2**64 - 1),
    lanes=st.integers(1, 4),
    window=st.integers(1, 7),
    data=st.data(),
)
def test_a_subset_in_an_order_of_its_own_gives_that_order_or_the_written_one(
    sizes: list[int], kind: str, seed: int, lanes: int, window: int, data: st.DataObject
) -> None:
    total = sum(sizes)
    numbers = data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=20))
    options: dict[str, Any] = {"lanes": lanes, "window": window} if kind == "lanes" else {}
    subset = made_up(sizes, random_access=kind == "permutation").subset(numbers)
    loader = load(subset, 4, seed=seed, epochs=2, shuffle=kind != "sequential", **options)
    assert loader.stats()["order"] == kind
    found = [pair for batch in [*loader, *loader] for pair in zip(batch.positions, batch["id"], strict=True)]
    # The chunk of each item as it lies; what is picked of a chunk is a chunk of the order's.
    chunks = [chunk for chunk, size in enumerate(sizes) for _ in range(size)]
    stored = sorted(range(len(numbers)), key=lambda position: numbers[position]) if kind == "lanes" else None
    counts = [sum(chunks[number] == chunk for number in numbers) for chunk in range(len(sizes))]
    order = order_of(kind, counts, 2 * len(numbers), seed=seed, lanes=lanes, window=window)
    positions = order if stored is None else [stored[place] for place in order]
    assert found == [(position, numbers[position]) for position in positions]


@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_epoch_has_each_sample_once_and_an_order_of_its_own(kind: str, workers: int) -> None:
    source, options = ORDERS[kind]
    data = made_up(SIZES, **source)
    loader = load(data, 6, **options, num_workers=workers)
    epochs = [ids_of(loader) for _ in range(4)]
    assert all(sorted(epoch) == list(range(29)) for epoch in epochs)
    assert loader.epoch == 4
    different = len({tuple(epoch) for epoch in epochs})
    assert different == (1 if kind == "sequential" else 4)
    # B040, B046: the orders differ without a call, and come again.
    again = load(made_up(SIZES, **source), 6, **options)
    assert [ids_of(again) for _ in range(4)] == epochs
    if kind != "sequential":
        assert ids_of(load(data, 6, **options, seed=1)) != epochs[0]


def ids_of(loader: Iterable[Any]) -> list[int]:
    return [number for batch in loader for number in batch["id"].tolist()]


@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize("batch", [12, 24])
def test_worlds_give_the_same_global_batches(kind: str, batch: int) -> None:
    source, options = ORDERS[kind]
    data = made_up((*SIZES, 7), **source)  # 36 samples: no batch is joined
    options = options | ({"lanes": 12} if kind == "lanes" else {})
    one, *others = [merged(every_rank(lambda: data, world, batch, epochs=3, **options)) for world in WORLDS]
    assert len(one) == 3 * -(-36 // batch)
    assert all(other == one for other in others)


def test_batches_of_samples_with_items_of_fewer_chunks_than_workers_are_shared() -> None:
    """B025, B031, B034: one chunk, several ranks."""
    for options in ({"shuffle": False}, {}):
        ranks = every_rank(lambda: made_up([32]), 4, 4, epochs=1, num_workers=2, **options)
        found = [[number for batch in rank for number in batch.ids] for rank in ranks]
        assert [len(part) for part in found] == [8] * 4
        assert sorted(number for part in found for number in part) == list(range(32))


# The last batch, and little data


def test_the_last_batch_is_joined_where_a_rank_would_have_none() -> None:
    """29 samples: of 7 batches of 4 one sample is left."""
    data = made_up(SIZES)
    one = merged(every_rank(lambda: data, 1, 4, epochs=1, shuffle=False))
    assert [len(pairs) for *_, pairs in one] == [4] * 7 + [1]
    two = every_rank(lambda: data, 2, 4, epochs=1, shuffle=False)
    assert [[len(batch.ids) for batch in rank] for rank in two] == [[2] * 6 + [2], [2] * 6 + [3]]
    assert [number for _, _, pairs in merged(two) for _, number in pairs] == list(range(29))
    dropped = merged(every_rank(lambda: data, 2, 4, epochs=2, shuffle=False, drop_last=True))
    assert [number for _, _, pairs in dropped for _, number in pairs] == [*range(28), *range(28)]


@pytest.mark.parametrize("drop, length", [(True, 2), (False, 3)])
def test_the_length_does_not_count_a_dropped_batch(drop: bool, length: int) -> None:
    """B148."""
    loader = load(made_up([10]), 4, drop_last=drop)
    assert len(loader) == length
    assert len(list(loader)) == length


@pytest.mark.parametrize("workers", [0, 1, 4, 16])
def test_steps_do_not_grow_with_workers(workers: int) -> None:
    """B032."""
    loader = load(made_up([100] * 4), 20, num_workers=workers)
    assert len(loader) == len(list(loader)) == 20


def test_two_samples_are_two_steps_whatever_the_ranks() -> None:
    """B022, B037."""
    data = made_up([2])
    assert len(load(data, 1)) == 2
    with pytest.raises(ValueError, match=r"2 samples.*64 ranks(.|\n)*allow_empty=True"):
        load(data, 64, rank=0, world_size=64)
    ranks = [list(load(data, 64, rank=rank, world_size=64, allow_empty=True, epochs=1)) for rank in range(64)]
    assert [len(batches) for batches in ranks] == [1] * 64
    assert sorted(number for batches in ranks for batch in batches if batch for number in ids_of([batch])) == [0, 1]
    assert sum(batches == [[]] for batches in ranks) == 62


@pytest.mark.parametrize("kind", ORDERS)
def test_fewer_samples_than_a_batch_are_a_batch(kind: str) -> None:
    source, options = ORDERS[kind]
    ranks = every_rank(lambda: made_up([3, 2], **source), 4, 64, epochs=2, **options)
    assert [len(pairs) for *_, pairs in merged(ranks)] == [5, 5]
    with pytest.raises(ValueError, match=r"5 samples.*less than a global batch of 64(.|\n)*smaller batch"):
        load(made_up([3, 2], **source), 64, drop_last=True, **options)


@pytest.mark.parametrize("sizes", [[], [0], [0, 0]])
def test_no_samples_are_an_error(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="no samples"):
        load(made_up(sizes), 4)


# Resume


RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{kind: (source, options | {"batch": 6}) for kind, (source, options) in ORDERS.items()},
    "dropping": ({}, {"batch": 5, "drop_last": True, "lanes": 5, "window": 3}),
    "a schedule": ({}, {"batch": {0: 4, 3: 8, 7: 2, 12: 6}, "lanes": 2, "window": 2}),
    "one chunk a window": ({}, {"batch": 7, "lanes": 7, "window": 1}),
    "all in one window": ({}, {"batch": 4, "window": 100}),
}


def going_on(options: dict[str, Any]) -> dict[str, Any]:
    """What is not in a state."""
    kept = {key: value for key, value in options.items() if key in ("drop_last",)}
    return kept | {"batch": options["batch"] if isinstance(options["batch"], dict) else None, "epochs": 3}


@pytest.mark.parametrize("run", RUNS)
def test_saved_after_every_step_the_rest_is_that_of_the_unbroken_run(run: str) -> None:
    source, options = RUNS[run]
    loader = load(made_up(SIZES, **source), **options, epochs=3, seed=5)
    first = loader.state_dict()
    unbroken = given_by(loader)
    assert {batch.epoch for batch in unbroken} == {0, 1, 2}
    assert loader.state_dict() == unbroken[-1].state
    states = [first, *[batch.state for batch in unbroken]]
    for step, state in enumerate(states):
        again = load(made_up(SIZES, **source), **going_on(options))
        again.load_state_dict(hr.State.from_bytes(hr.State.to_bytes(state)))
        assert again.state_dict() == state, "saved right after loading"
        assert again.step == step
        if step < len(unbroken):
            epoch = unbroken[step].epoch
            left = sum(batch.epoch == epoch for batch in unbroken[step:])
            assert len(again) == sum(batch.epoch == epoch for batch in unbroken)
            assert len(iter(again)) == left
        assert given_by(again) == unbroken[step:]


@pytest.mark.parametrize("run", RUNS)
def test_a_new_resume_after_each_batch(run: str) -> None:
    """B001: a second resume fell back to the first row."""
    source, options = RUNS[run]
    loader = load(made_up(SIZES, **source), **options, epochs=3, seed=5)
    state = loader.state_dict()
    unbroken = given_by(loader)
    found: list[Given] = []
    for _ in unbroken:
        again = load(made_up(SIZES, **source), **going_on(options), num_workers=1)
        again.load_state_dict(json.loads(json.dumps(state)))
        found += given_by(again, 1)
        state = again.state_dict()
        assert state == found[-1].state
    assert found == unbroken


@settings(max_examples=60)
@given(
    data=st.data(),
    kind=st.sampled_from(list(ORDERS)),
    drop_last=st.booleans(),
    allow_empty=st.booleans(),
    total=st.integers(12, 40),
)
def test_chains_of_resumes_on_other_ranks_and_batches(
    data: st.DataObject, kind: str, drop_last: bool, allow_empty: bool, total: int
) -> None:
    """B020: each link has other ranks and another batch size, and starts from fresh objects."""
    source, options = ORDERS[kind]
    sizes = [total - 2 * (total // 3), total // 3, 0, total // 3]
    kept: dict[str, Any] = {"drop_last": drop_last, "allow_empty": allow_empty, "epochs": 3}
    order = [
        number for batch in given_by(load(made_up(sizes, **source), 1, epochs=3, **options)) for number in batch.ids
    ]
    assert len(order) == 3 * total
    state = load(made_up(sizes, **source), 1, **options, **kept).state_dict()
    row = step = 0
    begun: dict[int, int] = {}  # epoch: its steps so far
    for _ in range(data.draw(st.integers(1, 5), "links")):
        world = data.draw(st.sampled_from(WORLDS), "world")
        batch = world * data.draw(st.integers(1, 12 // world), "share")
        count = data.draw(st.integers(0, 6), "steps")
        left = total - row % total
        loaders = [load(made_up(sizes, **source), batch, rank=rank, world_size=world, **kept) for rank in range(world)]
        if left < min(world, batch) and not drop_last and not allow_empty:
            with pytest.raises(ValueError, match=f"{left} samples.*{world} ranks"):
                loaders[0].load_state_dict(state)
            continue
        for loader in loaders:
            loader.load_state_dict([state] * world)
            epoch = loader.epoch
            assert loader.step == step
            assert loader.epoch == 3 or len(loader) == begun.get(epoch, 0) + len(iter(loader))
        # Where what is left of an epoch makes no batch, it is over.
        row = loaders[0].position
        found = merged([given_by(loader, count) for loader in loaders])
        for number, epoch, pairs in found:
            assert (number, epoch) == (step, row // total)
            assert [one for one, _ in pairs] == list(range(row, row + len(pairs))), "none lost, none twice"
            assert [one for _, one in pairs] == order[row : row + len(pairs)]
            begun[epoch] = begun.get(epoch, 0) + 1
            step, row = step + 1, row + len(pairs)
            rest = -row % total
            if drop_last and rest < batch and row % total:
                row += rest
        assert [loader.position for loader in loaders] == [row] * world
        states = [loader.state_dict() for loader in loaders]
        assert all(one == states[0] for one in states)
        state = states[0]


def test_read_save_load_again_and_again() -> None:
    """B001, B008: the count of what was given goes on from the state's."""
    state, found = load(made_up([40]), 1, shuffle=False).state_dict(), []
    for _ in range(3):
        loader = load(made_up([40]))
        loader.load_state_dict(state)
        found += [number for batch in given_by(loader, 5) for number in batch.ids]
        state = loader.state_dict()
    assert found == list(range(15))
    assert (loader.step, loader.position, state["step"]) == (15, 15, 15)


def test_epochs_after_a_resume_are_whole() -> None:
    """B004, B011."""
    data = made_up([20, 10]).subsample(1.5)
    loader = load(data, 4, num_workers=2)
    given_by(loader, len(loader) + 9)
    state = loader.state_dict()
    again = load(made_up([20, 10]).subsample(1.5), num_workers=2)
    again.load_state_dict(state)
    assert [len(list(again)) for _ in range(3)] == [3, 12, 12]


def test_a_state_soon_after_a_resume_is_whole() -> None:
    """B007."""
    loader = load(made_up(SIZES), 2, num_workers=4)
    unbroken = given_by(loader, 10)
    state = unbroken[2].state
    for step in range(3, 9, 2):
        again = load(made_up(SIZES), num_workers=4)
        again.load_state_dict(state)
        assert given_by(again, 2) == unbroken[step : step + 2]
        state = again.state_dict()


def test_another_loader_over_a_used_dataset() -> None:
    """B010."""
    data = made_up(SIZES)
    first = load(data, 1, num_workers=2)
    for number, _ in enumerate(first):
        if number == 4:
            break
    second = load(data)
    second.load_state_dict(first.state_dict())
    assert [batch.rows for batch in given_by(second, 2)] == [[5], [6]]
    assert [batch.rows for batch in given_by(load(data, 1), 1)] == [[0]]


def test_a_state_loaded_while_an_iterator_lives() -> None:
    """B014."""
    data = made_up(SIZES)
    other = load(data, 2, seed=9)
    given_by(other, 5)
    loader = load(data, 2, seed=9)
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(other.state_dict())
    with pytest.raises(RuntimeError, match=r"not the loader's latest(.|\n)*iterate over the loader again"):
        next(iterator)
    with pytest.raises(RuntimeError, match="not the loader's latest"):
        len(iterator)
    assert loader.state_dict() == other.state_dict()
    assert given_by(loader, 3) == given_by(other, 3)


@pytest.mark.parametrize("kind", ORDERS)
def test_a_resume_does_not_touch_samples_that_were_given(kind: str) -> None:
    """B019."""
    source, options = ORDERS[kind]
    loader = load(made_up([100] * 10, **source), 10, **options)
    loader.seek(90)
    calls = Calls()
    data = made_up([100] * 10, **source).map(calls)
    again = load(data, 10)
    again.load_state_dict(loader.state_dict())
    rest = ids_of(again)
    assert len(rest) == 100
    assert calls.ids == rest
    if kind == "sequential":
        assert {chunk for chunk, _ in source_of(data).loads} == {9}


def test_a_seed_from_a_state_reaches_functions() -> None:
    def drawn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return sample | {"drawn": int(rng.integers(2**40))}

    data = made_up(SIZES).map(drawn)
    wanted = load(data, 4, seed=7)
    state = wanted.state_dict()
    used = load(data, 4)
    next(iter(used))
    used.load_state_dict(state)
    for one, other in zip(used, wanted, strict=True):
        assert one["drawn"].tolist() == other["drawn"].tolist()


@pytest.mark.parametrize(
    "other, options, message",
    [
        (made_up((5, 1, 7, 0, 4, 9, 4)), {}, "not that of the state: samples of source 0 is 30 here and 29"),
        (made_up((5, 1, 7, 4, 9, 3)), {}, "not that of the state: chunks of source 0 is 6 here and 7"),
        (made_up(SIZES, start=1), {}, "not that of the state: identity of source 0 is"),
        (made_up([2]), {}, "not that of the state: chunks of source 0"),
        (hr.concat([made_up(SIZES), made_up(SIZES)]), {}, "2 sources here, 1 in the state"),
        (made_up(SIZES).take(28), {}, "not those of the state: samples is 28 here and 29"),
        (made_up(SIZES, random_access=True), {}, "not those of the state: order is 'permutation' here and 'lanes'"),
        (
            made_up(SIZES).subset(np.arange(29)[::-1]),
            {},
            "not those of the state: selection is",
        ),
        (hr.concat([made_up(SIZES).skip(1), made_up(SIZES).take(1)]), {}, "2 sources here"),
        (made_up(SIZES), {"seed": 4}, "seed is 4 here and 3 in the state(.|\n)*leave seed out"),
        (made_up(SIZES), {"shuffle": False}, "shuffle is False here and True in the state"),
        (made_up(SIZES), {"lanes": 2}, "lanes is 2 here and 4 in the state"),
        (made_up(SIZES), {"window": 3}, "window is 3 here and 2 in the state"),
    ],
)
def test_a_state_of_another_run_is_refused_by_the_first_difference(
    other: Any, options: dict[str, Any], message: str
) -> None:
    """B017."""
    loader = load(made_up(SIZES), 4, seed=3, lanes=4, window=2)
    given_by(loader, 2)
    before = load(other, 2, **options)
    kept = before.state_dict()
    with pytest.raises(hr.StateMismatch, match=message):
        before.load_state_dict(loader.state_dict())
    assert before.state_dict() == kept
    assert given_by(before, 1)[0].step == 0


def test_a_selection_of_as_many_other_samples_is_refused() -> None:
    data = made_up(SIZES)
    loader = load(data.take(10), 2)
    with pytest.raises(hr.StateMismatch, match="not those of the state: selection is"):
        load(data.skip(10).take(10), 2).load_state_dict(loader.state_dict())
    load(made_up(SIZES).subset(range(10)), 2).load_state_dict(loader.state_dict())


@pytest.mark.parametrize(
    "change, message",
    [
        ({"history": []}, "history"),
        ({"history": [[0, 0, 0]]}, "history"),
        ({"history": [[1, 4, 4]]}, "history"),
        ({"history": [[0, 0, 4], [0, 0, 4]]}, "history"),
        ({"history": [[0, 0, 4], [5, 20, 4]]}, "history"),
        ({"position": 9}, "history.*position 9"),
        ({"step": 1}, "history"),
        ({"step": -1}, "step"),
        ({"kind": "counted"}, "kind|history|step"),
        ({"more": 1}, "unknown key 'more'"),
        ({"seed": "a"}, "seed"),
    ],
)
def test_a_damaged_state_is_refused(change: dict[str, Any], message: str) -> None:
    loader = load(made_up(SIZES), 4)
    given_by(loader, 2)
    with pytest.raises(hr.StateMismatch, match=message):
        load(made_up(SIZES)).load_state_dict(loader.state_dict() | change)


def test_a_state_cut_or_changed_in_a_file_is_refused() -> None:
    data = hr.State.to_bytes(load(made_up(SIZES), 4).state_dict())
    for wrong in (data[:-1], data[:40] + b"X" + data[41:], b""):
        with pytest.raises(hr.StateMismatch):
            hr.State.from_bytes(wrong)


def test_a_batch_size_comes_from_an_argument_or_a_state() -> None:
    loader = load(made_up(SIZES))
    with pytest.raises(ValueError, match="batch size is missing"):
        next(iter(loader))
    loader.load_state_dict(load(made_up(SIZES), 5).state_dict())
    assert loader.global_batch_size == 5
    with pytest.raises(ValueError, match="multiple of world_size=2, got 5"):
        load(made_up(SIZES), rank=0, world_size=2).load_state_dict(loader.state_dict())


# Going elsewhere


@pytest.mark.parametrize("run", RUNS)
def test_seek_goes_to_any_step(run: str) -> None:
    source, options = RUNS[run]
    loader = load(made_up(SIZES, **source), **options, epochs=3)
    unbroken = given_by(loader)
    for step in [*range(len(unbroken) - 1, -1, -3), 0, 1]:
        loader.seek(step)
        assert (loader.step, loader.epoch) == (step, unbroken[step].epoch)
        assert given_by(loader, 2) == unbroken[step : step + 2]
    loader.seek(len(unbroken))
    assert given_by(loader) == []
    with pytest.raises(ValueError, match=f"0..{len(unbroken)}"):
        loader.seek(len(unbroken) + 1)


def test_seek_far_ahead_costs_nothing() -> None:
    loader = load(made_up([1000]), 7)
    loader.seek(10**12)
    steps = -(-1000 // 7)
    assert (loader.epoch, loader.position) == (10**12 // steps, 10**12 // steps * 1000 + 10**12 % steps * 7)
    assert len(next(iter(loader))["id"]) in (7, 1000 % 7)


def test_skipped_steps_are_passed_over_and_keep_their_numbers() -> None:
    unbroken = given_by(load(made_up(SIZES), 4, epochs=2))
    loader = load(made_up(SIZES), 4, epochs=2)
    given_by(loader, 1)
    loader.skip(range(2, 5))
    loader.skip(range(7, 9))
    assert len(loader) == 8 - 4
    assert len(iter(loader)) == 3
    state = loader.state_dict()
    found = given_by(loader)
    assert [batch.step for batch in found] == [1, 5, 6, *range(9, 16)]
    assert [batch.ids for batch in found] == [unbroken[batch.step].ids for batch in found]
    again = load(made_up(SIZES), epochs=2)
    again.load_state_dict(state)
    assert given_by(again) == found
    with pytest.raises(ValueError, match="from 16 on"):
        loader.skip(range(3, 5))
    with pytest.raises(TypeError, match="range"):
        loader.skip([17])  # type: ignore[arg-type]


def test_the_batch_size_may_change_at_any_step() -> None:
    order = [number for batch in given_by(load(made_up(SIZES), 12, lanes=12, epochs=2)) for number in batch.ids]
    loader = load(made_up(SIZES), 12, epochs=2, lanes=12)
    found = []
    for size in (3, 12, 1, 7, 50, 4):
        loader.set_global_batch_size(size)
        assert loader.global_batch_size == size
        found += given_by(loader, 1)
    assert [len(batch.ids) for batch in found] == [3, 12, 1, 7, 6, 4]
    rest = given_by(loader)
    assert [number for batch in [*found, *rest] for number in batch.ids] == order
    again = load(made_up(SIZES), epochs=2)
    again.load_state_dict(found[2].state)
    assert again.global_batch_size == 1


def test_a_schedule_is_refused_where_ranks_do_not_divide_it() -> None:
    with pytest.raises(ValueError, match=r"multiple of world_size=2, got 3(.|\n)*2 or 4"):
        load(made_up(SIZES), {0: 4, 5: 3}, rank=0, world_size=2)
    loader = load(made_up(SIZES), 4, rank=0, world_size=2)
    with pytest.raises(ValueError, match="multiple of world_size=2, got 5"):
        loader.set_global_batch_size(5)


def test_lengths_at_each_point() -> None:
    """B149, B038."""
    loader = load(made_up(SIZES), 5, epochs=3)
    for _ in range(3):
        assert len(loader) == 6
        iterator = iter(loader)
        for left in range(6, 0, -1):
            assert (len(loader), len(iterator)) == (6, left)
            next(iterator)
        assert len(iterator) == 0
        assert next(iterator, None) is None
    assert (loader.epoch, len(loader), list(loader)) == (3, 6, [])


def test_the_next_epoch_while_the_last_iterator_is_held() -> None:
    loader = load(made_up(SIZES), 5, num_workers=1)
    held = iter(loader)
    for _ in range(6):
        next(held)
    following = iter(loader)
    assert next(following).step == 6
    with pytest.raises(RuntimeError, match="latest"):
        next(held)


# What a batch tells


@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize("world", [1, 2, 4])
def test_sources_say_where_samples_lie(kind: str, world: int) -> None:
    source, options = ORDERS[kind]
    options = {"epochs": 2, "world_size": world} | options
    loaders = [load(made_up(SIZES, **source), 4, rank=rank, **options) for rank in range(world)]
    begins = np.cumsum([0, *SIZES])
    for rank, loader in enumerate(loaders):
        for _ in range(2):
            for batch in loader:
                places = batch.sources()
                assert [int(begins[place.chunk]) + place.row for place in places] == batch["id"].tolist()
                assert [place.file for place in places] == [f"file-{place.chunk}" for place in places]
                assert batch.positions.tolist() == batch["id"].tolist()
                assert loaders[0].sources(batch.step, rank) == places
                assert loader.state_dict() == batch.state
    with pytest.raises(ValueError, match="behind the end"):
        loaders[0].sources(2 * len(loaders[0]))
    with pytest.raises(ValueError, match="rank"):
        loaders[0].sources(0, world)


# Windows, lanes, memory, workers


def test_defaults_are_those_of_the_order_page() -> None:
    for sizes, batch in (([100] * 40, 8), ([50_000] * 40, 64), ([3], 12)):
        stats = load(made_up(sizes), batch).stats()
        stored = 100 * sum(sizes)
        window = default_item_window(sizes, stored, batch)
        in_window = sum(sizes) * window / len(sizes)
        lanes = max([d for d in range(1, batch + 1) if batch % d == 0 and in_window / d >= 8], default=1)
        assert (stats["window"], stats["lanes"], stats["order"]) == (window, lanes, "lanes")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"lanes": 4, "shuffle": False}, "lanes must be left out for a sequential order"),
        ({"window": 4, "shuffle": False}, "window must be left out"),
        ({"lanes": 0}, "lanes"),
        ({"window": 0}, "window"),
        ({"sampler": [1, 2]}, "sampler has no meaning"),
        ({"batch_sampler": [[1], [2]]}, "batch_sampler has no meaning"),
        ({"generator": object()}, "generator has no meaning"),
        ({"remainder": "pad"}, "remainder has no meaning"),
        ({"epochs": 0}, "epochs"),
        ({"memory": 0}, "memory"),
        ({"num_workers": -1}, "num_workers"),
    ],
)
def test_arguments_without_a_meaning_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(made_up(SIZES), 4, **options)


@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize("memory", [1, "150kB", "1GiB"])
@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_memory_and_workers_change_nothing(kind: str, memory: Any, workers: int) -> None:
    """B028, B145."""
    source, options = ORDERS[kind]
    wanted = given_by(load(made_up(SIZES, **source), 6, epochs=2, **options))
    loader = load(made_up(SIZES, **source), 6, epochs=2, **options, memory=memory, num_workers=workers)
    assert given_by(loader) == wanted
    stats = loader.stats()
    assert stats["chunk_cache_bytes"] <= max(90_000, 10**9 if memory == "1GiB" else 150_000)


def test_the_cache_stays_within_its_budget_but_for_one_chunk() -> None:
    """B146."""
    loader = load(made_up([10] * 50), 20, memory=250_000, num_workers=2, lanes=4, window=2, epochs=2)
    list(loader)
    assert loader.stats()["chunk_cache_peak"] <= 250_000
    one = load(made_up([10] * 50), 20, memory=1, num_workers=0, shuffle=False)
    list(one)
    assert one.stats()["chunk_cache_peak"] == 100_000
    assert one.stats()["chunks_loaded"] == 50


def test_windows_are_read_once_an_epoch_where_memory_allows() -> None:
    data = made_up([10] * 30)
    list(load(data, 5, lanes=5, window=3, num_workers=2))
    assert sorted(chunk for chunk, _ in source_of(data).loads) == list(range(30))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_subset_in_an_order_of_its_own_reads_each_chunk_once_an_epoch(workers: int) -> None:
    data = made_up([40] * 30)
    numbers = np.random.default_rng(0).permutation(1200)[:800]
    # Memory for three windows of three chunks, of 400,000 bytes each: a permutation of all would read most anew.
    loader = load(data.subset(numbers), 5, lanes=5, window=3, memory=3_600_000, num_workers=workers)
    assert sorted(ids_of(loader)) == sorted(numbers.tolist())
    loads = Counter(chunk for chunk, _ in source_of(data).loads)
    assert sorted(loads) == list(range(30))
    # Workers read the first window of the next epoch ahead.
    assert sum(loads.values()) <= (33 if workers else 30)
    ordered = load(data.subset(numbers), 5, shuffle=False)
    assert ids_of(ordered) == numbers.tolist()


def test_a_short_shuffle_reads_many_chunks_at_once() -> None:
    """B041."""
    batch = next(iter(load(made_up([10] * 100), 32)))
    assert len(set((batch["id"] // 10).tolist())) > 16


# Errors


def failing(*numbers: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def function(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] in numbers:
            raise KeyError(f"no {sample['id']}")
        return sample

    return function


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_names_the_sample_and_the_next_step_can_be_had(workers: int) -> None:
    loader = load(made_up(SIZES).map(failing(6)), 4, shuffle=False, num_workers=workers, epochs=1)
    iterator = iter(loader)
    assert next(iterator).step == 0
    with pytest.raises(KeyError, match="no 6") as caught:
        next(iterator)
    notes = "\n".join(caught.value.__notes__)
    assert "sample 6 (file-2, chunk 2, row 0)" in notes
    assert "map(" in notes
    assert loader.step == 2
    assert [batch.step for batch in iterator] == list(range(2, 8))


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_fail_are_skipped_counted_and_listed(workers: int) -> None:
    data = made_up(SIZES).map(failing(0, 6, 8, 9, 10, 11))
    loader = load(data, 4, shuffle=False, num_workers=workers, epochs=1, on_error="skip")
    found = [(batch.step, batch["id"].tolist(), batch.positions.tolist(), batch.rows.tolist()) for batch in loader]
    assert found[:3] == [
        (0, [1, 2, 3], [1, 2, 3], [1, 2, 3]),
        (1, [4, 5, 7], [4, 5, 7], [4, 5, 7]),
        (3, *[[*range(12, 16)]] * 3),
    ]
    assert len(found) == 7
    stats = loader.stats()
    assert (stats["samples"], stats["samples_skipped"], stats["samples_dropped"]) == (23, 6, 0)
    assert stats["skipped"][1] == (6, "file-2, chunk 2, row 0", "KeyError: 'no 6'")


def test_a_damaged_sample_is_an_error_or_skipped() -> None:
    def fault(chunk: int, row: int) -> None:
        if (chunk, row) == (2, 3):
            raise hr.DataError("damaged")

    def new() -> Any:
        return dataset_of(MadeUp(SIZES, fault=fault))

    with pytest.raises(hr.DataError, match="damaged") as caught:
        list(load(new(), 4, shuffle=False))
    assert "sample 9 (file-2, chunk 2, row 3)" in "\n".join(caught.value.__notes__)
    loader = load(new(), 4, shuffle=False, on_error="skip")
    assert ids_of(loader) == [*range(9), *range(10, 29)]
    assert loader.stats()["samples_skipped"] == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_store_that_does_not_answer_for_a_while_loses_no_step(workers: int) -> None:
    broken = threading.Event()

    def fault(chunk: int, row: int) -> None:
        if chunk == 4 and broken.is_set():
            raise hr.StoreError("no answer")

    data = dataset_of(MadeUp(SIZES, fault=fault))
    wanted = given_by(load(made_up(SIZES), 4, shuffle=False, epochs=1))
    loader = load(data, 4, shuffle=False, epochs=1, num_workers=workers, on_error="skip")
    broken.set()
    iterator = iter(loader)
    found = [next(iterator)["id"].tolist() for _ in range(3)]
    for _ in range(2):
        with pytest.raises(hr.StoreError, match="no answer"):
            next(iterator)
        assert loader.step == 3
    broken.clear()
    found += [batch["id"].tolist() for batch in iterator]
    assert found == [batch.ids for batch in wanted]


def test_a_function_that_raises_stop_iteration_does_not_end_the_epoch() -> None:
    def stop(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] == 5:
            raise StopIteration
        return sample

    iterator = iter(load(made_up(SIZES).map(stop), 4, shuffle=False))
    next(iterator)
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(iterator)
    assert next(iterator).step == 2


def test_a_batch_that_takes_too_long_is_not_lost() -> None:
    go = threading.Event()

    def slow(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] == 5:
            assert go.wait(30)
        return sample

    loader = load(made_up(SIZES).map(slow), 4, shuffle=False, num_workers=1, timeout=0.2, epochs=1)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(TimeoutError, match=r"0\.2 s"):
        next(iterator)
    go.set()
    time.sleep(0.05)
    assert [batch["id"].tolist()[0] for batch in patiently(iterator)] == list(range(4, 29, 4))


def patiently(iterator: Any) -> Iterable[Any]:
    """All batches; a slow machine may need longer than the timeout."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            yield next(iterator)
        except TimeoutError:
            continue
        except StopIteration:
            return


# Filters


def even(sample: dict[str, Any]) -> bool:
    return sample["id"] % 2 == 0


def test_filters_make_batches_smaller_and_leave_steps_as_they_are() -> None:
    loader = load(made_up(SIZES).filter(even), 4, shuffle=False, epochs=1)
    assert len(loader) == 8
    found = list(loader)
    assert [len(batch["id"]) for batch in found] == [2] * 7 + [1]
    assert ids_of(found) == list(range(0, 29, 2))
    assert [batch.positions.tolist() for batch in found] == [batch["id"].tolist() for batch in found]
    assert (loader.stats()["samples"], loader.stats()["samples_dropped"]) == (15, 14)


def beyond(least: int) -> Callable[[dict[str, Any]], bool]:
    return lambda sample: sample["id"] >= least


@pytest.mark.parametrize("workers", [0, 2])
def test_a_step_of_which_nothing_is_left(workers: int) -> None:
    data = made_up(SIZES).filter(beyond(10))
    options: dict[str, Any] = {"shuffle": False, "epochs": 1, "num_workers": workers}
    assert [batch.step for batch in load(data, 4, **options)] == list(range(2, 8))
    ranks = [load(data, 4, rank=rank, world_size=2, **options) for rank in range(2)]
    for rank, loader in enumerate(ranks):
        iterator = iter(loader)
        for step in range(2):
            with pytest.raises(ValueError, match=f"step {step}.*nothing for rank {rank}(.|\n)*allow_empty=True"):
                next(iterator)
    empty = list(load(data, 4, rank=0, world_size=2, allow_empty=True, **options))
    assert empty[:2] == [[], []]
    # Eight steps: of the last one's single sample rank 0 has none.
    assert [len(batch) and len(batch["id"]) for batch in empty] == [0, 0, 0, 2, 2, 2, 2, 0]
    nothing = load(made_up(SIZES).filter(lambda sample: False), 4, **options)
    assert (list(nothing), nothing.step, nothing.epoch) == ([], 8, 1)


def test_an_empty_batch_goes_through_a_collate_function_if_it_may() -> None:
    data = made_up(SIZES).filter(beyond(10))
    sizes = list(load(data, 4, shuffle=False, epochs=1, collate_fn=len, allow_empty=True))
    assert sizes == [0, 0, 2, 4, 4, 4, 4, 1]
    assert list(load(data, 4, shuffle=False, epochs=1, collate_fn=len)) == [2, 4, 4, 4, 4, 1]


def test_collation_may_give_anything() -> None:
    assert list(load(made_up([4]), 2, shuffle=False, epochs=1, collate_fn=lambda samples: None)) == [None, None]
    plain = list(load(made_up([4]).map(lambda sample: sample["id"]), 2, shuffle=False, epochs=1))
    assert [batch.tolist() for batch in plain] == [[0, 1], [2, 3]]


# Random numbers


def test_random_numbers_depend_on_seed_epoch_and_sample_alone() -> None:
    def drawn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"id": sample["id"], "drawn": int(rng.integers(2**60)), "more": rng.random(3)}

    def all_of(loaders: list[hr.DataLoader]) -> dict[tuple[int, int], tuple[int, list[float]]]:
        found = {}
        for loader in loaders:
            for batch in (batch for _ in range(2) for batch in loader):
                for number, value, more in zip(batch["id"].tolist(), batch["drawn"], batch["more"], strict=True):
                    found[batch.epoch, number] = int(value), more.tolist()
        return found

    def data() -> Any:
        return made_up(SIZES).map(drawn)

    wanted = all_of([load(data(), 6, seed=2, epochs=2)])
    assert len(wanted) == 58
    assert len({value for value, _ in wanted.values()}) == 58, "samples and epochs differ"
    assert all_of([load(data(), 6, seed=2, epochs=2, num_workers=3)]) == wanted
    assert all_of([load(data(), 6, seed=2, epochs=2, rank=rank, world_size=3) for rank in range(3)]) == wanted
    assert all_of([load(data(), 1, seed=2, epochs=2, shuffle=False)]) == wanted
    other = all_of([load(data(), 6, seed=2**32 - 1, epochs=2)])
    assert other != wanted
    half = load(data(), 6, seed=2, epochs=2)
    given_by_id = {}
    for batch in half:
        given_by_id |= {
            (0, number): value for number, value in zip(batch["id"].tolist(), batch["drawn"].tolist(), strict=True)
        }
        if batch.step == 2:
            break
    again = load(data(), 6, epochs=2)
    again.load_state_dict(half.state_dict())
    rest = all_of([again])
    assert {key: value for key, (value, _) in rest.items()} | given_by_id == {
        key: value for key, (value, _) in wanted.items()
    }


# Threads, processes, the end


def test_half_used_iterators_leave_no_threads() -> None:
    """B136, B137."""

    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("headrace")]

    data = made_up([10] * 20)
    loader = load(data, 4, num_workers=2, lanes=4, window=2)
    most = 0
    for _ in range(300):
        next(iter(loader))
        most = max(most, len(threads()))
    assert most <= 60, "a thread ends after the chunk that it is in, so there are some"
    for _ in range(30):
        next(iter(load(data, 4, num_workers=2, lanes=4, window=2)))
    del loader
    gc.collect()
    end = time.monotonic() + 30
    while threads() and time.monotonic() < end:
        time.sleep(0.02)
    assert threads() == []


def test_two_loaders_over_one_dataset_at_once() -> None:
    """B133."""
    data = made_up(SIZES)
    one, two = load(data, 3, num_workers=1), load(data, 3, num_workers=1)
    for left, right in zip(one, two, strict=True):
        assert left["id"].tolist() == right["id"].tolist()


def test_a_second_thread_in_next_gets_an_error() -> None:
    inside, go = threading.Event(), threading.Event()

    def wait(sample: dict[str, Any]) -> dict[str, Any]:
        inside.set()
        assert go.wait(30)
        return sample

    loader = load(made_up(SIZES).map(wait), 4, num_workers=1, epochs=1)
    iterator = iter(loader)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(next(iterator)))
    thread.start()
    assert inside.wait(30)
    with pytest.raises(RuntimeError, match="another thread"):
        next(iterator)
    go.set()
    thread.join(30)
    assert [found[0].step, *[batch.step for batch in iterator]] == list(range(8))


DATA = """
import json, os, signal, sys, threading, time
import headrace as hr
from sample_sources import made_up

data = made_up([10] * 20)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_acts_at_once_and_the_iterator_goes_on(workers: int) -> None:
    """B142."""
    program = (
        DATA
        + """
block = threading.Event()
def slow(sample):
    if sample["id"] == 21 and not block.is_set():
        print("waiting", flush=True)
        block.wait(60)
    return sample

loader = hr.DataLoader(data.map(slow), 10, shuffle=False, num_workers=int(sys.argv[1]), epochs=1)
iterator = iter(loader)
found = [next(iterator)["id"].tolist() for _ in range(2)]
try:
    next(iterator)
except KeyboardInterrupt:
    took = time.time()
block.set()
found += [batch["id"].tolist() for batch in iterator]
print(json.dumps([took, found == [list(range(n, n + 10)) for n in range(0, 200, 10)]]))
"""
    )
    process = start_python(program, workers)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.3)  # until next() waits
    sent = time.time()
    process.send_signal(signal.SIGINT)
    took, right = json.loads(finish(process).splitlines()[-1])
    assert right
    assert took - sent < 1


def test_a_forked_child_is_refused_with_advice_and_makes_its_own() -> None:
    """B139, B140."""
    program = (
        DATA
        + """
loader = hr.DataLoader(data, 10, num_workers=2, epochs=1)
iterator = iter(loader)
first = next(iterator)["id"].tolist()
read, write = os.pipe()
if os.fork() == 0:
    told = []
    for _ in range(2):
        try:
            next(iterator)
        except RuntimeError as error:
            told.append(str(error))
    own = hr.DataLoader(data, 10, num_workers=2, epochs=1)
    told += [next(iter(own))["id"].tolist() == first, loader.step]
    os.write(write, json.dumps(told).encode())
    os._exit(0)
os.close(write)
told = json.loads(os.fdopen(read).read())
assert os.wait()[1] == 0
print(json.dumps([told, len(list(iterator))]))
"""
    )
    told, left = json.loads(run_python(program, PYTHONWARNINGS="ignore"))
    assert "in the process that uses it" in told[0]
    assert told[1] == told[0]
    assert told[2:] == [True, 1]
    assert left == 19


@pytest.mark.parametrize("ending", ["", "del loader", "sys.exit(0)", "iterator = None", "loader.seek(0)"])
def test_a_script_ends_with_a_live_iterator(ending: str) -> None:
    """B131, B134."""
    program = (
        DATA
        + f"""
loader = hr.DataLoader(data, 4, num_workers=2, lanes=4, window=2)
iterator = iter(loader)
next(iterator)
print(time.time(), flush=True)
{ending}
"""
    )
    process = start_python(program)
    output = finish(process, timeout=60)
    assert len(output.splitlines()) == 1


def test_an_error_in_the_loop_is_the_error_that_is_seen() -> None:
    program = (
        DATA
        + """
for batch in hr.DataLoader(data, 4, num_workers=2):
    raise LookupError("mine")
"""
    )
    process = start_python(program)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.splitlines()[-1] == "LookupError: mine"
    assert errors.count("Traceback") == 1


def test_jsonl_files_go_all_the_way(tmp_path: Path) -> None:
    for number in range(3):
        lines = [json.dumps({"id": 10 * number + row, "text": "x" * row}) for row in range(10)]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    loader = load(hr.open(tmp_path), 4, epochs=2, num_workers=2)
    epochs = [ids_of(loader) for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(30))] * 2
    assert epochs[0] != epochs[1]
    again = load(hr.open(tmp_path), epochs=2)
    state = loader.state_dict() | {"step": 3, "position": 12, "history": [[0, 0, 4]]}
    again.load_state_dict(state)
    assert ids_of(again) == epochs[0][12:]
    (tmp_path / "3.jsonl").write_text('{"id": 30, "text": ""}\n')
    with pytest.raises(hr.StateMismatch, match="chunks of source 0 is 4 here and 3"):
        load(hr.open(tmp_path)).load_state_dict(state)


# More of going on


def mixed() -> Any:
    """Samples of three sources: some twice, some left out, one source in an order of its own."""
    return hr.concat(
        [
            made_up((5, 0, 4)).where(hr.col("id") % 3 != 1).repeat(2),
            made_up((6, 6), start=100).split([0.5, 0.5], seed=1)[0],
            made_up((3, 3), start=200).subsample(1.5),
        ]
    )


@pytest.mark.parametrize("scattered", [False, True])
def test_a_resume_of_what_was_made_of_several_sources(scattered: bool) -> None:
    """B016."""

    def new() -> Any:
        return mixed().subset(np.arange(len(mixed()))[::-1]) if scattered else mixed()

    loader = load(new(), 4, epochs=3)
    assert loader.stats()["order"] == "lanes"
    unbroken = given_by(loader)
    every = sorted(ids(new()))
    for epoch in range(3):
        assert sorted(number for batch in unbroken if batch.epoch == epoch for number in batch.ids) == every
    for step in range(0, len(unbroken), 3):
        again = load(new(), epochs=3)
        again.load_state_dict(unbroken[step].state)
        assert given_by(again) == unbroken[step + 1 :]


def test_a_batch_larger_than_what_is_left_ends_the_epoch_where_batches_are_whole() -> None:
    loader = load(made_up(SIZES), 4, drop_last=True, epochs=3)
    iterator = iter(loader)
    for _ in range(6):
        next(iterator)
    loader.set_global_batch_size(12)
    assert list(iterator) == []
    assert (loader.step, loader.epoch, loader.position, len(loader)) == (6, 1, 29, 2)
    state = loader.state_dict()
    again = load(made_up(SIZES), drop_last=True, epochs=3)
    again.load_state_dict(state)
    assert again.state_dict() == state
    rest = given_by(loader)
    assert [(batch.step, batch.epoch, len(batch.ids)) for batch in rest] == [
        (6, 1, 12),
        (7, 1, 12),
        (8, 2, 12),
        (9, 2, 12),
    ]
    assert given_by(again) == rest


def test_ranks_stay_apart_after_skips() -> None:
    """B026."""
    loaders = [load(made_up(SIZES), 4, rank=rank, world_size=2, epochs=1) for rank in range(2)]
    for loader in loaders:
        loader.skip(range(1))
    found = merged([given_by(loader) for loader in loaders])
    assert [row for *_, pairs in found for row, _ in pairs] == list(range(4, 29))
    assert len({number for *_, pairs in found for _, number in pairs}) == 25


def test_ranks_may_be_known_later_than_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """B035."""
    loader = load(made_up(SIZES), 4, shuffle=False)
    assert (loader.rank, loader.world_size, loader.batch_size) == (0, 1, 4)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert (loader.rank, loader.world_size, loader.batch_size) == (1, 2, 2)
    iterator = iter(loader)
    assert [next(iterator)["id"].tolist() for _ in range(2)] == [[2, 3], [6, 7]]
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(RuntimeError, match="latest"):
        list(iterator)
    assert next(iter(loader))["id"].tolist() == [8, 9]
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="multiple of world_size=3, got 4"):
        next(iter(loader))


@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**63, 2**64 - 1])
def test_seeds_of_64_bits_reach_orders_and_functions(seed: int) -> None:
    """B044."""

    def drawn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return sample | {"drawn": int(rng.integers(2**60))}

    loader = load(made_up(SIZES).map(drawn), 29, seed=seed)
    first, second = next(iter(loader)), next(iter(loader))
    again = load(made_up(SIZES).map(drawn), 29, seed=seed)
    assert next(iter(again))["drawn"].tolist() == first["drawn"].tolist()
    assert not set(first["drawn"].tolist()) & set(second["drawn"].tolist())
    below = load(made_up(SIZES).map(drawn), 29, seed=(seed - 1) % 2**64)
    assert next(iter(below))["drawn"].tolist() != first["drawn"].tolist()


def test_a_position_that_ranks_cannot_share_is_refused_when_it_is_loaded() -> None:
    loader = load(made_up([9]), 4)
    given_by(loader, 2)
    state = loader.state_dict()
    wide = load(made_up([9]), 4, rank=0, world_size=2)
    with pytest.raises(ValueError, match=r"1 samples cannot be shared out among 2 ranks(.|\n)*allow_empty=True"):
        wide.load_state_dict(state)
    assert wide.step == 0
    for options, left in (({"allow_empty": True}, 1), ({"drop_last": True}, 2)):
        again = load(made_up([9]), rank=1, world_size=2, **options)
        again.load_state_dict(state)
        assert len(iter(again)) == left
        assert len(list(again)) == left


def test_steps_that_other_ranks_made_are_not_guessed() -> None:
    """One rank makes three steps of nine samples, two ranks make two."""
    loader = load(made_up([9]), 4, shuffle=False)
    given_by(loader, 7)
    wide = load(made_up([9]), 4, rank=0, world_size=2)
    wide.load_state_dict(loader.state_dict())
    assert (wide.step, wide.epoch, len(wide)) == (7, 2, 2)
    assert [place.row for rank in range(2) for place in wide.sources(7, rank)] == [4, 5, 6, 7, 8]
    wide.seek(6)
    assert next(iter(wide))["id"].tolist() == [0, 1]
    for go in (wide.sources, wide.seek):
        with pytest.raises(ValueError, match=r"step 5 is not known(.|\n)*before step 6(.|\n)*load a state"):
            go(5)
    assert wide.step == 7
    # Where all ranks make the same steps, all are known.
    even = load(made_up([9]), 3)
    given_by(even, 7)
    other = load(made_up([9]), 3, rank=0, world_size=3)
    other.load_state_dict(even.state_dict())
    assert other.sources(1, 2) == even.sources(1)[2:]
    other.seek(0)
    assert next(iter(other)).step == 0


def test_worker_processes_give_the_same_batches() -> None:
    def new(**options: Any) -> hr.DataLoader:
        data = made_up(SIZES).map(drawn)
        return load(data, 4, epochs=2, on_error="skip", **{"seed": 3, "lanes": 4, "window": 2, **options})

    def all_of(loader: hr.DataLoader, epochs: int = 2) -> tuple[list[Any], set[int]]:
        found, pids = [], set()
        for batch in (batch for _ in range(epochs) for batch in loader):
            pids |= set(batch["pid"].tolist())
            found.append(
                (batch.step, batch["id"].tolist(), batch["drawn"].tolist(), batch.positions.tolist(), batch.state)
            )
        return found, pids

    threads, own = all_of(new(num_workers=2))
    assert own == {os.getpid()}
    loader = new(num_workers=2, worker_type="process")
    found, pids = all_of(loader)
    assert found == threads
    assert os.getpid() not in pids
    assert loader.stats()["worker_type"] == "process"
    assert [skip[0] for skip in loader.stats()["skipped"]] == [13, 13]
    # Another seed, from a state: the processes are made anew.
    other = new(seed=8)
    next(iter(other))
    loader = load(made_up(SIZES).map(drawn), 4, epochs=2, on_error="skip", num_workers=1, worker_type="process")
    next(iter(loader))
    loader.load_state_dict(other.state_dict())
    assert all_of(loader)[0] == all_of(other)[0]
    with pytest.raises(LookupError, match="no 13") as caught:
        for _ in load(made_up(SIZES).map(drawn), 4, num_workers=1, worker_type="process"):
            pass
    assert "sample 13 (file-4, chunk 4, row 0)" in "\n".join(caught.value.__notes__)

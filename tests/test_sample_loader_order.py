"""The order of samples: that of docs/order.md, each once an epoch, in the same global batches on any ranks."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from reference import Reference, default_item_window, permuted
from sample_loading import ORDERS, SIZES, WORLDS, every_rank, given_by, ids_of, load, merged
from sample_sources import made_up, source_of

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


# Ranks that are known later


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

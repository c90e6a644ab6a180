"""The global stream of rows is the same for any number of ranks and threads, any memory, any batch sizes."""

import re
from collections.abc import Callable
from itertools import chain
from typing import Any

import pyarrow.parquet as pq
import pytest

import headrace as hr
from datasets import (
    Corpus,
    CorpusWriter,
    Record,
    batches,
    drain,
    equal_documents,
    least_memory,
    merged,
    reference_of,
    seeded,
    stream,
    take,
)
from reference import Reference

WORLDS = (1, 2, 3, 4, 6, 12)
PACKING: dict[str, Any] = {"seq_len": 7, "overlap": 1, "eos_id": -1}


@pytest.fixture(scope="module")
def corpus(write: CorpusWriter) -> Corpus:
    return write(seeded(11, files=4, groups=5, documents=12, longest=20))


def global_batches(
    corpus: Corpus, world: int, prepare: Callable[[hr.DataLoader], None] = lambda loader: None, **arguments: Any
) -> list[Record]:
    """All global batches of a run, put together from its ranks."""
    ranks = []
    for rank in range(world):
        loader = hr.DataLoader(corpus.open(**PACKING), **arguments, rank=rank, world_size=world)
        prepare(loader)
        ranks.append(drain(loader))
    return merged(ranks)


ORDERS: dict[str, dict[str, Any]] = {
    "own lanes": {"lanes": 12, "global_batch_size": 12, "window": 3},
    "own lanes, many rows": {"lanes": 12, "global_batch_size": 36, "window": 20},
    "lanes that no world but 1 divides": {"lanes": 7, "global_batch_size": 12, "window": 4},
    "more lanes than rows": {"lanes": 24, "global_batch_size": 12, "window": 6},
    "neither divides the other": {"lanes": 8, "global_batch_size": 12, "window": 5},
    "one lane": {"lanes": 1, "global_batch_size": 12, "window": 2},
    "sequential": {"shuffle": False, "global_batch_size": 12, "window": 2},
    "defaults": {"global_batch_size": 24},
}


@pytest.mark.parametrize("remainder", ["drop", "pad"])
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_the_stream_is_the_same_for_any_number_of_ranks(corpus: Corpus, order: dict[str, Any], remainder: str) -> None:
    arguments = {**order, "seed": 5, "epochs": 2, "remainder": remainder, "num_workers": 1}
    alone = global_batches(corpus, 1, **arguments)
    assert len(alone) > 10
    for world in WORLDS[1:]:
        assert global_batches(corpus, world, **arguments) == alone, world


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_rank_has_its_lanes_or_its_part_of_the_batch(corpus: Corpus, order: dict[str, Any]) -> None:
    for world in (2, 3, 12):
        for rank in (0, world - 1):
            loader = hr.DataLoader(corpus.open(**PACKING), **order, epochs=1, rank=rank, world_size=world)
            lanes, batch = loader.stats()["lanes"], loader.global_batch_size
            reference = reference_of(
                corpus,
                PACKING,
                {"seed": 0, "lanes": lanes, "window": 1, "global_batch_size": batch, "shuffle": lanes > 1},
            )
            for given in batches(loader):
                first = given.step * batch
                rows = reference.rank_rows(range(first, first + batch), world, rank)
                assert given.rows.tolist() == rows
                if batch % lanes == 0 and lanes % world == 0:
                    own = range(rank * lanes // world, (rank + 1) * lanes // world)
                    assert {row % lanes for row in rows} <= set(own)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("workers", [1, 8])
def test_the_stream_is_the_same_for_any_memory_and_threads(corpus: Corpus, order: dict[str, Any], workers: int) -> None:
    arguments = {**order, "seed": 6, "epochs": 2}
    alone = global_batches(corpus, 1, **arguments, num_workers=1, memory="2GiB")
    least = least_memory(corpus.open(**PACKING), **arguments, num_workers=workers)
    spilled: dict[int, int] = {}
    for memory in (least, least + 4096, 2**28):
        loader = hr.DataLoader(corpus.open(**PACKING), **arguments, num_workers=workers, memory=memory)
        assert drain(loader) == alone
        stats = loader.stats()
        spilled[memory] = stats["windows_spilled"]
        assert stats["window_bytes"] <= memory - least, "windows in memory stay within the budget"
        if memory == least:
            assert stats["windows_spilled"] == stats["windows"] > 1
    assert spilled[2**28] == 0


def test_a_budget_that_is_too_small_says_what_is_needed(corpus: Corpus) -> None:
    arguments = {"global_batch_size": 12, "lanes": 12, "num_workers": 1}
    least = least_memory(corpus.open(**PACKING), **arguments)
    with pytest.raises(hr.BudgetError, match=rf"memory={least - 1} bytes is too small: .* needs {least} bytes"):
        next(iter(hr.DataLoader(corpus.open(**PACKING), **arguments, memory=least - 1)))


@pytest.mark.parametrize("prefetch", [1, 7])
def test_the_stream_is_the_same_however_far_it_is_read_ahead(corpus: Corpus, prefetch: int) -> None:
    arguments = {"global_batch_size": 6, "lanes": 3, "epochs": 2}
    assert global_batches(corpus, 2, **arguments, prefetch_factor=prefetch) == global_batches(corpus, 1, **arguments)


# Batch sizes


ROWS = {"seed": 7, "lanes": 12, "window": 3, "epochs": 3}


def rows_of(corpus: Corpus, world: int = 1, **arguments: Any) -> dict[int, list[int]]:
    return stream(global_batches(corpus, world, **ROWS, **arguments))


@pytest.fixture(scope="module")
def every_row(corpus: Corpus) -> dict[int, list[int]]:
    """Each row of the run, given one by one."""
    return rows_of(corpus, global_batch_size=1)


def is_beginning(rows: dict[int, list[int]], of: dict[int, list[int]]) -> bool:
    return list(rows.items()) == list(of.items())[: len(rows)]


@pytest.mark.parametrize("batch", [1, 2, 5, 7, 11, 12, 13, 24, 30])
def test_rows_do_not_depend_on_the_batch_size(corpus: Corpus, every_row: dict[int, list[int]], batch: int) -> None:
    rows = rows_of(corpus, global_batch_size=batch)
    assert len(rows) == len(every_row) // batch * batch
    assert is_beginning(rows, every_row)


@pytest.mark.parametrize("world", [1, 2, 3, 6])
def test_rows_do_not_depend_on_a_schedule(corpus: Corpus, every_row: dict[int, list[int]], world: int) -> None:
    schedule = {0: 12, 2: 6, 3: 18, 9: 24, 14: 12}
    ranks = global_batches(corpus, world, **ROWS, global_batch_size=schedule)
    for step, one in enumerate(ranks):
        assert len(one.rows) == schedule[max(start for start in schedule if start <= step)]
    assert len(ranks) > max(schedule) + 3
    assert is_beginning(stream(ranks), every_row)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_rows_do_not_depend_on_changes_of_the_batch_size(
    corpus: Corpus, every_row: dict[int, list[int]], world: int
) -> None:
    """`set_global_batch_size` in the midst of an iteration holds from the next step on, also with batches prepared."""
    sizes = [12, 6, 6, 30, 18, 12, 24]
    ranks = []
    for rank in range(world):
        loader = hr.DataLoader(
            corpus.open(**PACKING), **ROWS, global_batch_size=12, rank=rank, world_size=world, prefetch_factor=4
        )
        parts = []
        for step, size in enumerate(sizes):
            loader.set_global_batch_size(size)
            assert (loader.global_batch_size, loader.batch_size) == (size, size // world)
            [part] = take(loader, 1)
            assert (part.step, len(part.rows)) == (step, size // world)
            parts.append(part)
        assert loader.position == sum(sizes)
        iterator = iter(loader)
        next(iterator)
        loader.set_global_batch_size(6)
        assert len(next(iterator).rows) == 6 // world, "an iterator goes on over a change"
        ranks.append(parts)
    assert is_beginning(stream(merged(ranks)), every_row)


def test_a_change_of_the_batch_size_ends_a_schedule(corpus: Corpus) -> None:
    loader = hr.DataLoader(corpus.open(**PACKING), **ROWS, global_batch_size={0: 6, 2: 12, 4: 24})
    take(loader, 1)
    loader.set_global_batch_size(3)
    assert [len(one.rows) for one in take(loader, 6)] == [3] * 6


@pytest.mark.parametrize("wrong, message", [(10, r"multiple of world_size=3, got 10.*9 or 12"), (0, "at least 1")])
def test_a_wrong_batch_size_is_refused_and_changes_nothing(corpus: Corpus, wrong: int, message: str) -> None:
    loader = hr.DataLoader(corpus.open(**PACKING), **ROWS, global_batch_size=12, rank=0, world_size=3)
    before = loader.state_dict()
    with pytest.raises(ValueError, match=re.compile(message, re.DOTALL)):
        loader.set_global_batch_size(wrong)
    with pytest.raises(ValueError, match="too little data"):
        loader.set_global_batch_size(3 * 10**6)
    assert loader.state_dict() == before
    assert len(take(loader, 1)[0].rows) == 4


def test_batch_size_is_that_of_a_rank(corpus: Corpus) -> None:
    loader = hr.DataLoader(corpus.open(**PACKING), 4, rank=1, world_size=3)
    assert (loader.global_batch_size, loader.batch_size, loader.rank, loader.world_size) == (12, 4, 1, 3)
    assert loader.stats()["lanes"] == hr.DataLoader(corpus.open(**PACKING), global_batch_size=12).stats()["lanes"]


# Bytes read (DESIGN 4): counted, not timed


def column_bytes(corpus: Corpus) -> list[int]:
    """Stored bytes of the token column of each chunk, as pyarrow sees them."""
    sizes = []
    for name in sorted(corpus.files):
        footer = pq.read_metadata(corpus.folder / name)
        sizes += [footer.row_group(group).column(0).total_compressed_size for group in range(footer.num_row_groups)]
    return sizes


def bytes_read(corpus: Corpus, world: int, **arguments: Any) -> tuple[int, int, int]:
    """Summed over the ranks of a run: bytes of chunks that were asked for, bytes that were read, windows."""
    sums = [0, 0, 0]
    corpus.open(**PACKING)  # So that what follows finds the index in the cache, and reads no footers.
    for rank in range(world):
        # Opened anew, since traffic is counted for each opened dataset.
        loader = hr.DataLoader(corpus.open(**PACKING), **arguments, rank=rank, world_size=world)
        drain(loader)
        stats = loader.stats()
        sums = [total + stats[key] for total, key in zip(sums, ("chunk_bytes", "bytes_read", "windows"), strict=True)]
    return sums[0], sums[1], sums[2]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("window", [1, 4, 12, 24])
def test_bytes_read_of_equal_chunks_stay_within_the_bound(write: CorpusWriter, world: int, window: int) -> None:
    """1 + (R - 1)/W times the data, where windows are full."""
    corpus = write(equal_documents(files=4, groups=6, documents=8, length=6), compression="none", use_dictionary=False)
    sizes = column_bytes(corpus)
    epochs = 2
    planned, read, windows = bytes_read(corpus, world, lanes=12, global_batch_size=12, window=window, epochs=epochs)
    assert windows == world * epochs * 24 // window
    bound = epochs * sum(sizes) * (1 + (world - 1) / window)
    # Statistics, and the digits of offsets, make chunks of equal documents differ by some bytes.
    assert max(sizes) - min(sizes) <= 0.02 * max(sizes)
    assert epochs * sum(sizes) <= planned <= bound * 1.02
    assert read <= planned
    if world == 1:
        assert planned == epochs * sum(sizes), "alone, each chunk is read once a pass"


def most_bytes(corpus: Corpus, reference: Reference, world: int, epochs: int) -> int:
    """The bound of a run: each window, and for each of the R - 1 cuts between ranks the chunk that it cuts.

    That is the window and its R - 1 largest chunks, as DESIGN 4 has it, where no chunk is more than a rank's share of
    the window. A larger one may be cut more than once.
    """
    sizes = column_bytes(corpus)
    weights = [sum(len(document) + 1 for document in chunk if document) for chunk in corpus.chunks]
    bound = 0
    for epoch in range(epochs):
        for window, chunks in enumerate(reference.pass_windows(epoch)):
            slices = [len(units) for units in reference.slices(epoch, window)]
            own = len(slices) // world
            least = max(1, min(sum(slices[rank * own : (rank + 1) * own]) for rank in range(world)))
            cuts = [sizes[chunk] for chunk in chunks for _ in range(1 + weights[chunk] // least)]
            bound += sum(sizes[chunk] for chunk in chunks) + sum(sorted(cuts, reverse=True)[: world - 1])
    return bound


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("order", ["own lanes", "own lanes, many rows"])
def test_bytes_read_stay_within_the_bound(corpus: Corpus, world: int, order: str) -> None:
    arguments = ORDERS[order] | {"seed": 8, "epochs": 3}
    planned, read, _ = bytes_read(corpus, world, **arguments)
    assert 0 < planned <= most_bytes(corpus, reference_of(corpus, PACKING, arguments), world, 3)
    assert 0 < read <= planned


def test_a_rank_reads_its_lanes_only(write: CorpusWriter) -> None:
    """Not the whole of each window: a window of 12 chunks has one for each of 12 ranks, and parts of two more."""
    corpus = write(equal_documents(files=4, groups=6, documents=8, length=6), compression="none", use_dictionary=False)
    loader = hr.DataLoader(
        corpus.open(**PACKING), lanes=12, global_batch_size=12, window=12, epochs=1, rank=5, world_size=12
    )
    drain(loader)
    assert loader.stats()["chunk_bytes"] <= 2 * 3 * max(column_bytes(corpus))


# CASES elastic and ranks. B023 and B029, of mixtures, are in test_cases.py
# (their neighbours for one source are below).


def ids(write: CorpusWriter, rows: int, files: int = 1) -> Corpus:
    """Documents of one token, so that a row of `seq_len=1` is a document; token n in row n of the sequential order."""
    assert rows % files == 0
    return write(equal_documents(files=files, groups=1, documents=rows // files, length=1))


def share(corpus: Corpus, world: int, **arguments: Any) -> list[list[int]]:
    """The tokens that each rank gets in one pass."""
    tokens = []
    for rank in range(world):
        loader = hr.DataLoader(corpus.open(seq_len=1), **arguments, epochs=1, rank=rank, world_size=world)
        tokens.append([token for one in drain(loader) for row in one.rows.values() for token in row])
    return tokens


def test_fewer_ranks_go_on_with_all_positions(corpus: Corpus) -> None:
    """B020: saved at 2 ranks, loaded at 1: the other rank's rows were lost."""
    arguments = {"seed": 3, "lanes": 12, "window": 4, "epochs": 2}
    unbroken = global_batches(corpus, 1, **arguments, global_batch_size=12)
    halves = [
        hr.DataLoader(corpus.open(**PACKING), **arguments, global_batch_size=12, rank=rank, world_size=2)
        for rank in range(2)
    ]
    head = merged([take(loader, 5) for loader in halves])
    states = [loader.state_dict() for loader in halves]
    assert states[0] == states[1]
    rest = global_batches(corpus, 1, lambda loader: loader.load_state_dict(states[1]), epochs=2)
    assert head + rest == unbroken


def test_more_ranks_than_rows_get_a_plain_message(write: CorpusWriter) -> None:
    """B022, B037: 24 samples on 64 ranks failed to reshape; two samples on 64 nodes became 33 batches."""
    for rows in (2, 24):
        dataset = ids(write, rows).open(seq_len=1)
        with pytest.raises(ValueError, match=rf"too little data: a pass holds {rows} tokens.* a global batch needs 64"):
            hr.DataLoader(dataset, batch_size=1, rank=0, world_size=64)
        with pytest.raises(ValueError, match=rf"multiple of world_size=64, got {rows}\nhint: 64 would do"):
            hr.DataLoader(dataset, global_batch_size=rows, rank=0, world_size=64)


def test_two_samples_are_two_batches(write: CorpusWriter) -> None:
    """B037."""
    corpus = ids(write, 2)
    loader = hr.DataLoader(corpus.open(seq_len=1), 1, epochs=1)
    assert len(loader) == 2
    assert [len(one.rows) for one in drain(loader)] == [1, 1]


@pytest.mark.parametrize("shuffle", [True, False])
def test_rows_one_by_one_feed_every_rank(write: CorpusWriter, shuffle: bool) -> None:
    """B025, B028, B031: one shard, or fewer than ranks and workers, starved ranks or hung."""
    parts = share(ids(write, 32), 4, global_batch_size=4, shuffle=shuffle, num_workers=2)
    assert [len(part) for part in parts] == [8] * 4
    assert sorted(chain.from_iterable(parts)) == list(range(32))
    parts = share(ids(write, 32), 2, global_batch_size=4, shuffle=shuffle, num_workers=2)
    assert sorted(chain.from_iterable(parts)) == list(range(32))


def test_skipping_keeps_ranks_disjoint(write: CorpusWriter) -> None:
    """B026: skip after the split undid the split."""
    corpus = ids(write, 32, files=4)
    ranks = []
    for rank in range(2):
        loader = hr.DataLoader(corpus.open(seq_len=1), global_batch_size=4, epochs=1, rank=rank, world_size=2)
        loader.skip(range(1))
        ranks.append(drain(loader))
    whole = merged(ranks)
    assert [one.step for one in whole] == list(range(1, 8))
    everything = merged([drain(hr.DataLoader(corpus.open(seq_len=1), global_batch_size=4, epochs=1))])
    assert whole == everything[1:]


def test_shuffling_feeds_every_worker_and_workers_change_nothing(write: CorpusWriter) -> None:
    """B028: 12 files, 4 workers; B029's neighbour: workers 0 and 2 drop the same rows."""
    corpus = ids(write, 48, files=12)
    runs = [share(corpus, 1, global_batch_size=10, shuffle=True, num_workers=workers) for workers in (0, 1, 2, 4, 16)]
    assert all(run == runs[0] for run in runs)
    assert len(runs[0][0]) == 40
    assert len(set(runs[0][0])) == 40


def test_steps_do_not_depend_on_workers(write: CorpusWriter) -> None:
    """B032: 4000 rows in batches of 20 are 200 steps with 0 workers and with 16."""
    dataset = ids(write, 4000).open(seq_len=1)
    for workers in (0, 16):
        loader = hr.DataLoader(dataset, 20, num_workers=workers, epochs=1)
        assert len(loader) == 200 == sum(1 for _ in loader)


def test_no_row_is_repeated_to_fill_ranks(write: CorpusWriter) -> None:
    """B034: 8 rows on 4 ranks came back duplicated."""
    parts = share(ids(write, 8), 4, global_batch_size=4, shuffle=False)
    assert sorted(chain.from_iterable(parts)) == list(range(8))
    # A neighbour: where the rows do not go up in batches, the rest is dropped, or padded and masked.
    loader = hr.DataLoader(ids(write, 9).open(seq_len=1), 4, shuffle=False, epochs=1, remainder="pad")
    last = list(loader)[-1]
    assert last["loss_mask"].ravel().tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("rows", [31, 32, 33])
def test_all_epochs_finish_where_ranks_do_not_divide_the_rows(write: CorpusWriter, rows: int) -> None:
    """B038: a hang when the second epoch began."""
    corpus = ids(write, rows)
    ranks = []
    for rank in range(4):
        loader = hr.DataLoader(
            corpus.open(seq_len=1), global_batch_size=8, epochs=3, num_workers=2, rank=rank, world_size=4
        )
        ranks.append([record for epoch in range(3) for record in take(loader, len(loader)) if record.epoch == epoch])
        assert loader.step == loader.stats()["steps"] == 3 * rows // 8
    given = [token for one in merged(ranks) for row in one.rows.values() for token in row]
    assert len(given) == 3 * rows // 8 * 8
    assert max(given.count(token) for token in set(given)) <= 3

"""The loader gives the order of docs/order.md, row for row: compared with the reference model and with golden files."""

import json
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import headrace as hr
from datasets import (
    Corpus,
    CorpusWriter,
    Files,
    Record,
    arithmetic_files,
    batches,
    document_files,
    drain,
    equal_documents,
    least_memory,
    merged,
    numbered,
    record,
    reference_of,
    seeded,
    stream,
    take,
)
from golden import make_order
from reference import Reference

# Token ids that packing adds: no document has them.
BOS, EOS, PAD = -5, -7, -9


@dataclass(frozen=True)
class Case:
    """A finite run over small data, shared out to ranks."""

    files: Files
    packing: dict[str, Any]
    order: dict[str, Any]
    world: int
    engine: dict[str, Any]
    """What must not change a row."""
    tight: bool
    """Whether the memory budget has no room for a window."""

    def loader(self, corpus: Corpus, rank: int) -> hr.DataLoader:
        order = self.order | {"lanes": self.order["lanes"] if self.order["shuffle"] else None}
        arguments = {**order, **self.engine, "rank": rank, "world_size": self.world}
        dataset = corpus.open(**self.packing)
        memory = {"memory": least_memory(dataset, **arguments)} if self.tight else {}
        return hr.DataLoader(dataset, **arguments | memory)


@st.composite
def cases(draw: st.DrawFn, **fixed: Any) -> Case:
    """Runs of every kind that have a batch."""
    files = draw(document_files())
    packing = {
        "seq_len": draw(st.integers(1, 9)),
        "bos_id": draw(st.sampled_from([None, BOS])),
        "eos_id": draw(st.sampled_from([None, EOS])),
        "pad_id": PAD,
        "boundaries": True,
    }
    packing["overlap"] = draw(st.integers(0, min(3, packing["seq_len"])))
    packing |= {name: value for name, value in fixed.items() if name in packing}
    added = sum(packing[name] is not None for name in ("bos_id", "eos_id"))
    documents = [document for groups in files.values() for group in groups for document in group if document]
    weight = sum(len(document) + added for document in documents)
    shuffle = draw(st.booleans())
    lanes = draw(st.sampled_from([1, 2, 3, 4, 6, 12])) if shuffle else 1
    rows = weight // (packing["seq_len"] * lanes) * lanes  # of a pass, at least
    batch = draw(st.sampled_from([1, 2, 3, 4, 5, 6, 12, 24]))
    order: dict[str, Any] = {
        "seed": draw(st.integers(0, 2**64 - 1)),
        "shuffle": shuffle,
        "lanes": lanes,
        "window": draw(st.integers(1, 8)),
        "global_batch_size": batch,
        "epochs": draw(st.integers(1, 3)),
        "remainder": draw(st.sampled_from(["drop", "pad"])),
    }
    order |= {name: value for name, value in fixed.items() if name in order}
    # An overlap may cost each lane its last row.
    assume(rows - (lanes if packing["overlap"] else 0) >= batch)
    engine = {"num_workers": draw(st.sampled_from([1, 2, 8])), "prefetch_factor": draw(st.integers(1, 3))}
    world = draw(st.sampled_from([world for world in (1, 2, 3, 4, 6, 12) if batch % world == 0]))
    return Case(files, packing, order, world, engine, draw(st.booleans()))


# The reference model


@settings(max_examples=150)
@given(case=cases())
def test_every_row_is_that_of_the_reference(case: Case, write: CorpusWriter) -> None:
    corpus = write(case.files)
    reference = reference_of(corpus, case.packing, case.order)
    wanted = list(reference.batches())
    for rank in range(case.world):
        loader = case.loader(corpus, rank)
        steps = iter(wanted)
        for batch in batches(loader):
            step = next(steps)
            rows = reference.rank_rows(step.rows, case.world, rank)
            assert (batch.step, batch.epoch, batch.rows.tolist()) == (step.step, step.epoch, rows)
            assert batch["tokens"].tolist() == [reference.row(row) for row in rows]
            assert batch["document_ids"].tolist() == [reference.document_ids(row) for row in rows]
            assert batch["position_ids"].tolist() == [reference.position_ids(row) for row in rows]
            bounds = reference.cu_seqlens(rows)
            assert batch["cu_seqlens"].tolist() == bounds
            assert batch["max_seqlen"] == max(after - before for before, after in pairwise(bounds))
            sources = [[tuple(span) for span in row] for row in batch.sources()]
            assert sources == [
                [(*corpus.places[span.chunk], *span[1:]) for span in reference.row_pieces(row)] for row in rows
            ]
            if case.order["remainder"] == "pad":
                width = case.packing["seq_len"] + case.packing["overlap"]
                filled = [len(reference.row_units(row)) for row in rows]
                assert batch["loss_mask"].tolist() == [[1] * n + [0] * (width - n) for n in filled]
            else:
                assert "loss_mask" not in batch
        assert next(steps, None) is None, "the loader ended early"
        assert loader.stats()["remainder_tokens"] == reference.remainder_tokens()


@given(case=cases())
def test_lengths_and_epochs_are_those_of_the_reference(case: Case, write: CorpusWriter) -> None:
    corpus = write(case.files)
    reference = reference_of(corpus, case.packing, case.order)
    loader = case.loader(corpus, case.world - 1)
    assert loader.stats()["steps"] == len(list(reference.batches()))
    for epoch in range(case.order["epochs"]):
        wanted = reference.len_of_epoch(epoch)
        if wanted == 0:  # an overlap, or rows that fill no batch, may leave the last epoch without a step
            continue
        assert (loader.epoch, len(loader)) == (epoch, wanted)
        iterator = iter(loader)
        for left in range(wanted, 0, -1):
            assert (len(iterator), loader.epoch) == (left, epoch)
            assert next(iterator).epoch == epoch
        assert len(iterator) == 0
        assert next(iterator, None) is None
    assert loader.epoch == case.order["epochs"]
    assert list(loader) == [], "a finite run has ended"


@given(case=cases(overlap=0, bos_id=None, eos_id=None))
def test_each_pass_holds_each_token_once(case: Case, write: CorpusWriter) -> None:
    """Over k passes each token comes k times, but for those that are reported as left out."""
    corpus = write(case.files)
    loaders = [case.loader(corpus, rank) for rank in range(case.world)]
    given_tokens: Counter[int] = Counter()
    for loader in loaders:
        for batch in batches(loader):
            mask = batch["loss_mask"] == 1 if "loss_mask" in batch else np.ones_like(batch["tokens"], bool)
            assert set(batch["tokens"][~mask].tolist()) <= {PAD}
            given_tokens.update(batch["tokens"][mask].tolist())
    passes = case.order["epochs"]
    missing = Counter(dict.fromkeys(corpus.tokens, passes))
    missing.subtract(given_tokens)
    assert min(missing.values()) >= 0, "a token was given too often"
    assert missing.total() == loaders[0].stats()["remainder_tokens"]
    if case.order["remainder"] == "pad":
        assert missing.total() == 0
    else:
        lanes, batch = case.order["lanes"], case.order["global_batch_size"]
        # Less than a row per lane, and less than a batch of rows that do not fill one.
        assert missing.total() < (lanes + batch) * case.packing["seq_len"]


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_schedule_of_batch_sizes_is_that_of_the_reference(write: CorpusWriter, overlap: int) -> None:
    corpus = write(seeded(3))
    packing = {"seq_len": 5, "overlap": overlap}
    order = {"seed": 9, "lanes": 4, "window": 3, "epochs": 3}
    schedule = {0: 4, 3: 6, 7: 1, 8: 12}
    loader = hr.DataLoader(corpus.open(**packing), **order, global_batch_size=schedule)
    reference = reference_of(corpus, packing, order | {"global_batch_size": 4, "batch_schedule": schedule})
    assert len(loader) == reference.len_of_epoch(0)
    wanted = [
        Record(step, epoch, {row: reference.row(row) for row in rows}) for step, epoch, rows in reference.batches()
    ]
    assert drain(loader) == wanted
    assert loader.stats()["remainder_tokens"] == reference.remainder_tokens()


# Golden files


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return json.loads(make_order.PATH.read_text(encoding="utf-8"))


def test_the_reference_gives_the_golden_order(golden: dict[str, Any]) -> None:
    """Byte for byte what `python tests/golden/make_order.py` writes."""
    assert make_order.PATH.read_text(encoding="utf-8") == make_order.text(make_order.golden())


def test_golden_orders_differ_by_seed_only_where_something_is_shuffled(golden: dict[str, Any]) -> None:
    digests = {name: run["sha256"] for name, run in golden["runs"].items()}
    assert len(digests) == 6
    assert len({digest for name, digest in digests.items() if name.startswith("lanes")}) == 3
    assert len({digest for name, digest in digests.items() if name.startswith("sequential")}) == 1


@pytest.mark.parametrize("name", make_order.ORDERS)
def test_the_loader_gives_the_golden_order(name: str, golden: dict[str, Any], write: CorpusWriter) -> None:
    run = golden["runs"][name]
    order = run["order"] | ({} if run["order"]["shuffle"] else {"lanes": None})
    loader = hr.DataLoader(write(arithmetic_files()).open(**golden["packing"]), **order, epochs=golden["epochs"])
    assert loader.state_dict()["order"] == golden["order_version"]
    given_batches = list(batches(loader))
    rows = [row for batch in given_batches for row in batch["tokens"].tolist()]
    spans = [row for batch in given_batches for row in batch.sources()]
    sources = [[[Path(span.file).name, *span[1:]] for span in row] for row in spans]
    first = len(run["first_rows"])
    assert rows[:first] == run["first_rows"]
    assert sources[:first] == run["first_sources"]
    assert len(rows) == run["rows"]
    assert make_order.digest(rows) == run["sha256"]
    steps = Counter(batch.epoch for batch in given_batches)
    assert [steps[epoch] for epoch in range(golden["epochs"])] == run["steps_of_epochs"]
    assert loader.stats()["remainder_tokens"] == run["remainder_tokens"]


# Defaults and refusals


def test_defaults_are_those_of_the_order(write: CorpusWriter) -> None:
    """N: the largest divisor of the batch that leaves each lane 8 documents of a window. W: all chunks, if small."""
    corpus = write(equal_documents(files=2, groups=3, documents=10, length=4))  # 60 documents: at most 7 lanes
    loader = hr.DataLoader(corpus.open(seq_len=4), global_batch_size={0: 6, 2: 12}, epochs=1)
    stats = loader.stats()
    assert (stats["lanes"], stats["window"]) == (6, 6)
    reference = reference_of(
        corpus, {"seq_len": 4}, {"seed": 0, "lanes": 6, "window": 6, "global_batch_size": 6, "epochs": 1}
    )
    assert stream(drain(loader)) == {row: reference.row(row) for row in range(60)}
    assert hr.DataLoader(corpus.open(seq_len=4), global_batch_size=7).stats()["lanes"] == 7
    assert hr.DataLoader(corpus.open(seq_len=4), global_batch_size=11).stats()["lanes"] == 1


@pytest.mark.parametrize("shuffle", [True, False])
def test_too_little_data_for_a_batch_is_refused(write: CorpusWriter, shuffle: bool) -> None:
    dataset = write(equal_documents(files=1, groups=1, documents=5, length=4)).open(seq_len=4)
    assert hr.DataLoader(dataset, global_batch_size=5, shuffle=shuffle).step == 0
    with pytest.raises(ValueError, match=r"too little data: a pass holds 20 tokens, which fill 5 rows .* needs 6"):
        hr.DataLoader(dataset, global_batch_size=6, shuffle=shuffle)
    with pytest.raises(ValueError, match="too little data"):
        hr.DataLoader(dataset, global_batch_size={0: 5, 10: 6}, shuffle=shuffle)


@pytest.mark.parametrize("files", [numbered([[[0, None, 0]]]), numbered([[]])], ids=["empty", "no row group"])
def test_data_without_a_token_is_refused(write: CorpusWriter, files: Files) -> None:
    with pytest.raises(ValueError, match="token"):
        hr.DataLoader(write(files).open(seq_len=4, eos_id=0), global_batch_size=1)


@pytest.mark.parametrize(
    "wrong, named",
    [
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 0.5}, "seed"),
        ({"seed": True}, "seed"),
        ({"lanes": 0}, "lanes"),
        ({"window": 0}, "window"),
        ({"lanes": 2, "shuffle": False}, "lanes"),
        ({"global_batch_size": 0}, "global_batch_size"),
        ({"global_batch_size": {}}, "global_batch_size"),
        ({"global_batch_size": {1: 4}}, "global_batch_size"),
        ({"global_batch_size": 4, "batch_size": 4}, "batch_size"),
        ({"global_batch_size": None, "batch_size": 0}, "batch_size"),
        ({"epochs": 0}, "epochs"),
        ({"remainder": "keep"}, "remainder"),
        ({"rank": 0}, "rank"),
        ({"world_size": 2}, "world_size"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"rank": -1, "world_size": 2}, "rank"),
        ({"rank": 0, "world_size": 0}, "world_size"),
        ({"memory": 0}, "memory"),
        ({"memory": "2 GiBs"}, "memory"),
        ({"num_workers": -1}, "num_workers"),
        ({"prefetch_factor": 0}, "prefetch_factor"),
        ({"timeout": -1}, "timeout"),
        ({"sampler": [1]}, "sampler"),
        ({"collate_fn": list}, "collate_fn"),
        ({"pin_memory": True}, "pin_memory"),
    ],
    ids=lambda value: str(value),
)
def test_wrong_arguments_are_refused_by_name(write: CorpusWriter, wrong: dict[str, Any], named: str) -> None:
    dataset = write(equal_documents(files=1, groups=2, documents=8, length=4)).open(seq_len=4)
    with pytest.raises((ValueError, TypeError), match=named):
        hr.DataLoader(dataset, **{"global_batch_size": 4} | wrong)


# Sources without iterating


@given(case=cases(), data=st.data())
def test_sources_are_known_without_having_iterated_there(case: Case, data: st.DataObject, write: CorpusWriter) -> None:
    corpus = write(case.files)
    loader = case.loader(corpus, 0)
    wanted = [batch.sources() for batch in batches(case.loader(corpus, 0))]
    step = data.draw(st.integers(0, len(wanted) - 1))
    assert loader.sources(step) == loader.sources(step, rank=0) == wanted[step]
    other = case.world - 1
    last = [batch.sources() for batch in batches(case.loader(corpus, other))]
    assert loader.sources(step, rank=other) == last[step]
    assert loader.step == 0, "asking does not move the loader"
    with pytest.raises(ValueError, match="step"):
        loader.sources(len(wanted))
    with pytest.raises(ValueError, match="rank"):
        loader.sources(step, rank=case.world)


# CASES shuffle


def documents_of(batch: hr.Batch) -> list[tuple[str, int, int]]:
    return [(part.file, part.row_group, part.row) for row in batch.sources() for part in row]


def sixty(write: CorpusWriter, **packing: Any) -> hr.PackedDataset:
    """12 files of 5 documents of 4 tokens, so that a row of 4 is a document in sequential order."""
    return write(equal_documents(files=12, groups=1, documents=5, length=4)).open(seq_len=4, **packing)


def test_epochs_differ_without_a_call_and_are_reproducible(write: CorpusWriter) -> None:
    """B040, B046: one order of shards for all epochs, unless the user's wrapper passed the epoch on."""
    dataset = sixty(write)

    def epochs(workers: int) -> list[list[list[int]]]:
        loader = hr.DataLoader(dataset, global_batch_size=6, lanes=6, window=2, epochs=4, num_workers=workers)
        by_epoch: list[list[list[int]]] = [[] for _ in range(4)]
        for one in drain(loader):
            by_epoch[one.epoch] += one.rows.values()
        return by_epoch

    first = epochs(2)
    assert [len(rows) for rows in first] == [60] * 4
    assert len({str(rows) for rows in first}) == 4
    assert epochs(1) == first


def test_the_first_rows_come_from_many_files(write: CorpusWriter) -> None:
    """B041: a buffer that is filled from one file shuffles that file only."""
    [batch] = [next(iter(hr.DataLoader(sixty(write), global_batch_size=10, lanes=10, window=12)))]
    assert len({file for file, _, _ in documents_of(batch)}) >= 6


def test_an_epoch_is_done_before_the_next_begins(write: CorpusWriter) -> None:
    """B043, B047: no document comes twice while another of the pass has not come; each comes once an epoch."""
    loader = hr.DataLoader(sixty(write), global_batch_size=10, lanes=10, window=3, epochs=2)
    for epoch in range(2):
        tokens = [token for batch in loader for row in record(batch).rows.values() for token in row]
        assert sorted(tokens) == list(range(240)), epoch


@pytest.mark.parametrize("seed", [0, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1])
def test_seeds_use_all_their_bits(write: CorpusWriter, seed: int) -> None:
    """B044: seed plus index left 32 bits. Seeds that differ in one bit only give other orders."""
    dataset = sixty(write)

    def first_epochs(seed: int) -> list[Record]:
        return drain(hr.DataLoader(dataset, global_batch_size=6, lanes=6, seed=seed, epochs=2))

    assert first_epochs(seed) == first_epochs(seed)
    assert first_epochs(seed) != first_epochs(seed ^ 1)
    assert first_epochs(seed) != first_epochs(seed ^ 2**32)
    assert first_epochs(seed) != first_epochs(seed ^ 2**63)


def test_one_seed_is_another_order_in_each_window_and_lane(write: CorpusWriter) -> None:
    """A neighbour of B040: random numbers that were keyed by less than epoch, window and lane would repeat."""
    corpus = write(equal_documents(files=4, groups=1, documents=40, length=1))
    reference = Reference(corpus.chunks, seed=0, lanes=4, window=1, seq_len=10, global_batch_size=4)
    loader = hr.DataLoader(corpus.open(seq_len=10), lanes=4, window=1, global_batch_size=4, seed=0, epochs=2)
    offsets = {tuple(token - min(row) for token in row) for row in stream(drain(loader)).values()}
    assert len(offsets) == 32, "each lane of each window of each epoch is shuffled its own way"
    assert reference.pass_windows(0) != reference.pass_windows(1)


def test_sequential_order_is_storage_order(write: CorpusWriter) -> None:
    corpus = write(seeded(1))
    loader = hr.DataLoader(corpus.open(seq_len=3), global_batch_size=2, shuffle=False, epochs=2, remainder="pad")
    tokens = [token for row in stream(drain(loader)).values() for token in row]
    assert tokens[: 2 * len(corpus.tokens)] == corpus.tokens * 2


# CASES len


def test_a_length_does_not_count_the_batch_that_is_dropped(write: CorpusWriter) -> None:
    """B148: 10 rows in batches of 4 are 2 batches."""
    dataset = write(equal_documents(files=1, groups=2, documents=5, length=4)).open(seq_len=4)
    loader = hr.DataLoader(dataset, 4, epochs=1)
    assert len(dataset) == 10
    assert len(loader) == len(list(loader)) == 2
    assert loader.stats()["remainder_tokens"] == 8
    padded = hr.DataLoader(dataset, 4, epochs=1, remainder="pad")
    assert len(padded) == len(list(padded)) == 3


def test_a_length_is_known_of_a_stream_without_reading_it(write: CorpusWriter) -> None:
    """B149: from footers, for runs with and without an end, and it is that of the current epoch."""
    corpus = write(seeded(2))
    lanes = 4
    loader = hr.DataLoader(corpus.open(seq_len=7), global_batch_size=4, lanes=lanes, window=2)
    reference = reference_of(corpus, {"seq_len": 7}, {"seed": 0, "lanes": 4, "window": 2, "global_batch_size": 4})
    for epoch in range(5):
        assert len(loader) == reference.len_of_epoch(epoch)
        assert len(list(loader)) == reference.len_of_epoch(epoch)
    total = sum(reference.len_of_epoch(epoch) for epoch in range(5))
    assert loader.step == total == len(take(hr.DataLoader(corpus.open(seq_len=7), 4, lanes=4, window=2), total))


def test_a_length_and_the_rows_are_the_same_for_all_ranks(write: CorpusWriter) -> None:
    """A neighbour of B148: ranks that count differently wait for each other at the end."""
    dataset = write(seeded(5)).open(seq_len=4)
    for batch, world in ((6, 3), (10, 5), (7, 7)):
        ranks = [
            hr.DataLoader(dataset, global_batch_size=batch, lanes=6, rank=rank, world_size=world, epochs=2)
            for rank in range(world)
        ]
        assert len({len(loader) for loader in ranks}) == 1
        assert len(merged([drain(loader) for loader in ranks])) == ranks[0].stats()["steps"]

"""`headrace.zip`: rows of several sources side by side, against loaders over each source alone."""

import itertools
import json
import math
import pickle
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.testing import check_resume
from sample_loading import load
from sample_sources import MadeUp, dataset_of, made_up, sample_of

SPREAD = 0x9E3779B97F4A7C15
"""By which the seeds of sources differ (docs/order.md)."""

CHUNKED, RANDOM, SINGLE = (5, 1, 7, 0, 4, 9, 3), (3, 3, 4), (1,)


def three() -> list[hr.SampleDataset]:
    """29 samples in chunks, 10 that are read at random, and one."""
    return [made_up(CHUNKED), made_up(RANDOM, random_access=True, start=100), made_up(SINGLE, start=900)]


def arrayed(samples: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return {"ids": np.array([sample["id"] for sample in samples])}


def drawing(samples: tuple[dict[str, Any], ...], rng: np.random.Generator) -> dict[str, Any]:
    return arrayed(samples) | {"drawn": rng.random(2)}


def ids_with_numbers(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"id": sample["id"], "drawn": rng.integers(2**60)}


def line(source: hr.SampleDataset, count: int, seed: int, **options: Any) -> list[dict[str, Any]]:
    """The first rows of a source, epoch after epoch, by a loader over it alone."""
    loader = load(source, 1, seed=seed % 2**64, collate_fn=lambda samples: samples, **options)
    found: list[dict[str, Any]] = []
    while len(found) < count:
        found += [sample for samples in loader for sample in samples]
    return found[:count]


def reference(sources: Sequence[hr.SampleDataset], count: int, seed: int, **options: Any) -> list[list[int]]:
    lines = [line(source, count, seed + number * SPREAD, **options) for number, source in enumerate(sources)]
    return [[sample["id"] for sample in row] for row in zip(*lines, strict=True)]


def rows_of(loader: hr.DataLoader, count: int) -> list[list[int]]:
    """The first rows that a loader gives, epoch after epoch."""
    found: list[list[int]] = []
    while len(found) < count:
        for batch in loader:
            assert batch.rows.tolist() == list(range(len(found), len(found) + len(batch.rows)))
            found += batch["ids"].tolist()
            if len(found) >= count:
                break
    return found[:count]


def zipped(length: Any = None, *, sources: Sequence[hr.SampleDataset] | None = None) -> hr.ZipDataset:
    return hr.zip(three() if sources is None else sources, arrayed, length=length)


# The order


@pytest.mark.parametrize("length", [None, 1, 4, 17, 29, 40, math.inf])
def test_row_g_is_row_g_of_every_source(length: Any) -> None:
    assert rows_of(load(zipped(length), 1, seed=5), 80) == reference(three(), 80, 5)


def test_lanes_and_windows_that_are_given_hold_in_each_source_that_has_them() -> None:
    sources = [made_up(CHUNKED), made_up((4, 4, 4), start=200)]
    found = rows_of(load(zipped(31, sources=sources), 8, seed=1, lanes=4, window=2), 90)
    assert found == reference(sources, 90, 1, lanes=4, window=2)
    loader = load(zipped(31), 4, lanes=2, window=2)
    assert loader.state_dict()["pipeline"]["dealt"] == [
        {"lanes": 2, "window": 2},
        {"lanes": 1, "window": 0},
        {"lanes": 2, "window": 2},
    ]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.booleans()), min_size=1, max_size=3),
    st.integers(1, 30) | st.just(math.inf),
    st.integers(0, 2**64 - 1),
    st.booleans(),
)
def test_any_sources(kinds: list[tuple[list[int], bool]], length: Any, seed: int, shuffle: bool) -> None:
    def sources() -> list[hr.SampleDataset]:
        return [made_up(sizes, random_access=kind, start=100 * at) for at, (sizes, kind) in enumerate(kinds)]

    found = rows_of(load(zipped(length, sources=sources()), 1, seed=seed, shuffle=shuffle), 35)
    assert found == reference(sources(), 35, seed, shuffle=shuffle)


def test_a_dataset_twice_pairs_its_samples_at_random_unless_it_is_not_shuffled() -> None:
    def pairs(**options: Any) -> list[list[int]]:
        data = made_up([50] * 4)
        return rows_of(load(zipped(sources=[data, data]), 10, **options), 200)

    assert all(one == other for one, other in pairs(shuffle=False))
    assert sum(one == other for one, other in pairs(seed=3)) < 20
    assert sorted(one for one, _ in pairs(seed=3)) == sorted(other for _, other in pairs(seed=3)) == list(range(200))


def test_the_first_source_keeps_the_order_that_it_has_alone() -> None:
    alone = [sample["id"] for sample in line(three()[0], 29, 7)]
    assert [one for one, *_ in rows_of(load(zipped(29), 1, seed=7), 29)] == alone


# Epochs


def test_an_epoch_goes_on_where_the_last_one_ended() -> None:
    loader = load(zipped(17, sources=three()[:1]), 5)
    epochs = [[row for batch in loader for row in batch["ids"][:, 0].tolist()] for _ in range(4)]
    assert [len(epoch) for epoch in epochs] == [17] * 4
    seen = list(itertools.chain(*epochs))
    assert sorted(seen[:29]) == sorted(seen[29:58]) == list(range(29))
    assert seen[:29] != seen[29:58]
    assert loader.epoch == 4


def test_lengths() -> None:
    assert len(hr.zip(three()[:2])) == 10
    assert len(hr.zip(three(), length=40)) == 40
    assert len(load(zipped(17), 4)) == 5
    assert len(load(zipped(17), 4, drop_last=True)) == 4


def test_an_endless_epoch_has_no_length_and_no_end() -> None:
    data = zipped(math.inf)
    loader = load(data, 4)
    for use in (len, lambda it: it[3], lambda it: it[:3]):
        with pytest.raises(TypeError, match=r"length=math.inf has no end\nhint: take\(n\)"):
            use(data)
    for counted in (loader, iter(loader)):
        with pytest.raises(TypeError, match="has no end"):
            len(counted)  # pyright: ignore[reportArgumentType]
    batches = list(itertools.islice(loader, 200))
    assert [batch.step for batch in batches] == list(range(200))
    assert {batch.epoch for batch in batches} == {0}
    assert [sample["ids"].tolist() for sample in itertools.islice(data, 3)] == [[n, 100 + n, 900] for n in range(3)]
    assert len(data.take(6)) == 6
    assert data.info()["samples"] is None
    assert "length=math.inf" in repr(data)


def test_far_into_an_endless_run() -> None:
    loader = load(zipped(math.inf), 4, seed=5)
    loader.seek(10**9)
    batch = next(iter(loader))
    assert batch.rows.tolist() == list(range(4 * 10**9, 4 * 10**9 + 4))
    assert loader.sources(10**9)[0] == batch.sources()[0]
    again = load(zipped(math.inf))
    again.load_state_dict(json.loads(json.dumps(batch.state)))
    assert next(iter(again))["ids"].tolist() == next(iter(loader))["ids"].tolist()


# Going on


@pytest.mark.parametrize("length", [None, 16, 32, 52, math.inf])
@pytest.mark.parametrize("options", [{}, {"lanes": 4, "window": 2}, {"shuffle": False}])
def test_it_goes_on_exactly_from_every_step_on_any_ranks(length: Any, options: dict[str, Any]) -> None:
    data = hr.zip(three()[:2], drawing, length=length)
    checked = check_resume(data, steps=9, global_batch_size=12, world_sizes=(1, 2, 3, 4), loader=options)
    assert checked.restarts > 5


def test_a_filter_and_batches_of_other_sizes() -> None:
    data = zipped(23).filter(lambda sample: sample["ids"][0] % 3 > 0)
    dealt = {"lanes": 1, "window": 1}
    whole = load(data, 4, seed=2, **dealt)
    found = [row for _ in range(3) for batch in whole for row in batch["ids"].tolist()]
    assert found == [row for row in reference(three(), 69, 2, **dealt) if row[0] % 3]
    saved = load(data, 4, seed=2, **dealt)
    batch = next(itertools.islice(saved, 2, None))
    rest = load(data, 6)
    rest.load_state_dict(batch.state)
    after = [row for _ in range(3) for batch in rest for row in batch["ids"].tolist()]
    assert after == [row for row in reference(three(), 69, 2, **dealt)[12:] if row[0] % 3]


def test_a_rank_may_have_no_row_of_a_step() -> None:
    def rank(number: int, world_size: int) -> list[Any]:
        data, options = zipped(5), {"allow_empty": True, "collate_fn": lambda samples: {"ids": samples}}
        return list(load(data, 4, seed=1, rank=number, world_size=world_size, **options))

    batches = [rank(number, 4) for number in range(4)]
    assert [[batch.positions.shape for batch in one] for one in batches] == [[(1, 3), (0, 3)]] * 3 + [[(1, 3), (1, 3)]]
    given = [row["ids"].tolist() for step in range(2) for one in batches for row in one[step]["ids"]]
    assert given == [row["ids"].tolist() for batch in rank(0, 1) for row in batch["ids"]]


# Other data


@pytest.mark.parametrize(
    "other, named",
    [
        (lambda a, b, c: hr.zip([a, b]), "3 in the state|2 sources here, 3"),
        (lambda a, b, c: hr.zip([a, c, b], length=20), "order of source 1 is 'lanes' here and 'permutation'"),
        (lambda a, b, c: hr.zip([a, b.take(9), c], length=20), "samples of source 1 is 9 here and 10"),
        (
            lambda a, b, c: hr.zip([made_up(CHUNKED, start=1), b, c], length=20),
            "identity of part 0 of source 0 is .* here and .* in the state",
        ),
        (lambda a, b, c: hr.zip([a, b, c], length=21), "samples is 21 here and 20 in the state"),
        (lambda a, b, c: hr.zip([a.subset(range(28, -1, -1)), b, c], length=20), "selection of source 0"),
        (lambda a, b, c: a, "1 sources here, 3 in the state"),
    ],
)
def test_a_state_of_other_data_is_refused_by_its_name(other: Any, named: str) -> None:
    loader = load(other(*three()), 4)
    with pytest.raises(hr.StateMismatch, match=named):
        loader.load_state_dict(load(zipped(20), 4, seed=1).state_dict())


@pytest.mark.parametrize("dealt", [None, 3, [], [{}] * 3, [{"lanes": 1, "window": 0}] * 3, [{"lanes": "1"}] * 3])
def test_a_state_without_the_sources_lanes_is_refused(dealt: Any) -> None:
    state = load(zipped(20), 4, seed=1).state_dict()
    state["pipeline"] = state["pipeline"] | {"dealt": dealt}
    with pytest.raises(hr.StateMismatch, match="expected 'dealt' to have lanes and a window for each source"):
        load(zipped(20)).load_state_dict(state)


# Functions


def test_random_numbers_are_those_of_the_source_alone_and_of_the_row() -> None:
    sources = [source.map(ids_with_numbers) for source in three()[:2]]
    loader = load(hr.zip(sources, length=40), 1, seed=4, collate_fn=lambda samples: samples)
    rows = [pair for _ in range(2) for [pair] in loader]
    for number, source in enumerate(sources):
        assert [pair[number] for pair in rows] == line(source, 80, 4 + number * SPREAD)


def test_numbers_of_the_transform_come_from_the_documented_generator() -> None:
    loader = load(hr.zip(three(), drawing, length=7), 7, seed=6)
    for epoch in range(2):
        drawn = next(iter(loader))["drawn"]
        for row in range(7):
            key = np.array([(6 + 3 * SPREAD) % 2**64, 0], np.uint64)
            counter = np.array([0, 0, row, epoch], np.uint64)
            assert (
                drawn[row].tolist()
                == np.random.Generator(np.random.Philox(key=key, counter=counter)).random(2).tolist()
            )


def test_generators_of_python_and_torch_on_request() -> None:
    def drawn(sample: Any, python_rng: Any, torch_rng: torch.Generator, rng: np.random.Generator) -> list[float]:
        return [python_rng.random(), torch.rand(1, generator=torch_rng).item(), rng.random()]

    data = made_up([6]).map(drawn)
    found = data[:]
    assert len({number for numbers in found for number in numbers}) == 18
    assert found == data[:]
    assert [numbers[2] for numbers in found] == made_up([6]).map(lambda sample, rng: rng.random())[:]
    assert len({number for numbers in hr.zip([data, data], drawn)[:] for number in numbers}) == 18
    key = np.array([0, 0], np.uint64)
    for number in range(6):
        words = np.random.Philox(key=key, counter=np.array([2**62, 0, number, 0], np.uint64)).random_raw(4)
        seed = int.from_bytes(words.astype("<u8").tobytes(), "little")
        assert found[number][0] == random.Random(seed).random()
        seed = int(np.random.Philox(key=key, counter=np.array([2**63, 0, number, 0], np.uint64)).random_raw())
        assert found[number][1] == torch.rand(1, generator=torch.Generator().manual_seed(seed)).item()


def test_a_tuple_is_dropped_where_a_source_drops_its_sample() -> None:
    one, other, _ = three()
    data = hr.zip([one, other.filter(lambda sample: sample["id"] % 2 == 0)])
    assert [(a["id"], b["id"]) for a, b in data] == [(number, 100 + number) for number in range(0, 10, 2)]
    with pytest.raises(TypeError, match="a filter decides only"):
        len(data)
    dealt = {"lanes": 1, "window": 1}
    loader = load(data.map(arrayed), 4, seed=1, **dealt)
    found = [row for batch in loader for row in batch["ids"].tolist()]
    assert found == [row for row in reference([one, other], 10, 1, **dealt) if row[1] % 2 == 0]
    assert loader.stats()["samples_dropped"] == 5


# Reading and telling


def test_it_reads_as_nothing_shuffles_it() -> None:
    data = hr.zip(three(), length=23)
    assert len(data) == 23
    assert [tuple(sample["id"] for sample in samples) for samples in data] == [
        (number, 100 + number % 10, 900) for number in range(23)
    ]
    assert data[22] == data[-1] == (sample_of(22), sample_of(102), sample_of(900))
    assert data[3:5] == [data[3], data[4]]
    assert data[[7, 1]] == data.__getitems__([7, 1]) == [data[7], data[1]]
    with pytest.raises(IndexError, match="sample 23 of 23"):
        data[23]
    assert str(data.place(11)) == "file-2, chunk 2, row 5; file-0, chunk 0, row 1; file-0, chunk 0, row 0"
    assert data.info()["sources"][1] == {"url": "made-up://", "format": "made up", "samples": 10, "steps": []}
    assert len(data.repeat(2)) == 46
    assert len(data.take(5)) == len(data.take(99).take(5)) == 5


def test_batches_know_their_samples_and_where_they_lie() -> None:
    sources = three()
    loader = load(hr.zip(sources, arrayed, length=23), 4, seed=1)
    for batch in (batch for _ in range(2) for batch in loader):
        assert batch.positions.shape == (len(batch.rows), 3)
        assert np.add(batch.positions, [0, 100, 900]).tolist() == batch["ids"].tolist()
        for positions, places in zip(batch.positions.tolist(), batch.sources(), strict=True):
            assert places == tuple(source.place(at) for source, at in zip(sources, positions, strict=True))
        assert loader.sources(batch.step) == batch.sources()


def test_tuples_are_collated_to_a_tuple() -> None:
    one, other = next(iter(load(hr.zip(three()[:2]), 4, shuffle=False)))
    assert (one["id"].tolist(), other["id"].tolist()) == ([0, 1, 2, 3], [100, 101, 102, 103])


def test_sources_of_different_formats(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(8)}), tmp_path / "table.parquet", row_group_size=3)
    (tmp_path / "lines.jsonl").write_text("".join(f'{{"y": {number}}}\n' for number in range(5)))
    (tmp_path / "files").mkdir()
    for number in range(3):
        (tmp_path / "files" / f"{number}.bin").write_bytes(bytes([number]))

    def numbers(samples: tuple[Any, ...]) -> dict[str, Any]:
        return {"ids": np.array([samples[0]["x"], samples[1]["y"], samples[2]["data"][0]])}

    names = ("table.parquet", "lines.jsonl", "files")
    data = hr.zip(
        [hr.open(tmp_path / name, format="files" if name == "files" else None) for name in names], numbers, 20
    )
    found = rows_of(load(data, 4, num_workers=2), 40)
    for column, count in enumerate((8, 5, 3)):
        line = [row[column] for row in found]
        for begin in range(0, 40 - count, count):
            assert sorted(line[begin : begin + count]) == list(range(count))
    assert check_resume(data, steps=4, global_batch_size=4, world_sizes=(1, 2)).steps == 8


# Faults


def broken(chunk: int, row: int) -> None:
    if (chunk, row) == (1, 2):
        raise hr.DataError("the bytes are no sample")


def test_an_error_names_the_source_and_the_samples_beside_it() -> None:
    data = hr.zip([made_up([10]), dataset_of(MadeUp(RANDOM, fault=broken))], arrayed)
    loader = load(data, 5, shuffle=False)
    batches = iter(loader)
    with pytest.raises(hr.DataError, match="no sample") as caught:
        list(batches)
    assert caught.value.__notes__ == [
        "headrace: sample 5 (file-1, chunk 1, row 2), of source 1 of a zip",
        "headrace: samples 5, 5 of a zip (file-0, chunk 0, row 5; file-1, chunk 1, row 2)",
        "batch 1 of this iterator",
    ]


def test_errors_are_skipped_and_listed() -> None:
    def failing(samples: tuple[dict[str, Any], ...]) -> dict[str, Any]:
        if samples[0]["id"] == 7:
            raise LookupError("no 7")
        return arrayed(samples)

    data = hr.zip([made_up([10]), dataset_of(MadeUp(RANDOM, fault=broken))], failing)
    loader = load(data, 5, shuffle=False, on_error="skip")
    assert [row for batch in loader for row in batch["ids"].tolist()] == [[n, n] for n in range(10) if n not in (5, 7)]
    assert loader.stats()["skipped"] == [
        ([5, 5], "file-0, chunk 0, row 5; file-1, chunk 1, row 2", "DataError: the bytes are no sample"),
        ([7, 7], "file-0, chunk 0, row 7; file-2, chunk 2, row 1", "LookupError: no 7"),
    ]


@pytest.mark.parametrize(
    "make, kind, named",
    [
        (lambda: hr.zip([]), ValueError, "at least one dataset"),
        (lambda: hr.zip([made_up([2]), [1, 2]]), TypeError, r"got \[1, 2\] for source 1"),
        (lambda: hr.zip([hr.zip([made_up([2])])]), TypeError, r"got Zip\('made-up://', length=2\) for source 0"),
        (lambda: hr.zip([made_up([2]).flat_map(list)]), TypeError, "for source 0"),
        (lambda: hr.zip([made_up([2]), made_up([0])]), ValueError, "source 1 has none"),
        (lambda: hr.zip([made_up([2])], length=0), ValueError, "length"),
        (lambda: hr.zip([made_up([2])], length=2.5), TypeError, "length must be an integer or math.inf, got 2.5"),
        (lambda: hr.zip([made_up([2])], length=math.nan), TypeError, "got nan"),
        (lambda: hr.zip([made_up([2])], 3), TypeError, "map"),
        (lambda: hr.zip([made_up([2])]).pack(4), TypeError, "got a zip\nhint"),
        (lambda: hr.concat([hr.zip([made_up([2])])]), TypeError, "concat takes datasets of samples, got Zip"),
        (lambda: load(hr.zip([made_up([2], random_access=True)]), 1, lanes=2), ValueError, "for a permutation order"),
        (lambda: load(hr.zip([made_up([2])]).take(0), 1), ValueError, "no samples"),
    ],
)
def test_what_cannot_be_zipped_is_refused_by_name(make: Any, kind: type[Exception], named: str) -> None:
    with pytest.raises(kind, match=named):
        make()


# Workers


def test_processes_and_parallel_items_give_the_same() -> None:
    data = hr.zip(three(), drawing, length=23)

    def given_by(**options: Any) -> list[Any]:
        with load(data, 4, seed=1, **options) as loader:
            return [(batch["drawn"].tolist(), batch.positions.tolist()) for _ in range(2) for batch in loader]

    wanted = given_by()
    assert given_by(num_workers=3) == wanted
    assert given_by(num_workers=2, items_in_parallel=3) == wanted
    assert given_by(num_workers=1, worker_type="process") == wanted


def test_it_pickles() -> None:
    data = hr.zip(three(), drawing, length=23)
    again = pickle.loads(pickle.dumps(data))
    assert repr(again) == repr(data) == "Zip('made-up://', 'made-up://', 'made-up://', length=23).map(drawing)"
    assert [sample["ids"].tolist() for sample in again] == [sample["ids"].tolist() for sample in data]
    assert load(again, 4).state_dict() == load(data, 4).state_dict()


def test_a_rank_reads_its_share_of_the_source_with_most_lanes() -> None:
    """Beside it lies one of a single sample, which has one lane."""
    loads: list[int] = []
    for rank in range(2):
        source = MadeUp([10] * 40)
        data = hr.zip([dataset_of(source), made_up(SINGLE, start=900)], arrayed, length=400)
        loader = load(data, 20, window=40, seed=1, rank=rank, world_size=2)
        assert sum(len(batch["ids"]) for batch in loader) == 200
        loads.append(len({chunk for chunk, _ in source.loads}))
    assert max(loads) < 25


def test_chunks_of_all_sources_are_read_ahead() -> None:
    sources = [MadeUp([10] * 8), MadeUp([5] * 8, start=200)]
    data = hr.zip([dataset_of(source) for source in sources], arrayed)
    with load(data, 4, window=2, lanes=4, seed=1, num_workers=1) as loader:
        batches = iter(loader)
        first = next(batches)
        wanted = [set((first.positions[:, 0] // 10).tolist()), set((first.positions[:, 1] // 5).tolist())]
        deadline = time.monotonic() + 30
        while any(len({chunk for chunk, _ in source.loads}) < 4 for source in sources):
            assert time.monotonic() < deadline, "the window after the first one is read ahead of use"
            time.sleep(0.01)
        assert all(
            chunks <= {chunk for chunk, _ in source.loads} for chunks, source in zip(wanted, sources, strict=True)
        )


def test_sources_that_are_no_list_are_refused_before_anything_is_read(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    data = hr.open(tmp_path)
    for wrong in (data, {"a": data}, "ab"):
        with pytest.raises(TypeError, match=r"zip takes a list of datasets, got a .*\nhint: headrace.zip\(\[first"):
            hr.zip(wrong)

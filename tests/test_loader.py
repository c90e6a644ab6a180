"""The loader's face: its arguments and their refusals, lengths, epochs, what `iter` means, sources and counts."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from files import count_up, environment, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files of ten row groups of ten documents of five tokens, counting up from 0 to 1999."""
    folder = tmp_path_factory.mktemp("loader")
    for number in range(4):
        write(folder / f"{number}.parquet", count_up(100, 5, start=500 * number), row_group_size=10)
    return folder


@pytest.fixture(scope="module")
def packed(folder: Path) -> hr.PackedDataset:
    return hr.open(folder).pack(10)


def rows_of(batches: Any) -> list[list[int]]:
    return [row for batch in batches for row in batch["tokens"].tolist()]


# Arguments


@pytest.mark.parametrize(
    "options, error, part",
    [
        ({"batch_size": 0}, ValueError, "batch_size.*0"),
        ({"batch_size": -1}, ValueError, "batch_size.*-1"),
        ({"batch_size": 1.5}, TypeError, r"batch_size.*1\.5"),
        ({"batch_size": "4"}, TypeError, "batch_size.*'4'"),
        ({"batch_size": True}, TypeError, "batch_size.*True"),
        ({"batch_size": 2**40}, ValueError, "batch_size|batch"),
        ({"batch_size": 4, "global_batch_size": 4}, ValueError, "batch_size.*global_batch_size"),
        ({"global_batch_size": 0}, ValueError, "global_batch_size.*0"),
        ({"global_batch_size": 2.0}, TypeError, "global_batch_size"),
        ({"global_batch_size": 2**70}, ValueError, "global_batch_size|batch"),
        ({"global_batch_size": {}}, ValueError, "global_batch_size"),
        ({"global_batch_size": {5: 4}}, ValueError, "global_batch_size.*step 0"),
        ({"global_batch_size": {0: 4, -1: 4}}, ValueError, "global_batch_size.*-1"),
        ({"global_batch_size": {0: 0}}, ValueError, "global_batch_size"),
        ({"global_batch_size": {0: 4, 5: "8"}}, TypeError, "global_batch_size"),
        ({"global_batch_size": {"0": 4}}, TypeError, "global_batch_size"),
        ({"global_batch_size": {0: 4, "a": 8}}, TypeError, "global_batch_size"),
        ({"batch_size": 4, "memory": "x"}, ValueError, "memory.*'x'"),
        ({"batch_size": 4, "memory": ""}, ValueError, "memory"),
        ({"batch_size": 4, "memory": "2 parsecs"}, ValueError, "memory.*parsecs"),
        ({"batch_size": 4, "memory": "-1GiB"}, ValueError, "memory"),
        ({"batch_size": 4, "memory": 0}, ValueError, "memory.*0"),
        ({"batch_size": 4, "memory": -5}, ValueError, "memory.*-5"),
        ({"batch_size": 4, "memory": 1.5}, TypeError, "memory"),
        ({"batch_size": 4, "memory": None}, TypeError, "memory"),
        ({"batch_size": 4, "memory": 2**70}, ValueError, "memory"),
        ({"batch_size": 4, "memory": "1e30GiB"}, ValueError, "memory"),
        ({"batch_size": 4, "memory": "99999999999TiB"}, ValueError, "memory"),
        ({"batch_size": 4, "timeout": -1}, ValueError, "timeout.*-1"),
        ({"batch_size": 4, "timeout": float("nan")}, ValueError, "timeout.*nan"),
        ({"batch_size": 4, "timeout": 1e30}, ValueError, r"timeout must .* at most, got 1e\+30"),
        ({"batch_size": 4, "timeout": 10**400}, ValueError, "timeout must .* at most, got 1000"),
        ({"batch_size": 4, "timeout": "5"}, TypeError, "timeout.*'5'"),
        ({"batch_size": 4, "timeout": None}, TypeError, "timeout.*None"),
        ({"batch_size": 4, "num_workers": -1}, ValueError, "num_workers.*-1"),
        ({"batch_size": 4, "num_workers": 1.0}, TypeError, "num_workers"),
        ({"batch_size": 4, "num_workers": 2**70}, ValueError, "num_workers"),
        ({"batch_size": 4, "prefetch_factor": 0}, ValueError, "prefetch_factor.*0"),
        ({"batch_size": 4, "prefetch_factor": "2"}, TypeError, "prefetch_factor"),
        ({"batch_size": 4, "prefetch_factor": 2**70}, ValueError, "prefetch_factor"),
        ({"batch_size": 4, "seed": -1}, ValueError, "seed.*-1"),
        ({"batch_size": 4, "seed": 2**64}, ValueError, "seed"),
        ({"batch_size": 4, "seed": 1.0}, TypeError, r"seed.*1\.0"),
        ({"batch_size": 4, "seed": "1"}, TypeError, "seed.*'1'"),
        ({"batch_size": 4, "window": 0}, ValueError, "window.*0"),
        ({"batch_size": 4, "window": 2.5}, TypeError, "window"),
        ({"batch_size": 4, "lanes": 0}, ValueError, "lanes.*0"),
        ({"batch_size": 4, "lanes": "4"}, TypeError, "lanes"),
        ({"batch_size": 4, "lanes": 4, "shuffle": False}, ValueError, "lanes.*shuffle"),
        ({"batch_size": 4, "epochs": 0}, ValueError, "epochs.*0"),
        ({"batch_size": 4, "epochs": 1.5}, TypeError, "epochs"),
        ({"batch_size": 4, "remainder": "keep"}, ValueError, "remainder.*'keep'"),
        ({"batch_size": 4, "remainder": "keep"}, ValueError, "remainder.*keep"),
        ({"batch_size": 4, "rank": 0}, ValueError, "world_size"),
        ({"batch_size": 4, "world_size": 2}, ValueError, "rank"),
        ({"batch_size": 4, "rank": 2, "world_size": 2}, ValueError, "rank.*2"),
        ({"batch_size": 4, "rank": -1, "world_size": 2}, ValueError, "rank.*-1"),
        ({"batch_size": 4, "rank": 0, "world_size": 0}, ValueError, "world_size.*0"),
        ({"batch_size": 4, "rank": "0", "world_size": 1}, TypeError, "rank.*'0'"),
        ({"batch_size": 4, "sampler": [1]}, ValueError, "sampler"),
        ({"batch_size": 4, "batch_sampler": [[1]]}, ValueError, "batch_sampler"),
        ({"batch_size": 4, "collate_fn": len}, ValueError, "collate_fn"),
        ({"batch_size": 4, "worker_init_fn": len}, ValueError, "worker_init_fn"),
        ({"batch_size": 4, "pin_memory": True}, ValueError, "pin_memory"),
        ({"batch_size": 4, "shuffle": "no"}, (TypeError, ValueError), "shuffle.*'no'"),
        ({"batch_size": 4, "nonsense": 1}, TypeError, "nonsense"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_wrong_argument_is_refused_and_named(
    packed: hr.PackedDataset, options: dict[str, Any], error: type[Exception], part: str
) -> None:
    with pytest.raises(error, match=f"(?s){part}"):
        hr.DataLoader(packed, **options)


@pytest.mark.parametrize(
    "options, error, part",
    [
        ({"seq_len": 0}, ValueError, "seq_len.*0"),
        ({"seq_len": -3}, ValueError, "seq_len.*-3"),
        ({"seq_len": 2.0}, TypeError, "seq_len"),
        ({"seq_len": "8"}, TypeError, "seq_len.*'8'"),
        ({"seq_len": 2**31}, ValueError, "seq_len"),
        ({"seq_len": 8, "overlap": 9}, ValueError, "overlap.*9"),
        ({"seq_len": 8, "overlap": -1}, ValueError, "overlap.*-1"),
        ({"seq_len": 8, "overlap": True}, TypeError, "overlap"),
        ({"seq_len": 8, "eos_id": 2**31}, ValueError, "eos_id.*2147483648"),
        ({"seq_len": 8, "bos_id": -(2**31) - 1}, ValueError, "bos_id"),
        ({"seq_len": 8, "pad_id": 2**31}, ValueError, "pad_id"),
        ({"seq_len": 8, "eos_id": "0"}, TypeError, "eos_id"),
        ({"seq_len": 8, "mode": "best"}, ValueError, "mode.*'best'"),
        ({"seq_len": 8, "dtype": "int16"}, ValueError, "dtype.*'int16'"),
        ({"seq_len": 8, "dtype": np.int32}, ValueError, "dtype"),
        ({"seq_len": 8, "name": ""}, (TypeError, ValueError), "name"),
        ({"seq_len": 8, "name": 5}, TypeError, "name.*5"),
        ({"seq_len": 8, "name": "loss_mask"}, ValueError, "name.*'loss_mask'"),
        ({"seq_len": 8, "column": 5}, TypeError, "column.*5"),
        ({"seq_len": 8, "column": "nothing"}, hr.DataError, "nothing"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_wrong_argument_of_pack_is_refused_and_named(
    folder: Path, options: dict[str, Any], error: type[Exception], part: str
) -> None:
    with pytest.raises(error, match=f"(?s){part}"):
        hr.open(folder).pack(**options)


def test_without_a_batch_size_it_takes_a_state(packed: hr.PackedDataset) -> None:
    loader = hr.DataLoader(packed)
    for use in (len, iter, lambda loader: loader.step, lambda loader: loader.sources(0), hr.DataLoader.state_dict):
        with pytest.raises(ValueError, match="batch"):
            use(loader)
    loader.load_state_dict(hr.DataLoader(packed, 4, seed=3).state_dict())
    assert (loader.batch_size, loader.step) == (4, 0)


def test_a_world_that_does_not_divide_the_batch_names_the_nearest_sizes(packed: hr.PackedDataset) -> None:
    with pytest.raises(ValueError, match="8 or 12") as caught:
        hr.DataLoader(packed, global_batch_size=10, rank=0, world_size=4)
    assert "world_size=4" in str(caught.value)
    assert "10" in str(caught.value)
    # B022: more ranks than rows.
    with pytest.raises(ValueError, match="64"):
        hr.DataLoader(packed, global_batch_size=24, rank=0, world_size=64)
    with pytest.raises(ValueError, match=r"4 or 8"):
        hr.DataLoader(packed, global_batch_size={0: 8, 100: 6}, rank=0, world_size=4)
    loader = hr.DataLoader(packed, global_batch_size=8, rank=0, world_size=4)
    with pytest.raises(ValueError, match="8 or 12"):
        loader.set_global_batch_size(9)
    with pytest.raises((TypeError, ValueError), match="batch size"):
        loader.set_global_batch_size(0)
    assert loader.global_batch_size == 8


def test_other_datasets_are_refused_with_advice(folder: Path) -> None:
    for wrong in (str(folder), folder, b"bytes"):
        with pytest.raises(TypeError, match=r"headrace\.open"):
            hr.DataLoader(wrong, 4)
    for wrong in (None, 3, object()):
        with pytest.raises(TypeError, match=type(wrong).__name__):
            hr.DataLoader(wrong, 4)


def test_too_little_data_says_so(tmp_path: Path) -> None:
    # B037: two samples on 64 nodes never become 33 batches.
    write(tmp_path / "a.parquet", [[1, 2, 3], [4, 5, 6]])
    data = hr.open(tmp_path)
    with pytest.raises(ValueError, match="6") as caught:
        hr.DataLoader(data.pack(100), 1)
    assert "100" in str(caught.value)
    with pytest.raises(ValueError, match="64"):
        hr.DataLoader(data.pack(3), global_batch_size=64, rank=0, world_size=64)
    loader = hr.DataLoader(data.pack(3), global_batch_size=2, rank=0, world_size=1, epochs=1)
    assert len(loader) == len(list(loader)) == 1


def test_sizes_of_memory_are_understood(packed: hr.PackedDataset) -> None:
    for memory in ("64MiB", "64 MiB", "64mib", "0.5GiB", "67108864", "100MB", 67_108_864, np.int64(67_108_864)):
        loader = hr.DataLoader(packed, 4, shuffle=False, epochs=1, memory=memory)
        assert next(iter(loader))["tokens"].tolist()[0] == list(range(10))


def test_numbers_of_numpy_are_numbers(packed: hr.PackedDataset) -> None:
    loader = hr.DataLoader(packed, np.int64(4), seed=np.uint64(3), rank=np.int32(0), world_size=np.int32(1))
    assert rows_of([next(iter(loader))]) == rows_of([next(iter(hr.DataLoader(packed, 4, seed=3)))])
    json.dumps(loader.state_dict())


def test_the_largest_seed_works(packed: hr.PackedDataset) -> None:
    # B044.
    for seed in (2**32 - 1, 2**63, 2**64 - 1):
        first, second = (rows_of(hr.DataLoader(packed, 4, seed=seed, epochs=2)) for _ in range(2))
        assert first == second


def test_arguments_of_pytorchs_loader_stand_in_its_order(packed: hr.PackedDataset) -> None:
    loader = hr.DataLoader(packed, 4, False, None, None, 2, None, False, True, 0, None, epochs=1)
    assert rows_of(loader)[0] == list(range(10))
    assert loader.batch_size == 4


def test_rank_and_world_come_from_the_environment(packed: hr.PackedDataset) -> None:
    with environment(RANK="1", WORLD_SIZE="2"):
        loader = hr.DataLoader(packed, global_batch_size=8)
        assert (loader.rank, loader.world_size, loader.batch_size) == (1, 2, 4)
        assert (hr.DataLoader(packed, 4, rank=0, world_size=1).rank) == 0
        assert hr.DataLoader(packed, 4).global_batch_size == 8
    assert (hr.DataLoader(packed, 4).rank, hr.DataLoader(packed, 4).world_size) == (0, 1)
    for rank, world, part in (
        ("x", "2", "RANK.*'x'"),
        ("0", "", "WORLD_SIZE"),
        ("2", "2", "rank=2"),
        ("-1", "2", "-1"),
    ):
        with environment(RANK=rank, WORLD_SIZE=world), pytest.raises(ValueError, match=part):
            hr.DataLoader(packed, 4)


def test_repr_tells_what_was_given(packed: hr.PackedDataset) -> None:
    text = repr(hr.DataLoader(packed, 4, seed=0, shuffle=False, epochs=3))
    for part in ("batch_size=4", "seed=0", "shuffle=False", "epochs=3"):
        assert part in text, text


# Length, epochs, iterators


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch, seq_len, overlap", [(4, 10, 0), (3, 7, 1), (8, 13, 0), (1, 500, 0), (7, 11, 11)])
def test_len_is_exact_in_every_epoch(folder: Path, shuffle: bool, batch: int, seq_len: int, overlap: int) -> None:
    loader = hr.DataLoader(hr.open(folder).pack(seq_len, overlap=overlap), batch, shuffle, epochs=3)
    total = 0
    for epoch in range(3):
        assert loader.epoch == epoch
        wanted = len(loader)
        iterator = iter(loader)
        assert len(iterator) == wanted
        for number, found in enumerate(iterator):
            assert found.epoch == epoch
            assert found.step == total + number
            assert len(iterator) == wanted - number - 1
        assert number + 1 == wanted
        total += wanted
    assert loader.stats()["steps"] == total
    assert list(loader) == []
    assert len(iter(loader)) == 0
    assert loader.epoch == 3


def test_ten_rows_make_two_batches_of_four(tmp_path: Path) -> None:
    # B148 and B032: whatever the number of workers.
    write(tmp_path / "a.parquet", count_up(10))
    packed = hr.open(tmp_path).pack(4)
    for workers in (0, 1, 16):
        loader = hr.DataLoader(packed, 4, epochs=1, num_workers=workers)
        assert len(loader) == len(list(loader)) == 2
        assert loader.stats()["remainder_tokens"] == 8


def test_the_remainder_is_padded_and_masked_or_reported(tmp_path: Path) -> None:
    # B061 and B068: a mask of 0 and 1, as long as the tokens; the padding's id may occur in the data.
    write(tmp_path / "a.parquet", [[9] * 17, [9, 9]])
    packed = hr.open(tmp_path).pack(8, pad_id=9, boundaries=True)
    with pytest.raises(ValueError, match="19"):
        hr.DataLoader(packed, 8, epochs=1)
    packed = hr.open(tmp_path).pack(4, pad_id=9, boundaries=True)
    first, batch = hr.DataLoader(packed, 3, shuffle=False, epochs=1, remainder="pad")
    assert (first["tokens"] == 9).all()
    assert first["loss_mask"].all()
    assert batch["tokens"].tolist() == [[9] * 4] * 3
    assert batch["loss_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0]]
    assert batch["loss_mask"].dtype == np.uint8
    for name in ("tokens", "loss_mask", "document_ids", "position_ids"):
        assert batch[name].shape == (3, 4)
    assert batch["document_ids"].tolist() == [[0] * 4, [0, 1, 1, 2], [0] * 4]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3], [0, 0, 1, 0], [0, 1, 2, 3]]
    assert [len(row) for row in batch.sources()] == [1, 2, 0]
    loader = hr.DataLoader(packed, 3, shuffle=False, epochs=1)
    assert len(list(loader)) == 1
    assert loader.stats()["remainder_tokens"] == 7


def test_iterating_goes_on_with_the_rest_of_the_epoch(packed: hr.PackedDataset) -> None:
    unbroken = hr.DataLoader(packed, 8, seed=5, epochs=2)
    wanted = rows_of(unbroken) + rows_of(unbroken)
    loader = hr.DataLoader(packed, 8, seed=5, epochs=2)
    found = []
    for batch in loader:
        found.append(batch)
        if len(found) == 3:
            break
    assert (loader.step, loader.position, loader.epoch, len(loader)) == (3, 24, 0, 25)
    found.extend(loader)
    assert loader.epoch == 1
    found.extend(loader)
    assert rows_of(found) == wanted
    assert list(loader) == []


def test_without_an_end_epochs_follow_each_other(packed: hr.PackedDataset) -> None:
    # B038, B040, B046: no user call is needed, orders differ and come again.
    loader = hr.DataLoader(packed, 8, seed=1)
    epochs = [rows_of(loader) for _ in range(3)]
    assert len({str(rows) for rows in epochs}) == 3
    again = hr.DataLoader(packed, 8, seed=1)
    assert [rows_of(again) for _ in range(3)] == epochs
    for rows in epochs:
        assert len(rows) == 200
    assert sorted(np.ravel(epochs).tolist()) == sorted(list(range(2000)) * 3)


def test_an_older_iterator_raises_when_used(packed: hr.PackedDataset) -> None:
    loader = hr.DataLoader(packed, 8, seed=1)
    older = iter(loader)
    first = next(older)
    newer = iter(loader)
    with pytest.raises(RuntimeError, match="newer"):
        next(older)
    second = next(newer)
    assert (first.step, second.step) == (0, 1)
    del older
    assert next(newer).step == 2
    loader.seek(10)
    with pytest.raises(RuntimeError, match="seek"):
        next(newer)
    with pytest.raises(RuntimeError):
        len(newer)
    assert next(iter(loader)).step == 10


def test_two_iterators_of_one_dataset_are_independent(packed: hr.PackedDataset) -> None:
    # B005 and B010.
    one, two = hr.DataLoader(packed, 8, seed=1, epochs=1), hr.DataLoader(packed, 8, seed=1, epochs=1)
    iterator = iter(one)
    for _ in range(5):
        next(iterator)
    assert rows_of(two) == rows_of(hr.DataLoader(packed, 8, seed=1, epochs=1))
    assert next(iterator).step == 5


def test_seek_and_its_limits(packed: hr.PackedDataset) -> None:
    whole = rows_of(hr.DataLoader(packed, 8, seed=2, epochs=1))
    loader = hr.DataLoader(packed, 8, seed=2, epochs=1)
    for step in (24, 0, 13, 25):
        loader.seek(step)
        assert rows_of(loader) == whole[8 * step :]
    for wrong, error in ((26, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError)):
        with pytest.raises(error, match="step"):
            loader.seek(wrong)
    far = hr.DataLoader(packed, 8, seed=2)
    far.seek(10**15)
    assert next(iter(far)).step == 10**15
    assert far.position == 8 * (10**15 + 1)


@pytest.mark.parametrize("stop", [2**58, 2**60, 2**62, 2**63 - 1])
def test_what_lies_beyond_counting_is_neither_sought_nor_skipped_to(packed: hr.PackedDataset, stop: int) -> None:
    samples = hr.DataLoader(packed_samples(packed), global_batch_size=8)
    loaders = [hr.DataLoader(packed, global_batch_size=4), hr.DataLoader(hr.mix({"a": (packed, 1)}), batch_size=4)]
    for loader in [samples, *loaders]:
        first = next(iter(loader))["tokens"].tolist()
        for move in (lambda one: one.skip(range(2, stop)), lambda one: one.seek(stop)):
            with pytest.raises(ValueError, match="beyond"):
                move(loader)
        assert loader.step == 1
        loader.seek(0)
        assert next(iter(loader))["tokens"].tolist() == first
    finite = hr.DataLoader(packed, global_batch_size=4, epochs=2)
    finite.skip(range(1, stop))
    assert len(list(finite)) == 1


def packed_samples(packed: hr.PackedDataset) -> hr.SampleDataset:
    """The documents of the same files as samples."""
    return hr.open(packed.core.url)


def test_skip_leaves_steps_out(packed: hr.PackedDataset) -> None:
    loader = hr.DataLoader(packed, 8, seed=2, epochs=1)
    loader.skip(range(2, 5))
    loader.skip(range(4, 7))
    assert len(loader) == 20
    assert [batch.step for batch in loader] == [0, 1, *range(7, 25)]
    for wrong, error in ((range(3), ValueError), (range(30, 40, 2), ValueError), ([1], TypeError), (5, TypeError)):
        with pytest.raises(error, match="skip"):
            loader.skip(wrong)


def test_the_batch_size_changes_from_the_next_step_on(packed: hr.PackedDataset) -> None:
    wanted = rows_of(hr.DataLoader(packed, 8, seed=3, epochs=1))
    loader = hr.DataLoader(packed, global_batch_size=8, seed=3, epochs=1)
    iterator = iter(loader)
    found = [next(iterator) for _ in range(3)]
    loader.set_global_batch_size(16)
    assert (loader.global_batch_size, loader.batch_size) == (16, 16)
    found.append(next(iterator))
    loader.set_global_batch_size(4)
    found.extend(iterator)
    assert [batch["tokens"].shape[0] for batch in found[:6]] == [8, 8, 8, 16, 4, 4]
    assert [batch.step for batch in found] == list(range(len(found)))
    assert rows_of(found) == wanted
    # A batch lasts longer than its loader's opinion.
    assert found[0].state["position"] == 8


def test_a_schedule_of_batch_sizes(packed: hr.PackedDataset) -> None:
    loader = hr.DataLoader(packed, global_batch_size={0: 4, 5: 8, 10: 2}, seed=3, epochs=1, lanes=4)
    assert len(loader) == 5 + 5 + (200 - 60) // 2
    found = list(loader)
    assert [len(batch["tokens"]) for batch in found[:12]] == [4] * 5 + [8] * 5 + [2] * 2
    assert rows_of(found) == rows_of(hr.DataLoader(packed, 4, seed=3, epochs=1, lanes=4))
    loader.seek(7)
    assert (loader.global_batch_size, loader.position) == (8, 20 + 16)


# Sources and counts


def test_sources_without_iterating_are_those_of_the_batch(packed: hr.PackedDataset) -> None:
    loaders = [hr.DataLoader(packed, global_batch_size=8, seed=4, rank=rank, world_size=2) for rank in range(2)]
    asked = hr.DataLoader(packed, global_batch_size=8, seed=4, rank=1, world_size=2)
    for _ in range(2):
        for batches in zip(*loaders, strict=True):
            for rank, batch in enumerate(batches):
                assert asked.sources(batch.step, rank) == batch.sources()
                assert loaders[rank].sources(batch.step) == batch.sources()
    assert (asked.step, asked.position) == (0, 0)
    part = batch.sources()[0][0]
    assert isinstance(part, hr.Source)
    assert (part.file, part.row_group, part.row, part.first_token, part.tokens) == tuple(part)


def test_sources_name_the_tokens_of_each_row(packed: hr.PackedDataset) -> None:
    for batch in hr.DataLoader(packed, 8, seed=4, epochs=1):
        for row, parts in zip(batch["tokens"].tolist(), batch.sources(), strict=True):
            tokens = []
            for part in parts:
                document = 500 * int(Path(part.file).stem) + 50 * part.row_group + 5 * part.row
                tokens += range(document + part.first_token, document + part.first_token + part.tokens)
            assert tokens == row


def test_sources_read_only_what_the_rows_touch(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 2**31 - 1, (320, 500), dtype=np.int32).tolist()
    for number in range(8):
        write(tmp_path / f"{number}.parquet", tokens[40 * number : 40 * number + 40], row_group_size=10)
    packed = hr.open(tmp_path).pack(100)
    groups = 32
    watch = hr.DataLoader(packed, 1, shuffle=False, epochs=1, window=1)
    assert len(list(watch)) == 1600
    asked = hr.DataLoader(packed, 4, seed=0, window=4, lanes=4, epochs=2)
    group_bytes = sum(path.stat().st_size for path in tmp_path.iterdir()) // groups
    for step in (0, 399, 500):
        before = watch.stats()["bytes_read"]
        assert len(asked.sources(step)) == 4
        read = watch.stats()["bytes_read"] - before
        # A row of each lane: at most two windows of four row groups, never the 28 or 60 before them.
        assert 0 < read <= 8 * group_bytes + 1000
    assert watch.stats()["windows"] == groups


def test_sources_refuse_what_is_not_there(packed: hr.PackedDataset) -> None:
    loader = hr.DataLoader(packed, 8, seed=4, epochs=1)
    for step, error in ((25, ValueError), (-1, ValueError), (1.5, TypeError)):
        with pytest.raises(error, match="step"):
            loader.sources(step)
    for rank, error in ((1, ValueError), (-1, ValueError), ("0", TypeError)):
        with pytest.raises(error, match="rank"):
            loader.sources(0, rank)  # pyright: ignore[reportArgumentType]


READING = ("windows", "windows_spilled", "window_bytes", "chunk_bytes", "bytes_read", "requests", "retries", "hedged")


def test_stats_hold_what_is_promised(packed: hr.PackedDataset) -> None:
    loader = hr.DataLoader(packed, 8, seed=4, epochs=1)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    stats = loader.stats()
    assert (stats["step"], stats["epoch"], stats["position"], stats["tokens"]) == (3, 0, 24, 240)
    assert stats["steps"] == 25
    assert stats["remainder_tokens"] == 0
    assert 0 <= stats["documents_cut"] <= 1
    assert stats["lanes"] >= 1
    assert stats["window"] >= 1
    for name in READING:
        assert isinstance(stats[name], int), name
    assert stats["chunk_bytes"] > 0
    assert stats["bytes_read"] > 0
    json.dumps(stats)
    endless = hr.DataLoader(packed, 8).stats()
    assert "steps" not in endless
    assert "remainder_tokens" not in endless


def test_stats_have_the_same_keys_before_and_after_iterating(packed: hr.PackedDataset) -> None:
    loader = hr.DataLoader(packed, 8, epochs=1)
    before = set(loader.stats())
    for _ in loader:
        break
    after = set(loader.stats())
    assert before == after
    assert set(READING) <= before


# What a batch holds


def test_names_and_types_of_the_tokens(folder: Path) -> None:
    plain = next(iter(hr.DataLoader(hr.open(folder).pack(10), 4)))["tokens"]
    assert (plain.dtype, plain.shape) == (np.int32, (4, 10))
    batch = next(iter(hr.DataLoader(hr.open(folder).pack(10, dtype="int64", name="input_ids"), 4)))
    assert list(batch) == ["input_ids"]
    assert (batch["input_ids"].dtype, len(batch)) == (np.int64, 1)
    np.testing.assert_array_equal(batch["input_ids"], plain)
    with pytest.raises(KeyError, match=r"tokens.*input_ids"):
        batch["tokens"]
    assert "input_ids" in repr(batch)
    assert batch.rows.tolist() == [0, 1, 2, 3]
    assert batch.rows.dtype == np.int64


def test_negative_and_large_tokens_keep_their_sign_in_int64(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [[-(2**31), -1, 0, 2**31 - 1]])
    for dtype in ("int32", "int64"):
        (batch,) = hr.DataLoader(hr.open(tmp_path).pack(4, dtype=dtype), 1, shuffle=False, epochs=1)
        assert batch["tokens"].tolist() == [[-(2**31), -1, 0, 2**31 - 1]]


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("shuffle", [False, True])
def test_boundaries_follow_from_the_sources(folder: Path, overlap: int, shuffle: bool) -> None:
    # B064, B065, B067.
    packed = hr.open(folder).pack(12, boundaries=True, overlap=overlap)
    for batch in hr.DataLoader(packed, 4, shuffle, epochs=1):
        starts = [0]
        for row, parts in enumerate(batch.sources()):
            documents = [number for number, part in enumerate(parts) for _ in range(part.tokens)]
            positions = [position for part in parts for position in range(part.tokens)]
            assert batch["document_ids"][row].tolist() == documents
            assert batch["position_ids"][row].tolist() == positions
            first = documents[:12]
            ends = [at + 1 for at in range(12) if at == 11 or first[at] != first[at + 1]]
            starts += [12 * row + end for end in ends]
        assert batch["cu_seqlens"].tolist() == starts
        assert batch["max_seqlen"] == max(np.diff(starts))
        assert type(batch["max_seqlen"]) is int
        for name in ("document_ids", "position_ids", "cu_seqlens"):
            assert batch[name].dtype == np.int32


def test_a_batch_stays_as_it_is_while_anything_refers_to_it(packed: hr.PackedDataset) -> None:
    loader = hr.DataLoader(packed, 8, seed=7, epochs=1, prefetch_factor=1, memory="8MiB")
    kept = [batch["tokens"][2:4] for batch in loader]
    copies = [batch["tokens"][2:4].copy() for batch in hr.DataLoader(packed, 8, seed=7, epochs=1)]
    np.testing.assert_array_equal(np.stack(kept), np.stack(copies))
    kept[0][:] = -1
    np.testing.assert_array_equal(np.stack(kept[1:]), np.stack(copies[1:]))


def test_a_row_is_the_same_however_it_is_read(packed: hr.PackedDataset) -> None:
    wanted = rows_of(hr.DataLoader(packed, 8, seed=9, epochs=2, lanes=8, window=5))
    for options in (
        {"num_workers": 1, "prefetch_factor": 7},
        {"num_workers": 8},
        {"memory": "3MiB", "num_workers": 1},
        {"timeout": 60},
        {"num_workers": 0},
    ):
        assert rows_of(hr.DataLoader(packed, 8, seed=9, epochs=2, lanes=8, window=5, **options)) == wanted


def test_the_ranks_share_out_each_batch(packed: hr.PackedDataset) -> None:
    # B025, B028, B031, B034: 40 row groups, up to 40 ranks; every rank is fed, no row comes twice.
    whole = list(hr.DataLoader(packed, global_batch_size=40, seed=9, epochs=1, lanes=8))
    for world in (2, 4, 5, 8, 10, 40):
        ranks = [
            hr.DataLoader(packed, global_batch_size=40, seed=9, epochs=1, lanes=8, rank=rank, world_size=world)
            for rank in range(world)
        ]
        for batches in zip(whole, *ranks, strict=True):
            wanted, parts = batches[0], batches[1:]
            assert {part["tokens"].shape for part in parts} == {(40 // world, 10)}
            numbers = np.concatenate([part.rows for part in parts])
            tokens = np.concatenate([part["tokens"] for part in parts])
            np.testing.assert_array_equal(np.sort(numbers), np.sort(wanted.rows))
            np.testing.assert_array_equal(tokens[np.argsort(numbers)], wanted["tokens"][np.argsort(wanted.rows)])


def test_errors_are_of_the_families_that_are_promised() -> None:
    assert issubclass(hr.DataError, (hr.HeadraceError, ValueError))
    assert issubclass(hr.MissingError, FileNotFoundError)
    for error in (hr.DataError, hr.StoreError, hr.MissingError, hr.BudgetError, hr.StateMismatch):
        assert issubclass(error, hr.HeadraceError)
        assert str(error("a message")) == "a message"


def test_a_loader_is_made_in_a_moment_for_any_number_of_workers(packed: hr.PackedDataset) -> None:
    loader = hr.DataLoader(packed, 8, seed=1, epochs=1, num_workers=(os.cpu_count() or 1) * 4)
    assert len(list(loader)) == 25

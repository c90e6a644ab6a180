"""The start of a run, and budgets of less than two windows: what is decoded in part must be what is decoded whole."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr

GROUPS = 16
WRITERS: dict[str, dict[str, Any]] = {
    "snappy, dictionary": {"compression": "snappy"},
    "zstd, dictionary, version 2": {"compression": "zstd", "data_page_version": "2.0"},
    "none, plain, small pages": {"compression": "none", "use_dictionary": False, "data_page_size": 64 << 10},
    "gzip, delta": {"compression": "gzip", "use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"},
}


def documents(group: int, high: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Offsets and tokens of a row group of about six hundred thousand tokens; some documents are empty, one is long."""
    random = np.random.default_rng(group)
    lengths = random.lognormal(6.0, 1.2, 800).astype(np.int64)
    lengths[random.integers(0, 800, 40)] = 0
    lengths[group] = 60_000
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return offsets, random.integers(0, high, offsets[-1], dtype=np.int32)


def write(path: Path, high: int, **writer: Any) -> None:
    schema = pa.schema([("tokens", pa.list_(pa.int32()))])
    with pq.ParquetWriter(path, schema, **writer) as file:
        for group in range(GROUPS):
            offsets, tokens = documents(group, high)
            lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens))
            file.write_table(pa.table({"tokens": lists}, schema=schema))


@pytest.fixture(scope="module", params=[(name, high) for name in WRITERS for high in (50_000, 130_000)], ids=str)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    name, high = request.param
    path = tmp_path_factory.mktemp("start") / "a.parquet"
    write(path, high, **WRITERS[name])
    yield path
    path.unlink()


PACKINGS: list[dict[str, Any]] = [
    {},
    {"bos_id": 1, "eos_id": 2, "boundaries": True, "overlap": 1},
]


def contents(batch: hr.Batch) -> list[Any]:
    arrays = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in batch.items()}
    return [batch.step, batch.rows.tolist(), arrays, batch.sources()]


@pytest.mark.parametrize("packing", PACKINGS, ids=["plain", "all"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_first_batch_from_anywhere_is_that_of_the_whole_run(
    dataset: Path, packing: dict[str, Any], shuffle: bool
) -> None:
    packed = hr.open(dataset).pack(512, **packing)
    arguments: dict[str, Any] = {"global_batch_size": 8, "shuffle": shuffle, "window": 8, "epochs": 2, "num_workers": 2}
    loader = hr.DataLoader(packed, **arguments)
    steps = loader.stats()["steps"]
    wanted = {1, 2, 700, steps // 2 - 1, steps // 2, steps // 2 + 1, steps * 3 // 4, steps - 2}
    whole = {}
    for batch in itertools.chain(loader, loader):
        if batch.step in wanted or batch.step - 1 in wanted:
            whole[batch.step] = contents(batch)
    assert loader.stats()["preview_bytes"] > 0
    for step in sorted(wanted):
        for world in (1, 2):
            parts: list[list[Any]] = []
            for rank in range(world):
                other = hr.DataLoader(packed, **arguments, rank=rank, world_size=world)
                other.seek(step)
                parts.append([contents(batch) for batch in itertools.islice(other, 2)])
                assert other.stats()["preview_bytes"] > 0
            for number, got in enumerate(zip(*parts, strict=True)):
                expected = whole[step + number]
                if world == 1:
                    assert got[0] == expected
                rows = [row for part in got for row in part[1]]
                tokens = [row for part in got for row in part[2]["tokens"]]
                sources = [row for part in got for row in part[3]]
                assert [rows, tokens, sources] == [expected[1], expected[2]["tokens"], expected[3]]
            assert len({len(part) for part in parts}) == 1
            assert parts[0], "the step itself at the least: an epoch may end behind it"


def test_tokens_of_a_first_batch_are_those_of_its_sources(dataset: Path) -> None:
    groups = [
        column.to_numpy() for column in (pq.ParquetFile(dataset).read_row_group(g)["tokens"] for g in range(GROUPS))
    ]
    loader = hr.DataLoader(hr.open(dataset).pack(512), global_batch_size=8, seed=3, window=8)
    for step in (0, 5, 400):
        loader.seek(step)
        batch = next(iter(loader))
        for row, sources in zip(batch["tokens"], batch.sources(), strict=True):
            parts = [groups[s.row_group][s.row][s.first_token : s.first_token + s.tokens] for s in sources]
            assert np.array_equal(np.concatenate(parts), row)


@pytest.mark.parametrize(
    "lanes, batch, packing",
    [(8, 8, {}), (8, 4, PACKINGS[1]), (16, 4, {}), (6, 4, {"overlap": 3}), (4, 12, PACKINGS[1]), (1, 4, {})],
    ids=str,
)
def test_every_budget_gives_the_same_rows_and_only_small_ones_spill(
    tmp_path: Path, lanes: int, batch: int, packing: dict[str, Any]
) -> None:
    # Pages that fit the smallest buffers: for larger ones a budget has to be larger.
    write(tmp_path / "a.parquet", 130_000, **WRITERS["none, plain, small pages"])
    packed = hr.open(tmp_path).pack(512, **packing)
    arguments: dict[str, Any] = {"global_batch_size": batch, "lanes": lanes, "window": 4, "num_workers": 1, "seed": 1}

    def run(memory: int) -> tuple[list[int], dict[str, Any]]:
        loader = hr.DataLoader(packed, **arguments, memory=memory, epochs=1)
        loader.skip(range(50, 90))
        sums = [hash(batch["tokens"].tobytes()) for batch in loader]
        return sums, loader.stats()

    everything, stats = run(1 << 30)
    assert stats["windows_spilled"] == 0
    least, window = least_memory(packed, arguments), 12_000_000  # bytes: 4 row groups of 700,000 tokens, of 4 bytes
    spilled = []
    for part in (0.3, 0.8, 1.1, 1.3, 1.6, 2.0, 3.0, 6.0):
        rows, stats = run(int(least + part * window))
        assert rows == everything, f"{part} windows"
        spilled.append(stats["windows_spilled"])
    assert spilled == sorted(spilled, reverse=True)
    assert spilled[0] > 0
    assert spilled[-2:] == [0, 0]


def test_one_token_documents_with_bos_are_read_page_by_page(tmp_path: Path) -> None:
    """A page of a single token that is the first which a rank needs."""
    tokens = np.arange(600, dtype=np.int32)
    lists = pa.ListArray.from_arrays(pa.array(np.arange(601, dtype=np.int32)), pa.array(tokens))
    table = pa.table({"tokens": lists})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=200, data_page_size=1, write_batch_size=1)
    packed = hr.open(tmp_path).pack(4, bos_id=8888)
    arguments: dict[str, Any] = {"global_batch_size": 8, "lanes": 8, "window": 2, "epochs": 1, "num_workers": 1}
    for world, seed in itertools.product((1, 2, 4, 8), range(3)):
        seen = np.zeros(600, np.int64)
        for rank in range(world):
            for batch in hr.DataLoader(packed, **arguments, seed=seed, rank=rank, world_size=world):
                row = batch["tokens"].ravel()
                seen += np.bincount(row[row < 600], minlength=600)
        assert seen.max() == 1
        assert seen.sum() > 560


def least_memory(packed: hr.PackedDataset, arguments: dict[str, Any]) -> int:
    """Bytes of a budget that are taken before any window."""
    with pytest.raises(hr.BudgetError) as caught:
        next(iter(hr.DataLoader(packed, **arguments, memory=1)))
    return int(str(caught.value).split(" needs ")[1].split()[0])


def test_batches_of_the_past_take_no_memory(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 130_000, **WRITERS["none, plain, small pages"])
    packed = hr.open(tmp_path).pack(512)
    # Enough for a page of the longest document, and not for three batches of 16,384 rows.
    loader = hr.DataLoader(packed, global_batch_size={0: 16384, 1: 4}, num_workers=1, memory="80MiB")
    with pytest.raises(hr.BudgetError, match="batches of 16384 rows"):
        next(iter(loader))
    loader.seek(1)
    assert len(next(iter(loader)).rows) == 4


def test_small_ids_take_half_the_memory(tmp_path: Path) -> None:
    held = {}
    for high in (65_536, 65_537):
        path = tmp_path / f"{high}.parquet"
        write(path, high - 1)
        # The largest id decides.
        offsets, tokens = documents(0, high)
        tokens[0] = high - 1
        table = pa.table({"tokens": pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens))})
        pq.write_table(table, path)
        loader = hr.DataLoader(hr.open(path).pack(512), global_batch_size=8, epochs=1)
        counts = np.zeros(high, np.int64)
        for batch in loader:
            counts += np.bincount(batch["tokens"].ravel(), minlength=high)
        assert counts.sum() == loader.stats()["tokens"]
        assert (counts <= np.bincount(tokens, minlength=high)).all()
        held[high] = loader.stats()["window_bytes"]
    assert 1.6 < held[65_537] / held[65_536] < 2.1

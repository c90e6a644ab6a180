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
            for got, expected in zip(zip(*parts, strict=True), (whole[step], whole.get(step + 1)), strict=False):
                rows = [row for part in got for row in part[1]]
                tokens = [row for part in got for row in part[2]["tokens"]]
                sources = [row for part in got for row in part[3]]
                assert expected is not None
                assert [rows, tokens, sources] == [expected[1], expected[2]["tokens"], expected[3]]


def test_tokens_of_a_first_batch_are_those_of_its_sources(dataset: Path) -> None:
    groups = [column.to_numpy() for column in (pq.ParquetFile(dataset).read_row_group(g)["tokens"] for g in range(GROUPS))]
    loader = hr.DataLoader(hr.open(dataset).pack(512), global_batch_size=8, seed=3, window=8)
    for step in (0, 5, 400):
        loader.seek(step)
        batch = next(iter(loader))
        for row, sources in zip(batch["tokens"], batch.sources(), strict=True):
            parts = [groups[s.row_group][s.row][s.first_token : s.first_token + s.tokens] for s in sources]
            assert np.array_equal(np.concatenate(parts), row)


def test_a_budget_of_less_than_two_windows_waits_and_one_of_less_than_one_spills(tmp_path: Path) -> None:
    # Pages that fit the smallest buffers: for larger ones a budget has to be larger.
    write(tmp_path / "a.parquet", 130_000, **WRITERS["none, plain, small pages"])
    packed = hr.open(tmp_path).pack(512)
    arguments: dict[str, Any] = {"global_batch_size": 8, "window": 4, "epochs": 1, "num_workers": 1, "seed": 1}

    def run(memory: int) -> tuple[int, dict[str, Any]]:
        loader = hr.DataLoader(packed, **arguments, memory=memory)
        sum_ = hash(tuple(batch["tokens"].tobytes() for batch in loader))
        return sum_, loader.stats()

    everything, stats = run(1 << 30)
    assert stats["windows_spilled"] == 0
    least = least_memory(packed, arguments)
    # What the windows held at most is two of them; a quarter of the rest of a budget is for large pages.
    window = stats["window_bytes"] // 2
    spilled = {}
    for part in (0.4, 1.3, 1.6, 2.6):
        again, stats = run(int(least + part * window * 4 / 3))
        assert again == everything, f"{part} windows"
        spilled[part] = stats["windows_spilled"]
    assert spilled[0.4] > 0
    assert spilled[1.3] == spilled[1.6] == spilled[2.6] == 0


def least_memory(packed: hr.PackedDataset, arguments: dict[str, Any]) -> int:
    """Bytes of a budget that are taken before any window."""
    with pytest.raises(hr.BudgetError) as caught:
        next(iter(hr.DataLoader(packed, **arguments, memory=1)))
    return int(str(caught.value).split(" needs ")[1].split()[0])


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

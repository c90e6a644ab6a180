"""How many requests reading takes, held against what is planned and told; and how busy it keeps a link."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from places import Place
from tools.fault_proxy import Link

pytestmark = pytest.mark.usefixtures("no_settings_from_outside")

TAIL = 64 << 10  # Bytes of a file's end that are read first: with a footer and eight more.
GAP = 128 << 10  # Bytes between two columns that are read with them, at most.
PIECE = 8 << 20  # Bytes of a request, at most.


def ranges(place: Place) -> list[tuple[int, int]]:
    """The bytes of files that were asked for so far, sorted."""
    notes = [note["range"] for note in place.proxies[0].requests() if note["range"]]
    return sorted((int(first), int(last) + 1) for first, last in (re.findall(r"\d+", note) for note in notes))


def in_pieces(wanted: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is asked for to have some ranges."""
    return [(at, min(at + PIECE, stop)) for start, stop in wanted for at in range(start, stop, PIECE)]


# Footers


def write_footer(path: Path, size: int) -> None:
    """Writes a file of tokens whose footer has so many bytes."""
    table = pa.table({"tokens": pa.array([[1, 2, 3]] * 50, pa.list_(pa.int32()))})
    filler = 0
    for _ in range(3):
        with pq.ParquetWriter(path, table.schema) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata({"filler": "x" * filler})
        filler += size - pq.read_metadata(path).serialized_size
    assert pq.read_metadata(path).serialized_size == size


@pytest.mark.parametrize(
    "size, requests",
    [(1_000, 1), (TAIL - 8, 1), (TAIL - 7, 2), (3_000_000, 2)],
    ids=["short", "as long as is read first", "a byte longer", "long"],
)
def test_a_footer_takes_one_request_or_two(
    at: Callable[[str], Place], tmp_path: Path, size: int, requests: int
) -> None:
    place = at("s3")
    write_footer(tmp_path / "a.parquet", size)
    place.server.put_folder(place.bucket, tmp_path, "in/")
    data = hr.open(place.url("in"), storage_options=place.options(), index="rebuild")
    end = (tmp_path / "a.parquet").stat().st_size
    wanted = [(max(0, end - TAIL), end), (end - size - 8, end - TAIL)][:requests]
    assert ranges(place) == sorted(wanted)
    assert data.pack(10).info()["tokens"] == 150
    assert len(ranges(place)) == requests, "the footer said it all"


def test_footers_of_many_columns_and_row_groups(at: Callable[[str], Place], tmp_path: Path) -> None:
    place = at("s3")
    columns = {f"column {number}": pa.array(range(200)) for number in range(60)}
    table = pa.table({"tokens": pa.array([[1, 2, 3]] * 200, pa.list_(pa.int32())), **columns})
    for number in range(5):
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=4)
    assert pq.read_metadata(tmp_path / "0.parquet").serialized_size > TAIL
    place.server.put_folder(place.bucket, tmp_path, "in/")
    hr.open(place.url("in"), storage_options=place.options(), index="rebuild")
    assert len(ranges(place)) == 2 * 5


# Row groups of tokens


def planned(place: Place, *arguments: str) -> dict[str, Any]:
    """What `headrace plan` says of the tokens of a place."""
    options = [word for name, value in place.options().items() for word in ("--storage-option", f"{name}={value}")]
    command = [sys.executable, "-m", "headrace", "plan", place.url("in"), "--json", "--seq-len", "100", "--batch", "8"]
    done = subprocess.run([*command, *options, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def write_tokens(path: Path, tokens: int, *, row_group: int, page: int, other: int = 0) -> None:
    """Writes documents of a hundred tokens that do not compress, and beside them a column of so many bytes a row."""
    values = np.random.default_rng(tokens).integers(0, 2**31 - 1, tokens, dtype=np.int32)
    offsets = pa.array(np.arange(0, tokens + 1, 100, dtype=np.int32))
    table = pa.table({"tokens": pa.ListArray.from_arrays(offsets, pa.array(values))})
    if other:
        table = table.append_column("other", pa.array([b"x" * other] * len(table)))
    settings: dict[str, Any] = {"compression": "none", "use_dictionary": False, "data_page_size": page}
    pq.write_table(table, path, row_group_size=row_group, **settings)


SHAPES: dict[str, tuple[dict[str, int], str]] = {
    "one request each": ({"tokens": 200_000, "row_group": 200, "page": 1 << 20}, "2GiB"),
    "other columns between": ({"tokens": 200_000, "row_group": 100, "page": 1 << 20, "other": 5_000}, "2GiB"),
    "many requests each": ({"tokens": 5_000_000, "row_group": 50_000, "page": 1 << 20}, "2GiB"),
    "short reads in little memory": ({"tokens": 1_000_000, "row_group": 5_000, "page": 16 << 10}, "32MiB"),
}


@pytest.mark.parametrize("shape, memory", SHAPES.values(), ids=SHAPES)
def test_tokens_take_the_requests_that_are_planned(
    at: Callable[[str], Place], tmp_path: Path, shape: dict[str, int], memory: str
) -> None:
    place = at("s3")
    for number in range(2):
        write_tokens(tmp_path / f"{number}.parquet", **shape)
    place.server.put_folder(place.bucket, tmp_path, "in/")
    plan = planned(place, "--memory", memory)
    block = plan["read_bytes"]
    sizes = []
    for number in range(2):
        groups = pq.read_metadata(tmp_path / f"{number}.parquet")
        sizes += [groups.row_group(group).column(0).total_compressed_size for group in range(groups.num_row_groups)]
    assert plan["requests_by_rank"] == [sum(-(-size // block) for size in sizes)]
    packed = hr.open(place.url("in"), storage_options=place.options()).pack(100)
    before = packed.core.traffic()[0]
    place.clear()
    loader = hr.DataLoader(packed, 8, epochs=1, memory=memory)
    for _ in loader:
        pass
    assert len(ranges(place)) == plan["requests_by_rank"][0]
    assert loader.stats()["requests"] - before == plan["requests_by_rank"][0]
    assert sum(stop - start for start, stop in ranges(place)) == plan["bytes_all_ranks"]


def test_ranks_take_no_more_requests_than_are_planned(at: Callable[[str], Place], tmp_path: Path) -> None:
    place = at("s3")
    write_tokens(tmp_path / "a.parquet", 2_000_000, row_group=2_000, page=64 << 10)
    place.server.put_folder(place.bucket, tmp_path, "in/")
    plan = planned(place, "--world", "2", "--window", "5", "--lanes", "8")
    assert len(plan["requests_by_rank"]) == 2
    packed = hr.open(place.url("in"), storage_options=place.options()).pack(100)
    for rank, most in enumerate(plan["requests_by_rank"]):
        place.clear()
        loader = hr.DataLoader(
            packed, global_batch_size=8, rank=rank, world_size=2, window=5, lanes=8, seed=0, epochs=1
        )
        for _ in loader:
            pass
        # Of a chunk that is another rank's from its middle on the rest may be left.
        assert most - 2 <= len(ranges(place)) <= most


# Row groups of any columns


def write_columns(path: Path, widths: Sequence[int]) -> None:
    """Writes a row group of one row: a column of each width, in bytes as they lie in the file."""
    columns: dict[str, list[bytes]] = {}
    for number, width in enumerate(widths):
        # What a page adds to its bytes depends a little on how many they are.
        for spare in range(40):
            columns[f"c{number}"] = [b"x" * max(0, width - spare)]
            alone = pa.table({"c": columns[f"c{number}"]})
            pq.write_table(alone, path, compression="none", use_dictionary=False, write_statistics=False)
            if pq.read_metadata(path).row_group(0).column(0).total_compressed_size == width:
                break
        else:
            raise AssertionError(f"no value takes {width} bytes")
    pq.write_table(pa.table(columns), path, compression="none", use_dictionary=False, write_statistics=False)


def merged(path: Path, names: Sequence[str]) -> list[tuple[int, int]]:
    """The bytes that reading some columns of the first row group takes, by the footer alone."""
    found: list[tuple[int, int]] = []
    group = pq.read_metadata(path).row_group(0)
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema in names:
            start, stop = column.data_page_offset, column.data_page_offset + column.total_compressed_size
            if found and start - found[-1][1] <= GAP:
                start = found.pop()[0]
            found.append((start, stop))
    return found


COLUMNS: dict[str, tuple[list[int], list[int], int]] = {
    "side by side": ([500, 500, 500], [0, 1, 2], 1),
    "a gap as wide as is read": ([500, GAP, 500], [0, 2], 1),
    "a gap a byte wider": ([500, GAP + 1, 500], [0, 2], 2),
    "two gaps, together too wide": ([500, GAP, 500, GAP, 500], [0, 2, 4], 1),
    "narrow and wide gaps": ([500, 3 * GAP, 500, 1_000, 500, 2 * GAP, 500], [0, 2, 4, 6], 3),
    "many columns of many": ([700] * 60, list(range(0, 60, 3)), 1),
    "longer than a request": ([500, PIECE + PIECE // 2], [0, 1], 2),
}


@pytest.mark.parametrize("widths, wanted, requests", COLUMNS.values(), ids=COLUMNS)
def test_columns_take_a_request_for_what_lies_together(
    at: Callable[[str], Place], tmp_path: Path, widths: list[int], wanted: list[int], requests: int
) -> None:
    place = at("s3")
    path = tmp_path / "a.parquet"
    write_columns(path, widths)
    place.server.put_folder(place.bucket, tmp_path, "in/")
    names = [f"c{number}" for number in wanted]
    data = hr.open(place.url("in"), format="parquet", storage_options=place.options(), index="rebuild").select(names)
    end = path.stat().st_size
    footer = (max(0, end - TAIL), end)
    assert set(ranges(place)) == {footer}
    place.clear()
    assert {name: len(value) for name, value in data[0].items()}.keys() == set(names)
    # The footer once more, for what the index does not keep of it.
    read = ranges(place)
    read.remove(footer)
    assert read == in_pieces(merged(path, names))
    assert len(read) == requests


# The link


def test_a_first_batch_takes_few_round_trips(at: Callable[[str], Place], corpus: Path) -> None:
    place = at("s3")
    place.server.put_folder(place.bucket, corpus, "corpus/")
    place.proxies[0].link = Link(latency=0.1, bandwidth=50e6)
    packed = hr.open(place.url("corpus"), storage_options=place.options(), index="rebuild").pack(100)
    next(iter(hr.DataLoader(packed, 8, seed=3)))
    # The listing, the footers, the first window.
    assert place.proxies[0].counts().depth <= 5


def test_the_link_is_kept_busy(at: Callable[[str], Place], tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 2**31 - 1, (8, 4_000_000), dtype=np.int32)
    offsets = pa.array(np.arange(0, 4_000_001, 1000, dtype=np.int32))
    for number in range(8):
        table = pa.table({"tokens": pa.ListArray.from_arrays(offsets, pa.array(values[number]))})
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table, path, row_group_size=250, compression="none", use_dictionary=False)
    place = at("s3")
    place.server.put_folder(place.bucket, tmp_path)
    packed = hr.open(place.url(), storage_options=place.options()).pack(2048)
    place.proxies[0].link = Link(latency=0.02, bandwidth=50e6)
    store = hr.Store(place.url(), storage_options=place.options())
    parts = [
        (file.key, at, min(4 << 20, file.size - at)) for file in store.list() for at in range(0, file.size, 4 << 20)
    ]

    def read() -> None:
        with ThreadPoolExecutor(16) as pool:
            assert sum(map(len, pool.map(lambda part: store.read(*part), parts))) > 128_000_000

    def load() -> None:
        assert len(list(hr.DataLoader(packed, 8, seed=3, epochs=1))) > 1900

    # What the machine can take from the link meanwhile, without a loader, is what a loader is to reach; of three times,
    # since others may use it in one of the two alone.
    shares: list[float] = []
    while not shares or (shares[-1] < 0.9 and len(shares) < 3):
        ceiling = rate(place, read)
        shares.append(rate(place, load) / ceiling)
    assert shares[-1] >= 0.9, shares


def rate(place: Place, use: Callable[[], None]) -> float:
    """Bytes that come over the link in a second."""
    place.clear()
    use()
    requests = place.proxies[0].requests()
    found = place.proxies[0].counts().bytes
    assert found > 128_000_000
    return found / (max(note["end"] for note in requests) - min(note["time"] for note in requests))

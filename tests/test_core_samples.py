"""What formats of samples are written over: listings, byte ranges, decompression, and the orders of items."""

import bz2
import gzip
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from golden import make_permutation
from headrace import _core
from reference import Reference, default_item_window, permuted


def silent(phase: str, done: int, total: int) -> None:
    pass


def listing(*urls: Path | str) -> _core.Listing:
    return _core.Listing.open([str(url) for url in urls], storage_options={}, progress=silent)


def names(found: _core.Listing) -> list[str]:
    return [path for path, _, _ in found.files()]


# Listings


def test_a_listing_takes_all_that_is_not_hidden(tmp_path: Path) -> None:
    for name in ("b.tar", "a/x.parquet", "a/empty", "a/_hidden", ".h/x", "z.json"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"" if name == "a/empty" else name.encode())
    found = listing(tmp_path)
    assert names(found) == ["a/empty", "a/x.parquet", "b.tar", "z.json"]
    assert [size for _, size, _ in found.files()] == [0, 11, 5, 6]
    times = [f"m{(tmp_path / name).stat().st_mtime_ns}" for name in names(found)]
    assert [version for *_, version in found.files()] == times
    assert (found.url, found.local_root, found.is_remote, found.is_folder) == (str(tmp_path),) * 2 + (False, True)
    assert found.uri("a/empty") == f"{tmp_path}/a/empty"
    some = listing(tmp_path / "*.tar", tmp_path / "a" / "_hidden")
    assert names(some) == ["a/_hidden", "b.tar"]
    assert not some.is_folder
    assert some.request != found.request == listing(tmp_path).request


@pytest.mark.parametrize(
    "pattern, message",
    [("*.tar", "matches no data file"), (".", "holds no data file: found 1 file: 1 hidden"), ("gone", "gone")],
)
def test_nothing_to_list_is_an_error(tmp_path: Path, pattern: str, message: str) -> None:
    (tmp_path / "_hidden").write_bytes(b"x")
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        listing(tmp_path / pattern)
    assert "Parquet" not in str(caught.value)


def test_an_index_of_a_listing_is_that_of_its_paths(tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(pa.table({"tokens": [[1, 2, 3]] * (number + 1)}), tmp_path / f"{number}.parquet")
    (tmp_path / "readme.txt").write_text("no data")
    arguments: dict[str, Any] = {"cache_dir": None, "index": "auto", "columns": ["tokens"], "progress": silent}
    found = listing(tmp_path)
    assert len(found.files()) == 4
    index = found.index(**arguments)
    same = _core.Index.open([str(tmp_path)], storage_options={}, **arguments)
    assert index.file_table() == same.file_table()
    assert index.identity("tokens") == same.identity("tokens")
    assert index.traffic() == found.traffic()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "empty").touch()
    marker = listing(tmp_path / "sub")
    with pytest.raises(ValueError, match="holds no data file: found 1 file: 1 empty"):
        marker.index(**arguments)


def test_a_root_lists_nothing(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"123")
    root = _core.Listing.root(str(tmp_path), storage_options={})
    assert (root.files(), root.local_root, root.is_folder, root.request) == ([], str(tmp_path), True, "")
    head = root.head("x")
    assert head == ("x", 3, f"m{(tmp_path / 'x').stat().st_mtime_ns}")
    assert bytes(root.read(*head, 1, 3)) == b"23"
    with pytest.raises(hr.errors.MissingError, match="gone"):
        root.head("a/gone")
    for path in ("", "../x", "a/../x", "/etc/passwd", "./x", "a//x", "x\0"):
        with pytest.raises(ValueError, match="expected a path below"):
            root.head(path)
        with pytest.raises(ValueError, match="expected a path below"):
            root.read(path, 3, "", 0, 1)
    with pytest.raises(ValueError, match="expected a folder, found a file"):
        _core.Listing.root(str(tmp_path / "x"), storage_options={})
    with pytest.raises(hr.errors.MissingError, match="gone"):
        _core.Listing.root(str(tmp_path / "gone"), storage_options={})
    with pytest.raises(ValueError, match="no listing"):
        root.index(cache_dir=None, index="auto", columns=None, progress=silent)


# Byte ranges


@given(start=st.integers(0, 40), length=st.integers(0, 40))
def test_ranges_are_what_the_file_holds(tmp_path_factory: pytest.TempPathFactory, start: int, length: int) -> None:
    path = tmp_path_factory.getbasetemp() / "ranges"
    content = bytes(range(40))
    if not path.exists():
        path.write_bytes(content)
    found = listing(path)
    [file] = found.files()
    if start + length > 40:
        with pytest.raises(ValueError, match="expected a range within its 40 bytes, got"):
            found.read(*file, start, start + length)
        return
    data = found.read(*file, start, start + length)
    assert bytes(data) == content[start : start + length]
    assert len(data) == length
    assert memoryview(data).readonly
    assert np.frombuffer(data, np.uint8).tolist() == list(content[start : start + length]) if length else True


def test_long_ranges_and_traffic(tmp_path: Path) -> None:
    content = os.urandom(20 << 20)
    (tmp_path / "x").write_bytes(content)
    found = listing(tmp_path)
    [file] = found.files()
    assert memoryview(found.read(*file, 5, 20 << 20)) == content[5:]
    assert found.traffic() == (3, (20 << 20) - 5, 0, 0, 0)


def test_a_changed_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"123")
    found = listing(path)
    [(name, size, version)] = found.files()
    os.utime(path, ns=(0, 1))
    with pytest.raises(hr.errors.DataError, match="changed since it was indexed"):
        found.read(name, size, version, 0, 3)
    assert bytes(found.read(name, size, "", 0, 3)) == b"123"
    with pytest.raises(hr.errors.DataError, match="changed"):
        found.read(name, size + 1, "", 0, 3)
    path.unlink()
    with pytest.raises(hr.errors.MissingError, match="x"):
        found.read(name, size, version, 0, 3)
    for token in ("m", "mx", "x1", "1"):
        with pytest.raises(ValueError, match="expected a version of a file"):
            found.read(name, size, token, 0, 3)


# Decompression

SAMPLE = b"the quick brown fox jumps over the lazy dog. " * 4000


@given(data=st.binary(max_size=5000), parts=st.integers(1, 3))
def test_gzip_is_what_python_makes(data: bytes, parts: int) -> None:
    packed = gzip.compress(data) * parts
    assert bytes(_core.decompress("gzip", packed, size=None, most=len(data) * parts)) == data * parts
    assert bytes(_core.decompress("gzip", memoryview(bytearray(packed)), size=len(data) * parts, most=1 << 20)) == (
        data * parts
    )


@pytest.mark.parametrize(
    "codec, name", [("zstd", "zstd"), ("brotli", "brotli"), ("snappy", "snappy"), ("gzip", "gzip")]
)
def test_codecs_are_those_of_arrow(codec: str, name: str) -> None:
    packed = pa.Codec(name).compress(SAMPLE, asbytes=True)
    assert bytes(_core.decompress(codec, packed, size=len(SAMPLE), most=len(SAMPLE))) == SAMPLE
    assert bytes(_core.decompress(codec, packed, size=None, most=1 << 40)) == SAMPLE
    with pytest.raises(hr.errors.DataError, match=r"shard-1: expected 5 bytes of .* found"):
        _core.decompress(codec, packed, size=5, most=1 << 30, name="shard-1")
    with pytest.raises(hr.errors.DataError, match=r"compressed data: expected .* at most 100 bytes .* found"):
        _core.decompress(codec, packed, size=None, most=100)
    with pytest.raises(hr.errors.DataError, match="found"):
        _core.decompress(codec, packed[:-3], size=len(SAMPLE), most=1 << 30)


def test_a_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(bytes(200 << 20), 9)
    with pytest.raises(hr.errors.DataError, match="at most 1048576 bytes once decompressed, found more"):
        _core.decompress("gzip", bomb, size=None, most=1 << 20)


def test_codecs_that_are_not_there_are_named() -> None:
    with pytest.raises(ValueError, match="expected a codec"):
        _core.decompress("bz2", bz2.compress(b"x"), size=None, most=10)
    with pytest.raises(ValueError, match=r"streamed \(zstd, gzip\)"):
        _core.Decompressor("brotli")
    with pytest.raises((BufferError, TypeError)):
        _core.decompress("gzip", np.zeros(3), size=None, most=10)  # not bytes
    with pytest.raises(ValueError, match="gaps"):
        _core.decompress("gzip", memoryview(b"123456")[::2], size=None, most=10)


@pytest.mark.parametrize("codec", ["zstd", "gzip"])
def test_streams(codec: str) -> None:
    packed = pa.Codec(codec).compress(SAMPLE, asbytes=True) * 2
    for step in (1 if codec == "gzip" else 7, 100, len(packed)):
        stream = _core.Decompressor(codec, name="x.tar")
        made = [stream.feed(packed[at : at + step]) for at in range(0, len(packed), step)]
        stream.finish()
        assert b"".join(made) == SAMPLE * 2
    stream = _core.Decompressor(codec, name="x.tar")
    stream.feed(packed[:-4])
    with pytest.raises(hr.errors.DataError, match=f"x.tar: expected {codec} data, found its end inside"):
        stream.finish()
    with pytest.raises(hr.errors.DataError, match=f"x.tar: expected {codec} data, found"):
        _core.Decompressor(codec, name="x.tar").feed(b"no such data at all")


def test_decompression_lets_other_threads_run() -> None:
    data = gzip.compress(bytes(300 << 20), 1)
    done = threading.Event()

    def work() -> None:
        _core.decompress("gzip", data, size=300 << 20, most=300 << 20)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    turns = 0
    while not done.is_set():
        turns += 1
        time.sleep(0.001)
    thread.join()
    assert turns > 5


# The orders


def item_order(items: list[int], **order: Any) -> _core.ItemOrder:
    return _core.ItemOrder(np.array(items, np.int64), **order)


@given(
    items=st.lists(st.integers(0, 9), min_size=1, max_size=7).filter(any),
    seed=st.integers(0, 2**64 - 1),
    lanes=st.integers(1, 9),
    window=st.integers(1, 8),
    shuffle=st.booleans(),
)
def test_items_are_rows_of_one_token(items: list[int], seed: int, lanes: int, window: int, shuffle: bool) -> None:
    lanes = lanes if shuffle else 1
    reference = Reference(
        [[[0]] * count for count in items],
        seed=seed,
        lanes=lanes,
        window=window,
        seq_len=1,
        global_batch_size=1,
        shuffle=shuffle,
    )
    order = item_order(items, seed=seed, shuffle=shuffle, lanes=lanes, window=window)
    total = sum(items)
    assert order.total == total
    assert order.windows == -(-len(items) // window)
    row = 0
    while row < 2 * total + 3:
        begin, end, chunks, numbers = order.window_at(row)
        assert begin <= row < end
        places = list(zip(np.frombuffer(chunks, np.uint32), np.frombuffer(numbers, np.uint32), strict=True))
        assert len(places) == end - begin
        for g in range(begin, end):
            [unit] = reference.row_units(g)
            assert (unit.source.chunk, unit.source.row) == places[g - begin]
            assert unit.epoch == g // total
        held = order.window_chunks(row)
        assert held[:2] == (begin, end)
        assert held[2] in reference.pass_windows(row // total)
        assert {chunk for chunk, _ in places} <= set(held[2])
        row = end


def test_any_row_can_be_the_first() -> None:
    items = [3, 0, 5, 1, 8, 2]
    order: dict[str, Any] = {"seed": 1, "shuffle": True, "lanes": 4, "window": 2}
    one = item_order(items, **order)
    windows = {
        row: [bytes(part) if isinstance(part, _core.Buffer) else part for part in one.window_at(row)]
        for row in range(80)
    }
    for row in (79, 40, 0, 19, 20, 60, 1):
        again = item_order(items, **order).window_at(row)
        assert [bytes(part) if isinstance(part, _core.Buffer) else part for part in again] == windows[row]


def test_what_cannot_be_ordered_is_refused() -> None:
    order: dict[str, Any] = {"seed": 0, "shuffle": True, "lanes": 1, "window": 1}
    for items, message in [
        ([0, 0], "no item"),
        ([-1], "negative"),
        ([2**32], "chunk 0: expected at most"),
        ([], "no item"),
    ]:
        with pytest.raises(ValueError, match=message):
            item_order(items, **order)
    with pytest.raises(ValueError, match="lanes must be 1"):
        item_order([1], **order | {"shuffle": False, "lanes": 2})
    with pytest.raises(ValueError, match="at least 1"):
        item_order([1], **order | {"window": 0})
    with pytest.raises(ValueError, match="beyond"):
        item_order([1], **order).window_at(2**61)


def test_windows_are_fast() -> None:
    order = item_order([655] * 100_000, seed=0, shuffle=True, lanes=64, window=100)
    order.window_chunks(0)
    best = 9.9
    for number in range(5):
        started = time.perf_counter()
        order.window_at(number * 65_500)
        best = min(best, time.perf_counter() - started)
    assert best < 0.02  # 1 ms on an idle machine


@given(
    items=st.lists(st.integers(0, 10**6), min_size=1, max_size=9),
    size=st.integers(0, 2**40),
    lanes=st.integers(1, 9999),
)
def test_the_default_window_is_that_of_the_page(items: list[int], size: int, lanes: int) -> None:
    wanted = default_item_window(items, size, lanes)
    assert _core.default_item_window(len(items), sum(items), size, lanes) == wanted


@given(
    size=st.integers(1, 2**61) | st.integers(1, 70),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**64 - 1),
    data=st.data(),
)
def test_permutations_are_those_of_the_page(size: int, seed: int, epoch: int, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, size))
    end = min(begin + data.draw(st.integers(0, 9)), size)
    numbers = np.frombuffer(_core.Permutation(size, seed=seed, epoch=epoch).take(begin, end), np.int64)
    assert numbers.tolist() == [permuted(place, size, seed=seed, epoch=epoch) for place in range(begin, end)]


def test_the_reference_gives_the_golden_permutations() -> None:
    """Byte for byte what `python tests/golden/make_permutation.py` writes."""
    assert make_permutation.PATH.read_text(encoding="utf-8") == make_permutation.text(make_permutation.golden())


def test_golden_permutations() -> None:
    cases = json.loads(make_permutation.PATH.read_text(encoding="utf-8"))
    assert len(cases) > 50
    for case in cases:
        size, count = case["size"], len(case["first"])
        permutation = _core.Permutation(size, seed=case["seed"], epoch=case["epoch"])
        assert permutation.size == size
        assert np.frombuffer(permutation.take(0, count), np.int64).tolist() == case["first"]
        assert np.frombuffer(permutation.take(size - count, size), np.int64).tolist() == case["last"]
    for size in (0, 2**61 + 1):
        with pytest.raises(ValueError, match="1 to 2\\^61 items"):
            _core.Permutation(size, seed=0, epoch=0)
    with pytest.raises(ValueError, match="expected places of the 3"):
        _core.Permutation(3, seed=0, epoch=0).take(0, 4)


def test_a_permutation_is_fast() -> None:
    permutation = _core.Permutation((1 << 22) + 1, seed=0, epoch=0)
    started = time.perf_counter()
    permutation.take(0, 1 << 22)
    assert time.perf_counter() - started < 2  # 0.15 s on an idle machine

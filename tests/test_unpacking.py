"""Compressed files that become more than they may: an error in time, with the file, what was expected and found."""

import bz2
import doctest
import gzip
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
import litdata_files as litdata
import mds_files as mds
from headrace import _memory, _unpacking
from headrace._memory import Room, memory_size
from headrace._unpacking import check_size, unpack, zstd_size
from headrace.errors import DataError
from tar_files import archive

MOST = 1 << 20
"""Bytes that a file may become in these tests."""
TOO_MUCH = 3 << 20


def have_little_memory(patch: pytest.MonkeyPatch) -> None:
    room = Room(MOST)
    patch.setattr(_unpacking, "_room", lambda: room)
    patch.setattr(_unpacking, "_SMALL", MOST // 8)


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    have_little_memory(monkeypatch)


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data)


def zstd_of_unknown_size(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


COMPRESS = {"gz": gzipped, "zst": zstandard.compress, "zst of unknown size": zstd_of_unknown_size}


@pytest.fixture(params=sorted(COMPRESS))
def how(request: pytest.FixtureRequest) -> str:
    return request.param


def test_an_archive(how: str, tmp_path: Path, little_memory: None) -> None:
    compress, suffix = COMPRESS[how], how.partition(" ")[0]
    for name, size in (("fits", MOST // 2), ("bomb", TOO_MUCH)):
        data = archive(tmp_path / "plain", {"a.x": bytes(size)}).read_bytes()
        folder = tmp_path / name
        folder.mkdir()
        path = folder / f"{name}.tar.{suffix}"
        path.write_bytes(compress(data))
        if name == "fits":
            assert hr.open(folder)[0]["x"] == bytes(size)
            continue
        found = f"a declared size of {len(data)}" if how == "zst" else "more"
        with pytest.raises(DataError, match=rf"{path}: expected at most {MOST} bytes once decompressed.*found {found}"):
            hr.open(folder)


def test_an_error_does_not_keep_the_memory(how: str, tmp_path: Path, little_memory: None) -> None:
    paths = [tmp_path / f"{name}.tar.{how.partition(' ')[0]}" for name in ("bomb", "garbage", "damaged")]
    packed = COMPRESS[how](b"x" * (MOST - 8))
    paths[0].write_bytes(COMPRESS[how](bytes(TOO_MUCH)))
    paths[1].write_bytes(packed)
    paths[2].write_bytes(packed[:-1])
    errors: list[Exception] = []
    tracemalloc.start()
    try:
        for path in paths:
            with pytest.raises(DataError, match=str(path)) as caught:
                hr.open(path)
            errors.append(caught.value)
        assert tracemalloc.get_traced_memory()[0] < MOST // 2
    finally:
        tracemalloc.stop()
    assert len(errors) == 3


def test_lines(how: str, tmp_path: Path, little_memory: None) -> None:
    compress, suffix = COMPRESS[how], how.partition(" ")[0]
    path = tmp_path / f"a.jsonl.{suffix}"
    for data in (b"1\n" + b" " * TOO_MUCH + b"\n", b'"' + b"x" * TOO_MUCH + b'"', b"0\n" * (TOO_MUCH // 2)):
        path.write_bytes(compress(data))
        with pytest.raises(DataError, match=rf"{path}: expected at most {MOST} bytes once decompressed.*found more"):
            hr.open(path)
    path.write_bytes(compress(b"0\n" * (MOST // 4)))
    assert len(hr.open(path)) == MOST // 4


def test_lines_whose_table_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"0\n" * (TOO_MUCH // 2)))
    data = hr.open(path)
    have_little_memory(monkeypatch)
    with pytest.raises(DataError, match=rf"{path}: .* found a declared size of {TOO_MUCH}"):
        data[0]


@pytest.mark.parametrize("codec,compress", [("zstd", zstandard.compress), ("gz", gzip.compress), ("bz2", bz2.compress)])
def test_a_shard_that_is_more_than_its_index_says(codec: str, compress: Any, tmp_path: Path) -> None:
    folder = mds.write(tmp_path, [(mds.COLUMNS, mds.rows(3))])
    entry, *_ = mds.read_entries(folder)
    bomb = compress(bytes(TOO_MUCH))
    (folder / "bomb").write_bytes(bomb)
    (folder / entry["raw_data"]["basename"]).unlink()
    entry |= {"compression": codec, "zip_data": {"basename": "bomb", "bytes": len(bomb), "hashes": {}}}
    mds.write_index(folder, [entry])
    expected = entry["raw_data"]["bytes"]
    with pytest.raises(DataError, match=rf"bomb: expected {expected} bytes of .* data once decompressed, found more"):
        mds.samples(mds.opened(folder))


def test_a_shard_whose_index_says_as_much(tmp_path: Path, little_memory: None) -> None:
    folder = mds.write(tmp_path, [(mds.COLUMNS, mds.rows(3))])
    entry, *_ = mds.read_entries(folder)
    bomb = zstandard.compress(bytes(TOO_MUCH))
    (folder / "bomb").write_bytes(bomb)
    entry |= {"compression": "zstd", "zip_data": {"basename": "bomb", "bytes": len(bomb), "hashes": {}}}
    entry["raw_data"] |= {"bytes": TOO_MUCH, "basename": "plain"}
    mds.write_index(folder, [entry])
    with pytest.raises(DataError, match=rf"bomb: expected at most {MOST} .* found a declared size of {TOO_MUCH}\nhint"):
        mds.samples(mds.opened(folder))


def test_litdata_chunks(tmp_path: Path, little_memory: None) -> None:
    samples = [{"x": np.zeros(MOST // 10)} for _ in range(3)]
    for level in ("chunk", "batch", "sample"):
        folder = litdata.write(tmp_path / level, samples, compression="zstd", compression_level=level)
        if level == "sample":  # Each fits.
            litdata.same(litdata.ours(folder), samples)
            continue
        with pytest.raises(DataError, match=rf"chunk-0-0.*: expected at most {MOST} bytes once decompressed"):
            litdata.ours(folder)


def test_a_litdata_item(tmp_path: Path, little_memory: None) -> None:
    folder = litdata.by_hand(
        tmp_path,
        [[zstd_of_unknown_size(litdata.item(bytes(TOO_MUCH)))]],
        data_format=["bytes"], data_spec=litdata.spec(), compression="zstd", compression_level="sample",
    )  # fmt: skip
    with pytest.raises(DataError, match=r"chunk-0-0\.bin, chunk 0, row 0: .*expected at most .* found more"):
        litdata.ours(folder)


PROGRAM = """
import resource, sys
import headrace, pyarrow
limit = 3 << 29
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    headrace.open(sys.argv[1])
except headrace.DataError as error:
    print(error)
"""


def test_a_process_with_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b" " * (1 << 20)) * 1000)
    done = subprocess.run([sys.executable, "-c", PROGRAM, path], capture_output=True, text=True, check=True)
    assert f"{path}: expected at most {3 << 28} bytes once decompressed" in done.stdout, done.stderr


@given(st.lists(st.tuples(st.binary(max_size=400), st.integers(0, 5), st.sampled_from([1, 300, 70_000])), max_size=4))
def test_the_size_that_zstd_declares(parts: list[tuple[bytes, int, int]]) -> None:
    frames, size = b"", 0
    for data, kind, times in parts:
        if kind == 0:
            frames += b"\x53\x2a\x4d\x18" + len(data).to_bytes(4, "little") + data
            continue
        frames += zstandard.ZstdCompressor(level=kind, write_checksum=kind > 3).compress(data * times)
        size += len(data) * times
    assert zstd_size(memoryview(frames)) == size
    if frames:
        assert len(unpack("zstd", memoryview(frames), size=None, where="x")) == size
    assert zstd_size(memoryview(frames + zstd_of_unknown_size(b"x" * 10))) is None
    for cut in range(1, min(len(frames), 20)):
        zstd_size(memoryview(frames[:cut]))
        zstd_size(memoryview(frames[cut:]))


def test_a_declared_size_is_held_to() -> None:
    frame = bytearray(zstandard.compress(b"abc" * 1000))
    assert zstd_size(memoryview(frame)) == 3000
    frame[5] ^= 1
    declared = zstd_size(memoryview(frame))
    assert declared not in (None, 3000)
    with pytest.raises(DataError, match=f"^shard: expected {declared} bytes of zstd data once decompressed, found "):
        unpack("zstd", memoryview(frame), size=None, where="shard")


def test_examples() -> None:
    assert doctest.testmod(_unpacking) == (0, 1)


# Memory


def test_the_memory_there_is(tmp_path: Path) -> None:
    assert 1 << 26 < memory_size() < 1 << 60
    own, root = tmp_path / "own", tmp_path / "root"
    own.write_text("9:name=systemd:/\n4:memory:/a/b\n1:cpu,cpuacct:/\n0::/c\n")
    for name, text in {"memory/memory.limit_in_bytes": "9000\n", "memory/a/memory.limit_in_bytes": "70",
                       "c/memory.max": "max\n", "memory.max": "80"}.items():  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    assert sorted(_memory.cgroup_limits(own, root)) == [70, 80, 9000]
    assert list(_memory.cgroup_limits(tmp_path / "none", root)) == []
    assert list(_memory.cgroup_limits(own, tmp_path / "none")) == []


def test_the_first_goes_on_and_others_wait_where_there_is_no_room() -> None:
    room = Room(10)
    order: list[str] = []
    waits = threading.Event()

    def second() -> None:
        with room.entered() as hold:
            hold(5)
            waits.set()
            hold(6)
            order.append("second")

    with room.entered() as hold:
        hold(6)
        thread = threading.Thread(target=second)
        thread.start()
        waits.wait()
        hold(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    with room.entered() as hold:
        hold(10)  # All is given back.


def test_many_threads_find_room(little_memory: None) -> None:
    packed = memoryview(zstd_of_unknown_size(np.arange(MOST // 8, dtype=np.int64).tobytes()[: MOST - 8]))
    made: list[int] = []
    threads = [
        threading.Thread(target=lambda: made.append(len(unpack("zstd", packed, size=None, where="x"))))
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert made == [MOST - 8] * 12


def test_what_fits_is_not_refused(little_memory: None) -> None:
    check_size(MOST, "x")
    with pytest.raises(DataError, match=f"^x: expected at most {MOST} .* found a declared size of {MOST + 1}"):
        check_size(MOST + 1, "x")

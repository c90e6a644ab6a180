"""The disk cache: remote bytes are fetched once, whoever wants them, and never served when they are old."""

import json
import os
import re
import signal
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from files import environment, finish, run_python, start_python
from headrace import _core
from headrace._disk_cache import Place, place
from headrace._files import Store
from tools.fault_proxy import FaultProxy, Link
from tools.http_server import FileServer
from tools.s3_server import S3Server

NUMBERS = count()
LIMIT = "1GiB"

PROGRAM = """
import json, sys
import headrace as hr
url, options, cache = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
data = hr.open(url, storage_options=options, cache_dir=cache, cache_size="1GiB").pack(100)
loader = hr.DataLoader(data, 8, seed=3, epochs=1, num_workers=1)
sys.stdin.readline()
print(sum(int(batch["tokens"].sum()) for batch in loader))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as running:
        yield running


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", server.port) as running:
        yield running


@pytest.fixture
def bucket(server: S3Server, tmp_path: Path) -> str:
    name = f"cache-{next(NUMBERS)}"
    server.make_bucket(name)
    folder = tmp_path / "data"
    write(folder, seed=0)
    server.put_folder(name, folder, "data/")
    return name


def write(folder: Path, seed: int) -> None:
    """Four files of five row groups of 8,000 tokens, which do not compress."""
    folder.mkdir(exist_ok=True)
    values = np.random.default_rng(seed).integers(0, 2**31 - 1, (4, 40_000), dtype=np.int32)
    for number in range(4):
        offsets = pa.array(np.arange(0, 40_001, 200, dtype=np.int32))
        table = pa.table({"tokens": pa.ListArray.from_arrays(offsets, pa.array(values[number]))})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=40, compression="none", use_dictionary=False)


def open_cached(proxy: FaultProxy, server: S3Server, bucket: str, cache: Path, **more: Any) -> hr.PackedDataset:
    options = server.storage_options(proxy.endpoint)
    arguments: dict[str, Any] = {"cache_dir": cache, "cache_size": LIMIT} | more
    return hr.open(f"s3://{bucket}/data", storage_options=options, **arguments).pack(100)


def tokens_of(packed: hr.PackedDataset, epochs: int = 1) -> tuple[list[list[int]], dict[str, Any]]:
    loader = hr.DataLoader(packed, 8, seed=3, epochs=epochs, num_workers=2)
    rows = [row for _ in range(epochs) for batch in loader for row in batch["tokens"].tolist()]
    return rows, loader.stats()


def entries(cache: Path) -> list[Path]:
    return sorted(path for path in cache.glob("data-*/*/*") if path.is_file())


def test_a_second_epoch_and_a_second_run_fetch_nothing(
    server: S3Server, proxy: FaultProxy, bucket: str, tmp_path: Path
) -> None:
    packed = open_cached(proxy, server, bucket, tmp_path / "cache")
    plain = hr.open(f"s3://{bucket}/data", storage_options=server.storage_options()).pack(100)
    proxy.clear()
    rows, stats = tokens_of(packed, epochs=2)
    assert rows == tokens_of(plain, epochs=2)[0]
    read = proxy.counts().bytes
    assert read < 1.1 * sum(path.stat().st_size for path in (tmp_path / "data").iterdir())
    assert stats["bytes_cached"] > 0.9 * read
    proxy.clear()
    # Opened again: the listing is asked for, and nothing else.
    again = open_cached(proxy, server, bucket, tmp_path / "cache")
    assert tokens_of(again, epochs=2)[0] == rows
    assert proxy.counts().bytes < 20_000
    assert {note["range"] for note in proxy.requests()} == {None}
    modes = {stat.S_IMODE(path.stat().st_mode) for path in entries(tmp_path / "cache")}
    assert modes == {0o600}


def test_samples_are_cached_too(server: S3Server, proxy: FaultProxy, tmp_path: Path) -> None:
    bucket = f"cache-{next(NUMBERS)}"
    server.make_bucket(bucket)
    for number in range(6):
        server.put(bucket, f"data/{number}.bin", bytes([number]) * 20_000)
    options = server.storage_options(proxy.endpoint)
    data = hr.open(f"s3://{bucket}/data", storage_options=options, cache_dir=tmp_path, cache_size=10**8)
    loader = hr.DataLoader(data, 2, seed=1, epochs=3)
    for _ in range(3):
        assert sum(len(batch["data"]) for batch in loader) == 6
    # Beside those that found out what the files are.
    assert len([note for note in proxy.requests() if note["range"] == "bytes=0-19999"]) == 6
    assert loader.stats()["bytes_cached"] == 2 * 6 * 20_000


def test_processes_of_a_machine_fetch_each_range_once(
    server: S3Server, proxy: FaultProxy, bucket: str, tmp_path: Path
) -> None:
    proxy.link = Link(latency=0.05)
    arguments = (f"s3://{bucket}/data", json.dumps(server.storage_options(proxy.endpoint)), tmp_path / "cache")
    processes = [start_python(PROGRAM, *arguments) for _ in range(3)]
    answers = {finish(process, 90) for process in processes}
    assert len(answers) == 1
    data = sum(path.stat().st_size for path in (tmp_path / "data").iterdir())
    # The footers come with the ends of their files.
    assert proxy.counts().bytes < 1.5 * data
    gets = [(note["target"], note["range"]) for note in proxy.requests() if note["range"]]
    assert len(gets) > 10
    assert len(gets) == len(set(gets)), "no range twice"


def test_one_that_is_killed_leaves_the_cache_usable(
    server: S3Server, proxy: FaultProxy, bucket: str, tmp_path: Path
) -> None:
    proxy.link = Link(latency=0.02, bandwidth=2e6)
    arguments = (f"s3://{bucket}/data", json.dumps(server.storage_options(proxy.endpoint)), str(tmp_path / "cache"))
    process = start_python(PROGRAM, *arguments)
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    end = time.monotonic() + 60
    while not entries(tmp_path / "cache"):
        assert time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    proxy.link = Link()
    rows = tokens_of(open_cached(proxy, server, bucket, tmp_path / "cache"))[0]
    plain = hr.open(f"s3://{bucket}/data", storage_options=server.storage_options()).pack(100)
    assert rows == tokens_of(plain)[0]


def test_data_that_was_replaced_is_never_served(
    server: S3Server, proxy: FaultProxy, bucket: str, tmp_path: Path
) -> None:
    before = tokens_of(open_cached(proxy, server, bucket, tmp_path / "cache"))[0]
    write(tmp_path / "data", seed=1)
    server.put_folder(bucket, tmp_path / "data", "data/")
    after = tokens_of(open_cached(proxy, server, bucket, tmp_path / "cache"))[0]
    plain = hr.open(f"s3://{bucket}/data", storage_options=server.storage_options()).pack(100)
    assert after == tokens_of(plain)[0] != before


def test_a_damaged_entry_is_fetched_anew_with_a_warning(
    server: S3Server, proxy: FaultProxy, bucket: str, tmp_path: Path
) -> None:
    packed = open_cached(proxy, server, bucket, tmp_path / "cache")
    rows = tokens_of(packed)[0]
    for path in entries(tmp_path / "cache"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    proxy.clear()
    with pytest.warns(RuntimeWarning, match="damaged cache entry was fetched anew"):
        assert tokens_of(packed)[0] == rows
    fetched = proxy.counts().bytes
    assert fetched > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tokens_of(packed)[0] == rows
    assert proxy.counts().bytes == fetched, "and is whole again"


def test_without_a_place_to_write_there_is_one_warning_and_no_cache(
    server: S3Server, proxy: FaultProxy, bucket: str, tmp_path: Path
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        packed = open_cached(proxy, server, bucket, blocked / "cache", index=str(tmp_path / "index.arrow"))
        rows, stats = tokens_of(packed, epochs=2)
    assert len([warning for warning in caught if "nothing more is cached" in str(warning.message)]) == 1
    assert stats["bytes_cached"] == 0
    plain = hr.open(f"s3://{bucket}/data", storage_options=server.storage_options()).pack(100)
    assert rows == tokens_of(plain, epochs=2)[0]


def test_a_full_disk_means_no_more_entries(server: S3Server, bucket: str, tmp_path: Path) -> None:
    # Files of a process may not grow beyond this: writes fail as on a full disk.
    program = """
import resource, signal, sys, warnings, json
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
import headrace as hr
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    data = hr.open(sys.argv[1], storage_options=json.loads(sys.argv[2]), cache_dir=sys.argv[3], cache_size="1GiB")
    loader = hr.DataLoader(data.pack(100), 8, seed=3, epochs=1)
    rows = sum(len(batch["tokens"]) for batch in loader)
print(rows, len([w for w in caught if "nothing more is cached" in str(w.message)]))
"""
    options = json.dumps(server.storage_options())
    printed = run_python(program, f"s3://{bucket}/data", options, tmp_path / "cache")
    assert printed.split() == ["1600", "1"]
    assert all(path.stat().st_size <= 20_000 for path in entries(tmp_path / "cache"))


def test_it_stays_within_its_size_and_deletes_nothing_else(
    server: S3Server, proxy: FaultProxy, bucket: str, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    mine = cache / f"data-{os.geteuid()}" / "ab" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("not an entry")
    for _ in range(2):
        tokens_of(open_cached(proxy, server, bucket, cache, cache_size="600KB"))
    sizes = [path.stat().st_size for path in entries(cache) if path != mine]
    assert len(sizes) > 3
    assert sum(sizes) <= 600_000
    assert _core.DiskCache.clear(cache) == (len(sizes), sum(sizes))
    assert entries(cache) == [mine]


def test_a_size_that_holds_no_range_says_what_it_needs(
    server: S3Server, proxy: FaultProxy, bucket: str, tmp_path: Path
) -> None:
    # Half of a row group's column.
    with pytest.warns(RuntimeWarning, match=r"(?s)a range of \d+ bytes is not cached.*hint: ") as caught:
        rows = tokens_of(open_cached(proxy, server, bucket, tmp_path / "cache", cache_size=16_000))[0]
    plain = hr.open(f"s3://{bucket}/data", storage_options=server.storage_options()).pack(100)
    assert rows == tokens_of(plain)[0]
    assert entries(tmp_path / "cache") == []
    (warning,) = caught
    (needed,) = re.findall(r"a cache_size of (\d+) or more", str(warning.message))
    tokens_of(open_cached(proxy, server, bucket, tmp_path / "cache", cache_size=int(needed)))
    assert entries(tmp_path / "cache") != []


def test_what_is_not_to_be_kept_is_not(server: S3Server, proxy: FaultProxy, bucket: str, tmp_path: Path) -> None:
    with environment(HEADRACE_CACHE_SIZE="1GiB"):
        rows, stats = tokens_of(open_cached(proxy, server, bucket, tmp_path / "cache", cache_size=0), epochs=2)
        assert (len(rows), stats["bytes_cached"]) == (3200, 0)
        assert entries(tmp_path / "cache") == []


def test_ranks_without_a_cache_folder_do_not_wait_for_each_other(
    server: S3Server, proxy: FaultProxy, bucket: str, tmp_path: Path
) -> None:
    program = """
        import json, sys
        import headrace as hr
        url, options, rank = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
        data = hr.open(url, storage_options=options).pack(100)
        loader = hr.DataLoader(data, global_batch_size=8, seed=3, epochs=1, rank=rank, world_size=2)
        print(sum(len(batch["tokens"]) for batch in loader))
    """
    arguments = (f"s3://{bucket}/data", json.dumps(server.storage_options(proxy.endpoint)))
    for nowhere in ({"HOME": str(tmp_path / "a")}, {"HOME": "", "XDG_CACHE_HOME": ""}):
        ranks = [start_python(program, *arguments, rank, HEADRACE_CACHE="", **nowhere) for rank in range(2)]
        assert [int(finish(process)) for process in ranks] == [800, 800]


def test_many_threads_at_once_share_a_cache_and_change_nothing_of_the_process(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number in range(40):
        (tmp_path / "data" / f"{number}.bin").write_bytes(bytes([number]) * 9000)
    before = (os.umask(0o077), Path.cwd())
    try:
        store = Store([f"local:{tmp_path / 'data'}"], {}, Place(str(tmp_path / "cache"), 10**9))
        with ThreadPoolExecutor(32) as pool:
            found = list(pool.map(store.read, store.files * 5))
        assert sorted(found) == sorted(bytes([number]) * 9000 for number in range(40) for _ in range(5))
        assert (os.umask(0o077), Path.cwd()) == (0o077, before[1])
    finally:
        os.umask(before[0])
    assert len(entries(tmp_path / "cache")) == 40
    assert {stat.S_IMODE(path.stat().st_mode) for path in entries(tmp_path / "cache")} == {0o600}


def test_only_what_a_user_keeps_is_closed_to_others(tmp_path: Path) -> None:
    anybody, mask = 0o1777, os.umask(0o022)
    os.umask(mask)
    shared = tmp_path / "scratch"
    shared.mkdir()
    shared.chmod(anybody)
    # As its parent has it, so that others can have a folder beside this user's wherever they could have had one.
    for cache, mode in [(tmp_path / "own" / "deep" / "cache", 0o777 & ~mask), (shared / "a" / "cache", anybody)]:
        _core.DiskCache(cache, 10**6)
        assert [stat.S_IMODE(folder.stat().st_mode) for folder in (cache.parent, cache)] == [mode, mode]
        assert stat.S_IMODE((cache / f"data-{os.geteuid()}").stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_two_users_share_a_folder() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
        Path(scratch).chmod(0o1777)
        cache = Path(scratch) / "headrace"
        for user in (12_345, 12_346):
            child = os.fork()
            if child == 0:
                os.setuid(user)
                problem = _core.DiskCache(cache, 10**6).take_problem()
                os._exit(0 if problem is None else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert {folder.name: folder.stat().st_uid for folder in cache.iterdir()} == {
            "data-12345": 12_345,
            "data-12346": 12_346,
        }


def test_how_large_it_may_be(tmp_path: Path) -> None:
    assert place(tmp_path, None) is None
    assert place(tmp_path, 0) is None
    assert place(tmp_path, "50GiB") == Place(str(tmp_path), 50 * 2**30)
    assert place(tmp_path, 10**9) == Place(str(tmp_path), 10**9)
    free = os.statvfs(tmp_path)
    for half in (0.5, "0.5"):
        found = place(tmp_path / "not" / "there", half)
        assert found == Place(str(tmp_path / "not" / "there"), 0.5)
        assert 0.4 < found.limit / (free.f_bavail * free.f_frsize) < 0.6
    with environment(HEADRACE_CACHE_SIZE="20 MB"):
        assert place(tmp_path, None) == Place(str(tmp_path), 20 * 10**6)
        assert place(tmp_path, 0) is None, "what is said here counts"
    for wrong in (1.0, -0.5, float("nan"), "1.5", "lots", -1):
        with pytest.raises(ValueError, match="cache_size must be"):
            place(tmp_path, wrong)
    with environment(HEADRACE_CACHE_SIZE="lots"), pytest.raises(ValueError, match="HEADRACE_CACHE_SIZE must be"):
        place(tmp_path, None)
    with pytest.raises(TypeError):
        hr.open(tmp_path, cache_size=[])  # type: ignore[arg-type]


def test_local_files_are_not_copied(tmp_path: Path) -> None:
    write(tmp_path / "data", seed=0)
    for url in (str(tmp_path / "data"), (tmp_path / "data").as_uri()):
        tokens_of(hr.open(url, cache_dir=tmp_path / "cache", cache_size=LIMIT).pack(100))
    assert entries(tmp_path / "cache") == []
    # Unless they are said to lie on a slow mount.
    rows = tokens_of(hr.open(f"local:{tmp_path / 'data'}", cache_dir=tmp_path / "cache", cache_size=LIMIT).pack(100))[0]
    assert entries(tmp_path / "cache") != []
    assert rows == tokens_of(hr.open(tmp_path / "data").pack(100))[0]


def test_processes_use_the_cache_of_a_slow_mount(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    lines = "\n".join(json.dumps({"id": line, "text": "x" * 100}) for line in range(200))
    (tmp_path / "data/0.jsonl").write_text(lines)
    data = hr.open(f"local:{tmp_path / 'data'}", cache_dir=tmp_path / "cache", cache_size=LIMIT)
    for entry in entries(tmp_path / "cache"):
        entry.unlink()
    loader = hr.DataLoader(data, 10, seed=1, epochs=1, worker_type="process", num_workers=1)
    assert sorted(row for batch in loader for row in batch["id"]) == list(range(200))
    assert entries(tmp_path / "cache") != []


def test_a_time_in_whole_seconds_tells_too_little(tmp_path: Path) -> None:
    with FileServer(tags="none") as server:
        server.make_bucket("d")
        # Both within one second.
        time.sleep(1.02 - time.time() % 1)
        server.put("d", "a.bin", b"1" * 9000)
        url = server.url("d", "a.bin")
        options: dict[str, Any] = {"cache_dir": tmp_path, "cache_size": LIMIT, "format": "files"}
        assert hr.open(url, **options)[0]["data"] == b"1" * 9000
        server.put("d", "a.bin", b"2" * 9000)
        assert hr.open(url, **options)[0]["data"] == b"2" * 9000
    assert entries(tmp_path) == []

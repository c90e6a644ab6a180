"""Rows of remote files that the core gathers ahead of use: the same batches, in few requests, and errors in time."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from files import finish, start_python
from headrace.errors import DataError, StoreError
from test_row_feed import BOTH, arguments, check_alike, loaders, wait_for
from tools.fault_proxy import FaultProxy, Link, Weather
from tools.http_server import FileServer

pytestmark = pytest.mark.usefixtures("no_settings_from_outside")

HASTY = {"max_retries": "2"}
ROWS, LENGTH = 240, 100


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    """Three files of numbers that count on, `LENGTH` of them in a row and 80 rows in a file."""
    with FileServer() as server:
        server.make_bucket("data")
        for number in range(3):
            begin = ROWS // 3 * LENGTH * number
            server.put("data", f"{number}.bin", np.arange(begin, begin + ROWS // 3 * LENGTH, dtype="<u4").tobytes())
        with FaultProxy("127.0.0.1", server.port) as running:
            yield running


def rows(proxy: FaultProxy, **more: Any) -> Any:
    """Those of the proxy's files."""
    urls = [f"{proxy.endpoint}/data/{number}.bin" for number in range(3)]
    data = hr.open(urls, stored_dtype="uint32", **more).sequences(LENGTH, dtype="int64")
    proxy.clear()
    return data


def firsts(batches: Any) -> list[int]:
    """The number of each row."""
    found: list[int] = []
    for batch in batches:
        begins = batch["tokens"][:, :1]
        assert np.array_equal(batch["tokens"], begins + np.arange(LENGTH))
        found += (begins[:, 0] // LENGTH).tolist()
    return found


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_batches_are_those_that_workers_make(tmp_path_factory, data):
    """Of a slow mount with a cache, which is read as a store is."""
    draw = data.draw
    path = tmp_path_factory.mktemp("slow")
    dtype = np.dtype([("tokens", "<u2"), ("kind", "u1"), ("more", "<f8", (2,))])
    with hr.StreamWriter(path / "stream", dtype, shard_bytes=70 * dtype.itemsize) as writer:
        writer.write(np.frombuffer(np.random.default_rng(1).bytes(400 * dtype.itemsize), dtype))
    samples = hr.open(f"local:{path / 'stream'}", cache_dir=path / "cache", cache_size=10**8)
    length = draw(st.sampled_from([None, 1, 3, 9]))
    if length is not None:
        samples = samples.sequences(length, overlap=draw(st.integers(0, 1)))
    if draw(st.booleans()):
        samples = samples.select(draw(st.permutations(dtype.names or ()))[: draw(st.integers(1, 3))])
    check_alike(draw, *loaders(draw, samples, arguments(draw)))


@pytest.mark.parametrize("workers, shuffle", [(0, True), (2, True), (2, False)])
def test_rows_are_exact_in_bad_weather(proxy: FaultProxy, workers: int, shuffle: bool) -> None:
    data = rows(proxy, storage_options={"timeout": "0.5"})
    wanted = firsts(hr.DataLoader(data, batch_size=40, seed=2, epochs=1, shuffle=shuffle))
    proxy.weather = Weather(3, rate=0.1)
    loader = hr.DataLoader(data, batch_size=40, seed=2, epochs=1, num_workers=workers, shuffle=shuffle)
    assert firsts(loader) == wanted
    assert proxy.counts().faults > 0, "or nothing was tested"


def test_neighbours_are_read_at_once_and_others_at_the_same_time(proxy: FaultProxy) -> None:
    data = rows(proxy)
    assert firsts(hr.DataLoader(data, batch_size=40, shuffle=False, epochs=1, num_workers=1)) == list(range(ROWS))
    assert proxy.counts().requests == 6
    proxy.clear()
    proxy.link = Link(latency=0.2)
    assert sorted(firsts(hr.DataLoader(data, batch_size=40, epochs=1, num_workers=2))) == list(range(ROWS))
    counts = proxy.counts()
    assert counts.requests > 6
    # Not one after another.
    assert counts.depth < 30


def test_an_epoch_that_was_cached_asks_for_nothing(proxy: FaultProxy, tmp_path: Path) -> None:
    urls = [f"{proxy.endpoint}/data/{number}.bin" for number in range(3)]
    data = hr.open(urls, stored_dtype="uint32", cache_dir=tmp_path, cache_size=10**8).sequences(2 * LENGTH * 6)
    proxy.clear()
    loader = hr.DataLoader(data, batch_size=2, seed=1, epochs=2, num_workers=2)
    first = np.concatenate([batch["tokens"][:, 0] for batch in loader])
    asked = proxy.counts().requests
    assert asked >= len(data) // 2
    second = np.concatenate([batch["tokens"][:, 0] for batch in loader])
    assert np.array_equal(np.sort(first), np.sort(second))
    assert loader.stats()["bytes_cached"] > 0
    assert proxy.counts().requests < 1.5 * asked


@pytest.mark.parametrize("workers", [0, 2])
def test_a_store_that_stays_broken_is_an_error_in_time_and_loses_nothing(proxy: FaultProxy, workers: int) -> None:
    loader = hr.DataLoader(
        rows(proxy, storage_options=HASTY), batch_size=5, seed=4, epochs=1, num_workers=workers, memory=1
    )
    wanted = firsts(hr.DataLoader(rows(proxy), batch_size=5, seed=4, epochs=1))
    batches = iter(loader)
    found = firsts([next(batches)])
    proxy.clear()
    proxy.add("status", count=10**6, status=503)
    with pytest.raises(StoreError, match="503") as caught:
        found.extend(row for batch in batches for row in firsts([batch]))
    # Three times each, and not again by who makes batches otherwise; one that waits long may have a second request.
    asked = Counter((note["target"], note["range"]) for note in proxy.requests())
    assert 3 <= max(asked.values()) < 6
    assert f"batch {len(found) // 5} of this iterator" in caught.value.__notes__
    assert loader.step == len(found) // 5
    proxy.clear()
    assert found + firsts(batches) == wanted


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_file_that_is_replaced_is_named(proxy: FaultProxy, workers: int, on_error: Any) -> None:
    data = rows(proxy)
    loader = hr.DataLoader(
        data, batch_size=4, shuffle=False, num_workers=workers, memory=1, on_error=on_error, epochs=1
    )
    batches = iter(loader)
    found, errors = firsts([next(batches)]), list[DataError]()
    proxy.add("replace", match="/data/1.bin")
    while True:
        try:
            found += firsts([next(batches)])
        except StopIteration:
            break
        except DataError as error:
            errors.append(error)
    assert found == [*range(80), *range(160, 240)]
    assert len(errors) == (20 if on_error == "raise" else 0)
    for number, error in enumerate(errors, 20):
        assert "1.bin" in str(error)
        assert f"batch {number} of this iterator" in error.__notes__
        assert any(f"sample {4 * number} (" in note for note in error.__notes__)
    assert len(loader.stats()["skipped"]) == (0 if on_error == "raise" else 80)


def test_a_number_that_does_not_fit_is_left_out() -> None:
    with FileServer() as server:
        server.make_bucket("data")
        server.put("data", "a.bin", np.array([1, 2, 3, 2**31, 5, 6], dtype="<u4").tobytes())
        data = hr.open(server.url("data", "a.bin"), stored_dtype="uint32").sequences(2, dtype="int32")
        loader = hr.DataLoader(data, batch_size=1, shuffle=False, epochs=1, num_workers=1, on_error="skip")
        assert [batch["tokens"].tolist() for batch in loader] == [[[1, 2]], [[5, 6]]]
        assert [position for position, *_ in loader.stats()["skipped"]] == [1]


def test_threads_that_wait_for_a_store_end_with_the_iterator(proxy: FaultProxy) -> None:
    loader = hr.DataLoader(rows(proxy), batch_size=2, num_workers=2, timeout=0.5)
    proxy.add("stall", count=10**6, before=True, seconds=60)
    batches = iter(loader)
    with pytest.raises(TimeoutError, match="no result after"):
        next(batches)
    wait_for(BOTH)
    begun = time.monotonic()
    del batches
    wait_for(set())
    assert time.monotonic() - begun < 5


PROGRAM = """
    import json, sys, threading, time, _thread
    import headrace as hr
    data = hr.open(json.loads(sys.argv[1]), stored_dtype="uint32").sequences(100)
    loader = hr.DataLoader(data, batch_size=4, shuffle=False, num_workers=int(sys.argv[2]), memory=1, epochs=1)
    batches = iter(loader)
    found = [next(batches)["tokens"][0, 0] // 100]
    print("begun", flush=True)
    sys.stdin.readline()
    threading.Timer(0.5, _thread.interrupt_main).start()
    begin = time.monotonic()
    try:
        while True:
            found.append(next(batches)["tokens"][0, 0] // 100)
    except KeyboardInterrupt:
        print(time.monotonic() - begin, flush=True)
    sys.stdin.readline()
    found += [batch["tokens"][0, 0] // 100 for batch in batches]
    print([int(number) for number in found] == list(range(0, 240, 4)))
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_ends_a_wait_for_a_store(proxy: FaultProxy, workers: int) -> None:
    urls = [f"{proxy.endpoint}/data/{number}.bin" for number in range(3)]
    process = start_python(PROGRAM, json.dumps(urls), workers)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    proxy.add("stall", count=10**6, before=True, seconds=60)
    process.stdin.write("\n")
    process.stdin.flush()
    assert float(process.stdout.readline()) < 5
    proxy.clear()
    process.stdin.write("\n")
    assert finish(process, 60).strip() == "True"

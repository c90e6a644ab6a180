"""What `optimize` and `map` take as inputs: queues, readers, weights, batches, datasets."""

import functools
import http.server
import itertools
import multiprocessing
import os
import queue as queues
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
import prepare_functions as functions
from headrace.prepare import queueing
from headrace.prepare.digests import digest
from headrace.prepare.feed import Feed, Iterated, Listed
from headrace.prepare.progress import Done
from prepare_functions import by_number, environment, ours, plain, wanted

QUIET: dict[str, Any] = {"progress": False, "verbose": False}
SPAWN = multiprocessing.get_context("spawn")


# The feed


@settings(deadline=None)
@given(
    st.integers(0, 40),
    st.lists(st.tuples(st.integers(0, 39), st.integers(0, 5)), max_size=6),
    st.dictionaries(st.integers(0, 39), st.integers(1, 9), max_size=4),
    st.lists(st.integers(0, 39), unique=True, max_size=8),
    st.integers(1, 7),
    st.booleans(),
)
def test_each_input_that_is_not_done_is_given_once(
    count: int, ranges: list[tuple[int, int]], taken: dict[int, int], heavy: list[int], size: int, in_order: bool
) -> None:
    ends = [(first, min(first + more, count - 1)) for first, more in ranges]
    numbers = {number for first, last in ends for number in range(first, last + 1)}
    begun = {number: samples for number, samples in taken.items() if number < count and number not in numbers}
    for kind in (Listed, Iterated):
        done = Done()
        done.update([list(pair) for pair in ends if pair[0] <= pair[1]], [list(pair) for pair in begun.items()])
        first = [number for number in heavy if number < count]
        source = (
            Listed(range(count), done, limit=None, heavy=first)
            if kind is Listed
            else Iterated(iter(range(count)), done, limit=None, total=None)
        )
        tasks = list(iter(lambda source=source: source.next(size, in_order=in_order), None))
        given = [number for task in tasks for number in range(task.first, task.first + len(task.values))]
        assert [value for task in tasks for value in task.values] == given
        assert sorted(given) == [number for number in range(count) if number not in numbers]
        assert all(0 < len(task.values) <= size for task in tasks)
        assert {task.first: task.skip for task in tasks if task.skip} == begun
        if kind is Listed and not in_order:
            left = [number for number in first if number not in numbers]
            assert given[: len(left)] == left
            assert given[len(left) :] == sorted(given[len(left) :])
        else:
            assert given == sorted(given)


class Looked(int):
    """A number that counts how often it is compared."""

    count = 0

    def __eq__(self, other: object) -> bool:
        Looked.count += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_what_is_left_of_heavy_inputs_is_found_in_one_look_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Looked, "count", 0)
    done = Done()
    for number in range(0, 2000, 2):
        done.add(number, number)
    heavy = [Looked(number) for number in range(1000, 2000)]
    source = Listed(range(2000), done, limit=None, heavy=heavy)
    assert Looked.count < 5000
    task = source.next(1, in_order=False)
    assert task is not None
    assert task.first == 1001


def test_an_iterator_that_never_gives_does_not_keep_others_from_stopping() -> None:
    asked, held = threading.Event(), threading.Event()

    def endless() -> Iterator[int]:
        asked.set()
        held.wait()
        yield 1

    feed = Feed(Iterated(endless(), Done(), limit=None, total=None), alone=False)
    thread = threading.Thread(target=feed.take, args=(1,))
    thread.start()
    assert asked.wait(10)
    feed.stop()
    assert feed.take(1) is None
    assert feed.puller is thread
    held.set()
    thread.join(10)
    assert not thread.is_alive()


# Weights and batches


def test_heavy_inputs_come_first_and_samples_keep_their_order(tmp_path: Path) -> None:
    weights = [1.0] * 20
    weights[7], weights[3], weights[18] = 30, 9, 12
    for ordered in (True, False):
        fn = functions.Timed(tmp_path / f"log-{ordered}")
        folder = tmp_path / str(ordered)
        headrace.optimize(
            fn, range(20), folder, weights=weights, num_workers=0, keep_data_ordered=ordered, **QUIET
        )  # fmt: skip
        rest = [number for number in range(20) if number not in (7, 18, 3)]
        # Where the first sample decides what all are like, it comes first.
        assert fn.order() == [0, 7, 18, 3, *rest[1:]]
        found = ours(folder)
        assert (found if ordered else by_number(found)) == [plain(functions.sample(number)) for number in range(20)]


def test_what_waits_for_its_turn_stops_nobody_when_heavy_inputs_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.prepare.chunking._MOST_WAITING", 1)
    weights = [1, 1, 1, 100, 90, 80]
    headrace.optimize(
        functions.huge, range(6), tmp_path, weights=weights, num_workers=2, keep_data_ordered=True, **QUIET
    )  # fmt: skip
    assert len(headrace.open(tmp_path)) == 240


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("count", [0, 1, 6, 50])
def test_batches_are_lists_of_inputs(tmp_path: Path, workers: int, count: int) -> None:
    how: dict[str, Any] = {"batch_size": 7, "num_workers": workers, "keep_data_ordered": True, **QUIET}
    if count in (0, 1):
        with pytest.raises(ValueError, match="expected at least one sample"):
            headrace.optimize(functions.batch, range(count), tmp_path, **how)
        return
    for number, inputs in enumerate([list(range(count)), iter(range(count))]):
        headrace.optimize(functions.batch, inputs, tmp_path / str(number), **how)
        assert ours(tmp_path / str(number)) == wanted(count)


def test_a_failure_in_a_batch_names_the_batch(tmp_path: Path) -> None:
    def fails(numbers: list[int]) -> Any:
        if 4 in numbers:
            raise ValueError("no 4")
        return functions.sample(numbers[0])

    made = headrace.optimize(fails, range(9), tmp_path, batch_size=3, num_workers=0, on_error="skip", **QUIET)
    assert [(failure.input, failure.value) for failure in made.skipped] == [(1, "[3, 4, 5]")]


# Aligned chunks


def test_aligned_chunks_are_full_and_in_order(tmp_path: Path) -> None:
    how: dict[str, Any] = {"num_workers": 2, "align_chunking": True, **QUIET}
    headrace.optimize(functions.several, range(50), tmp_path / "data", chunk_size=7, **how)
    assert ours(tmp_path / "data") == wanted(50)
    sizes = headrace.open(tmp_path / "data").pipeline.origins[0].source.sizes.tolist()
    assert sizes == [7] * 7
    with pytest.raises(ValueError, match="align_chunking needs chunk_size"):
        headrace.optimize(functions.several, range(50), tmp_path / "other", **how)
    with pytest.raises(ValueError, match="and no chunk_bytes"):
        headrace.optimize(functions.several, range(50), tmp_path / "other", chunk_size=7, chunk_bytes=100, **how)


def test_aligned_chunks_that_cannot_be_full_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.prepare.writing.litdata.LitDataLayout.most_bytes", 2_000_000)
    with pytest.raises(ValueError, match=r"expected 9 samples in each file of at most 2,000,000 bytes, found 6"):
        headrace.optimize(
            functions.huge, range(1), tmp_path, chunk_size=9, num_workers=0, align_chunking=True, **QUIET
        )  # fmt: skip
    monkeypatch.undo()
    headrace.optimize(functions.huge, range(1), tmp_path, chunk_size=9, num_workers=0, align_chunking=True, **QUIET)
    assert headrace.open(tmp_path).pipeline.origins[0].source.sizes.tolist() == [9, 9, 9, 9, 4]


# Readers


def parquet(folder: Path, name: str, groups: list[int], start: int = 0) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / name
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("tags", pa.list_(pa.string()))])
    with pq.ParquetWriter(path, schema) as writer:
        for rows in groups:
            ids = list(range(start, start + rows))
            start += rows
            columns = {"id": ids, "text": [f"text {id}" for id in ids], "tags": [["a"] * (id % 3) for id in ids]}
            writer.write_table(pa.table(columns, schema))
    return str(path)


@pytest.mark.parametrize("workers", [0, 2])
def test_one_large_parquet_file_is_work_for_all(tmp_path: Path, workers: int) -> None:
    paths = [parquet(tmp_path / "raw", "a.parquet", [2_500, 0, 90]), parquet(tmp_path / "raw", "b.parquet", [10], 2590)]
    reader = headrace.ParquetReader(rows=100, columns=["id"])
    headrace.optimize(
        functions.table, paths, tmp_path / "data", reader=reader, num_workers=workers, keep_data_ordered=True, **QUIET
    )
    found = ours(tmp_path / "data")
    assert [sample["id"] for sample in found] == list(range(2600))
    assert {sample["rows"] for sample in found} == {100, 90, 10}
    assert set(found[0]) == {"id", "rows"}


@settings(max_examples=25, deadline=None)
@given(
    groups=st.lists(st.integers(0, 70), min_size=1, max_size=4),
    rows=st.integers(1, 40),
    order=st.randoms(use_true_random=False),
    data=st.data(),
)
def test_parts_hold_each_row_once_in_whatever_order_they_are_read(
    tmp_path_factory: pytest.TempPathFactory, groups: list[int], rows: int, order: Any, data: st.DataObject
) -> None:
    path = parquet(tmp_path_factory.mktemp("parts"), "a.parquet", groups)
    reader = headrace.ParquetReader(rows=rows)
    parts = list(reader.split([path]))
    assert all(0 < part.stop - part.start <= rows for part in parts)
    if data.draw(st.booleans()):
        order.shuffle(parts)
    found = [id for part in parts for id in reader.read(part)["id"].to_pylist()]
    assert sorted(found) == list(range(sum(groups)))
    for part in parts[:3]:
        assert reader.read(part).num_rows == part.stop - part.start


def test_a_reader_says_what_is_wrong(tmp_path: Path) -> None:
    path = parquet(tmp_path / "raw", "a.parquet", [10])
    (tmp_path / "raw" / "b.parquet").write_bytes(b"no parquet at all")
    how: dict[str, Any] = {"num_workers": 0, **QUIET}
    reader = headrace.ParquetReader(columns=["words"])
    with pytest.raises(headrace.DataError, match="expected a column 'words', found id, tags"):
        headrace.optimize(functions.table, [path], tmp_path / "data", reader=reader, **how)
    bad = str(tmp_path / "raw" / "b.parquet")
    with pytest.raises(headrace.DataError, match=r"b\.parquet: expected a Parquet file"):
        headrace.optimize(functions.table, [path, bad], tmp_path / "data", reader=headrace.ParquetReader(), **how)
    with pytest.raises(TypeError, match="ParquetReader takes paths of Parquet files, got 3"):
        headrace.optimize(functions.table, [3], tmp_path / "data", reader=headrace.ParquetReader(), **how)
    with pytest.raises(TypeError, match=r"reader must be a headrace\.Reader, got a str"):
        headrace.optimize(functions.table, [path], tmp_path / "data", reader="parquet", **how)  # pyright: ignore
    with pytest.raises(ValueError, match="rows must be at least 1"):
        headrace.ParquetReader(rows=0)
    with pytest.raises(ValueError, match="weights are for inputs, and parts of a reader are others"):
        headrace.optimize(
            functions.table, [path], tmp_path / "data", reader=headrace.ParquetReader(), weights=[1], **how
        )  # fmt: skip
    assert not (tmp_path / "data").exists()


def test_a_file_that_changed_between_its_split_and_its_read(tmp_path: Path) -> None:
    path = parquet(tmp_path / "raw", "a.parquet", [10])
    reader = headrace.ParquetReader(rows=10)
    (part,) = reader.split([path])
    # As many rows, or more, of another content would be taken for it.
    for rows in 4, 10, 20:
        parquet(tmp_path / "raw", "a.parquet", [rows])
        with pytest.raises(headrace.DataError, match=r"a\.parquet: expected the file that was cut into parts, of vers"):
            reader.read(part)


def test_what_signs_a_url_is_not_shown(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    parquet(raw, "a.parquet", [10])
    (raw / "b.parquet").write_bytes(b"no parquet at all")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(raw))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            at = f"http://127.0.0.1:{server.server_port}"
            good, bad = (f"{at}/{name}.parquet?X-Amz-Signature=SECRET" for name in "ab")
            reader = headrace.ParquetReader(rows=5)
            with pytest.raises(headrace.DataError) as caught:
                reader.split([bad])
            with pytest.raises(headrace.DataError, match="expected a column") as other:
                headrace.ParquetReader(columns=["nothing"]).split([good])
            parts = reader.split([good])
            again = reader.split([good.replace("SECRET", "OTHER")])
            assert reader.read(parts[1]).num_rows == 5
        finally:
            server.shutdown()
    said = f"{caught.value}{other.value}{parts}"
    assert f"{at}/a.parquet, rows 5 to 9 of row group 0" in said
    assert "SECRET" not in said
    # The same call may come with a new one.
    assert digest(parts) == digest(again)


def test_a_batch_of_parts(tmp_path: Path) -> None:
    path = parquet(tmp_path / "raw", "a.parquet", [40])
    made = headrace.optimize(
        lambda tables: {"rows": [table.num_rows for table in tables]},
        [path],
        tmp_path / "data",
        reader=headrace.ParquetReader(rows=8),
        batch_size=3,
        format="parquet",
        num_workers=0,
        keep_data_ordered=True,
        **QUIET,
    )
    assert made.samples == 2
    assert [sample["rows"] for sample in ours(tmp_path / "data")] == [[8, 8, 8], [8, 8]]


# Datasets and loaders


class TorchSquares(functions.Squares, torch.utils.data.Dataset[Any]):
    """It is found by its class alone."""


def test_items_of_datasets_are_read_where_they_are_needed(tmp_path: Path) -> None:
    headrace.optimize(
        functions.where, TorchSquares(), tmp_path / "torch", num_workers=2, keep_data_ordered=True, **QUIET
    )  # fmt: skip
    assert ours(tmp_path / "torch") == [{"number": number, "here": True} for number in range(30)]
    data = headrace.open(tmp_path / "torch")
    headrace.optimize(dict, data, tmp_path / "again", num_workers=1, keep_data_ordered=True, format="mds", **QUIET)
    assert [sample["number"] for sample in ours(tmp_path / "again")] == list(range(30))


def test_a_loader_of_pytorch_gives_batches(tmp_path: Path) -> None:
    loader = torch.utils.data.DataLoader(torch.arange(20), batch_size=6)  # pyright: ignore[reportArgumentType]
    headrace.optimize(
        summed, loader, tmp_path / "sums", num_workers=1, keep_data_ordered=True, **QUIET
    )  # fmt: skip
    assert [sample["sum"] for sample in ours(tmp_path / "sums")] == [15, 51, 87, 37]


def summed(batch: Any) -> dict[str, int]:
    return {"sum": int(batch.sum())}


# Queues


@pytest.mark.parametrize("workers", [0, 2])
def test_a_queue_of_several_producers(tmp_path: Path, workers: int) -> None:
    queue = SPAWN.Queue(8)
    producers = [SPAWN.Process(target=functions.put, args=(queue, range(at, 90, 3), 0)) for at in range(3)]
    for producer in producers:
        producer.start()
    made = headrace.optimize(
        functions.several, None, tmp_path, queue=queue, producers=3, num_workers=workers, **QUIET
    )  # fmt: skip
    assert made.samples == 90
    assert by_number(ours(tmp_path)) == by_number(wanted(90))
    for producer in producers:
        producer.join()


def test_a_queue_of_a_thread_that_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that lives it is never said that it ended, however long it is silent."""
    queue: queues.Queue[Any] = queues.Queue()
    looked, check = threading.Event(), queueing.Producers.check

    def checked(self: queueing.Producers, silent: float) -> None:
        check(self, silent + 1e6)
        looked.set()

    monkeypatch.setattr(queueing.Producers, "check", checked)

    def produce() -> None:
        functions.put(queue, range(20), 0, ends=False)
        assert looked.wait(60)
        functions.put(queue, range(20, 40), 0)

    thread = threading.Thread(target=produce)
    thread.start()
    made = headrace.optimize(functions.several, None, tmp_path, queue=queue, num_workers=1, **QUIET)
    thread.join()
    assert made.samples == 39


def test_a_producer_that_is_killed_is_an_error_and_its_inputs_can_come_again(tmp_path: Path) -> None:
    queue = SPAWN.Queue()
    slow = SPAWN.Process(target=functions.put, args=(queue, range(30), 0.05), name="slow")
    fast = SPAWN.Process(target=functions.put, args=(queue, range(30, 60), 0), name="fast")
    slow.start()
    fast.start()
    log = functions.Logged(tmp_path / "log", 0)
    killer = threading.Thread(target=kill_when, args=(log, 35, slow.pid))
    killer.start()
    with pytest.raises(RuntimeError, match=r"ended without a None: 1 of 2 Nones came, .*: slow \(exit code -9\)\nhint"):
        headrace.optimize(
            log, None, tmp_path / "data", queue=queue, producers=[slow, fast], num_workers=1, **QUIET
        )  # fmt: skip
    killer.join()
    first = log.calls()
    assert not (tmp_path / "data" / "index.json").exists()
    again: queues.Queue[Any] = queues.Queue()
    # In another order, and one that was never there before.
    functions.put(again, range(60, -1, -1), 0)
    headrace.optimize(log, None, tmp_path / "data", queue=again, num_workers=1, **QUIET)
    assert by_number(ours(tmp_path / "data")) == by_number(wanted(61))
    assert 61 <= len(log.calls()) <= 61 + 16
    assert len(first) >= 35


def kill_when(log: functions.Logged, count: int, pid: int | None) -> None:
    assert pid is not None
    while len(log.calls()) < count:
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is there but this thread, whatever other tests left."""
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread()])


@pytest.mark.usefixtures("alone")
def test_without_names_the_end_of_all_who_could_put_is_noticed(tmp_path: Path) -> None:
    queue = SPAWN.Queue()
    producer = SPAWN.Process(target=functions.put, args=(queue, range(9), 0, False))
    producer.start()
    with pytest.raises(RuntimeError, match=r"the queue is empty, 0 of 1 Nones came, and all who could put more have"):
        headrace.optimize(functions.several, None, tmp_path, queue=queue, num_workers=0, **QUIET)
    producer.join()


@pytest.mark.usefixtures("alone")
def test_a_queue_that_nobody_can_put_into_is_not_waited_for(tmp_path: Path) -> None:
    queue: queues.Queue[Any] = queues.Queue()
    functions.put(queue, range(3), 0, ends=False)
    with pytest.raises(
        RuntimeError, match=r"0 of 1 Nones came, and nobody is there who could put more\nhint: put None"
    ):
        headrace.optimize(functions.several, None, tmp_path, queue=queue, num_workers=0, **QUIET)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_follows_the_last_none_is_for_the_next_run(tmp_path: Path, workers: int) -> None:
    queue: queues.Queue[Any] = queues.Queue()
    for numbers in range(5), range(5, 9), range(9, 12):
        functions.put(queue, numbers, 0)
    for name, producers, numbers in [("one", 2, range(9)), ("other", 1, range(9, 12))]:
        headrace.optimize(
            functions.sample, None, tmp_path / name, queue=queue, producers=producers, num_workers=workers, **QUIET
        )  # fmt: skip
        assert by_number(ours(tmp_path / name)) == by_number([plain(functions.sample(at)) for at in numbers])
    assert queue.empty()


def test_a_trial_takes_no_more_of_a_queue_than_it_needs(tmp_path: Path) -> None:
    queue: queues.Queue[Any] = queues.Queue()
    functions.put(queue, range(9), 0)
    made = headrace.optimize(functions.sample, None, tmp_path, queue=queue, num_workers=0, fast_dev_run=2, **QUIET)
    assert made.samples == 2
    assert [queue.get_nowait() for _ in range(queue.qsize())] == [*range(2, 9), None]


def test_a_queue_that_gives_less_the_second_time_is_refused(tmp_path: Path) -> None:
    first: queues.Queue[Any] = queues.Queue()
    functions.put(first, range(20), 0)
    with pytest.raises(ValueError, match="no 3"):
        headrace.optimize(functions.fails, None, tmp_path, queue=first, num_workers=0, **QUIET)
    second: queues.Queue[Any] = queues.Queue()
    functions.put(second, range(15, 20), 0)
    with pytest.raises(headrace.StateMismatch, match=r"all but \d+ inputs that the unfinished run had taken from it"):
        headrace.optimize(functions.fails, None, tmp_path, queue=second, num_workers=0, **QUIET)


QUEUED = """
import queue, sys
from pathlib import Path
import headrace, prepare_functions
if __name__ == "__main__":
    folder, mixed = Path(sys.argv[1]), int(sys.argv[2])
    inputs = queue.Queue()
    for number in range(90):
        inputs.put((number * mixed) % 90)
    inputs.put(None)
    headrace.optimize(
        prepare_functions.Logged(folder / "log", 0.01), None, folder / "data", queue=inputs, chunk_size=7,
        num_workers=2, progress=False, verbose=False,
    )
"""


@pytest.mark.slow
def test_a_run_over_a_queue_that_is_killed_again_and_again_goes_on(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(QUEUED)
    log = functions.Logged(tmp_path / "log", 0)
    kills = 0
    for inputs, mixed in zip(range(5, 300, 20), itertools.cycle([1, 7, 11, 89])):
        process = subprocess.Popen([sys.executable, program, tmp_path, str(mixed)], env=environment())
        while process.poll() is None and len(log.calls()) < inputs:
            time.sleep(0.002)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert process.wait() == 0  # pyright: ignore[reportPossiblyUnboundVariable]
    assert kills >= 3
    assert by_number(ours(tmp_path / "data")) == by_number(wanted(90))
    assert len(log.calls()) - 90 <= kills * 32


@pytest.mark.parametrize(
    "how,message",
    [
        ({"inputs": [1]}, "inputs must be None with a queue"),
        ({"keep_data_ordered": True}, "keep_data_ordered is for inputs whose order is known"),
        ({"batch_size": 2}, "batch_size is for inputs whose order is known"),
        ({"weights": [1]}, "weights is for inputs whose order is known"),
        ({"producers": 0}, "producers must be at least 1, got 0"),
        ({"producers": ["a"]}, r"producers must be a number, or processes and threads with is_alive\(\), got a str"),
        ({"queue": [1]}, r"queue must have get\(timeout=\)"),
        ({"queue": multiprocessing.SimpleQueue()}, r"queue must have get\(timeout=\)"),
    ],
)
def test_what_does_not_go_with_a_queue(tmp_path: Path, how: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"inputs": None, "queue": queues.Queue(), "num_workers": 0, **how, **QUIET}
    with pytest.raises((ValueError, TypeError), match=message):
        headrace.optimize(functions.sample, output_dir=tmp_path / "data", **arguments)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "how,message",
    [
        ({"weights": [1, 2]}, "weights must be one for each of the 3 inputs, got 2"),
        ({"weights": [1, -2, 3]}, r"weights must be finite and not negative, got -2\.0"),
        ({"inputs": iter([1]), "weights": [1]}, "weights need inputs whose number is known"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"producers": 2}, "producers are of a queue, which is None, got 2"),
        ({"producers": [threading.main_thread()]}, "producers are of a queue"),
        ({"compression": 3}, "compression must be None or text, got 3"),
        ({"serializers": ["a"]}, "serializers must be a mapping from names to objects, got a list"),
        ({"inputs": pd.DataFrame({"a": [1]})}, r'hint: frame\.to_dict\("records"\) gives its rows'),
        ({"start_method": "fork"}, "start_method must be 'spawn', got 'fork': a fork copies the locks"),
        ({"start_method": "thread"}, "start_method must be 'spawn', got 'thread'"),
    ],
)
def test_arguments_about_inputs_are_checked(tmp_path: Path, how: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"inputs": range(3), "num_workers": 0, **how, **QUIET}
    with pytest.raises((ValueError, TypeError), match=message):
        headrace.optimize(functions.sample, output_dir=tmp_path / "data", **arguments)
    assert not (tmp_path / "data").exists()


def test_a_series_is_its_values_whatever_their_labels(tmp_path: Path) -> None:
    series = pd.Series(["a", "b", "c"]).drop(0)
    headrace.optimize(str, series, tmp_path, num_workers=0, keep_data_ordered=True, **QUIET)
    data = headrace.open(tmp_path)
    assert [data[at] for at in range(len(data))] == ["b", "c"]


def test_map_takes_them_too(tmp_path: Path) -> None:
    queue: queues.Queue[Any] = queues.Queue()
    functions.put(queue, range(5), 0)
    headrace.map(functions.write_file, None, tmp_path / "queued", queue=queue, num_workers=1, **QUIET)
    assert sorted(path.name for path in (tmp_path / "queued" / "deep").iterdir()) == [f"{at}.txt" for at in range(5)]

    def write(tables: Any, folder: str) -> None:
        Path(folder, f"{tables[0]['id'][0]}.txt").write_text(str([table.num_rows for table in tables]))

    path = parquet(tmp_path / "raw", "a.parquet", [40])
    reader = headrace.ParquetReader(rows=10)
    headrace.map(write, [path], tmp_path / "read", reader=reader, batch_size=2, num_workers=0, **QUIET)
    assert (tmp_path / "read" / "20.txt").read_text() == "[10, 10]"

"""Samples that the core gathers ahead of use: the same batches as workers make, whatever is done to the run."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from files import run_python
from headrace.errors import DataError
from headrace.loading.row_feed import RowFeed
from headrace.samples.order import LaneOrder

ITEMS = 397


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A stream of single numbers in four shards, and token files of other widths."""
    folder = tmp_path_factory.mktemp("rows")
    with hr.StreamWriter(folder / "stream", [("tokens", "<i4")], shard_bytes=400) as writer:
        for begin in range(0, ITEMS, 50):
            part = np.zeros(min(50, ITEMS - begin), [("tokens", "<i4")])
            part["tokens"] = np.arange(begin, begin + len(part))
            writer.write(part)
    np.arange(ITEMS, dtype="<u2").tofile(folder / "flat.bin")
    return folder


def gathering() -> set[str]:
    """The names of the core's threads that gather rows now."""
    names = {path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}
    return {name for name in names if name.startswith("headrace-rows")}


def init(number: int) -> None:
    """Makes workers do what the core would do otherwise."""
    assert number >= 0


def shown(batch: Any) -> Any:
    """All that a batch says; an empty one is a list."""
    if not batch:
        return batch
    return (
        [(name, values.dtype, values.shape, values.tobytes()) for name, values in batch.items()],
        [(values.flags.c_contiguous, values.flags.writeable) for values in batch.values()],
        (batch.step, batch.epoch, batch.rows.tolist(), batch.positions.tolist()),
        (batch.sources(), batch.state),
    )


def dataset(folder: Path, kind: str) -> Any:
    """Single numbers or sequences, and selections of them that stay in the order of storage."""
    stream, flat = hr.open(folder / "stream"), hr.open(folder / "flat.bin", stored_dtype="uint16")
    match kind:
        case "records":
            return stream
        case "sequences":
            return stream.sequences(7)
        case "overlap":
            return stream.sequences(5, overlap=2, dtype="int64")
        case "flat":
            return flat.sequences(9, dtype="int32")
        case "parts":
            cut = stream.sequences(5)
            return hr.concat([cut.take(11), cut.skip(20), cut.split([0.5, 0.5])[1]])
        case _:
            return flat.sequences(10).repeat(3)


def arguments(draw: Any) -> dict[str, Any]:
    """Some of what a loader may be asked for."""
    world = draw(st.integers(1, 3))
    sizes = st.integers(1, 5).map(lambda rows: rows * world)
    return {
        "global_batch_size": draw(st.dictionaries(st.integers(1, 9), sizes, max_size=2)) | {0: draw(sizes)},
        "world_size": world,
        "rank": draw(st.integers(0, world - 1)),
        "seed": draw(st.integers(0, 3)),
        "shuffle": draw(st.booleans()),
        "drop_last": draw(st.booleans()),
        "allow_empty": draw(st.booleans()),
        "epochs": 2,
        "prefetch_factor": draw(st.integers(1, 3)),
        "memory": draw(st.sampled_from([1, 500, "2GiB"])),
    }


def loaders(draw: Any, samples: Any, shared: dict[str, Any]) -> list[hr.DataLoader]:
    """Two that give the same: one that the core gathers for, and one that workers of Python make batches for."""
    return [
        hr.DataLoader(samples, num_workers=draw(st.integers(0, 2)), worker_init_fn=function, **shared)
        for function in (None, init)
    ]


def check_alike(draw: Any, own: hr.DataLoader, other: hr.DataLoader, *, first: int = 0, gathered: bool = True) -> None:
    """Both give the same to the end of the run, now and then from an earlier step on."""
    turns = draw(st.lists(st.integers(first, first + 7), max_size=3))
    for stop in [*turns, 10**6]:
        for one, two in zip(own, other, strict=False):
            assert shown(one) == shown(two)
            assert not one or all(values.flags.aligned for values in one.values())
            assert isinstance(own._driver._feed, RowFeed) == gathered  # pyright: ignore[reportAttributeAccessIssue]
            if own.step >= stop:
                break
        assert own.state_dict() == other.state_dict()
        if stop < 10**6:
            step = draw(st.integers(first, max(first, own.step)))
            for loader in (own, other):
                loader.seek(step)
    assert own.stats()["samples"] == other.stats()["samples"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_batches_are_those_that_workers_make(folder, data):
    draw = data.draw
    kind = draw(st.sampled_from(["records", "sequences", "overlap", "flat", "parts", "repeated"]))
    samples = dataset(folder, kind)
    own, other = loaders(draw, samples, arguments(draw))
    if draw(st.booleans()):
        own.skip(range(2, 5))
        other.load_state_dict(own.state_dict())
    # A share is of samples that were picked one by one.
    check_alike(draw, own, other, gathered=kind != "parts")


TYPES = ["<u1", "<i2", "<u2", "<i4", "<u8", "<f2", "<f4", "<f8", "<c16", "?", "S1", "S5", "<U3", "V7", "<M8[s]"]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_fields_of_records_become_arrays_as_workers_make_them(tmp_path_factory, data):
    draw = data.draw
    shapes = st.sampled_from([(), (), (), (1,), (3,), (2, 5), (9,)])
    fields = draw(st.lists(st.tuples(st.sampled_from(TYPES), shapes), min_size=1, max_size=6))
    dtype = np.dtype([(f"field{number}", *field) for number, field in enumerate(fields)])
    count = draw(st.integers(150, 250))
    stored = np.frombuffer(np.random.default_rng(count).bytes(count * dtype.itemsize), dtype)
    path = tmp_path_factory.mktemp("fields")
    with hr.StreamWriter(path / "stream", dtype, shard_bytes=60 * dtype.itemsize) as writer:
        writer.write(stored)
    samples = hr.open(path / "stream")
    length = draw(st.sampled_from([None, 1, 2, 3, 7]))
    if length is not None:
        samples = samples.sequences(length, overlap=draw(st.integers(0, min(length, 2))))
    if draw(st.booleans()):
        samples = samples.select(draw(st.permutations(dtype.names or ()))[: draw(st.integers(1, len(fields)))])
    if draw(st.booleans()):
        samples = samples.take(max(20, len(samples) // 2))
    check_alike(draw, *loaders(draw, samples, arguments(draw)))


def test_long_sequences_of_records_are_split_as_they_are_stored(tmp_path):
    """A row is longer than what is read at a time, and so is a record."""
    for name, shape, count, length in (("short", (), 100_000, 30_000), ("long", (50_000,), 12, 3)):
        dtype = np.dtype([("tokens", "<i4"), ("kind", "u1"), ("more", "<u2", shape)])
        stored = np.frombuffer(np.random.default_rng(5).bytes(count * dtype.itemsize), dtype)
        with hr.StreamWriter(tmp_path / name, dtype) as writer:
            writer.write(stored)
        samples = hr.open(tmp_path / name).sequences(length)
        for shuffle in (False, True):
            for batch in hr.DataLoader(samples, batch_size=2, epochs=1, shuffle=shuffle):
                for column, values in batch.items():
                    wanted = [stored[column][length * at : length * (at + 1)] for at in batch.positions]
                    assert np.array_equal(values, wanted), (name, column)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_epochs_of_less_data_are_those_that_workers_make(tmp_path_factory, data):
    """Files were added in the course of the run, once or twice."""
    draw = data.draw
    path = tmp_path_factory.mktemp("grown")
    shared = arguments(draw) | {"epochs": 4}
    end = 0

    def samples() -> Any:
        nonlocal end
        for _ in range(draw(st.integers(1, 3))):
            begin, end = end, end + draw(st.integers(40, 80))
            np.save(path / f"{begin:04}.npy", np.arange(begin, end, dtype=np.uint16))
        return hr.open(path, sequence_length=2)

    own, other = loaders(draw, samples(), shared)
    for _ in range(draw(st.integers(1, 2))):
        stop = own.step + draw(st.integers(1, 30))
        own.seek(min(stop, own.step + len(own)))
        state = own.state_dict()
        own, other = loaders(draw, samples(), shared)
        for loader in (own, other):
            with pytest.warns(UserWarning, match="samples were added"):
                loader.load_state_dict(state, strict=False)
    check_alike(draw, own, other, first=own.step)


def wait_for(names: set[str]) -> None:
    """Waits until just these threads gather."""
    end = time.monotonic() + 20
    while gathering() != names:
        assert time.monotonic() < end, f"wanted {names}, found {gathering()}"
        time.sleep(0.01)


BOTH = {"headrace-rows-0", "headrace-rows-1"}


def test_the_core_gathers_what_nothing_is_done_to(folder):
    stream = hr.open(folder / "stream").sequences(4)
    settings: dict[str, Any] = {"batch_size": 2, "num_workers": 2, "memory": 1}
    wait_for(set())
    others: list[tuple[Any, dict[str, Any]]] = [
        (stream.map(dict), {}),
        (stream.subset([5, 3, 4]), {}),
        (stream.subset([0, 2, 5]), {}),
        (hr.zip([stream, stream]), {}),
        (hr.concat([stream, stream.sequences(4, dtype="int64")]), {}),
        (stream, {"worker_init_fn": init}),
        (stream, {"collate_fn": list}),
        (stream, {"num_workers": 0}),
    ]
    for data, more in others:
        with hr.DataLoader(data, **settings | more) as loader:
            next(iter(loader))
            assert not gathering(), (data, more)
    for data in (stream, stream.subset(range(3, 40)), stream.take(40), hr.concat([stream, stream])):
        with hr.DataLoader(data, **settings) as loader:
            batches = iter(loader)
            next(batches)
            # They wait for room.
            wait_for(BOTH)
            # And end when there is nothing more to do.
            list(batches)
            wait_for(set())
            batches = iter(loader)
            next(batches)
            wait_for(BOTH)
        wait_for(set())


def test_threads_end_with_an_iterator_that_is_dropped(folder):
    loader = hr.DataLoader(hr.open(folder / "stream"), batch_size=2, num_workers=2, memory=1)
    wait_for(set())
    batches = iter(loader)
    next(batches)
    wait_for(BOTH)
    del batches
    wait_for(set())
    assert next(iter(loader)).step == 1


def test_a_wait_that_is_too_long_loses_nothing(folder):
    data = hr.open(folder / "stream").sequences(5, dtype="int64")
    wanted = [batch["tokens"].tolist() for batch in hr.DataLoader(data, batch_size=3, epochs=1)]
    late = 0
    for _ in range(100):
        # A batch may be there in time.
        batches = iter(hr.DataLoader(data, batch_size=3, epochs=1, num_workers=2, memory=1, timeout=1e-7))
        found: list[Any] = []
        while len(found) < len(wanted):
            try:
                found.append(next(batches)["tokens"].tolist())
            except TimeoutError as error:
                assert "no result after 1e-07 s" in str(error)  # noqa: PT017
                late += 1
        assert found == wanted
        assert next(batches, None) is None
        if late:
            return
    pytest.fail("every batch came within a tenth of a microsecond")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_file_that_is_cut_short_in_mid_run_is_named(tmp_path, workers, on_error):
    for number in range(3):
        np.arange(100 * number, 100 * number + 100, dtype="<u2").tofile(tmp_path / f"{number}.bin")
    data = hr.open(str(tmp_path / "*.bin"), stored_dtype="uint16").sequences(10)
    loader = hr.DataLoader(
        data, batch_size=2, shuffle=False, num_workers=workers, memory=1, on_error=on_error, epochs=1
    )
    batches = iter(loader)
    assert next(batches)["tokens"].ravel().tolist() == list(range(20))
    os.truncate(tmp_path / "1.bin", 120)
    given, errors = [], []
    while True:
        try:
            given += next(batches)["tokens"].ravel().tolist()
        except StopIteration:
            break
        except DataError as error:
            errors.append(error)
    # Of the file that changed nothing is given, of the others all.
    assert given == [*range(20, 100), *range(200, 300)]
    if on_error == "raise":
        assert len(errors) == 5
        for number, error in enumerate(errors, 5):
            assert "1.bin" in str(error)
            assert f"batch {number} of this iterator" in error.__notes__
            assert any(f"sample {2 * number} (" in note for note in error.__notes__)
    else:
        assert not errors
        assert [position for position, *_ in loader.stats()["skipped"]] == list(range(10, 20))


def test_a_file_that_is_replaced_goes_on_as_it_was(tmp_path):
    path = tmp_path / "a.bin"
    np.arange(600, dtype="<u2").tofile(path)
    data = hr.open(path, stored_dtype="uint16").sequences(10)
    loader = hr.DataLoader(data, batch_size=3, shuffle=False, num_workers=2, memory=1, epochs=2)
    found = next(iter(loader))["tokens"].ravel().tolist()
    np.zeros(10, dtype="<u2").tofile(tmp_path / "other")
    (tmp_path / "other").replace(path)
    for _ in range(2):
        found += [number for batch in loader for number in batch["tokens"].ravel().tolist()]
    assert found == [*range(600), *range(600)]


def test_many_threads_of_one_process_take_turns_at_a_loader(folder):
    loader = hr.DataLoader(hr.open(folder / "stream"), batch_size=1, num_workers=2, epochs=1)
    batches, found, refused = iter(loader), [], []

    def take() -> None:
        while True:
            try:
                found.append(int(next(batches)["tokens"][0]))
            except StopIteration:
                return
            except RuntimeError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(ITEMS))
    assert all("another thread is waiting" in message for message in refused)


SCRIPT = """
import os, signal, sys, threading, time
import headrace as hr
loader = hr.DataLoader(hr.open(sys.argv[1]), batch_size=2, num_workers=2, memory=1)
batches = iter(loader)
first = next(batches)
"""


def run(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """A script that has begun with a loader, to its end."""
    command = [sys.executable, "-c", SCRIPT + textwrap.dedent(script), str(folder / "stream")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_forked_child_is_refused_and_ends(folder):
    done = run(
        folder,
        """
        child = os.fork()
        if not child:
            try:
                next(batches)
            except RuntimeError as error:
                print(error, flush=True)
            del batches, loader
            sys.exit(7)
        assert os.waitpid(child, 0)[1] >> 8 == 7
        print(len(list(batches)))
        """,
    )
    assert done.returncode == 0, done.stderr
    message, count = done.stdout.splitlines()[0], done.stdout.splitlines()[-1]
    assert "started in another process" in message
    assert int(count) == (ITEMS + 1) // 2 - 1


def test_the_process_ends_while_threads_gather(folder):
    done = run(folder, "print(first.step, flush=True)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_ctrl_c_loses_no_batch(folder):
    done = run(
        folder,
        """
        waiting = False
        def handle(number, frame):
            global waiting
            if waiting:
                waiting = False
                raise KeyboardInterrupt
        signal.signal(signal.SIGINT, handle)
        def interrupt():
            for _ in range(200):
                time.sleep(0.0005)
                os.kill(os.getpid(), signal.SIGINT)
        thread = threading.Thread(target=interrupt)
        thread.start()
        steps, caught, missed = [first.step], 0, 0
        while len(steps) < 600 or thread.is_alive():
            wanted = loader.step
            try:
                waiting = True
                batch = next(batches, None)
                waiting = False
            except KeyboardInterrupt:
                caught += 1
                continue
            if batch is None:
                batches = iter(loader)
            else:
                missed += batch.step != wanted
                steps.append(batch.step)
        print(caught, missed, steps == sorted(set(steps)))
        """,
    )
    assert done.returncode == 0, done.stderr
    caught, missed, ordered = done.stdout.split()
    assert int(caught) > 0
    assert (missed, ordered) == ("0", "True")


def test_seeking_far_ahead_costs_no_replay(tmp_path):
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.truncate(4096 * 64)
    loader = hr.DataLoader(hr.open(path, stored_dtype="uint16").sequences(16), batch_size=8, seed=1, num_workers=2)
    loader.seek(10**12)
    begin = time.perf_counter()
    batch = next(iter(loader))
    assert batch.step == 10**12
    assert time.perf_counter() - begin < 5


def test_a_schedule_of_thousands_of_changes_begins_at_once(tmp_path):
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.truncate(1 << 24)
    data = hr.open(path, stored_dtype="uint16").sequences(16)
    loader = hr.DataLoader(data, global_batch_size={step: 8 + step % 7 for step in range(4000)}, seed=1)
    begin = time.thread_time()
    for batch in loader:
        assert len(batch["tokens"]) == 8 + batch.step % 7
        if batch.step == 100:
            break
    # Where each change looked at all others, it took seconds.
    assert time.thread_time() - begin < 1


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("is_used", [True, False])
def test_an_epoch_of_less_data_is_the_cores_too(tmp_path: Path, shuffle: bool, is_used: bool) -> None:
    """Data was added: the epoch in which it was ends without it, also in a loader that the core worked for."""

    def write(begin: int, end: int) -> None:
        np.save(tmp_path / f"{begin:04}.npy", np.arange(begin, end, dtype=np.uint16))

    def loader(workers: int = 1) -> hr.DataLoader:
        data = hr.open(tmp_path, sequence_length=1)
        return hr.DataLoader(data, global_batch_size=20, shuffle=shuffle, num_workers=workers)

    def rest(batches: Any) -> list[list[int]]:
        return [batch["tokens"][:, 0].tolist() for batch in batches]

    write(0, 200)
    old = loader()
    for _ in range(2):
        state = next(iter(old)).state
    wanted = rest(old)
    write(200, 300)
    own, fresh = loader(), loader()
    if is_used:
        next(iter(own))
    with pytest.warns(UserWarning, match="100 samples were added"):
        own.load_state_dict(state, strict=False)
    assert rest(own) == wanted
    fresh.seek(15)
    assert rest(own) == rest(fresh)
    own.seek(2)
    batches = iter(own)
    assert [next(batches)["tokens"][:, 0].tolist(), *rest(batches)] == wanted


def test_an_order_that_the_core_does_not_know_is_refused(folder: Path) -> None:
    loader = hr.DataLoader(hr.open(folder / "stream"), batch_size=2, num_workers=1)
    next(iter(loader))
    driver: Any = loader._driver
    run, position = driver.here()
    samples = hr.open(folder / "stream").pipeline
    order = LaneOrder(samples.selection.in_storage_order(), 0, 2, 1)
    with pytest.raises(ValueError, match="expected samples in storage order or permuted, got LaneOrder"):
        RowFeed(replace(run, order=order), position, driver._workers, driver._workers.stored)


@pytest.mark.parametrize("workers", [0, 3])
def test_more_shards_than_the_process_may_open_are_read_in_any_order(tmp_path: Path, workers: int) -> None:
    for number in range(400):
        np.arange(10 * number, 10 * number + 10, dtype="<u2").tofile(tmp_path / f"{number:03}.bin")
    program = """
        import os, resource, sys
        import numpy as np
        import headrace as hr
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        data = hr.open(sys.argv[1], stored_dtype="uint16", sequence_length=2)
        loader = hr.DataLoader(data, batch_size=700, num_workers=int(sys.argv[2]), seed=0, epochs=2)
        for epoch in range(2):
            tokens = np.concatenate([batch["tokens"] for batch in loader])
            assert np.array_equal(np.sort(tokens.ravel()), np.arange(4000))
            assert not np.array_equal(tokens.ravel(), np.arange(4000))
        held = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        print(sum(path.endswith(".bin") for path in held))
    """
    kept = int(run_python(program, tmp_path, workers))
    assert 0 < kept <= 25, kept


def test_many_loaders_over_many_shards_share_the_files_that_stay_open(tmp_path: Path) -> None:
    for number in range(30):
        np.arange(100 * number, 100 * number + 100, dtype="<u2").tofile(tmp_path / f"{number:02}.bin")
        # Large enough to be read in place, which is another way.
        (tmp_path / f"{number:02}.jsonl").write_text(f'{{"id": {number}}}\n' + " " * 2**20 + "\n")
    program = """
        import os, resource, sys
        import numpy as np
        import headrace as hr
        resource.setrlimit(resource.RLIMIT_NOFILE, (240, 240))

        def held():
            paths = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
            return sum(path.endswith((".bin", ".jsonl")) for path in paths)

        def loader(number):
            data = hr.open(f"{sys.argv[1]}/*.bin", stored_dtype="uint16", sequence_length=2)
            # Those of odd numbers are read by Python's way.
            data, workers = (data.map(dict), 1) if number % 2 else (data, 4)
            return hr.DataLoader(data, batch_size=300, num_workers=workers, shuffle=True, seed=number, epochs=1)

        loaders = [loader(number) for number in range(10)]
        lines = hr.open(f"{sys.argv[1]}/*.jsonl")
        found = []
        for step, batches in enumerate(zip(*loaders, strict=True)):
            assert [lines[number]["id"] for number in range(step, 30, 5)] == list(range(step, 30, 5))
            found.append(np.stack([batch["tokens"] for batch in batches]))
        tokens = np.concatenate(found, axis=1).reshape(10, -1)
        assert all(np.array_equal(np.sort(own), np.arange(3000)) for own in tokens)
        print(held())
    """
    kept = int(run_python(program, tmp_path))
    assert 0 < kept <= 30, kept

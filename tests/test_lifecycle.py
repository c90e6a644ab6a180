"""Processes: what a loader costs, leaves behind and does when it is interrupted, forked, shared or dropped."""

import contextlib
import itertools
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from files import BESIDE_THE_BUDGET, count_up, finish, run_python, start_python, write

RESIDENT = """
import os, sys, threading, time

def resident():
    held = dict(line.split(":", 1) for line in open("/proc/self/status") if line.startswith("Rss"))
    return (int(held["RssAnon"].split()[0]) + int(held["RssShmem"].split()[0])) << 10

def threads():
    return len(os.listdir("/proc/self/task"))

def descriptors():
    return len(os.listdir("/proc/self/fd"))

def settled(count, wanted, seconds=10):
    # Threads that were joined may still be listed for a moment.
    end = time.monotonic() + seconds
    while count() > wanted and time.monotonic() < end:
        time.sleep(0.01)
    return count()

class Peak:
    def __enter__(self):
        self.bytes, self.stop = resident(), threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self
    def watch(self):
        while not self.stop.wait(0.002):
            self.bytes = max(self.bytes, resident())
    def __exit__(self, *error):
        self.stop.set()
        self.thread.join()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files of ten row groups of ten documents of five tokens, counting up from 0 to 1999."""
    folder = tmp_path_factory.mktemp("lifecycle")
    for number in range(4):
        write(folder / f"{number}.parquet", count_up(100, 5, start=500 * number), row_group_size=10)
    return folder


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 row groups of a million tokens each: the n-th token is n."""
    path = tmp_path_factory.mktemp("heavy") / "a.parquet"
    offsets = np.arange(0, 24_000_001, 1000, dtype=np.int32)
    column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.arange(24_000_000, dtype=np.int32)))
    table = pa.table({"tokens": column})
    pq.write_table(
        table,
        path,
        row_group_size=1000,
        compression="none",
        column_encoding="DELTA_BINARY_PACKED",
        use_dictionary=False,
    )
    return path


# Importing


def test_importing_brings_no_torch_and_starts_no_thread() -> None:
    program = """
    import json, os, sys
    import numpy
    # NumPy's linear algebra has threads of its own.
    before = len(os.listdir("/proc/self/task"))
    import headrace
    print(json.dumps([sorted(sys.modules), len(os.listdir("/proc/self/task")) - before]))
    """
    modules, started = json.loads(run_python(program))
    unwanted = {"torch", "jax", "pyarrow", "pandas", "rich", "typer", "asyncio", "tokenizers", "torchdata"}
    assert not unwanted & set(modules)
    assert started == 0


def test_importing_takes_a_moment() -> None:
    program = """
    import time, numpy
    start = time.process_time()
    import headrace
    print(time.process_time() - start)
    """
    # The CPU's time, and the second least of seven: other tests may run beside.
    times = sorted(float(run_python(program)) for _ in range(7))
    assert times[1] < 0.25, times


# Memory


BUDGET = (
    RESIDENT
    + """
import json
import numpy as np
import headrace as hr

path, memory, shuffle = sys.argv[1], sys.argv[2], sys.argv[3] == "True"
before = resident()
with Peak() as peak:
    loader = hr.DataLoader(hr.open(path).pack(1000), 16, shuffle=shuffle, epochs=1, memory=memory, num_workers=4)
    total = count = 0
    for batch in loader:
        total += int(batch["tokens"].sum(dtype=np.int64))
        count += batch["tokens"].size
stats = loader.stats()
print(json.dumps([peak.bytes - before, total, count, stats["windows_spilled"]]))
"""
)


@pytest.mark.parametrize("memory", ["32MiB", "64MiB", "512MiB"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_budget_holds(heavy: Path, memory: str, shuffle: bool) -> None:
    peak, total, count, spilled = json.loads(run_python(BUDGET, heavy, memory, shuffle))
    assert count == 24_000_000
    assert total == 24_000_000 * (24_000_000 - 1) // 2
    assert peak < (int(memory[:-3]) << 20) + BESIDE_THE_BUDGET
    # A window of all row groups takes 96 MB.
    assert (spilled > 0) == (memory != "512MiB")


def test_a_budget_too_small_for_a_step_says_what_is_needed(heavy: Path) -> None:
    packed = hr.open(heavy).pack(1000)

    def first(memory: int) -> np.ndarray:
        loader = hr.DataLoader(packed, 16, shuffle=False, epochs=1, memory=memory, num_workers=2)
        return next(iter(loader))["tokens"]

    with pytest.raises(hr.BudgetError, match=r"memory=1000000\b") as caught:
        first(1_000_000)
    needed = int(re.search(r"needs (\d+)", str(caught.value))[1])
    assert 1_000_000 < needed < 64 << 20
    assert first(needed).ravel().tolist() == list(range(16_000))
    with pytest.raises(hr.BudgetError):
        first(needed - 1)


def test_a_page_too_large_for_the_budget_says_what_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    values = np.random.default_rng(0).integers(0, 2**31 - 1, 4_000_000, dtype=np.int32)
    column = pa.ListArray.from_arrays(pa.array(np.arange(0, 4_000_001, 1000, dtype=np.int32)), pa.array(values))
    options = {"compression": "none", "use_dictionary": False, "data_page_size": 1 << 24}
    pq.write_table(pa.table({"tokens": column}), path, **options)
    packed = hr.open(path).pack(1000)

    def first(memory: int) -> np.ndarray:
        return next(iter(hr.DataLoader(packed, 4, shuffle=False, epochs=1, memory=memory, num_workers=1)))["tokens"]

    # What the user gave is what the message must name.
    with pytest.raises(hr.BudgetError, match=r"memory=6000000\b") as caught:
        first(6_000_000)
    needed = int(re.search(r"needs (\d+)", str(caught.value))[1])
    np.testing.assert_array_equal(first(needed).ravel(), values[:4000])


# Half-used iterators


FLAT = (
    RESIDENT
    + """
import json
import headrace as hr

path, rounds, batches, workers = sys.argv[1], *map(int, sys.argv[2:])
packed = hr.open(path).pack(1)
loader = hr.DataLoader(packed, 8, num_workers=workers, memory="64MiB")

def use(count):
    for _ in range(count):
        iterator = iter(loader)
        for _ in range(batches):
            next(iterator, None)
        del iterator

alone = threads()
use(rounds // 5)
before = settled(threads, alone) - alone, descriptors(), resident()
use(rounds)
after = settled(threads, alone) - alone, descriptors(), resident()
print(json.dumps([before, after]))
"""
)


@pytest.mark.parametrize("rounds, batches, workers", [(200, 2, 4), (1000, 1, 1)])
def test_half_used_iterators_leave_nothing(folder: Path, rounds: int, batches: int, workers: int) -> None:
    # B136, B137.
    (threads, files, held), after = json.loads(run_python(FLAT, folder, rounds, batches, workers))
    assert threads == 0
    assert after[:2] == [threads, files]
    assert after[2] - held < 4 << 20


def test_half_used_loaders_of_their_own_datasets_leave_nothing(heavy: Path) -> None:
    program = FLAT.replace(
        "    for _ in range(count):\n",
        "    for _ in range(count):\n        "
        + ('loader = hr.DataLoader(hr.open(path).pack(100), 16, window=4, num_workers=2, memory="8MiB")\n'),
    )
    (threads, files, held), after = json.loads(run_python(program, heavy, 20, 2, 2))
    assert threads == 0
    assert after[:2] == [threads, files]
    assert after[2] - held < 16 << 20


# Ending


@pytest.mark.parametrize("ending", ["break", "global iterator", "global loader", "exit", "error", "thread"])
def test_a_script_ends_soon_after_a_break(heavy: Path, ending: str) -> None:
    # B131, B134, B115.
    program = """
    import os, sys, threading, time
    import headrace as hr
    path, ending = sys.argv[1:]
    loader = hr.DataLoader(hr.open(path).pack(100), 16, num_workers=4, memory="64MiB")
    iterator = iter(loader)
    for batch in loader if ending == "break" else iterator:
        break
    if ending == "global loader":
        keep = [loader, loader.__iter__(), batch]
    if ending == "thread":
        other = hr.DataLoader(hr.open(path).pack(100), 16, memory="64MiB")
        def work():
            for batch in other:
                pass
        threading.Thread(target=work, daemon=True).start()
    print(time.time(), flush=True)
    if ending == "exit":
        sys.exit(0)
    if ending == "error":
        raise SystemExit(0)
    """
    process = start_python(program, heavy, ending)
    begun = float(finish(process, 30))
    assert time.time() - begun < 1.0


def test_an_error_in_the_loop_is_the_error_that_is_seen(heavy: Path) -> None:
    program = """
    import sys
    import headrace as hr
    for batch in hr.DataLoader(hr.open(sys.argv[1]).pack(100), 16, memory="64MiB"):
        raise KeyError("mine")
    """
    process = start_python(program, heavy)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert errors.strip().endswith("KeyError: 'mine'")
    assert "panicked" not in errors
    assert "Fatal" not in errors


def test_sigkill_leaves_nothing_in_the_spill_folder(heavy: Path, tmp_path: Path) -> None:
    # B130.
    program = """
    import sys, time
    import headrace as hr
    loader = hr.DataLoader(hr.open(sys.argv[1]).pack(100), 16, memory="24MiB", num_workers=2, seed=0)
    iterator = iter(loader)
    next(iterator)  # This one may come before its window.
    next(iterator)
    print(loader.stats()["windows_spilled"], flush=True)
    time.sleep(60)
    """
    shm = set(Path("/dev/shm").iterdir())
    process = start_python(program, heavy, HEADRACE_CACHE=str(tmp_path))
    assert int(process.stdout.readline()) > 0
    spill = tmp_path / "spill"
    assert spill.is_dir()
    process.kill()
    process.communicate()
    assert list(spill.iterdir()) == []
    assert set(Path("/dev/shm").iterdir()) <= shm
    # And it starts again.
    again = start_python(program, heavy, HEADRACE_CACHE=str(tmp_path))
    assert int(again.stdout.readline()) > 0
    again.kill()
    again.communicate()


def test_a_spill_folder_that_cannot_be_written_is_an_error(heavy: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    packed = hr.open(heavy, cache_dir=tmp_path / "file" / "cache").pack(100)
    loader = hr.DataLoader(packed, 16, memory="24MiB", num_workers=2)
    with pytest.raises(hr.StoreError, match="spill"):
        list(itertools.islice(loader, 2))  # The first may come before its window.


# Ctrl-C


@pytest.fixture
def stalling_store() -> Iterator[dict[str, str]]:
    """Settings of an S3 server that answers nothing for a while; no more is needed of one here."""
    listener = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                held.append(listener.accept()[0])

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{listener.getsockname()[1]}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret-secret",
        "AWS_REGION": "us-east-1",
    }
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for connection in held:
        connection.close()
    thread.join(5)


def test_ctrl_c_acts_while_a_store_is_opened(stalling_store: dict[str, str]) -> None:
    program = """
    import os, signal, sys, threading, time
    import headrace as hr
    sent = []
    def interrupt():
        time.sleep(0.5)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt).start()
    try:
        hr.open("s3://bucket/data")
    except KeyboardInterrupt:
        print(time.monotonic() - sent[0])
    """
    assert float(run_python(program, **stalling_store)) < 1.0


def test_an_interrupted_script_prints_one_keyboard_interrupt(heavy: Path) -> None:
    # B142.
    program = """
    import sys, time
    import headrace as hr
    loader = hr.DataLoader(hr.open(sys.argv[1]).pack(100), 16, memory="64MiB")
    print("ready", flush=True)
    while True:
        for batch in loader:
            pass
    """
    process = start_python(program, heavy)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    begun = time.monotonic()
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - begun < 2
    assert process.returncode in (-signal.SIGINT, 130, 1)
    assert errors.count("KeyboardInterrupt") == 1, errors
    assert "Fatal" not in errors
    assert "panicked" not in errors


def test_a_signal_handler_runs_while_a_batch_is_waited_for(stalling_store: dict[str, str]) -> None:
    """A handler that raises nothing does not end the waiting; one that raises ends it with its own error."""
    program = """
    import os, signal, sys, threading, time
    import headrace as hr
    seen = []
    class Mine(Exception): pass
    def handler(number, frame):
        seen.append(number)
        if len(seen) == 2:
            raise Mine
    signal.signal(signal.SIGUSR1, handler)
    def interrupt():
        for _ in range(2):
            time.sleep(0.4)
            os.kill(os.getpid(), signal.SIGUSR1)
    threading.Thread(target=interrupt).start()
    try:
        hr.open("s3://bucket/data")
    except Mine:
        print(len(seen))
    """
    assert run_python(program, **stalling_store).strip() == "2"


# Forks and threads


def test_a_forked_child_gets_a_clear_error_and_can_make_its_own_loader(folder: Path) -> None:
    # B139, B140.
    program = """
    import os, sys, warnings
    warnings.simplefilter("ignore")
    import headrace as hr
    packed = hr.open(sys.argv[1]).pack(10)
    loader = hr.DataLoader(packed, 8, seed=1, num_workers=2)
    iterator = iter(loader)
    first = next(iterator)
    wanted = [batch["tokens"].tolist() for batch in hr.DataLoader(packed, 8, seed=1, epochs=1)]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            try:
                next(iterator)
            except RuntimeError as error:
                assert "fork" in str(error), error
            else:
                raise AssertionError("no error")
            own = hr.DataLoader(packed, 8, seed=1, epochs=1)
            assert [batch["tokens"].tolist() for batch in own] == wanted
            fresh = hr.DataLoader(hr.open(sys.argv[1]).pack(10), 8, seed=1, epochs=1)
            assert [batch["tokens"].tolist() for batch in fresh] == wanted
            assert own.sources(0) == fresh.sources(0)
            code = 0
        except BaseException as error:
            print("child:", repr(error), file=sys.stderr, flush=True)
        os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    # The parent goes on as if nothing had been.
    assert [first["tokens"].tolist(), *(batch["tokens"].tolist() for batch in iterator)] == wanted
    print("done")
    """
    assert run_python(program, folder).strip() == "done"


def test_a_child_that_forked_with_a_live_loader_exits(heavy: Path) -> None:
    """Dropping the parent's loader in the child joins no thread that is not there."""
    program = """
    import os, sys, warnings
    warnings.simplefilter("ignore")
    import headrace as hr
    loader = hr.DataLoader(hr.open(sys.argv[1]).pack(10), 8, num_workers=2, memory="64MiB")
    iterator = iter(loader)
    next(iterator)
    child = os.fork()
    if child == 0:
        del iterator, loader
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    next(iterator)
    """
    assert run_python(program, heavy, timeout=20).strip() == "7"


def test_multiprocessing_by_spawn_and_fork(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        """
import multiprocessing, sys, warnings
warnings.simplefilter("ignore")
import headrace as hr

def work(arguments):
    path, rank = arguments
    loader = hr.DataLoader(hr.open(path).pack(10), global_batch_size=8, seed=1, epochs=1, rank=rank, world_size=2)
    return [batch["tokens"].tolist() for batch in loader]

if __name__ == "__main__":
    path = sys.argv[1]
    whole = hr.DataLoader(hr.open(path).pack(10), global_batch_size=8, seed=1, epochs=1)
    rows = sum(len(batch["tokens"]) for batch in whole)
    for method in ("spawn", "fork", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            parts = pool.map(work, [(path, 0), (path, 1)])
        assert sum(len(batch) for part in parts for batch in part) == rows, method
        assert parts[0] != parts[1]
    print("done")
"""
    )
    done = subprocess.run([sys.executable, script, folder], capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.returncode) == ("done", 0), done.stderr


def test_two_loaders_on_one_dataset_at_once(folder: Path) -> None:
    packed = hr.open(folder).pack(10)
    wanted = {seed: [b["tokens"].tolist() for b in hr.DataLoader(packed, 8, seed=seed, epochs=1)] for seed in range(4)}
    found: dict[int, list] = {}

    def work(seed: int) -> None:
        found[seed] = [b["tokens"].tolist() for b in hr.DataLoader(packed, 8, seed=seed, epochs=1, num_workers=2)]

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == wanted
    interleaved = [iter(hr.DataLoader(packed, 8, seed=seed, epochs=1)) for seed in range(4)]
    together = [[batch["tokens"].tolist() for batch in batches] for batches in zip(*interleaved, strict=True)]
    assert [list(rows) for rows in zip(*together, strict=True)] == [wanted[seed] for seed in range(4)]


def test_threads_that_share_an_iterator_get_each_batch_once_or_an_error(folder: Path) -> None:
    """No lock is promised: a second thread in `next` gets a RuntimeError. What is given is right."""
    loader = hr.DataLoader(hr.open(folder).pack(10), 4, seed=1)
    iterator = iter(loader)
    steps: list[int] = []
    refused: list[str] = []
    other: list[BaseException] = []
    gate = threading.Barrier(4)

    def work() -> None:
        gate.wait()
        for _ in range(100):
            try:
                steps.append(next(iterator).step)
            except RuntimeError as error:
                refused.append(str(error))
            except StopIteration:
                return
            except BaseException as error:
                other.append(error)
                return

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert other == []
    assert sorted(steps) == list(range(len(steps)))
    assert all("thread" in text for text in refused), set(refused)
    # And the loader goes on behind them.
    assert [batch.step for batch in iterator] == list(range(len(steps), 100 // 2))


def test_a_second_thread_in_next_gets_a_clear_error(stalling_file: Path) -> None:
    """Of two threads that ask for a batch that takes its time, one gets it and the other one is refused at once."""
    loader = hr.DataLoader(hr.open(stalling_file).pack(100), 64, num_workers=1, epochs=1, memory="512MiB")
    iterator = iter(loader)
    outcomes: list[hr.Batch | RuntimeError] = []
    gate = threading.Barrier(2)

    def work() -> None:
        gate.wait()
        try:
            outcomes.append(next(iterator))
        except RuntimeError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    refusal, batch = outcomes
    assert isinstance(refusal, RuntimeError)
    assert "thread" in str(refusal)
    assert isinstance(batch, hr.Batch)
    assert batch.step == 0
    assert next(iterator).step == 1


@pytest.fixture(scope="module")
def stalling_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A row group whose decoding takes some tenths of a second."""
    path = tmp_path_factory.mktemp("slow") / "a.parquet"
    values = np.random.default_rng(0).integers(0, 50_000, 16_000_000, dtype=np.int32)
    column = pa.ListArray.from_arrays(pa.array(np.arange(0, 16_000_001, 100, dtype=np.int32)), pa.array(values))
    pq.write_table(pa.table({"tokens": column}), path, compression="brotli", compression_level=1, use_dictionary=False)
    return path


def test_a_loader_dropped_from_another_thread(heavy: Path) -> None:
    program = (
        RESIDENT
        + """
import headrace as hr
packed = hr.open(sys.argv[1]).pack(100)
alone = threads()
for _ in range(10):
    loader = hr.DataLoader(packed, 16, window=4, num_workers=2, memory="64MiB")
    iterator = iter(loader)
    next(iterator)
    box = [loader, iterator]
    del loader, iterator
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
print(settled(threads, alone) - alone)
"""
    )
    assert run_python(program, heavy).strip() == "0"


def test_a_loader_closed_by_seek_while_another_thread_waits(stalling_file: Path) -> None:
    """The waiting thread gets a batch or an error, never silence; and the loader goes on."""
    loader = hr.DataLoader(hr.open(stalling_file).pack(100), 64, num_workers=1, epochs=1, memory="512MiB")
    iterator = iter(loader)
    outcome: list[object] = []
    started = threading.Event()

    def work() -> None:
        started.set()
        try:
            outcome.append(next(iterator))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    loader.seek(100)
    thread.join(60)
    assert not thread.is_alive()
    assert len(outcome) == 1
    assert isinstance(outcome[0], hr.Batch | RuntimeError | StopIteration)
    assert not isinstance(outcome[0], StopIteration), "an end of the epoch that is none"
    loader.seek(100)
    assert next(iter(loader)).step == 100


def test_opening_two_loaders_does_not_share_a_working_folder(folder: Path, tmp_path: Path) -> None:
    """Twelve processes that open one dataset with an empty cache at once all succeed."""
    program = """
    import sys
    import headrace as hr
    sys.stdin.readline()
    loader = hr.DataLoader(hr.open(sys.argv[1]).pack(10), 8, seed=1, epochs=1)
    loader.state_dict()
    print(sum(int(batch["tokens"].sum()) for batch in loader))
    """
    processes = [start_python(program, folder, HEADRACE_CACHE=str(tmp_path / "cache")) for _ in range(12)]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = {finish(process).strip() for process in processes}
    assert outputs == {str(sum(range(2000)))}
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert [path for path in files if path.suffix not in (".arrow", ".json") and path.parent.name != "locks"] == []


@pytest.mark.parametrize(
    "setting",
    ["prefetch_factor=2**40", "prefetch_factor=2**62", "num_workers=2**40", "num_workers=2**62", "batch_size=2**31"],
)
def test_a_size_beyond_all_memory_is_an_error_and_no_abort(folder: Path, setting: str) -> None:
    program = f"""
    import resource, sys
    import headrace as hr
    packed = hr.open(sys.argv[1]).pack(10)
    # So that a loader that tries all the same soon fails, and takes nothing from its neighbours.
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    try:
        next(iter(hr.DataLoader(packed, **({{"batch_size": 4}} | dict({setting})))))
    except (hr.BudgetError, ValueError):
        print("refused")
    """
    assert run_python(program, folder, timeout=30).strip() == "refused"

"""Worker processes give the same batches as threads, and leave nothing behind, whoever is killed."""

import functools
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.loading import processes as module
from headrace.loading.choose import choose
from headrace.loading.lanes.workers import LaneWorkers
from headrace.loading.sample_feed import Resources
from headrace.loading.wire import FAILED, MADE, Arena, decode, encode
from loading_data import Asked, Faulty, Lists, Numbers, Rows, SlowToSend, note_end, note_process, process_of

# A process takes seconds to start on a machine that is busy; so these tests start few.
pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memfd")


def _workers_of(parent: int) -> list[int]:
    """Worker processes that were started by a process."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            status = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if b"headrace.loading.worker" in command and f", {parent})".encode() in command and status[0] != "Z":
            found.append(int(folder.name))
    return found


def _shared_files() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def _wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _leaves_no_process() -> Iterator[None]:
    files = _shared_files()
    yield
    gc.collect()
    _wait_for(lambda: not _workers_of(os.getpid()))
    ours = {name for name in _shared_files() - files if "headrace" in name}
    assert not ours


def _values(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: _values(value) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(_values(value) for value in batch)
    return batch.tolist() if hasattr(batch, "tolist") else batch


def test_batches_are_those_of_threads() -> None:
    rows = Rows(203)
    loaders = [
        hr.DataLoader(rows, 8, shuffle=True, num_workers=2, worker_type=kind)  # type: ignore[arg-type]
        for kind in ("thread", "process")
    ]
    for _ in range(2):
        for threads, processes in zip(*loaders, strict=True):
            assert _values(threads) == _values(processes)
            processes["image"][:] = 0
    assert len(_workers_of(os.getpid())) == 2, "processes are kept from epoch to epoch"
    assert loaders[1].stats()["worker_type"] == "process"
    # Dropped in the middle.
    next(iter(loaders[1]))


def test_each_process_begins_once_and_draws_its_own(tmp_path: Path) -> None:
    loader = hr.DataLoader(
        Numbers(200),
        2,
        num_workers=2,
        worker_type="process",
        collate_fn=process_of,
        worker_init_fn=functools.partial(note_process, str(tmp_path)),
    )
    used = set(loader) | set(loader)
    begun = {path.name: path.read_text().split() for path in tmp_path.iterdir()}
    assert sorted(begun) == ["0", "1"]
    assert {int(pid) for pids in begun.values() for pid in pids} >= used
    assert all(len(pids) == 1 for pids in begun.values())
    assert os.getpid() not in used


def test_idle_processes_end_as_programs_do(tmp_path: Path) -> None:
    begins = functools.partial(note_end, str(tmp_path))
    loader = hr.DataLoader(Numbers(9), 3, num_workers=1, worker_type="process", worker_init_fn=begins)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    del loader
    gc.collect()
    _wait_for(lambda: not _workers_of(os.getpid()))
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_errors_come_with_their_type_and_traceback() -> None:
    dataset = Faulty(16, {1: "key", 5: "own", 9: "stop"})
    iterator = iter(hr.DataLoader(dataset, 2, num_workers=1, worker_type="process"))
    with pytest.raises(KeyError) as caught:
        next(iterator)
    assert caught.value.args == (1,)
    notes = "\n".join(caught.value.__notes__)
    assert "while reading sample 1" in notes
    assert "in worker process 0 (pid" in notes
    assert "loading_data.py" in notes
    assert "batch 0 of epoch 0" in notes
    assert next(iterator).tolist() == [2, 3]
    with pytest.raises(RuntimeError, match="Unpicklable"):
        next(iterator)
    assert next(iterator).tolist() == [6, 7]
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(iterator)
    assert [batch.tolist() for batch in iterator] == [[10, 11], [12, 13], [14, 15]]


@pytest.mark.parametrize("fault, outcome", [("exit", "ended with exit status 7"), ("kill", "was killed by SIGKILL")])
def test_a_dead_worker_is_an_error_and_is_replaced(fault: str, outcome: str) -> None:
    iterator = iter(hr.DataLoader(Faulty(40, {8: fault}), 2, num_workers=1, worker_type="process"))
    for first in (0, 2, 4, 6):
        assert next(iterator).tolist() == [first, first + 1]
    with pytest.raises(RuntimeError, match=rf"worker process 0 \(pid \d+\) {outcome}"):
        next(iterator)
    assert [batch.tolist() for batch in iterator] == [[first, first + 1] for first in range(10, 40, 2)]


def test_a_worker_that_somebody_kills_is_an_error() -> None:
    iterator = iter(hr.DataLoader(Faulty(8, {4: "sleep"}), 2, num_workers=1, worker_type="process"))
    assert next(iterator).tolist() == [0, 1]
    assert next(iterator).tolist() == [2, 3]
    (pid,) = _workers_of(os.getpid())
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="killed by SIGKILL"):
        next(iterator)
    assert next(iterator).tolist() == [6, 7]


def test_no_batch_waits_for_a_later_one_in_its_process() -> None:
    keys = [SlowToSend(key) if key % 3 == 0 else key for key in range(9)]
    loader = hr.DataLoader(Asked(9), 1, sampler=keys, num_workers=1, worker_type="process")
    assert [batch.tolist() for batch in loader] == [[key] for key in range(9)]


def test_no_task_of_lanes_waits_for_a_later_one_in_its_process() -> None:
    resources = Resources(
        workers=1,
        prefetch=1,
        memory=1 << 20,
        timeout=None,
        collate=None,
        init=None,
        on_error="raise",
        pin_memory=False,
        parallel=1,
        worker_type="process",
    )
    makers: Any = [Asked(9)]
    workers = LaneWorkers(makers, resources, 0)
    tasks = [SlowToSend(task) if task % 3 == 0 else task for task in range(9)]
    assert list(workers.run(0, iter(tasks), ahead=0)) == list(range(9))
    workers.close()


def test_dropping_a_loader_ends_a_process_in_the_middle() -> None:
    loader = hr.DataLoader(Faulty(8, {2: "sleep"}), 2, num_workers=2, worker_type="process")
    iterator = iter(loader)
    next(iterator)
    begin = time.monotonic()
    del iterator, loader
    gc.collect()
    _wait_for(lambda: not _workers_of(os.getpid()))
    assert time.monotonic() - begin < 20


def test_a_forked_child_starts_its_own() -> None:
    iterator = iter(hr.DataLoader(Numbers(20), 2, num_workers=1, worker_type="process"))
    assert next(iterator).tolist() == [0, 1]
    lock = module._renewing
    # As if another thread began at this moment: the child has none that lets go of it.
    lock.acquire()
    child = os.fork()
    if child:
        lock.release()
    else:
        status = 1
        try:
            rest = [batch.tolist() for batch in iterator]
            status = 0 if rest == [[first, first + 1] for first in range(2, 20, 2)] else 2
            iterator = None  # type: ignore[assignment]
            gc.collect()
            _wait_for(lambda: not _workers_of(os.getpid()))
        finally:
            os._exit(status)
    deadline = time.monotonic() + 60
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(ended[1]) == 0
    assert [batch.tolist() for batch in iterator] == [[first, first + 1] for first in range(2, 20, 2)]


def test_what_cannot_be_pickled_is_refused_with_advice() -> None:
    loader = hr.DataLoader(Numbers(4), 2, num_workers=1, worker_type="process", collate_fn=lambda samples: samples)
    with pytest.raises(Exception, match="pickle") as caught:
        iter(loader)
    assert 'worker_type="thread" needs no pickling' in caught.value.__notes__[0]
    assert [batch.tolist() for batch in hr.DataLoader(Lists(4), 2, worker_type="process")] == [[0, 1], [2, 3]]


_SCRIPT = """
import json, os, signal, sys, threading, time
import headrace as hr
from loading_data import Faulty
def main():
    loader = hr.DataLoader(Faulty(100, {faults}), 2, num_workers=2, worker_type="process")
    iterator = iter(loader)
    print(next(iterator).tolist(), flush=True)
    {then}
if __name__ == "__main__":
    main()
"""


def _start(tmp_path: Path, faults: str, then: str) -> "subprocess.Popen[str]":
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT.replace("{faults}", faults).replace("{then}", then))
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.parametrize("faults", ["{}", "{2: 'sleep', 4: 'sleep'}"])
def test_workers_die_with_a_parent_that_is_killed(tmp_path: Path, faults: str) -> None:
    files = _shared_files()
    with _start(tmp_path, faults, "time.sleep(60)") as parent:
        assert parent.stdout is not None
        assert json.loads(parent.stdout.readline()) == [0, 1]
        assert len(_workers_of(parent.pid)) == 2
        parent.kill()
        parent.wait(30)
        _wait_for(lambda: not _workers_of(parent.pid))
        assert not {name for name in _shared_files() - files if "headrace" in name or "psm" in name}


def test_ctrl_c_is_one_message(tmp_path: Path) -> None:
    with _start(tmp_path, "{2: 'sleep', 4: 'sleep'}", "next(iterator)") as parent:
        assert parent.stdout is not None
        assert json.loads(parent.stdout.readline()) == [0, 1]
        parent.send_signal(signal.SIGINT)
        for worker in _workers_of(parent.pid):
            # As a terminal does to the whole group.
            os.kill(worker, signal.SIGINT)
        _, errors = parent.communicate(timeout=30)
        assert parent.returncode == -signal.SIGINT
        assert errors.count("KeyboardInterrupt") == 1
        assert errors.count("Traceback") == 1
        _wait_for(lambda: not _workers_of(parent.pid))


def test_a_script_without_a_guard_gets_advice(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import headrace as hr\n"
        "from loading_data import Numbers\n"
        'print(next(iter(hr.DataLoader(Numbers(4), 2, num_workers=1, worker_type="process"))))\n'
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=100, check=False
    )
    assert done.returncode == 1
    assert 'if __name__ == "__main__"' in done.stderr


# How batches travel


_arrays = st.tuples(st.sampled_from(["u1", "<f4", "<i8", ">i2", "?", "U3"]), st.integers(0, 3000), st.booleans())


@given(st.lists(_arrays, max_size=4), st.integers(0, 2**31))
def test_arrays_arrive_as_they_were(kinds: list[tuple[str, int, bool]], seed: int) -> None:
    draw = np.random.default_rng(seed)
    values: list[Any] = []
    for dtype, size, flip in kinds:
        array = draw.integers(0, 100, (size, 2)).astype(dtype)
        values.append(array.T if flip else array)
    arena = _arena()
    kind, got = decode(encode(MADE, {"a": values, "b": "text"}, arena), arena)
    arena.close()
    assert (kind, got["b"]) == (MADE, "text")
    for value, copy in zip(values, got["a"], strict=True):
        assert (copy.dtype, copy.flags.writeable) == (value.dtype, True)
        np.testing.assert_array_equal(copy, value)


def _arena() -> Arena:
    return Arena.new()


def test_an_arena_is_used_again() -> None:
    arena = _arena()
    first = decode(encode(MADE, np.zeros(10_000_000, np.uint8), arena), arena)[1]
    size = os.fstat(arena.fd).st_size
    second = decode(encode(MADE, np.ones(10_000_000, np.uint8), arena), arena)[1]
    assert os.fstat(arena.fd).st_size == size
    assert (int(first.max()), int(second.min())) == (0, 1)
    arena.close()


def test_tensors_arrive_as_tensors() -> None:
    tensors = {
        "plain": torch.arange(1000).reshape(10, 100),
        "turned": torch.arange(1000).reshape(10, 100).T,
        "half": torch.ones(2000, dtype=torch.bfloat16),
        "number": torch.tensor(3),
        "empty": torch.zeros(0, 3),
        "grad": torch.ones(3, requires_grad=True),
        "complex": torch.ones(700, dtype=torch.complex64).conj(),
        "sparse": torch.eye(3).to_sparse(),
    }
    arena = _arena()
    got = decode(encode(MADE, tensors, arena), arena)[1]
    for name, tensor in tensors.items():
        assert torch.equal(got[name].to_dense(), tensor.to_dense()), name
        assert (got[name].dtype, got[name].requires_grad) == (tensor.dtype, tensor.requires_grad)
    reply = encode(MADE, tensors["plain"], arena)
    assert len(reply) < 1000, "large arrays are not in the pickle"
    arena.close()


def test_an_exception_travels_with_text() -> None:
    kind, (error, text) = decode(encode(FAILED, (KeyError("a"), "where"), None), _arena())
    assert (kind, type(error), error.args, text) == (FAILED, KeyError, ("a",), "where")


# Choosing


def _sleeps(keys: list[int]) -> None:
    time.sleep(0.004 * len(keys))


def _computes(keys: list[int]) -> None:
    for _ in keys:
        sum(number * number for number in range(20_000))


def test_what_suits_is_measured() -> None:
    keys = list(range(8))
    waiting = choose(_sleeps, keys, 2)
    assert waiting.worker_type == "thread"
    assert "waits" in waiting.reason
    assert "too little" in choose(len, keys, 2).reason
    assert choose(_computes, keys, 0).worker_type == "thread"
    assert choose(_computes, [], 2).worker_type == "thread"
    assert "could not be measured: ZeroDivisionError" in choose(lambda keys: 1 // 0, keys, 2).reason
    if len(os.sched_getaffinity(0)) > 1:
        # Other work on this machine may make it look otherwise.
        assert any(choose(_computes, keys, 2).worker_type == "process" for _ in range(10))


def test_auto_falls_back_to_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.loading import mapstyle
    from headrace.loading.choose import Choice

    monkeypatch.setattr(mapstyle, "choose", lambda *_: Choice("process", "said so"))
    loader = hr.DataLoader(Numbers(6), 2, num_workers=1, worker_type="auto", collate_fn=lambda samples: samples)
    assert list(loader) == [[0, 1], [2, 3], [4, 5]]
    assert loader.stats()["worker_type"] == "thread"
    assert "cannot be pickled" in loader.stats()["worker_reason"]
    loader = hr.DataLoader(Numbers(6), 2, num_workers=1, worker_type="auto", collate_fn=process_of)
    assert set(loader) != {os.getpid()}
    assert loader.stats()["worker_reason"] == "said so"


_QUIET = """
import json, sys
import numpy as np
import headrace as hr
from loading_data import Numbers
class Loud(Numbers):
    def __getitem__(self, key):
        print(sys.argv[1] * (5_000 if sys.argv[1] == "flushed" else 1), end="", flush=sys.argv[1] == "flushed")
        return np.full(20_000, super().__getitem__(key))
def main():
    loader = hr.DataLoader(Loud(20), 2, num_workers=2, worker_type="process")
    sys.stderr.write(json.dumps([np.unique(batch).tolist() for batch in loader]))
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("how", ["flushed >&-", "k >/dev/full"])
def test_a_standard_output_that_takes_nothing_costs_no_batch(tmp_path: Path, how: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(_QUIET)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), *sys.path))}
    # What is printed is kept until it is flushed.
    environment.pop("PYTHONUNBUFFERED", None)
    command = ["sh", "-c", f'exec "$@" {how}', "sh", sys.executable, str(script)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == 0
    assert json.dumps([[n, n + 1] for n in range(0, 20, 2)]) in done.stderr

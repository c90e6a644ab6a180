"""Loaders over samples begin, stop and end as they should, with threads and with processes."""

import gc
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from files import finish, run_python, start_python
from sample_loading import SIZES, ids_of, load
from sample_sources import drawn, made_up

# Threads and signals


def test_half_used_iterators_leave_no_threads() -> None:
    """B136, B137."""

    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("headrace")]

    data = made_up([10] * 20)
    loader = load(data, 4, num_workers=2, lanes=4, window=2)
    most = 0
    for _ in range(300):
        next(iter(loader))
        most = max(most, len(threads()))
    assert most <= 60, "a thread ends after the chunk that it is in, so there are some"
    for _ in range(30):
        next(iter(load(data, 4, num_workers=2, lanes=4, window=2)))
    del loader
    gc.collect()
    end = time.monotonic() + 30
    while threads() and time.monotonic() < end:
        time.sleep(0.02)
    assert threads() == []


def test_two_loaders_over_one_dataset_at_once() -> None:
    """B133."""
    data = made_up(SIZES)
    one, two = load(data, 3, num_workers=1), load(data, 3, num_workers=1)
    for left, right in zip(one, two, strict=True):
        assert left["id"].tolist() == right["id"].tolist()


def test_a_second_thread_in_next_gets_an_error() -> None:
    inside, go = threading.Event(), threading.Event()

    def wait(sample: dict[str, Any]) -> dict[str, Any]:
        inside.set()
        assert go.wait(30)
        return sample

    loader = load(made_up(SIZES).map(wait), 4, num_workers=1, epochs=1)
    iterator = iter(loader)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(next(iterator)))
    thread.start()
    assert inside.wait(30)
    with pytest.raises(RuntimeError, match="another thread"):
        next(iterator)
    go.set()
    thread.join(30)
    assert [found[0].step, *[batch.step for batch in iterator]] == list(range(8))


DATA = """
import json, os, signal, sys, threading, time
import headrace as hr
from sample_sources import made_up

data = made_up([10] * 20)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_acts_at_once_and_the_iterator_goes_on(workers: int) -> None:
    """B142."""
    program = (
        DATA
        + """
block = threading.Event()
def slow(sample):
    if sample["id"] == 21 and not block.is_set():
        print("waiting", flush=True)
        block.wait(60)
    return sample

loader = hr.DataLoader(data.map(slow), 10, shuffle=False, num_workers=int(sys.argv[1]), epochs=1)
iterator = iter(loader)
found = [next(iterator)["id"].tolist() for _ in range(2)]
try:
    next(iterator)
except KeyboardInterrupt:
    took = time.time()
block.set()
found += [batch["id"].tolist() for batch in iterator]
print(json.dumps([took, found == [list(range(n, n + 10)) for n in range(0, 200, 10)]]))
"""
    )
    process = start_python(program, workers)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.3)  # until next() waits
    sent = time.time()
    process.send_signal(signal.SIGINT)
    took, right = json.loads(finish(process).splitlines()[-1])
    assert right
    assert took - sent < 1


def test_a_forked_child_is_refused_with_advice_and_makes_its_own() -> None:
    """B139, B140."""
    program = (
        DATA
        + """
loader = hr.DataLoader(data, 10, num_workers=2, epochs=1)
iterator = iter(loader)
first = next(iterator)["id"].tolist()
read, write = os.pipe()
if os.fork() == 0:
    told = []
    for _ in range(2):
        try:
            next(iterator)
        except RuntimeError as error:
            told.append(str(error))
    own = hr.DataLoader(data, 10, num_workers=2, epochs=1)
    told += [next(iter(own))["id"].tolist() == first, loader.step]
    os.write(write, json.dumps(told).encode())
    os._exit(0)
os.close(write)
told = json.loads(os.fdopen(read).read())
assert os.wait()[1] == 0
print(json.dumps([told, len(list(iterator))]))
"""
    )
    told, left = json.loads(run_python(program, PYTHONWARNINGS="ignore"))
    assert "in the process that uses it" in told[0]
    assert told[1] == told[0]
    assert told[2:] == [True, 1]
    assert left == 19


@pytest.mark.parametrize("ending", ["", "del loader", "sys.exit(0)", "iterator = None", "loader.seek(0)"])
def test_a_script_ends_with_a_live_iterator(ending: str) -> None:
    """B131, B134."""
    program = (
        DATA
        + f"""
loader = hr.DataLoader(data, 4, num_workers=2, lanes=4, window=2)
iterator = iter(loader)
next(iterator)
print(time.time(), flush=True)
{ending}
"""
    )
    process = start_python(program)
    output = finish(process, timeout=60)
    assert len(output.splitlines()) == 1


def test_an_error_in_the_loop_is_the_error_that_is_seen() -> None:
    program = (
        DATA
        + """
for batch in hr.DataLoader(data, 4, num_workers=2):
    raise LookupError("mine")
"""
    )
    process = start_python(program)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.splitlines()[-1] == "LookupError: mine"
    assert errors.count("Traceback") == 1


# All the way


def test_jsonl_files_go_all_the_way(tmp_path: Path) -> None:
    for number in range(3):
        lines = [json.dumps({"id": 10 * number + row, "text": "x" * row}) for row in range(10)]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    loader = load(hr.open(tmp_path), 4, epochs=2, num_workers=2)
    epochs = [ids_of(loader) for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(30))] * 2
    assert epochs[0] != epochs[1]
    again = load(hr.open(tmp_path), epochs=2)
    state = loader.state_dict() | {"step": 3, "position": 12, "history": [[0, 0, 4]]}
    again.load_state_dict(state)
    assert ids_of(again) == epochs[0][12:]
    (tmp_path / "3.jsonl").write_text('{"id": 30, "text": ""}\n')
    with pytest.raises(hr.StateMismatch, match=r"1 samples were added .*, the first file is '3\.jsonl'"):
        load(hr.open(tmp_path)).load_state_dict(state)


def test_worker_processes_give_the_same_batches() -> None:
    def new(**options: Any) -> hr.DataLoader:
        data = made_up(SIZES).map(drawn)
        return load(data, 4, epochs=2, on_error="skip", **{"seed": 3, "lanes": 4, "window": 2, **options})

    def all_of(loader: hr.DataLoader, epochs: int = 2) -> tuple[list[Any], set[int]]:
        found, pids = [], set()
        for batch in (batch for _ in range(epochs) for batch in loader):
            pids |= set(batch["pid"].tolist())
            found.append(
                (batch.step, batch["id"].tolist(), batch["drawn"].tolist(), batch.positions.tolist(), batch.state)
            )
        return found, pids

    threads, own = all_of(new(num_workers=2))
    assert own == {os.getpid()}
    loader = new(num_workers=2, worker_type="process")
    found, pids = all_of(loader)
    assert found == threads
    assert os.getpid() not in pids
    assert loader.stats()["worker_type"] == "process"
    assert [skip[0] for skip in loader.stats()["skipped"]] == [13, 13]
    # Another seed, from a state: the processes are made anew.
    other = new(seed=8)
    next(iter(other))
    loader = load(made_up(SIZES).map(drawn), 4, epochs=2, on_error="skip", num_workers=1, worker_type="process")
    next(iter(loader))
    loader.load_state_dict(other.state_dict())
    assert all_of(loader)[0] == all_of(other)[0]
    with pytest.raises(LookupError, match="no 13") as caught:
        for _ in load(made_up(SIZES).map(drawn), 4, num_workers=1, worker_type="process"):
            pass
    assert "sample 13 (file-4, chunk 4, row 0)" in "\n".join(caught.value.__notes__)

"""The pool gives results in order, loses none, and leaves nothing behind, whoever drops it and when."""

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.loading.pool import OrderedResults, Pool, add_note, as_raised

WORKERS = [0, 1, 3]


def _square(number: int) -> int:
    return number * number


def _wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def _own_threads() -> int:
    return sum(thread.name.startswith("headrace-worker") for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def _leaves_no_thread() -> Iterator[None]:
    yield
    gc.collect()
    _wait_for(lambda: _own_threads() == 0)


def _script(code: str, *, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=seconds, check=False)


@pytest.mark.parametrize("workers", WORKERS)
@given(numbers=st.lists(st.integers()), ahead=st.integers(0, 5))
def test_results_come_in_order(workers: int, numbers: list[int], ahead: int) -> None:
    pool = Pool(_square, workers)
    assert list(pool.run(iter(numbers), ahead=ahead)) == [number * number for number in numbers]
    pool.close()


@pytest.mark.parametrize("workers", WORKERS)
def test_slow_tasks_do_not_change_the_order(workers: int) -> None:
    def wait(number: int) -> int:
        time.sleep(0.002 * (number % 3))
        return number

    assert list(Pool(wait, workers).run(iter(range(40)), ahead=4)) == list(range(40))


@pytest.mark.parametrize("workers, ahead", [(0, 0), (0, 3), (1, 0), (2, 2), (3, 5)])
@pytest.mark.parametrize("seconds", [0, 0.001])
def test_no_more_is_begun_than_allowed(workers: int, ahead: int, seconds: float) -> None:
    drawn = claimed = 0
    worst = 0

    def tasks() -> Iterator[int]:
        nonlocal drawn, worst
        for number in range(60):
            drawn += 1
            # The result that is about to be returned is claimed already.
            worst = max(worst, drawn - claimed - 1)
            yield number

    results = Pool(lambda _: time.sleep(seconds), workers).run(tasks(), ahead=ahead)
    for _ in results:
        claimed += 1
    assert drawn == claimed == 60
    assert worst <= max(1, workers + ahead)


@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_comes_in_its_place_and_the_rest_follows(workers: int) -> None:
    error = KeyError("seven")

    def task(number: int) -> int:
        if number == 7:
            raise error
        return number

    results = Pool(task, workers).run(iter(range(10)), ahead=3, label=lambda number: f"task {number}")
    assert [next(results) for _ in range(7)] == list(range(7))
    with pytest.raises(KeyError) as caught:
        next(results)
    assert caught.value is error
    assert error.__notes__ == ["task 7"]
    assert traceback.extract_tb(error.__traceback__)[-1].name == "task"
    assert list(results) == [8, 9]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_stop_iteration_of_a_task_does_not_end_the_epoch(workers: int) -> None:
    def task(number: int) -> int:
        return next(iter([])) if number == 1 else number

    results = Pool(task, workers).run(iter(range(3)))
    assert next(results) == 0
    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        next(results)
    assert isinstance(caught.value.__cause__, StopIteration)
    assert list(results) == [2]
    with pytest.raises(StopIteration):
        next(results)


@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_of_the_stream_of_tasks_comes_after_those_before(workers: int) -> None:
    def tasks() -> Iterator[int]:
        yield from range(5)
        raise ValueError("the sampler")

    results = Pool(_square, workers).run(tasks(), ahead=2)
    assert [next(results) for _ in range(5)] == [0, 1, 4, 9, 16]
    with pytest.raises(ValueError, match="the sampler"):
        next(results)
    # A generator that raised is finished: that is no end of the epoch.
    with pytest.raises(RuntimeError, match="ended after an error") as caught:
        next(results)
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(StopIteration):
        next(results)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_stream_of_tasks_may_go_on_after_an_error(workers: int) -> None:
    class Tasks(Iterator[int]):
        number = 0

        def __next__(self) -> int:
            self.number += 1
            if self.number % 3 == 0:
                raise ValueError(self.number)
            if self.number > 7:
                raise StopIteration
            return self.number

    results = Pool(_square, workers).run(Tasks(), ahead=2)
    seen: list[Any] = []
    while True:
        try:
            seen.append(next(results))
        except ValueError as error:
            seen.append(error.args[0])
        except StopIteration:
            break
    assert seen == [1, 4, 3, 16, 25, 6, 49]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_timeout_loses_nothing(workers: int) -> None:
    gate = threading.Event()

    def task(number: int) -> int:
        assert gate.wait(30)
        return number

    results = Pool(task, workers).run(iter(range(5)), label=lambda number: f"batch {number}")
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"no result after 0.01 s, batch 0"):
            results.next(0.01)
    gate.set()
    assert list(results) == list(range(5))


def test_a_second_thread_is_refused() -> None:
    gate, entered = threading.Event(), threading.Event()

    def task(number: int) -> int:
        entered.set()
        assert gate.wait(30)
        return number

    results = Pool(task, 1).run(iter(range(3)))
    got: SimpleQueue[Any] = SimpleQueue()
    thread = threading.Thread(target=lambda: got.put(next(results)))
    thread.start()
    assert entered.wait(30)
    _wait_for(lambda: results._run.waiting)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(RuntimeError, match="another thread"):
        next(results)
    gate.set()
    thread.join(30)
    assert got.get(timeout=30) == 0
    assert list(results) == [1, 2]


def test_threads_are_made_once_and_initialised_once() -> None:
    begun: SimpleQueue[tuple[int, str]] = SimpleQueue()
    pool = Pool(lambda _: threading.get_ident(), 3, init=lambda n: begun.put((n, threading.current_thread().name)))
    idents = {ident for _ in range(5) for ident in pool.run(iter(range(20)), ahead=3)}
    assert len(idents) <= 3
    assert threading.get_ident() not in idents
    _wait_for(lambda: begun.qsize() == 3)
    assert sorted(begun.get() for _ in range(3)) == [(number, f"headrace-worker-{number}") for number in range(3)]
    assert len(pool.threads()) == 3


def test_a_worker_that_cannot_begin_is_an_error() -> None:
    calls = itertools.count()

    def init(number: int) -> None:
        if next(calls) == 0:
            raise OSError("no licence")

    results = Pool(_square, 1, init=init).run(iter(range(3)))
    with pytest.raises(OSError, match="no licence") as caught:
        next(results)
    assert caught.value.__notes__ == ["in worker_init_fn(0)"]
    assert list(results) == [1, 4]


def test_recursion_is_as_deep_as_on_the_main_thread() -> None:
    code = """if True:
        import sys
        from headrace.loading.pool import Pool
        sys.setrecursionlimit(20_000)
        class Item:
            def __init__(self, depth): self.depth = depth
            # Through C, so that the stack counts and not only the interpreter's frames.
            def __getitem__(self, key): return 0 if self.depth == 0 else sum(map(Item(self.depth - 1).__getitem__, [0]))
        def deep(depth): return Item(depth)[0]
        for workers in (0, 2):
            assert list(Pool(deep, workers).run(iter([3000, 3000]))) == [0, 0]
            try:
                list(Pool(lambda _: (lambda f: f(f))(lambda f: f(f)), workers).run(iter([0])))
            except RecursionError:
                print("refused")
    """
    done = _script(code)
    assert (done.returncode, done.stdout) == (0, "refused\nrefused\n"), done.stderr


def test_the_size_of_other_threads_stacks_stays() -> None:
    before = threading.stack_size()
    list(Pool(_square, 1).run(iter([1])))
    assert threading.stack_size() == before


def test_a_thousand_dropped_iterators_leave_no_thread() -> None:
    pool = Pool(_square, 2)
    for _ in range(1000):
        assert next(pool.run(itertools.count(), ahead=4)) == 0
    assert _own_threads() == 2
    for _ in range(100):
        assert next(Pool(_square, 2).run(itertools.count(), ahead=4)) == 0
    del pool
    gc.collect()
    _wait_for(lambda: _own_threads() == 0)


def test_what_was_not_begun_is_not_begun_after_a_drop() -> None:
    begun: list[int] = []
    gate = threading.Event()

    def task(number: int) -> None:
        begun.append(number)
        if number:
            gate.wait(30)

    pool = Pool(task, 1)
    results = pool.run(itertools.count(), ahead=10)
    next(results)
    _wait_for(lambda: len(begun) == 2)
    del results
    gate.set()
    assert list(pool.run(iter([0]))) == [None]
    assert begun == [0, 1, 0]


def test_results_that_were_dropped_are_freed() -> None:
    class Big:
        pass

    made: list[weakref.ref[Big]] = []

    def task(_: int) -> Big:
        big = Big()
        made.append(weakref.ref(big))
        return big

    pool = Pool(task, 2)
    results = pool.run(itertools.count(), ahead=6)
    for _ in range(50):
        next(results)
    del results
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        # What a thread made that only waits is freed when it works again, or by the collector.
        gc.collect()
    _wait_for(lambda: all(ref() is None for ref in made))


def test_pools_that_start_at_once_leave_the_size_of_stacks_as_it_was() -> None:
    before = threading.stack_size()
    start = threading.Barrier(8)

    def begin() -> None:
        results = Pool(_square, 8).run(iter(range(8)))
        start.wait()
        assert list(results) == [number**2 for number in range(8)]

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert threading.stack_size() == before


def test_dropping_in_a_worker_and_in_the_collector() -> None:
    class Loop:
        """Keeps a pool and an iterator alive until the collector finds them."""

    def abandon() -> None:
        loop: Any = Loop()
        loop.me = loop
        loop.pool = Pool(_square, 2)
        loop.results = loop.pool.run(itertools.count(), ahead=4)
        next(loop.results)

    def in_worker(_: int) -> None:
        for _ in range(3):
            abandon()
        gc.collect()

    before = gc.get_threshold()
    gc.set_threshold(5)
    try:
        for _ in range(20):
            abandon()
        list(Pool(in_worker, 2).run(iter(range(10)), ahead=2))
        threads = [threading.Thread(target=in_worker, args=(0,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    finally:
        gc.set_threshold(*before)


def test_the_last_reference_may_go_in_a_worker() -> None:
    dropped = threading.Event()
    given: SimpleQueue[Any] = SimpleQueue()

    def task(number: int) -> None:
        if number == 1:
            # This holds the pool and its iterator.
            results: Any = given.get()
            del results
            gc.collect()
            dropped.set()

    results: OrderedResults[int, None] | None = Pool(task, 1).run(iter(range(3)), ahead=1)
    next(results)
    given.put(results)
    results = None
    assert dropped.wait(30)


def test_a_closed_pool_refuses() -> None:
    pool = Pool(_square, 1)
    results = pool.run(itertools.count())
    next(results)
    results.close()
    with pytest.raises(StopIteration):
        next(results)
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(pool.run(itertools.count()))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupt_is_prompt_and_loses_nothing(workers: int) -> None:
    code = f"""if True:
        import os, signal, threading, time
        from headrace.loading.pool import Pool
        def task(number):
            if number == 2 and not interrupted:
                released.wait(60)
            return number
        interrupted, released = [], threading.Event()
        results = Pool(task, {workers}).run(iter(range(6)))
        assert [next(results), next(results)] == [0, 1]
        def interrupt():
            time.sleep(0.2)
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        sent = []
        threading.Thread(target=interrupt).start()
        try:
            next(results)
        except KeyboardInterrupt:
            interrupted.append(time.monotonic() - sent[0])
            released.set()
        assert interrupted[0] < 20, interrupted
        assert list(results) == [2, 3, 4, 5]
        print("well")
    """
    done = _script(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "well\n", "")


def test_interrupts_at_any_moment_lose_nothing() -> None:
    code = """if True:
        import os, signal, threading, time, random
        from headrace.loading.pool import Pool
        results = Pool(lambda number: number, 2).run(iter(range(10**9)), ahead=4)
        seen = []
        stop = threading.Event()
        def interrupt():
            while not stop.is_set():
                time.sleep(random.random() / 500)
                os.kill(os.getpid(), signal.SIGINT)
        hits = 0
        threading.Thread(target=interrupt, daemon=True).start()
        end = time.monotonic() + 2
        expected = 0
        while True:
            try:
                if hits > 50 and time.monotonic() > end:
                    stop.set()
                    break
                before = results._number
                got = results.next()
            except KeyboardInterrupt:
                hits += 1
                # Ctrl-C may come between the return and the assignment: then the iterator knows that it gave it.
                continue
            assert got == results._number - 1, (got, results._number)
        time.sleep(0.1)
        print("well")
    """
    done = _script(code)
    # The last interrupt may come after the loop.
    assert "AssertionError" not in done.stderr
    assert done.stdout == "well\n" or "KeyboardInterrupt" in done.stderr


@pytest.mark.parametrize("workers", WORKERS)
def test_a_forked_child_goes_on_with_threads_of_its_own(workers: int) -> None:
    pool = Pool(_square, workers)
    fresh = pool.run(iter(range(4)))
    results = pool.run(iter(range(50)), ahead=6)
    assert [next(results) for _ in range(5)] == [0, 1, 4, 9, 16]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            whole = list(results) == [number * number for number in range(5, 50)]
            whole = whole and list(fresh) == [0, 1, 4, 9] and list(pool.run(iter(range(3)))) == [0, 1, 4]
            status = 0 if whole else 2
        finally:
            os._exit(status)
    end = time.monotonic() + 30
    status = None
    while time.monotonic() < end and status is None:
        pid, raw = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(raw) if pid else time.sleep(0.01)
    if status is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert status == 0
    assert list(results) == [number * number for number in range(5, 50)]


@pytest.mark.parametrize("busy", ["time.sleep(0.001)", "sum(range(1000))", "time.sleep(20)"])
def test_the_interpreter_ends_while_an_iterator_lives(busy: str) -> None:
    code = f"""if True:
        import itertools, time
        from headrace.loading.pool import Pool
        def task(number):
            if number > 1:
                {busy}
        results = Pool(task, 2).run(itertools.count(), ahead=4)
        next(results)
    """
    begin = time.monotonic()
    done = _script(code)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - begin < 15


def test_notes_are_added_once() -> None:
    error = ValueError()
    for _ in range(3):
        add_note(error, "a")
    assert error.__notes__ == ["a"]
    assert as_raised(error) is error

"""How many threads work at once is tried out, and never in the way of a result."""

import gc
import threading
import time
from types import SimpleNamespace

import pytest

from headrace.loading import pace as module
from headrace.loading import pool as pools
from headrace.loading.pace import Pace
from headrace.loading.pool import Pool
from headrace.loading.team import Team


class Clock:
    """Time that passes when it is told to, of which the process computes a share."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.computed = 100.0
        fake = SimpleNamespace(perf_counter=lambda: self.now, process_time=lambda: self.computed)
        monkeypatch.setattr(module, "time", fake)

    def run(self, pace: Pace, team: Team, seconds: float, *, alone: float, together: float, busy: float = 1.0) -> None:
        """Hands results out at the rates that one thread and all have; whoever takes them does nothing but wait."""
        end = self.now + seconds
        while self.now < end:
            took = 1 / (alone if team.limit == 1 else together)
            self.now += took
            self.computed += busy * took
            pace.note(took)


def of(workers: int) -> tuple[Team, Pace]:
    team = Team(workers)
    return team, Pace(team, workers)


def test_threads_that_take_turns_give_way_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    team, pace = of(4)
    clock.run(pace, team, 1, alone=1000, together=500)
    assert team.limit == 1
    # The work changes: it is tried again, and all work.
    clock.run(pace, team, 15, alone=300, together=900)
    assert team.limit == 4
    assert not pace.is_limited


def test_threads_that_work_side_by_side_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    team, pace = of(2)
    limits = set[int]()
    for _ in range(600):
        clock.run(pace, team, 0.1, alone=500, together=950)
        limits.add(team.limit)
    assert team.limit == 2
    assert limits == {1, 2}, "it was tried"
    # Seldom: most of the results came at the rate of both.
    begin = clock.now
    count = 0
    while clock.now < begin + 60:
        clock.run(pace, team, 1e-9, alone=500, together=950)
        count += 1
    assert count > 0.98 * 60 * 950


@pytest.mark.parametrize("workers", [2, 8, 16])
def test_long_tasks_are_not_held_up(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    clock = Clock(monkeypatch)
    team, pace = of(workers)
    for seconds in (0.02, 0.09, 0.25, 0.9):
        begin, count = clock.now, 0
        while clock.now < begin + 120:
            # A thread that is waited for too long is not alone any more.
            if pace.patience is not None and pace.patience < seconds:
                clock.now += pace.patience
                pace.release()
            clock.run(pace, team, 1e-9, alone=1 / seconds, together=workers / seconds)
            count += 1
        assert count > 0.95 * 120 * workers / seconds


@pytest.mark.parametrize("busy, waits", [(0.3, 1.0), (1.0, 0.2)], ids=["waiting for a disk", "slow consumer"])
def test_what_is_no_question_of_threads_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, busy: float, waits: float
) -> None:
    clock = Clock(monkeypatch)
    team, pace = of(2)
    for _ in range(5000):
        clock.now += 0.002
        clock.computed += 0.002 * busy
        pace.note(0.002 * waits)
        assert team.limit == 2


def test_tasks_that_need_each_other_are_given_both_threads() -> None:
    together = threading.Barrier(2, timeout=30)
    pool = Pool(lambda _: together.wait(), 2)
    results = pool.run(iter(range(4)), ahead=2)
    pool._team.limit = 1  # As while one is tried.
    assert len({next(results) for _ in range(4)}) == 2
    assert pool.pace is not None
    assert not pool.pace.is_limited
    pool.close()


class _OneTurn:
    """Threads take tasks in turns, each until it says that it does not need its turn any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None

    def take_turn(self) -> None:
        if self._holder != threading.get_ident():
            assert self._lock.acquire(timeout=60)
            self._holder = threading.get_ident()

    def pass_turn(self) -> None:
        if self._holder == threading.get_ident():
            self._holder = None
            self._lock.release()


def test_a_thread_that_is_not_to_work_keeps_no_turn() -> None:
    turns = _OneTurn()

    def call(task: int) -> int:
        if threading.current_thread().name == "turns-1":
            # Its task comes to nothing as one thread begins to be tried.
            pool._team.limit = 1
        else:
            turns.pass_turn()
            time.sleep(0.01)
        return task

    pool = Pool(call, 2, turns=turns, name="turns")
    pool.pace = None  # It would let both work after a second.
    results = pool.run(iter(range(8)))
    assert [results.next(20) for _ in range(8)] == list(range(8))
    pool.close()
    # Whoever ends keeps none either.
    for thread in pool.threads():
        thread.join(20)
        assert not thread.is_alive()


def test_a_timeout_is_kept_while_one_thread_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.05)
    go = threading.Event()
    pool = Pool(lambda _: go.wait(30), 2)
    results = pool.run(iter(range(2)))
    pool._team.limit = 1
    begin = time.monotonic()
    with pytest.raises(pools.NotReady):
        results.next(0.3)
    assert 0.25 < time.monotonic() - begin < 20
    go.set()
    assert list(results) == [True, True]
    pool.close()


def test_threads_that_do_not_work_end_with_their_pool() -> None:
    pool = Pool(lambda task: task, 4, name="paced")
    assert list(pool.run(iter(range(100)))) == list(range(100))
    pool._team.limit = 1
    assert list(pool.run(iter(range(100)))) == list(range(100))
    threads = pool.threads()
    del pool
    gc.collect()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()

"""Who runs the tasks of a run's sources: threads of this process, or processes of their own, shared by all of them."""

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import Any

from headrace.loading.choose import Choice, choose
from headrace.loading.pool import OrderedResults, Pool
from headrace.loading.processes import Processes
from headrace.loading.sample_feed import Resources

from .source import Maker

__all__ = ["LaneWorkers"]


class LaneWorkers:
    """A pool, and what it calls.

    Args:
        makers: of all sources of a run, in the order of the plan.
        resources: of the loader.
        seed: of the random numbers of worker processes.

    Attributes:
        choice: threads or processes, and why.
        makers: as given; in threads they are what is called.
        count: how many tasks are run at a time; 0 if whoever asks for a result runs its task.
    """

    def __init__(self, makers: Sequence[Maker], resources: Resources, seed: int) -> None:
        self.choice = resources.choice
        self.process = os.getpid()
        self.makers = list(makers)
        self._calls: list[Callable[[Any], Any]] = list(makers)
        self.count = count = resources.workers
        if self.choice.worker_type == "auto":
            self.choice = Choice("thread", "there is nothing to do for workers")
            if makers:
                self.choice = choose(_Probe(makers), _probes(makers), count)
        if self.choice.worker_type == "process" and count and makers:
            processes = Processes(_Dispatch(self.makers), count, init=resources.init, seed=seed)
            self._calls = [_Remote(processes, number) for number in range(len(makers))]
            self._pool: Pool[Any, Any] = processes.pool(processes)
        else:
            self._pool = Pool(_nothing, count, init=resources.init)

    @property
    def in_processes(self) -> bool:
        """Whether tasks are run in processes of their own, which read and keep what they need themselves."""
        return self.choice.worker_type == "process" and self.count > 0

    def run(
        self, maker: int, tasks: Iterator[Any], *, ahead: int, label: Callable[[int], str] | None = None
    ) -> OrderedResults[Any, Any]:
        """Begins a sequence of tasks of one maker.

        Args:
            maker: its index.
            tasks: drawn by the thread that asks for results, never further beyond the last of these than one for each
                thread and `ahead`. It must not end before the run does.
            ahead: results that may be ready, beyond those that are being worked for.
            label: text for a note to an exception, from the number of its task.
        """
        return OrderedResults(self._pool, self._calls[maker], tasks, max(1, self._pool.workers + ahead), label)

    def check_process(self) -> None:
        """Refuses to go on in a forked child.

        Raises:
            RuntimeError: if this is not the process that they were made in.
        """
        if os.getpid() != self.process:
            raise RuntimeError(
                "this loader was started in another process: files and connections that it uses were not made for two\n"
                "hint: make the loader in the process that uses it, or start processes with the 'spawn' method"
            )

    def close(self) -> None:
        """Ends the threads and processes. Waits for nothing and takes no lock."""
        self._pool.close()

    def __del__(self) -> None:
        # Sources and what they wait for refer to each other, and to the pool: not to these.
        if hasattr(self, "_pool"):
            self.close()


def _probes(makers: Sequence[Maker]) -> list[tuple[int, Any]]:
    """What makers are probed with, each by its index: in turns, as many as one of them has."""
    several = [[(number, one) for one in maker.probes()] for number, maker in enumerate(makers)]
    turns = (one for turn in zip_longest(*several) for one in turn if one is not None)
    return list(islice(turns, max(map(len, several))))


class _Probe:
    """Does some work of several makers, and forgets it."""

    def __init__(self, makers: Sequence[Maker]) -> None:
        self._makers = makers

    def __call__(self, some: list[tuple[int, Any]]) -> None:
        for number in dict.fromkeys(number for number, _ in some):
            self._makers[number].probe([one for maker, one in some if maker == number])


class _Dispatch:
    """What a process calls: the maker that a task is for."""

    def __init__(self, makers: list[Maker]) -> None:
        self.makers = makers

    def __call__(self, task: tuple[int, Any]) -> Any:
        number, inner = task
        return self.makers[number](inner)


class _Remote:
    """A maker in the processes."""

    def __init__(self, processes: Processes, number: int) -> None:
        self._processes = processes
        self._number = number

    def __call__(self, task: Any) -> Any:
        return self._processes((self._number, task))


def _nothing(task: Any) -> None:
    del task

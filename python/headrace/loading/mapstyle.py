"""The driver for objects that are not headrace's: what has ``__getitem__`` or ``__iter__``, with PyTorch's behaviour.

Each iterator is an epoch of its own, but for the first one after a state was loaded, which goes on inside one.
"""

import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from headrace._changes import batch_changes
from headrace._ranks import resolve_rank
from headrace.errors import StateMismatch
from headrace.state import ORDER, SCHEMA, check_state

from .arguments import Arguments
from .base import END, Driver, Mark
from .choose import Choice, choose
from .fetch import Fetcher
from .map_arguments import MapArguments, resolve
from .pool import OrderedResults, Pool
from .processes import Processes
from .samplers import Place, Sharing, Stream
from .schedule import check_divides
from .streams import Caller, IterableSource, MapSource, Reader, Source, read_pinned

__all__ = ["MapDriver"]


class _At(NamedTuple):
    """Where a run stands."""

    epoch: int = 0
    begun: bool = False
    """Whether an iterator was made for the epoch: the next one then is for another."""
    place: Place = Place()
    step: int = 0
    """Steps of the whole run."""
    position: int = 0
    """Rows of all ranks in the whole run."""

    def next_epoch(self, inner: Any = None) -> "_At":
        """The beginning of the next one, before which the sampler or dataset said something of itself."""
        return self._replace(epoch=self.epoch + 1, begun=False, place=Place(inner=inner))


class MapDriver(Driver):
    """See the module. Made by `of`."""

    kind = "an object that is not headrace's"

    def __init__(self, dataset: Any, arguments: MapArguments) -> None:
        self.dataset = dataset
        self._arguments = arguments
        self._given_seed = arguments.seed if arguments.seed_counts else None
        self._given_shuffle = arguments.shuffle
        self._seed = arguments.seed or 0
        self._shuffle = bool(arguments.shuffle)
        self._at = _At()
        self._moved = False
        """Whether the sampler or dataset may stand elsewhere than the run does, as after a state was loaded."""
        self._drawn: Iterator[Any] = iter(())
        """What the epoch's keys come from, or what reads it."""
        self._resumes = False
        """Whether that went on from a state."""
        self._before: tuple[list[dict[str, Any]], tuple[int, int, int]] | None = None
        """What the loaded state told of changes, and its step, row and batch size."""
        self._process = os.getpid()
        # Reentrant: an interrupt between taking it and the next line must not lock this thread out.
        self._busy = threading.RLock()
        self.iteration = 0
        """Counts up whenever an iterator that is alive must not go on."""
        self._pool: Pool[Any, tuple[Any, Place]] | None = None
        self._latest: weakref.ref[OrderedResults[Any, tuple[Any, Place]]] | None = None
        self._fetcher: Fetcher | None = None
        self._source: Source
        if arguments.iterable:
            self._source = IterableSource(dataset, arguments.collate)
            self._workers = min(1, arguments.workers)
            self._chosen = Choice("thread", "an iterable is read by one thread")
        else:
            self._source = MapSource(dataset, arguments.sampler, arguments.batch_sampler)
            self._fetcher = Fetcher(
                dataset, arguments.collate, batched=arguments.batched, parallel=arguments.items_in_parallel
            )
            self._workers = arguments.workers
            self._chosen = Choice(arguments.worker_type if arguments.workers else "thread", "as asked")
        self._counts = {"batches": 0, "samples": 0, "waits": 0}
        self._waited = 0.0

    @classmethod
    def of(cls, dataset: Any, arguments: Arguments) -> "MapDriver":
        """A driver for a dataset, with PyTorch's defaults.

        Raises:
            TypeError: if it has no ``__getitem__``, ``__getitems__`` or ``__iter__``.
            ValueError: if arguments cannot be used.
        """
        driver = cls(dataset, resolve(dataset, arguments))
        driver._sharing()
        return driver

    # Where the run stands

    @property
    def rank(self) -> int:
        """See `Driver.rank`."""
        return self._ranks()[0]

    @property
    def world_size(self) -> int:
        """See `Driver.world_size`."""
        return self._ranks()[1]

    @property
    def step(self) -> int:
        """See `Driver.step`."""
        return self._at.step

    @property
    def position(self) -> int:
        """See `Driver.position`."""
        return self._at.position

    @property
    def epoch(self) -> int:
        """See `Driver.epoch`."""
        return self._here().epoch

    @property
    def global_batch_size(self) -> int:
        """See `Driver.global_batch_size`."""
        return self._sharing().batch

    def length(self) -> int:
        """See `Driver.length`."""
        at = self._at
        return at.place.step + self._source.left(at.place, self._sharing())

    # Iterating

    def iterate(self) -> Iterator[Any]:
        """See `Driver.iterate`."""
        at = self._here()
        if at.begun:
            at = at.next_epoch()
        sharing = self._sharing()
        # Elsewhere the sampler or dataset is where it said that it was.
        place = at.place if self._moved or at.place.step else Place()
        resumes = place != Place()
        stream = self._stream(at, place, sharing)
        self._next_iteration()
        return _Epoch(self, self._begin(at, stream, resumes=resumes), sharing, resumed=resumes)

    def again(self, sharing: Sharing) -> "OrderedResults[Any, tuple[Any, Place]]":
        """The epoch after one of which a loaded state had left nothing, which only reading on could show."""
        return self._begin(self._at, self._stream(self._at, Place(), sharing), resumes=False)

    def next(self, results: "OrderedResults[Any, tuple[Any, Place]]", sharing: Sharing) -> Any:
        """The next batch of a run, or `END`.

        Raises:
            RuntimeError: if another thread is in this method.
        """
        if os.getpid() != self._process:
            # A forked child goes on, whatever its parent's other threads were at.
            self._process, self._busy = os.getpid(), threading.RLock()
        # Held until the run stands behind the batch: the next one moves it on from there.
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("another thread is waiting for this loader's next batch")
        try:
            return self._next(results, sharing)
        finally:
            self._busy.release()

    def _next(self, results: "OrderedResults[Any, tuple[Any, Place]]", sharing: Sharing) -> Any:
        try:
            batch, after = results.next(self._arguments.timeout)
        except StopIteration:
            batch, after = END, Place(inner=self._drawn.end() if isinstance(self._drawn, Stream) else None)
        self._counts["waits"] += results.waits
        self._waited += results.waited
        results.waits, results.waited = 0, 0.0
        at = self._at
        if batch is END:
            # A sampler that was saved at an epoch's end may give nothing before it begins the next one.
            is_first = self._resumes and not at.place.step
            self._at = at._replace(begun=False) if is_first else at.next_epoch(after.inner)
            return END
        rows = after.row - at.place.row
        # Steps whose batch was an error count as well.
        step = at.step + after.step - at.place.step
        self._at = at._replace(place=after, step=step, position=at.position + rows)
        first, last = sharing.share(0, rows)
        self._counts["batches"] += 1
        self._counts["samples"] += last - first
        return batch

    def left(self, sharing: Sharing) -> int:
        """Batches from the next one to the end of the epoch."""
        return self._source.left(self._at.place, sharing)

    def close(self) -> None:
        """See `Driver.close`."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        if self._fetcher is not None:
            self._fetcher.close()

    # State

    def state(self) -> dict[str, Any]:
        """See `Driver.state`."""
        return self._state(self._here())

    def mark(self) -> Mark:
        """See `Driver.mark`."""
        at = self._here()
        return Mark(at.step, at.position, at.epoch, lambda: self._state(at), self._at)

    def go_back(self, mark: Mark) -> None:
        """See `Driver.go_back`; the next iterator is for the next epoch."""
        self._next_iteration()
        self._at, self._moved = mark.where, True

    def _state(self, at: _At) -> dict[str, Any]:
        # A batch sampler's lists are of any lengths.
        batch = 1 if self._source.keys == "batch_sampler" else self._sharing().batch
        changes, loaded = self._before or ([], (0, 0, batch))
        return {
            "schema": SCHEMA,
            "order": ORDER,
            "kind": "map",
            "seed": self._seed,
            "shuffle": self._shuffle,
            "keys": self._source.keys,
            "size": self._source.size(),
            "batch": batch,
            "step": at.step,
            "position": at.position,
            "epoch": at.epoch,
            "row": at.place.row,
            "epoch_step": at.place.step,
            "inner": at.place.inner,
            "drawn": at.place.drawn,
            "changes": [*changes, *batch_changes([loaded, (*loaded[:2], batch)])],
        }

    def load(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, strict: bool) -> None:
        """See `Driver.load`."""
        del strict
        if not isinstance(state, Mapping):
            if not state or any(other != state[0] for other in state):
                raise StateMismatch(f"expected the states of one step, the same on all ranks; got {len(state)} states")
            state = state[0]
        # What a sampler or dataset says of itself need not be of plain types.
        plain = check_state({key: value for key, value in state.items() if key != "inner"}, "map")
        self._check(plain)
        place = Place(plain["row"], plain["epoch_step"], state.get("inner"), plain.get("drawn"))
        self._seed = plain["seed"]
        self._shuffle = plain["shuffle"]
        self._at = _At(plain["epoch"], False, place, plain["step"], plain["position"])
        batch = 1 if plain["keys"] == "batch_sampler" else plain["batch"]
        self._before = plain["changes"], (plain["step"], plain["position"], batch)
        self._moved = True
        self._next_iteration()

    # Telling

    def stats(self) -> dict[str, Any]:
        """See `Driver.stats`."""
        at = self._here()
        worker_type, reason = self._chosen
        return {
            "step": at.step,
            "epoch": at.epoch,
            "position": at.position,
            **self._counts,
            "wait_seconds": self._waited,
            "workers": self._workers,
            "worker_type": worker_type,
            "worker_reason": reason,
        }

    def settings(self) -> dict[str, Any]:
        """See `Driver.settings`."""
        return dict(self._arguments.shown)

    # Inside

    def _ranks(self) -> tuple[int, int]:
        # Looked up again, for a process group may have come or gone since.
        return resolve_rank(self._arguments.rank, self._arguments.world_size)

    def _sharing(self) -> Sharing:
        rank, ranks = self._ranks()
        arguments = self._arguments
        batch = arguments.global_batch or arguments.batch_size * ranks
        check_divides(batch, ranks)
        return Sharing(
            batch=batch,
            rank=rank,
            ranks=ranks,
            drop_last=arguments.drop_last,
            allow_empty=arguments.allow_empty,
            batched=arguments.batched,
        )

    def _here(self) -> _At:
        """Where the run stands; an epoch of which nothing is left is over, if that can be known."""
        at = self._at
        if at.place.over:
            return at.next_epoch(at.place.inner)
        if at.place.step and self._source.keys == "order" and self._source.left(at.place, self._sharing()) == 0:
            return at.next_epoch()
        return at

    def _stream(self, at: _At, place: Place, sharing: Sharing) -> Iterator[Any]:
        return self._source.stream(place, sharing, self._seed if self._shuffle else None, at.epoch)

    def _begin(self, at: _At, stream: Iterator[Any], *, resumes: bool) -> "OrderedResults[Any, tuple[Any, Place]]":
        """Batches of an epoch from somewhere on, where the run then stands."""
        self._at, self._moved = at._replace(begun=True), False
        self._drawn, self._resumes = stream, resumes
        pool, stream = self._workers_for(stream)
        return self._run(pool, stream)

    def _next_iteration(self) -> None:
        """Ends what works for an iterator that is no longer the latest."""
        self.iteration += 1
        results = None if self._latest is None else self._latest()
        if results is not None:
            results.close()

    def _run(self, pool: "Pool[Any, tuple[Any, Place]]", stream: Iterator[Any]) -> Any:
        first = self._at.place.step
        epoch = self._at.epoch
        results = pool.run(
            stream,
            # So many batches for each worker, besides those that are being made.
            ahead=(self._arguments.prefetch + 1) * self._workers - pool.workers,
            label=lambda number: f"batch {first + number} of epoch {epoch}",
        )
        self._latest = weakref.ref(results)
        return results

    def _workers_for(self, stream: Iterator[Any]) -> "tuple[Pool[Any, tuple[Any, Place]], Iterator[Any]]":
        """The pool, made for the first epoch."""
        if self._pool is not None:
            return self._pool, stream
        pinned = self._arguments.pin_memory
        init = self._arguments.init
        if self._fetcher is None:
            self._pool = Pool(read_pinned if pinned else Reader.read, self._workers, init=init)
            return self._pool, stream
        fetcher, processes = self._fetcher, None
        if self._chosen.worker_type == "auto":
            # The batch that is measured is given later, like any other.
            first = list(islice(stream, 1))
            stream = chain(first, stream)
            self._chosen = choose(fetcher, first[0].keys if first and self._arguments.batched else [], self._workers)
            if self._chosen.worker_type == "process":
                try:
                    processes = Processes(fetcher, self._workers, init=init, seed=self._seed)
                except Exception as error:
                    self._chosen = Choice("thread", f"it cannot be pickled to processes: {error}")
        elif self._chosen.worker_type == "process" and self._workers:
            processes = Processes(fetcher, self._workers, init=init, seed=self._seed)
        if processes is None:
            self._pool = Pool(Caller(fetcher, pinned), self._workers, init=init)
        else:
            self._pool = processes.pool(Caller(processes, pinned))
        return self._pool, stream

    def _check(self, state: Mapping[str, Any]) -> None:
        """Refuses a state of another run, naming the first difference."""
        size = self._source.size()
        given = {"keys": self._source.keys, "size": size, "seed": self._given_seed, "shuffle": self._given_shuffle}
        names = {"keys": "what says the keys", "size": "the dataset's length"}
        for key, here in given.items():
            if here is not None and state[key] is not None and state[key] != here:
                raise StateMismatch(
                    f"{names.get(key, key)} is {here!r} here, the state is of a run with {state[key]!r}"
                )


class _Epoch(Iterator[Any]):
    """One epoch, or the rest of one. `len()` is the number of batches left."""

    def __init__(
        self,
        driver: MapDriver,
        results: "OrderedResults[Any, tuple[Any, Place]]",
        sharing: Sharing,
        *,
        resumed: bool,
    ) -> None:
        self._driver = driver
        self._results = results
        self._sharing = sharing
        self._number = driver.iteration
        self._resumed = resumed
        self._done = False

    def __next__(self) -> Any:
        driver = self._current()
        if self._done:
            raise StopIteration
        batch = driver.next(self._results, self._sharing)
        if batch is END and self._resumed:
            self._results = driver.again(self._sharing)
            self._resumed = False
            return self.__next__()
        self._resumed = False
        if batch is END:
            self._done = True
            self._results.close()
            raise StopIteration
        return batch

    def __len__(self) -> int:
        driver = self._current()
        return 0 if self._done else driver.left(self._sharing)

    def __iter__(self) -> "_Epoch":
        return self

    def _current(self) -> MapDriver:
        if self._driver.iteration != self._number:
            raise RuntimeError(
                "this iterator is not the loader's latest: a newer one was made, or the loader was moved by "
                "load_state_dict\nhint: iterate over the loader again"
            )
        return self._driver

"""Workers on a Ray cluster. Nothing else of headrace imports Ray.

Ray decides where its processes (actors) are. A thread takes no input before its actor is there, so those that the
cluster has no room for yet cost nothing, and machines that come later get work. An actor that died loses its place to a
new one, and what it was at is done again, as with processes of this machine. Blocks come through Ray's object store, at
most one for each thread, and are taken out of it at once.
"""

import contextlib
import logging
import os
import pickle
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray  # pyright: ignore[reportMissingImports]

from headrace import __version__
from headrace._frames import told_in_worker
from headrace.loading import worker
from headrace.loading.processes import ProcessDied, as_raised_in

from .job import Reply, Start
from .workers import SEED, Job, MachineLost, Workers

__all__ = ["OPTIONS", "OnRay", "Station"]

OPTIONS: Final = (
    "num_cpus",
    "num_gpus",
    "memory",
    "resources",
    "accelerator_type",
    "label_selector",
    "scheduling_strategy",
    "runtime_env",
)
"""What users may ask of Ray for each worker, under the names that Ray has for them."""

_THREADS_EACH = 2
_ENDS = 5
"""Actors that may end in one place, one after another, before they can work."""
_AGAIN_SECONDS = 1.0
_NOTICE_SECONDS = 15.0
_PATIENCE_SECONDS = 600.0
"""So long a machine is waited for that has what a worker needs, while there is none: a cluster that grows by itself
takes some minutes for that."""

# Types are checked where it is not installed.
_ray: Any = ray
_dumps: Callable[[Any], bytes] = _ray.cloudpickle.dumps
_DIED: Any = _ray.exceptions.ActorDiedError
_KILLED: Any = _ray.exceptions.OutOfMemoryError
_MODULES = (
    "hint: what fn imports has to be on all machines: install it there, or have Ray send it: "
    'ray_options={"runtime_env": {"working_dir": "."}}'
)
_LOST: Final[tuple[type[Exception], ...]] = (_ray.exceptions.RayActorError, _ray.exceptions.ObjectLostError, _KILLED)
"""What a call gives whose actor, or reply, is gone."""


@dataclass(frozen=True)
class OnRay:
    """Actors on the cluster that this process is connected to; or else on one that runs here, or is started here.

    Args:
        count: of actors; None is as many as fit on the cluster when the run begins.
        options: of each, some of `OPTIONS`.
    """

    count: int | None
    options: Mapping[str, Any]

    def check(self, name: str, value: Any) -> None:
        """See `Engine`."""
        try:
            _dumps(value)
        except Exception as error:
            raise TypeError(
                f"{name} cannot be sent to Ray's workers: {error}\n"
                "hint: what it refers to is sent with it; open files and connections within it"
            ) from None

    @contextlib.contextmanager
    def workers(self, job: Job) -> Generator[Workers]:
        """See `Engine`.

        Raises:
            ValueError: if no worker fits on the cluster, and there is no number of them to wait for.
        """
        with _connected():
            count = _fitting(self.options) if self.count is None else self.count
            if not count:
                raise ValueError(
                    f"each worker needs {_demands(self.options)}, and no machine of the Ray cluster has that\n"
                    "hint: change ray_options; or give num_workers, which waits for machines to come"
                )
            actors = _Actors(job, count, self.options)
            try:
                yield actors
            finally:
                actors.close()


@contextlib.contextmanager
def _connected() -> Generator[None]:
    """A connection to a cluster; one that was there before is left alone."""
    if _ray.is_initialized():
        yield
        return
    name = "RAY_USAGE_STATS_ENABLED"
    before = os.environ.get(name)
    # For the processes of a cluster that is started here.
    os.environ.setdefault(name, "0")
    try:
        _ray.init(logging_level=logging.WARNING, include_dashboard=False)
    finally:
        if before is None:
            del os.environ[name]
    try:
        yield
    finally:
        _ray.shutdown()


def _demands(options: Mapping[str, Any]) -> dict[str, float]:
    """What Ray has to have free for a worker."""
    found = {
        "CPU": options.get("num_cpus", 1),
        "GPU": options.get("num_gpus", 0),
        "memory": options.get("memory", 0),
        **options.get("resources", {}),
    }
    return {name: value for name, value in found.items() if value}


def _fitting(options: Mapping[str, Any]) -> int:
    """Workers that the cluster has room for if nothing else runs there."""
    demands = _demands(options) or {"CPU": 1}
    machines = [node["Resources"] for node in _ray.nodes() if node["Alive"]]
    return sum(min(int(has.get(name, 0) / value) for name, value in demands.items()) for has in machines)


class Station:
    """What is behind an actor: a job, and what it fails with.

    Args:
        number: of the actor.
        work: the job, pickled.
        folder: where the program is that sent it. Files are found from there if the machine has it, and the user told
            Ray no other.
        path: where it finds modules, and so the job does, behind what is installed on the machine.
    """

    def __init__(self, number: int, work: bytes, folder: str, path: list[str]) -> None:
        if "working_dir" not in _ray.get_runtime_context().runtime_env:
            with contextlib.suppress(OSError):
                os.chdir(folder)
        sys.path += [place for place in path if place not in sys.path and Path(place).exists()]
        self._job: Job = worker.begin(work, number, SEED)
        self._job.check_machine()

    def do(self, message: bytes) -> Any:
        """What the job gives."""
        return self._job(pickle.loads(message))


def failure(error: Exception) -> tuple[bytes | None, str]:
    """An exception, pickled if it can be, and its traceback."""
    text = told_in_worker(error)
    try:
        data = _dumps(error)
        # What cannot be read again is of no use there either.
        pickle.loads(data)
    except Exception:
        return None, text
    return data, text


def _actor() -> Any:
    """The class of actors. Made in a function it is pickled whole, so that it can tell what a machine lacks."""

    class HeadraceWorker:
        def begin(self, version: str, *arguments: Any) -> tuple[str | None, Any, tuple[str, str]]:
            """Gives what this machine lacks, what beginning failed with, and where this is."""
            node = _ray.get_runtime_context().get_node_id()
            where = (node, f"pid {os.getpid()} on {os.uname().nodename}")
            try:
                from headrace import __version__ as found
            except ImportError as error:
                return f"found none there: {error}", None, where
            if found != version:
                return f"found headrace {found} there", None, where
            from headrace.prepare.on_ray import Station, failure

            try:
                self._station = Station(*arguments)
            except Exception as error:
                return None, failure(error), where
            return None, None, where

        def do(self, message: bytes) -> tuple[Any, Any]:
            """Gives what the job gave, or failed with."""
            from headrace.prepare.on_ray import failure

            try:
                return self._station.do(message), None
            except Exception as error:
                return None, failure(error)

    return _ray.remote(HeadraceWorker)


class _Actors:
    """See `Workers`: so many actors."""

    def __init__(self, job: Job, count: int, options: Mapping[str, Any]) -> None:
        self.threads = count * _THREADS_EACH
        self._options = options
        self._work = _ray.put(_dumps((job, None, {})))
        self._class = _actor().options(**{"num_cpus": 1, **options, "max_restarts": 0, "max_task_retries": 0})
        self._places = [_Place(number, self._start) for number in range(count)]
        self._here = threading.local()

    def begin(self, number: int) -> None:
        """See `Workers`."""
        place = self._here.place = self._places[number // _THREADS_EACH]
        place.begin(self._tell if number == 0 else None)

    def __call__(self, message: Start | int, /) -> Reply | str:
        return self._here.place.call(message)

    def end(self, number: int) -> None:
        """See `Workers`."""
        self._places[number // _THREADS_EACH].close()

    def close(self) -> None:
        """See `Workers`."""
        for place in self._places:
            place.close()

    def _start(self, number: int) -> "_Link":
        actor = self._class.remote()
        begun = actor.begin.remote(__version__, number, self._work, str(Path.cwd()), sys.path)
        return _Link(actor, begun)

    def _tell(self, seconds: float) -> None:
        """Says that Ray gives no worker at all, if so."""
        if any(place.is_ready for place in self._places):
            return
        needs = f"each worker needs {_demands(self._options)}"
        if seconds > _PATIENCE_SECONDS and not _fitting(self._options):
            raise RuntimeError(f"{needs}, and in {seconds:.0f} s no machine of the Ray cluster had that")
        warnings.warn(f"headrace: Ray gave no worker yet, after {seconds:.0f} s: {needs}", RuntimeWarning, stacklevel=2)


@dataclass(eq=False)
class _Link:
    """An actor."""

    actor: Any
    begun: Any
    """The reply to `begin`."""
    node: str | None = None
    where: str = "which had not begun"
    is_ready: bool = False


class _Place:
    """The place of an actor: another one takes it when it died."""

    def __init__(self, number: int, start: Callable[[int], _Link]) -> None:
        self._number, self._start = number, start
        self._link: _Link | None = None
        self._closed = threading.Event()
        self._ends = 0
        self._change = threading.Lock()
        self._send = threading.Lock()
        self._read = threading.Lock()

    @property
    def is_ready(self) -> bool:
        """Whether it has an actor that can work."""
        link = self._link
        return link is not None and link.is_ready

    def begin(self, tell: Callable[[float], None] | None) -> None:
        """Waits until an actor can work; meanwhile calls `tell` from time to time, with the seconds that it took."""
        start = time.monotonic()
        while not (link := self._linked()).is_ready:
            try:
                while not _ray.wait([link.begun], timeout=_NOTICE_SECONDS)[0]:
                    if tell is not None:
                        tell(time.monotonic() - start)
                lacks, failed, (link.node, link.where) = _ray.get(link.begun)
            except _LOST as error:
                died = self._died(link, error)
                if not isinstance(died, MachineLost):
                    self._ends += 1
                    if self._ends == _ENDS:
                        raise died from None
                self._closed.wait(_AGAIN_SECONDS)
                continue
            if lacks:
                raise RuntimeError(
                    f"{self._about(link)}: expected headrace {__version__}, {lacks}\n"
                    'hint: install it there, or have Ray do so: ray_options={"runtime_env": {"pip": [...]}}'
                )
            if failed is not None:
                error = self._failed(link, failed)
                if isinstance(error, ImportError | AttributeError):
                    error.add_note(_MODULES)
                raise error
            self._ends = 0
            link.is_ready = True

    def call(self, message: Start | int) -> Reply | str:
        """Sends a message and waits for the reply. Of two threads the first to send is the first to read."""
        data = _dumps(message)
        with self._send:
            link = self._link
            if link is None or not link.is_ready:
                raise MachineLost("what it was to be done by is gone")
            sent = link.actor.do.remote(data)
            self._read.acquire()
        try:
            if self._link is not link:
                # It died of what came before, and had not begun with this.
                raise MachineLost("what it was to be done by is gone")
            reply, failed = _ray.get(sent)
        except _LOST as error:
            raise self._died(link, error) from None
        finally:
            self._read.release()
        if failed is not None:
            raise self._failed(link, failed)
        if isinstance(reply, Reply):
            # Blocks may wait in memory, which the object store's is not meant for.
            reply.block.sizes, reply.block.data = reply.block.sizes.copy(), bytes(reply.block.data)
        return reply

    def close(self) -> None:
        """Ends the actor, and has threads that wait for it go on."""
        with self._change:
            self._closed.set()
            link, self._link = self._link, None
        if link is not None:
            _end(link)

    def _linked(self) -> _Link:
        with self._change:
            if self._closed.is_set():
                raise RuntimeError("this run has ended")
            if self._link is None:
                self._link = self._start(self._number)
            return self._link

    def _died(self, link: _Link, error: Any) -> ProcessDied:
        """Gives up an actor; says whether it was by itself that it died."""
        with self._change:
            if self._link is link:
                self._link = None
        _end(link)
        # Of Ray's many lines the last one tells the reason.
        about = f"{self._about(link)} died: {str(error).strip().splitlines()[-1]}"
        alone = isinstance(error, _KILLED) or (isinstance(error, _DIED) and not error.preempted)
        return (
            ProcessDied(about) if alone and not self._closed.is_set() and _is_alive(link.node) else MachineLost(about)
        )

    def _about(self, link: _Link) -> str:
        return f"Ray worker {self._number} ({link.where})"

    def _failed(self, link: _Link, failed: tuple[bytes | None, str]) -> Exception:
        data, text = failed
        return as_raised_in(self._about(link), None if data is None else pickle.loads(data), text)


def _end(link: _Link) -> None:
    # The connection may have ended as well.
    with contextlib.suppress(Exception):
        _ray.kill(link.actor)


def _is_alive(node: str | None) -> bool:
    """Whether a machine still is there. One that ends may take its processes with it first."""
    time.sleep(_AGAIN_SECONDS)
    return node is None or any(found["NodeID"] == node and found["Alive"] for found in _ray.nodes())

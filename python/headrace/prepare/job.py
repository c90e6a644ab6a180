"""What is done with inputs, in a worker process or in this one: the user's function, and blocks of what it gives.

A task is some inputs that follow each other. It is done a block at a time, so that neither a large input nor a slow one
keeps more than a block, or a moment's work, in a process that may be killed.
"""

import os
import shutil
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from types import GeneratorType
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from headrace._frames import given_by, plain, within

from .durable import is_of_disk
from .placing import Place, check_files
from .spool import Block, Failure
from .writing import Encoder, Options, encoder

__all__ = ["LOST", "MapJob", "OnError", "Place", "Refused", "Reply", "SampleJob", "Start", "short"]

OnError = Literal["raise", "skip"]

_BLOCK_BYTES = 4 << 20
_BLOCK_SAMPLES = 1 << 16
_BLOCK_SECONDS = 0.05
"""After so much work what is finished is handed on."""
_VALUE_LETTERS = 200
_MOST_PATH = 4096
"""Letters of a path: longer text is something else."""

LOST = "lost"
"""The reply of a process that knows nothing of a task: the one that began it is gone."""


class Start(NamedTuple):
    """A task to begin; to go on with it, its first input alone is sent."""

    first: int
    """The number of the first input."""
    values: list[Any]
    """The inputs."""
    skip: int
    """Samples of the first one that are there already."""
    schema: str | None
    """That of the dataset, as far as it is known."""


class Reply(NamedTuple):
    """A block, and whether the task has more of them."""

    block: Block
    more: bool


class Refused(NamedTuple):
    """What a function gives in the place of a sample that cannot be made; reports list it."""

    value: str
    """What it would have been made of."""
    error: str


class _Job(ABC):
    """Does tasks; several may be under way."""

    def __init__(self, fn: Callable[..., Any], on_error: OnError) -> None:
        self._fn = fn
        self._on_error = on_error
        self._tasks: dict[int, Generator[Reply]] = {}

    def __call__(self, message: Start | int) -> Reply | str:
        """Begins a task, or goes on with one; gives its next block.

        Raises:
            Exception: what the function raised, with a note that says for which input.
        """
        if isinstance(message, int):
            first = message
            if first not in self._tasks:
                return LOST
        else:
            first = message.first
            self._tasks[first] = self._blocks(message)
        try:
            reply = next(self._tasks[first])
        except BaseException:
            del self._tasks[first]
            raise
        if not reply.more:
            del self._tasks[first]
        return reply

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tasks": {}}

    def check_machine(self) -> None:  # noqa: B027 (most kinds of work have nothing to refuse)
        """Refuses a machine where it cannot be done: any will do."""

    @abstractmethod
    def _blocks(self, task: Start) -> Generator[Reply]:
        """The blocks of a task, in order; the last one says that there are no more."""

    def _failed(self, number: int, value: Any, error: Exception, samples: int) -> Failure:
        return Failure(number, short(value), f"{type(error).__name__}: {error}", samples)


class SampleJob(_Job):
    """Makes samples of inputs.

    Args:
        fn: from an input to a sample, or a generator of any number.
        format: that samples are encoded for.
        options: how.
        on_error: ``"skip"`` goes on with the next input if `fn` or encoding raises, unless the disk is full, or such.
    """

    def __init__(self, fn: Callable[[Any], Any], format: str, options: Options, on_error: OnError) -> None:
        super().__init__(fn, on_error)
        self._format, self._options = format, options
        self._encoder: Encoder | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_encoder": None}

    def _blocks(self, task: Start) -> Generator[Reply]:
        if self._encoder is None:
            self._encoder = encoder(self._format, self._options)
        samples = self._encoder
        samples.schema = task.schema
        block = _Open(samples, task.first, task.skip)
        for number, value in enumerate(task.values, task.first):
            skip = task.skip if number == task.first else 0
            kept = skip
            result: Any = None
            adds = False
            try:
                result = self._fn(value)
                for sample in _made(result):
                    if type(sample) is Refused:
                        # What came before a sample that is there is in the report already.
                        if not skip:
                            block.failures.append(Failure(number, *sample, kept))
                        continue
                    if skip:
                        skip -= 1
                        continue
                    adds = True
                    block.add(sample)
                    adds = False
                    kept += 1
                    if block.is_full:
                        yield Reply(block.end(done=False), True)
                        block = _Open(samples, number, kept)
            except Exception as error:
                if self._on_error == "raise" or is_of_disk(error):
                    if block.drop_input():
                        yield Reply(block.end(done=True), True)
                    error.add_note(f"in input {number}: {short(value)}")
                    if adds and isinstance(error, TypeError | ValueError):
                        _tell_sample(error, self._fn, result, kept)
                    raise
                block.failures.append(self._failed(number, value, error, kept))
            block.read += _bytes_of(value)
            block.next_input()
            if block.is_due and number + 1 < task.first + len(task.values):
                yield Reply(block.end(done=True), True)
                block = _Open(samples, number + 1, 0)
        yield Reply(block.end(done=True), False)


class MapJob(_Job):
    """Calls a function that writes files.

    When it returns, its folder gets the name by which the input counts as done, and its files get second names in the
    output. Where that was cut short, it is gone on with. So files come from one call, however many there were.

    Args:
        fn: of an input and a folder; what it writes there is put into the output when it returns.
        place: where that is.
        on_error: ``"skip"`` goes on with the next input if `fn` raises, unless the disk is full, or such.
        replace: whether files of the same names may be there from before the run.
    """

    def __init__(self, fn: Callable[[Any, str], Any], place: Place, on_error: OnError, *, replace: bool) -> None:
        super().__init__(fn, on_error)
        self._place, self._replace = place, replace

    def check_machine(self) -> None:
        """Refuses a machine that has not the folder of the output."""
        self._place.check()

    def _blocks(self, task: Start) -> Generator[Reply]:
        first, start, size = task.first, time.monotonic(), 0
        counts: list[int] = []
        failures: list[Failure] = []
        for number, value in enumerate(task.values, task.first):
            try:
                made = self._made(number, value)
                if isinstance(made, Exception) and self._on_error == "raise":
                    raise made
            except Exception as error:
                if counts:
                    yield Reply(_files(first, counts, failures, size), True)
                error.add_note(f"in input {number}: {short(value)}")
                raise
            if isinstance(made, Exception):
                failures.append(self._failed(number, value, made, 0))
            else:
                size += made
            counts.append(0)
            if time.monotonic() - start > _BLOCK_SECONDS and number + 1 < task.first + len(task.values):
                yield Reply(_files(first, counts, failures, size), True)
                first, start, size, counts, failures = number + 1, time.monotonic(), 0, [], []
        yield Reply(_files(first, counts, failures, size), False)

    def _made(self, number: int, value: Any) -> int | Exception:
        """Bytes of an input's files, which are in place then; or what is wrong with the input.

        Raises:
            StoreError: if they cannot be written, whatever the input.
            OSError: if the function found the disk full, or such.
        """
        place = self._place
        if not place.done(number).exists():
            folder = place.folder(number)
            try:
                try:
                    self._fn(value, str(folder))
                    check_files(folder)
                except Exception as error:
                    if is_of_disk(error):
                        raise
                    return error
                place.keep(folder, number)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        try:
            return place.publish(number, replace=self._replace)
        except FileExistsError as error:
            return error


class _Open:
    """A block that grows."""

    def __init__(self, samples: Encoder, first: int, skip: int) -> None:
        self._encoder, self._first, self._skip = samples, first, skip
        self._sizes: list[int] = []
        self._counts: list[int] = []
        self._count = self._bytes = 0
        self._start = time.monotonic()
        self.failures: list[Failure] = []
        self.read = 0

    @property
    def is_full(self) -> bool:
        return self._bytes >= _BLOCK_BYTES or len(self._sizes) >= _BLOCK_SAMPLES

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._start > _BLOCK_SECONDS

    def add(self, sample: Any) -> None:
        size = self._encoder.add(sample)
        self._sizes.append(size)
        self._bytes += size
        self._count += 1

    def next_input(self) -> None:
        self._counts.append(self._count)
        self._count = 0

    def drop_input(self) -> bool:
        """Forgets the samples of the last input; says whether there are others."""
        self._encoder.drop(self._count)
        del self._sizes[len(self._sizes) - self._count :]
        self._count = 0
        if not self._counts:
            self._encoder.take()
        return bool(self._counts)

    def end(self, *, done: bool) -> Block:
        counts = self._counts if done else [*self._counts, self._count]
        data = np.frombuffer(self._encoder.take(), np.uint8)
        schema = self._encoder.schema if self._sizes else None
        sizes = np.array(self._sizes, np.int64)
        seconds = time.monotonic() - self._start
        return Block(
            self._first, self._skip, counts, done, schema, sizes, data, self.failures, seconds, self.read, _here()
        )


def _files(first: int, counts: list[int], failures: list[Failure], size: int) -> Block:
    return Block(first, 0, counts, True, None, np.array([size], np.int64), b"", failures, worker=_here())


def _here() -> str:
    return f"{os.getpid()} on {os.uname().nodename}"


def _bytes_of(value: Any) -> int:
    """Bytes of an input that is the path of a file on a disk, or several."""
    if isinstance(value, list):
        return sum(_bytes_of(part) for part in cast("list[Any]", value))
    if not isinstance(value, str | os.PathLike) or len(os.fspath(cast("str", value))) > _MOST_PATH:
        return 0
    try:
        found = os.stat(cast("str", value))  # noqa: PTH116
    except (OSError, ValueError):
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _made(result: Any) -> Iterable[Any]:
    if result is None:
        return ()
    return cast("Iterable[Any]", result) if isinstance(result, GeneratorType) else (result,)


def _tell_sample(error: Exception, fn: Callable[..., Any], result: Any, number: int) -> None:
    """Notes which of an input's samples cannot be stored, and the user's line that it came from."""
    if within(error) is None:
        # Else it is of the user's own code, such as a serializer: where in there is to be seen.
        plain(error)
    which = f"in sample {number} of it" if isinstance(result, GeneratorType) else "in the sample of it"
    line = given_by(fn, result)
    error.add_note(f"{which}, given by\n{line}" if line else which)


def short(value: Any) -> str:
    """A value for messages and reports, cut short."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"a {type(value).__name__} whose repr raises {type(error).__name__}"
    return text if len(text) <= _VALUE_LETTERS else text[:_VALUE_LETTERS] + "..."

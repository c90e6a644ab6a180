"""What users give as inputs: lists, iterators, datasets, queues; cut by readers, in batches, with weights."""

import inspect
import itertools
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, SupportsIndex, cast

from headrace._units import as_int
from headrace.loading.processes import check_main
from headrace.samples.dataset import SampleDataset

from .digests import call_of, digest, name_of
from .feed import InputSource, Iterated, Listed, is_sequence
from .output import Output
from .progress import Done
from .queueing import Producers, Queued
from .readers import Reader
from .workers import Engine
from .writing.base import kind_of

__all__ = ["Inputs", "StartMethod", "inputs_of", "note_of"]

StartMethod = Literal["spawn"]

_DATASETS = (("torch.utils.data", "Dataset"), ("datasets", "Dataset"))
"""Classes whose items are read where they are needed, if they have numbers. They are not imported for this."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs, checked, and the function that takes them."""

    fn: Callable[..., Any]
    """What is called with an input; may be pickled to other processes."""
    key: Mapping[str, Any]
    """What tells them from those of another run, as JSON."""
    values: Iterable[Any] | None
    """All of them; None for a queue."""
    heavy: Sequence[int]
    """Numbers of those that come first."""
    queue: Any
    producers: int | Sequence[Any]
    split: Callable[[Any], Iterable[Any]]
    """What one of the queue's things is as inputs."""

    def source(self, done: Done, *, limit: int | None, lines: Iterable[Any], output: Output) -> InputSource:
        """Those that are left to do.

        Args:
            done: what earlier runs did.
            limit: inputs to take at most.
            lines: what the journal has of those of a queue.
            output: where it is.
        """
        if self.values is None:
            return Queued(
                self.queue,
                Producers(self.queue, self.producers),
                split=self.split,
                done=done,
                known={number: digest for line in lines for number, digest in note_of(line)},
                limit=limit,
                note=lambda noted: output.note({"inputs": noted}),
            )
        if is_sequence(self.values):
            return Listed(cast("Sequence[Any]", self.values), done, limit=limit, heavy=self.heavy)
        return Iterated(self.values, done, limit=limit, total=_count(self.values))


def note_of(line: Any) -> Sequence[tuple[int, str]]:
    """The inputs of a queue that a line of a journal tells of."""
    return line.get("inputs", ())


def inputs_of(
    fn: Callable[..., Any],
    inputs: Any,
    *,
    queue: Any,
    producers: int | Sequence[Any],
    reader: Reader | None,
    weights: Sequence[float] | None,
    batch_size: SupportsIndex | None,
    start_method: StartMethod,
    engine: Engine,
    ordered: bool,
) -> Inputs:
    """What was given, checked.

    Raises:
        ValueError: if arguments cannot be used, or not together.
        TypeError: if something cannot be called, iterated over or sent to processes; says what to do.
        RuntimeError: if this is a worker process that imports its main module.
    """
    check_main()
    _check_start_method(start_method)
    if not callable(fn):
        raise TypeError(f"fn must be a function of an input, got a {type(fn).__name__}")
    size = None if batch_size is None else as_int(batch_size, "batch_size", least=1)
    if reader is not None and not isinstance(reader, Reader):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"reader must be a headrace.Reader, got a {type(reader).__name__}")
    whole: dict[str, Any] = {"fn": _Call.around(fn, reader, size), "queue": queue, "producers": producers, "heavy": ()}
    if queue is not None:
        _check_queue(inputs, queue, producers, ordered=ordered, size=size, weights=weights)
        key = _key(fn, None, "of a queue", reader, size)
        split = _alone if reader is None else _Split(reader)
        found = Inputs(**whole, key=key, values=None, split=split)
    else:
        _check_iterable(inputs)
        if not isinstance(producers, int) or producers != 1:
            raise ValueError(f"producers are of a queue, which is None, got {producers!r}")
        if hasattr(inputs, "iloc"):
            inputs = _column(inputs)
        if _is_dataset(inputs) and reader is None:
            whole["fn"] = _Call.around(fn, _Items(inputs), size)
            values: Iterable[Any] = range(len(inputs))
        else:
            values = inputs if reader is None else reader.split(_as_sequence(inputs))
        if weights is not None:
            if reader is not None:
                raise ValueError("weights are for inputs, and parts of a reader are others: give one of the two")
            if not is_sequence(values):
                raise ValueError(f"weights need inputs whose number is known, got a {kind_of(values)}")
            whole["heavy"] = _heavy(weights, len(cast("Sequence[Any]", values)), size)
        count = len(cast("Sequence[Any]", values)) if is_sequence(values) else None
        key = _key(fn, inputs if reader is None else values, count, reader, size)
        found = Inputs(**whole, key=key, values=values if size is None else _batches(values, size), split=_alone)
    engine.check("fn", found.fn)
    return found


class _Call:
    """The user's function, behind what reads its input."""

    def __init__(self, fn: Callable[..., Any], reader: Reader, *, batched: bool) -> None:
        self.__wrapped__, self._reader, self._batched = fn, reader, batched

    @classmethod
    def around(cls, fn: Callable[..., Any], reader: Reader | None, size: int | None) -> Callable[..., Any]:
        return fn if reader is None else cls(fn, reader, batched=size is not None)

    def __call__(self, value: Any, *rest: Any) -> Any:
        read = self._reader.read
        return self.__wrapped__([read(part) for part in value] if self._batched else read(value), *rest)


class _Items(Reader):
    """Reads items of a dataset by their numbers."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def read(self, part: int) -> Any:
        return self._dataset[part]


class _Split:
    """The parts of a single input."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __call__(self, value: Any) -> Sequence[Any]:
        return self._reader.split([value])


class _Batches(Sequence[Any]):
    """Inputs of a sequence, some at a time."""

    def __init__(self, values: Sequence[Any], size: int) -> None:
        self._values, self._size = values, size

    def __len__(self) -> int:
        return -(-len(self._values) // self._size)

    def __getitem__(self, number: Any) -> Any:
        start = number * self._size
        return [self._values[at] for at in range(start, min(start + self._size, len(self._values)))]


def _batches(values: Iterable[Any], size: int) -> Iterable[Any]:
    return _Batches(cast("Sequence[Any]", values), size) if is_sequence(values) else _grouped(values, size)


def _grouped(values: Iterable[Any], size: int) -> Iterator[list[Any]]:
    items = iter(values)
    while some := list(itertools.islice(items, size)):
        yield some


def _alone(value: Any) -> tuple[Any]:
    return (value,)


def _as_sequence(inputs: Any) -> Sequence[Any]:
    return inputs if is_sequence(inputs) else list(inputs)


def _is_dataset(inputs: Any) -> bool:
    if not is_sequence(inputs):
        return False
    classes = [getattr(sys.modules.get(module), name, None) for module, name in _DATASETS]
    return isinstance(inputs, (SampleDataset, *(kind for kind in classes if isinstance(kind, type))))


def _count(values: Any) -> int | None:
    try:
        return len(values)
    except TypeError:
        # It has none, or one of PyTorch's loaders over a stream, which then says so.
        return None


def _heavy(weights: Sequence[float], count: int, size: int | None) -> Sequence[int]:
    """The numbers of inputs that weigh more than the average, the heaviest first.

    They come one by one before all others, which are then small enough to fill up what is left of each process's time.
    """
    found = [float(weight) for weight in weights]
    if len(found) != count:
        raise ValueError(f"weights must be one for each of the {count:,} inputs, got {len(found):,}")
    if wrong := [weight for weight in found if not 0 <= weight < float("inf")]:
        raise ValueError(f"weights must be finite and not negative, got {wrong[0]}")
    if size is not None:
        found = [sum(found[at : at + size]) for at in range(0, count, size)]
    average = sum(found) / max(len(found), 1)
    return sorted((number for number, weight in enumerate(found) if weight > average), key=lambda at: (-found[at], at))


def _check_start_method(value: Any) -> None:
    """Refuses other ways to start processes than the one that is sound here."""
    if value == "spawn":
        return
    why = {
        "fork": "a fork copies the locks that threads hold, and those never come free in the copy",
        "forkserver": "its server forks after it imported the main module, with the locks of threads that began",
    }
    if value not in why:
        raise ValueError(f"start_method must be 'spawn', got {value!r}")
    raise ValueError(
        f"start_method must be 'spawn', got {value!r}: {why[value]}\n"
        "hint: define functions at the top of a module; or say num_workers=0, which runs all in this process"
    )


def _check_iterable(inputs: Any) -> None:
    is_queue = hasattr(inputs, "get") and hasattr(inputs, "put")
    if isinstance(inputs, str | bytes | os.PathLike) or not (isinstance(inputs, Iterable) or is_sequence(inputs)):
        raise TypeError(
            f"inputs must be a list, or anything else that can be iterated over, got a {kind_of(inputs)}\n"
            "hint: headrace.walk(path) gives the files of a folder" + ("; queue= takes a queue" if is_queue else "")
        )


def _column(series: Any) -> list[Any]:
    """The values of a series of pandas, whose numbers are labels."""
    if series.ndim != 1:
        raise TypeError(
            f"inputs must be a list, or anything else that can be iterated over, got a {kind_of(series)}\n"
            'hint: frame.to_dict("records") gives its rows'
        )
    return list(series)


def _check_queue(inputs: Any, queue: Any, producers: Any, *, ordered: bool, size: int | None, weights: Any) -> None:
    if inputs is not None:
        raise ValueError(f"inputs must be None with a queue, which gives them, got a {kind_of(inputs)}")
    try:
        inspect.signature(queue.get).bind(timeout=1.0)
    except (AttributeError, TypeError):
        raise TypeError(
            f"queue must have get(timeout=), as multiprocessing.Queue and queue.Queue do, got a {kind_of(queue)}"
        ) from None
    except ValueError:
        pass  # Written in C, as queue.SimpleQueue is.
    wrong = {"keep_data_ordered": ordered, "batch_size": size is not None, "weights": weights is not None}
    for name, is_given in wrong.items():
        if is_given:
            raise ValueError(f"{name} is for inputs whose order is known, and that of a queue is another in each run")
    Producers(queue, producers)


def _key(fn: Any, inputs: Any, count: int | str | None, reader: Reader | None, size: int | None) -> dict[str, Any]:
    """See `Inputs.key`: the function by its name and bound arguments, inputs that have numbers by a digest."""
    name, *arguments = call_of(fn)
    return {
        "fn": name,
        "arguments of fn": _held(arguments),
        "inputs": count,
        "content": _content(inputs),
        "reader": None if reader is None else name_of(reader),
        "settings of the reader": _held(reader),
        "batch_size": size,
    }


def _held(value: Any) -> str | None:
    """A digest; None of what could not be sent to another process either."""
    try:
        return digest(value)
    except TypeError:
        return None


def _content(inputs: Any) -> str | None:
    """A digest of all inputs, or of the object that gives them by their numbers; None if they cannot be looked at."""
    if not is_sequence(inputs):
        return None
    # Datasets of Hugging Face know what they are, and would be long to look through.
    known = getattr(inputs, "_fingerprint", None)
    try:
        return digest(inputs if known is None else [type(inputs), known])
    except TypeError:
        if not isinstance(inputs, list | tuple):
            return None
        # Nothing says that those of another call are the same ones.
        return f"values that cannot be told from others, of call {uuid.uuid4().hex}"

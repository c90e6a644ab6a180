"""What tells a value from another one, in whatever process: a run goes on only with what it began with."""

import copyreg
import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, cast

import numpy as np

from headrace.samples.dataset import SampleDataset

__all__ = ["Told", "call_of", "digest", "name_of"]

_PLAIN = (type(None), bool, int, float, complex, str, bytes, range)


class Told(ABC):
    """A value that says what tells it from others; of all others their state does, as it is pickled."""

    @abstractmethod
    def told_by(self) -> Any:
        """Values that are others if this one is."""


def digest(value: Any) -> str:
    """The same text for values that are pickled alike.

    Functions and classes are told by their names: what they do may be mended between two calls.

    Raises:
        TypeError: if it, or something in it, cannot be pickled.
    """
    found = _Digest()
    try:
        found.add(value)
    except TypeError:
        raise
    except Exception as error:
        raise TypeError(f"a {type(value).__name__} cannot be pickled: {error}") from error
    return found.text()


def name_of(value: Any) -> str:
    """The full name of a function or a class, or of the class of anything else."""
    named = value if hasattr(value, "__qualname__") else cast("type[Any]", type(value))
    return f"{named.__module__}.{named.__qualname__}"


def call_of(fn: Any) -> list[Any]:
    """What tells a function from others: its name, and the arguments that `functools.partial` gave it.

    Of an object that can be called it is the class alone: what it holds may change while it works.
    """
    if isinstance(fn, functools.partial):
        bound = cast("functools.partial[Any]", fn)
        return [*call_of(bound.func), bound.args, bound.keywords]
    return [name_of(fn)]


class _Digest:
    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        # Of the values that it is within; one that holds itself is told by where that is.
        self._within: list[int] = []

    def text(self) -> str:
        return self._hash.hexdigest()

    def add(self, value: Any) -> None:
        kind = cast("type[Any]", type(value))
        if kind in _PLAIN:
            self._put(kind.__name__, repr(value))
        elif isinstance(value, PurePath):
            self._put("path", str(value))
        elif isinstance(value, type | FunctionType | ModuleType):
            self._put("name", _name(value))
        elif id(value) in self._within:
            self._put("again", str(self._within.index(id(value))))
        else:
            self._within.append(id(value))
            self._add_parts(kind, value)
            self._within.pop()

    def _add_parts(self, kind: type[Any], value: Any) -> None:
        if kind in (list, tuple):
            self._add_all(kind.__name__, value)
        elif kind is dict:
            self._add_all("dict", [part for pair in value.items() for part in pair])
        elif kind in (set, frozenset):
            # Their order is another one in each process.
            self._add_all(kind.__name__, sorted(digest(part) for part in value))
        elif kind is np.ndarray and value.dtype.kind != "O":
            self._put("array", f"{value.dtype.descr}{value.shape}")
            self._hash.update(np.ascontiguousarray(value).view(np.uint8).reshape(-1).data)
        elif isinstance(value, Told):
            self._put("told", _name(kind))
            self.add(value.told_by())
        elif isinstance(value, SampleDataset):
            self._add_all("samples", _of_samples(value))
        else:
            self._add_reduced(kind, value)

    def _add_reduced(self, kind: type[Any], value: Any) -> None:
        reducer = copyreg.dispatch_table.get(kind)
        reduced = value.__reduce_ex__(4) if reducer is None else reducer(value)
        if isinstance(reduced, str):
            self._put("global", f"{getattr(value, '__module__', None)}.{reduced}")
            return
        parts: tuple[Any, ...] = (*reduced, None, None, None)
        call, arguments, state, items, pairs, *_ = parts
        self._put("object", _name(kind))
        # By its name: a built-in function would be reduced to that.
        self._put("call", _name(call)) if isinstance(call, type | FunctionType | BuiltinFunctionType) else self.add(
            call
        )
        self.add(arguments)
        self.add(state)
        self._add_all("items", list(items or ()))
        self._add_all("pairs", [part for pair in pairs or () for part in pair])

    def _add_all(self, kind: str, parts: Iterable[Any]) -> None:
        parts = list(parts)
        self._put(kind, str(len(parts)))
        for part in parts:
            self.add(part)

    def _put(self, kind: str, text: str) -> None:
        data = f"{kind} {text}".encode(errors="surrogatepass")
        self._hash.update(len(data).to_bytes(8, "little") + data)


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', None) or value.__name__}"


def _of_samples(dataset: SampleDataset) -> list[Any]:
    pipeline = dataset.pipeline
    origins = [
        [
            origin.source.url,
            origin.source.identity(),
            origin.columns,
            [[stage.identity(), repr(stage), call_of(getattr(stage, "fn", None))] for stage in origin.stages],
        ]
        for origin in pipeline.origins
    ]
    return [*origins, pipeline.selection.digest()]

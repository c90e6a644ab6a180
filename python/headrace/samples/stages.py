"""What is done to a sample once it was read: the user's functions, in their order."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np

from headrace.errors import DataError

__all__ = ["DROPPED", "Filter", "Key", "Map", "Pick", "Stage"]


class _Dropped:
    """What stands for a sample that a filter left out."""

    def __repr__(self) -> str:
        return "DROPPED"

    def __reduce__(self) -> str:
        return "DROPPED"


DROPPED = _Dropped()


@dataclass(frozen=True, slots=True)
class Key:
    """What random numbers for a sample depend on."""

    seed: int
    epoch: int
    position: int
    """The sample's number in the dataset that is loaded."""

    def generator(self, stage: int) -> "np.random.Generator":
        """The numbers for one stage: Philox 4x64, its key (seed, stage), its counter (0, 0, position, epoch)."""
        key = np.array([self.seed, stage], dtype=np.uint64)
        counter = np.array([0, 0, self.position, self.epoch], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))


class Stage(Protocol):
    """One step of a pipeline."""

    def __call__(self, sample: Any, key: Key, number: int) -> Any:
        """The next form of a sample, or `DROPPED`; `number` is the stage's own in its pipeline."""
        ...


@dataclass(frozen=True)
class Map:
    """Another sample for each: ``fn(sample)``, or ``fn(sample, rng=generator)`` if it takes one."""

    fn: Callable[..., Any]

    def __call__(self, sample: Any, key: Key, number: int) -> Any:
        """The function's result."""
        if self._random:
            return self.fn(sample, rng=key.generator(number))
        return self.fn(sample)

    @cached_property
    def _random(self) -> bool:
        return _takes_rng(self.fn)

    def __repr__(self) -> str:
        return f"map({_name(self.fn)})"


@dataclass(frozen=True)
class Filter:
    """Only some samples: those for which ``fn(sample)`` is true."""

    fn: Callable[..., Any]

    def __call__(self, sample: Any, key: Key, number: int) -> Any:
        """The sample, or `DROPPED`."""
        keep = self.fn(sample, rng=key.generator(number)) if self._random else self.fn(sample)
        return sample if keep else DROPPED

    @cached_property
    def _random(self) -> bool:
        return _takes_rng(self.fn)

    def __repr__(self) -> str:
        return f"filter({_name(self.fn)})"


@dataclass(frozen=True)
class Pick:
    """Only some parts of samples that are dicts."""

    names: tuple[str, ...]

    def __call__(self, sample: Any, key: Key, number: int) -> Any:
        """The dict of the parts.

        Raises:
            DataError: if the sample has not all of them.
        """
        if not isinstance(sample, Mapping):
            raise DataError(f"select: expected a dict with {', '.join(self.names)}, found {type(sample).__name__}")
        parts = cast("Mapping[str, Any]", sample)
        try:
            return {name: parts[name] for name in self.names}
        except KeyError as error:
            found = ", ".join(map(str, parts))
            raise DataError(f"select: expected a dict with {error}, found {found}") from None

    def __repr__(self) -> str:
        return f"select({list(self.names)})"


def _takes_rng(fn: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # a function of C code may not tell
        return False
    return "rng" in parameters and parameters["rng"].kind is not inspect.Parameter.POSITIONAL_ONLY


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__

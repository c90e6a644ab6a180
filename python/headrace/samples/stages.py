"""What is done to samples once they were read: the user's functions, in their order."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from headrace.errors import DataError

if TYPE_CHECKING:
    from headrace.tokenizing import Encoder

__all__ = ["DROPPED", "BatchMap", "Filter", "FlatMap", "Key", "Map", "Pick", "Stage", "Tokenize", "seed_of"]

_SPREAD = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, odd: multiples of it lie far from each other modulo 2^64."""


class _Dropped:
    """What stands for a sample that a filter left out."""

    def __repr__(self) -> str:
        return "DROPPED"

    def __reduce__(self) -> str:
        return "DROPPED"


DROPPED = _Dropped()


@dataclass(frozen=True, slots=True)
class Key:
    """What random numbers for a sample, or for what was made of it, depend on."""

    seed: int
    epoch: int
    position: int
    """The sample's number in the dataset that is loaded."""
    document: int = 0
    """Tells apart what begins with the same sample: see docs/order.md."""

    def part(self, number: int) -> int:
        """What tells apart one of several documents of this key."""
        return (self.document * _SPREAD + number) % 2**64

    def generator(self, stage: int, number: int = 0) -> "np.random.Generator":
        """The numbers for a stage and one of several documents: Philox 4x64, its key (seed, stage), its counter
        (0, part, position, epoch).
        """  # noqa: D205
        key = np.array([self.seed, stage], dtype=np.uint64)
        counter = np.array([0, self.part(number), self.position, self.epoch], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))


def seed_of(seed: int, number: int) -> int:
    """The seed of a zip's source with a number, and with the number of sources that of its own functions."""
    return (seed + number * _SPREAD) % 2**64


class Stage(ABC):
    """One step of a pipeline.

    Attributes:
        random: whether it is given random numbers.
        many: whether it gives a list of samples for each, not one or `DROPPED`.
    """

    many: bool = False

    @property
    def random(self) -> bool:
        """See `Stage`."""
        return False

    @abstractmethod
    def __call__(self, sample: Any, rng: "np.random.Generator | None") -> Any:
        """The next form of a sample, or `DROPPED`; a list of several if it is one of `many`."""

    @abstractmethod
    def identity(self) -> list[Any]:
        """What of it a state remembers, as plain JSON types: its kind first. Functions cannot be compared."""


@dataclass(frozen=True)
class _Function(Stage):
    """A stage that is a function of the user's: ``fn(sample)``, or ``fn(sample, rng=generator)`` if it takes one."""

    fn: Callable[..., Any]
    kind: ClassVar[str]
    """The method that made it."""

    def _call(self, sample: Any, rng: "np.random.Generator | None") -> Any:
        return self.fn(sample) if rng is None else self.fn(sample, rng=rng)

    @cached_property
    def random(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        """See `Stage`."""
        return _takes_rng(self.fn)

    def identity(self) -> list[Any]:
        """See `Stage.identity`."""
        return [self.kind]

    def __repr__(self) -> str:
        return f"{self.kind}({_name(self.fn)})"


class Map(_Function):
    """Another sample for each."""

    kind = "map"

    def __call__(self, sample: Any, rng: "np.random.Generator | None") -> Any:
        """The function's result."""
        return self._call(sample, rng)


class Filter(_Function):
    """Only some samples: those for which the function is true."""

    kind = "filter"

    def __call__(self, sample: Any, rng: "np.random.Generator | None") -> Any:
        """The sample, or `DROPPED`."""
        return sample if self._call(sample, rng) else DROPPED


class FlatMap(_Function):
    """Several samples for each, or none: what the function gives is iterated over."""

    many = True
    kind = "flat_map"

    def __call__(self, sample: Any, rng: "np.random.Generator | None") -> list[Any]:
        """What the function gives, as a list.

        Raises:
            TypeError: if it is nothing to iterate over, or text.
        """
        return _listed(self._call(sample, rng), self)


@dataclass(frozen=True, repr=False)
class BatchMap(_Function):
    """Other samples for each `size` neighbouring ones of a lane: ``fn(list)`` gives any number of them."""

    size: int
    many = True
    kind = "batch_map"

    def __call__(self, sample: list[Any], rng: "np.random.Generator | None") -> list[Any]:
        """What the function gives for a list of samples, as a list.

        Raises:
            TypeError: if it is nothing to iterate over, or text.
        """
        return _listed(self._call(sample, rng), self)

    def identity(self) -> list[Any]:
        """See `Stage.identity`."""
        return [self.kind, self.size]

    def __repr__(self) -> str:
        return f"batch_map({_name(self.fn)}, {self.size})"


@dataclass(frozen=True)
class Pick(Stage):
    """Only some parts of samples that are dicts."""

    names: tuple[str, ...]

    def __call__(self, sample: Any, rng: "np.random.Generator | None") -> Any:
        """The dict of the parts.

        Raises:
            DataError: if the sample has not all of them.
        """
        del rng
        if not isinstance(sample, Mapping):
            raise DataError(f"select: expected a dict with {', '.join(self.names)}, found {type(sample).__name__}")
        parts = cast("Mapping[str, Any]", sample)
        try:
            return {name: parts[name] for name in self.names}
        except KeyError as error:
            found = ", ".join(map(str, parts))
            raise DataError(f"select: expected a dict with {error}, found {found}") from None

    def identity(self) -> list[Any]:
        """See `Stage.identity`."""
        return ["select", *self.names]

    def __repr__(self) -> str:
        return f"select({list(self.names)})"


@dataclass(frozen=True)
class Tokenize(Stage):
    """Tokens in the place of a text: of many samples at once, as tokenizers are quickest."""

    encoder: "Encoder"
    column: str
    name: str
    truncate: int | None
    """The most tokens that a sample keeps."""

    def __call__(self, sample: Any, rng: "np.random.Generator | None") -> Any:
        """The sample with its tokens."""
        del rng
        return self.all([sample])[0]

    def all(self, samples: Sequence[Any]) -> list[Any]:
        """The samples with their tokens: an array in the place of the text, under another name.

        Raises:
            DataError: if a sample has no such text.
            Exception: what the tokenizer raises.
        """
        encoded = self.encoder.encode([self._text(sample) for sample in samples])
        made: list[Any] = []
        begin = 0
        for sample, length in zip(samples, encoded.lengths.tolist(), strict=True):
            kept = length if self.truncate is None else min(length, self.truncate)
            ids = encoded.ids[begin : begin + kept]
            begin += length
            others = cast("Mapping[str, Any]", {} if isinstance(sample, str) else sample)
            made.append({name: value for name, value in others.items() if name != self.column} | {self.name: ids})
        return made

    def identity(self) -> list[Any]:
        """See `Stage.identity`."""
        encoder = self.encoder
        return ["tokenize", self.column, self.name, encoder.digest, encoder.bos_id, encoder.eos_id, self.truncate]

    def _text(self, sample: Any) -> str:
        if isinstance(sample, str):
            return sample
        if not isinstance(sample, Mapping):
            raise DataError(f"tokenize: expected a text or a dict with {self.column}, found {type(sample).__name__}")
        parts = cast("Mapping[str, Any]", sample)
        text = parts.get(self.column)
        if not isinstance(text, str):
            if self.column not in parts:
                raise DataError(
                    f"tokenize: expected a dict with {self.column!r}, found {', '.join(map(str, parts))}\n"
                    "hint: column= names the text"
                )
            raise DataError(f"tokenize: expected {self.column!r} to be text, found {type(text).__name__}")
        return text

    def __repr__(self) -> str:
        return f"tokenize({self.column!r})"


def _listed(found: Any, stage: Stage) -> list[Any]:
    kind = cast("type[Any]", type(found))
    if not hasattr(found, "__iter__") or issubclass(kind, str | bytes | Mapping):
        raise TypeError(f"{stage!r} must give a list of samples, got {kind.__name__}")
    return list(found)


def _takes_rng(fn: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # a function of C code may not tell
        return False
    return "rng" in parameters and parameters["rng"].kind is not inspect.Parameter.POSITIONAL_ONLY


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__

"""What is done to samples once they were read: the user's functions, in their order."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

from headrace.errors import DataError

from .draws import GENERATORS, Draws

if TYPE_CHECKING:
    from headrace.tokenizing import Encoder

__all__ = ["DROPPED", "BatchMap", "Filter", "FlatMap", "Map", "Pick", "Stage", "Tokenize"]


class _Dropped:
    """What stands for a sample that a filter left out."""

    def __repr__(self) -> str:
        return "DROPPED"

    def __reduce__(self) -> str:
        return "DROPPED"


DROPPED = _Dropped()


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
    def __call__(self, sample: Any, draws: Draws | None) -> Any:
        """The next form of a sample, or `DROPPED`; a list of several if it is one of `many`."""

    @abstractmethod
    def identity(self) -> list[Any]:
        """What of it a state remembers, as plain JSON types: its kind first. Functions cannot be compared."""


@dataclass(frozen=True)
class _Function(Stage):
    """A stage that is a function of the user's: ``fn(sample)``, and the generators that it has arguments for."""

    fn: Callable[..., Any]
    kind: ClassVar[str]
    """The method that made it."""

    def _call(self, sample: Any, draws: Draws | None) -> Any:
        if draws is None:
            return self.fn(sample)
        return self.fn(sample, **{name: GENERATORS[name](draws) for name in self._generators})

    @property
    def random(self) -> bool:
        """See `Stage`."""
        return bool(self._generators)

    @cached_property
    def _generators(self) -> tuple[str, ...]:
        try:
            parameters = inspect.signature(self.fn).parameters
        except (TypeError, ValueError):  # a function of C code may not tell
            return ()
        refused = inspect.Parameter.POSITIONAL_ONLY
        return tuple(name for name in GENERATORS if name in parameters and parameters[name].kind is not refused)

    def identity(self) -> list[Any]:
        """See `Stage.identity`."""
        return [self.kind]

    def __repr__(self) -> str:
        return f"{self.kind}({_name(self.fn)})"


class Map(_Function):
    """Another sample for each."""

    kind = "map"

    def __call__(self, sample: Any, draws: Draws | None) -> Any:
        """The function's result."""
        return self._call(sample, draws)


class Filter(_Function):
    """Only some samples: those for which the function is true."""

    kind = "filter"

    def __call__(self, sample: Any, draws: Draws | None) -> Any:
        """The sample, or `DROPPED`."""
        return sample if self._call(sample, draws) else DROPPED


class FlatMap(_Function):
    """Several samples for each, or none: what the function gives is iterated over."""

    many = True
    kind = "flat_map"

    def __call__(self, sample: Any, draws: Draws | None) -> list[Any]:
        """What the function gives, as a list.

        Raises:
            TypeError: if it is nothing to iterate over, or text.
        """
        return _listed(self._call(sample, draws), self)


@dataclass(frozen=True, repr=False)
class BatchMap(_Function):
    """Other samples for each `size` neighbouring ones of a lane: ``fn(list)`` gives any number of them."""

    size: int
    many = True
    kind = "batch_map"

    def __call__(self, sample: list[Any], draws: Draws | None) -> list[Any]:
        """What the function gives for a list of samples, as a list.

        Raises:
            TypeError: if it is nothing to iterate over, or text.
        """
        return _listed(self._call(sample, draws), self)

    def identity(self) -> list[Any]:
        """See `Stage.identity`."""
        return [self.kind, self.size]

    def __repr__(self) -> str:
        return f"batch_map({_name(self.fn)}, {self.size})"


@dataclass(frozen=True)
class Pick(Stage):
    """Only some parts of samples that are dicts."""

    names: tuple[str, ...]

    def __call__(self, sample: Any, draws: Draws | None) -> Any:
        """The dict of the parts.

        Raises:
            DataError: if the sample has not all of them.
        """
        del draws
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

    def __call__(self, sample: Any, draws: Draws | None) -> Any:
        """The sample with its tokens."""
        del draws
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


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__

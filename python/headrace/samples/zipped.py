"""Several datasets side by side: a tuple of a sample of each, however often each is gone through."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, NoReturn, SupportsIndex

import numpy as np
import numpy.typing as npt

from headrace._base import Dataset
from headrace._units import as_int

from .applying import Failed, add_note, apply_stages
from .cache import ChunkCache
from .dataset import SampleDataset
from .draws import Key, seed_of
from .order import ENDLESS
from .pipeline import AnyPipeline, Origin, Pipeline
from .reading import Readable
from .source import Places
from .stages import Filter, Stage

__all__ = ["Length", "ZipDataset", "ZipPipeline", "zip"]

_Ints = npt.NDArray[np.int64]

_MOST = 2**48
"""Tuples in an epoch that ends."""


class Length(NamedTuple):
    """How long an epoch of a zip is."""

    most: int
    """Rows; `ENDLESS` for no end."""
    passes: int = 0
    """If it follows from the sources, so many passes of the shortest one, if these are fewer rows; else 0."""

    def of(self, sizes: Iterable[int]) -> int:
        """The rows of an epoch over sources that have so many samples."""
        return min(self.most, self.passes * min(sizes)) if self.passes else self.most


@dataclass(frozen=True)
class ZipPipeline(AnyPipeline):
    """The lines of several sources side by side: see docs/order.md.

    A position is a row of an array: for each source the position there.

    Attributes:
        sources: at least one, each of at least one sample.
        sizes: for each source its samples, those that a run does without included.
        rule: how long an epoch is.
        after: what is done to the tuples.
    """

    sources: tuple[Pipeline, ...]
    sizes: tuple[int, ...]
    rule: Length
    after: tuple[Stage, ...] = ()
    origins: tuple[Origin, ...] = field(init=False, repr=False)
    """Those of all sources, one after another."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "origins", tuple(origin for source in self.sources for origin in source.origins))

    def __len__(self) -> int:
        return self.length

    @cached_property
    def length(self) -> int:
        """Rows of an epoch; `ENDLESS` for no end."""
        return self.rule.of(self.sizes)

    @cached_property
    def shifts(self) -> tuple[int, ...]:
        """For each source the number of origins of those before it."""
        counts = [len(source.origins) for source in self.sources]
        return tuple(sum(counts[:number]) for number in range(len(counts)))

    @property
    def filtered(self) -> bool:
        """See `AnyPipeline.filtered`."""
        return super().filtered or any(isinstance(stage, Filter) for stage in self.after)

    def in_order(self, rows: _Ints) -> _Ints:
        """See `AnyPipeline.in_order`."""
        return np.stack([source.in_order(rows) for source in self.sources], axis=1)

    def place(self, position: list[int]) -> Places:
        """See `AnyPipeline.place`."""
        return Places(source.place(position[number]) for number, source in enumerate(self.sources))

    def note(self, position: list[int]) -> str:
        """See `AnyPipeline.note`."""
        return f"headrace: samples {', '.join(map(str, position))} of a zip ({self.place(position)})"

    def items(self, positions: _Ints, cache: ChunkCache, *, rows: _Ints, seed: int) -> list[list[Any] | Failed]:
        """See `AnyPipeline.items`: a tuple is dropped where a source drops its sample."""
        *own, last = np.broadcast_to(rows.T, (len(self.sources) + 1, len(positions)))
        columns = [
            source.items(positions[:, number], cache, rows=own[number], seed=seed_of(seed, number))
            for number, source in enumerate(self.sources)
        ]
        items = list(map(self._tuple, positions.tolist(), *columns))
        after = seed_of(seed, len(self.sources))

        def key_of(index: int) -> Key:
            epoch, row = divmod(int(last[index]), self.length)
            return Key(after, epoch, row)

        apply_stages(self.after, items, key_of, first=0, skip=None)
        return items

    def _tuple(self, position: list[int], *parts: list[Any] | Failed) -> list[Any] | Failed:
        """The sample of a row; the first failure of a source, if there is one; none if a source dropped its sample."""
        whole: list[Any] = []
        for number, part in enumerate(parts):
            if isinstance(part, Failed):
                add_note(part.error, f"{self.sources[number].note(position[number])}, of source {number} of a zip")
                return part
            whole += part
        return [tuple(whole)] if len(whole) == len(parts) else []


class ZipDataset(Readable):
    """Tuples of a sample of each of several datasets, as `zip` gives them.

    ``len()`` is the number of tuples in an epoch; ``data[i]`` and iteration give them as nothing shuffles them.

    Example:
        >>> [pair["label"] for pair in headrace.zip([samples, samples.skip(3)])[0]]
        [0, 1]
    """

    def __init__(self, pipeline: ZipPipeline, cache: ChunkCache) -> None:
        self._pipeline = pipeline
        self._cache = cache

    @property
    def pipeline(self) -> ZipPipeline:
        """What it consists of, for loaders."""
        return self._pipeline

    def take(self, count: SupportsIndex) -> "ZipDataset":
        """Shorter epochs: of `count` tuples, if they are longer.

        The next epoch goes on where the last one ended, as with the `length` of `zip`.

        Example:
            >>> len(headrace.zip([samples, samples], length=float("inf")).take(3))
            3
        """
        super()._counted("take")
        rule = self.pipeline.rule
        return self._with(rule=rule._replace(most=min(as_int(count, "take", least=0), rule.most)))

    def repeat(self, times: SupportsIndex) -> "ZipDataset":
        """Longer epochs: each of so many that follow each other.

        Example:
            >>> len(headrace.zip([samples, samples]).repeat(3))
            36
        """
        super()._counted("repeat")
        times = as_int(times, "repeat", least=1, most=2**31)
        if self.pipeline.length == ENDLESS:
            return self
        as_int(self.pipeline.length * times, "repeat: an epoch's length", most=_MOST)
        most, passes = self.pipeline.rule
        return self._with(rule=Length(ENDLESS if most == ENDLESS else most * times, passes * times))

    def place(self, index: SupportsIndex) -> Places:
        """Where the samples of a tuple lie: of each source file, chunk and row.

        Example:
            >>> [place.row for place in headrace.zip([samples, samples.skip(5)]).place(2)]
            [2, 7]
        """
        return self._place(index)

    def info(self) -> dict[str, Any]:
        """What is known without reading samples.

        Returns:
            ``samples`` (of an epoch before filters, None if it has no end), ``sources`` (``url``, ``format``,
            ``samples`` and ``steps`` of each), ``steps`` (what is done to a tuple, as text), and the counts of the
            cache for random access: ``chunk_cache_bytes``, ``chunk_cache_peak``, ``chunks_loaded``, ``chunk_hits``.
        """
        pipeline = self.pipeline
        return {
            "samples": None if pipeline.length == ENDLESS else pipeline.length,
            "sources": [
                {
                    "url": source.origins[0].source.url,
                    "format": source.origins[0].source.format,
                    "samples": len(source),
                    "steps": [repr(stage) for stage in source.origins[0].stages],
                }
                for source in pipeline.sources
            ],
            "steps": [repr(stage) for stage in pipeline.after],
            **self._cache.stats(),
        }

    # Inside

    def _with(self, **changed: Any) -> "ZipDataset":
        return ZipDataset(replace(self.pipeline, **changed), self._cache)

    def _then(self, stage: Stage) -> "ZipDataset":
        return self._with(after=(*self.pipeline.after, stage))

    def _as_documents(self) -> NoReturn:
        raise TypeError(
            "flat_map, batch_map and pack take samples as they are stored, with functions for each, got a zip\n"
            "hint: a function given to map may make one sample of a tuple"
        )

    def _counted(self, what: str) -> None:
        if self.pipeline.length == ENDLESS:
            raise TypeError(f"{what}: an epoch of a zip with length=math.inf has no end\nhint: take(n) gives it one")
        super()._counted(what)

    def __repr__(self) -> str:
        pipeline = self.pipeline
        length = "math.inf" if pipeline.length == ENDLESS else f"{pipeline.length:,}"
        urls = ", ".join(repr(source.origins[0].source.url) for source in pipeline.sources)
        steps = "".join(f".{stage!r}" for stage in pipeline.after)
        return f"Zip({urls}, length={length}){steps}"


def zip(
    datasets: Iterable[SampleDataset],
    transform: Callable[..., Any] | None = None,
    length: SupportsIndex | float | None = None,
) -> ZipDataset:
    """Several datasets side by side: each sample is a tuple with a sample of each of them.

    Each dataset has its own order, pass after pass without end, and row g of the zip is row g of each. Where an epoch
    of the zip ends in the middle of a dataset, the next one goes on there; where a dataset is shorter than an epoch, it
    begins anew, in another order. So any step is found without a replay, and runs are as elastic as those over one
    dataset. The same dataset twice pairs its samples at random, but for ``shuffle=False`` (docs/order.md).

    Args:
        datasets: of samples, at least one, each of at least one sample. Where a `filter` of one of them drops a
            sample, the tuple is dropped.
        transform: called with each tuple, as ``zip(datasets).map(transform)``: with random numbers if it takes them.
        length: tuples in an epoch; by default as many as the shortest dataset has samples. With ``math.inf`` an epoch
            has no end, nor has a ``for`` over a loader.

    Raises:
        TypeError: if a dataset is none of samples.
        ValueError: if there is none, one is empty, or the length is none.

    Example:
        >>> pairs = headrace.zip([samples.select(["text"]), samples.select(["label"])], lambda pair: pair[0] | pair[1])
        >>> len(pairs), pairs[1]
        (12, {'text': 'sample 1', 'label': 1})
    """
    if _is_one(datasets):
        raise TypeError(
            f"zip takes a list of datasets, got a {type(datasets).__name__}\nhint: headrace.zip([first, second])"
        )
    parts = list(datasets)
    if not parts:
        raise ValueError("zip needs at least one dataset, got none")
    for number, part in enumerate(parts):
        if not isinstance(part, SampleDataset):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"zip takes datasets of samples, got {part!r} for source {number}")
        if not len(part.pipeline):
            raise ValueError(f"zip needs sources with samples, source {number} has none: {part!r}")
    if length is None:
        rule = Length(ENDLESS, passes=1)
    elif length == math.inf:
        rule = Length(ENDLESS)
    elif isinstance(length, float):
        raise TypeError(f"length must be an integer or math.inf, got {length!r}")
    else:
        rule = Length(as_int(length, "length", least=1, most=_MOST))
    sources = tuple(part.pipeline for part in parts)
    pipeline = ZipPipeline(sources, tuple(map(len, sources)), rule)
    zipped = ZipDataset(pipeline, parts[0]._cache)  # pyright: ignore[reportPrivateUsage]
    return zipped if transform is None else zipped.map(transform)


def _is_one(datasets: Any) -> bool:
    """Whether something is a dataset, or anything else that is no list of them though it can be iterated over."""
    return isinstance(datasets, Dataset | Mapping | str)

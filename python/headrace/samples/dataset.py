"""Samples, and what can be made of them: the user's side of pipelines."""

from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from headrace import _core
from headrace._units import as_int

from .cache import ChunkCache
from .document_pipeline import DocumentPipeline
from .dynamic import names_of
from .expression import Expression
from .packing import part_of
from .pipeline import Origin, Pipeline
from .reading import Readable, numbers_of
from .selection import Selection
from .source import Place
from .stages import Pick, Stage
from .where import keep_rows

__all__ = ["SampleDataset", "concat"]

_Ints = npt.NDArray[np.int64]

# What the permutation of a dataset's positions is for, in the place of an epoch (docs/order.md).
_SPLIT = 2**63
_SUBSAMPLE = 2**63 + 1


class SampleDataset(Readable):
    """Samples where they lie: read at random, changed step by step, or given to a `DataLoader`.

    Each method gives another dataset and leaves this one as it is; nothing is read before a sample is asked for (but
    for `where`). ``len()`` is the number of samples; ``data[i]`` is one of them, ``data[i:j]`` and ``data[[3, 1, 2]]``
    are lists.

    Example:
        >>> samples = headrace.open(samples.url)
        >>> len(samples), samples[1], len(samples[2:4])
        (12, {'text': 'sample 1', 'label': 1}, 2)
    """

    def __init__(self, pipeline: Pipeline, cache: ChunkCache) -> None:
        self._pipeline = pipeline
        self._cache = cache

    @property
    def pipeline(self) -> Pipeline:
        """What it consists of, for loaders."""
        return self._pipeline

    # Reading

    @property
    def url(self) -> str:
        """The root, without secrets; of several datasets the first one's."""
        return self.pipeline.origins[0].source.url

    @property
    def schema(self) -> Any:
        """The parts of a sample as it is stored, from names to types as text; ``{"": type}`` if it is no dict.

        Example:
            >>> dict(samples.schema)
            {'text': 'str', 'label': 'int'}
        """
        origin = self.pipeline.origins[0]
        schema = origin.source.schema
        return schema if origin.columns is None else {name: schema[name] for name in origin.columns}

    def place(self, index: SupportsIndex) -> Place:
        """Where a sample lies: file, chunk and row.

        Example:
            >>> samples.place(0).file
            'part.jsonl'
        """
        return self._place(index)

    def info(self) -> dict[str, Any]:
        """What is known without reading samples.

        Returns:
            ``url``, ``format``, ``chunks``, ``samples`` (before filters), ``bytes`` (stored, of the chunks that are
            used), ``steps`` (what is done to a sample, as text), and the counts of the cache for random access:
            ``chunk_cache_bytes``, ``chunk_cache_peak``, ``chunks_loaded``, ``chunk_hits``.
        """
        selection = self.pipeline.selection
        used = np.unique(np.stack(selection.chunks_used()), axis=1)
        stored = sum(
            int(origin.source.stored[used[1][used[0] == number]].sum())
            for number, origin in enumerate(self.pipeline.origins)
        )
        origin = self.pipeline.origins[0]
        return {
            "url": self.url,
            "format": origin.source.format,
            "chunks": used.shape[1],
            "samples": len(selection),
            "bytes": stored,
            "steps": [repr(stage) for stage in origin.stages],
            **self._cache.stats(),
        }

    # What becomes of a sample

    def select(self, columns: Iterable[str]) -> "SampleDataset":
        """Only some parts of samples that are dicts, in this order; only they are read.

        Raises:
            ValueError: if samples have no such part.

        Example:
            >>> samples.select(["label"])[0]
            {'label': 0}
        """
        names = names_of(columns)
        return self._with_origins([_selected(origin, names) for origin in self.pipeline.origins])

    # Which samples there are

    def where(self, condition: Expression) -> "SampleDataset":
        """Only the samples whose stored columns meet a condition, made with `headrace.col`; read and counted now.

        Raises:
            TypeError: if it is no such condition, or comes behind a function.
            ValueError: if it needs a column that there is not.

        Example:
            >>> len(samples.where(headrace.col("label") == 1))
            6
        """
        if not isinstance(condition, Expression):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f'where takes a condition such as headrace.col("score") > 0.5, got {condition!r}\n'
                "hint: filter(fn) takes a function"
            )
        selection = keep_rows(self.pipeline, condition)
        return self._with(selection)

    def take(self, count: SupportsIndex) -> "SampleDataset":
        """The first samples, at most `count`.

        Example:
            >>> len(samples.take(3))
            3
        """
        self._counted("take")
        return self._with(self.pipeline.selection.part(0, as_int(count, "take", least=0)))

    def skip(self, count: SupportsIndex) -> "SampleDataset":
        """All but the first samples.

        Example:
            >>> len(samples.skip(3))
            9
        """
        self._counted("skip")
        return self._with(self.pipeline.selection.part(as_int(count, "skip", least=0), len(self.pipeline)))

    def split(self, parts: Sequence[float | int], seed: SupportsIndex = 0) -> "list[SampleDataset]":
        """Random parts that share no sample, each in storage order.

        Args:
            parts: shares that sum to at most 1, or numbers of samples.
            seed: decides which samples go where, in ``range(2**64)``.

        Returns:
            A dataset for each; with shares that sum to 1 they hold every sample.

        Example:
            >>> [len(part) for part in samples.split([0.75, 0.25], seed=0)]
            [9, 3]
        """
        self._counted("split")
        ends = _ends(parts, len(self.pipeline))
        drawn = self._drawn(seed, _SPLIT)
        return [
            self._with(self.pipeline.selection.pick(np.flatnonzero((drawn >= begin) & (drawn < end))))
            for begin, end in zip([0, *ends[:-1]], ends, strict=True)
        ]

    def subset(self, indices: slice | Sequence[SupportsIndex] | npt.NDArray[Any]) -> "SampleDataset":
        """The samples with some numbers, in the order given; a number may occur several times.

        Example:
            >>> [sample["text"] for sample in samples.subset([2, 0])]
            ['sample 2', 'sample 0']
        """
        self._counted("subset")
        if isinstance(indices, slice) and (indices.step is None or indices.step == 1):
            start, stop, _ = indices.indices(len(self.pipeline))
            return self._with(self.pipeline.selection.part(start, max(start, stop)))
        return self._with(self.pipeline.selection.pick(numbers_of(indices, len(self.pipeline))))

    def subsample(self, share: float, seed: SupportsIndex = 0) -> "SampleDataset":
        """A random share of the samples, in storage order; above 1, each of them once or more, then a share.

        Args:
            share: such as 0.1, or 2.5 for each sample twice and half of them a third time.
            seed: decides which, in ``range(2**64)``.

        Example:
            >>> len(samples.subsample(2.5))
            30
        """
        self._counted("subsample")
        if isinstance(share, bool) or not isinstance(share, int | float | np.floating) or not 0 <= share < 2**31:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"subsample takes a share of at least 0, got {share!r}")
        whole = int(share)
        some = round(float(share - whole) * len(self.pipeline))
        parts = [self.pipeline.selection] * whole
        if some or not parts:
            parts.append(self.pipeline.selection.pick(np.flatnonzero(self._drawn(seed, _SUBSAMPLE) < some)))
        return self._with(Selection.concat(parts, [0] * len(parts)))

    def repeat(self, times: SupportsIndex) -> "SampleDataset":
        """All samples several times in each epoch.

        Example:
            >>> len(samples.repeat(3))
            36
        """
        return self._with(self.pipeline.selection.repeat(as_int(times, "repeat", least=1, most=2**31)))

    # Records

    def sequences(self, length: SupportsIndex, **settings: Any) -> Any:
        """Records cut to sequences, see `StreamDataset.sequences`: of token files and stores of records as `open` gives
        them.

        Raises:
            TypeError: of any other dataset.

        Example:
            >>> samples.sequences(64)
            Traceback (most recent call last):
            ...
            TypeError: sequences cuts records of token files and of stores of records as headrace.open gives them, ...
        """  # noqa: D205
        del length, settings
        advice = self.pipeline.origins[0].source.advice
        raise TypeError(
            "sequences cuts records of token files and of stores of records as headrace.open gives them, before any "
            f"other step, got {self!r}" + (f"\nhint: {advice}" if advice else "")
        )

    # Inside

    def _with(self, selection: Selection) -> "SampleDataset":
        return SampleDataset(Pipeline(self.pipeline.origins, selection), self._cache)

    def _with_origins(self, origins: Iterable[Origin]) -> "SampleDataset":
        return SampleDataset(Pipeline(tuple(origins), self.pipeline.selection), self._cache)

    def _as_documents(self) -> DocumentPipeline:
        return DocumentPipeline(self.pipeline)

    def _with_parts(self, names: tuple[str, ...]) -> DocumentPipeline:
        origins: list[Origin] = []
        for origin in self.pipeline.origins:
            there = origin.columns or origin.source.columns
            if origin.stages or there is None:
                return self._as_documents()
            parts = tuple(dict.fromkeys(part_of(name, there) for name in names))
            if missing := [name for name in parts if name not in there]:
                hint = origin.source.advice or "column= names what is packed; tokenize makes tokens of a text"
                raise ValueError(f"pack: samples have no part {missing[0]!r}, only {', '.join(there)}\nhint: {hint}")
            origins.append(_selected(origin, parts))
        # Stored as they are to be packed: no other column is read.
        return self._with_origins(origins)._as_documents()

    def _expect_text(self, column: str) -> None:
        for origin in self.pipeline.origins:
            there = origin.columns or origin.source.columns
            if not origin.stages and there is not None and column not in there:
                hint = origin.source.advice or "column= names the text"
                raise ValueError(f"tokenize: samples have no part {column!r}, only {', '.join(there)}\nhint: {hint}")

    def _then(self, stage: Stage) -> "SampleDataset":
        return self._with_origins(
            Origin(origin.source, origin.columns, (*origin.stages, stage)) for origin in self.pipeline.origins
        )

    def _drawn(self, seed: SupportsIndex, purpose: int) -> _Ints:
        """For each position its place in a random order: int64."""
        number = as_int(seed, "seed", least=0, most=2**64 - 1)
        count = len(self.pipeline)
        if not count:
            return np.zeros(0, dtype=np.int64)
        drawn = _core.Permutation(count, seed=number, epoch=purpose).take(0, count)
        return np.frombuffer(memoryview(drawn), dtype=np.int64)

    def __repr__(self) -> str:
        origin, more = self.pipeline.origins[0], len(self.pipeline.origins) - 1
        steps = "".join(f".{stage!r}" for stage in origin.stages)
        others = f" and {more} more" if more else ""
        return (
            f"Dataset({self.url!r}{others}, format={origin.source.format!r}, "
            f"samples={len(self.pipeline):,}, chunks={self.pipeline.selection.pieces:,}){steps}"
        )


def concat(datasets: Iterable[SampleDataset]) -> SampleDataset:
    """Several datasets as one: the samples of the first, then those of the second, and so on.

    Raises:
        ValueError: if there is none.
        TypeError: if one is no dataset of samples.

    Example:
        >>> len(headrace.concat([samples, samples.take(3)]))
        15
    """
    parts = list(datasets)
    if not parts:
        raise ValueError("concat needs at least one dataset, got none")
    for part in parts:
        if not isinstance(part, SampleDataset):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"concat takes datasets of samples, got {part!r}")
    origins: list[Origin] = []
    shifts: list[int] = []
    for part in parts:
        shifts.append(len(origins))
        origins += part.pipeline.origins
    selection = Selection.concat([part.pipeline.selection for part in parts], shifts)
    return SampleDataset(Pipeline(tuple(origins), selection), parts[0]._cache)  # pyright: ignore[reportPrivateUsage]


def _selected(origin: Origin, names: tuple[str, ...]) -> Origin:
    if origin.stages:
        return Origin(origin.source, origin.columns, (*origin.stages, Pick(names)))
    there = origin.columns or origin.source.columns
    if there is None:
        raise ValueError(f"select: samples of {origin.source.url} are no dicts: {origin.source.schema['']}")
    if missing := [name for name in names if name not in there]:
        raise ValueError(f"select: samples have no part {missing[0]!r}, only {', '.join(there)}")
    return Origin(origin.source, names)


def _ends(parts: Sequence[float | int], count: int) -> list[int]:
    """Where parts end in a line of `count` samples."""
    if isinstance(parts, str) or not isinstance(parts, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"split takes a list of shares or numbers, got {parts!r}")
    if len(parts) < 1:
        raise ValueError("split takes at least one share or number, got none")
    if wrong := [part for part in parts if not isinstance(part, float | int | np.floating | np.integer)]:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"split takes a list of shares or numbers, got {wrong[0]!r} in it")
    if any(isinstance(part, bool) or not part >= 0 for part in parts):
        raise ValueError(f"split takes shares or numbers of at least 0, got {list(parts)}")
    if all(isinstance(part, int | np.integer) for part in parts):
        ends = np.cumsum(np.array(parts, dtype=np.int64)).tolist()
        if ends[-1] > count:
            raise ValueError(f"split: {ends[-1]} samples were asked for, there are {count}")
        return ends
    shares = np.cumsum(np.array(parts, dtype=np.float64))
    if shares[-1] > 1 + 1e-9:
        raise ValueError(f"split takes shares that sum to at most 1, got {list(parts)}")
    return [round(min(1.0, share) * count) for share in shares.tolist()]

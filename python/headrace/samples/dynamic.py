"""Pipelines whose number of documents only reading tells: what `flat_map`, `batch_map` or `pack` make of samples."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, Literal, Self, SupportsIndex

import numpy as np

from headrace._base import Dataset
from headrace._units import as_int

from .applying import Failed, add_note, apply_stages
from .cache import ChunkCache
from .draws import Key
from .packing import Mode, RowPacking
from .pipeline import Pipeline
from .stages import BatchMap, Filter, FlatMap, Map, Pick, Stage, Tokenize

__all__ = ["Chain", "DocumentPipeline", "DynamicDataset", "DynamicDocuments", "DynamicRows", "names_of"]

_READ_AHEAD = 64
"""Items that plain iteration asks for at once."""

_MEASURED = 256
"""Items that `estimated_len` reads."""


@dataclass(frozen=True)
class DocumentPipeline:
    """Items, and how they become documents, and these rows. It never changes and pickles."""

    base: Pipeline
    """What happens to each item alone, one to one or none."""
    stages: tuple[Stage, ...] = ()
    """What happens then: one to many, and many to many."""
    packing: RowPacking | None = None
    """How documents become rows; None if each is a row."""

    @cached_property
    def levels(self) -> tuple[tuple[Stage, ...], ...]:
        """The stages cut before each `BatchMap`: the first level makes documents of items, and each further one of
        groups of the documents before it, beginning with its `BatchMap`.
        """  # noqa: D205
        levels: list[list[Stage]] = [[]]
        for stage in self.stages:
            if isinstance(stage, BatchMap):
                levels.append([])
            levels[-1].append(stage)
        return tuple(map(tuple, levels))

    @property
    def is_counted(self) -> bool:
        """Whether each item is one row, as far as none is left out for an error."""
        drops = self.base.filtered or any(isinstance(stage, Filter) or stage.many for stage in self.stages)
        return self.packing is None and not drops

    def first_stage(self, level: int) -> int:
        """The number of a level's first stage."""
        return self.base.stages + sum(len(stages) for stages in self.levels[:level])

    def group(
        self, level: int, documents: list[Any], key: Key, skip: Callable[[int, Exception], None] | None = None
    ) -> list[Any] | Failed:
        """What becomes of a group of documents at a level above the first.

        Args:
            level: which.
            documents: as many as its `BatchMap` takes, or what is left at the end.
            key: of the first of them, by its part.
            skip: called with 0 and an error for each document that is left out for it; for the group likewise.
        """
        items: list[list[Any] | Failed] = [[documents]]
        apply_stages(self.levels[level], items, lambda _: key, first=self.first_stage(level), skip=skip)
        return items[0]


class Chain(Dataset):
    """Samples or documents, to which steps can be added: what `SampleDataset` and `DynamicDocuments` have in common."""

    _cache: ChunkCache

    @abstractmethod
    def _then(self, stage: Stage) -> Self:
        """With another step that makes one sample of each, or none."""

    @abstractmethod
    def _as_documents(self) -> DocumentPipeline:
        """What it consists of, for steps that make several samples of one."""

    def map(self, fn: Callable[..., Any]) -> Self:
        """Another sample for each: ``fn(sample)``.

        A function with an argument ``rng`` is given a NumPy generator for each sample, with ``python_rng`` a
        `random.Random`, with ``torch_rng`` a `torch.Generator`. Their numbers depend on the seed, the epoch and the
        sample's number alone: they are the same on any thread, any number of ranks, and after a resume. What a function
        raises keeps its type and names the sample (see ``on_error`` of `DataLoader`).

        Example:
            >>> samples.map(lambda sample: sample["text"].upper())[0]
            'SAMPLE 0'
        """
        return self._then(Map(_callable(fn, "map")))

    def filter(self, fn: Callable[..., Any]) -> Self:
        """Only the samples for which ``fn(sample)`` is true, found out when they are read.

        How many there are is not known beforehand: such a dataset has no length and no numbers. A loader counts steps
        as if nothing were dropped, so that all ranks take equally many; its batches are smaller by what is dropped.
        Behind `flat_map` or `batch_map`, and before `pack`, rows take their place. For conditions on stored columns
        `SampleDataset.where` is exact.

        Example:
            >>> [sample["label"] for sample in samples.filter(lambda sample: sample["label"] == 1)][:2]
            [1, 1]
        """
        return self._then(Filter(_callable(fn, "filter")))

    def tokenize(
        self,
        tokenizer: Any,
        *,
        column: str = "text",
        bos: bool | SupportsIndex = False,
        eos: bool | SupportsIndex = True,
        truncate: SupportsIndex | None = None,
        name: str = "tokens",
        vocab_size: SupportsIndex | None = None,
    ) -> Self:
        """Tokens in the place of a text: an array of integers, under another name.

        The tokenizers of `tokenizers` encode many texts at once, without the GIL.

        Args:
            tokenizer: the path of a ``tokenizer.json`` or of a folder with one, a tokenizer of the packages
                `tokenizers`, `transformers` or `tiktoken` (also ``"tiktoken:gpt2"``), or a function from a text to a
                list of ids.
            column: the text; where samples are texts themselves, it has no meaning.
            bos: whether documents begin with the tokenizer's bos token, or the id of the token they begin with.
            eos: likewise for their end. A document without a token of its own stays empty.
            truncate: the most tokens that a document keeps, those at its ends included; None for all.
            name: of the tokens; other parts of samples that are dicts are kept, the text is not.
            vocab_size: one more than the largest id, if the tokenizer cannot say (a function).

        Raises:
            ImportError: if the package of the tokenizer is not installed.
            TypeError: if a value is of the wrong type.
            ValueError: if one cannot be used, samples have no such part, or the tokenizer lacks a token.

        Example:
            >>> tokens = samples.tokenize(lambda text: list(text.encode()), eos=0)
            >>> tokens[0]["tokens"].tolist()
            [115, 97, 109, 112, 108, 101, 32, 48, 0]
        """
        from headrace.tokenizing import encoder_of

        if not isinstance(column, str) or not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"column and name must be text, got {column!r} and {name!r}")
        self._expect_text(column)
        encoder = encoder_of(tokenizer, bos=bos, eos=eos, vocab_size=vocab_size)
        most = None if truncate is None else as_int(truncate, "truncate", least=1)
        return self._then(Tokenize(encoder, column, name, most))

    def flat_map(self, fn: Callable[..., Any]) -> "DynamicDocuments":
        """Several documents for each sample, or none: those that ``fn(sample)`` gives, a list or an iterator.

        What follows is done to each document. Functions may take ``rng``, see `map`; each document has numbers of its
        own.

        Example:
            >>> words = samples.flat_map(lambda sample: sample["text"].split())
            >>> list(words)[:4]
            ['sample', '0', 'sample', '1']
        """
        return self._dynamic(FlatMap(_callable(fn, "flat_map")))

    def batch_map(self, fn: Callable[..., Any], size: SupportsIndex) -> "DynamicDocuments":
        """Other documents for each `size` neighbouring ones: ``fn(list)`` gives any number of them.

        Neighbours are those that follow each other in a loader's lane, so which they are depends on the seed and the
        number of lanes, and on nothing else. Groups run on from pass to pass.

        Args:
            fn: called with a list of `size` documents; with fewer only at the end of a loader's last epoch.
            size: at least 1.

        Example:
            >>> pairs = samples.batch_map(lambda pair: [" and ".join(one["text"] for one in pair)], 2)
            >>> next(iter(pairs))
            'sample 0 and sample 1'
        """
        return self._dynamic(BatchMap(_callable(fn, "batch_map"), as_int(size, "size", least=1, most=2**20)))

    def pack(
        self,
        seq_len: SupportsIndex,
        *,
        column: str = "tokens",
        columns: Iterable[str] | Mapping[str, str] | None = None,
        mode: Mode = "concat",
        eos_id: SupportsIndex | None = None,
        bos_id: SupportsIndex | None = None,
        overlap: SupportsIndex = 0,
        boundaries: bool = False,
        dtype: Literal["int32", "int64"] = "int32",
        name: str = "tokens",
        pad_id: SupportsIndex = 0,
        ignore_index: SupportsIndex = -100,
        pad_values: Mapping[str, int | float] | None = None,
        lookahead: SupportsIndex | None = None,
        long: Literal["split", "drop"] | None = None,
        max_documents: SupportsIndex | None = None,
        cu_seqlens_size: SupportsIndex | None = None,
    ) -> "DynamicRows":
        """Documents packed to rows, in each of a loader's lanes by itself and without end.

        A document is a dict with a list or an array of numbers, or such a list itself. One without a token gives
        nothing.

        Args:
            seq_len: entries of a row, at least 1.
            column: the tokens.
            columns: several parts of documents that are packed alike, as a list of names or a dict from names to
                dtypes. The first are the tokens. In each document all are equally long. Batches hold them under their
                names, of `dtype` where none is given.
            mode: ``"concat"`` lays documents end to end and cuts them into rows, every row full and no token lost.
                ``"best_fit"`` fills rows with whole documents: the oldest of those at hand, then again and again the
                longest that still fits; the rest is padding. ``"pad"`` gives each document a row of its own, and so
                does ``"truncate"``, which cuts off what is longer.
            eos_id: put behind each document that has a token; int32. Other columns hold their pad value there.
            bos_id: put before each document that has a token, likewise.
            overlap: further tokens in a row, with which the next row begins; at most seq_len, for ``"concat"``.
            boundaries: whether batches also hold ``document_ids``, ``position_ids``, ``cu_seqlens`` and
                ``max_seqlen``, see `TableDataset.pack`; padding is a part of its own, behind the others.
            dtype: of tokens in a batch.
            name: of tokens in a batch, where `columns` is not given.
            pad_id: what fills up the tokens of a row; int32.
            ignore_index: what fills up a column that is called ``"labels"``. All other columns are filled up with 0.
            pad_values: what fills up a column instead, by its name.
            lookahead: documents that ``"best_fit"`` chooses among, 64 by default.
            long: what becomes of a document that is longer than a row: ``"split"`` (the default) makes full rows of
                it, and a document of what is left; ``"drop"`` leaves it out. For ``"best_fit"`` and ``"pad"``.
            max_documents: parts of documents in a row, at most; for ``"best_fit"``.
            cu_seqlens_size: entries of ``cu_seqlens`` in each batch, filled up by repeating the last one, for compiled
                graphs. A batch that has more is an error: rows x (max_documents + 1) + 1 are always enough.

        Where a row may hold padding, batches also hold ``loss_mask`` (uint8: 1 for documents, 0 for padding), unless
        it is one of `columns`.

        Raises:
            TypeError: if a value is of the wrong type.
            ValueError: if one is out of range, or means nothing for the mode.

        Example:
            >>> tokens = samples.tokenize(lambda text: list(text.encode()), eos=0)
            >>> loader = headrace.DataLoader(tokens.pack(32, mode="best_fit"), global_batch_size=2)
            >>> batch = next(iter(loader))
            >>> batch["tokens"].shape, batch["loss_mask"].sum(axis=1).tolist()
            ((2, 32), [27, 29])
        """
        packing = RowPacking.of(
            seq_len,
            mode=mode,
            column=column,
            columns=columns,
            name=name,
            dtype=dtype,
            bos_id=bos_id,
            eos_id=eos_id,
            overlap=overlap,
            boundaries=boundaries,
            cu_seqlens_size=cu_seqlens_size,
            pad_id=pad_id,
            ignore_index=ignore_index,
            pad_values=pad_values,
            lookahead=lookahead,
            long=long,
            max_documents=max_documents,
        )
        pipeline = self._with_parts(tuple(one.column for one in packing.columns))
        return DynamicRows(replace(pipeline, packing=packing), self._cache)

    def _with_parts(self, names: tuple[str, ...]) -> DocumentPipeline:
        """What it consists of, where only some parts of samples are of use."""
        del names
        return self._as_documents()

    def _expect_text(self, column: str) -> None:
        """Refuses the name of a text that samples lack, where that is known.

        Raises:
            ValueError: if they do.
        """
        del column

    def _dynamic(self, stage: Stage) -> "DynamicDocuments":
        pipeline = self._as_documents()
        return DynamicDocuments(replace(pipeline, stages=(*pipeline.stages, stage)), self._cache)


class DynamicDataset(Dataset):
    """What documents and rows of them have in common: how many there are only reading tells."""

    def __init__(self, pipeline: DocumentPipeline, cache: ChunkCache) -> None:
        self._pipeline = pipeline
        self._cache = cache

    @property
    def pipeline(self) -> DocumentPipeline:
        """What it consists of, for loaders."""
        return self._pipeline

    @property
    def url(self) -> str:
        """The root, without secrets; of several datasets the first one's."""
        return self._pipeline.base.origins[0].source.url

    def __len__(self) -> int:
        raise TypeError(
            f"len(): how many there are of {self._what} only reading tells\nhint: estimated_len() reads a sample"
        )

    @property
    @abstractmethod
    def _what(self) -> str: ...

    @abstractmethod
    def estimated_len(self) -> int:
        """About how many a pass over the data gives, by some of its items, which are read."""

    def info(self) -> dict[str, Any]:
        """What is known without reading samples.

        Returns:
            ``url``, ``format``, ``samples`` (stored items), ``steps`` (what is done to them, as text), and the
            arguments of `pack` that shape rows, if there are rows.
        """
        base, packing = self._pipeline.base, self._pipeline.packing
        origin = base.origins[0]
        return {
            "url": self.url,
            "format": origin.source.format,
            "samples": len(base),
            "steps": [repr(stage) for stage in (*origin.stages, *self._pipeline.stages)],
            **({} if packing is None else packing.identity()),
        }

    def _measured(self) -> tuple[list[Any], float]:
        """The documents of some items that are spread over the data, and how many times as many items there are."""
        pipeline = self._pipeline
        count = len(pipeline.base)
        some = np.unique(np.linspace(0, max(0, count - 1), min(count, _MEASURED)).astype(np.int64))
        return list(_documents(pipeline, some, self._cache)), count / max(1, len(some))

    def __repr__(self) -> str:
        base = self._pipeline.base
        origin, more = base.origins[0], len(base.origins) - 1
        steps = "".join(f".{stage!r}" for stage in (*origin.stages, *self._pipeline.stages))
        packing = self._pipeline.packing
        if packing is not None:
            steps += f".pack({packing.seq_len}, mode={packing.mode!r})"
        others = f" and {more} more" if more else ""
        return f"Dataset({self.url!r}{others}, format={origin.source.format!r}, samples={len(base):,}){steps}"


class DynamicDocuments(DynamicDataset, Chain):
    """Documents that are made of samples, one to many: as `SampleDataset.flat_map` and `batch_map` give them.

    Each method gives another dataset and leaves this one as it is. There are no numbers of documents and no length. A
    loader's rows are the documents, lane by lane and without end; iteration gives those of one pass in storage order.

    Example:
        >>> words = headrace.open(samples.url).flat_map(lambda sample: sample["text"].split())
        >>> list(words)[:4]
        ['sample', '0', 'sample', '1']
    """

    @property
    def _what(self) -> str:
        return "documents"

    def __iter__(self) -> Iterator[Any]:
        """The documents of one pass, in storage order, with seed 0."""
        count = len(self._pipeline.base)
        return _documents(self._pipeline, np.arange(count, dtype=np.int64), self._cache)

    def estimated_len(self) -> int:
        """About how many documents a pass over the data gives, by some of its items, which are read.

        Example:
            >>> samples.flat_map(lambda sample: sample["text"].split()).estimated_len()
            24
        """
        documents, times = self._measured()
        return round(len(documents) * times)

    def select(self, columns: Iterable[str]) -> "DynamicDocuments":
        """Only some parts of documents that are dicts, in this order.

        Example:
            >>> next(iter(samples.flat_map(lambda sample: [sample]).select(["label"])))
            {'label': 0}
        """
        return self._then(Pick(names_of(columns)))

    def _then(self, stage: Stage) -> "DynamicDocuments":
        return self._dynamic(stage)

    def _as_documents(self) -> DocumentPipeline:
        return self._pipeline


class DynamicRows(DynamicDataset):
    """Documents packed to rows, as `pack` gives them where documents have to be made first.

    A loader's rows come lane by lane and without end, packed in each lane by itself.
    """

    @property
    def _what(self) -> str:
        return "rows"

    def estimated_len(self) -> int:
        """About how many rows a pass over the data gives, by some of its items, which are read. What padding takes is
        not counted.
        """  # noqa: D205
        packing = self._packing
        documents, times = self._measured()
        lengths = np.array([packing.lines(document).length for document in documents], dtype=np.int64)
        if packing.mode == "truncate":
            return round(int((lengths > 0).sum()) * times)
        if packing.mode == "pad":
            if packing.long == "drop":
                lengths = lengths[lengths <= packing.seq_len]
            return round(int((-(-lengths // packing.seq_len)).sum()) * times)
        return round(int(lengths.sum()) * times / packing.seq_len)

    @property
    def _packing(self) -> RowPacking:
        packing = self._pipeline.packing
        assert packing is not None  # made by `pack` alone
        return packing


def names_of(columns: Iterable[str]) -> tuple[str, ...]:
    """What `select` was given.

    Raises:
        TypeError: if it is no list of names.
        ValueError: if it is empty, or has one twice.
    """
    if isinstance(columns, str):
        raise TypeError(f"select takes a list of names, got {columns!r}")
    names = tuple(columns)
    if not names or len(set(names)) != len(names):
        raise ValueError(f"select takes at least one name, each once, got {list(names)}")
    return names


def _callable(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    if not callable(fn):
        raise TypeError(f"{name} takes a function of a sample, got {fn!r}")
    return fn


def _documents(pipeline: DocumentPipeline, positions: Any, cache: ChunkCache) -> Iterator[Any]:
    """The documents of some items, with seed 0; groups as in a single lane."""
    found: Iterator[tuple[Any, Key]] = _of_items(pipeline, positions, cache)
    for level in range(1, len(pipeline.levels)):
        found = _of_groups(pipeline, level, found)
    for document, _ in found:
        yield document


def _of_items(pipeline: DocumentPipeline, positions: Any, cache: ChunkCache) -> Iterator[tuple[Any, Key]]:
    base = pipeline.base
    for begin in range(0, len(positions), _READ_AHEAD):
        some = positions[begin : begin + _READ_AHEAD]
        keys = [Key(0, 0, position) for position in some.tolist()]
        items = base.expand(some, cache, key_of=keys.__getitem__, then=pipeline.levels[0])
        for key, item in zip(keys, items, strict=True):
            if isinstance(item, Failed):
                add_note(item.error, base.note(key.position))
                raise item.error
            for number, document in enumerate(item):
                yield document, replace(key, document=key.part(number))


def _of_groups(pipeline: DocumentPipeline, level: int, found: Iterator[tuple[Any, Key]]) -> Iterator[tuple[Any, Key]]:
    stage = pipeline.levels[level][0]
    assert isinstance(stage, BatchMap)  # as `levels` cuts them
    while group := list(islice(found, stage.size)):
        key = group[0][1]
        made = pipeline.group(level, [document for document, _ in group], key)
        if isinstance(made, Failed):
            add_note(made.error, pipeline.base.note(key.position))
            raise made.error
        for number, document in enumerate(made):
            yield document, replace(key, document=key.part(number))

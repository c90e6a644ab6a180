"""Steps that users add to samples or documents, and the documents that come of those which make several of one."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, Self, SupportsIndex

import numpy as np

from headrace._base import Dataset
from headrace._units import as_int

from .cache import ChunkCache
from .document_pipeline import DocumentPipeline
from .document_reading import documents_at
from .dynamic_dataset import DynamicDataset, DynamicRows
from .packing import Mode, RowPacking
from .stages import BatchMap, Filter, FlatMap, Map, Pick, Stage, Tokenize

__all__ = ["Chain", "DynamicDocuments", "names_of"]


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
        return documents_at(self._pipeline, np.arange(count, dtype=np.int64), self._cache)

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

"""`tokenize`: a dataset of tokens, of text wherever it lies."""

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, SupportsIndex

import numpy as np

from headrace.opening import Format, open
from headrace.samples.dataset import SampleDataset
from headrace.samples.pipeline import OnError
from headrace.tokenizing import Encoder, encoder_of

from .arguments import Prepared, check_choice, dev_limit, engine_of, options_of
from .documents import Document, Documents
from .inputs import inputs_of
from .job import Refused
from .optimizing import How, make
from .output import Mode
from .parts import Part
from .target import Target

__all__ = ["tokenize"]

_TOKENS = "tokens"
_METADATA = "headrace.tokens"
"""What Parquet and Arrow files call what they say of their tokens."""
_BATCH_LETTERS = 1 << 20
_BATCH_TEXTS = 1024
_GROUP_BYTES = 8 << 20
"""Bytes of tokens in a row group: a request to a store that pays, and little enough that a window of the loader's mixes
many."""
_HOLDS_EMPTY = ("parquet", "arrow")
"""Formats that hold documents without a token."""


def tokenize(
    inputs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | SampleDataset,
    tokenizer: Any,
    output_dir: str | os.PathLike[str],
    *,
    column: str = "text",
    bos: bool | SupportsIndex = False,
    eos: bool | SupportsIndex = True,
    vocab_size: SupportsIndex | None = None,
    keep: Sequence[str] | None = None,
    input_format: Format | None = None,
    storage_options: Mapping[str, str] | None = None,
    format: Literal["parquet", "arrow", "litdata", "mds"] = "parquet",
    chunk_bytes: str | SupportsIndex | None = None,
    chunk_size: SupportsIndex | None = None,
    compression: str | None = None,
    num_workers: SupportsIndex | None = None,
    mode: Mode | None = None,
    fast_dev_run: bool | SupportsIndex = False,
    resume: bool = True,
    on_error: OnError = "raise",
    engine: Literal["local", "ray"] = "local",
    ray_options: Mapping[str, Any] | None = None,
    output_options: Mapping[str, str] | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    progress: bool = True,
    verbose: bool = True,
) -> Prepared:
    """Makes a dataset of tokens that trains fast, of text wherever it lies.

    Documents keep their order, and the files are the same, byte for byte, for any number of workers. A run that ended
    early goes on where it was when it is called again, as with `optimize`.

    A document is a row: ``tokens``, in the smallest type that holds the vocabulary (uint8, uint16, int32 or int64), and
    what is kept beside it. One without a token of its own stays empty, without bos and eos; LitData and MDS leave it
    out, as they cannot hold it. Anything but text is an error, null too, and so are bytes that are not UTF-8.

    Args:
        inputs: paths or URLs, as `headrace.open` takes them, of Parquet, JSON Lines, text or whatever else it reads; or
            a dataset that it opened. Of raw files each is a document; so are those that are compressed (``.gz``,
            ``.zst``).
        tokenizer: the path of a ``tokenizer.json``, or of a folder that has one; a tokenizer of `tokenizers`,
            `transformers` or `tiktoken`, or the name of an encoding of the last (``"tiktoken:gpt2"``); or a function
            from a text to its ids, defined at the top of a module. Special tokens of its own are not added.
        output_dir: a folder, made if it is not there, or a URL in a store, as with `optimize`.
        column: which part of a sample is the text.
        bos: whether documents begin with the tokenizer's bos token; or the id of the token that they begin with.
        eos: likewise for their end.
        vocab_size: one more than the largest id, which decides the type of tokens: for functions, which do not tell it
            (int32 by default), or if there are to be more ids than the tokenizer has.
        keep: parts of a sample that are kept beside its tokens. By default ``id``, if there is such a column, else
            ``file`` and ``row``, which say where a document comes from, and may be named too.
        input_format: of what is read, if it cannot be found out; ``"text"`` takes each line of a file as a document.
        storage_options: settings of the store that is read, see `headrace.open`.
        format: of the files. Parquet has row groups of about 8 MiB of tokens. LitData has tokens alone, for its
            ``TokensLoader``.
        chunk_bytes: bytes of samples in a file, as a number or text, at most ``"1GiB"``. By default ``"64MiB"``, if
            `chunk_size` is not given either.
        chunk_size: documents in a file; of LitData tokens.
        compression: ``"zstd"`` or ``"zstd:<level>"``.
        num_workers: processes; 0 does all work in this one, where `tokenizers` has threads of its own. By default as
            many as there are processors.
        mode: None wants an empty folder, ``"append"`` adds to a dataset of the same tokenizer, ``"overwrite"`` puts the
            new dataset in the place of the one that is there.
        fast_dev_run: whether to do only the first 10 documents, or how many.
        resume: whether to go on with an unfinished run; False forgets it.
        on_error: ``"skip"`` leaves out documents that are damaged, no text, or nothing for the tokenizer, and lists
            them in ``_headrace/skipped.jsonl``.
        engine: ``"ray"`` has processes on a Ray cluster do the work, as with `optimize`.
        ray_options: what each of them asks of Ray, see there.
        output_options: settings of the output's store.
        work_dir: see `optimize`.
        progress: whether to show how far it is, on stderr.
        verbose: whether to print a summary there in the end.

    Raises:
        ValueError: if an argument cannot be used, there is no such column or token, or the folder is not as `mode`
            wants it; or if the tokenizer gives an id beyond its vocabulary.
        TypeError: if the tokenizer is none, or cannot be sent to processes.
        ImportError: if a package is missing.
        DataError: if a document is damaged, or no text; says where it lies.
        StateMismatch: if the folder has an unfinished run of other inputs or arguments.
        StoreError: if the folder cannot be written to, or the store that is read does not answer; `MissingError` if
            there is no such tokenizer.
        Exception: whatever the tokenizer raised, with a note that says for which document.

    Example:
        >>> def letters(text):
        ...     return list(text.encode())
        >>> made = headrace.tokenize(
        ...     samples.url, letters, folder / "letters", eos=0, vocab_size=256, num_workers=0, verbose=False
        ... )
        >>> headrace.open(folder / "letters").pack(16)
        Dataset(...).pack(16, column='tokens', documents=12, tokens=110, rows=6)
    """
    check_choice("mode", mode, (None, "append", "overwrite"))
    check_choice("on_error", on_error, ("raise", "skip"))
    is_bare = format == "litdata"
    options = options_of(
        format,
        chunk_bytes=chunk_bytes,
        chunk_size=chunk_size,
        compression=compression,
        encryption=None,
        serializers=None,
        tokens=is_bare,
    )
    where, limit = engine_of(engine, num_workers, ray_options), dev_limit(fast_dev_run)
    encoder = encoder_of(tokenizer, bos=bos, eos=eos, vocab_size=vocab_size)
    documents = Documents(
        _opened(inputs, input_format, storage_options),
        column=column,
        keep=_names(keep, is_bare=is_bare),
        limit=limit,
        on_error=on_error,
    )
    if not len(documents):
        raise ValueError("expected at least one document, found none")
    holds_all = format in _HOLDS_EMPTY
    about = {
        "tokenizer": encoder.digest,
        "vocab_size": encoder.vocab_size,
        "bos_id": encoder.bos_id,
        "eos_id": encoder.eos_id,
    }
    metadata = {_METADATA: json.dumps(about)} if holds_all else None
    options = dataclasses.replace(options, group_bytes=_GROUP_BYTES, metadata=metadata)
    fn = Tokenizing(
        documents, encoder, is_bare=is_bare, keeps_empty=holds_all, is_alone=num_workers == 0, on_error=on_error
    )
    work = inputs_of(
        fn,
        documents.parts(),
        queue=None,
        producers=1,
        reader=None,
        weights=None,
        batch_size=None,
        start_method="spawn",
        engine=where,
        ordered=True,
    )
    how = How(
        what="tokenize",
        format=format,
        options=options,
        limit=None,
        engine=where,
        on_error=on_error,
        ordered=True,
        align=False,
        mode=mode,
        resume=resume,
        progress=progress,
        verbose=verbose,
    )
    settings = {
        "options": [options.chunk_size, options.chunk_bytes, compression],
        "documents": documents.identity,
        "tokens": about,
    }
    return make(work, Target(output_dir, output_options, work_dir), how, settings)


class Tokenizing:
    """Makes samples of a part of documents; pickled to the processes that do so.

    Args:
        documents: the dataset.
        encoder: the tokenizer.
        is_bare: whether a sample is an array of tokens, and not a dict that has it beside what is kept.
        keeps_empty: whether documents without a token are samples.
        is_alone: whether one process does all work, so that threads of the tokenizer's own are of use.
        on_error: whether a document that cannot be encoded ends the run.
    """

    def __init__(
        self,
        documents: Documents,
        encoder: Encoder,
        *,
        is_bare: bool,
        keeps_empty: bool,
        is_alone: bool,
        on_error: OnError,
    ) -> None:
        self._documents, self._encoder = documents, encoder
        self._is_bare, self._keeps_empty = is_bare, keeps_empty
        self._is_alone, self._on_error = is_alone, on_error

    def __call__(self, part: Part) -> Iterator[Any]:
        """The samples of a part, in order, and what was refused among them."""
        if not self._is_alone:
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        for batch in _batches(self._documents.read(part)):
            yield from self._encoded(batch)

    def _encoded(self, batch: Sequence[Document | Refused]) -> Iterator[Any]:
        documents = [one for one in batch if isinstance(one, Document)]
        try:
            ids, lengths = self._encoder.encode([document.text for document in documents])
        except Exception as error:
            if len(batch) > 1:
                # Which one it was is found out by encoding each for itself.
                for one in batch:
                    yield from self._encoded([one])
                return
            place = self._documents.place(documents[0].position)
            if self._on_error == "raise":
                error.add_note(f"headrace: document {documents[0].position} ({place})")
                raise
            yield Refused(str(place), f"{type(error).__name__}: {error}")
            return
        tokens = iter(np.split(ids, np.cumsum(lengths)[:-1]))
        for one in batch:
            if isinstance(one, Refused):
                yield one
                continue
            mine = next(tokens)
            if len(mine) or self._keeps_empty:
                yield mine if self._is_bare else {**one.kept, _TOKENS: mine}


def _opened(inputs: Any, format: Format | None, storage_options: Mapping[str, str] | None) -> SampleDataset:
    if not isinstance(inputs, SampleDataset):
        return open(inputs, format=format, storage_options=storage_options)
    if format is not None or storage_options is not None:
        raise ValueError("input_format and storage_options are for paths and URLs: a dataset was opened already")
    return inputs


def _names(keep: Sequence[str] | None, *, is_bare: bool) -> Sequence[str] | None:
    """What is to be kept, checked."""
    if is_bare:
        if keep:
            raise ValueError(f'format="litdata" has tokens alone, got keep={list(keep)}')
        return ()
    if keep is None:
        return None
    if isinstance(keep, str) or any(not isinstance(name, str) for name in keep):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"keep must be a list of names, got {keep!r}")
    if _TOKENS in keep or len(set(keep)) != len(keep):
        raise ValueError(f"keep must be names other than {_TOKENS!r}, each once, got {list(keep)}")
    return keep


def _batches(documents: Iterable[Document | Refused]) -> Iterator[list[Document | Refused]]:
    """As many as are worth a call of the tokenizer, so that the ids of few texts are in memory as Python's integers."""
    batch: list[Document | Refused] = []
    letters = 0
    for document in documents:
        if batch and (len(batch) >= _BATCH_TEXTS or letters >= _BATCH_LETTERS):
            yield batch
            batch, letters = [], 0
        batch.append(document)
        letters += len(document.text) if isinstance(document, Document) else 0
    if batch:
        yield batch

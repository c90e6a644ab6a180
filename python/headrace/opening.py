"""`open`: a dataset where it lies, whatever its format."""

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, SupportsIndex

from . import _core, _disk_cache
from ._disk_cache import CacheSize, cache_folder
from ._files import Store
from ._paths import options_of
from ._progress import index_progress
from ._units import as_int, parse_bytes
from .dataset import TableDataset
from .formats import detect
from .formats.options import Decryption, Group
from .samples.cache import ChunkCache
from .samples.dataset import SampleDataset, concat
from .samples.pipeline import Origin, Pipeline
from .samples.selection import Selection
from .samples.source import Source

__all__ = ["cache_folder", "open"]

Format = Literal[
    "parquet",
    "litdata",
    "mds",
    "huggingface",
    "arrow",
    "webdataset",
    "jsonl",
    "text",
    "records",
    "megatron",
    "tokens",
    "files",
]


@dataclass(frozen=True, kw_only=True)
class _How:
    """How formats are to be read."""

    columns: list[str] | None
    cache_dir: str | None
    cache: _disk_cache.Place | None
    index: str
    allow_pickle: bool
    verify: bool
    decode: bool
    tensors: Literal["numpy", "torch"]
    decryption: Decryption | None
    serializers: Mapping[str, Any] | None
    block_size: int | None
    sequence_length: int | None
    stored_dtype: str | None
    vocab_size: int | None
    group: Group | None
    partial: bool
    chunk_cache: int


def open(
    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    format: Format | None = None,
    columns: Iterable[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_size: CacheSize | None = None,
    index: str | os.PathLike[str] = "auto",
    allow_pickle: bool = False,
    verify: bool = False,
    decode: bool = True,
    tensors: Literal["numpy", "torch"] = "numpy",
    decryption: Decryption | None = None,
    serializers: Mapping[str, Any] | None = None,
    block_size: SupportsIndex | None = None,
    sequence_length: SupportsIndex | None = None,
    stored_dtype: str | None = None,
    vocab_size: SupportsIndex | None = None,
    group: Group | None = None,
    partial: bool = False,
    chunk_cache: str | SupportsIndex = "256MiB",
) -> SampleDataset:
    """Opens a dataset where it lies, reading nothing but indexes.

    The format is found out: from an index at the root (LitData, MDS, a Hugging Face ``save_to_disk`` folder), from
    suffixes (Parquet, Arrow, tar, JSON Lines), or from the beginning of files without one; anything else is raw files.

    Files sort by path (as UTF-8 bytes, below the dataset's root). Below a folder or a glob, files are left out whose
    name, or that of a folder on the way, begins with ``.`` or ``_``, and empty files without a Parquet suffix; of the
    rest those with a Parquet suffix (``.parquet``, ``.parq``, ``.pq``) are taken if there are any. A file that is named
    itself is always taken. Symbolic links are followed, each folder once.

    Args:
        urls: a folder (with all below it), a file, a glob (``*``, ``?``, ``[...]``, ``**``), or several of these, all
            on one store: a local path, ``file://``, ``local:/mount``, ``s3://bucket/prefix``, ``r2://``, ``gs://``,
            ``az://container/prefix``, ``hf://datasets/org/name@revision/path``, ``https://`` URLs of single files, or
            any other scheme through fsspec. Local paths and keys are taken as they are; only ``file://`` and
            ``https://`` are percent-encoded. Several folders with indexes of their own are read one after another.
        format: the format, or None to find out; ``"text"``, lines of text as samples, is only found if it is said.
        columns: token columns that every Parquet file must have; checked now rather than when they are used.
        storage_options: settings of the store, on top of the environment variables of its provider (``AWS_*``,
            ``GOOGLE_*``, ``AZURE_*``, ``HF_*``).
        cache_dir: where indexes are kept; by default ``$HEADRACE_CACHE``, ``$XDG_CACHE_HOME/headrace`` or
            ``~/.cache/headrace``.
        cache_size: how much may be kept there of what is read from remote stores, so that it is fetched once by all
            epochs, loaders and processes of this machine: bytes as a number or text (``"50GiB"``), or a fraction of the
            free disk (``0.5``). By default ``$HEADRACE_CACHE_SIZE``, or nothing.
        index: ``"auto"`` takes a saved index of Parquet files as far as they have not changed, ``"rebuild"`` reads all
            footers anew, a path (to ``name.arrow``, or with a ``/`` in it) names a file to keep the index in.
        allow_pickle: whether pickled values in LitData and MDS may be read. Unpickling runs whatever code the file
            holds: only for data that you trust like a program.
        verify: whether MDS shards are compared with the digests in their index when they are opened.
        decode: whether Hugging Face image and audio columns are decoded; False leaves them as stored.
        tensors: what LitData's tensors become.
        decryption: the key of encrypted LitData, as `headrace.encryption.load_key` reads it, or litdata's own object.
        serializers: of LitData, for types of your own.
        block_size: tokens in a sample of LitData's token chunks; by default a sample is what was stored as one.
        sequence_length: of token files and stores of records: records in a sample (see `StreamDataset.sequences`).
        stored_dtype: the type of a token in ``.bin`` files that do not say it, such as ``"uint16"``.
        vocab_size: of token files: ids that no vocabulary of this size has are refused, where files begin and end.
        group: for raw files, which of them make up one sample: None for each by itself, ``"stem"`` for those that
            differ in their suffix alone, or a function from a path to a key.
        partial: whether samples of ``group`` may lack parts that others have.
        chunk_cache: bytes of chunks that are kept for reading at random (``data[i]``), as a number or text.

    Returns:
        Samples: `TableDataset`, which has a column of tokens to `pack`, for Parquet files; `StreamDataset` or
        `DocumentDataset` for token files and stores of records.

    Raises:
        ValueError: if nothing matches, a file is named twice, or an argument cannot be used.
        DataError: if a file is damaged or lacks a column.
        StoreError: if the store does not answer; `MissingError` if it has no such thing.

    Example:
        >>> data = headrace.open(folder)
        >>> len(data), data.info()["columns"]["tokens"]["type"]
        (200, 'int32')
    """
    if format is not None and format not in detect.FORMATS:
        raise ValueError(f"format must be None or one of {', '.join(detect.FORMATS)}, got {format!r}")
    if isinstance(urls, bytes) or not isinstance(urls, str | os.PathLike | Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"open takes a path or URL as text, or several, got {urls!r}")
    names = [os.fspath(urls)] if isinstance(urls, str | os.PathLike) else [os.fspath(url) for url in urls]
    if not names:
        raise ValueError("open needs at least one path or URL, got none")
    if wrong := [name for name in names if not isinstance(name, str) or not name]:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"a path or URL must be non-empty text, got {wrong[0]!r}")
    if isinstance(columns, str):
        raise TypeError(f"columns must be a list of names, got {columns!r}")
    index = os.fspath(index)
    if index not in ("auto", "rebuild") and not index.endswith(".arrow") and os.sep not in index:
        raise ValueError(
            f'index must be "auto", "rebuild" or the path of a file (name.arrow or with a /), got {index!r}'
        )
    if index not in ("auto", "rebuild"):
        index = os.path.abspath(index)  # noqa: PTH100
    missing = [name for name in ("algorithm", "level", "decrypt") if not hasattr(decryption, name)]
    if decryption is not None and missing:
        raise TypeError(
            f"decryption must be a key with algorithm, level and decrypt, got a {type(decryption).__name__} without "
            f"{missing[0]}\nhint: headrace.encryption.load_key(path, password) reads the key that was saved"
        )
    options = options_of(storage_options)
    if group is not None and format not in (None, "files"):
        raise ValueError(f"group is for raw files, got it with format={format!r}")
    folder: str | None = None if cache_dir is None else str(os.path.abspath(cache_dir))  # noqa: PTH100
    how = _How(
        columns=None if columns is None else list(columns),
        cache_dir=folder,
        cache=_disk_cache.place(cache_folder(folder), cache_size),
        index=index,
        allow_pickle=allow_pickle,
        verify=verify,
        decode=decode,
        tensors=tensors,
        decryption=decryption,
        serializers=serializers,
        block_size=None if block_size is None else as_int(block_size, "block_size", least=1),
        sequence_length=None if sequence_length is None else as_int(sequence_length, "sequence_length", least=1),
        stored_dtype=stored_dtype,
        vocab_size=None if vocab_size is None else as_int(vocab_size, "vocab_size", least=1),
        group=group,
        partial=partial,
        chunk_cache=parse_bytes(chunk_cache, "chunk_cache"),
    )
    dataset = _open(names, options, "files" if group is not None else format, how)
    _disk_cache.warn()
    return dataset


def _open(names: list[str], options: dict[str, str], format: str | None, how: _How) -> SampleDataset:
    store = Store(names, options, how.cache)
    if format is None and len(names) > 1 and detect.has_own_index(store.files):
        return concat([_open([name], options, None, how) for name in names])
    of_tokens = {"sequence_length": how.sequence_length, "stored_dtype": how.stored_dtype, "vocab_size": how.vocab_size}
    wanted = [name for name, value in of_tokens.items() if value is not None]
    format = format or detect.detect(store, tokens=bool(wanted))
    if wanted and format not in detect.RECORDS:
        raise ValueError(
            f"{wanted[0]} is for token files and stores of records, got it for {store.url}, which is {format}"
        )
    chunks = ChunkCache(how.chunk_cache)
    with index_progress() as progress:
        if format == "parquet":
            elsewhere = [_from_anywhere(name) for name in names]
            again = functools.partial(_index, elsewhere, options, how, store.core.revision)
            core = store.core.index(cache_dir=how.cache_dir, index=how.index, columns=how.columns, progress=progress)
            return TableDataset(core, cache_folder(how.cache_dir), chunks, again)
        if format in detect.RECORDS:
            return _records(store, format, how, chunks)
        source = _source(store, format, how, progress)
    return SampleDataset(Pipeline((Origin(source),), Selection.whole(source.sizes)), chunks)


def _from_anywhere(name: str) -> str:
    """A path or URL that means the same to a process that stands in another folder."""
    if name.startswith("local:"):
        return f"local:{_from_anywhere(name.removeprefix('local:'))}"
    # Not as a `Path`, which would drop a slash at the end.
    return name if "://" in name or name.startswith("~") else os.path.join(os.getcwd(), name)  # noqa: PTH109, PTH118


def _index(names: list[str], options: dict[str, str], how: _How, revision: str | None) -> _core.Index:
    """The same Parquet files, in another process."""
    listing = Store(names, options, how.cache, revision=revision).core
    index = "auto" if how.index == "rebuild" else how.index
    return listing.index(cache_dir=how.cache_dir, index=index, columns=how.columns, progress=_silent)


def _source(store: Store, format: str, how: _How, progress: Callable[[str, int, int], None]) -> Source:
    # A format is imported when it is wanted: `import headrace` is to take a moment.
    folder = cache_folder(how.cache_dir)
    match format:
        case "litdata":
            from .formats.litdata import LitDataSource

            return LitDataSource.open(
                store,
                allow_pickle=how.allow_pickle,
                tensors=how.tensors,
                decryption=how.decryption,
                serializers=how.serializers,
                block_size=how.block_size,
            )
        case "mds":
            from .formats.mds import MdsSource

            return MdsSource.open(store, allow_pickle=how.allow_pickle, verify=how.verify)
        case "huggingface":
            from .formats.huggingface import HuggingFaceSource

            return HuggingFaceSource.open(store, cache_dir=folder, progress=progress, decode=how.decode)
        case "arrow":
            from .formats.arrow import ArrowSource

            files = detect.of_format(store, format)
            return ArrowSource.open(store, files, cache_dir=folder, progress=progress)
        case "webdataset":
            from .formats.webdataset import WebDatasetSource

            files = detect.of_format(store, format)
            return WebDatasetSource.open(store, files, cache_dir=folder, progress=progress)
        case "jsonl":
            from .formats.jsonl import JsonlSource

            files = detect.of_format(store, format)
            return JsonlSource.open(store, files, cache_dir=folder, progress=progress)
        case "text":
            from .formats.text import TextSource

            files = detect.of_format(store, format)
            return TextSource.open(store, files, cache_dir=folder, progress=progress)
        case _:
            from .formats.files import FilesSource

            return FilesSource.open(store, group=how.group, partial=how.partial)


def _records(store: Store, format: str, how: _How, chunks: ChunkCache) -> SampleDataset:
    from .formats.records import read_flat, read_megatron, read_store
    from .records import records_dataset

    kind: Literal["stream", "documents"] = "stream"
    if format == "records":
        records, kind = read_store(store, verify=how.verify)
    elif format == "megatron":
        records, kind = read_megatron(store, detect.of_format(store, format)), "documents"
    else:
        records = read_flat(store, detect.of_format(store, format), stored_dtype=how.stored_dtype)
    if how.vocab_size is not None:
        records.check_values(how.vocab_size)
    return records_dataset(records, kind, how.sequence_length, chunks)


def _silent(phase: str, done: int, total: int) -> None:
    pass

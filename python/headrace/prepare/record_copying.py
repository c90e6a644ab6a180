"""Any dataset with columns of numbers as a store of records: what `headrace convert` does for these."""

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from headrace.errors import DataError
from headrace.records import DocumentDataset, StreamDataset
from headrace.samples.dataset import SampleDataset

from .arguments import Prepared, check_choice
from .completing import complete_dataset
from .progress import Meter
from .record_shards import INDEX
from .recording import DocumentWriter, StreamWriter

__all__ = ["KINDS", "Copied", "copy_records"]

KINDS = ("documents", "stream")

_STRETCH_BYTES = 1 << 20
"""Of records that are copied at once where nothing says what belongs together."""

_Values = npt.NDArray[Any]


class Copied(NamedTuple):
    """What was made."""

    made: Prepared
    left_out: list[str]
    """Parts of the samples that the store does not hold."""


def copy_records(
    dataset: SampleDataset,
    folder: Path,
    *,
    kind: Literal["documents", "stream"],
    columns: Sequence[str] | None,
    keep: Sequence[str] | None,
    dtype: str | None,
    shard_bytes: str,
    mode: Literal["append"] | None,
    progress: bool,
) -> Copied:
    """Writes all samples in their order, a document each; of a stream that does not say where documents end, its
    records. The store is there when it is whole.

    Args:
        dataset: what is read, from front to back.
        folder: where the store goes.
        kind: of the store.
        columns: the parts of a sample that become fields of a record, arrays of one length; None for all fields of
            records, ``tokens``, or the only part that is an array of whole numbers.
        keep: parts that are stored beside a document; None for all that are single numbers.
        dtype: of the numbers in the only column; None for the first sample's.
        shard_bytes: see `StreamWriter`.
        mode: None for an empty folder, ``"append"`` to add to a store.
        progress: whether to show how far it is.

    Raises:
        ValueError: if an argument cannot be used, or the folder is not as `mode` wants it.
        DataError: if a sample cannot be stored, naming it.
        StoreError: if the folder cannot be written to.
    """  # noqa: D205
    start = time.monotonic()
    check_choice("kind", kind, KINDS)
    check_choice("mode", mode, (None, "append"))
    _check_folder(folder, mode)
    if isinstance(dataset, StreamDataset) and dataset.sequence_length is None and dataset.has_documents:
        dataset = dataset.documents()
    whole = not isinstance(dataset, StreamDataset) or dataset.sequence_length is not None
    if kind == "documents" and not whole:
        raise ValueError(
            f"{dataset.url}: expected documents, found a stream that does not say where they end\n"
            "hint: convert it to a stream, or cut it to sequences, each of which becomes a document"
        )
    first, samples = _first(dataset, columns)
    chosen = _columns(dataset, first, columns)
    record = _record_type(first, chosen, dtype)
    kept = _kept(first, chosen, keep) if kind == "documents" else []
    meta = [(name, np.asarray(first[name]).dtype) for name in kept] or None
    how: dict[str, Any] = {"shard_bytes": shard_bytes, "mode": mode, "part": 0}
    writer: DocumentWriter | StreamWriter = (
        DocumentWriter(folder, record, meta=meta, **how)
        if kind == "documents"
        else StreamWriter(folder, record, documents=whole, **how)
    )
    meter = Meter("convert", shown=progress)
    meter.begin(len(dataset), 0)
    try:
        before = 0
        for number, sample in enumerate(samples):
            _write(writer, dataset, number, sample, chosen, kept, whole)
            count = 1 if whole else writer.records - before
            meter.add(count, count, (writer.records - before) * record.itemsize, "")
            before = writer.records
        writer.close()
    except BaseException:
        writer.discard()
        raise
    finally:
        meter.close()
    made = complete_dataset(folder)
    left_out = [name for name in first if name not in chosen and name not in kept]
    seconds = time.monotonic() - start
    return Copied(Prepared(folder, made.samples, made.chunks, made.bytes, [], seconds), left_out)


def _check_folder(folder: Path, mode: str | None) -> None:
    there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if mode is None and there:
        raise ValueError(
            f"{folder}: expected an empty folder, found {', '.join(there[:3])}\n"
            "hint: append adds to a store of records; what was left by a run that was killed can be removed"
        )
    if mode is not None and (INDEX not in there or any(name.startswith("part-") for name in there)):
        raise ValueError(f"{folder}: expected a store of records that is complete, to add to it")


def _samples(dataset: SampleDataset) -> Iterator[dict[str, Any]]:
    """The samples; of a stream without sequences stretches of its records."""
    if isinstance(dataset, StreamDataset) and dataset.sequence_length is None:
        yield from dataset.stretches(max(1, _STRETCH_BYTES // dataset.dtype.itemsize))
        return
    for sample in dataset:
        yield cast("dict[str, Any]", sample) if isinstance(sample, dict) else {"tokens": sample}


def _first(dataset: SampleDataset, columns: Sequence[str] | None) -> tuple[dict[str, Any], Iterable[dict[str, Any]]]:
    """A sample that says what all are like, and all of them: an empty list does not say of what it is."""
    first: dict[str, Any] | None = None
    samples = _samples(dataset)
    for sample in samples:
        if not any(_is_empty(value) for name, value in sample.items() if name in (columns or sample)):
            # What came before it is read again: there may be too much of that to keep it.
            return sample, itertools.chain([sample], samples) if first is None else _samples(dataset)
        first = sample if first is None else first
    if first is None:
        raise ValueError(f"{dataset.url}: expected at least one sample, found none")
    return first, _samples(dataset)


def _columns(dataset: SampleDataset, sample: Mapping[str, Any], given: Sequence[str] | None) -> list[str]:
    if given:
        if missing := [name for name in given if name not in sample]:
            raise ValueError(f"{dataset.url}: expected a column {missing[0]!r}, found {', '.join(sample)}")
        return list(given)
    if isinstance(dataset, StreamDataset | DocumentDataset):
        return [name for name in dataset.dtype.names or () if name in sample]
    found = [name for name, value in sample.items() if _is_column(value)]
    if "tokens" in found or len(found) == 1:
        return ["tokens"] if "tokens" in found else found
    raise ValueError(
        f"{dataset.url}: expected a column of whole numbers, tokens or only one, found "
        f"{', '.join(found) or 'none'} among {', '.join(sample)}\nhint: say which columns are meant"
    )


def _is_column(value: Any) -> bool:
    if not isinstance(value, np.ndarray | list):
        return False
    try:
        array = np.asarray(cast("Any", value))
    except ValueError:  # lists of different lengths
        return False
    return array.ndim == 1 and array.dtype.kind in "iu"


def _record_type(sample: Mapping[str, Any], columns: Sequence[str], dtype: str | None) -> np.dtype[Any]:
    if dtype is not None and len(columns) != 1:
        raise ValueError(f"dtype is for one column, got it for {', '.join(columns)}")
    fields: list[Any] = []
    for name in columns:
        array = np.asarray(sample[name])
        try:
            base = array.dtype if dtype is None else np.dtype(dtype)
        except TypeError:
            raise ValueError(f'dtype must be a type of numbers, such as "uint16", got {dtype!r}') from None
        if base.kind not in "iufb" or array.ndim == 0:
            raise ValueError(f"column {name!r}: expected arrays of numbers, found {_shown(array)}")
        fields.append((name, base, array.shape[1:]))
    return np.dtype(fields)


def _kept(sample: Mapping[str, Any], columns: Sequence[str], given: Sequence[str] | None) -> list[str]:
    """The parts that are stored beside a document."""
    if given is None:
        others = [name for name in sample if name not in columns]
        return [name for name in others if np.isscalar(sample[name]) and np.asarray(sample[name]).dtype.kind in "iufb"]
    for name in given:
        if name not in sample or name in columns:
            raise ValueError(f"keep: expected another part of a sample, got {name!r}; there are {', '.join(sample)}")
        array = np.asarray(sample[name])
        if array.ndim or array.dtype.kind not in "iufb":
            raise ValueError(f"keep: expected a number in {name!r}, found {_shown(array)}")
    return list(given)


def _shown(array: _Values) -> str:
    return f"{array.dtype} of shape {array.shape}"


def _write(
    writer: DocumentWriter | StreamWriter,
    dataset: SampleDataset,
    number: int,
    sample: Mapping[str, Any],
    columns: Sequence[str],
    kept: Sequence[str],
    whole: bool,
) -> None:
    try:
        values = {name: _filled(sample[name]) for name in columns}
        if isinstance(writer, DocumentWriter):
            writer.write(values, {name: sample[name] for name in kept})
            return
        writer.write(values)
        if whole:
            writer.end_document()
    except (TypeError, ValueError, KeyError) as error:
        text = f"expected {error} as in the first sample, found none" if isinstance(error, KeyError) else str(error)
        where = f"sample {number} ({dataset.place(number)})" if whole else f"record {writer.records} or behind"
        raise DataError(f"{dataset.url}: {where}: {text}") from None


def _filled(value: Any) -> Any:
    """An array; an empty list is one of whole numbers."""
    return np.zeros(0, np.int64) if _is_empty(value) else np.asarray(value)


def _is_empty(value: Any) -> bool:
    return isinstance(value, list) and not value

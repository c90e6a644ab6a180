"""Any dataset with columns of numbers as a store of records: what `headrace convert` does for these."""

import dataclasses
import json
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from headrace._units import parse_bytes
from headrace.errors import DataError, StoreError
from headrace.records import StreamDataset
from headrace.samples.dataset import SampleDataset

from .arguments import Prepared, check_choice
from .beginning import begun
from .digests import digest
from .output import Mode, Output
from .progress import Meter
from .record_catalog import RecordCatalog, entries_of
from .record_choosing import columns_of, kept_of, record_type_of
from .record_parts import hold_parts
from .record_shards import INDEX, expect_alike, files_of, head_of, read_index
from .recording import DocumentWriter, StreamWriter
from .target import Target
from .writing import Entry

__all__ = ["KINDS", "Copied", "copy_records"]

KINDS = ("documents", "stream")

_STRETCH_BYTES = 1 << 20
"""Of records that are copied at once where nothing says what belongs together."""


class Copied(NamedTuple):
    """What was made."""

    made: Prepared
    left_out: list[str]
    """Parts of the samples that the store does not hold."""


def copy_records(
    dataset: SampleDataset,
    target: Target,
    *,
    kind: Literal["documents", "stream"],
    columns: Sequence[str] | None,
    keep: Sequence[str] | None,
    dtype: str | None,
    shard_bytes: str,
    mode: Mode | None,
    resume: bool,
    progress: bool,
) -> Copied:
    """Writes all samples in their order, a document each; of a stream that does not say where documents end, its
    records. The store is there when it is whole, and a run that ended early goes on behind the shards that it finished.

    Args:
        dataset: what is read, from front to back.
        target: where the store goes.
        kind: of the store.
        columns: the parts of a sample that become fields of a record, arrays of one length; see `columns_of`.
        keep: parts that are stored beside a document; None for all that are single numbers.
        dtype: of the numbers in the only column; None for the first sample's.
        shard_bytes: see `StreamWriter`.
        mode: see `headrace.optimize`.
        resume: whether to go on with an unfinished run; False forgets it.
        progress: whether to show how far it is.

    Raises:
        ValueError: if an argument cannot be used, or the place is not as `mode` wants it.
        DataError: if a sample cannot be stored, naming it.
        StateMismatch: if the place has an unfinished run of other data or arguments.
        StoreError: if it cannot be written to, or another writer is at it.
    """  # noqa: D205
    start = time.monotonic()
    check_choice("kind", kind, KINDS)
    check_choice("mode", mode, (None, "append", "overwrite"))
    copy = _planned(dataset, kind, columns, keep, dtype, parse_bytes(shard_bytes, "shard_bytes"))
    output = target.open(resume=resume)
    finished = False
    try:
        with ExitStack() as held:
            if isinstance(output.folder, Path):
                hold_parts(output.folder, held)
            entries = _run(copy, output, mode, resume, Meter("convert", shown=progress))
        finished = True
    finally:
        output.close(finished=finished)
    samples, size = (sum(entry[name] for entry in entries) for name in ("samples", "bytes"))
    shards = sum("shard" in entry for entry in entries)
    return Copied(Prepared(output.folder, samples, shards, size, [], time.monotonic() - start), copy.left_out)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Copy:
    """What is to be written."""

    dataset: SampleDataset
    kind: Literal["documents", "stream"]
    whole: bool
    """Whether what is read are documents; records of a stream otherwise."""
    columns: Sequence[str]
    kept: Sequence[str]
    left_out: list[str]
    record: np.dtype[Any]
    meta: np.dtype[Any] | None
    shard_bytes: int

    @property
    def head(self) -> dict[str, Any]:
        """What the index says of all shards."""
        return head_of(self.kind, self.record, self.whole, self.meta)

    def writer(self, folder: Path, part: int) -> DocumentWriter | StreamWriter:
        """One that goes on behind the shards in a folder."""
        how: dict[str, Any] = {"shard_bytes": self.shard_bytes, "mode": "append", "part": part}
        if self.kind == "documents":
            return DocumentWriter(folder, self.record, meta=self.meta, **how)
        return StreamWriter(folder, self.record, documents=self.whole, **how)


def _planned(
    dataset: SampleDataset,
    kind: Literal["documents", "stream"],
    columns: Sequence[str] | None,
    keep: Sequence[str] | None,
    dtype: str | None,
    shard_bytes: int,
) -> _Copy:
    if isinstance(dataset, StreamDataset) and dataset.sequence_length is None and dataset.has_documents:
        dataset = dataset.documents()
    whole = not isinstance(dataset, StreamDataset) or dataset.sequence_length is not None
    if kind == "documents" and not whole:
        raise ValueError(
            f"{dataset.url}: expected documents, found a stream that does not say where they end\n"
            "hint: convert it to a stream, or cut it to sequences, each of which becomes a document"
        )
    first = _first(dataset, columns)
    chosen = columns_of(dataset, first, columns)
    record = record_type_of(first, chosen, dtype)
    kept = kept_of(first, chosen, keep) if kind == "documents" else []
    return _Copy(
        dataset=dataset,
        kind=kind,
        whole=whole,
        columns=chosen,
        kept=kept,
        left_out=[name for name in first if name not in chosen and name not in kept],
        record=record,
        meta=np.dtype([(name, np.asarray(first[name]).dtype) for name in kept]) if kept else None,
        shard_bytes=shard_bytes,
    )


def _run(copy: _Copy, output: Output, mode: Mode | None, resume: bool, meter: Meter) -> list[Entry]:
    """Does what is left of a run; gives the files that it made."""
    catalog = RecordCatalog()
    key = {
        "kind": "convert",
        "format": copy.kind,
        "inputs": len(copy.dataset),
        "content": digest(copy.dataset),
        "columns": copy.columns,
        "keep": copy.kept,
        "types": copy.head,
        "shard_bytes": copy.shard_bytes,
        "mode": mode,
    }
    first, lines = begun(output, key, resume, lambda: _beginning(copy, output, catalog, mode))
    if lines:
        # It was ended while the store was made visible.
        entries: list[Entry] = lines[-1]["whole"]
    else:
        if output.base(catalog) != first["base"]:
            raise output.changed()
        entries = _copied(copy, output, first["base"], meter)
        output.note({"whole": entries}, sync=True)
    index = catalog.index([*first["there"], *entries], json.dumps(copy.head))
    output.publish(catalog, entries, index, first["gone"], first["found"])
    return entries


def _beginning(copy: _Copy, output: Output, catalog: RecordCatalog, mode: Mode | None) -> dict[str, Any]:
    if parts := [name for name in output.visible() if name.startswith("part-")]:
        raise ValueError(
            f"{output.folder}: expected a store of records that is complete, found {parts[0]}\n"
            "hint: headrace.complete_dataset makes one store of its parts"
        )
    existing, gone = output.existing(catalog, mode)
    if existing.schema is not None:
        expect_alike(f"{output.folder}/{INDEX}", json.loads(existing.schema), copy.head)
    return {"base": output.base(catalog), "there": existing.entries, "gone": gone, "found": output.mark(catalog)}


def _copied(copy: _Copy, output: Output, part: int, meter: Meter) -> list[Entry]:
    """Writes the shards that are not there yet, in the work folder; gives all of them."""
    index = output.chunks / f"part-{part:05d}.json"
    done = _finished(copy, index)
    writer = copy.writer(output.chunks, part)
    meter.begin(len(copy.dataset), done)
    try:
        before = writer.records
        for number, sample in enumerate(_samples(copy.dataset, done), done):
            _write(copy, writer, number, sample)
            count = 1 if copy.whole else writer.records - before
            meter.add(count, count, (writer.records - before) * copy.record.itemsize, "")
            before = writer.records
        with _going_on():
            writer.close()
    except BaseException:
        writer.abandon()
        if not index.exists():
            # Nothing is finished that another run could go on with.
            output.forget()
        raise
    finally:
        meter.close()
    return entries_of(read_index(index))


def _finished(copy: _Copy, path: Path) -> int:
    """How many samples lie in the shards that are finished; whatever else a kill left there goes."""
    shards: list[dict[str, Any]] = read_index(path)["shards"] if path.exists() else []
    listed = {file for shard in shards for file in files_of(shard)}
    for left in path.parent.glob("shard-*"):
        if left.name not in listed:
            left.unlink()
    return sum(shard["documents" if copy.whole else "records"] for shard in shards)


def _samples(dataset: SampleDataset, start: int) -> Iterator[dict[str, Any]]:
    """The samples from one on; of a stream without sequences stretches of its records."""
    if isinstance(dataset, StreamDataset) and dataset.sequence_length is None:
        yield from dataset.stretches(max(1, _STRETCH_BYTES // dataset.dtype.itemsize), start=start)
        return
    for sample in dataset.skip(start):
        yield cast("dict[str, Any]", sample) if isinstance(sample, dict) else {"tokens": sample}


def _first(dataset: SampleDataset, columns: Sequence[str] | None) -> dict[str, Any]:
    """A sample that says what all are like: an empty list does not say of what it is."""
    first: dict[str, Any] | None = None
    for sample in _samples(dataset, 0):
        if not any(_is_empty(value) for name, value in sample.items() if name in (columns or sample)):
            return sample
        first = sample if first is None else first
    if first is None:
        raise ValueError(f"{dataset.url}: expected at least one sample, found none")
    return first


def _write(copy: _Copy, writer: DocumentWriter | StreamWriter, number: int, sample: Mapping[str, Any]) -> None:
    try:
        values = {name: _filled(sample[name]) for name in copy.columns}
        with _going_on():
            if isinstance(writer, DocumentWriter):
                writer.write(values, {name: sample[name] for name in copy.kept})
                return
            writer.write(values)
            if copy.whole:
                writer.end_document()
    except (TypeError, ValueError, KeyError) as error:
        text = f"expected {error} as in the first sample, found none" if isinstance(error, KeyError) else str(error)
        place = (
            f"sample {number} ({copy.dataset.place(number)})" if copy.whole else f"record {writer.records} or behind"
        )
        raise DataError(f"{copy.dataset.url}: {place}: {text}") from None


@contextmanager
def _going_on() -> Generator[None]:
    """For what a writer does: its hints are for those that have one."""
    try:
        yield
    except StoreError as error:
        what = str(error).partition("\nhint:")[0]
        raise StoreError(f"{what}\nhint: once there is room, the same call goes on behind what was finished") from None


def _filled(value: Any) -> Any:
    """An array; an empty list is one of whole numbers."""
    return np.zeros(0, np.int64) if _is_empty(value) else np.asarray(value)


def _is_empty(value: Any) -> bool:
    return isinstance(value, list) and not value

"""`headrace verify` for formats of samples: whether each of them can be read."""

import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import headrace
from headrace._progress import index_progress
from headrace._ranks import default_workers
from headrace.cli._common import open_samples, plural, print_json, printable
from headrace.formats.mds import NoDigest
from headrace.samples.source import Chunk, Source

__all__ = ["SEVERAL", "run", "tell_unopened"]

SEVERAL = "several datasets"
"""In place of a format: folders that say themselves what they hold."""

_AT_ONCE = 256
"""Samples that are read together; if one is damaged, each by itself."""


def run(
    urls: list[str], format: str, storage_option: list[str] | None, *, stored_dtype: str | None, as_json: bool
) -> int:
    """Reads all samples; 1 if any is damaged."""
    report = _report(format)
    given = None if format == SEVERAL else format
    try:
        dataset = _opened(
            partial(open_samples, urls, storage_option, given, stored_dtype=stored_dtype), report["faults"]
        )
    except headrace.DataError as error:
        report["faults"].append(_whole(error))
    else:
        _verify(dataset, report)
    return _tell(report, as_json=as_json)


def tell_unopened(error: headrace.DataError, *, as_json: bool) -> int:
    """Of a dataset whose format cannot be found out: one fault, and 1."""
    report = _report(None)
    report["faults"].append(_whole(error))
    return _tell(report, as_json=as_json)


def _report(format: str | None) -> dict[str, Any]:
    return {"format": format, "chunks": 0, "samples": 0, "faults": []}


def _tell(report: dict[str, Any], *, as_json: bool) -> int:
    faults = report["faults"]
    if as_json:
        print_json(report)
        return 1 if faults else 0
    for fault in faults:
        print(_line(fault))
    sys.stdout.flush()
    verdict = plural(len(faults), "fault") if faults else "no fault"
    print(f"{plural(report['chunks'], 'chunk')}, {plural(report['samples'], 'sample')}: {verdict}")
    return 1 if faults else 0


def _opened(opened: Callable[..., headrace.SampleDataset], faults: list[dict[str, Any]]) -> headrace.SampleDataset:
    """The dataset; its files are compared with digests, if its index has some."""
    try:
        return opened(verify=True)
    except NoDigest:
        return opened()
    except headrace.DataError as error:
        dataset = opened()
        # What no digest was compared for is read all the same, and said not to be verified.
        faults.append(_whole(error))
        return dataset


def _verify(dataset: headrace.SampleDataset, report: dict[str, Any]) -> None:
    chunks = [(each.source, chunk) for each in dataset.pipeline.origins for chunk in range(len(each.source.sizes))]
    report["chunks"] = len(chunks)
    with index_progress() as progress, ThreadPoolExecutor(default_workers(), "headrace-verify") as pool:
        for done, (samples, faults) in enumerate(pool.map(_chunk, *zip(*chunks, strict=True)) if chunks else [], 1):
            report["samples"] += samples
            report["faults"] += faults
            progress("verifying chunks", done, len(chunks))


def _chunk(source: Source, number: int) -> tuple[int, list[dict[str, Any]]]:
    """How many samples of a chunk can be read, and what is wrong with the others."""
    try:
        chunk = source.load(number)
    except headrace.HeadraceError as error:
        return 0, [_fault(source, number, None, error)]
    faults: list[dict[str, Any]] = []
    for start in range(0, len(chunk), _AT_ONCE):
        rows = range(start, min(start + _AT_ONCE, len(chunk)))
        try:
            _read(chunk, rows)
        except Exception:  # Which of them it was, and what, is found out now.
            faults += [_fault(source, number, row, error) for row in rows if (error := _error_of(chunk, row))]
    return len(chunk) - len(faults), faults


def _error_of(chunk: Chunk, row: int) -> Exception | None:
    try:
        _read(chunk, [row])
    except ImportError:
        raise
    except Exception as error:  # Images are decoded by Pillow, which raises all sorts.
        return error
    return None


def _read(chunk: Chunk, rows: Iterable[int]) -> None:
    for sample in chunk.take(list(rows)):
        parts: Iterable[Any] = cast("dict[str, Any]", sample).values() if isinstance(sample, dict) else [sample]
        for value in parts:
            # An image of Pillow is not decoded before it is used.
            if callable(load := getattr(value, "load", None)):
                load()


def _whole(error: Exception) -> dict[str, Any]:
    return {"file": None, "chunk": None, "row": None, "message": str(error)}


def _fault(source: Source, chunk: int, row: int | None, error: Exception) -> dict[str, Any]:
    text = str(error) if isinstance(error, headrace.HeadraceError) else f"{type(error).__name__}: {error}"
    return {"file": source.file(chunk), "chunk": chunk, "row": row, "message": text}


def _line(fault: dict[str, Any]) -> str:
    """A fault on one line. Most messages begin with the place."""
    message = "; ".join(fault["message"].splitlines())
    if fault["file"] is None or fault["file"] in message:
        return printable(message)
    row = "" if fault["row"] is None else f", row {fault['row']}"
    return printable(f"{fault['file']}, chunk {fault['chunk']}{row}: {message}")

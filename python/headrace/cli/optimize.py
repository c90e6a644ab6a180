"""`headrace optimize`: what a function of yours makes of files, as a dataset."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, Literal, cast

from headrace._frames import told, within
from headrace._units import show_bytes
from headrace.cli._common import console, facts, print_json, storage_options
from headrace.prepare import ParquetReader, optimize, walk

__all__ = ["run"]


def run(
    function: str,
    inputs: list[str],
    output: str,
    *,
    lists: list[str] | None,
    to: str,
    chunk_bytes: str | None,
    chunk_size: int | None,
    compression: str | None,
    mode: str | None,
    workers: int | None,
    ordered: bool,
    tokens: bool,
    rows: int | None,
    columns: list[str] | None,
    batch_size: int | None,
    first: int | None,
    skip: bool,
    resume: bool,
    engine: str,
    storage_option: list[str] | None,
    output_option: list[str] | None,
    as_json: bool,
) -> int:
    """Makes the dataset; 1 if inputs were left out, or the function raised."""
    if columns and rows is None:
        raise ValueError("--column is for --rows, which reads Parquet files")
    options = storage_options(storage_option)
    fn = _function(function)
    values = _inputs(inputs, lists or [], options)
    reader = None if rows is None else ParquetReader(rows=rows, columns=columns, storage_options=options)
    try:
        made = optimize(
            fn,
            values,
            output,
            format=cast("Literal['litdata', 'mds', 'parquet', 'arrow']", to),
            chunk_bytes=chunk_bytes,
            chunk_size=chunk_size,
            compression=compression,
            mode=cast("Any", mode),
            num_workers=workers,
            keep_data_ordered=ordered,
            tokens=tokens,
            reader=reader,
            batch_size=batch_size,
            fast_dev_run=False if first is None else first,
            on_error="skip" if skip else "raise",
            resume=resume,
            engine=cast("Literal['local', 'ray']", engine),
            output_options=storage_options(output_option, "--output-option") or None,
            verbose=False,
        )
    except Exception as error:
        if not any(note.startswith("in input ") for note in getattr(error, "__notes__", [])):
            if type(error) in (RuntimeError, TypeError) and within(error) is None:
                # A process that died, or what cannot be sent to one or stored.
                raise ValueError(str(error)) from error
            raise
        # It is the function's: where it was raised says more than a message. Of one from another process a note has it.
        sys.stderr.write(told(error, within(error)))
        return 1
    report: dict[str, Any] = {
        "function": function,
        "inputs": len(values),
        "to": to,
        "folder": str(made.folder),
        "samples": made.samples,
        "chunks": made.chunks,
        "bytes": made.bytes,
        "input_bytes": made.read or None,
        "skipped": len(made.skipped),
        "seconds": round(made.seconds, 3),
    }
    if as_json:
        print_json(report)
    else:
        pairs = [
            ("inputs", f"{len(values):,}" + (f", {show_bytes(made.read)}" if made.read else "")),
            ("to", f"{made.folder} ({to})"),
            ("samples", f"{made.samples:,}"),
            ("chunks", f"{made.chunks:,}"),
            ("bytes", show_bytes(made.bytes)),
            ("skipped", f"{len(made.skipped):,}" + (", listed in _headrace/skipped.jsonl" if made.skipped else "")),
            ("seconds", f"{made.seconds:.1f}"),
        ]
        console().print(facts(pairs))
    return 1 if made.skipped else 0


def _inputs(urls: Sequence[str], lists: Sequence[str], options: dict[str, str]) -> list[str]:
    """Files by their names, and lines of lists as they are."""
    found = [path for url in urls for path in walk(url, storage_options=options)]
    for name in lists:
        try:
            text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"--list {name}: expected a file of text, a line for each input: {error}") from None
        found += [line for line in text.splitlines() if line]
    if not found:
        raise ValueError("expected inputs: files, folders or globs, or --list FILE with a line for each, got none")
    return found


def _function(name: str) -> Callable[[Any], Any]:
    """A function by its name, found in other processes as well.

    Raises:
        ValueError: if there is none, or it cannot be imported.
    """
    place, colon, path = name.rpartition(":")
    if not colon or not place or not path:
        raise ValueError(f"expected a function as module:function or file.py:function, got {name!r}")
    module, folder = place, Path.cwd()
    if place.endswith(".py"):
        file = Path(place).resolve()
        module, folder = file.stem, file.parent
        if not file.is_file() or not module.isidentifier():
            raise ValueError(f"{place}: expected a file of Python that can be imported, found none of that name")
    # Worker processes look for it where this one does.
    sys.path.insert(0, str(folder))
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"{place}: the module cannot be imported: {error}") from error
    if place.endswith(".py") and os.path.realpath(found.__file__ or "") != os.path.realpath(place):
        raise ValueError(f"{place}: expected a module of a name of its own, found {found.__file__}\nhint: rename it")
    try:
        fn: Any = reduce(getattr, path.split("."), found)
    except AttributeError:
        raise ValueError(f"{place}: expected a function {path!r}, found none") from None
    if not callable(fn):
        raise ValueError(f"{place}: expected {path!r} to be a function, found a {type(fn).__name__}")
    return fn

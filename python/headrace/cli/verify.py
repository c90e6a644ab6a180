"""`headrace verify`: whether all of a dataset can be read."""

import sys
from typing import Any

import headrace
from headrace import _core
from headrace._files import Store
from headrace._progress import index_progress
from headrace.cli import verify_samples
from headrace.cli._common import plural, print_json, storage_options
from headrace.formats import detect

__all__ = ["run"]


def run(
    urls: list[str],
    *,
    column: str | None,
    format: str | None,
    stored_dtype: str | None,
    storage_option: list[str] | None,
    as_json: bool,
) -> int:
    """Reads everything; 1 if anything is wrong."""
    options = storage_options(storage_option)
    try:
        kind = format or _format_of(urls, options, tokens=stored_dtype is not None)
    except headrace.DataError as error:
        return verify_samples.tell_unopened(error, as_json=as_json)
    if kind != "parquet":
        if column is not None:
            raise ValueError(f"--column is a token column of Parquet files, {urls[0]} is {kind}")
        return verify_samples.run(urls, kind, storage_option, stored_dtype=stored_dtype, as_json=as_json)
    if stored_dtype is not None:
        raise ValueError(f"--stored-dtype is the type of token files, {urls[0]} is parquet")
    with index_progress() as progress:
        (files, row_groups, rows, tokens), found = _core.verify(
            urls, storage_options=options, column=column, progress=progress
        )
    names = ("file", "row_group", "column", "row", "message")
    faults: list[dict[str, Any]] = [dict(zip(names, fault, strict=True)) for fault in found]
    if as_json:
        counts = {"files": files, "row_groups": row_groups, "documents": rows, "tokens": tokens}
        print_json(counts | {"faults": faults})
        return 1 if faults else 0
    for fault in faults:
        print(_line(fault))
    sys.stdout.flush()
    verdict = plural(len(faults), "fault") if faults else "no fault"
    counts = ((files, "file"), (row_groups, "row group"), (rows, "document"), (tokens, "token"))
    print(", ".join(plural(count, name) for count, name in counts) + f": {verdict}")
    return 1 if faults else 0


def _format_of(urls: list[str], options: dict[str, str], *, tokens: bool) -> str:
    store = Store(urls, options)
    if len(urls) > 1 and detect.has_own_index(store.files):
        return verify_samples.SEVERAL
    return detect.detect(store, tokens=tokens)


def _line(fault: dict[str, Any]) -> str:
    """A fault on one line, whatever its message and its file are called."""
    place = str(fault["file"])
    if fault["column"] is not None:
        place += f", column {fault['column']!r}"
    for name in ("row_group", "row"):
        if fault[name] is not None:
            place += f", {name.replace('_', ' ')} {fault[name]}"
    return "; ".join(f"{place}: {fault['message']}".splitlines())

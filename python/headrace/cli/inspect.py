"""`headrace inspect`: what a dataset holds."""

from typing import Any

from headrace import TableDataset, _core
from headrace._progress import index_progress
from headrace._units import show_bytes
from headrace.cli import inspect_samples
from headrace.cli._common import chosen_column, console, core_of, facts, format_of, open_samples, print_json

__all__ = ["run"]

_BAR = 40
"""Characters of the longest bar."""


def run(
    urls: list[str],
    *,
    column: str | None,
    lengths: bool,
    format: str | None,
    stored_dtype: str | None,
    storage_option: list[str] | None,
    as_json: bool,
) -> int:
    """Prints what there is."""
    dataset = open_samples(urls, storage_option, format, stored_dtype=stored_dtype)
    if not isinstance(dataset, TableDataset):
        if column is not None:
            kind = format_of(dataset)
            raise ValueError(f"--column is a token column of Parquet files, {dataset.url} is of the format {kind}")
        return inspect_samples.run(dataset, as_json=as_json)
    core = core_of(dataset)
    columns = {name: _column(core, name) for name in core.columns if core.is_whole(name)}
    name = chosen_column(core, column) if core.columns or column is not None else None
    if name is not None and lengths:
        with index_progress() as progress:
            found = _lengths(_core.lengths(core, name, progress=progress))
    else:
        found = None
        if name is not None:
            # An error, if a file lacks it.
            core.column_info(name)
    report: dict[str, Any] = {
        "url": core.url,
        "files": core.file_count,
        "row_groups": core.row_group_count,
        "documents": core.rows,
        "tokens": found["tokens"] if found else columns[name].get("tokens") if name else None,
        "bytes": core.bytes,
        "column": name,
        "columns": columns,
        "schema": dict(dataset.schema),
        "lengths": found,
        "notes": core.notes,
    }
    if as_json:
        print_json(report)
    else:
        _print(report)
    return 0


def _column(core: _core.Index, name: str) -> dict[str, Any]:
    """What the footers say of a column."""
    info = core.column_info(name)
    info["documents_with_tokens"] = info.pop("documents")
    return info


def _lengths(core: dict[str, Any]) -> dict[str, Any]:
    names = ("from", "to", "documents", "tokens")
    histogram = [dict(zip(names, bucket, strict=True)) for bucket in core["buckets"]]
    documents: int = core["documents"]
    return {
        "documents": documents,
        "empty": histogram[0]["documents"] if histogram else 0,
        "tokens": core["tokens"],
        "min": core["min"],
        "max": core["max"],
        "mean": core["tokens"] / documents if documents else 0.0,
        "quantiles": {f"p{share * 100:g}": length for share, length in core["quantiles"]},
        "histogram": histogram,
    }


def _print(report: dict[str, Any]) -> None:
    out = console()
    known = "only reading tells" if report["tokens"] is None else f"{report['tokens']:,}"
    pairs = [
        ("data", report["url"]),
        ("files", f"{report['files']:,}"),
        ("row groups", f"{report['row_groups']:,}"),
        ("documents", f"{report['documents']:,}"),
        ("bytes", show_bytes(report["bytes"])),
        ("columns", ", ".join(f"{name}: {kind}" for name, kind in report["schema"].items())),
    ]
    if report["column"] is not None:
        pairs.append(("tokens", f"{known} in column {report['column']!r}"))
    else:
        pairs.append(("tokens", "no column is a list of integers"))
    out.print(facts(pairs))
    for name, info in report["columns"].items():
        out.print(f"\ntoken column {name!r}")
        details = [
            ("  type", info["type"]),
            ("  stored", show_bytes(info["bytes"])),
            ("  codec", ", ".join(info["codecs"])),
            ("  encodings", ", ".join(info["encodings"])),
        ]
        if name == report["column"] and report["tokens"]:
            details.insert(2, ("  bytes per token", f"{info['bytes'] / report['tokens']:.2f}"))
        out.print(facts(details))
    if report["lengths"]:
        _print_lengths(report["lengths"])
    for note in report["notes"]:
        out.print(f"\nnote: {note}")


def _print_lengths(lengths: dict[str, Any]) -> None:
    from rich.table import Table

    out = console()
    quantiles = ", ".join(f"{name} {length:,}" for name, length in lengths["quantiles"].items())
    out.print(f"\ndocument lengths: mean {lengths['mean']:,.1f}, min {lengths['min']:,}, max {lengths['max']:,}")
    out.print(f"{quantiles}, {lengths['empty']:,} empty")
    most = max((bucket["documents"] for bucket in lengths["histogram"]), default=0)
    table = Table.grid(padding=(0, 3))
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column()
    table.add_row("tokens", "documents", "share of tokens", "")
    for bucket in lengths["histogram"]:
        low, high, documents = bucket["from"], bucket["to"], bucket["documents"]
        share = bucket["tokens"] / lengths["tokens"] if lengths["tokens"] else 0.0
        bar = "#" * -(-documents * _BAR // most)
        table.add_row(f"{low:,}" if low == high else f"{low:,} to {high:,}", f"{documents:,}", f"{share:.1%}", bar)
    out.print(table)

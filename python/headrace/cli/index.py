"""`headrace index`: builds a dataset's index, and puts it next to the data."""

from typing import Any

from headrace._units import show_bytes
from headrace.cli._common import console, facts, open_dataset, print_json
from headrace.indexing import index_tables

__all__ = ["run"]


def run(urls: list[str], *, in_place: bool, column: str | None, storage_option: list[str] | None, as_json: bool) -> int:
    """Reads all footers anew and saves what they say."""
    found = index_tables(open_dataset(urls, storage_option, index="rebuild"), in_place=in_place, column=column)
    report: dict[str, Any] = {
        "url": found.url,
        "files": found.files,
        "row_groups": found.chunks,
        "documents": found.samples,
        "bytes": found.bytes,
        "written": found.written,
        "notes": found.notes,
    }
    if as_json:
        print_json(report)
        return 0
    out = console()
    pairs = [
        ("data", report["url"]),
        ("files", f"{report['files']:,}"),
        ("row groups", f"{report['row_groups']:,}"),
        ("documents", f"{report['documents']:,}"),
        ("bytes", show_bytes(report["bytes"])),
        ("written", report["written"] or "to the cache folder; --in-place writes it next to the data as well"),
    ]
    out.print(facts(pairs))
    for note in report["notes"]:
        out.print(f"note: {note}")
    return 0

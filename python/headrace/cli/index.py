"""`headrace index`: builds a dataset's index, and puts it next to the data."""

from typing import Any

from headrace._progress import index_progress
from headrace._units import show_bytes
from headrace.cli._common import console, core_of, facts, open_dataset, print_json

__all__ = ["run"]


def run(urls: list[str], *, in_place: bool, column: str | None, storage_option: list[str] | None, as_json: bool) -> int:
    """Reads all footers anew and saves what they say."""
    core = core_of(open_dataset(urls, storage_option, index="rebuild"))
    if column is not None:
        with index_progress() as progress:
            core = core.counted(column, documents=True, progress=progress)
    report: dict[str, Any] = {
        "url": core.url,
        "files": core.file_count,
        "row_groups": core.row_group_count,
        "documents": core.rows,
        "bytes": core.bytes,
        "written": core.save_in_place() if in_place else None,
        "notes": core.notes,
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

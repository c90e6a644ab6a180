"""The tasks of the benchmark of tokens, by name: each in a process of its own."""

from __future__ import annotations

import json
import shutil
from typing import Any

from headrace.bench import children, loaders
from headrace.bench.data import Data

__all__ = ["converted", "peak_memory", "run"]

WORKER = "headrace.bench.worker"


def run(data: Data, do: str, loader: str | None = None, *, passes: int = 1) -> Any:
    """Run a task of `headrace.bench.worker` and return its result."""
    return _run(data, do, loader, passes, sample=False)[0]


def peak_memory(data: Data, loader: str, *, passes: int) -> dict[str, int]:
    """Bytes that a loader and its processes hold at most, and those that they held before anything was opened."""
    result, peak = _run(data, "memory", loader, passes, sample=True)
    # A task that is over before the next sample was seen by itself alone, and the kernel counts pages by the batch.
    return {"peak": max(peak, result["bytes_before"]), "before": result["bytes_before"]}


def converted(data: Data, loader: str) -> dict[str, Any]:
    """Convert the data for a loader unless that is done: seconds, CPU seconds and bytes; None if there is no need."""
    folder = data.folder / loader
    note = folder / "converted.json"
    versions = loaders.versions(loader)
    if note.exists():
        found = json.loads(note.read_text())
        if found["versions"] == versions:
            return found
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    result = run(data, "convert", loader)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    result |= {"bytes": size if result["seconds"] is not None else None, "versions": versions}
    # Written last: a folder without it is made anew.
    note.write_text(json.dumps(result))
    return result


def _run(data: Data, do: str, loader: str | None, passes: int, *, sample: bool) -> tuple[Any, int]:
    task = {
        "do": do,
        "loader": loader,
        "parquet": str(data.parquet),
        "copy": str(data.folder / (loader or "limits")),
        "vocabulary": data.variant.vocabulary,
        "passes": passes,
        "state": str(data.folder / f"{loader}.state"),
    }
    return children.run(WORKER, task, sample=sample)

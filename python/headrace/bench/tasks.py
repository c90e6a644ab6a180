"""Running the tasks of the benchmark: each in a process of its own, one at a time."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from headrace.bench import loaders
from headrace.bench.data import Data
from headrace.bench.processes import memory_bytes

__all__ = ["TaskError", "converted", "peak_memory", "run"]

LONGEST = 3600.0  # seconds for a task: only a hang takes that long
GRACE = 5.0  # seconds for a process to end after its result
SAMPLE = 0.02  # seconds between looks at a process, and samples of its memory

# Nothing may go to the network or run a pool of threads of its own for arithmetic that no loader does.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "LITDATA_DISABLE_VERSION_CHECK": "1",
    "PYTHONWARNINGS": "ignore",
}


class TaskError(Exception):
    """A task ended without a result; the message is the last line that it wrote."""


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
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
        file = Path(scratch) / "task.json"
        task = {
            "do": do,
            "loader": loader,
            "parquet": str(data.parquet),
            "copy": str(data.folder / (loader or "limits")),
            "vocabulary": data.variant.vocabulary,
            "passes": passes,
            "state": str(data.folder / f"{loader}.state"),
        }
        file.write_text(json.dumps(task))
        log = Path(scratch) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace.bench.worker", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | _ENVIRONMENT,
                start_new_session=True,
            )
        result = file.with_suffix(".result")
        try:
            peak = _watch(process, result, sample)
        finally:
            _end(process)
        if not result.exists():
            lines = log.read_text(errors="replace").strip().splitlines() or [f"exit status {process.returncode}"]
            raise TaskError(lines[-1])
        return json.loads(result.read_text()), peak


def _watch(process: subprocess.Popen[bytes], result: Path, sample: bool) -> int:
    """Wait until a task has ended; with `sample`, the most memory that it was seen to hold, in bytes.

    A process that has written its result may hang while it ends, as Arrow's threads do when a stream was left in the
    middle. That is not waited for.
    """
    peak = 0
    until = time.monotonic() + LONGEST
    while process.poll() is None:
        if time.monotonic() > until:
            raise TaskError(f"no result after {LONGEST:,.0f} s")
        if result.exists():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            break
        if sample:
            peak = max(peak, memory_bytes(process.pid))
        time.sleep(SAMPLE)
    return peak


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the session that a task had, with processes that it may have left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()

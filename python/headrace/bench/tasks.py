"""Running the tasks of the benchmark: each in a process of its own, one at a time."""

from __future__ import annotations

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
SAMPLE = 0.02  # seconds between samples of the memory

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


def run(data: Data, do: str, loader: str | None = None, *, seconds: float = 0.0) -> Any:
    """Run a task of `headrace.bench.worker` and return its result."""
    return _run(data, do, loader, seconds, sample=False)[0]


def peak_memory(data: Data, loader: str, *, seconds: float) -> dict[str, int]:
    """Bytes that a loader and its processes hold at most, and those that they held before anything was opened."""
    peak, start = _run(data, "memory", loader, seconds, sample=True)[1:]
    return {"peak": peak, "start": start}


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


def _run(data: Data, do: str, loader: str | None, seconds: float, *, sample: bool) -> tuple[Any, int, int]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
        file = Path(scratch) / "task.json"
        task = {
            "do": do,
            "loader": loader,
            "parquet": str(data.parquet),
            "copy": str(data.folder / (loader or "limits")),
            "vocabulary": data.variant.vocabulary,
            "seconds": seconds,
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
        try:
            peak, start = _watch(process, file.with_suffix(".started")) if sample else (0, 0)
            process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            raise TaskError(f"no result after {LONGEST:,.0f} s") from None
        finally:
            _end(process)
        result = file.with_suffix(".result")
        if not result.exists():
            lines = log.read_text(errors="replace").strip().splitlines() or [f"exit status {process.returncode}"]
            raise TaskError(lines[-1])
        return json.loads(result.read_text()), peak, start


def _watch(process: subprocess.Popen[bytes], started: Path) -> tuple[int, int]:
    """Sample the memory until the process ends: the most, and what there was when it had imported everything."""
    peak, start = 0, 0
    until = time.monotonic() + LONGEST
    while process.poll() is None and time.monotonic() < until:
        memory = memory_bytes(process.pid)
        if started.exists():
            peak = max(peak, memory)
        else:
            start = memory
        time.sleep(SAMPLE)
    return peak, start


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the session that a task had, with processes that it may have left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()

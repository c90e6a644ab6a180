"""A process for each task of a benchmark, one at a time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.bench.processes import memory_bytes

__all__ = ["TaskError", "run"]

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


def run(module: str, task: Mapping[str, Any], *, sample: bool = False) -> tuple[Any, int]:
    """Run ``python -m MODULE FILE``, where FILE holds the task as JSON.

    Returns:
        The result, which the process has written to ``FILE.result``; and with `sample` the most memory that it and
        its descendants were seen to hold, in bytes.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
        file = Path(scratch) / "task.json"
        file.write_text(json.dumps(task))
        log = Path(scratch) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", module, str(file)],
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

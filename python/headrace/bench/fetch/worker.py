"""One task of the benchmark of fetching, in a process of its own: `python -m headrace.bench.fetch.worker FILE`.

FILE holds the task as JSON and gets its result beside it, in ``FILE.result``. Credentials are those of the environment.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from headrace.bench.fetch import data, readers
from headrace.bench.fetch.shape import Shape
from headrace.bench.processes import cpu_seconds

__all__ = ["main"]


def main(file: Path) -> None:
    """Do the task that is described in a file."""
    task: dict[str, Any] = json.loads(file.read_text())
    if task["do"] == "write":
        data.write(task["url"], Shape(chunk=task["chunk"], total=task["total"]))
        result: dict[str, Any] = {}
    else:
        result = rate(task["reader"], task["url"], task["passes"])
    file.with_suffix(".result").write_text(json.dumps(result))


def rate(reader: str, url: str, passes: int) -> dict[str, Any]:
    """Bytes, wall and CPU seconds of some passes behind the first one, which makes connections and finds memory."""
    read = readers.READERS[reader](url)
    read()
    cpu, begin = cpu_seconds(), time.perf_counter()
    count = sum(read() for _ in range(passes))
    elapsed = time.perf_counter() - begin
    return {"bytes": count, "seconds": elapsed, "cpu_seconds": cpu_seconds() - cpu}


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""One task of the benchmark of preparing, in a process of its own: `python -m headrace.bench.preparing.worker FILE`.

FILE holds the task as JSON and gets its result beside it, in ``FILE.result``. Imports come first and are no part of
any time.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from headrace.bench.preparing import data, makers
from headrace.bench.preparing.job import MakerModule, Place
from headrace.bench.processes import cpu_seconds

__all__ = ["main", "make"]


def main(file: Path) -> None:
    """Do the task that is described in a file."""
    task: dict[str, Any] = json.loads(file.read_text())
    result: dict[str, Any] = {}
    if task["do"] == "write":
        data.load(task["kind"]).write(Path(task["data"]), task["size"])
    else:
        place = Place(data=Path(task["data"]), output=Path(task["output"]), workers=task["workers"])
        result = make(makers.load(task["maker"]), place, looks=task["do"] == "check")
    file.with_suffix(".result").write_text(json.dumps(result))


def make(module: MakerModule, place: Place, *, looks: bool) -> dict[str, Any]:
    """Make the dataset: how much it is, wall and CPU seconds; and a checksum of what was made, if one `looks`."""
    maker = module.Maker(place)
    cpu, begin = cpu_seconds(), time.perf_counter()
    amount = maker.run()
    result: dict[str, Any] = {
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": cpu_seconds() - cpu,
        "amount": amount,
    }
    if looks:
        checksum = 0
        for part in maker.content():
            checksum = zlib.crc32(np.asarray(part).astype("<i8").tobytes(), checksum)
        result["checksum"] = checksum
    return result


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Writes `mixture-v2.json`, which pins how version 2 of mixtures draws, from the reference model.

    python tests/golden/make_mixture.py

Only a new version may change the file, and then gets a file of its own.
"""

import json
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mixture_reference import DRAWS, MixtureReference, points

PATH = Path(__file__).with_name(f"mixture-v{DRAWS}.json")
ROWS = 60
RUNS: list[dict[str, Any]] = [
    {"seed": 0, "lanes": 1, "source_lanes": [1, 1], "weights": {0: [0.7, 0.3]}},
    {"seed": 7, "lanes": 12, "source_lanes": [12, 6, 1, 4], "weights": {0: [5.0, 3.0, 0.0, 1e-3]}},
    {"seed": 2**64 - 1, "lanes": 10, "source_lanes": [5, 2, 10], "weights": {0: [1.0, 1.0, 1.0], 3: [1.0, 0.0, 1 / 3]}},
    {"seed": 1, "lanes": 4, "source_lanes": [4, 2, 1], "weights": {0: [4.0, 2.0, 1.0]}, "limits": [None, 7, 3]},
    {"seed": 1, "lanes": 4, "source_lanes": [4, 4], "weights": {0: [2.0, 1.0]}, "draws": [t // 2 for t in range(15)]},
]


def golden() -> list[dict[str, Any]]:
    """The points of each source, and each row as [source, row of the source]."""
    cases = []
    for run in RUNS:
        rows = [(drawn.source, drawn.row) for drawn in MixtureReference(**run).up_to(ROWS)]
        cases.append({**run, "points": [points(weights) for weights in run["weights"].values()], "rows": rows})
    return cases


def text(cases: list[dict[str, Any]]) -> str:
    """JSON with a line for each mixture."""
    return "[\n" + ",\n".join(f"  {json.dumps(case)}" for case in cases) + "\n]\n"


if __name__ == "__main__":
    PATH.write_text(text(golden()), encoding="utf-8")
    print(f"wrote {PATH}")

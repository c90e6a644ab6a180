"""Writes `permutation-v1.json`, which pins the permutations of order version 1, from the reference model.

    python tests/golden/make_permutation.py

Only a new version of the order may change the file, and then gets a file of its own.
"""

import json
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from reference import ORDER_VERSION, permuted

PATH = Path(__file__).with_name(f"permutation-v{ORDER_VERSION}.json")
FIRST = 8
SIZES = [*range(1, 10), 16, 17, 31, 32, 33, 100, 1000, 2**20, 2**32 - 1, 2**32 + 1, 2**60 + 1, 2**61]
KEYS = [(0, 0), (7, 2), (2**64 - 1, 2**64 - 1)]


def golden() -> list[dict[str, Any]]:
    """The first and the last numbers of each permutation."""
    cases = []
    for seed, epoch in KEYS:
        for size in SIZES:
            count = min(FIRST, size)
            places = [*range(count), *range(size - count, size)]
            numbers = [permuted(place, size, seed=seed, epoch=epoch) for place in places]
            cases.append(
                {"size": size, "seed": seed, "epoch": epoch, "first": numbers[:count], "last": numbers[count:]}
            )
    return cases


def text(cases: list[dict[str, Any]]) -> str:
    """JSON with a line for each permutation."""
    return "[\n" + ",\n".join(f"  {json.dumps(case)}" for case in cases) + "\n]\n"


if __name__ == "__main__":
    PATH.write_text(text(golden()), encoding="utf-8")
    print(f"wrote {PATH}")

"""Writes `order-v1.json`, which pins order version 1, from the reference model.

    python tests/golden/make_order.py

Only a new version of the order may change the file, and then gets a file of its own.
"""

import json
import struct
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from datasets import Files, arithmetic_files
from reference import ORDER_VERSION, Reference

PATH = Path(__file__).with_name(f"order-v{ORDER_VERSION}.json")
FIRST_ROWS = 8
PACKING: dict[str, Any] = {"seq_len": 16, "overlap": 1, "bos_id": None, "eos_id": 60_000}
EPOCHS = 2
ORDERS: dict[str, dict[str, Any]] = {
    f"{'lanes' if shuffle else 'sequential'}, seed {seed}": {
        "seed": seed,
        "shuffle": shuffle,
        "lanes": 6 if shuffle else 1,
        "window": 4,
        "global_batch_size": 6,
    }
    for shuffle in (True, False)
    for seed in (0, 1, 2**64 - 1)
}


def digest(rows: list[list[int]]) -> str:
    """SHA-256 of the rows' tokens as little-endian 32-bit numbers."""
    return sha256(b"".join(struct.pack(f"<{len(row)}i", *row) for row in rows)).hexdigest()


def places(files: Files) -> list[tuple[str, int]]:
    """The file and the number in it of each chunk."""
    return [(name, number) for name in sorted(files) for number in range(len(files[name]))]


def golden() -> dict[str, Any]:
    """What the file holds."""
    files = arithmetic_files()
    chunks = [group for name in sorted(files) for group in files[name]]
    tokens = [token for chunk in chunks for document in chunk for token in document or ()]
    runs: dict[str, Any] = {}
    for name, order in ORDERS.items():
        reference = Reference(chunks, **PACKING, **order, epochs=EPOCHS)
        steps = list(reference.batches())
        rows = [reference.row(row) for step in steps for row in step.rows]
        sources = [reference.row_pieces(row) for row in range(FIRST_ROWS)]
        runs[name] = {
            "order": order,
            "rows": len(rows),
            "steps_of_epochs": [reference.len_of_epoch(epoch) for epoch in range(EPOCHS)],
            "remainder_tokens": reference.remainder_tokens(),
            "sha256": digest(rows),
            "first_rows": rows[:FIRST_ROWS],
            "first_sources": [
                [[*places(files)[span.chunk], span.row, span.first_token, span.token_count] for span in row]
                for row in sources
            ],
        }
    return {
        "order_version": ORDER_VERSION,
        "data": {"files": len(files), "row_groups": len(chunks), "tokens": len(tokens), "sha256": digest([tokens])},
        "packing": PACKING,
        "epochs": EPOCHS,
        "runs": runs,
    }


def text(content: dict[str, Any]) -> str:
    """JSON with a line for each list of plain values."""
    runs = {name: {key: json.dumps(value) for key, value in run.items()} for name, run in content["runs"].items()}
    head = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items() if key != "runs")
    body = ",\n".join(
        f"    {json.dumps(name)}: {{\n"
        + ",\n".join(f'      "{key}": {value}' for key, value in run.items())
        + "\n    }"
        for name, run in runs.items()
    )
    return f'{{\n{head},\n  "runs": {{\n{body}\n  }}\n}}\n'


if __name__ == "__main__":
    PATH.write_text(text(golden()), encoding="utf-8")
    print(f"wrote {PATH}")

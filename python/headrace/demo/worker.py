"""One rank of the demonstration's training run: a process of its own, to be killed at any moment.

    python -m headrace.demo.worker --data demo-data/tokens --out run --rank 0 --world-size 2 [--state FILE]

For each step it writes, in this order:

    run/state-0000001.bin   the state after the step (rank 0 only; written beside, then renamed)
    run/rank-0.jsonl        a line {"step": 1, "rows": [0, 2, ...], "hashes": ["...", ...]}

so that a step with a line from every rank is a step that can be resumed from, whatever happened after it. What
is hashed is a row's bytes (BLAKE2b, 16 bytes), so equal hashes mean equal tokens.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import headrace as hr

__all__ = ["GLOBAL_BATCH", "SEQ_LEN", "Step", "main", "open_loader", "read_steps", "state_path", "steps_file"]

SEQ_LEN = 2048  # tokens
GLOBAL_BATCH = 24  # rows: two ranks and three ranks divide it
SEED = 0


@dataclass(frozen=True, slots=True)
class Step:
    """What one rank has seen of one global batch: the numbers of its rows and their hashes."""

    rows: list[int]
    hashes: list[str]


def open_loader(
    data: str | Path, *, end_id: int, rank: int = 0, world_size: int = 1, epochs: int | None = 1
) -> hr.DataLoader:
    """The run that the demonstration loads in one process, breaks on two ranks and resumes on three."""
    packed = hr.open(str(data)).pack(SEQ_LEN, column="tokens", eos_id=end_id)
    return hr.DataLoader(
        packed,
        global_batch_size=GLOBAL_BATCH,
        seed=SEED,
        rank=rank,
        world_size=world_size,
        memory="1GiB",
        epochs=epochs,
    )


def state_path(out: Path, step: int) -> Path:
    """Where rank 0 writes the state after a step."""
    return out / f"state-{step:07}.bin"


def steps_file(out: Path, rank: int) -> Path:
    """Where a rank writes the steps that it has completed."""
    return out / f"rank-{rank}.jsonl"


def read_steps(out: Path, rank: int) -> dict[int, Step]:
    """The steps that a rank has completed; a line that a kill cut off is none."""
    path = steps_file(out, rank)
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    records = [json.loads(line) for line in lines]
    return {record["step"]: Step(rows=record["rows"], hashes=record["hashes"]) for record in records}


def main(argv: Sequence[str] | None = None) -> None:
    """Load what is left of the epoch and write down what came."""
    parser = argparse.ArgumentParser(prog="python -m headrace.demo.worker")
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--end-id", type=int, default=0)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--state", type=Path, default=None, help="go on after the step that wrote this file")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds a step takes, as training would")
    arguments = parser.parse_args(argv)

    loader = open_loader(arguments.data, end_id=arguments.end_id, rank=arguments.rank, world_size=arguments.world_size)
    if arguments.state is not None:
        loader.load_state_dict(hr.State.from_bytes(arguments.state.read_bytes()))
    with steps_file(arguments.out, arguments.rank).open("w", encoding="utf-8") as log:
        for batch in loader:
            if arguments.rank == 0:
                path = state_path(arguments.out, batch.step)
                part = path.with_suffix(".part")
                part.write_bytes(hr.State.to_bytes(batch.state))
                part.replace(path)
            tokens = np.ascontiguousarray(batch["tokens"])
            hashes = [hashlib.blake2b(row.tobytes(), digest_size=16).hexdigest() for row in tokens]
            log.write(json.dumps({"step": batch.step, "rows": batch.rows.tolist(), "hashes": hashes}) + "\n")
            log.flush()
            time.sleep(arguments.pause)


if __name__ == "__main__":
    main()

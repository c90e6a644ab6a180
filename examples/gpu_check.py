"""Checks and times what no test can without a GPU: batches on a device ahead of use.

    python examples/gpu_check.py [--device cuda] [--batch 64] [--steps 500]

It writes a token file of 128 MiB to a temporary folder, compares what arrives on the device with what the CPU gets, to
the last token, while the device is kept busy, and then says how long a training loop waits for its batches: with copies
of its own, with a loader that copies ahead, and with one that does so through pinned memory. It exits with 1 if a token
differs. On `--device cpu` the same code runs without a device.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headrace as hr
from headrace.torch import DataLoader

TOKENS = 1 << 26
SEQ_LEN = 2048
VOCABULARY = 50_000


def main() -> int:
    """Check, then time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=64, help="sequences in a batch")
    parser.add_argument("--steps", type=int, default=500)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.bin"
        np.random.default_rng(0).integers(0, VOCABULARY, TOKENS, dtype=np.uint16).tofile(path)
        data = hr.open(path, stored_dtype="uint16").sequences(SEQ_LEN, overlap=1, dtype="int64")
        settings: dict[str, Any] = {"batch_size": arguments.batch, "seed": 1, "rank": 0, "world_size": 1}
        wrong = check(data, settings, arguments.device, min(100, arguments.steps))
        print(f"check: {'the same tokens' if not wrong else f'{wrong} batches differ'} on {arguments.device}")
        for name, extra in (
            ("copied when asked for", {"ahead": 0}),
            ("copied ahead", {}),
            ("copied ahead through pinned memory", {"pin_memory": True}),
        ):
            waits = time_loop(data, settings | extra, arguments.device, arguments.steps)
            rate = arguments.batch * SEQ_LEN / statistics.median(waits) / 1e6
            print(f"{name}: a wait of {statistics.median(waits) * 1e6:.0f} us a batch ({rate:,.0f} Mtokens/s)")
    return 1 if wrong else 0


def check(data: Any, settings: dict[str, Any], device: str, steps: int) -> int:
    """How many batches on the device differ from those on the CPU, while it has work beside them."""
    wrong = 0
    weights = torch.randn(1024, 1024, device=device)
    for pin_memory in (False, True):
        reference = iter(DataLoader(data, **settings))
        loader = DataLoader(data, **settings, device=device, pin_memory=pin_memory)
        kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        for _, batch in zip(range(steps), loader, strict=False):
            for _ in range(4):
                weights = (weights @ weights).tanh()
            # Summed on the device at once, compared when much has come after it.
            kept.append((batch["tokens"].sum(dim=1), next(reference)["tokens"].sum(dim=1)))
        wrong += sum(not torch.equal(found.cpu(), wanted) for found, wanted in kept)
        loader.close()
    return wrong


def time_loop(data: Any, settings: dict[str, Any], device: str, steps: int) -> list[float]:
    """Seconds that each step waits for its batch to be usable, in a loop that works on the device."""
    waits: list[float] = []
    weights = torch.randn(1024, 1024, device=device)
    with DataLoader(data, **settings, device=device) as loader:
        batches = iter(loader)
        for step in range(steps + 20):
            start = time.perf_counter()
            tokens = next(batches)["tokens"]
            waits.append(time.perf_counter() - start)
            weights = (weights @ weights).tanh() + tokens[0, 0] * 0
            if step % 10 == 0:
                float(weights[0, 0])
    return waits[20:]


if __name__ == "__main__":
    sys.exit(main())

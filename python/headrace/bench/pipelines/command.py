"""Dynamic pipelines beside the tokenizer that they call.

    python -m headrace.bench pipelines FOLDER

FOLDER gets the data, once. docs/benchmark.md says what is measured, and how.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import headrace
from headrace.bench import children, markdown
from headrace.bench.pipelines import states

__all__ = ["main"]

FOLDER = Path(".cache/bench")
WORKER = "headrace.bench.pipelines.worker"
SIZE = 16  # MB of text
QUICK = 2  # the same in a trial, and the steps of a mixture before its state is made
SHAPE = 2  # version of the data: that of another one is made anew
MODES = ("concat", "best_fit", "pad", "truncate")
AIMS = {"tokenizers": ("concat", 0.9), "concat": ("best_fit", 0.8)}
"""From who is compared with, to who is to be so many times as fast."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status, 1 if an aim of padding was missed."""
    arguments = _parse(argv)
    size = QUICK if arguments.quick else SIZE
    folder = arguments.folder / f"pipelines-{SHAPE}-{size}"
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        _run("write", folder, arguments.workers, size=size)
        (folder / "done").touch()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ("tokenizers", *MODES)}
    for number in range(arguments.rounds):
        # Who begins changes, so that what the machine does besides meets all.
        names = [*found][number % len(found) :] + [*found][: number % len(found)]
        for name in sorted(names, key=lambda name: name != "tokenizers"):
            tokens = found["tokenizers"][-1]["tokens"] if found["tokenizers"] else 0
            do = "tokenizers" if name == "tokenizers" else "load"
            found[name].append(_run(do, folder, arguments.workers, mode=name, tokens=tokens))
    results = {name: _median(rounds) for name, rounds in found.items()}
    for mode in MODES[1:]:
        results[mode] |= _run("padding", folder, arguments.workers, mode=mode)
    steps = QUICK if arguments.quick else states.STEPS
    saved = {case: _run("state", folder, arguments.workers, case=case, steps=steps) for case in states.CASES}
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, {arguments.workers} workers, Python "
        f"{platform.python_version()}, headrace {headrace.__version__}; medians of {arguments.rounds} rounds.\n"
    )
    print(table(results))
    print(f"\nStates of {states.LANES:,} lanes, mixtures of {states.SOURCES} sources:\n")
    print(state_table(saved))
    if arguments.json:
        arguments.json.write_text(json.dumps({"results": results, "states": saved}, indent=2) + "\n")
    return int(results["best_fit"]["padding"] > 0.01)


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The results as a table."""
    lines: list[list[str]] = []
    for name, result in results.items():
        aims = [
            f"{result['rate'] / results[other]['rate']:.2f} of {other}, aim {aim}"
            for other, (whose, aim) in AIMS.items()
            if whose == name
        ]
        padding = "" if "padding" not in result else f"{result['padding']:.2%}"
        lines.append(
            [
                name,
                f"{result['rate']:,.0f}",
                f"{result['cpu_ns']:,.0f}",
                f"{result['cores']:.2f}",
                padding,
                *(aims or [""]),
            ]
        )
    return markdown.table(["pipeline", "tokens/s", "CPU ns/token", "cores", "padding", "rate"], lines)


def state_table(saved: Mapping[str, Mapping[str, Any]]) -> str:
    """What states cost, as a table."""
    columns = ("state_ms", "to_bytes_ms", "from_bytes_ms", "load_ms")
    lines = [
        [case, f"{state['bytes'] / 1000:,.1f}", *(f"{state[column]:,.1f}" for column in columns)]
        for case, state in saved.items()
    ]
    return markdown.table(["pipeline", "kB", "made, ms", "to bytes, ms", "from bytes, ms", "loaded, ms"], lines)


def _run(do: str, folder: Path, workers: int, **more: Any) -> dict[str, Any]:
    return children.run(WORKER, {"do": do, "data": str(folder), "workers": workers, **more})[0]


def _median(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "rate": statistics.median(one["tokens"] / one["seconds"] for one in rounds),
        "cpu_ns": statistics.median(one["cpu_seconds"] / one["tokens"] * 1e9 for one in rounds),
        "cores": statistics.median(one["cpu_seconds"] / one["seconds"] for one in rounds),
    }


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m headrace.bench pipelines", description="Time dynamic pipelines.")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=FOLDER, metavar="FOLDER", help=f"folder of the data ({FOLDER})"
    )
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="at once (all processors)")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds (default: 3)")
    parser.add_argument("--quick", action="store_true", help="a trial: one round on little data")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to a file")
    arguments = parser.parse_args(argv)
    if arguments.rounds < 1 or arguments.workers < 1:
        parser.error("wanted at least one round and one worker")
    if arguments.quick:
        arguments.rounds = 1
    return arguments

"""Those who read a flat token file, one beside the other.

    python -m headrace.bench records FOLDER --cases int64,stored

FOLDER gets the file, once. docs/benchmark.md says what is measured, and how.
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
from headrace.bench import children, markdown, packages
from headrace.bench.comparison import Comparison, turned
from headrace.bench.records.job import BATCH, CASES, RESUME, SEQ_LEN, STEP, Case
from headrace.bench.records.readers import PACKAGES

__all__ = ["main", "summarise", "table"]

FOLDER = Path(".cache/bench")
WORKER = "headrace.bench.records.worker"
OWN = "headrace"
QUICK = 4.0  # millions of tokens

Results = dict[str, dict[str, dict[str, Any]]]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status, 1 if somebody failed."""
    arguments = _parse(argv)
    cases: list[Case] = arguments.cases
    tokens = round(arguments.tokens * 1e6)
    file: Path = arguments.folder / f"records-{tokens}.bin"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        children.run(WORKER, {"do": "write", "file": str(file), "tokens": tokens})
    comparison, resumes = _compare(file, cases, arguments.rounds)
    results: Results = {case.name: {} for case in cases}
    for name, result in comparison.results.items():
        case, _, reader = name.partition(" ")
        results[case][reader] = result
    print(
        f"{tokens:,} tokens of 16 bits, sequences of {SEQ_LEN:,}, batches of {BATCH}. {platform.machine()}, "
        f"{os.cpu_count()} CPUs, Python {platform.python_version()}, headrace {headrace.__version__}; "
        f"medians of {arguments.rounds} rounds.\n"
    )
    print(table(cases, results))
    opening, first = (statistics.median(one[name] for one in resumes) for name in ("opening", "first_batch"))
    print(
        f"\nheadrace opens the file and a loader in {opening * 1e3:.1f} ms, and gives the batch of step {STEP:,} "
        f"{first * 1e3:.1f} ms later (aim: {RESUME * 1e3:.0f}, {'met' if first <= RESUME else 'missed'})."
    )
    if arguments.json:
        found = {"cpus": os.cpu_count(), "tokens": tokens, "cases": results, "resumes": resumes}
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    return 1 if comparison.failed else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m headrace.bench records", description="Time reading token files.")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=FOLDER, metavar="FOLDER", help=f"folder of the file ({FOLDER})"
    )
    parser.add_argument("--cases", type=_cases, default=list(CASES.values()), help=f"of {','.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds (default: 5)")
    parser.add_argument("--tokens", type=float, default=131.0, metavar="MILLIONS", help="size of the file (131)")
    parser.add_argument("--quick", action="store_true", help=f"a trial: one round on {QUICK:g} M tokens")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to a file")
    arguments = parser.parse_args(argv)
    if arguments.rounds < 1 or arguments.tokens < 0.2:
        parser.error("wanted at least one round, and 0.2 million tokens or more")
    if arguments.quick:
        arguments.rounds, arguments.tokens = 1, QUICK
    return arguments


def _cases(text: str) -> list[Case]:
    names = text.split(",")
    if unknown := [name for name in names if name not in CASES]:
        raise argparse.ArgumentTypeError(f"no such case: {unknown[0]!r}; there are {', '.join(CASES)}")
    return [case for case in CASES.values() if case.name in names]


def _compare(file: Path, cases: Sequence[Case], rounds: int) -> tuple[Comparison, list[dict[str, float]]]:
    """All that is measured, by case and reader with a space between; and what resumes took."""
    pairs = {f"{case.name} {reader}": (case, reader) for case in cases for reader in case.readers}
    comparison = Comparison(list(pairs), lambda name: packages.missing(PACKAGES.get(pairs[name][1], {})))

    def rate(name: str) -> dict[str, Any]:
        case, reader = pairs[name]
        task = {"do": "rate", "file": str(file), "reader": case.readers[reader], "cold": case.cold}
        return children.run(WORKER, task)[0]

    timed: list[dict[str, dict[str, Any]]] = []
    resumes: list[dict[str, float]] = []
    for number in range(rounds):
        order = [f"{case.name} {reader}" for case in cases for reader in turned(list(case.readers), number)]
        timed.append(comparison.each(f"round {number + 1} of {rounds}", rate, order))
        resumes.append(children.run(WORKER, {"do": "resume", "file": str(file)})[0])
    for name in timed[-1]:
        comparison.results[name] |= summarise([one[name] for one in timed])
        comparison.results[name]["versions"] = packages.versions(PACKAGES.get(pairs[name][1], {}))
    return comparison, resumes


def summarise(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds of a reader, and (max - min) / median of its rate."""
    rates = [one["tokens"] / one["seconds"] for one in rounds]
    rate = statistics.median(rates)
    return {
        "rounds": list(rounds),
        "rate": rate,
        "spread": (max(rates) - min(rates)) / rate,
        "cores": statistics.median(one["cpu_seconds"] / one["seconds"] for one in rounds),
        "cpu_ns": statistics.median(one["cpu_seconds"] / one["tokens"] for one in rounds) * 1e9,
    }


def table(cases: Sequence[Case], results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """A row for each reader of each case; one without results says why."""
    head = ["case", "who", "Mtokens/s", "spread", "cores", "CPU ns/token", "headrace is faster", "aim"]
    rows = [
        _row(case, reader, results[case.name][reader], results[case.name][OWN])
        for case in cases
        for reader in case.readers
    ]
    return markdown.table(head, rows)


def _row(case: Case, reader: str, result: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    if "rate" not in result:
        return [case.name, reader, markdown.note(result)]
    times, aim = own.get("rate", 0.0) / result["rate"], case.aims.get(reader)
    return [
        case.name,
        reader,
        f"{result['rate'] / 1e6:,.0f}",
        f"{result['spread']:.0%}",
        f"{result['cores']:.2f}",
        f"{result['cpu_ns']:,.2f}",
        f"{times:.2f} times" if reader != OWN else "",
        f"{aim:.2g}: {'met' if times >= aim else 'missed'}" if aim else "",
    ]

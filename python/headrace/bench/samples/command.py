"""Loaders of samples, one beside the other.

    python -m headrace.bench samples FOLDER --tasks overhead,litdata

FOLDER gets the data, once. docs/benchmark.md says what is measured, and how.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import headrace
from headrace.bench.comparison import Comparison, turned
from headrace.bench.samples import report, tasks
from headrace.bench.samples.cases import CASES, TASKS, chosen
from headrace.bench.samples.job import Case

__all__ = ["main"]

FOLDER = Path(".cache/bench")
EPOCHS = 10  # whose memory is looked at
QUICK_EPOCHS = 3

Results = dict[str, dict[str, dict[str, Any]]]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status, 1 if a loader failed."""
    arguments = _parse(argv)
    cases: list[Case] = arguments.tasks
    samples = {case.name: case.quick if arguments.quick else case.part(arguments.share) for case in cases}
    comparison = _compare(
        arguments.folder, cases, samples, arguments.rounds, QUICK_EPOCHS if arguments.quick else EPOCHS
    )
    results: Results = {case.name: {} for case in cases}
    for name, result in comparison.results.items():
        case, _, loader = name.partition(" ")
        results[case][loader] = result
    for case in cases:
        own = results[case.name]["headrace"]
        for loader in case.loaders:
            if loader != "headrace":
                results[case.name][loader] |= report.compared(case, loader, own, results[case.name][loader])
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
        f"headrace {headrace.__version__}; medians of {arguments.rounds} rounds.\n"
    )
    print(report.table(cases, results))
    if arguments.json:
        arguments.json.write_text(json.dumps(_as_json(cases, samples, results, arguments), indent=2) + "\n")
    return 1 if comparison.failed else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m headrace.bench samples", description="Time loaders of samples.")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=FOLDER, metavar="FOLDER", help=f"folder of the data ({FOLDER})"
    )
    parser.add_argument("--tasks", type=_tasks, default=list(CASES.values()), help=f"of {','.join(TASKS)}")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds (default: 3)")
    parser.add_argument("--share", type=float, default=1.0, help="of the data, such as 0.2 of the samples (1)")
    parser.add_argument("--quick", action="store_true", help="a trial: one round on little data")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to a file")
    arguments = parser.parse_args(argv)
    if arguments.rounds < 1 or not 0 < arguments.share <= 1:
        parser.error("wanted at least one round, and a share of the data above 0 and at most 1")
    if arguments.quick:
        arguments.rounds = 1
    return arguments


def _tasks(text: str) -> list[Case]:
    try:
        return chosen(text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _compare(root: Path, cases: Sequence[Case], samples: Mapping[str, int], rounds: int, epochs: int) -> Comparison:
    """All that is measured, by case and loader, with a space between."""
    pairs = {f"{case.name} {loader}": (case, loader) for case in cases for loader in case.loaders}
    comparison = Comparison(list(pairs), lambda name: tasks.lacking(*pairs[name]))
    each, results = comparison.each, comparison.results

    def prepare(name: str) -> None:
        case = pairs[name][0]
        tasks.prepare(root, case, samples[case.name])

    def check(name: str) -> dict[str, Any]:
        case, loader = pairs[name]
        return tasks.check(root, case, loader, samples[case.name], epochs=epochs)

    def rate(name: str) -> dict[str, Any]:
        case, loader = pairs[name]
        return tasks.rate(root, case, loader, samples[case.name])

    each("data", prepare)
    # This also reads everything once, so that rounds find it in the page cache.
    for name, found in each("check", check).items():
        results[name] |= found | {"memory_growth": report.growth(found["memory"])}
    timed: list[dict[str, dict[str, Any]]] = []
    for number in range(rounds):
        order = [f"{case.name} {loader}" for case in cases for loader in turned(list(case.loaders), number)]
        timed.append(each(f"round {number + 1} of {rounds}", rate, order))
    for name in timed[-1]:
        results[name]["rounds"] = [one[name] for one in timed]
        results[name] |= report.summarise(results[name]["rounds"])
        results[name]["versions"] = tasks.versions(*pairs[name])
    return comparison


def _as_json(
    cases: Sequence[Case], samples: Mapping[str, int], results: Results, arguments: argparse.Namespace
) -> dict[str, Any]:
    return {
        "machine": {
            "architecture": platform.machine(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "system": platform.system(),
        },
        "rounds": arguments.rounds,
        "quick": arguments.quick,
        "cases": {
            case.name: {
                "about": case.about,
                "samples": samples[case.name],
                "batch": case.batch,
                "workers": case.workers,
                "measure": case.measure,
                "aim": case.aim,
                "loaders": results[case.name],
            }
            for case in cases
        },
    }

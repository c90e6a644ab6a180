"""Those who make datasets, one beside the other.

    python -m headrace.bench preparing FOLDER --tasks tokenize

FOLDER gets the data, once. docs/benchmark.md says what is measured, and how.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import headrace
from headrace.bench import children, markdown, packages
from headrace.bench.comparison import Comparison, turned
from headrace.bench.preparing import data, makers
from headrace.bench.preparing.cases import CASES, chosen
from headrace.bench.preparing.job import Case

__all__ = ["compared", "main", "summarise", "table"]

FOLDER = Path(".cache/bench")
WORKER = "headrace.bench.preparing.worker"
SHAPE = 1  # version of all data: data of another one is made anew
OWN = "headrace"

Results = dict[str, dict[str, dict[str, Any]]]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status, 1 if somebody failed."""
    arguments = _parse(argv)
    cases: list[Case] = arguments.tasks
    workers: int = arguments.workers
    comparison = _compare(arguments.folder, cases, arguments.rounds, workers, quick=arguments.quick)
    results: Results = {case.name: {} for case in cases}
    for name, result in comparison.results.items():
        case, _, maker = name.partition(" ")
        results[case][maker] = result
    for case in cases:
        for maker, result in results[case.name].items():
            result |= compared(case, maker, results[case.name][OWN], result)
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, {workers} workers, Python {platform.python_version()}, "
        f"headrace {headrace.__version__}; medians of {arguments.rounds} rounds.\n"
    )
    print(table(cases, results))
    if arguments.json:
        found = {"cpus": os.cpu_count(), "workers": workers, "quick": arguments.quick, "cases": results}
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    return 1 if comparison.failed else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m headrace.bench preparing", description="Time making datasets.")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=FOLDER, metavar="FOLDER", help=f"folder of the data ({FOLDER})"
    )
    parser.add_argument("--tasks", type=_tasks, default=list(CASES.values()), help=f"of {','.join(CASES)}")
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


def _tasks(text: str) -> list[Case]:
    try:
        return chosen(text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _compare(root: Path, cases: Sequence[Case], rounds: int, workers: int, *, quick: bool) -> Comparison:
    """All that is measured, by case and maker, with a space between."""
    pairs = {f"{case.name} {maker}": (case, maker) for case in cases for maker in case.makers}

    def lacking(name: str) -> list[str]:
        case, maker = pairs[name]
        return packages.missing(makers.PACKAGES[case.makers[maker]] | data.PACKAGES[case.data])

    def size(case: Case) -> int:
        return case.quick if quick else case.size

    def prepare(name: str) -> None:
        _write(_folder(root, pairs[name][0], size(pairs[name][0])), pairs[name][0], size(pairs[name][0]))

    def run(name: str, do: str) -> dict[str, Any]:
        case, maker = pairs[name]
        folder = _folder(root, case, size(case))
        with _empty(folder / "output") as output:
            task = {"do": do, "maker": case.makers[maker], "data": str(folder / "data"), "output": str(output)}
            return children.run(WORKER, task | {"workers": workers})[0]

    comparison = Comparison(list(pairs), lacking)
    comparison.each("data", prepare)
    # This also reads everything once, so that rounds find it in the page cache.
    for name, found in comparison.each("check", lambda name: run(name, "check")).items():
        comparison.results[name]["checksum"] = found["checksum"]
    timed: list[dict[str, dict[str, Any]]] = []
    for number in range(rounds):
        order = [f"{case.name} {maker}" for case in cases for maker in turned(list(case.makers), number)]
        timed.append(comparison.each(f"round {number + 1} of {rounds}", lambda name: run(name, "rate"), order))
    for name in timed[-1]:
        case, maker = pairs[name]
        comparison.results[name] |= summarise([one[name] for one in timed])
        comparison.results[name]["versions"] = packages.versions(makers.PACKAGES[case.makers[maker]])
    return comparison


def _folder(root: Path, case: Case, size: int) -> Path:
    return root / f"preparing-{case.data}-{size}"


def _write(folder: Path, case: Case, size: int) -> None:
    """Make the data of a case unless it is there."""
    note = folder / "dataset.json"
    if note.exists() and json.loads(note.read_text())["shape"] == SHAPE:
        return
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "data").mkdir(parents=True)
    children.run(WORKER, {"do": "write", "kind": case.data, "data": str(folder / "data"), "size": size})
    # Written last: data without it is made anew.
    note.write_text(json.dumps({"shape": SHAPE}))


@contextmanager
def _empty(folder: Path) -> Generator[Path]:
    """A folder for what is made, which nobody keeps."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def summarise(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds of a maker, and (max - min) / median of its rate."""
    rates = [one["amount"] / one["seconds"] for one in rounds]
    rate = statistics.median(rates)
    return {
        "rounds": list(rounds),
        "rate": rate,
        "spread": (max(rates) - min(rates)) / rate,
        "cores": statistics.median(one["cpu_seconds"] / one["seconds"] for one in rounds),
        "cpu_us": statistics.median(one["cpu_seconds"] / one["amount"] for one in rounds) * 1e6,
    }


def compared(case: Case, maker: str, own: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """How headrace's results compare with another's, and with the aim; empty if one has none."""
    if maker == OWN or "rate" not in own or "rate" not in other:
        return {}
    found: dict[str, Any] = {
        "times_as_fast": own["rate"] / other["rate"],
        "alike": own["checksum"] == other["checksum"],
    }
    if aim := case.aims.get(maker):
        found |= {"aim": aim, "met": found["times_as_fast"] >= aim}
    return found


def table(cases: Sequence[Case], results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """A row for each maker of each case; one without results says why."""
    head = [
        "task", "who", "a second", "spread", "cores", "CPU us each", "headrace is faster", "aim", "same content",
    ]  # fmt: skip
    rows = [_row(case, maker, results[case.name][maker]) for case in cases for maker in case.makers]
    return markdown.table(head, rows)


def _row(case: Case, maker: str, result: Mapping[str, Any]) -> list[str]:
    if "rate" not in result:
        return [case.name, maker, markdown.note(result)]
    times = result.get("times_as_fast")
    return [
        case.name,
        maker,
        f"{result['rate']:,.0f} {case.unit}",
        f"{result['spread']:.0%}",
        f"{result['cores']:.2f}",
        f"{result['cpu_us']:,.2f}",
        f"{times:.2f} times" if times else "",
        f"{result['aim']:g}: {'met' if result['met'] else 'missed'}" if "met" in result else "",
        ("yes" if result["alike"] else "no") if times else "",
    ]

"""How fast a store is read before anything is decoded.

    python -m headrace.bench fetch s3://bucket/folder
    python tests/tools/s3_server.py --serve python -m headrace.bench fetch s3://data/fetch

The folder gets the data, once; credentials are those of the environment. The second command starts a server for it.
docs/benchmark.md says what is measured, and how.
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
from headrace.bench.fetch.shape import MB, SHAPES, Shape

__all__ = ["AIM", "main"]

WORKER = "headrace.bench.fetch.worker"
PACKAGES = {"headrace": "headrace", "obstore": "obstore", "pyarrow": "pyarrow"}  # all of them make or look at the data
NAMES = ("headrace", "obstore-threads", "obstore-async")
AIM = 0.8  # of the rate of obstore, whichever way it is called
QUICK = 16 * MB

Results = Mapping[str, Mapping[str, Mapping[str, Any]]]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status, 1 if a reader failed."""
    arguments = _parse(argv)
    shapes = {name: Shape(chunk=SHAPES[name], total=arguments.megabytes * MB) for name in arguments.chunks}
    comparison = _compare(arguments.url.rstrip("/"), shapes, arguments.rounds, arguments.passes)
    results: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in shapes}
    for name, result in comparison.results.items():
        shape, _, reader = name.partition(": ")
        results[shape][reader] = result
    for own in results.values():
        for reader, result in own.items():
            if reader != "headrace" and "bytes_per_second" in result and "bytes_per_second" in own["headrace"]:
                times = own["headrace"]["bytes_per_second"] / result["bytes_per_second"]
                result |= {"times_as_fast": times, "aim": AIM, "met": times >= AIM}
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
        f"headrace {headrace.__version__}; {arguments.megabytes:,} MB, medians of {arguments.rounds} rounds.\n"
    )
    print(_table(results))
    if arguments.json:
        arguments.json.write_text(json.dumps({"megabytes": arguments.megabytes, "chunks": results}, indent=2) + "\n")
    return 1 if comparison.failed else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.bench fetch", description="Time reading from a store, without decoding."
    )
    parser.add_argument("url", metavar="URL", help="folder of a bucket for the data, which may be written")
    parser.add_argument("--chunks", type=_chunks, default=list(SHAPES), help=f"of {','.join(SHAPES)}")
    parser.add_argument("--megabytes", type=int, default=512, help="size of the data for each of them (512)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds (default: 5)")
    parser.add_argument("--passes", type=int, default=2, help="timed passes over the data in a round (default: 2)")
    parser.add_argument("--quick", action="store_true", help="a trial: one round on little data")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to a file")
    arguments = parser.parse_args(argv)
    if arguments.rounds < 1 or arguments.passes < 1 or arguments.megabytes < 1:
        parser.error("wanted at least one round, one pass and one megabyte")
    if arguments.quick:
        arguments.rounds, arguments.passes, arguments.megabytes = 1, 1, QUICK // MB
    return arguments


def _chunks(text: str) -> list[str]:
    names = list(dict.fromkeys(text.split(",")))
    if unknown := [name for name in names if name not in SHAPES]:
        raise argparse.ArgumentTypeError(f"no such chunks: {unknown[0]!r}; there are {', '.join(SHAPES)}")
    return names


def _compare(root: str, shapes: Mapping[str, Shape], rounds: int, passes: int) -> Comparison:
    """All that is measured, by chunks and reader, with a colon between."""
    pairs = {f"{shape}: {reader}": (shape, reader) for shape in shapes for reader in NAMES}
    comparison = Comparison(list(pairs), lambda _: packages.missing(PACKAGES))

    def prepare(name: str) -> None:
        shape = shapes[pairs[name][0]]
        task = {"do": "write", "url": f"{root}/{shape.folder}", "chunk": shape.chunk, "total": shape.total}
        children.run(WORKER, task)

    def rate(name: str) -> dict[str, Any]:
        shape, reader = pairs[name]
        task = {"do": "rate", "reader": reader, "url": f"{root}/{shapes[shape].folder}", "passes": passes}
        return children.run(WORKER, task)[0]

    comparison.each("data", prepare)
    timed: list[dict[str, dict[str, Any]]] = []
    for number in range(rounds):
        order = [f"{shape}: {reader}" for shape in shapes for reader in turned(NAMES, number)]
        timed.append(comparison.each(f"round {number + 1} of {rounds}", rate, order))
    for name in timed[-1]:
        own = [one[name] for one in timed]
        comparison.results[name] |= _summary(own) | {"rounds": own, "versions": packages.versions(PACKAGES)}
    return comparison


def _summary(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds of a reader, and (max - min) / median of its rate."""
    rates = [one["bytes"] / one["seconds"] for one in rounds]
    rate = statistics.median(rates)
    return {
        "bytes_per_second": rate,
        "spread": (max(rates) - min(rates)) / rate,
        "cores": statistics.median(one["cpu_seconds"] / one["seconds"] for one in rounds),
        "cpu_ns_per_byte": statistics.median(one["cpu_seconds"] / one["bytes"] for one in rounds) * 1e9,
    }


def _table(results: Results) -> str:
    head = ["chunks", "reader", "MB/s", "spread", "cores", "CPU ns/byte", "headrace / this", "aim"]
    rows = [_row(shape, reader, result) for shape, own in results.items() for reader, result in own.items()]
    return markdown.table(head, rows)


def _row(shape: str, reader: str, result: Mapping[str, Any]) -> list[str]:
    if "bytes_per_second" not in result:
        return [shape, reader, markdown.note(result)]
    times = result.get("times_as_fast")
    return [
        shape,
        reader,
        f"{result['bytes_per_second'] / MB:,.0f}",
        f"{result['spread']:.0%}",
        f"{result['cores']:.2f}",
        f"{result['cpu_ns_per_byte']:.3f}",
        f"{times:.2f}" if times else "",
        f"{result['aim']:g}: {'met' if result['met'] else 'missed'}" if "met" in result else "",
    ]

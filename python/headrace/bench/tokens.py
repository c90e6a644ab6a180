"""Loaders that give packed rows of tokens, one beside the other.

    python -m headrace.bench tokens DATA --loaders headrace,hf,memmap

DATA is a folder for the data that it makes, once, and for what loaders make of that. docs/benchmark.md says what is
measured, and how.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import headrace
from headrace.bench import loaders, tasks
from headrace.bench.children import TaskError
from headrace.bench.comparison import Comparison, say, turned
from headrace.bench.data import CODECS, VOCABULARIES, Data, Variant, prepare
from headrace.bench.job import BATCH, SEED, SEQ_LEN
from headrace.bench.report import MIB, limits_table, loaders_table, summarise

__all__ = ["main"]

Results = dict[str, dict[str, Any]]

RESUMES = 3  # at most; their median is shown


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status, 1 if a loader failed."""
    arguments = _parse(argv)
    variant = Variant(tokens=arguments.tokens, codec=arguments.codec, vocabulary=arguments.vocab)
    say(f"data: {arguments.data / variant.name}")
    data = prepare(arguments.data, variant)
    results = _compare(data, arguments.loaders, arguments.rounds, arguments.passes)
    limits = results.pop("", {}).get("limits", [])
    _print(data, results, limits, arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(_as_json(data, results, limits, arguments), indent=2) + "\n")
    return 1 if any("failed" in result for result in results.values()) else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.bench tokens", description="Time loaders of packed rows of tokens."
    )
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of the data; what it lacks is made")
    parser.add_argument("--loaders", type=_names, default=list(loaders.NAMES), help=f"of {','.join(loaders.NAMES)}")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds (default: 5)")
    parser.add_argument("--passes", type=int, default=1, help="passes over the data in a loader's round (default: 1)")
    parser.add_argument("--tokens", type=float, default=131.0, metavar="MILLIONS", help="size of the data (131)")
    parser.add_argument("--codec", choices=CODECS, default="snappy", help="compression of the Parquet files (snappy)")
    parser.add_argument("--vocab", type=int, choices=VOCABULARIES, default=VOCABULARIES[0], help="token ids (50304)")
    parser.add_argument("--quick", action="store_true", help="a trial: one short round on 4 M tokens")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to a file")
    arguments = parser.parse_args(argv)
    if arguments.rounds < 1 or arguments.passes < 1 or arguments.tokens < 0.2:
        parser.error("wanted at least one round, one pass, and 0.2 million tokens or more")
    if arguments.quick:
        arguments.rounds, arguments.passes, arguments.tokens = 1, 1, 4.0
    return arguments


def _names(text: str) -> list[str]:
    names = list(dict.fromkeys(text.split(",")))
    if unknown := [name for name in names if name not in loaders.NAMES]:
        raise argparse.ArgumentTypeError(f"no such loader: {unknown[0]!r}; there are {', '.join(loaders.NAMES)}")
    return names


def _compare(data: Data, names: Sequence[str], rounds: int, passes: int) -> Results:
    """All that is measured, by loader; limits under the empty name."""
    comparison = Comparison(names, loaders.missing)
    results, each = comparison.results, comparison.each

    for name, found in each("conversion", lambda name: tasks.converted(data, name)).items():
        results[name] |= {f"convert_{key}": found[key] for key in ("seconds", "cpu_seconds", "bytes")}
    # This also reads everything once, so that rounds find it in the page cache.
    for name, found in each("accounting", lambda name: tasks.run(data, "account", name)).items():
        results[name] |= {"tokens_lost": found["lost"], "tokens_repeated": found["repeated"]}
        results[name]["batches_per_epoch"] = found["batches"]
    resumes = [each("resume", lambda name: tasks.run(data, "resume", name)) for _ in range(min(RESUMES, rounds))]
    for name in resumes[-1]:
        found = [one[name] for one in resumes]
        results[name]["resume_seconds"] = statistics.median(one["seconds"] for one in found)
        results[name]["resume_exact"] = all(one["exact"] for one in found)
        results[name]["resume_batches_compared"] = found[-1]["compared"]
    for name, memory in each("memory", lambda name: tasks.peak_memory(data, name, passes=passes)).items():
        results[name] |= {"memory_bytes": memory["peak"], "memory_before_bytes": memory["before"]}

    timed: list[dict[str, Any]] = []
    limits: list[list[dict[str, Any]]] = []
    for number in range(rounds):
        what = f"round {number + 1} of {rounds}"
        timed.append(each(what, lambda name: tasks.run(data, "rate", name, passes=passes), turned(names, number)))
        try:
            limits.append(tasks.run(data, "limits"))
        except TaskError as error:
            say(f"{what}: limits failed: {error}")
    for name in timed[-1]:
        results[name]["rounds"] = [one[name] for one in timed]
        results[name] |= summarise(results[name]["rounds"])
    for name in names:
        if "skipped" not in results[name]:
            results[name]["versions"] = loaders.versions(name)
    results[""] = {"limits": [_limit(rows) for rows in zip(*limits, strict=True)]}
    return results


def _limit(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    cost = statistics.median(one["seconds"] / one["tokens"] for one in rounds)
    return {"name": rounds[0]["name"], "tokens_per_second": 1 / cost, "cpu_ns_per_token": cost * 1e9}


def _print(data: Data, results: Results, limits: Sequence[dict[str, Any]], arguments: argparse.Namespace) -> None:
    variant = data.variant
    print(
        f"{data.tokens:,} tokens in {data.documents:,} documents, {data.bytes / MIB:,.1f} MiB of Parquet "
        f"({variant.codec}, {variant.vocabulary:,} ids); rows of {SEQ_LEN:,} tokens, batches of {BATCH} rows."
    )
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
        f"headrace {headrace.__version__}; medians of {arguments.rounds} rounds, {arguments.passes} pass(es) in each.\n"
    )
    print(loaders_table(results, data.documents))
    print()
    print(limits_table(limits))


def _as_json(
    data: Data, results: Results, limits: Sequence[dict[str, Any]], arguments: argparse.Namespace
) -> dict[str, Any]:
    return {
        "machine": {
            "architecture": platform.machine(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "system": platform.system(),
        },
        "data": {
            "tokens": data.tokens,
            "documents": data.documents,
            "bytes": data.bytes,
            "codec": data.variant.codec,
            "vocabulary": data.variant.vocabulary,
        },
        "job": {"seq_len": SEQ_LEN, "batch": BATCH, "seed": SEED},
        "rounds": arguments.rounds,
        "passes": arguments.passes,
        "loaders": results,
        "limits": limits,
    }

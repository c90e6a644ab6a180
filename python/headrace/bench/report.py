"""The tables of the benchmark of tokens."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from headrace.bench import markdown

__all__ = ["MIB", "limits_table", "loaders_table", "summarise"]

MIB = 1024**2


def summarise(rounds: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Medians over the rounds of a loader, and (max - min) / median of its rate."""
    rates = [one["tokens"] / one["seconds"] for one in rounds]
    rate = statistics.median(rates)
    return {
        "tokens_per_second": rate,
        "spread": (max(rates) - min(rates)) / rate,
        "cores": statistics.median(one["cpu_seconds"] / one["seconds"] for one in rounds),
        "cpu_ns_per_token": statistics.median(one["cpu_seconds"] / one["tokens"] for one in rounds) * 1e9,
        "first_batch_seconds": statistics.median(one["first_batch_seconds"] for one in rounds),
    }


def loaders_table(results: dict[str, dict[str, Any]], documents: int) -> str:
    """One row a loader; a loader without results has a row that says why."""
    base = results.get("headrace", {}).get("tokens_per_second")
    head = [
        "loader",
        "convert, s",
        "convert, MiB",
        "documents/s converting",
        "Mtokens/s",
        "spread",
        "headrace / this",
        "cores",
        "CPU ns/token",
        "peak memory, MiB",
        "first batch, s",
        "resume, s",
        "exact resume",
        "tokens lost",
        "tokens repeated",
    ]
    rows = [_row(name, result, base, documents) for name, result in results.items()]
    return markdown.table(head, rows)


def limits_table(limits: Sequence[dict[str, Any]]) -> str:
    """What one core of the machine allows at most."""
    rows = [
        [limit["name"], f"{limit['tokens_per_second'] / 1e6:,.0f}", f"{limit['cpu_ns_per_token']:.2f}"]
        for limit in limits
    ]
    return markdown.table(["limit, on one core", "Mtokens/s", "CPU ns/token"], rows)


def _row(name: str, result: dict[str, Any], base: float | None, documents: int) -> list[str]:
    if "tokens_per_second" not in result:
        return [name, markdown.note(result)]
    seconds = result["convert_seconds"]
    return [
        name,
        "none" if seconds is None else f"{seconds:.2f}",
        "none" if seconds is None else f"{result['convert_bytes'] / MIB:,.1f}",
        "" if seconds is None else f"{documents / seconds:,.0f}",
        f"{result['tokens_per_second'] / 1e6:,.1f}",
        f"{result['spread']:.0%}",
        f"{base / result['tokens_per_second']:.2f}" if base else "",
        f"{result['cores']:.2f}",
        f"{result['cpu_ns_per_token']:.2f}",
        f"{max(0, result['memory_bytes'] - result['memory_before_bytes']) / MIB:,.0f}",
        f"{result['first_batch_seconds']:.3f}",
        f"{result['resume_seconds']:.3f}",
        "yes" if result["resume_exact"] else "no",
        f"{result['tokens_lost']:,}",
        f"{result['tokens_repeated']:,}",
    ]

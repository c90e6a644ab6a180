"""The table of the benchmark of samples."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.bench import markdown
from headrace.bench.samples.job import Case

__all__ = ["compared", "growth", "summarise", "table"]

MIB = 1024**2
ALIKE = 1e-6  # the relative difference of sums that rounding explains


def growth(memory: Sequence[int]) -> float:
    """How much memory grows behind the second epoch: that of the last three over that of the three from the second on.

    One batch more or less is on its way whenever one looks, so that means are compared; of less than six epochs it is
    the last one and the second.
    """
    number = 3 if len(memory) >= 6 else 1
    return statistics.mean(memory[-number:]) / statistics.mean(memory[1 : 1 + number]) - 1


def summarise(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds of a loader, and (max - min) / median of its rate."""
    rates = [one["samples"] / one["seconds"] for one in rounds]
    rate = statistics.median(rates)
    return {
        "samples_per_second": rate,
        "spread": (max(rates) - min(rates)) / rate,
        "cores": statistics.median(one["cpu_seconds"] / one["seconds"] for one in rounds),
        "cpu_us_per_sample": statistics.median(one["cpu_seconds"] / one["samples"] for one in rounds) * 1e6,
        "first_batch_seconds": statistics.median(one["first_batch_seconds"] for one in rounds),
        "next_epoch_seconds": statistics.median(one["next_epoch_seconds"] for one in rounds),
    }


def compared(case: Case, loader: str, own: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """How headrace's results compare with another loader's, and with the aim; empty if one has none."""
    if case.measure not in own or case.measure not in other:
        return {}
    ours, theirs = own[case.measure], other[case.measure]
    times = ours / theirs if case.measure == "samples_per_second" else theirs / ours
    found: dict[str, Any] = {"times_as_fast": times}
    if loader not in case.aside:
        found |= {"aim": case.aim, "met": times >= case.aim}
    return found


def table(cases: Sequence[Case], results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """A row for each loader of each case; one without results says why."""
    head = [
        "task",
        "loader",
        "samples/s",
        "spread",
        "cores",
        "CPU us/sample",
        "first batch, ms",
        "next epoch, ms",
        "headrace is faster",
        "aim",
        "memory, MiB",
        "growth",
        "lost",
        "repeated",
        "same content",
    ]
    rows = [
        _row(case, loader, results[case.name][loader], results[case.name]["headrace"])
        for case in cases
        for loader in case.loaders
    ]
    return markdown.table(head, rows)


def _row(case: Case, loader: str, result: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    if "samples_per_second" not in result:
        return [case.name, loader, markdown.note(result)]
    times = result.get("times_as_fast")
    aim = f"{case.aim:g}: {'met' if result['met'] else 'missed'}" if "met" in result else ""
    alike = ""
    if loader != "headrace" and "content" in own:
        alike = "yes" if abs(result["content"] - own["content"]) <= ALIKE * abs(own["content"]) else "no"
    return [
        case.name,
        loader,
        f"{result['samples_per_second']:,.0f}",
        f"{result['spread']:.0%}",
        f"{result['cores']:.2f}",
        f"{result['cpu_us_per_sample']:,.2f}",
        f"{result['first_batch_seconds'] * 1e3:,.1f}",
        f"{result['next_epoch_seconds'] * 1e3:,.1f}",
        f"{times:.2f} times" if times else "",
        aim,
        f"{max(0, result['memory'][-1] - result['memory_before']) / MIB:,.0f}",
        f"{result['memory_growth']:+.1%}",
        f"{result['lost']:,}",
        f"{result['repeated']:,}",
        alike,
    ]

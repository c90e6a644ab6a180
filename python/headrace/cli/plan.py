"""`headrace plan`: what a run would do, told without running it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace import _core
from headrace._ranks import default_workers
from headrace._units import parse_bytes, show_bytes
from headrace.cli._common import Packing, console, facts, open_dataset, plural, print_json, warn
from headrace.loading import packed_run
from headrace.loading.schedule import check_divides

__all__ = ["Order", "run"]

_PREFETCH = 2
"""The loader's default."""

_ALL_RANKS = 1_000_000
"""Ranks times row groups up to which every rank is planned: about a second."""

_SHOWN_RANKS = 16
"""Ranks that are printed one by one."""


@dataclass(frozen=True)
class Order:
    """Who reads and in which order, as given."""

    batch: int
    world: int
    window: int | None
    lanes: int | None
    seed: int
    shuffle: bool
    memory: str


def run(urls: list[str], *, packing: Packing, order: Order, storage_option: list[str] | None, as_json: bool) -> int:
    """Prints the plan."""
    memory = parse_bytes(order.memory, "--memory")
    check_divides(order.batch, order.world)
    dataset = packing.pack(open_dataset(urls, storage_option))
    given = packed_run.Given(
        seed=order.seed,
        shuffle=order.shuffle,
        lanes=order.lanes,
        window=order.window,
        batch_size=None,
        schedule={0: order.batch},
        epochs=None,
        pad=False,
        exclude=None,
    )
    run, position = packed_run.start(dataset, given, order.world, 0, None)
    workers = default_workers()
    fixed, block = _core.shares(
        run.core, position.steps, world=order.world, workers=workers, memory=memory, prefetch=_PREFETCH
    )
    whole = order.world * dataset.core.row_group_count <= _ALL_RANKS
    reports = [
        _core.report(run.core, epoch=0, batch=order.batch, world=order.world, rank=rank, block=block)
        for rank in range(order.world if whole else 1)
    ]
    stored = int(dataset.core.column_info(dataset.packing.column)["bytes"])
    steps = position.steps.first_step(run.core, 1)
    window = min(run.window, dataset.core.row_group_count)
    read = sum(report[0] for report in reports)
    amplification = (read if whole else read * order.world) / stored if stored else 1.0
    cuts = run.core.windows * (run.lanes - 1)
    window_bytes = max(report[1] for report in reports)
    report: dict[str, Any] = {
        "url": dataset.core.url,
        "column": dataset.packing.column,
        "documents": dataset.rows,
        "stored_tokens": dataset.tokens,
        "tokens_per_pass": dataset.weight,
        "seq_len": dataset.packing.seq_len,
        "global_batch_size": order.batch,
        "world_size": order.world,
        "seed": run.seed,
        "shuffle": run.shuffle,
        "steps": steps,
        "rows": steps * order.batch,
        "tokens": steps * order.batch * dataset.packing.seq_len,
        "lanes": run.lanes,
        "window": window,
        "windows": run.core.windows,
        "row_groups": dataset.core.row_group_count,
        "column_bytes": stored,
        "ranks_planned": "all" if whole else "0",
        "bytes_by_rank": [report[0] for report in reports],
        "bytes_all_ranks": read if whole else None,
        "requests_by_rank": [report[3] for report in reports] if dataset.core.is_remote else None,
        "read_bytes": block if dataset.core.is_remote else None,
        "read_amplification": amplification,
        "read_amplification_bound": 1 + (order.world - 1) / window,
        "memory": memory,
        "window_bytes": window_bytes,
        "fixed_bytes": fixed,
        "workers": workers,
        "spills": window_bytes > memory - fixed,
        "documents_cut": min(1.0, cuts / max(1, dataset.rows)),
        "warnings": [],
    }
    report["warnings"] = _warnings(report)
    if as_json:
        print_json(report)
        return 0
    _print(report)
    for warning in report["warnings"]:
        warn(f"warning: {warning}")
    return 0


def _warnings(report: dict[str, Any]) -> list[str]:
    warnings: list[str] = []
    world, window = report["world_size"], report["window"]
    if world > 1 and world * 8 > window:
        warnings.append(
            f"{world} ranks share windows of {window} row groups: more than one rank for 8 row groups reads much "
            f"twice\nhint: a larger --window, or smaller row groups"
        )
    if report["spills"]:
        need = show_bytes(report["fixed_bytes"] + 2 * report["window_bytes"])
        warnings.append(
            f"a decoded window does not fit --memory and goes to a spill file\nhint: --memory {need!r} holds two"
        )
    return warnings


def _spread(counts: list[int], show: Callable[[int], str]) -> str:
    low, high = show(min(counts)), show(max(counts))
    return low if low == high else f"{low} to {high}"


def _print(report: dict[str, Any]) -> None:
    world, batch = report["world_size"], report["global_batch_size"]
    by_rank = report["bytes_by_rank"]
    if report["ranks_planned"] != "all":
        reading = [("bytes read", f"{show_bytes(by_rank[0])} by rank 0, the only one planned: there are too many")]
    else:
        spread = _spread(by_rank, show_bytes)
        reading = [
            (
                "bytes read",
                f"{spread} by a rank, {show_bytes(report['bytes_all_ranks'])} by all {world}" if world > 1 else spread,
            )
        ]
        if 1 < world <= _SHOWN_RANKS:
            reading += [(f"  rank {rank}", show_bytes(count)) for rank, count in enumerate(by_rank)]
    if report["requests_by_rank"] is not None:
        spread = _spread(report["requests_by_rank"], "{:,}".format)
        reading.append(("requests", f"{spread} by a rank, of {show_bytes(report['read_bytes'])} at most"))
    about = "" if report["ranks_planned"] == "all" else "about "
    pairs = [
        ("data", f"{report['url']}, column {report['column']!r}, {show_bytes(report['column_bytes'])} stored"),
        ("documents", f"{report['documents']:,}"),
        ("tokens a pass", f"{report['tokens_per_pass']:,}"),
        ("steps an epoch", f"{report['steps']:,} of {plural(batch, 'row')}, {batch // world:,} a rank"),
        (
            "tokens an epoch",
            f"{report['tokens']:,} in rows of {report['seq_len']:,}; the last step may run on into the next epoch",
        ),
        ("lanes", f"{report['lanes']:,}"),
        (
            "window",
            f"{report['window']:,} of {report['row_groups']:,} row groups, {plural(report['windows'], 'window')}",
        ),
        *reading,
        (
            "amplification",
            f"{about}{report['read_amplification']:.3f} times the column, "
            f"bound for equal row groups {report['read_amplification_bound']:.3f}",
        ),
        (
            "memory",
            f"{show_bytes(report['window_bytes'])} a decoded window, {show_bytes(report['fixed_bytes'])} batches and "
            f"buffers with {plural(report['workers'], 'thread')}, of {show_bytes(report['memory'])}",
        ),
        ("documents cut", f"at most {report['documents_cut']:.2%}, by the ends of lanes"),
    ]
    console().print(facts(pairs))

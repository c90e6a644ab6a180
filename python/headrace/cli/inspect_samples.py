"""`headrace inspect` for formats of samples: what a dataset holds, without reading samples."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import headrace
from headrace._units import show_bytes
from headrace.cli._common import console, facts, print_json, printable

__all__ = ["run"]


def run(dataset: headrace.SampleDataset, *, as_json: bool) -> int:
    """Prints what there is."""
    sources = [origin.source for origin in dataset.pipeline.origins]
    sizes = np.concatenate([source.sizes for source in sources])
    stored = np.concatenate([source.stored for source in sources])
    report: dict[str, Any] = {
        "url": dataset.url,
        "format": sources[0].format,
        "chunks": len(sizes),
        "samples": int(sizes.sum()),
        "bytes": int(stored.sum()),
        "samples_by_chunk": _spread(sizes),
        "bytes_by_chunk": _spread(stored),
        "schema": dict(dataset.schema),
    }
    if as_json:
        print_json(report)
    else:
        _print(report)
    return 0


def _spread(counts: npt.NDArray[np.int64]) -> dict[str, Any]:
    if not len(counts):
        return {"min": 0, "mean": 0.0, "max": 0}
    return {"min": int(counts.min()), "mean": float(counts.mean()), "max": int(counts.max())}


def _print(report: dict[str, Any]) -> None:
    pairs = [
        ("data", report["url"]),
        ("format", report["format"]),
        ("chunks", f"{report['chunks']:,}"),
        ("samples", f"{report['samples']:,}"),
        ("bytes", show_bytes(report["bytes"])),
        ("samples a chunk", _range(report["samples_by_chunk"], "{:,}".format)),
        ("bytes a chunk", _range(report["bytes_by_chunk"], show_bytes)),
    ]
    out = console()
    out.print(facts(pairs))
    # A sample that is no dict has one part without a name.
    out.print("\na sample")
    out.print(facts((f"  {printable(name)}" if name else "  is", kind) for name, kind in report["schema"].items()))


def _range(spread: dict[str, Any], show: Callable[[int], str]) -> str:
    if spread["min"] == spread["max"]:
        return show(spread["min"])
    return f"{show(spread['min'])} to {show(spread['max'])}, mean {show(round(spread['mean']))}"

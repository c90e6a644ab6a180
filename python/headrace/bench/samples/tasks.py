"""The tasks of the benchmark of samples: each in a process of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from headrace.bench import children, packages
from headrace.bench.samples import data, loaders
from headrace.bench.samples.job import Case

__all__ = ["check", "lacking", "prepare", "rate", "versions"]

WORKER = "headrace.bench.samples.worker"
SHAPE = 1  # version of all data: data of another one is made anew


def lacking(case: Case, loader: str) -> list[str]:
    """The packages that a loader and the case's data need and this environment does not have."""
    return packages.missing(loaders.PACKAGES[case.loaders[loader]] | data.PACKAGES[case.data])


def versions(case: Case, loader: str) -> dict[str, str]:
    """The packages that a loader uses, with their versions."""
    return packages.versions(loaders.PACKAGES[case.loaders[loader]])


def prepare(root: Path, case: Case, samples: int) -> None:
    """Make the data of a case unless it is there, or needs no files."""
    if case.data in data.UNWRITTEN:
        _folder(root, case, samples).mkdir(parents=True, exist_ok=True)
        return
    folder = _folder(root, case, samples)
    note = folder / "dataset.json"
    if note.exists() and json.loads(note.read_text())["shape"] == SHAPE:
        return
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "data").mkdir(parents=True)
    children.run(WORKER, {"do": "write", "kind": case.data, "data": str(folder / "data"), "samples": samples})
    # Written last: data without it is made anew.
    note.write_text(json.dumps({"shape": SHAPE}))


def rate(root: Path, case: Case, loader: str, samples: int) -> dict[str, Any]:
    """Time a loader."""
    return _run(root, case, loader, samples, {"do": "rate"})


def check(root: Path, case: Case, loader: str, samples: int, *, epochs: int) -> dict[str, Any]:
    """What a loader gives in an epoch, and its memory over several."""
    return _run(root, case, loader, samples, {"do": "check", "epochs": epochs})


def _folder(root: Path, case: Case, samples: int) -> Path:
    return root / f"samples-{case.data}-{samples}"


def _run(root: Path, case: Case, loader: str, samples: int, task: dict[str, Any]) -> dict[str, Any]:
    folder = _folder(root, case, samples)
    copy = folder / loader
    copy.mkdir(exist_ok=True)
    task |= {
        "case": case.name,
        "loader": case.loaders[loader],
        "samples": samples,
        "data": str(folder / "data"),
        "copy": str(copy),
    }
    return children.run(WORKER, task)[0]

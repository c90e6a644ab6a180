"""The data of the cases, a module each."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from headrace.bench.samples.job import DataModule

__all__ = ["PACKAGES", "UNWRITTEN", "load"]

PACKAGES: dict[str, dict[str, str]] = {
    "integers": {},
    "waits": {},
    "arrays": {},
    "python": {},
    "images_litdata": {"litdata": "litdata", "PIL": "pillow"},
    "images_mds": {"streaming": "mosaicml-streaming", "PIL": "pillow"},
    "rows": {"pyarrow": "pyarrow"},
}
"""What it takes to write the data, or to read it: from the names as imported to those as installed."""

UNWRITTEN = ("integers", "waits", "python")
"""What needs no files."""


def load(name: str) -> DataModule:
    """Import a module of data."""
    return cast(DataModule, import_module(f"{__name__}.{name}"))

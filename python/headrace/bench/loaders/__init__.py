"""The loaders that are compared, a module each; what they have in common is in `headrace.bench.job`.

A module imports its package at the top, so that importing is no part of what is measured; this one imports none.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from headrace.bench import packages
from headrace.bench.job import Module

__all__ = ["NAMES", "load", "missing", "versions"]

# The packages that each loader needs: as they are imported, and as they are called where they are installed from.
_PACKAGES: dict[str, dict[str, str]] = {
    "headrace": {"headrace": "headrace"},
    "headrace-mix": {"headrace": "headrace"},
    "hf": {"datasets": "datasets", "pyarrow": "pyarrow"},
    "hf-stream": {"datasets": "datasets", "pyarrow": "pyarrow"},
    "mosaic": {"streaming": "mosaicml-streaming", "torch": "torch"},
    "litdata-tokens": {"litdata": "litdata", "torch": "torch"},
    "litdata-parquet": {"litdata": "litdata", "torch": "torch", "polars": "polars"},
    "grain": {"grain": "grain"},
    "memmap": {"numpy": "numpy"},
}

NAMES = tuple(_PACKAGES)


def missing(name: str) -> list[str]:
    """The packages that a loader needs and this environment lacks."""
    return packages.missing(_PACKAGES[name])


def versions(name: str) -> dict[str, str]:
    """The packages that a loader uses, with their versions."""
    return packages.versions(_PACKAGES[name])


def load(name: str) -> Module:
    """Import a loader's module, and with it all that it needs."""
    return cast(Module, import_module(f"{__name__}.{name.replace('-', '_')}"))

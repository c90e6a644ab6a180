"""The loaders, a module each; what they have in common is in `headrace.bench.samples.job`.

A module imports its package at the top, so that importing is no part of what is measured; this one imports none.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from headrace.bench.samples.job import LoaderModule

__all__ = ["PACKAGES", "load"]

PACKAGES: dict[str, dict[str, str]] = {
    "headrace_map": {"headrace": "headrace"},
    "headrace_folder": {"headrace": "headrace"},
    "torch_map": {"torch": "torch"},
    "torch_persistent": {"torch": "torch"},
    "litdata_images": {"litdata": "litdata", "torch": "torch"},
    "litdata_rows": {"litdata": "litdata", "torch": "torch", "polars": "polars"},
    "mosaic_images": {"streaming": "mosaicml-streaming", "torch": "torch"},
    "hf_rows": {"datasets": "datasets", "pyarrow": "pyarrow"},
    "hf_rows_torch": {"datasets": "datasets", "pyarrow": "pyarrow", "torch": "torch"},
}
"""What each module needs: from the names as they are imported to those as they are installed."""


def load(name: str) -> LoaderModule:
    """Import a loader's module, and with it all that it needs."""
    return cast(LoaderModule, import_module(f"{__name__}.{name}"))

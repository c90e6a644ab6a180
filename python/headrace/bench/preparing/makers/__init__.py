"""Those who make datasets, a module each; what they have in common is in `headrace.bench.preparing.job`.

A module imports its package at the top, so that importing is no part of what is measured; this one imports none.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from headrace.bench.preparing.job import MakerModule

__all__ = ["PACKAGES", "load"]

PACKAGES: dict[str, dict[str, str]] = {
    "headrace_tokenize": {"headrace": "headrace", "tokenizers": "tokenizers", "pyarrow": "pyarrow"},
    "headrace_images": {"headrace": "headrace"},
    "headrace_tokens": {"headrace": "headrace"},
    "litdata_images": {"litdata": "litdata"},
    "litdata_tokens": {"litdata": "litdata"},
    "mosaic_images": {"streaming": "mosaicml-streaming"},
    "mosaic_tokens": {"streaming": "mosaicml-streaming"},
    "tokenizers_batch": {"tokenizers": "tokenizers"},
    "datasets_map": {"datasets": "datasets", "tokenizers": "tokenizers", "pyarrow": "pyarrow"},
}
"""What each module needs: from the names as they are imported to those as they are installed."""


def load(name: str) -> MakerModule:
    """Import a maker's module, and with it all that it needs."""
    return cast(MakerModule, import_module(f"{__name__}.{name}"))

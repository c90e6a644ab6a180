"""The data of the cases, a module each."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from headrace.bench.preparing.job import DataModule

__all__ = ["PACKAGES", "load"]

PACKAGES: dict[str, dict[str, str]] = {
    "arrays": {},
    "jpegs": {"PIL": "pillow"},
    "text": {"tokenizers": "tokenizers"},
}
"""What it takes to write the data: from the names as imported to those as installed."""


def load(name: str) -> DataModule:
    """Import a module of data."""
    return cast(DataModule, import_module(f"{__name__}.{name}"))

"""The packages that a loader needs: a dict from the name as it is imported to that as it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from importlib import metadata

import headrace

__all__ = ["missing", "versions"]


def missing(packages: Mapping[str, str]) -> list[str]:
    """Those that this environment lacks."""
    return [package for module, package in packages.items() if importlib.util.find_spec(module) is None]


def versions(packages: Mapping[str, str]) -> dict[str, str]:
    """All of them, with their versions."""
    own = {"headrace": headrace.__version__}  # which may be used without being installed
    return {package: own.get(package) or metadata.version(package) for package in packages.values()}

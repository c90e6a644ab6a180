"""Those that are compared, and how measuring goes on when one of them cannot."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from headrace.bench.children import TaskError

__all__ = ["Comparison", "say", "turned"]

T = TypeVar("T")


class Comparison:
    """What was found out about each, by name. One that was skipped or failed takes no further part.

    Args:
        names: who takes part.
        lacks: the packages that each needs and this environment does not have.
    """

    def __init__(self, names: Sequence[str], lacks: Callable[[str], list[str]]) -> None:
        self.results: dict[str, dict[str, Any]] = {name: {} for name in names}
        for name, result in self.results.items():
            if packages := lacks(name):
                result["skipped"] = f"skipped: {', '.join(packages)} not installed"
                say(f"{name}: {result['skipped']}")

    def each(self, what: str, do: Callable[[str], T], order: Sequence[str] | None = None) -> dict[str, T]:
        """Do something for each that can still run, one at a time, and go on without one that fails."""
        done: dict[str, T] = {}
        for name in self.results if order is None else order:
            if self.results[name].keys() & {"skipped", "failed"}:
                continue
            try:
                begin = time.monotonic()
                done[name] = do(name)
                say(f"{what}: {name}, {time.monotonic() - begin:.1f} s")
            except TaskError as error:
                self.results[name]["failed"] = str(error)
                say(f"{what}: {name} failed: {error}")
        return done

    @property
    def failed(self) -> bool:
        """Whether one of them did."""
        return any("failed" in result for result in self.results.values())


def turned(names: Sequence[str], number: int) -> list[str]:
    """The order of a round: it turns by one from round to round, so that a slow moment meets them all."""
    turn = number % len(names)
    return [*names[turn:], *names[:turn]]


def say(text: str) -> None:
    """Tell how far it is, on standard error."""
    print(text, file=sys.stderr, flush=True)

"""What is measured, case by case."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.bench.preparing.job import Case

__all__ = ["CASES", "chosen"]

_ALL = (
    Case(
        name="tokenize",
        about="text in JSON Lines to tokens",
        data="text",
        makers={"headrace": "headrace_tokenize", "tokenizers": "tokenizers_batch", "datasets": "datasets_map"},
        aims={"tokenizers": 0.9},
        unit="tokens",
        size=64,
        quick=2,
    ),
)

CASES = {case.name: case for case in _ALL}


def chosen(names: Sequence[str]) -> list[Case]:
    """The cases of some names.

    Raises:
        ValueError: if there is none of a name.
    """
    for name in names:
        if name not in CASES:
            raise ValueError(f"no such task: {name!r}; there are {', '.join(CASES)}")
    return [case for case in _ALL if case.name in names]

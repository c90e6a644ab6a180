"""What is measured, case by case."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.bench.preparing.job import Case

__all__ = ["CASES", "chosen"]

_IMAGES = {"headrace": "headrace_images", "litdata": "litdata_images", "mosaic": "mosaic_images"}

_ALL = (
    Case(
        name="tokenize",
        about="text in JSON Lines to tokens",
        data="text",
        makers={"headrace": "headrace_tokenize", "tokenizers": "tokenizers_batch", "datasets": "datasets_map"},
        aims={"tokenizers": 0.9},
        unit="tokens",
        size=128,
        quick=2,
    ),
    Case(
        name="images",
        about="encoded images to LitData chunks, or MDS shards",
        data="jpegs",
        makers=_IMAGES,
        aims={"litdata": 2, "mosaic": 2},
        unit="samples",
        size=200_000,
        quick=2_000,
    ),
    Case(
        name="arrays",
        about="arrays of tokens to LitData chunks, or MDS shards",
        data="arrays",
        makers={"headrace": "headrace_tokens", "litdata": "litdata_tokens", "mosaic": "mosaic_tokens"},
        aims={"litdata": 2, "mosaic": 2},
        unit="samples",
        size=200_000,
        quick=2_000,
    ),
    Case(
        name="start",
        about="a hundred images: processes that start, and an index",
        data="jpegs",
        makers={"headrace": "headrace_images", "litdata": "litdata_images"},
        aims={"litdata": 3},
        unit="samples",
        size=100,
        quick=100,
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

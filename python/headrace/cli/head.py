"""`headrace head`: some samples, with what is long cut short."""

import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from headrace.cli._common import console, facts, format_of, open_samples, print_json, printable

__all__ = ["run"]

_LETTERS, _BYTES = 100, 24
"""Characters of text, and bytes, that are shown."""
_EDGE = 3
"""Values that are shown from the start of an array or a list, and as many from its end."""
_DEEPEST = 4
"""Containers in each other that are shown."""


def run(
    urls: list[str],
    *,
    count: int,
    start: int,
    select: list[str] | None,
    format: str | None,
    stored_dtype: str | None,
    storage_option: list[str] | None,
    as_json: bool,
) -> int:
    """Prints the samples."""
    dataset = open_samples(urls, storage_option, format, stored_dtype=stored_dtype)
    if select:
        dataset = dataset.select(select)
    if start > len(dataset):
        raise ValueError(f"--start must be in 0..{len(dataset)}, the samples of {dataset.url}, got {start}")
    numbers = range(start, min(start + count, len(dataset)))
    samples = [(number, dataset.place(number), dataset[number]) for number in numbers]
    if as_json:
        shown = [{"number": at, **place._asdict(), "sample": _plain(sample)} for at, place, sample in samples]
        print_json({"url": dataset.url, "format": format_of(dataset), "count": len(dataset), "samples": shown})
        return 0
    out = console()
    for number, place, sample in samples:
        out.print(f"sample {number:,} of {len(dataset):,}: {printable(str(place))}", soft_wrap=True)
        parts = cast("dict[Any, Any]", sample) if isinstance(sample, dict) else {"": sample}
        out.print(facts((f"  {printable(str(name))}", _shown(value)) for name, value in parts.items()))
    return 0


def _shown(value: Any, depth: int = 0) -> str:
    """A value on one line."""
    if isinstance(value, str | bytes):
        cut, word = (value[:_LETTERS], "characters") if isinstance(value, str) else (value[:_BYTES], "bytes")
        return repr(cut) + (f" ... of {len(value):,} {word}" if len(value) > len(cut) else "")
    if isinstance(value, np.ndarray):
        array = cast("npt.NDArray[Any]", value)
        flat = array.reshape(-1)
        return f"{array.dtype} {list(array.shape)}: {_some([str(part) for part in _edges(flat)], flat.size)}"
    if isinstance(value, dict):
        pairs = list(cast("dict[Any, Any]", value).items())
        inside = [f"{printable(str(name))}: {_shown(part, depth + 1)}" for name, part in pairs[: 2 * _EDGE]]
        return "{...}" if depth == _DEEPEST else f"{{{_listed(inside, len(pairs))}}}"
    if isinstance(value, list | tuple):
        parts = cast("list[Any]", value)
        inside = [_shown(part, depth + 1) for part in parts[: 2 * _EDGE]] if depth < _DEEPEST else []
        return f"[{_listed(inside, len(parts))}]"
    if (image := _image(value)) is not None:
        return f"image {image['mode']} {image['width']} x {image['height']}"
    return printable(" ".join(repr(value).split()))[: 2 * _LETTERS]


def _edges(flat: npt.NDArray[Any]) -> list[Any]:
    return [*flat] if flat.size <= 2 * _EDGE else [*flat[:_EDGE], *flat[-_EDGE:]]


def _some(edges: list[str], count: int) -> str:
    """Values of an array, of which those in the middle are missing."""
    if count > len(edges):
        edges.insert(_EDGE, f"... {count - len(edges):,} more ...")
    return " ".join(edges)


def _listed(parts: list[str], count: int) -> str:
    return ", ".join([*parts, *([f"... {count - len(parts):,} more"] if count > len(parts) else [])])


def _image(value: Any) -> dict[str, Any] | None:
    """Mode and size of an image of Pillow, which is not imported for it."""
    mode, size = getattr(value, "mode", None), getattr(value, "size", None)
    if not isinstance(mode, str) or not isinstance(size, tuple):
        return None
    width, height = cast("tuple[int, int]", size)
    return {"mode": mode, "width": width, "height": height}


def _plain(value: Any) -> Any:
    """A value as JSON has it: text, numbers, lists and dicts whole, of others what they are and how they begin."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, bytes):
        return {"bytes": len(value), "hex": value[:_BYTES].hex()}
    if isinstance(value, np.ndarray):
        array = cast("npt.NDArray[Any]", value)
        first = [_plain(part) for part in array.reshape(-1)[: 2 * _EDGE].tolist()]
        return {"dtype": str(array.dtype), "shape": list(array.shape), "first": first}
    if isinstance(value, np.generic):
        return _plain(cast("Any", value).item())
    if isinstance(value, dict):
        return {_plain(str(name)): _plain(part) for name, part in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in cast("list[Any]", value)]
    return _image(value) or _plain(repr(value))

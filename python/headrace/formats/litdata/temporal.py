"""Temporal items: arrays with a common axis of frames, stored in groups of fields, frame by frame."""

import struct
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from headrace.errors import DataError

from .arrays import as_tensor
from .leaves import Options

__all__ = ["TemporalSchema"]

_VERSION = 1


class TemporalSchema:
    """The layout that ``temporal_schema`` of an index describes.

    Attributes:
        texts: a field's name to its type as text, in the order of a sample.

    Raises:
        DataError: if it is no such schema.
    """

    def __init__(self, schema: Mapping[str, Any], options: Options, where: str) -> None:
        self._as_torch = options.torch
        if schema.get("version") != _VERSION:
            raise DataError(
                f"{where}: expected a temporal_schema of version {_VERSION}, found {schema.get('version')!r}"
            )
        try:
            fields = cast("dict[str, dict[str, Any]]", schema["fields"])
            names = cast("list[str]", schema["field_order"])
            groups = cast("list[list[str]]", schema["groups"])
            self._groups = [_group(fields, group) for group in groups]
            self._tensors = {name: bool(fields[name].get("tensor")) for name in names}
            self._place = {name: number for number, group in enumerate(groups) for name in group}
            if sorted(names) != sorted(fields) or sorted(name for group in groups for name in group) != sorted(fields):
                raise DataError("expected each field in one group")
            self.texts = {name: self._text(self._groups[self._place[name]], name) for name in names}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            detail = str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
            raise DataError(f"{where}: expected a temporal_schema of LitData: {detail}") from None
        if not names:
            raise DataError(f"{where}: expected a temporal_schema with fields")

    def decoder(self, columns: tuple[str, ...] | None) -> Callable[[bytes], dict[str, Any]]:
        """From an item's bytes to a dict of arrays."""
        names = tuple(self.texts) if columns is None else columns
        groups, as_torch, tensors = self._groups, self._as_torch, self._tensors
        places = [(name, self._place[name]) for name in names]
        row = sum(group.itemsize for group in groups)

        def decode(data: bytes) -> dict[str, Any]:
            (frames,) = struct.unpack_from("<I", data)
            if not frames or 4 + frames * row != len(data):
                raise DataError(f"expected {frames} frames of {row} bytes, found an item of {len(data)} bytes")
            views: list[Any] = []
            at = 4
            for group in groups:
                views.append(np.frombuffer(data, group, frames, at))
                at += frames * group.itemsize
            sample: dict[str, Any] = {}
            for name, place in places:
                array = views[place][name].copy()
                sample[name] = as_tensor(array, -1) if as_torch and tensors[name] else array
            return sample

        return decode

    def _text(self, group: np.dtype[Any], name: str) -> str:
        base = cast("Any", group)[name].base
        return f"{'tensor' if self._as_torch and self._tensors[name] else 'ndarray'}[{base.name}]"


def _group(fields: Mapping[str, Mapping[str, Any]], names: list[str]) -> np.dtype[Any]:
    parts: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = []
    for name in names:
        dtype, shape = np.dtype(cast("str", fields[name]["dtype"])), tuple(fields[name]["shape"])
        if dtype.kind not in "biufc" or any(type(size) is not int or size < 1 for size in shape):
            raise DataError(f"expected numbers and their shape as {name!r}, found {dtype} {shape}")
        parts.append((name, dtype, shape))
    return np.dtype(parts, align=True)

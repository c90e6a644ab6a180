"""Arrays of a batch as tensors over the same memory."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch

__all__ = ["map_tensors", "tensors_of"]


def tensors_of(batch: Any) -> Any:
    """A batch with its arrays as tensors over the same memory; dicts, lists and tuples are kept."""
    if isinstance(batch, np.ndarray):
        array: Any = cast("Any", batch)
        return torch.from_numpy(array) if array.dtype.kind in "biufc" else array  # pyright: ignore[reportUnknownMemberType]
    return _kept(batch, tensors_of)


def map_tensors(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A batch with its tensors changed; dicts, lists and tuples are kept."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    return _kept(batch, lambda value: map_tensors(value, change))


def _kept(batch: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(batch, Mapping):
        return {name: change(value) for name, value in cast("Mapping[str, Any]", batch).items()}
    make: Any = getattr(batch, "_make", None)
    kind: Any = type(batch)  # pyright: ignore[reportUnknownVariableType]
    if kind in (list, tuple):
        make = kind
    return make([change(value) for value in cast("list[Any]", batch)]) if callable(make) else batch

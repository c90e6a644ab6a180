"""What batches hold beside packed columns, made of the rows' records: pure."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .source import Layout, Record

__all__ = ["boundaries", "hide"]


def boundaries(layout: Layout, records: Sequence[Record | None]) -> dict[str, Any]:
    """The arrays that a layout asks for: see docs/order.md, "Boundaries".

    Args:
        layout: of packed rows.
        records: of the rows of a batch, in order; None for a row of padding.

    Raises:
        ValueError: if there are more parts than ``cu_seqlens`` has room for.
    """
    if not (layout.boundaries or layout.loss_mask):
        return {}
    width = next(column.width for column in layout.columns.values() if column.width is not None)
    parts = [[] if record is None else list(record.lengths) for record in records]
    used = np.array([sum(own) for own in parts], dtype=np.int64)
    made: dict[str, Any] = {}
    if layout.boundaries:
        for own, count in zip(parts, used.tolist(), strict=True):
            if count < width:
                own.append(width - count)
        lengths = np.array([length for own in parts for length in own], dtype=np.int64)
        numbers = np.array([number for own in parts for number in range(len(own))], dtype=np.int32)
        ends = np.cumsum(lengths)
        shape = (len(records), width)
        made["document_ids"] = np.repeat(numbers, lengths).reshape(shape)
        made["position_ids"] = (np.arange(shape[0] * width) - np.repeat(ends - lengths, lengths)).astype(np.int32)
        made["position_ids"] = made["position_ids"].reshape(shape)
        made |= _cumulative(layout, lengths, ends, width)
    if layout.loss_mask:
        made["loss_mask"] = (np.arange(width) < used[:, None]).view(np.uint8)
    return made


def hide(mask: npt.NDArray[Any], records: Sequence[Record | None]) -> None:
    """Writes 0 to a mask, (rows, width), where parts of rows are masked."""
    for row, record in enumerate(records):
        masked = () if record is None else record.masked
        if not any(masked):
            continue
        assert record is not None  # nothing is masked of none
        at = 0
        for length, is_masked in zip(record.lengths, masked, strict=True):
            if is_masked:
                mask[row, at : at + length] = 0
            at += length


def _cumulative(layout: Layout, lengths: Any, ends: Any, width: int) -> dict[str, Any]:
    """Where parts begin and end if the first `seq_len` entries of all rows are laid end to end."""
    row, begin = np.divmod(ends - lengths, width)
    end = np.minimum(begin + lengths, layout.seq_len)
    kept = begin < layout.seq_len
    stops = (row * layout.seq_len + end)[kept]
    offsets = np.zeros(len(stops) + 1, dtype=np.int32)
    offsets[1:] = stops
    longest = int(np.diff(offsets).max(initial=0))
    size = layout.cu_seqlens_size
    if size is not None:
        if len(offsets) > size:
            raise ValueError(f"cu_seqlens_size must be at least {len(offsets)} for this batch, got {size}")
        offsets = np.pad(offsets, (0, size - len(offsets)), mode="edge")
    return {"cu_seqlens": offsets, "max_seqlen": longest}

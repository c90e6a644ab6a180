"""Batches of rows, for loaders whose own way with the vectors in them is slow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["row_batch"]


def row_batch(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A batch of rows; PyTorch's own collating would make a tensor of each element of the vectors."""
    return {
        "id": np.array([row["id"] for row in rows]),
        "score": np.array([row["score"] for row in rows], np.float32),
        "url": [row["url"] for row in rows],
        "text": [row["text"] for row in rows],
        "vector": np.array([row["vector"] for row in rows], np.float32),
    }

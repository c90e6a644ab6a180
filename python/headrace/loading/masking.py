"""Masks in batches of samples: which of them do not count for the loss."""

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["masked", "not_a_dict"]


def masked(batch: dict[str, Any], hidden: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """A batch with a ``loss_mask`` that is 0 where samples are hidden, and else 1 or what the batch has there.

    Args:
        batch: what collation made.
        hidden: bool, (samples,).

    Returns:
        The batch, whose own ``loss_mask`` is copied if it has one; else a new one is uint8, (samples,). What an empty
        batch has there stays as it is.

    Raises:
        ValueError: if its own has no entry for each sample.
    """
    old = batch.get("loss_mask")
    if old is None:
        return batch | {"loss_mask": (~hidden).astype(np.uint8)}
    if not len(hidden):
        return batch
    if getattr(old, "shape", ())[:1] != hidden.shape:
        found = f"an array of shape {list(old.shape)}" if hasattr(old, "shape") else type(old).__name__
        raise ValueError(
            f"exclude masks samples in the batch's 'loss_mask': expected an array with an entry for each of "
            f"{len(hidden)} samples, found {found}"
        )
    # Of NumPy a copy, and of PyTorch a tensor on the same device.
    mask = old.clone() if hasattr(old, "clone") else np.array(old)
    mask[np.flatnonzero(hidden)] = 0
    return batch | {"loss_mask": mask}


def not_a_dict(batch: Any) -> str:
    """What is said of a batch that cannot hold a mask."""
    return (
        f"exclude masks samples in batches that are dicts, this one is a {type(batch).__name__}\n"
        "hint: make dicts of samples with map, or of batches with collate_fn; a run that begins with exclude= has none "
        "of these samples, and no mask"
    )

"""headrace for JAX: global arrays over a mesh of devices, of which each process brings its own rows."""

from collections.abc import Mapping
from typing import Any, SupportsIndex, cast

import jax as _jax
import numpy as np
import numpy.typing as npt

from ._moving import MovingLoader
from ._units import as_int

__all__ = ["ArrayBatch", "DataLoader"]

_AHEAD = 2

# Its types are known only in part.
jax: Any = _jax


class ArrayBatch(dict[str, Any]):
    """A global batch as arrays of JAX: a dict that knows where it stands.

    Attributes:
        step: the step, from 0 through the whole run.
        epoch: the epoch.
        rows: int64, (rows,): the numbers in the run of the rows that this process brought.

    Example:
        >>> from headrace.jax import DataLoader
        >>> batch = next(iter(DataLoader(packed, global_batch_size=4)))
        >>> batch["tokens"].shape, batch.step, batch.rows.tolist()
        ((4, 64), 0, [0, 1, 2, 3])
    """

    __slots__ = ("_batch", "epoch", "rows", "step")

    step: int
    epoch: int
    rows: npt.NDArray[np.int64]

    def __init__(self, arrays: Mapping[str, Any], batch: Any) -> None:
        super().__init__(arrays)
        self.step, self.epoch, self.rows = batch.step, batch.epoch, batch.rows
        self._batch = batch

    @property
    def state(self) -> dict[str, Any]:
        """The state after this batch, as `DataLoader.state_dict` gives it; built when asked for.

        Example:
            >>> from headrace.jax import DataLoader
            >>> next(iter(DataLoader(packed, global_batch_size=4))).state["step"]
            1
        """
        return self._batch.state

    def sources(self) -> list[Any]:
        """Where each row that this process brought comes from, see `headrace.Batch.sources`.

        Example:
            >>> from headrace.jax import DataLoader
            >>> len(next(iter(DataLoader(packed, global_batch_size=4))).sources())
            4
        """
        return self._batch.sources()


class DataLoader(MovingLoader):
    """A `headrace.DataLoader` whose batches are arrays of JAX, on devices ahead of use.

    With a `sharding` each array is the global one: this process' rows lie on its own devices, those of others on
    theirs, and nothing travels between them. Rows are those of `headrace.DataLoader`, so they do not depend on the
    number of processes. What has no line for each row (``cu_seqlens``, lists of text) stays as it is, on this process'
    side.

    All other arguments are those of `headrace.DataLoader`, in its order; `rank` and `world_size` are JAX's process
    index and count by default. Of numbers with 64 bits JAX makes such with 32, unless told otherwise.

    Args:
        arguments: of `headrace.DataLoader`.
        sharding: how the rows of a global batch lie on the devices of all processes, each process' next to each other:
            ``NamedSharding(mesh, PartitionSpec("data"))``; None for JAX's default device.
        ahead: batches on the devices ahead of use, 2 by default.
        settings: of `headrace.DataLoader`.

    Example:
        >>> from headrace.jax import DataLoader
        >>> for batch in DataLoader(packed, global_batch_size=4):
        ...     tokens = batch["tokens"]
        >>> tokens.dtype.name, tokens.shape
        ('int32', (4, 64))
    """

    def __init__(
        self,
        *arguments: Any,
        sharding: _jax.sharding.Sharding | None = None,
        ahead: SupportsIndex | None = None,
        **settings: Any,
    ) -> None:
        before = _AHEAD if ahead is None else as_int(ahead, "ahead", least=0, most=1024)
        if settings.get("rank") is None and settings.get("world_size") is None:
            settings |= {"rank": jax.process_index(), "world_size": jax.process_count()}
        super().__init__(*arguments, ahead=before, **settings)
        self._sharding = sharding

    def _send(self, batch: Any) -> Any:
        rows = len(batch.rows) if hasattr(batch, "rows") else None
        return batch, self._moved(batch, rows)

    def _receive(self, sent: Any) -> Any:
        batch, arrays = cast("tuple[Any, Any]", sent)
        if isinstance(batch, Mapping) and hasattr(batch, "step") and hasattr(batch, "state"):  # pyright: ignore
            return ArrayBatch(arrays, batch)
        return arrays

    def _moved(self, value: Any, rows: int | None) -> Any:
        if isinstance(value, np.ndarray):
            array = cast("npt.NDArray[Any]", value)
            if array.dtype.kind not in "biufc" or (rows is not None and (not array.ndim or len(array) != rows)):
                return array
            if self._sharding is None:
                return jax.device_put(array)
            return jax.make_array_from_process_local_data(self._sharding, array)
        if isinstance(value, Mapping):
            parts = cast("Mapping[str, Any]", value)
            return {name: self._moved(part, rows) for name, part in parts.items()}
        if type(value) in (list, tuple):
            return type(value)(self._moved(part, rows) for part in cast("list[Any]", value))
        return value

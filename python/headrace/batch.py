"""What the training loop gets."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _core

__all__ = ["Batch", "RowBatch", "Source"]


class Source(NamedTuple):
    """A part of a row: `tokens` stored tokens of one document, from `first_token` on.

    Tokens that packing adds (bos, eos) are not counted: a part that holds nothing else has 0 tokens.

    Example:
        >>> file, row_group, row, first, count = next(iter(loader)).sources()[0][0]
        >>> count <= 50
        True
    """

    file: str
    row_group: int
    row: int
    first_token: int
    tokens: int

    @property
    def id(self) -> str:
        """The document's name as one text, by which `DataLoader` takes documents to exclude.

        Example:
            >>> headrace.Source("data/a.parquet", 0, 17, 0, 50).id
            'data/a.parquet:0:17'
        """
        return f"{self.file}:{self.row_group}:{self.row}"


class Batch(Mapping[str, Any]):
    """One rank's part of a global batch: names to arrays, and where it stands in the run.

    The arrays are NumPy arrays over the memory that the core wrote them to. They may be changed, and live as long as
    anything refers to them; then the memory is used again. `torch.from_dlpack`, `jax.dlpack.from_dlpack` and
    `pyarrow.record_batch(batch)` take them without a copy.

    With the default names a packed batch holds ``tokens`` (int32 or int64, (rows, seq_len + overlap)); with
    boundaries also ``document_ids`` and ``position_ids`` (int32, the same shape), ``cu_seqlens`` (int32, (parts + 1,))
    and ``max_seqlen`` (int); with ``remainder="pad"`` also ``loss_mask`` (uint8, the same shape: 1 for tokens); of a
    mixture also ``source`` (int32, (rows,): numbers of its `names`).

    It pickles as a dict of its arrays.

    Attributes:
        step: the step, from 0 through the whole run.
        epoch: the epoch of the global batch's first row.

    Example:
        >>> batch = next(iter(loader))
        >>> batch["tokens"].shape, batch.step, batch.rows.tolist()
        ((4, 64), 0, [0, 1, 2, 3])
    """

    __slots__ = ("_arrays", "_make_state", "_names", "_raw", "_rows", "epoch", "step")

    step: int
    epoch: int

    def __init__(self, core: _core.Batch, names: Mapping[str, str], make_state: Callable[[], dict[str, Any]]) -> None:
        self.step = core.step
        self.epoch = core.epoch
        self._rows: npt.NDArray[np.int64] | None = None
        self._raw = core
        self._names = names
        self._make_state = make_state
        self._arrays: dict[str, Any] = {names.get(name, name): np.asarray(memory) for name, memory in core.arrays()}
        if core.max_seqlen is not None:
            self._arrays["max_seqlen"] = core.max_seqlen

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """int64, (rows,): the number of each row in the run.

        Example:
            >>> next(iter(loader)).rows.tolist()
            [0, 1, 2, 3]
        """
        if self._rows is None:
            self._rows = np.array(self._raw.rows, dtype=np.int64)
        return self._rows

    @property
    def state(self) -> dict[str, Any]:
        """The state after this batch, as `DataLoader.state_dict` gives it; built when asked for.

        Example:
            >>> batch = next(iter(loader))
            >>> batch.state == loader.state_dict()
            True
        """
        return self._make_state()

    def sources(self) -> list[list[Source]]:
        """For each row, the parts that it was packed from, in order. A row of padding has none.

        Example:
            >>> batch = next(iter(loader))
            >>> [source.tokens for source in batch.sources()[0]][:1] <= [50]
            True
        """
        return [[Source(*part) for part in row] for row in self._raw.sources()]

    def __getitem__(self, name: str) -> Any:
        try:
            return self._arrays[name]
        except KeyError:
            raise KeyError(f"{name!r}: this batch holds {', '.join(self._arrays)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """The arrays that have one entry a row, as a struct array by the Arrow PyCapsule interface, without a copy.

        `requested_schema` is ignored, as the interface allows.
        """
        return self._raw.arrow_c_array(list(self._names.items()))

    def __reduce__(self) -> Any:
        # Where it stands is the loader's, which is not sent along.
        return dict, (dict(self),)

    def __repr__(self) -> str:
        def show(value: Any) -> str:
            return f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") else repr(value)

        arrays = ", ".join(f"{name}: {show(value)}" for name, value in self._arrays.items())
        return f"Batch(step={self.step}, epoch={self.epoch}, {arrays})"


class RowBatch(Batch):
    """A batch of rows that were packed lane by lane, see `Batch`. `sources` counts tokens of the document, and names
    the item that it was made of: several documents of one item (`flat_map`) have the same row, and documents of a group
    (`batch_map`) that of the first one in it.
    """  # noqa: D205

    __slots__ = ("_epoch", "_sources")

    def __init__(
        self,
        arrays: Mapping[str, Any],
        *,
        step: int,
        rows: npt.NDArray[np.int64],
        epoch: Callable[[], int],
        sources: Callable[[], list[list[Source]]],
        state: Callable[[], dict[str, Any]],
    ) -> None:
        self.step = step
        self._arrays = dict(arrays)
        self._rows = rows
        self._epoch = epoch
        self._sources = sources
        self._make_state = state

    @property
    def epoch(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The pass that the slowest of this rank's lanes was in before this batch."""
        return self._epoch()

    def sources(self) -> list[list[Source]]:
        """See `Batch.sources`."""
        return self._sources()

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """See `Batch`; made by pyarrow.

        Raises:
            ImportError: if pyarrow is not installed.
        """
        import pyarrow  # pyright: ignore[reportMissingTypeStubs]

        pa: Any = pyarrow
        columns: dict[str, Any] = {}
        for name, array in self._arrays.items():
            if name in ("cu_seqlens", "max_seqlen"):
                continue
            flat: Any = pa.array(array.reshape(-1))
            columns[name] = flat if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, array.shape[1])
        rows: Any = pa.StructArray.from_arrays(list(columns.values()), list(columns))
        return rows.__arrow_c_array__(requested_schema)

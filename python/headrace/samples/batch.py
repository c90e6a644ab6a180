"""What the training loop gets of samples: a dict that knows where it stands."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["SampleBatch"]

_Ints = npt.NDArray[np.int64]


class SampleBatch(dict[str, Any]):
    """One rank's part of a global batch: the dict that collation made.

    It pickles as a dict. A batch that is no dict is given as it is, without these attributes; `DataLoader.state_dict`
    is the state after it.

    Attributes:
        step: the step, from 0 through the whole run.
        epoch: the epoch.

    Example:
        >>> batch = next(iter(headrace.DataLoader(samples, batch_size=4, shuffle=False)))
        >>> batch["label"].tolist(), batch.step, batch.positions.tolist()
        ([0, 1, 0, 1], 0, [0, 1, 2, 3])
    """

    __slots__ = ("_numbers", "_sources", "_state", "epoch", "step")

    def __init__(
        self,
        parts: Mapping[str, Any],
        *,
        step: int,
        epoch: int,
        numbers: Callable[[], tuple[_Ints, _Ints]],
        sources: Callable[[], list[Any]],
        state: Callable[[], dict[str, Any]],
    ) -> None:
        super().__init__(parts)
        self.step = step
        self.epoch = epoch
        self._numbers = numbers
        self._sources = sources
        self._state = state

    @property
    def rows(self) -> _Ints:
        """int64, (samples,): the number of each sample's row in the run."""
        return self._numbers()[0]

    @property
    def positions(self) -> _Ints:
        """int64, (samples,): the number of each sample in the dataset; of a zip (samples, sources): that in each of its
        datasets.
        """  # noqa: D205
        return self._numbers()[1]

    @property
    def state(self) -> dict[str, Any]:
        """The state after this batch, as `DataLoader.state_dict` gives it; built when asked for."""
        return self._state()

    def sources(self) -> list[Any]:
        """Where each sample lies: a `Place`, with file, chunk and row; of a zip `Places`, with one for each source.

        Example:
            >>> next(iter(headrace.DataLoader(samples, batch_size=2, shuffle=False))).sources()[1].row
            1
        """
        return self._sources()

    def __reduce__(self) -> Any:
        return dict, (dict(self),)

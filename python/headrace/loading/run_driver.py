"""What the drivers over datasets of headrace have in common: a run, where it stands, and how it is moved."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from headrace._changes import Adapted
from headrace._frames import warn
from headrace._ranks import rank_key, resolve_rank

from .arguments import Arguments
from .base import EpochDriver, Mark
from .run_arguments import RunArguments
from .schedule import Skipped

__all__ = ["AnyPosition", "AnyRun", "RunDriver"]


class AnyPosition(Protocol):
    """A place in a run, as a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def step(self) -> int:
        """The next step."""
        ...

    @property
    def skipped(self) -> Skipped:
        """The steps that are passed over."""
        ...


_Given = TypeVar("_Given", bound=RunArguments)
_Position = TypeVar("_Position", bound=AnyPosition)
_At = TypeVar("_At", bound=AnyPosition)


class AnyRun(Protocol[_At]):
    """A dataset in its order, shared out among ranks."""

    @property
    def ranks(self) -> tuple[int, int]:
        """The rank, and the number of ranks."""
        ...

    def at(self, position: _At, step: int) -> _At:
        """Another step of the run, all else equal."""
        ...

    def state(self, position: _At) -> dict[str, Any]:
        """The state at a position, as plain JSON types."""
        ...


_Run = TypeVar("_Run", bound=AnyRun[Any])


class RunDriver(EpochDriver, Generic[_Given, _Run, _Position]):
    """The position in a run, moved by whoever iterates.

    Args:
        dataset: what the run is over.
        given: what its user said of the run.
        arguments: what the loader was called with: the ranks are looked up by them.
    """

    def __init__(self, dataset: Any, given: _Given, arguments: Arguments) -> None:
        super().__init__()
        self.dataset = dataset
        self.given = given
        self._ranks = (arguments.rank, arguments.world_size)
        self._loaded: dict[str, Any] | None = None
        self._resolved: tuple[_Run, _Position] | None = None
        self._key: object = None
        """The `rank_key` of the ranks that were looked up last."""
        self._moved = False
        """Whether the run stands elsewhere than `given` and the loaded state say."""
        self.strict = True
        """How the loaded state was loaded."""

    def check(self) -> None:
        """Refuses arguments that do not go together now rather than at the first batch, as far as they say enough.

        Raises:
            ValueError: naming what does not fit.
        """
        _, world_size = resolve_rank(*self._ranks)
        if self.given.rows(world_size) is not None:
            self.here()

    @abstractmethod
    def _start(
        self, world_size: int, rank: int, state: Mapping[str, Any] | None
    ) -> tuple[_Run, _Position, tuple[str, ...]]:
        """The run that arguments and a state describe, where it stands, and what its user is to be told of the state.

        It warns of nothing itself.
        """

    @abstractmethod
    def _on_other_ranks(self, run: _Run, position: _Position, world_size: int, rank: int) -> tuple[_Run, _Position]:
        """The same run at the same place, when the ranks have changed under it."""

    @abstractmethod
    def _next(self, epoch: int) -> Any:
        """See `EpochDriver.next`; by one thread at a time."""

    # Where the run stands

    def here(self) -> tuple[_Run, _Position]:
        """The run and where it stands; the rank is looked up again, for a process group may have come or gone since."""
        self._key = rank_key(*self._ranks)
        rank, world_size = resolve_rank(*self._ranks)
        if self._resolved is None:
            self._resolved = self._start(world_size, rank, self._loaded)[:2]
        elif self._resolved[0].ranks != (rank, world_size):
            self.close()
            if self._moved:
                self.iteration += 1
                self._resolved = self._on_other_ranks(*self._resolved, world_size, rank)
            else:
                # Nothing was done yet: as if the loader had been made now. What there is to tell was told on loading.
                self._resolved = self._start(world_size, rank, self._loaded)[:2]
        return self._resolved

    def still_here(self) -> tuple[_Run, _Position]:
        """The same for each batch, at less cost: some changes of the environment are seen by the next iterator only."""
        if self._resolved is None or rank_key(*self._ranks, before=self._key) != self._key:
            return self.here()
        return self._resolved

    @property
    def rank(self) -> int:
        """See `Driver`."""
        return self.here()[0].ranks[0]

    @property
    def world_size(self) -> int:
        """See `Driver`."""
        return self.here()[0].ranks[1]

    @property
    def step(self) -> int:
        """See `Driver`."""
        return self.here()[1].step

    def next(self, epoch: int) -> Any:
        """See `EpochDriver.next`."""
        with self.exclusive():
            return self._next(epoch)

    def mark(self) -> Mark:
        """See `Driver.mark`."""
        run, position = self.here()
        return Mark(self.step, self.position, self.epoch, lambda: self._state_of(run, position), (run, position))

    def state(self) -> dict[str, Any]:
        """See `Driver.state`."""
        return self._state_of(*self.here())

    def _state_of(self, run: _Run, position: _Position) -> dict[str, Any]:
        return run.state(position)

    # Going elsewhere

    def go_back(self, mark: Mark) -> None:
        """See `Driver.go_back`; iterators go on from there."""
        self._change(*mark.where)

    def skip(self, steps: range) -> None:
        """See `Driver.skip`."""
        run, position = self.here()
        skipped = position.skipped.plus(steps, position.step)
        self._check_skip(run, position, steps.stop)
        self._change(run, replace(position, skipped=skipped))

    def _check_skip(self, run: _Run, position: _Position, stop: int) -> None:
        """Refuses to pass over steps up to one that is beyond counting.

        Raises:
            ValueError: saying so.
        """
        del run, position, stop

    def _resume(self, begin: Adapted, *, strict: bool = True) -> None:
        """Goes on from a state, and warns of what is to be told of it; on an error everything is as it was.

        Args:
            begin: where from; its form is right.
            strict: see `strict`.
        """
        rank, world_size = resolve_rank(*self._ranks)
        before, self.strict = self.strict, strict
        try:
            run, position, texts = self._start(world_size, rank, begin.state)
            # All was checked, and what follows cannot fail: only a warning can that its user has made an error.
            for text in begin.told + texts:
                warn(text)
        except BaseException:
            self.strict = before
            raise
        self._resolved, self._loaded, self._moved = (run, position), begin.state, False
        self.iteration += 1
        self.close()

    def _change(self, run: _Run, position: _Position, *, elsewhere: bool = False) -> None:
        """Changes what comes next; what was prepared is made anew. Iterators raise if it is `elsewhere`."""
        self.iteration += elsewhere
        self._stand(run, position)
        self.close()

    def _stand(self, run: _Run, position: _Position) -> _Position:
        """Notes where the run stands: at a step that is not passed over."""
        if position.skipped:
            step = position.skipped.first_left(position.step)
            position = position if step == position.step else run.at(position, step)
        self._resolved = (run, position)
        self._moved = True
        return position

"""Rows that become longer or shorter where a state is loaded: where they may, and what states tell of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace import _core
from headrace._changes import Adapted
from headrace.errors import StateMismatch
from headrace.state import steps_of

__all__ = ["Lengths", "length_of", "with_length"]

_KIND: Final = "seq_len"
"""Of a state's changes."""


def with_length(state: Mapping[str, Any], before: Any, seq_len: int, *, strict: bool) -> Adapted:
    """A state whose form was checked, as the beginning of a run with rows of `seq_len` tokens.

    With `strict` off rows may have had another length, where a round of all lanes begins: the state tells of it.

    Args:
        state: of a run that differs in nothing else.
        before: what it says of the length.
        seq_len: what the dataset's `pack` was given.
        strict: whether the length must be the same.

    Raises:
        StateMismatch: if the length is another one, and may not be.
    """
    if before == seq_len:
        return Adapted(dict(state))
    if strict:
        raise StateMismatch(
            f"seq_len is {seq_len} here and {before} in the state\n"
            f"hint: strict=False goes on with the next tokens, in rows of {seq_len}"
        )
    row, lanes = state["position"], state["lanes"]
    if row % lanes:
        raise StateMismatch(
            f"seq_len cannot change from {before} to {seq_len} here: row {row} is in the middle of a round of {lanes} "
            f"rows\nhint: change it where a round begins, as at row {-(-row // lanes) * lanes}"
        )
    text = f"seq_len changes from {before} to {seq_len} from row {row} on"
    return Adapted(dict(state)).noted(_KIND, before, seq_len, text)


def length_of(state: Mapping[str, Any], first: Any) -> Any:
    """How long rows are by a state's changes; `first` if they never were longer or shorter."""
    return next((line["after"] for line in reversed(state["changes"]) if line["kind"] == _KIND), first)


@dataclass(frozen=True)
class Lengths:
    """How long rows are in a run whose every row is found by arithmetic."""

    first: int
    """seq_len when the run began."""
    changes: tuple[tuple[int, int], ...]
    """From which rows on it is another one, in order."""
    last: Mapping[str, Any] | None
    """What the state tells of the last change."""

    @staticmethod
    def told(changes: Sequence[Mapping[str, Any]], seq_len: int) -> "Lengths":
        """Those of a state's changes that were checked, with rows of `seq_len` behind them."""
        lines = [line for line in changes if line["kind"] == _KIND]
        if not lines:
            return Lengths(seq_len, (), None)
        return Lengths(lines[0]["before"], tuple((line["row"], line["after"]) for line in lines), lines[-1])

    @staticmethod
    def of(state: Mapping[str, Any] | None, seq_len: int) -> "Lengths":
        """Those of a state whose form was checked, with rows of `seq_len` from there on; of None the beginning.

        Raises:
            StateMismatch: if its changes do not lead to that length, or lie where none can.
        """
        lines = [] if state is None else [line for line in state["changes"] if line["kind"] == _KIND]
        if state is None or not lines:
            return Lengths(seq_len, (), None)
        steps = steps_of(state["history"])
        length, row = lines[0]["before"], 0
        for line in lines:
            after = line["after"]
            if line["before"] != length or type(length) is not int or type(after) is not int or min(length, after) < 1:
                raise StateMismatch(f"state: expected a change of seq_len from {length!r} on, found {line!r}")
            known = line["step"] <= state["step"] and steps.row_of(line["step"]) == line["row"]
            if line["row"] % state["lanes"] or line["row"] < row or not known:
                raise StateMismatch(f"state: expected seq_len to change where steps and rounds begin, found {line!r}")
            length, row = after, line["row"]
        if length != seq_len:
            raise StateMismatch(f"state: by its changes seq_len is {length}, its pipeline says {seq_len}")
        return Lengths.told(lines, seq_len)

    def row_of(self, token: int) -> int:
        """The first row before which a run has given so many tokens, an overlap's once, or more."""
        row, length = 0, self.first
        for change, after in self.changes:
            if token <= (change - row) * length:
                break
            token -= (change - row) * length
            row, length = change, after
        return row + -(-token // length)

    def tokens(self, rows: int) -> int:
        """What the first `rows` rows of a run hold, an overlap's tokens once."""
        return self._tokens(rows, [row for row, _ in self.changes])

    def tokens_of(self, mixture: _core.Mixture, rows: Sequence[int]) -> list[int]:
        """What the first rows of each source of a mixture hold, likewise; `rows` are how many they are."""
        before = [mixture.counts(change) for change, _ in self.changes]
        return [self._tokens(count, [own[number] for own in before]) for number, count in enumerate(rows)]

    def _tokens(self, rows: int, before: Sequence[int]) -> int:
        """What some rows hold, of which so many come before each change."""
        tokens, length = rows * self.first, self.first
        for (_, after), earlier in zip(self.changes, before, strict=True):
            tokens += max(0, rows - earlier) * (after - length)
            length = after
        return tokens

    def check_seek(self, step: int) -> None:
        """Refuses to go on at a step whose rows have another length than those to come.

        Raises:
            ValueError: naming the step of the change.
        """
        if self.last is not None and step < self.last["step"]:
            raise ValueError(
                f"step {step} lies before step {self.last['step']}, where seq_len changed from {self.last['before']} "
                f"to {self.last['after']}\nhint: load a state that was saved before; sources() tells of any step"
            )

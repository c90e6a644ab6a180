"""Rows that become longer or shorter where a state is loaded: where they may, and what states tell of it."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace._changes import noted
from headrace.errors import StateMismatch

__all__ = ["length_of", "lengths_until", "with_length"]

_KIND: Final = "seq_len"
"""Of a state's changes."""


def with_length(
    state: Mapping[str, Any], before: Any, seq_len: int, *, strict: bool, stacklevel: int
) -> dict[str, Any]:
    """A state whose form was checked, as the beginning of a run with rows of `seq_len` tokens.

    With `strict` off rows may have had another length, where a round of all lanes begins: a warning tells of it, and
    the state from there on.

    Args:
        state: of a run that differs in nothing else.
        before: what it says of the length.
        seq_len: what the dataset's `pack` was given.
        strict: whether the length must be the same.
        stacklevel: of the warning, as seen from here.

    Raises:
        StateMismatch: if the length is another one, and may not be.
    """
    if before == seq_len:
        return dict(state)
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
    warnings.warn(f"headrace: seq_len changes from {before} to {seq_len} from row {row} on", stacklevel=stacklevel)
    return noted(state, _KIND, before, seq_len)


def length_of(state: Mapping[str, Any], first: Any) -> Any:
    """How long rows are by a state's changes; `first` if they never were longer or shorter."""
    return next((line["after"] for line in reversed(state["changes"]) if line["kind"] == _KIND), first)


def lengths_until(row: int, changes: Sequence[Mapping[str, Any]], last: int) -> list[tuple[int, int, int]]:
    """How long the first `row` rows of a run are, in stretches: first row, the row after the last one, length.

    Args:
        row: see above.
        changes: that the run's state tells of.
        last: the length after all of them.
    """
    own = [line for line in changes if line["kind"] == _KIND]
    ends = [*(min(line["row"], row) for line in own), row]
    return list(zip([0, *ends[:-1]], ends, [*(line["before"] for line in own), last], strict=True))

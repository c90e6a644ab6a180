"""Files that were added to packed columns in the course of a run: from which pass on are they used?

What was there before has to be the first files, so that row groups keep their numbers. Then a state's digest tells
whether they are the same, and its changes how many row groups there were when. For samples see `added`.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from headrace.dataset import PackedDataset
from headrace.errors import StateMismatch

from .added import ADDED

__all__ = ["Era", "check_added", "epoch_of", "eras_of", "first_files", "noted_of", "row_groups", "tokens_of", "told_of"]

_DATA: Final = ("identity", "files", "row_groups", "rows", "tokens", "weight")
"""What a change says of data; of that of a run over one column alone without ``"weight"``."""


class Era(NamedTuple):
    """Passes over the same data."""

    epoch: int
    """The first of them."""
    data: Mapping[str, Any]
    """What is said of it: ``"row_groups"``, the first so many, and of a mixture's source ``"weight"``."""


def eras_of(changes: Sequence[Mapping[str, Any]], data: Mapping[str, Any], name: str | None = None) -> list[Era]:
    """The eras of a run, by what its state tells of changes.

    Args:
        changes: of the state.
        data: what the state says of the data as it is since the last of them.
        name: of the source whose data it is, in a mixture.

    Raises:
        StateMismatch: naming a change that cannot be one of this run.
    """
    eras: list[Era] = []
    for line in changes:
        if line["kind"] != ADDED:
            continue
        before, after = (_of_source(line[when], name) for when in ("before", "after"))
        if name is not None and not before and not after:
            continue
        counts = [("row_groups", 1)] if name is None else [("row_groups", 0), ("weight", 0)]
        are_counts = all(_is_count(one.get(key), least) for one in (before, after) for key, least in counts)
        if not are_counts or not _is_count(after.get("epoch"), 0) or before["row_groups"] > after["row_groups"]:
            raise StateMismatch(f"state: expected row groups to be added, and from which epoch on, found {line!r}")
        if eras and eras[-1].data["row_groups"] != before["row_groups"]:
            found = eras[-1].data["row_groups"]
            raise StateMismatch(f"state: by its changes there were {found} row groups before data was added: {line!r}")
        eras = eras or [Era(0, before)]
        eras = [*(era for era in eras if era.epoch < after["epoch"]), Era(after["epoch"], after)]
    if eras and eras[-1].data["row_groups"] != data["row_groups"]:
        raise StateMismatch(
            f"state: by its changes there are {eras[-1].data['row_groups']} row groups, found {data['row_groups']}"
        )
    return eras or [Era(0, data)]


def row_groups(eras: Sequence[Era]) -> list[tuple[int, int]]:
    """From which pass on there are how many row groups, for the core."""
    return [(era.epoch, era.data["row_groups"]) for era in eras]


def epoch_of(eras: Sequence[Era], tokens: int) -> int:
    """The pass in which a source of a mixture is when so many tokens, with bos and eos, were used of it."""
    epoch = 0
    for era, later in zip(eras, [*eras[1:], None], strict=True):
        passes, weight = tokens // max(1, era.data["weight"]), era.data["weight"]
        epoch = era.epoch + passes
        if later is None or epoch < later.epoch:
            break
        tokens -= (later.epoch - era.epoch) * weight
    return epoch


def tokens_of(eras: Sequence[Era], passes: int | None) -> int | None:
    """The tokens of so many passes over a source of a mixture, with bos and eos; None without end."""
    if passes is None:
        return None if eras[-1].data["weight"] else 0
    ends = [*(min(era.epoch, passes) for era in eras[1:]), passes]
    begins = [0, *ends]
    return sum(era.data["weight"] * (end - begin) for era, begin, end in zip(eras, begins, ends, strict=False))


def first_files(dataset: PackedDataset, here: Mapping[str, Any], there: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a state would say of a dataset's first files if these are all that it knows; None if they are not.

    Args:
        dataset: as it is now.
        here: what a state would say of it.
        there: what the state says.
    """
    files = there["files"]
    if not _is_count(files, 1) or files >= here["files"]:
        return None
    identity, content = dataset.core.identity(dataset.packing.column, files=files)
    groups = bisect_left(range(here["row_groups"]), files, key=lambda group: dataset.core.row_group_place(group)[0])
    is_same = content == there["content"] and groups == there["row_groups"]
    return dict(there) | {"identity": identity} if is_same else None


def check_added(dataset: PackedDataset, there: Mapping[str, Any], *, strict: bool, which: str = "the data") -> None:
    """Refuses files that were added behind those of a state if it is `strict`.

    Raises:
        StateMismatch: naming the first of them.
    """
    if strict:
        raise StateMismatch(
            f"{which} is not that of the state: {told_of(dataset, there, which)}\n"
            "hint: strict=False goes on with the old data to the end of the pass, and then with all of it"
        )


def told_of(dataset: PackedDataset, there: Mapping[str, Any], which: str = "the data") -> str:
    """The words for files that were added behind those of a state."""
    known: int = there["files"]
    files, first = dataset.core.file_count - known, dataset.core.file_table()[known][0]
    noun = "file was" if files == 1 else "files were"
    return f"{files} {noun} added to {which} behind those of the state, the first is {first!r}"


def noted_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a change says of data."""
    return {key: data[key] for key in _DATA if key in data}


def _of_source(found: object, name: str | None) -> dict[str, Any]:
    """What a change says of the data of a run, or of a source of a mixture; nothing if it says nothing of it."""
    said = cast("dict[str, Any]", found) if isinstance(found, Mapping) else {}
    return said if name is None else _of_source(said.get(name), None)


def _is_count(value: object, least: int) -> bool:
    return type(value) is int and least <= value < 2**61

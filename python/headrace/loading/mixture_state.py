"""What a state says of a mixture: checked, compared with the dataset of now, and changed where that is allowed."""

from collections.abc import Mapping
from typing import Any, Final

from headrace._changes import Adapted
from headrace.dataset import PackedDataset, Packing
from headrace.errors import StateMismatch
from headrace.mixing import MixDataset
from headrace.state import MAX_LANES

from .lengths import with_length
from .mixture_changes import changed, check_kept, check_pipeline, fields, is_count
from .mixture_weights import Weighting
from .packed_added import check_added, first_files
from .packed_run import check_packing, check_source, source

__all__ = ["SOURCE", "adapted", "described", "packing_of"]

SOURCE: Final = ("name", "identity", "content", "files", "row_groups", "rows", "tokens", "weight", "packing")
"""What a state says of a source's data."""


def packing_of(dataset: MixDataset) -> Packing:
    """How rows are packed: that of the first source, to which those of all others are alike."""
    return next(iter(dataset.packed.values())).packing


def described(name: str, dataset: PackedDataset) -> dict[str, Any]:
    """What a state says of a source's data."""
    return {"name": name} | source(dataset) | {"weight": dataset.weight, "packing": dataset.packing.identity()}


def adapted(dataset: MixDataset, state: Mapping[str, Any], *, strict: bool) -> Adapted:
    """A state whose form was checked, as the beginning of a run over a dataset.

    With `strict` off weights may be others from here on, sources may come and go, data may have moved, and rows may
    have another length where a round of lanes begins: the state tells of it. What was given before stays as it was. A
    source to which data was added is as the state has it, see `mixture_run.with_added`.

    Raises:
        StateMismatch: naming the first difference that is not allowed.
    """
    saved = {entry["name"]: entry for entry in _checked(state)}
    check_kept(dataset, state, list(saved))
    moved: dict[str, tuple[str, str]] = {}
    texts: list[str] = []
    added: list[dict[str, Any]] = []
    for name, data in dataset.packed.items():
        if name not in saved:
            blank = {"lanes": None, "window": None, "limit": None, "given": {"rows": 0, "tokens": 0, "epoch": 0}}
            added.append(described(name, data) | blank)
            continue
        check_packing(data, saved[name]["packing"], of=f" of source {name!r}")
        here, there = source(data), saved[name]
        known = first_files(data, here, there) or here
        if text := check_source(data, known, there, strict=strict, which=f"source {name!r}"):
            moved[name] = there["identity"], known["identity"]
            texts.append(text)
        if known is not here:
            check_added(data, there, strict=strict, which=f"source {name!r}")
        saved[name] = there | known
    begin = Adapted(dict(state))
    if moved:
        before, after = ({name: pair[when] for name, pair in moved.items()} for when in (0, 1))
        begin = begin.noted("data moved", before, after, *texts)
    begin = begin.then(with_length(begin.state, _length(state, saved), packing_of(dataset).seq_len, strict=strict))
    begin = begin.then(changed(dataset, begin.state, list(saved), strict=strict))
    return begin._replace(state=begin.state | {"sources": [*saved.values(), *added]})


def _length(state: Mapping[str, Any], saved: Mapping[str, Mapping[str, Any]]) -> Any:
    """How long rows are by a state. Of sources that were taken out they may have had another length.

    Raises:
        StateMismatch: if the sources that it has differ in it.
    """
    names = Weighting.load(state["pipeline"]["weights"][-1]).names
    lengths = [entry["packing"].get("seq_len") for name, entry in saved.items() if name in names]
    if any(length != lengths[0] for length in lengths):
        raise StateMismatch(f"state: expected the rows of all sources to have one seq_len, found {lengths}")
    return lengths[0]


def _checked(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a state says of each source.

    Raises:
        StateMismatch: if it has not the form of a mixture's state; it names what is wrong.
    """
    sources = [_checked_source(entry, state["lanes"]) for entry in state["sources"]]
    check_pipeline(state["pipeline"], [entry["name"] for entry in sources])
    return sources


def _checked_source(found: object, lanes: int) -> dict[str, Any]:
    """What a state says of a source, if its form is right."""
    entry = fields(found)
    keys = {*SOURCE, "lanes", "window", "limit", "given"}
    if set(entry) != keys or not isinstance(entry["name"], str) or not isinstance(entry["packing"], Mapping):
        raise StateMismatch(f"state: expected sources with {', '.join(sorted(keys))}, found {found!r}")
    for key, least in (("lanes", 1), ("window", 1), ("weight", 0), ("row_groups", 0), ("limit", 0)):
        endless = key == "limit" and entry[key] is None
        if not endless and not is_count(entry[key], least):
            raise StateMismatch(
                f"state: expected {key!r} of source {entry['name']!r} to be {least} or more, found {entry[key]!r}"
            )
    if entry["lanes"] > MAX_LANES or lanes % entry["lanes"]:
        raise StateMismatch(
            f"state: expected the lanes of source {entry['name']!r} to divide {lanes}, found {entry['lanes']}"
        )
    return entry

"""Data that was added in the course of a run: is it that of the state and more, and from which epoch on is it used?

What was there before has to come first, so that samples keep their numbers. So the old data needs not to be kept
anywhere: it is the first samples of the new, and a state's digests tell whether they are the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

import numpy as np

from headrace._changes import Adapted
from headrace.errors import StateMismatch
from headrace.samples.order import GrownOrder, Order, SequentialOrder
from headrace.samples.pipeline import Origin, Pipeline
from headrace.samples.source import Extent

__all__ = ["ADDED", "Era", "described", "eras_of", "first_samples", "is_grown", "with_added"]

ADDED: Final = "data added"
"""The kind of a change."""

_DATA: Final = ("samples", "selection", "sources")
"""What a change says of data."""


class Era(NamedTuple):
    """Epochs over the same data."""

    epoch: int
    """The first of them."""
    samples: int
    """How many of the dataset's, the first ones."""


def eras_of(changes: Sequence[Mapping[str, Any]], samples: int) -> list[Era]:
    """The eras of a run, by what its state tells of changes.

    Args:
        changes: of a state.
        samples: in the dataset as it is now.

    Raises:
        StateMismatch: naming a change that cannot be one of this run.
    """
    eras: list[Era] = []
    for line in changes:
        if line["kind"] == ADDED:
            before, after = _samples_of(line, "before"), _samples_of(line, "after")
            eras = eras or [Era(0, before)]
            epoch = line["after"].get("epoch")
            if type(epoch) is not int or not 0 <= epoch < 2**61 or not 1 <= before <= after <= samples:
                raise StateMismatch(
                    f"state: expected data to be added at an epoch, to at most {samples} samples, found {line!r}"
                )
            eras = [*(era for era in eras if era.epoch < epoch), Era(epoch, after)]
            if line["row"] != _line(eras).begin_of(epoch):
                raise StateMismatch(
                    f"state: epoch {epoch} begins with row {_line(eras).begin_of(epoch)}, found {line!r}"
                )
    if eras and eras[-1].samples != samples:
        raise StateMismatch(f"state: by its changes there are {eras[-1].samples} samples, found {samples}")
    return eras or [Era(0, samples)]


def described(pipeline: Pipeline) -> dict[str, Any]:
    """What tells the samples of a dataset from others, but for where they lie."""
    return {"samples": len(pipeline), "selection": pipeline.selection.digest()}


def with_added(pipeline: Pipeline, state: Mapping[str, Any], reached: Callable[[], int], *, strict: bool) -> Adapted:
    """The state of a run to whose data something was added, as the beginning of one over all of it.

    Args:
        pipeline: the dataset, which `is_grown`.
        state: of the run so far.
        reached: tells the first row of which nothing was used yet; raises StateMismatch if that cannot be known. The
            first epoch that does not begin before it is the first one over all of the data.
        strict: whether to refuse it, unless nothing that was added is among the samples.

    Raises:
        StateMismatch: if it is refused, naming the first file that was added; or from `reached`.
    """
    here = described(pipeline) | {"sources": _sources(pipeline)}
    added = here["samples"] - state["pipeline"]["samples"]
    if not added:
        # None of what was added is a sample of this dataset.
        return Adapted(dict(state) | {"sources": here["sources"]})
    told = f"{added} samples were added behind those of the state, the first file is {_first_file(pipeline, state)!r}"
    if strict:
        raise StateMismatch(
            f"the data is not that of the state: {told}\n"
            "hint: strict=False goes on with the old data to the end of the epoch, and then with all of it"
        )
    there = state["pipeline"] | {"sources": state["sources"]}
    line = _line(eras_of(state["changes"], there["samples"]))
    row = reached()
    epoch = line.epoch_of(row)
    epoch += line.begin_of(epoch) < row
    before, after = ({key: data[key] for key in _DATA} for data in (there, here))
    state = dict(state) | {
        "pipeline": state["pipeline"] | {key: here[key] for key in ("samples", "selection")},
        "sources": here["sources"],
    }
    text = f"{told}; they are used from epoch {epoch} on"
    return Adapted(state).noted(ADDED, before, {"epoch": epoch} | after, text, row=line.begin_of(epoch))


def is_grown(pipeline: Pipeline, state: Mapping[str, Any]) -> bool:
    """Whether a dataset has the samples of a state first, and then others."""
    samples, sources = state["pipeline"].get("samples"), state["sources"]
    if type(samples) is not int or not 1 <= samples <= len(pipeline) or len(sources) != len(pipeline.origins):
        return False
    if not all(map(_begins_with, pipeline.origins, sources)):
        return False
    selection = first_samples(pipeline, samples).selection.digest()
    is_more = samples < len(pipeline) or sources != _sources(pipeline)
    return is_more and selection == state["pipeline"].get("selection")


def _first_file(pipeline: Pipeline, state: Mapping[str, Any]) -> str:
    """The first file of a dataset that `is_grown` which is not in the state; or else that of its first new sample."""
    for origin, there in zip(pipeline.origins, state["sources"], strict=True):
        count, sizes = int(there["samples"]), origin.source.sizes
        if count < sizes.sum():
            chunk = int(np.searchsorted(np.cumsum(sizes), count, side="right"))
            return origin.source.place(chunk, count - int(sizes[:chunk].sum())).file
    return pipeline.place(state["pipeline"]["samples"]).file


def first_samples(pipeline: Pipeline, samples: int) -> Pipeline:
    """A dataset as it was when it had this many samples."""
    if samples == len(pipeline):
        return pipeline
    return replace(pipeline, selection=pipeline.selection.part(0, samples))


def _sources(pipeline: Pipeline) -> list[dict[str, Any]]:
    return [origin.summary() for origin in pipeline.origins]


def _begins_with(origin: Origin, there: Any) -> bool:
    """Whether a source is that of a state, or more."""
    found = cast("dict[str, Any]", there) if isinstance(there, Mapping) else {}
    here = origin.summary()
    if found == here:
        return True
    chunks, samples = found.get("chunks"), found.get("samples")
    if set(found) != set(here) or found["format"] != here["format"] or type(chunks) is not int:
        return False
    if type(samples) is not int or not 0 <= chunks <= here["chunks"] or not 0 <= samples < here["samples"]:
        return False
    return origin.source.identity(Extent(chunks, samples)) == found["identity"]


def _line(eras: Sequence[Era]) -> Order:
    """An order with the epochs of a run, whatever comes in them."""
    return GrownOrder([(era.epoch, SequentialOrder(era.samples)) for era in eras])


def _samples_of(line: Mapping[str, Any], when: str) -> int:
    data = line[when]
    samples = cast("dict[str, Any]", data).get("samples") if isinstance(data, Mapping) else None
    if type(samples) is not int:
        raise StateMismatch(f"state: expected data that was added to have samples, found {line!r}")
    return samples

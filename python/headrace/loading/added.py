"""Data that was added in the course of a run: is it that of the state and more, and from which epoch on is it used?

What was there before has to come first, so that samples keep their numbers. So the old data needs not to be kept
anywhere: it is the first samples of the new, and a state's digests tell whether they are the same. Of a zip or a
mixture each source may be added to, by itself.
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

__all__ = [
    "ADDED",
    "Era",
    "Held",
    "eras_of",
    "first_samples",
    "is_grown",
    "noted",
    "noted_length",
    "order_of_eras",
    "rows_of",
]

ADDED: Final = "data added"
"""The kind of a change."""

_LENGTH: Final = "length"
"""Likewise, of a zip whose epochs are of other lengths as data was added to its sources."""


class Era(NamedTuple):
    """Epochs over the same data."""

    epoch: int
    """The first of them."""
    samples: int
    """How many of the dataset's, the first ones; of a zip, how many rows they have."""


class Held(NamedTuple):
    """What a state says of a dataset's samples, and changes of it: as plain JSON types, of a state of any."""

    samples: Any
    selection: Any
    sources: Any

    @staticmethod
    def by(pipeline: Pipeline) -> "Held":
        """What is to be said of a dataset."""
        summaries = [origin.summary() for origin in pipeline.origins]
        return Held(len(pipeline), pipeline.selection.digest(), summaries)


def eras_of(
    changes: Sequence[Mapping[str, Any]], samples: int, *, source: int | str | None = None, length: bool = False
) -> list[Era]:
    """The eras of a run, by what its state tells of changes.

    Args:
        changes: of a state.
        samples: in the dataset as it is now; of a zip's own epochs their length.
        source: which one, by its number in a zip or its name in a mixture.
        length: whether it is a zip's own epochs.

    Raises:
        StateMismatch: naming a change that cannot be one of this run.
    """
    eras: list[Era] = []
    for line in changes:
        if line["kind"] != (_LENGTH if length else ADDED):
            continue
        said = [_said(line[when], source) for when in ("before", "after")]
        if source is not None and not any(said):
            continue  # of another source
        before, after = map(_samples_of, said)
        epoch = said[1].get("epoch")
        if type(epoch) is not int or not 0 <= epoch < 2**61 or not 1 <= before <= after <= samples:
            raise StateMismatch(
                f"state: expected data to be added at an epoch, to at most {samples} samples, found {line!r}"
            )
        eras = [*(era for era in eras or [Era(0, before)] if era.epoch < epoch), Era(epoch, after)]
        # Rows of a mixture are not those of its sources.
        row = line["row"] if isinstance(source, str) else _line(eras).begin_of(epoch)
        if line["row"] != row:
            raise StateMismatch(f"state: epoch {epoch} begins with row {row}, found {line!r}")
    if eras and eras[-1].samples != samples:
        of = "" if source is None else f" of source {source!r}"
        raise StateMismatch(f"state: by its changes there are {eras[-1].samples} samples{of}, found {samples}")
    return eras or [Era(0, samples)]


def order_of_eras(eras: Sequence[Era], make: Callable[[int], Order]) -> Order:
    """The order of all eras, of those that `make` gives for numbers of samples."""
    parts = [(era.epoch, make(era.samples)) for era in eras]
    return parts[0][1] if len(parts) == 1 else GrownOrder(parts)


def noted(
    begin: Adapted,
    pipeline: Pipeline,
    before: Held,
    reached: Callable[[], int],
    *,
    source: int | str | None = None,
    epochs: int | None = None,
    end: int | None = None,
    strict: bool,
) -> Adapted:
    """The state of a run to one of whose datasets something was added, with a line that tells of it.

    Args:
        begin: the state, which says of the dataset what holds here.
        pipeline: the dataset, which `is_grown`.
        before: what the state said of it.
        reached: tells the first row of which nothing was used yet; raises StateMismatch if that cannot be known. The
            first epoch that does not begin before it is the first one over all of the data.
        source: see `eras_of`.
        epochs: how many it has, if that is known; data may come too late for them.
        end: likewise, how many rows the run of a zip has, whose epochs are not those of its sources.
        strict: whether to refuse it, unless nothing that was added is among the samples.

    Raises:
        StateMismatch: if it is refused, naming the first file that was added; or from `reached`.
    """
    after = Held.by(pipeline)
    if not (added := after.samples - before.samples):
        # None of what was added is a sample of this dataset.
        return begin
    where = "" if source is None else f" to source {source!r}"
    first = _first_file(pipeline, before)
    text = f"{added} samples were added{where} behind those of the state, the first file is {first!r}"
    if strict:
        raise StateMismatch(
            f"the data is not that of the state: {text}\n"
            "hint: strict=False goes on with the old data to the end of the epoch, and then with all of it"
        )
    line = _line(eras_of(begin.state["changes"], before.samples, source=source))
    epoch = _first_unbegun(line, reached())
    begins = line.begin_of(epoch)
    # A zip has epochs of its own.
    of = " of the source" if isinstance(source, int) else ""
    is_late = (epochs is not None and epoch >= epochs) or (end is not None and begins >= end)
    use = "no epoch to come is of them" if is_late else f"they are used from epoch {epoch}{of} on"
    said = before._asdict(), {"epoch": epoch} | after._asdict()
    held, holds = said if source is None else ({str(source): one} for one in said)
    return begin.noted(
        ADDED,
        held,
        holds,
        f"{text}; {use}",
        row=None if isinstance(source, str) else begins,
    )


def noted_length(begin: Adapted, before: int, after: int, *, epochs: int | None) -> Adapted:
    """The state of a run over a zip whose epochs become longer, as data was added, with a line that tells of it."""
    line = _line(eras_of(begin.state["changes"], before, length=True))
    epoch = _first_unbegun(line, begin.state["position"])
    text = f"an epoch of the zip has {after} samples from epoch {epoch} on, {before} before"
    if epochs is not None and epoch >= epochs:
        text = f"an epoch of the zip has {after} samples, {before} before; there is none to come"
    row = line.begin_of(epoch)
    return begin.noted(_LENGTH, {"samples": before}, {"epoch": epoch, "samples": after}, text, row=row)


def rows_of(changes: Sequence[Mapping[str, Any]], samples: int, epochs: int) -> int:
    """The rows of so many epochs of a zip that has so many samples now."""
    return _line(eras_of(changes, samples, length=True)).begin_of(epochs)


def is_grown(pipeline: Pipeline, there: Held) -> bool:
    """Whether a dataset has the samples that a state tells of first, and then others."""
    here = Held.by(pipeline)
    samples, selection, sources = there
    if there == here or type(samples) is not int or not 1 <= samples <= here.samples:
        return False
    if not isinstance(sources, list) or len(cast("list[Any]", sources)) != len(here.sources):
        return False
    if not all(map(_begins_with, pipeline.origins, here.sources, cast("list[Any]", sources))):
        return False
    return first_samples(pipeline, samples).selection.digest() == selection


def _first_file(pipeline: Pipeline, before: Held) -> str:
    """The first file of a dataset that `is_grown` which is not in the state; or else that of its first new sample."""
    for origin, there in zip(pipeline.origins, before.sources, strict=True):
        count, sizes = int(there["samples"]), origin.source.sizes
        if count < sizes.sum():
            chunk = int(np.searchsorted(np.cumsum(sizes), count, side="right"))
            return origin.source.place(chunk, count - int(sizes[:chunk].sum())).file
    return pipeline.place(before.samples).file


def first_samples(pipeline: Pipeline, samples: int) -> Pipeline:
    """A dataset as it was when it had this many samples."""
    if samples == len(pipeline):
        return pipeline
    return replace(pipeline, selection=pipeline.selection.part(0, samples))


def _begins_with(origin: Origin, here: Mapping[str, Any], there: Any) -> bool:
    """Whether a source, of which this is to be said, is that of a state, or more."""
    found = cast("dict[str, Any]", there) if isinstance(there, Mapping) else {}
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
    return order_of_eras(eras, SequentialOrder)


def _first_unbegun(line: Order, row: int) -> int:
    """The first epoch that does not begin before a row."""
    epoch = line.epoch_of(row)
    return epoch + (line.begin_of(epoch) < row)


def _said(found: object, source: int | str | None) -> dict[str, Any]:
    """What a change says of a dataset; nothing if it says nothing."""
    said = cast("dict[str, Any]", found) if isinstance(found, Mapping) else {}
    return said if source is None else _said(said.get(str(source)), None)


def _samples_of(said: Mapping[str, Any]) -> int:
    samples = said.get("samples")
    if type(samples) is not int:
        raise StateMismatch(f"state: expected data that was added to have samples, found {said!r}")
    return samples

"""Documents that a run is to do without: left out of it from the beginning, or masked from a row on.

What a user excludes is one list, which may grow at its end from one restart to the next. What is in it when a run
begins is left out, as if the data did not have it. What comes later stays in its place, so that all other rows keep
theirs, and does not count for the loss. A state notes how many there were when, and a digest of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from headrace._base import Dataset
from headrace._changes import Adapted, changes_of
from headrace.dataset import PackedDataset
from headrace.errors import StateMismatch
from headrace.formats.parquet import RowGroups
from headrace.mixing import MixDataset
from headrace.samples.dataset import SampleDataset
from headrace.samples.document_ids import DocumentIds
from headrace.samples.dynamic_dataset import DynamicDataset
from headrace.samples.excluding import among, document_ids, marked, without
from headrace.samples.pipeline import AnyPipeline, Pipeline
from headrace.samples.reading import Readable
from headrace.samples.source import Named
from headrace.samples.zipped import ZipPipeline

__all__ = ["Exclusion", "Masks", "adapted", "exclude_of", "exclusion_of"]

_Ints = npt.NDArray[np.int64]

_KIND: Final = "excluded"


class Masks(NamedTuple):
    """Samples of a pipeline that are masked."""

    positions: _Ints
    """int64, ascending."""
    since: _Ints
    """int64: from which row on each is."""

    def hold(self, positions: _Ints, end: int) -> npt.NDArray[np.bool_]:
        """Whether the samples at some positions are masked in a step that ends before a row: bool, (samples,)."""
        at, hit = among(self.positions, positions)
        hit[hit] = self.since[at[hit]] < end
        return hit


@dataclass(frozen=True, eq=False)
class Exclusion:
    """What a run does without.

    Attributes:
        ids: the documents.
        left_out: how many of them, the first ones, the run never had.
        masked: from which rows on how many of the first ones are masked, in the order in which they came. A step that
            holds such a row is masked as a whole.
    """

    ids: DocumentIds
    left_out: int
    masked: tuple[tuple[int, int], ...]

    @property
    def first_masked(self) -> int | None:
        """The first row from which on batches are masked; None if none is."""
        return min((row for row, _ in self.masked), default=None)

    def since(self, numbers: _Ints) -> _Ints:
        """From which rows on documents are masked, by their numbers, each of one that is: int64."""
        counts = np.array([count for _, count in self.masked], dtype=np.int64)
        rows = np.array([row for row, _ in self.masked], dtype=np.int64)
        return rows[np.searchsorted(counts, numbers, side="right")]

    def kept(self, pipeline: Pipeline) -> Pipeline:
        """A pipeline without what is left out.

        Raises:
            ValueError: if nothing is left.
        """
        if not self.left_out:
            return pipeline
        found = marked(pipeline, self.ids)
        kept = without(pipeline, found.position[found.number < self.left_out])
        if len(pipeline) and not len(kept):
            raise ValueError(f"exclude leaves no sample of {pipeline.origins[0].source.url}")
        return kept

    def applied(self, pipeline: Pipeline) -> tuple[Pipeline, Masks]:
        """A pipeline without what is left out, and what is masked of the rest.

        Raises:
            ValueError: if nothing is left.
        """
        pipeline = self.kept(pipeline)
        found = marked(pipeline, self.ids)
        return pipeline, Masks(found.position, self.since(found.number))

    def applied_to_all(self, pipeline: AnyPipeline) -> tuple[AnyPipeline, tuple[Masks, ...]]:
        """The same of each source of a zip, or of the one pipeline there is."""
        if not isinstance(pipeline, ZipPipeline):
            one, masks = self.applied(cast("Pipeline", pipeline))
            return one, (masks,)
        parts = [self.applied(source) for source in pipeline.sources]
        return replace(pipeline, sources=tuple(source for source, _ in parts)), tuple(masks for _, masks in parts)


def exclude_of(what: Any, dataset: Dataset) -> DocumentIds | None:
    """The documents that the argument `exclude` of a loader means; None if there are none.

    Raises:
        TypeError: if it is nothing that says so.
        ValueError: if it names something that is no document.
    """
    if what is None:
        return None
    pipeline = None
    if isinstance(what, Dataset):
        if not isinstance(what, SampleDataset) or what.pipeline.filtered:
            raise TypeError(
                f"exclude takes a dataset of stored samples, such as where(condition) gives, got {what!r}\n"
                "hint: a filter decides only when samples are read"
            )
        pipeline = what.pipeline
    return document_ids(what, _sources(dataset), pipeline) or None


def exclusion_of(
    ids: DocumentIds | None, state: Mapping[str, Any] | None
) -> tuple[Exclusion | None, list[dict[str, Any]]]:
    """What a run does without that begins with `ids`, or goes on from a state that was `adapted` to them; and what its
    state says of changes.
    """  # noqa: D205
    changes = changes_of(state)
    if state is None and ids is not None:
        after = _described(ids, masked=False)
        changes = [{"kind": _KIND, "step": 0, "row": 0, "before": None, "after": after}]
    known = _known(changes)
    if ids is None or not known:
        return None, changes
    left_out = sum(after["documents"] for _, after in known if not after["masked"])
    masked = tuple((row, after["documents"]) for row, after in known if after["masked"])
    return Exclusion(ids, left_out, masked), changes


def adapted(ids: DocumentIds | None, state: dict[str, Any], *, strict: bool) -> Adapted:
    """A state whose form was checked, as the beginning of a run that excludes `ids`.

    With `strict` off there may be more than the state knows: they are masked from here on, and the state tells of it.

    Raises:
        StateMismatch: if those that it knows are not the first ones, or there are others and that is not allowed.
    """
    before: dict[str, Any] | None = None
    for _, before in _known(state["changes"]):
        count: int = before["documents"]
        if ids is None or len(ids) < count or ids.digest(count) != before["digest"]:
            found = "none" if ids is None else f"{len(ids):,}, of which the first ones are others or fewer"
            raise StateMismatch(
                f"the excluded documents are not those of the state: expected exclude= to begin with the {count:,} of "
                f"digest {before['digest']}, found {found}\n"
                "hint: give the same documents in the same order; more may follow behind them"
            )
    known = 0 if before is None else before["documents"]
    if ids is None or len(ids) == known:
        return Adapted(state)
    more = f"{len(ids) - known:,} excluded documents are only here, the first is {ids.text(known)!r}"
    if strict:
        raise StateMismatch(
            f"{more}\nhint: strict=False masks their tokens from step {state['step']} on; load no state to begin a run "
            "without them"
        )
    text = f"{more}: masked from step {state['step']} on"
    return Adapted(state).noted(_KIND, before, _described(ids, masked=True), text)


def _described(ids: DocumentIds, *, masked: bool) -> dict[str, Any]:
    return {"documents": len(ids), "digest": ids.digest(len(ids)), "masked": masked}


def _known(changes: Sequence[Mapping[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """What lines of a state say of excluded documents, in the order in which they came: each with its row.

    Raises:
        StateMismatch: if they say something else.
    """
    known: list[tuple[int, dict[str, Any]]] = []
    for change in changes:
        if change["kind"] != _KIND:
            continue
        after = cast("dict[str, Any]", change["after"] if isinstance(change["after"], dict) else {})
        is_whole = type(after.get("documents")) is int and type(after.get("masked")) is bool
        if not is_whole or not isinstance(after.get("digest"), str):
            raise StateMismatch(
                "state: expected a change of excluded documents to have their number, a digest, and whether they are "
                f"masked, found {change!r}"
            )
        known.append((change["row"], after))
    counts = [0, *(after["documents"] for _, after in known)]
    if counts != sorted(set(counts)) or not all(after["masked"] for _, after in known[1:]):
        raise StateMismatch(f"state: expected more and more documents to be excluded, found {counts[1:]}")
    return known


def _sources(dataset: Dataset) -> Sequence[Named]:
    """Where documents of a dataset may lie."""
    if isinstance(dataset, PackedDataset):
        return [RowGroups(dataset.core)]
    if isinstance(dataset, MixDataset):
        return [source for one in dataset.sources.values() for source in _sources(one)]
    if isinstance(dataset, DynamicDataset):
        return [origin.source for origin in dataset.pipeline.base.origins]
    return [origin.source for origin in cast("Readable", dataset).pipeline.origins]

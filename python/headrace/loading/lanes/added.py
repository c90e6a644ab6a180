"""Items that were added to a dynamic pipeline, or to one of a mixture: what of them lanes have used so far."""

from collections.abc import Mapping
from typing import Any

from headrace.errors import StateMismatch
from headrace.loading.added import Held
from headrace.samples.document_pipeline import DocumentPipeline

from .marks import check_mark, items_used, mark_from

__all__ = ["first_unused", "held_by", "with_held"]


def held_by(entry: Mapping[str, Any]) -> Held:
    """What a state, or its entry for a source of a mixture, says of items."""
    pipeline = entry["pipeline"]
    return Held(pipeline.get("samples"), pipeline.get("selection"), entry["sources"])


def with_held(entry: Mapping[str, Any], held: Held) -> dict[str, Any]:
    """The same that says something else of items."""
    pipeline = entry["pipeline"] | {"samples": held.samples, "selection": held.selection}
    return dict(entry) | {"pipeline": pipeline, "sources": held.sources}


def first_unused(pipeline: DocumentPipeline, state: Mapping[str, Any], marks: Mapping[str, Any]) -> int:
    """The first row of the order of items behind all of which anything was used.

    Args:
        pipeline: of the items.
        state: whose form was checked.
        marks: for each of its lanes the state of the pipeline there, which nobody checked; None at its beginning.

    Raises:
        StateMismatch: if that cannot be known.
    """
    if state["part"]:
        raise StateMismatch(
            "state: it is a part, and from which pass on added data is used depends on all lanes\n"
            "hint: load the parts of all ranks as a list, or what gather_state or State.merge made of them"
        )
    rows = [0]
    for number, saved in marks.items():
        if saved is None:
            continue
        lane = int(number)
        check_mark(lane, saved, pipeline, state["lanes"])
        items = items_used(lane, mark_from(saved, pipeline), pipeline)
        if items:
            rows.append((items - 1) * state["lanes"] + lane + 1)
    return max(rows)

"""Is the data of a run over samples that which its state tells of, or has some been added to it?"""

from collections.abc import Mapping, Sequence
from operator import add
from typing import Any, NamedTuple, cast

from headrace._changes import Adapted
from headrace.errors import StateMismatch
from headrace.samples.order import ENDLESS, kind_of
from headrace.samples.pipeline import AnyPipeline, Pipeline
from headrace.samples.zipped import ZipPipeline

from .added import Held, is_grown, noted, noted_length, rows_of

__all__ = ["Data", "adapted", "data_of"]


class Data(NamedTuple):
    """What a state says of data, as plain JSON types."""

    kind: str
    """Of the order: see `kind_of`; or ``"zip"``."""
    samples: dict[str, Any]
    """Which samples there are."""
    sources: list[dict[str, Any]]
    """Where they lie."""


def data_of(pipeline: AnyPipeline, shuffle: bool) -> Data:
    """What a state says of a pipeline's data."""
    if isinstance(pipeline, ZipPipeline):
        each = [data_of(source, shuffle) for source in pipeline.sources]
        samples = None if pipeline.length == ENDLESS else pipeline.length
        return Data("zip", {"order": "zip", "samples": samples}, [one.samples | {"parts": one.sources} for one in each])
    plain = cast("Pipeline", pipeline)
    kind, held = kind_of(plain, shuffle), Held.by(plain)
    return Data(kind, {"order": kind, "samples": held.samples, "selection": held.selection}, held.sources)


def adapted(
    pipeline: AnyPipeline, data: Data, state: Mapping[str, Any], *, epochs: int | None, strict: bool
) -> Adapted:
    """A state whose form was checked, as the beginning of a run over some data.

    With `strict` off samples may have been added, to any source of a zip, and the state tells of it.

    Args:
        pipeline: whose samples.
        data: of it.
        state: see above.
        epochs: of the run; None for no end.
        strict: see above.

    Raises:
        StateMismatch: naming the first difference that is not allowed.
    """
    begin, grown = (
        _zip_begun(pipeline, data, state)
        if isinstance(pipeline, ZipPipeline)
        else _begun(cast("Pipeline", pipeline), data, state)
    )
    _check_same(data, begin)
    length = state["pipeline"].get("samples")

    def lengthened(start: Adapted) -> Adapted:
        """The same where a zip's epochs become longer."""
        if not isinstance(pipeline, ZipPipeline) or begin["pipeline"].get("samples") == length:
            return start
        return noted_length(start, length, pipeline.length, epochs=epochs)

    adapted, end = Adapted(begin), None
    if grown and isinstance(pipeline, ZipPipeline) and epochs is not None:
        # The passes of its sources are not its epochs: when one of them is too late, rows tell.
        end = rows_of(lengthened(adapted).state["changes"], pipeline.length, epochs)
    for source, one, before in grown:
        passes = epochs if source is None else None
        adapted = noted(
            adapted, one, before, lambda: state["position"], source=source, epochs=passes, end=end, strict=strict
        )
    return lengthened(adapted)


_Grown = list[tuple[int | None, Pipeline, Held]]
"""Of each dataset that was added to the number of the source, of a zip; the dataset; and what a state says of it."""


def _begun(pipeline: Pipeline, data: Data, state: Mapping[str, Any]) -> tuple[dict[str, Any], _Grown]:
    """A state that says of data what holds here, if some was added to it."""
    before = _held(state["pipeline"], state["sources"])
    is_same = before == _held(data.samples, data.sources)
    if is_same or state["pipeline"].get("order") != data.kind or not is_grown(pipeline, before):
        return dict(state), []
    now = {"pipeline": state["pipeline"] | data.samples, "sources": data.sources}
    return dict(state) | now, [(None, pipeline, before)]


def _zip_begun(pipeline: ZipPipeline, data: Data, state: Mapping[str, Any]) -> tuple[dict[str, Any], _Grown]:
    """The same of a zip: of each source, and of the length of an epoch where that follows from their samples."""
    sources: list[Any] = list(state["sources"])
    grown: _Grown = []
    for number, (source, here, there) in enumerate(zip(pipeline.sources, data.sources, sources, strict=False)):
        entry = _entry(there)
        before = _held(entry, entry.get("parts"))
        if entry != here and entry.get("order") == here["order"] and is_grown(source, before):
            sources[number] = here
            grown.append((number, source, before))
    told = dict(state["pipeline"])
    is_longer = any(before.samples < len(source) for _, source, before in grown)
    if is_longer and sources == data.sources and _follows(pipeline, state):
        told["samples"] = pipeline.length
    return dict(state) | {"pipeline": told, "sources": sources}, grown


def _follows(pipeline: ZipPipeline, state: Mapping[str, Any]) -> bool:
    """Whether the length of an epoch follows from a zip's sources here, and did so in a state of such sources."""
    samples = state["pipeline"].get("samples")
    if type(samples) is not int or not pipeline.rule.passes:
        return False
    least: list[int] = [there["samples"] for there in state["sources"]]
    # A state does not tell how many of the documents that a run does without were there.
    without = [size - len(source) for size, source in zip(pipeline.sizes, pipeline.sources, strict=True)]
    return pipeline.rule.of(least) <= samples <= pipeline.rule.of(map(add, least, without))


def _held(entry: Mapping[str, Any], sources: Any) -> Held:
    return Held(entry.get("samples"), entry.get("selection"), sources)


def _entry(there: Any) -> dict[str, Any]:
    """What a state says of a zip's source; nothing if it is no such thing."""
    return cast("dict[str, Any]", there) if isinstance(there, dict) else {}


def _check_same(data: Data, state: Mapping[str, Any]) -> None:
    """Refuses the state of a run over other samples.

    Raises:
        StateMismatch: naming the first difference.
    """
    _check_sources(data.sources, state["sources"], "source")
    for key, value in data.samples.items():
        if state["pipeline"].get(key) != value:
            raise StateMismatch(
                f"the samples are not those of the state: {key} is {value!r} here and "
                f"{state['pipeline'].get(key)!r} in the state"
            )


def _check_sources(here: Sequence[Mapping[str, Any]], there: Any, kind: str, of: str = "") -> None:
    """Compares what is said of sources; of a zip's, then of the parts of each."""
    others = cast("list[Any]", there if isinstance(there, list) else [])
    if len(here) != len(others):
        raise StateMismatch(
            f"the data is not that of the state: {len(here)} {kind}s{of} here, {len(others)} in the state"
        )
    for number, (new, old) in enumerate(zip(here, others, strict=True)):
        found = cast("dict[str, Any]", old if isinstance(old, dict) else {})
        for key, value in new.items():
            if key == "parts":
                _check_sources(value, found.get(key), "part", f" of source {number}")
            elif found.get(key) != value:
                raise StateMismatch(
                    f"the data is not that of the state: {key} of {kind} {number}{of} is {value!r} here and "
                    f"{found.get(key)!r} in the state\nhint: to start a new run, load no state"
                )

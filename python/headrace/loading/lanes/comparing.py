"""Is a pipeline that of a state? What of it a plan describes is compared with what the state says."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from headrace.errors import StateMismatch

__all__ = ["check_same"]

_LATER: Final = {
    "pads": "pad_id, ignore_index and pad_values say what stands in padding, and in other columns beside added tokens",
    "floats": "columns says which of them are cast to floats",
}
"""What states of earlier builds do not tell, and which arguments of `pack` do."""


def check_same(
    pipeline: Mapping[str, Any],
    sources: Sequence[Mapping[str, Any]],
    functions: Sequence[str],
    saved: Mapping[str, Any],
    *,
    strict: bool,
    of: str = "",
) -> str | None:
    """Refuses what is said of other data, or of another pipeline. If functions have other names, the words for it.

    How long rows are is not compared (see `headrace.loading.lengths`).

    Args:
        pipeline: what `LanePlan.pipeline` says here.
        sources: likewise.
        functions: what `LanePlan.stages` says here.
        saved: the same by the keys of a state.
        strict: False allows functions with other names.
        of: text behind the pipeline, such as " of source 'web'".

    Raises:
        StateMismatch: naming the first difference that is not allowed.
    """
    for key, wanted in pipeline.items():
        if key == "marks":
            # States of earlier builds do not tell.
            if (version := saved["pipeline"].get(key, 1)) != wanted:
                raise StateMismatch(
                    f"state: this build reads lanes of version {wanted}{of}, those of the state are of {version!r}\n"
                    "hint: the build that saved it reads them; to start a new run, load no state"
                )
            continue
        if key in _LATER and key not in saved["pipeline"]:
            continue
        if key not in saved["pipeline"] or (saved["pipeline"][key] != wanted and key != "seq_len"):
            hint = f"{_LATER[key]}; " if key in _LATER else ""
            raise StateMismatch(
                f"the pipeline{of} is not that of the state: {key} is {wanted!r} here and "
                f"{saved['pipeline'].get(key)!r} in the state\nhint: {hint}to start a new run, load no state"
            )
    if unknown := set(saved["pipeline"]) - set(pipeline):
        raise StateMismatch(f"state: unknown key {sorted(unknown)[0]!r} in its pipeline")
    there = saved["sources"]
    if len(sources) != len(there):
        raise StateMismatch(
            f"the data{of} is not that of the state: {len(sources)} sources here, {len(there)} in the state"
        )
    for number, (new, old) in enumerate(zip(sources, there, strict=True)):
        known: Mapping[str, Any] = cast("Mapping[str, Any]", old) if isinstance(old, Mapping) else {}
        for key, value in new.items():
            if key not in known or known[key] != value:
                found = known.get(key) if isinstance(old, Mapping) else old
                raise StateMismatch(
                    f"the data{of} is not that of the state: {key} of source {number} is {value!r} here and {found!r} "
                    "in the state\nhint: to start a new run, load no state"
                )
    if list(functions) == list(saved["functions"]):
        return None
    names = f"{', '.join(functions)} here and {', '.join(map(str, saved['functions']))} in the state"
    difference = f"the functions{of} have other names than in the state: {names}"
    if strict:
        raise StateMismatch(f"{difference}\nhint: strict=False allows it")
    return difference

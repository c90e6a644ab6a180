"""Every kind of pipeline whose rows hold tokens of documents, over the same documents on disk.

Tests of what all packing has to do are parametrized by `PACKINGS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import headrace as hr
from kinds import Documents

Mode = Literal["concat", "best_fit", "pad", "truncate"]
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True)
class Packing:
    """A kind of pipelines that pack documents."""

    mode: Mode
    pack: Callable[..., Any]
    """Of documents, how long rows are, and other arguments of `pack`."""
    stored: str = "parquet"
    """Which of the files of `Documents` it reads."""
    functions: bool = False
    """Whether functions make the documents."""


def _counted(documents: Documents, seq_len: int, **options: Any) -> Any:
    return hr.open(documents.folder / "parquet").pack(seq_len, **options)


def _stored(mode: Mode) -> Callable[..., Any]:
    return lambda documents, seq_len, **options: (
        hr.open(documents.folder / "parquet").select(["tokens"]).pack(seq_len, mode=mode, **options)
    )


def _made(mode: Mode) -> Callable[..., Any]:
    return lambda documents, seq_len, **options: (
        documents.samples.flat_map(_whole).batch_map(_same, 1).pack(seq_len, mode=mode, **options)
    )


def _recorded(mode: Mode) -> Callable[..., Any]:
    return lambda documents, seq_len, **options: documents.records.documents().pack(seq_len, mode=mode, **options)


def _mixed(one: Callable[..., Any], two: Callable[..., Any]) -> Callable[..., Any]:
    return lambda documents, seq_len, **options: hr.mix(
        {"one": (one(documents, seq_len, **options), 3), "two": (two(documents, seq_len, **options), 1)}
    )


def _whole(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [document]


def _same(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return documents


PACKINGS: Mapping[str, Packing] = {
    "counted": Packing("concat", _counted),
    **{mode: Packing(mode, _stored(mode)) for mode in MODES},
    **{f"{mode} of functions": Packing(mode, _made(mode), "lines", functions=True) for mode in MODES},
    **{f"{mode} of records": Packing(mode, _recorded(mode), "records") for mode in MODES},
    "mixture of counted": Packing("concat", _mixed(_counted, _counted)),
    "mixture of counted and concat": Packing("concat", _mixed(_counted, _stored("concat"))),
    **{f"mixture of {mode}": Packing(mode, _mixed(_stored(mode), _recorded(mode))) for mode in MODES},
}

"""Each argument of `pack`: a run goes on with another value only where rows hold the same."""

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.samples.packing import RESERVED

BASE: Mapping[str, Any] = {"seq_len": 9, "boundaries": True, "eos_id": 3, "pad_id": 7}
COLUMNS = {"tokens": "int32", "labels": "int64", "weights": "float32"}

OTHERS: Mapping[str, list[Any]] = {
    "seq_len": [8],
    "column": ["labels"],
    "columns": [["labels", "tokens"], COLUMNS | {"labels": "int32"}, COLUMNS | {"weights": "float16"}],
    "mode": ["concat", "best_fit", "pad", "truncate"],
    "eos_id": [4, None],
    "bos_id": [5],
    "overlap": [1],
    "boundaries": [False],
    "dtype": ["int64"],
    "name": ["input_ids"],
    "pad_id": [8],
    "ignore_index": [-1],
    "pad_values": [{"tokens": np.int64(9)}, {"labels": 9}, {"weights": np.float32(2.5)}],
    "lookahead": [2],
    "long": ["drop"],
    "max_documents": [1],
    "cu_seqlens_size": [200],
}
"""For each argument other values than those that `BASE` or its default are."""

PRESENTED = ("boundaries", "dtype", "name", "cu_seqlens_size")
"""What changes how batches show the same rows: the type and the name of tokens, and what else there is."""


def _opened(folder: Path, stored: str) -> Any:
    return hr.open(folder / "rows.parquet" if stored == "parquet" else folder / "rows.jsonl")


def _one(stored: str, mode: str) -> Callable[..., Any]:
    return lambda folder, **options: _opened(folder, stored).pack(**{"mode": mode} | options)


def _several(mode: str) -> Callable[..., Any]:
    return lambda folder, **options: _opened(folder, "lines").pack(**{"mode": mode, "columns": COLUMNS} | options)


def _mixed(one: Callable[..., Any]) -> Callable[..., Any]:
    return lambda folder, **options: hr.mix({"one": (one(folder, **options), 2), "two": (one(folder, **options), 1)})


MODES = ("concat", "best_fit", "pad", "truncate")
KINDS: Mapping[str, Callable[..., Any]] = {
    "counted": _one("parquet", "concat"),
    "mixture of counted": _mixed(_one("parquet", "concat")),
    **{f"{mode}, one column": _one("lines", mode) for mode in MODES},
    **{f"{mode}, three columns": _several(mode) for mode in MODES},
    **{f"mixture of {mode}": _mixed(_several(mode)) for mode in MODES},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of 0 to 12 entries, whose floats are rounded by half their bits."""
    path = tmp_path_factory.mktemp("identity")
    rows: list[dict[str, Any]] = []
    for number in range(60):
        tokens = [100 * number + place for place in range(number * 5 % 13)]
        weights = [1 + token / 1e4 for token in tokens]
        rows.append({"tokens": tokens, "labels": [token + 50 for token in tokens], "weights": weights})
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), path / "rows.parquet", row_group_size=20)
    return path


def loader_of(data: Any) -> hr.DataLoader:
    if isinstance(data, hr.MixDataset):
        return hr.DataLoader(data, global_batch_size=4, seed=1, num_workers=0)
    return hr.DataLoader(data, global_batch_size=4, seed=1, num_workers=0, epochs=1, remainder="pad")


def held_by(batches: Iterator[Any]) -> list[list[list[float]]]:
    """What rows hold, column by column: of an endless run its first ones."""
    beside = {*RESERVED, "loss_mask", "source"}
    return [
        [np.asarray(array, dtype=np.float64).tolist() for name, array in batch.items() if name not in beside]
        for batch in islice(batches, 40)
    ]


def others(folder: Path, kind: str, argument: str) -> Iterator[Any]:
    """The pipeline with other values of an argument, those left out that mean nothing there."""
    meaningless = re.compile("has no meaning|names of packed columns")
    for value in OTHERS[argument]:
        try:
            yield KINDS[kind](folder, **BASE | {argument: value})
        except ValueError as error:
            if meaningless.search(str(error)) is None:
                raise


def test_no_argument_is_left_out() -> None:
    for owner in (hr.TableDataset, hr.SampleDataset):
        assert {*inspect.signature(owner.pack).parameters} - {"self"} == {*OTHERS}


@pytest.mark.parametrize("argument", OTHERS)
def test_a_run_goes_on_only_where_rows_hold_the_same(folder: Path, argument: str) -> None:
    went_on = 0
    refused: list[bool] = []
    for kind, pipeline in KINDS.items():
        run = iter(loader_of(pipeline(folder, **BASE)))
        first = next(run)
        state, rest = json.loads(json.dumps(first.state)), held_by(run)
        for other in others(folder, kind, argument):
            loader = loader_of(other)
            if argument in PRESENTED and loader.state_dict()["kind"] != state["kind"]:
                continue  # rows that come lane by lane, in an order of their own
            try:
                loader.load_state_dict(state)
            except hr.StateMismatch:
                rows = iter(loader_of(other))
                refused.append(held_by(islice(rows, 1)) != held_by(iter([first])) or held_by(rows) != rest)
            else:
                assert held_by(iter(loader)) == rest, (kind, other)
                went_on += 1
    if argument in PRESENTED:
        assert went_on
        assert not refused
    else:
        assert any(refused)


def saved_and_others(folder: Path, kind: str, change: Mapping[str, Any]) -> tuple[dict[str, Any], hr.DataLoader]:
    """A state after a batch, and a loader of the pipeline with a change."""
    run = iter(loader_of(KINDS[kind](folder, **BASE)))
    return json.loads(json.dumps(next(run).state)), loader_of(KINDS[kind](folder, **BASE | change))


@pytest.mark.parametrize(
    "kind, change, message",
    [
        ("counted", {"pad_id": 8}, "pad_id is 8 here and 7 in the state"),
        ("counted", {"pad_values": {"tokens": 8}}, "pad_id is 8 here and 7 in the state"),
        ("mixture of counted", {"pad_id": 8}, "pad_id of source 'one' is 8 here and 7 in the state"),
        ("concat, one column", {"pad_id": 8}, r"pads is \[8\] here and \[7\] in the state\nhint: pad_id, ignore"),
        ("concat, three columns", {"ignore_index": 0}, r"pads is \[7, 0, 0\] here and \[7, -100, 0\] in the state"),
        (
            "mixture of concat",
            {"pad_values": {"weights": 0.5}},
            r"'one' .* pads is \[7, -100, 0.5\] here and",
        ),
        (
            "pad, three columns",
            {"columns": COLUMNS | {"weights": "float16"}},
            r"floats is \[None, None, 'float16'\] here and \[None, None, 'float32'\] in the state\nhint: columns says",
        ),
    ],
)
def test_what_differs_is_named(folder: Path, kind: str, change: dict[str, Any], message: str) -> None:
    state, loader = saved_and_others(folder, kind, change)
    for strict in (True, False):
        with pytest.raises(hr.StateMismatch, match=message):
            loader.load_state_dict(state, strict=strict)


@pytest.mark.parametrize("kind", ["counted", "mixture of counted", "concat, three columns", "mixture of concat"])
def test_states_of_before_what_fills_rows_up_was_told_load(folder: Path, kind: str) -> None:
    state, loader = saved_and_others(folder, kind, {"pad_id": 8})

    def without(value: Any) -> Any:
        if isinstance(value, list):
            return [without(one) for one in value]
        if isinstance(value, dict):
            return {key: without(one) for key, one in value.items() if key not in ("pads", "pad_id", "floats")}
        return value

    old = without(state)
    assert old != state
    loader.load_state_dict(old)
    now = json.loads(json.dumps(next(iter(loader)).state))
    # From here on it is told.
    loader.load_state_dict(now)
    with pytest.raises(hr.StateMismatch, match="8"):
        saved_and_others(folder, kind, {})[1].load_state_dict(now)


@pytest.mark.parametrize("stored", ["parquet", "lines"])
def test_pad_values_fill_up_the_tokens_of_one_column(folder: Path, stored: str) -> None:
    data = _opened(folder, stored).pack(9, pad_id=7, pad_values={"tokens": 8})
    *_, last = loader_of(data)
    assert last["tokens"][last["loss_mask"] == 0].tolist() == [8] * int((last["loss_mask"] == 0).sum())
    assert (last["loss_mask"] == 0).any()
    for value in (0.5, float("nan"), 2**31):
        with pytest.raises(ValueError, match=f"'tokens' is of int32, which cannot hold its pad value {value}"):
            _opened(folder, stored).pack(9, pad_values={"tokens": value})
    with pytest.raises(ValueError, match="pad_values: expected names of packed columns, tokens, got 'labels'"):
        _opened(folder, stored).pack(9, pad_values={"labels": 0})

"""What packed batches of dynamic pipelines hold: columns, boundaries, masks, padding."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.loading.lanes.boundaries import boundaries
from headrace.loading.lanes.source import Column, Layout, Record
from lane_pipelines import loader_of
from sample_sources import made_up, source_of


def chat(sample: dict[str, Any]) -> dict[str, Any]:
    """A prompt and an answer: the loss counts for the answer alone."""
    number = sample["id"]
    prompt, answer = number % 4 + 1, number % 3
    ids = np.arange(prompt + answer) + 100 * (number + 1)
    mask = np.array([0] * prompt + [1] * answer)
    return {
        "input_ids": ids,
        "labels": np.where(mask == 1, ids, -100),
        "loss_mask": mask,
        "weights": mask * (number + 0.5),
        "text": "not packed",
    }


COLUMNS = {"input_ids": "int32", "labels": "int64", "loss_mask": "uint8", "weights": "float32"}


@pytest.mark.parametrize("mode", ["concat", "best_fit", "pad", "truncate"])
def test_columns_are_packed_alike(mode: Any) -> None:
    data = made_up([30]).map(chat).pack(8, columns=COLUMNS, mode=mode, bos_id=7, eos_id=9, boundaries=True, pad_id=5)
    kinds: set[int] = set()
    for batch in islice(iter(loader_of(data, 4)), 10):
        assert {name: batch[name].dtype.name for name in COLUMNS} == COLUMNS
        ids, labels, mask, weights = (batch[name] for name in COLUMNS)
        assert ids.shape == labels.shape == mask.shape == weights.shape == (4, 8)
        own = ids >= 100
        numbers = ids // 100 - 1
        assert np.array_equal(mask[own] == 1, labels[own] != -100)
        assert np.array_equal(labels[own & (mask == 1)], ids[own & (mask == 1)])
        assert np.array_equal(weights[own], (mask * (numbers + 0.5))[own])
        assert (labels[~own] == -100).all()
        assert (mask[~own] == 0).all()
        assert (weights[~own] == 0).all()
        kinds |= set(ids[~own].tolist())
        assert "max_seqlen" in batch
    assert kinds == {7, 9} | (set() if mode == "concat" else {5})


def test_labels_and_masks_are_filled_up_by_rule() -> None:
    """B061, B068: a mask that was filled up with a token, or left shorter."""
    data = made_up([9]).map(chat)
    for pads, wanted in ((None, (0, -100, 0, 0.0)), ({"labels": -1, "weights": 2.5, "input_ids": 3}, (3, -1, 0, 2.5))):
        batch = next(iter(loader_of(data.pack(8, columns=COLUMNS, mode="pad", pad_values=pads), 3)))
        padding = batch["input_ids"] < 100
        assert padding.any()
        for name, value in zip(COLUMNS, wanted, strict=True):
            assert (batch[name][padding] == value).all()
    # One that the user has is taken as it is, the other is made.
    assert "loss_mask" in next(iter(loader_of(data.pack(8, columns=["input_ids", "labels"], mode="pad"), 3)))
    assert next(iter(loader_of(data.pack(8, columns=COLUMNS, mode="pad"), 3)))["loss_mask"].dtype == np.uint8


class _Given(Record):
    __slots__ = ("_lengths",)

    def __init__(self, lengths: list[int]) -> None:
        self._lengths = lengths

    @property
    def lengths(self) -> list[int]:
        return self._lengths

    @property
    def position(self) -> int:
        return 0

    def sources(self) -> list[Any]:
        return []


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(1, 5), max_size=4), min_size=1, max_size=4),
    seq_len=st.integers(1, 20),
    overlap=st.integers(0, 2),
)
def test_boundaries_are_those_of_the_definition(rows: list[list[int]], seq_len: int, overlap: int) -> None:
    width = seq_len + overlap
    kept: list[list[int]] = []
    for row in rows:
        left, own = width, []
        for length in row:
            if left:
                own.append(min(length, left))
                left -= own[-1]
        kept.append(own)
    layout = Layout(
        columns={"tokens": Column(np.dtype("int32"), width)}, seq_len=seq_len, boundaries=True, loss_mask=True
    )
    found = boundaries(layout, [_Given(own) if own else None for own in kept])
    ends = [0]
    for row, own in enumerate(kept):
        parts = own + ([width - sum(own)] if sum(own) < width else [])
        ids = [number for number, length in enumerate(parts) for _ in range(length)]
        places = [place for length in parts for place in range(length)]
        assert found["document_ids"][row].tolist() == ids
        assert found["position_ids"][row].tolist() == places
        assert found["loss_mask"][row].tolist() == [int(place < sum(own)) for place in range(width)]
        begin = 0
        for length in parts:
            if begin < seq_len:
                ends.append(row * seq_len + min(begin + length, seq_len))
            begin += length
    offsets = found["cu_seqlens"]
    assert offsets.tolist() == ends
    assert ends[-1] == len(rows) * seq_len
    assert (np.diff(offsets) > 0).all()
    assert found["max_seqlen"] == np.diff(offsets).max()
    assert {found[name].dtype.name for name in ("document_ids", "position_ids", "cu_seqlens")} == {"int32"}


def test_cu_seqlens_may_have_a_fixed_size() -> None:
    data = made_up([30]).map(chat)
    settings: dict[str, Any] = {"column": "input_ids", "mode": "best_fit", "boundaries": True, "max_documents": 2}
    size = 4 * (2 + 1) + 1
    fixed = loader_of(data.pack(16, cu_seqlens_size=size, **settings), 4)
    free = loader_of(data.pack(16, **settings), 4)
    for one, other in islice(zip(fixed, free, strict=True), 8):
        offsets = one["cu_seqlens"]
        assert offsets.shape == (size,)
        assert offsets[: len(other["cu_seqlens"])].tolist() == other["cu_seqlens"].tolist()
        assert (offsets[len(other["cu_seqlens"]) :] == 64).all()
        assert one["max_seqlen"] == other["max_seqlen"]
    with pytest.raises(ValueError, match=r"cu_seqlens_size must be at least 1[0-9] for this batch, got 5"):
        next(iter(loader_of(data.pack(16, cu_seqlens_size=5, **settings), 4)))


def test_a_row_holds_no_more_documents_than_asked_for() -> None:
    """B058: the limit held for the first batch alone."""
    data = made_up([300]).map(lambda sample: {"tokens": [sample["id"]]}).pack(50, mode="best_fit", max_documents=4)
    for batch in islice(iter(loader_of(data, 6)), 6):
        assert batch["loss_mask"].sum(axis=1).tolist() == [4] * 6
        assert [len(row) for row in batch.sources()] == [4] * 6


def test_rows_of_equal_documents_are_full_whatever_their_length() -> None:
    """B059: nothing was packed unless the length was a power of two."""
    # A packer that rounds lengths to powers of two would pack these differently.
    for length in (4096, 4097):
        data = made_up([64]).map(_Ones(length)).pack(2 * length, mode="best_fit")
        batch = next(iter(loader_of(data, 4)))
        assert batch["loss_mask"].all()


class _Ones:
    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, sample: Any) -> Any:
        return {"tokens": np.ones(self.length, dtype=np.int64)}


def test_empty_documents_give_no_rows_of_padding() -> None:
    """B071."""
    texts = ["", "ab", "", "", "cdefghijk", ""]
    data = made_up([6]).map(lambda sample: {"tokens": list(texts[sample["id"]].encode())})
    for mode, kept in (("pad", 4), ("truncate", 4), ("best_fit", 4)):
        for batch in islice(iter(loader_of(data.pack(kept, mode=mode, eos_id=0, bos_id=1), 2)), 6):
            assert batch["loss_mask"].any(axis=1).all()


def test_padding_of_web_documents_is_at_most_one_in_a_hundred() -> None:
    rng = np.random.default_rng(0)
    lengths = np.maximum(1, np.exp(rng.normal(np.log(400), 1.0, 4000))).astype(int)
    data = made_up([1000] * 4).map(lambda sample: {"tokens": np.ones(lengths[sample["id"]], dtype=np.int32)})
    share = {}
    for mode in ("best_fit", "pad", "truncate"):
        loader = loader_of(data.pack(2048, mode=mode), 8)
        for _ in islice(iter(loader), 40):
            pass
        counts = loader.stats()
        share[mode] = counts["padding"] / (counts["padding"] + counts["tokens"])
    assert share["best_fit"] <= 0.01
    assert min(share["pad"], share["truncate"]) > 0.2


def test_stored_columns_are_packed_in_any_mode(tmp_path: Path) -> None:
    lists = [list(range(at, at + at % 13)) for at in range(100)]
    table = pa.table(
        {"ids": pa.array(lists, pa.list_(pa.int32())), "labels": pa.array(lists, pa.list_(pa.int64())), "other": lists}
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=20)
    data = hr.open(tmp_path)
    assert isinstance(data.pack(8, column="ids"), hr.Dataset)
    assert len(data.pack(8, column="ids")) == sum(map(len, lists)) // 8
    packed = data.pack(16, columns=["ids", "labels"], mode="best_fit", long="drop")
    assert packed.pipeline.base.origins[0].columns == ("ids", "labels")
    batch = next(iter(loader_of(packed, 4)))
    mask = batch["loss_mask"] == 1
    assert np.array_equal(batch["ids"][mask], batch["labels"][mask])
    assert (batch["labels"][~mask] == -100).all()
    for row, parts in zip(batch["ids"], batch.sources(), strict=True):
        stored = [token for part in parts for token in lists[part.row_group * 20 + part.row]]
        assert row[: len(stored)].tolist() == stored
    found: Any = pa.record_batch(batch)
    assert found.schema.names == ["ids", "labels", "loss_mask"]
    assert found.column("ids").to_pylist() == batch["ids"].tolist()


def test_only_the_packed_column_is_read() -> None:
    data = made_up([5, 5])
    with pytest.raises(hr.DataError, match="numbers in one dimension, found int"):
        next(iter(loader_of(data.pack(2, column="id"), 5)))
    assert {columns for _, columns in source_of(data).loads} == {("id",)}


@pytest.mark.parametrize(
    "document, settings, message",
    [
        ({"ids": [1]}, {}, r"expected a dict with 'tokens', found ids\nhint: column= or columns="),
        ({"tokens": [[1], [2]]}, {}, "numbers in one dimension, found an array of int64 with 2 dimensions"),
        ({"tokens": "text"}, {}, "numbers in one dimension, found str"),
        ({"tokens": [0.5]}, {}, r"'tokens' to hold integers, as int32 has it, found float64"),
        ({"tokens": [2**31]}, {}, "'tokens' to fit int32, -2147483648 to 2147483647, found 2147483648"),
        ({"tokens": [1, 2], "x": [1]}, {"columns": ["tokens", "x"]}, "'x' to be as long as 'tokens', 2, found 1"),
        ([1, 2], {"columns": ["tokens", "x"]}, "expected a dict with tokens, x, found list"),
        ({"tokens": [1], "m": [2]}, {"columns": {"tokens": "int32", "m": "bool"}}, "'m' to fit bool, 0 to 1, found 2"),
    ],
)
def test_documents_that_cannot_be_packed_are_named(document: Any, settings: Any, message: str) -> None:
    data = made_up([3]).map(lambda sample: document).pack(4, **settings)
    with pytest.raises(hr.DataError, match=message) as raised:
        next(iter(loader_of(data, 1)))
    assert "headrace: sample" in "".join(raised.value.__notes__)
    with pytest.raises(hr.DataError, match="nothing is left"):
        next(iter(loader_of(data, 1, on_error="skip")))


@pytest.mark.parametrize(
    "settings, error, message",
    [
        ({"mode": "fit"}, ValueError, 'mode must be "concat", "best_fit", "pad" or "truncate", got \'fit\''),
        ({"mode": "pad", "overlap": 1}, ValueError, "overlap has no meaning for mode='pad', only for concat"),
        ({"lookahead": 3}, ValueError, "lookahead has no meaning for mode='concat', only for best_fit"),
        ({"max_documents": 3, "mode": "pad"}, ValueError, "max_documents has no meaning"),
        ({"long": "drop", "mode": "truncate"}, ValueError, "long has no meaning"),
        ({"long": "keep", "mode": "pad"}, ValueError, 'long must be "split" or "drop"'),
        ({"dtype": "int16"}, ValueError, 'dtype must be "int32" or "int64"'),
        ({"name": "loss_mask"}, ValueError, "name must be none of"),
        ({"columns": ["cu_seqlens"]}, ValueError, "columns must be none of"),
        ({"columns": ["a", "a"]}, ValueError, "each name once"),
        ({"columns": []}, TypeError, "list of names"),
        ({"columns": "tokens"}, TypeError, "list of names"),
        ({"columns": {"a": "float32"}}, ValueError, "the first one holds tokens"),
        ({"columns": {"a": "int32", "b": "complex64"}}, ValueError, r"columns\['b'\] must be"),
        (
            {"columns": {"a": "uint8"}, "pad_id": 300},
            ValueError,
            "'a' is of uint8, which cannot hold its pad value 300",
        ),
        ({"pad_values": {"x": 1}}, ValueError, "pad_values: expected names of packed columns, tokens, got 'x'"),
        ({"pad_values": {"tokens": "x"}}, TypeError, "must be a number"),
        ({"cu_seqlens_size": 4}, ValueError, "needs boundaries=True"),
        ({"cu_seqlens_size": 1, "boundaries": True}, ValueError, "cu_seqlens_size"),
        ({"lookahead": 0, "mode": "best_fit"}, ValueError, "lookahead"),
        ({"eos_id": 2**31}, ValueError, "eos_id"),
        ({"seq_len": 0}, ValueError, "seq_len"),
    ],
)
def test_wrong_arguments_are_refused(settings: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        made_up([3]).map(chat).pack(**({"seq_len": 8} | settings))

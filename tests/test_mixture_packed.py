"""Mixtures of packed columns with samples and dynamic rows: the columns' rows come lane by lane, too."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import headrace as hr
from datasets import Corpus, CorpusWriter, document_files, seeded
from headrace.loading.choose import Choice
from headrace.testing import check_resume

PACKINGS: list[dict[str, Any]] = [
    {"seq_len": 8},
    {"seq_len": 8, "bos_id": 90_001, "eos_id": 90_002, "boundaries": True, "name": "ids"},
    {"seq_len": 6, "eos_id": 90_002, "overlap": 1, "dtype": "int64"},
]


@pytest.fixture(scope="module")
def corpus(write: CorpusWriter) -> Corpus:
    return write(seeded(5, files=2, groups=3, documents=8, longest=20))


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> hr.SampleDataset:
    path = tmp_path_factory.mktemp("lines") / "code.jsonl"
    path.write_text("".join(json.dumps({"text": "x" * (number % 13)}) + "\n" for number in range(30)))
    return hr.open(path)


def codes(text: str) -> list[int]:
    return [80_000 + len(text)] * len(text)


def mixed(corpus: Corpus, lines: hr.SampleDataset, packing: dict[str, Any], **arguments: Any) -> hr.MixDataset:
    code = lines.tokenize(codes, eos=False).pack(**{**packing, "column": "tokens"})
    return hr.mix({"web": (corpus.open(**packing), 0.7), "code": (code, 0.3)}, **arguments)


@pytest.mark.parametrize("packing", PACKINGS)
def test_rows_of_a_packed_source_are_those_of_its_documents_packed_lane_by_lane(
    corpus: Corpus, lines: hr.SampleDataset, packing: dict[str, Any]
) -> None:
    run: dict[str, Any] = {"global_batch_size": 6, "lanes": 6, "seed": 2, "num_workers": 1}
    name = packing.get("name", "tokens")
    mine: list[list[list[int]]] = [[] for _ in range(6)]
    for batch in islice(hr.DataLoader(mixed(corpus, lines, packing), **run), 30):
        assert batch[name].dtype == packing.get("dtype", "int32")
        for row, source, values in zip(
            batch.rows.tolist(), batch["source"].tolist(), batch[name].tolist(), strict=True
        ):
            if source == 0:
                mine[row % 6].append(values)
    alone = hr.open(corpus.folder).select(["tokens"]).pack(**packing)
    rows: list[list[list[int]]] = [[] for _ in range(6)]
    for batch in islice(hr.DataLoader(alone, **run), 30):
        for row, values in zip(batch.rows.tolist(), batch[name].tolist(), strict=True):
            rows[row % 6].append(values)
    assert sum(map(len, mine)) >= 30 * 6 * 0.6
    assert mine == [lane[: len(own)] for lane, own in zip(rows, mine, strict=True)]


@pytest.mark.parametrize("packing", PACKINGS)
def test_one_lane_in_order_gives_the_rows_of_the_column_alone(
    corpus: Corpus, lines: hr.SampleDataset, packing: dict[str, Any]
) -> None:
    run: dict[str, Any] = {"global_batch_size": 1, "shuffle": False, "num_workers": 1}
    alone = hr.DataLoader(corpus.open(**packing), **run)
    # The rest of a pass is carried over to the next one in both.
    wanted = [dict(batch) for _ in range(2) for batch in alone]
    both = hr.DataLoader(mixed(corpus, lines, packing), lanes=1, **run)
    found = [dict(batch) for batch in islice(both, 2 * len(wanted)) if batch["source"][0] == 0]
    assert len(found) > len(wanted) // 2
    assert_same(found, wanted)


def assert_same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """Batches of a mixture are those of a source alone, as far as both go."""
    for one, other in zip(found, wanted, strict=False):
        assert set(one) == {*other, "source"}
        for name, values in other.items():
            assert np.array_equal(one[name], values), name
            assert getattr(one[name], "dtype", int) == getattr(values, "dtype", int)


@given(
    files=document_files(),
    seq_len=st.integers(1, 9),
    tokens=st.fixed_dictionaries({}, optional={"bos_id": st.just(-5), "eos_id": st.just(90_000)}),
    overlap=st.integers(0, 1),
    boundaries=st.booleans(),
)
@settings(max_examples=12, deadline=None)
def test_any_column_in_order_is_packed_as_it_is_alone(
    write: CorpusWriter,
    lines: hr.SampleDataset,
    files: Any,
    seq_len: int,
    tokens: dict[str, int],
    overlap: int,
    boundaries: bool,
) -> None:
    packing: dict[str, Any] = {"seq_len": seq_len, "overlap": overlap, "boundaries": boundaries, **tokens}
    corpus = write(files)
    run: dict[str, Any] = {"global_batch_size": 1, "shuffle": False, "num_workers": 0}
    try:
        alone = hr.DataLoader(corpus.open(**packing), **run)
    except ValueError as error:
        assume("too little data" not in str(error))
        raise
    wanted = [dict(batch) for _ in range(3) for batch in alone][:40]
    code = lines.tokenize(codes, eos=False).pack(**packing)
    both = hr.mix({"code": (code, 0), "web": (corpus.open(**packing), 1)})
    found = [dict(batch) for batch in islice(hr.DataLoader(both, lanes=1, **run), len(wanted))]
    assert len(found) == len(wanted) > 0
    assert_same(found, wanted)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("per_batch", [False, True])
def test_runs_go_on_exactly_on_any_ranks(
    corpus: Corpus, lines: hr.SampleDataset, packing: dict[str, Any], per_batch: bool
) -> None:
    checked = check_resume(mixed(corpus, lines, packing, per_batch=per_batch), steps=6)
    assert checked.steps == 10


def test_rows_name_their_files_and_stats_the_sources(corpus: Corpus, lines: hr.SampleDataset) -> None:
    loader = hr.DataLoader(mixed(corpus, lines, PACKINGS[0]), global_batch_size=10, num_workers=2)
    counts = np.zeros(2, dtype=int)
    for batch in islice(loader, 5):
        counts += np.bincount(batch["source"], minlength=2)
        for source, parts in zip(batch["source"].tolist(), batch.sources(), strict=True):
            assert {Path(part.file).suffix for part in parts} == {(".parquet", ".jsonl")[source]}
    told = loader.stats()["sources"]
    assert [told[name]["rows"] for name in ("web", "code")] == counts.tolist()
    # 50 rows at 0.7 and 0.3.
    assert abs(counts - [35, 15]).max() <= 1


def test_processes_open_the_files_again(corpus: Corpus, lines: hr.SampleDataset) -> None:
    dataset = mixed(corpus, lines, PACKINGS[0])
    by_threads, by_processes = (
        [
            batch["tokens"].tolist()
            for batch in islice(hr.DataLoader(dataset, global_batch_size=4, num_workers=1, worker_type=kind), 6)
        ]
        for kind in ("thread", "process")
    )
    assert by_processes == by_threads


def test_workers_are_chosen_by_what_all_sources_need(
    corpus: Corpus, lines: hr.SampleDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def choose(probe: Any, keys: list[tuple[int, int]], workers: int) -> Choice:
        measured.extend(number for number, _ in keys)
        probe(keys)
        return Choice("thread", f"{workers} workers would do")

    monkeypatch.setattr("headrace.loading.lanes.workers.choose", choose)
    loader = hr.DataLoader(mixed(corpus, lines, PACKINGS[0]), global_batch_size=4, num_workers=2, worker_type="auto")
    assert len(next(iter(loader)).rows) == 4
    assert loader.stats()["worker_reason"] == "2 workers would do"
    items = hr.open(corpus.folder)
    # In turns, up to as many as the source with more samples has.
    assert len(measured) == max(len(items), len(lines))
    assert measured[:4] == [0, 1, 0, 1]


def test_a_column_inside_a_struct_is_packed_lane_by_lane(tmp_path: Path, lines: hr.SampleDataset) -> None:
    documents = [[1, 2, 3], None, [4, 5], [], [6, 7, 8, 9, 10]]
    inner = pa.array(documents, type=pa.list_(pa.int32()))
    outer = pa.StructArray.from_arrays([inner], ["ids"], mask=pa.array([False, False, True, False, False]))
    pq.write_table(pa.table({"text": outer}), tmp_path / "a.parquet")
    data = hr.open(tmp_path)
    run: dict[str, Any] = {"global_batch_size": 1, "lanes": 1, "shuffle": False}
    dataset = hr.mix({"web": data.pack(2, column="text.ids")}, schedule={0: {"web": 1}})
    counted = [batch["tokens"].tolist() for batch in islice(hr.DataLoader(dataset, **run), 4)]
    code = lines.tokenize(codes, eos=False).pack(2)
    both = hr.mix({"web": (data.pack(2, column="text.ids"), 1), "code": (code, 0)})
    assert [batch["tokens"].tolist() for batch in islice(hr.DataLoader(both, **run), 4)] == counted
    assert counted == [[[1, 2]], [[3, 6]], [[7, 8]], [[9, 10]]]
    fitted = data.pack(3, column="text.ids", mode="best_fit")
    assert next(iter(hr.DataLoader(fitted, **run)))["tokens"].tolist() == [[1, 2, 3]]
    with pytest.raises(ValueError, match="pack: samples have no part 'tokens', only text"):
        data.pack(3, mode="best_fit")


def test_rows_of_packed_columns_and_others_must_be_alike(corpus: Corpus, lines: hr.SampleDataset) -> None:
    web = corpus.open(seq_len=8)
    with pytest.raises(
        ValueError, match=r"must be alike: columns is .*8.* for source 'web' and .*9.* for source 'code'"
    ):
        hr.mix({"web": (web, 1), "code": (lines.tokenize(codes, eos=False).pack(9), 1)})
    with pytest.raises(ValueError, match="must be alike: columns is"):
        hr.mix({"web": (web, 1), "lines": (lines, 1)})

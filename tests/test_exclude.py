"""Documents that are excluded: left out of a run from its beginning, or masked from a step on, in every kind of run."""

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from datasets import Corpus, CorpusWriter, drain, seeded, take_batches
from headrace.testing import check_resume
from sample_sources import ids, made_up

PACKING: dict[str, Any] = {"seq_len": 8, "bos_id": -2, "eos_id": -1, "boundaries": True}


@pytest.fixture(scope="module")
def corpus(write: CorpusWriter) -> Corpus:
    return write(seeded(31, files=3, groups=4, documents=9, longest=14))


def loader_of(data: Any, exclude: Any = None, **arguments: Any) -> hr.DataLoader:
    return hr.DataLoader(data, **{"global_batch_size": 6, "num_workers": 1, "exclude": exclude} | arguments)


def goes_on(loader: hr.DataLoader, state: Any) -> hr.DataLoader:
    """The loader at a state that does not know of all documents that it excludes."""
    with pytest.warns(UserWarning, match="masked from step"):
        loader.load_state_dict(state, strict=False)
    return loader


def flat(batch: Any) -> list[Any]:
    """The parts of all rows of a batch, or the places of its samples."""
    return [part for row in batch.sources() for part in (row if isinstance(row, list) else [row])]


def some_of(batch: Any, count: int) -> list[str]:
    """The first documents of a batch, by name."""
    return list(dict.fromkeys(part.id for part in flat(batch)))[:count]


def mask_of(batch: Any, names: Sequence[str]) -> np.ndarray[Any, Any]:
    """What the loss mask of packed rows with boundaries has to be, by what the rows are made of."""
    mask = np.zeros(batch["document_ids"].shape, dtype=np.uint8)
    for row, (parts, numbers) in enumerate(zip(batch.sources(), batch["document_ids"], strict=True)):
        kept = [number for number, part in enumerate(parts) if part.id not in names]
        mask[row] = np.isin(numbers, kept)
    return mask


def equal_but_for_masks(one: Any, other: Any) -> None:
    assert set(one) == set(other) | {"loss_mask"}
    for name in set(other) - {"loss_mask"}:
        assert np.array_equal(one[name], other[name]), name
    assert one.rows.tolist() == other.rows.tolist()


def parquet_text(folder: Path) -> Path:
    """Two files of text with tokens, and a number for each document."""
    rng = np.random.default_rng(3)
    for file in range(2):
        rows = [{"n": 100 * file + row, "tokens": [100 * file + row] * int(rng.integers(1, 9))} for row in range(40)]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"f{file}.parquet", row_group_size=8)
    return folder


def again(sample: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One or two documents of a sample."""
    for _ in range(1 + sample["n"] % 2):
        yield sample


PIPELINES: dict[str, Callable[[hr.SampleDataset], Any]] = {
    "counted": lambda data: data.pack(**PACKING),
    "counted overlap": lambda data: data.pack(7, overlap=1, eos_id=5, boundaries=True),
    "concat": lambda data: data.map(dict).pack(**PACKING),
    "best_fit": lambda data: data.flat_map(again).pack(9, mode="best_fit", boundaries=True, lookahead=5),
    "pad": lambda data: data.flat_map(again).pack(5, mode="pad", bos_id=1, boundaries=True),
    "groups": lambda data: data.batch_map(list, 3).pack(9, mode="best_fit", boundaries=True),
    "counted mixture": lambda data: hr.mix({"a": (data.pack(**PACKING), 2.0), "b": (data.pack(**PACKING), 1.0)}),
    "mixture": lambda data: hr.mix(
        {
            "a": (data.flat_map(again).pack(9, mode="best_fit", boundaries=True), 2.0),
            "b": (data.map(dict).pack(9, mode="best_fit", boundaries=True), 1.0),
        }
    ),
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> hr.SampleDataset:
    return hr.open(parquet_text(tmp_path_factory.mktemp("stored")))


# From the beginning


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_run_that_begins_without_documents_never_gives_them_and_resumes(
    stored: hr.SampleDataset, pipeline: str
) -> None:
    data = PIPELINES[pipeline](stored)
    plain = take_batches(loader_of(data), 4)
    names = some_of(plain[1], 4)
    without = take_batches(loader_of(data, names), 40)
    given = {part.id for batch in without for part in flat(batch)}
    assert not given & set(names)
    if pipeline != "groups":  # of which each is told by its first document
        assert {part.id for batch in plain for part in flat(batch)} - set(names) <= given
    assert ("loss_mask" in without[0]) == ("loss_mask" in plain[0])
    assert check_resume(data, steps=3, restarts=2, loader={"exclude": names}).rows > 100


@settings(max_examples=25)
@given(data=st.data())
def test_packed_documents_that_are_left_out_are_as_empty_ones(write: CorpusWriter, data: st.DataObject) -> None:
    files = seeded(data.draw(st.integers(0, 50)), files=2, groups=3, documents=12, longest=14)
    places = [
        (name, group, row)
        for name, groups in files.items()
        for group, rows in enumerate(groups)
        for row in range(len(rows))
    ]
    chosen = set(data.draw(st.lists(st.sampled_from(places), max_size=20), "excluded"))
    emptied = {
        name: [
            [[] if (name, group, row) in chosen else document for row, document in enumerate(documents)]
            for group, documents in enumerate(groups)
        ]
        for name, groups in files.items()
    }
    # Pages that end within documents, of which there are then parts.
    small = {"data_page_size": 1, "write_batch_size": data.draw(st.sampled_from([3, 1024])), "use_dictionary": False}
    corpus, other = write(files, **small), write(emptied)
    packing = PACKING | {"bos_id": data.draw(st.sampled_from([None, -2]))}
    order = {"shuffle": data.draw(st.booleans()), "epochs": 2, "memory": data.draw(st.sampled_from(["1MiB", "2GiB"]))}
    try:
        wanted = drain(loader_of(other.open(**packing), global_batch_size=3, **order))
    except ValueError:
        return  # too little is left for a batch
    names = [f"{corpus.folder / name}:{group}:{row}" for name, group, row in chosen]
    assert drain(loader_of(corpus.open(**packing), names, global_batch_size=3, **order)) == wanted


def test_packed_sources_and_ranks_of_a_run_without_documents(corpus: Corpus) -> None:
    packed = corpus.open(**PACKING)
    names = some_of(take_batches(loader_of(packed), 1)[0], 5)
    whole = take_batches(loader_of(packed, names), 5)
    parts = [take_batches(loader_of(packed, names, rank=rank, world_size=3), 5) for rank in range(3)]
    for step, batch in enumerate(whole):
        rows = {
            row: tokens for part in parts for row, tokens in zip(part[step].rows, part[step]["tokens"], strict=True)
        }
        assert [rows[row].tolist() for row in batch.rows] == batch["tokens"].tolist()
        assert loader_of(packed, names).sources(step) == batch.sources()
    state, plain = whole[0].state, loader_of(packed).state_dict()
    assert state["sources"][0]["identity"] != plain["sources"][0]["identity"]
    assert state["sources"][0]["tokens"] < plain["sources"][0]["tokens"] == packed.tokens


def test_samples_that_are_left_out_are_those_that_subset_leaves_out() -> None:
    data = made_up((5, 1, 7, 0, 4, 9, 3))
    names = [data.place(number).id for number in (0, 5, 6, 28)]
    others = data.subset([number for number in range(29) if number not in (0, 5, 6, 28)])
    for options in ({"shuffle": True, "seed": 4}, {"shuffle": False}):
        one, other = (
            [(batch["id"].tolist(), batch.sources()) for batch in loader_of(which, exclude, epochs=2, **options)]
            for which, exclude in ((data, names), (others, None))
        )
        assert one == other
    assert sorted(ids(data.subset([27, 28, 0, 3]).map(dict))) == [0, 3, 27, 28]
    scattered = [batch["id"].tolist() for batch in loader_of(data.subset([28, 3, 0, 9]), names, shuffle=False)]
    assert scattered == [[3, 9]]
    check_resume(data, steps=4, loader={"exclude": [*names, data.place(9).id]})


def test_what_leaves_nothing_is_refused(corpus: Corpus) -> None:
    data = made_up((2, 3))
    everything = [data.place(number).id for number in range(5)]
    for dataset in (data, data.flat_map(lambda sample: [sample])):
        with pytest.raises(ValueError, match="exclude leaves no sample of made-up://"):
            loader_of(dataset, everything)
    with pytest.raises(ValueError, match="exclude leaves no sample of made-up://"):
        loader_of(hr.zip([made_up((4,), start=50), data]), everything[2:] + everything[:2] + ["file-0:0:3"])
    table = hr.open(corpus.folder)
    packed = corpus.open(**PACKING)
    for dataset in (packed, hr.mix({"a": (packed, 1.0)})):
        with pytest.raises(ValueError, match=f"exclude leaves no token of {corpus.folder}"):
            loader_of(dataset, table)


# In the course of a run


@pytest.mark.parametrize("pipeline", [*PIPELINES, "best_fit in processes"])
def test_documents_that_are_masked_leave_all_rows_where_they_are(stored: hr.SampleDataset, pipeline: str) -> None:
    data = PIPELINES[pipeline.removesuffix(" in processes")](stored)
    options = {"worker_type": "process"} if pipeline.endswith("in processes") else {}
    base = take_batches(loader_of(data), 12)
    names = some_of(base[4], 6)
    states = [base[2].state]
    done = 3
    for world_size in (3, 1, 2):
        loaders = [loader_of(data, names, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
        for loader in loaders:
            if done == 3:
                goes_on(loader, states)
            else:
                loader.load_state_dict(states)
        parts = [take_batches(loader, 3) for loader in loaders]
        for step in range(3):
            wanted = base[done + step]
            rows = wanted.rows.tolist()
            for part in parts:
                batch = part[step]
                own = [rows.index(row) for row in batch.rows]
                assert np.array_equal(batch["tokens"], wanted["tokens"][own])
                assert np.array_equal(batch["loss_mask"], mask_of(batch, names))
                assert batch["loss_mask"].dtype == np.uint8
        states = [part[-1].state for part in parts]
        for loader in loaders:
            loader.close()
        done += 3
        if done > 11:
            break
    assert any((mask_of(batch, names) != mask_of(batch, [])).any() for batch in base[3:12])


def test_masked_tokens_take_in_what_the_rows_own_mask_hides(stored: hr.SampleDataset) -> None:
    columns = {"tokens": "int32", "loss_mask": "float32"}
    data = stored.map(lambda sample: sample | {"loss_mask": np.arange(len(sample["tokens"])) / 2 + 1}).pack(
        9, mode="best_fit", columns=columns, boundaries=True
    )
    base = take_batches(loader_of(data), 5)
    names = some_of(base[2], 3)
    for batch, plain in zip(take_batches(goes_on(loader_of(data, names), base[0].state), 4), base[1:], strict=True):
        equal_but_for_masks(batch, plain)
        assert np.array_equal(batch["loss_mask"], plain["loss_mask"] * mask_of(batch, names))
    # The padding of a counted run is hidden before and after.
    packed = stored.pack(**PACKING)
    finite = {"epochs": 1, "remainder": "pad"}
    plain = list(loader_of(packed, **finite))
    names = some_of(plain[-1], 4)
    masked = list(goes_on(loader_of(packed, names, **finite), plain[0].state))
    assert [np.array_equal(batch["loss_mask"], mask_of(batch, names)) for batch in masked] == [True] * (len(plain) - 1)
    assert pa.record_batch(masked[-1])["loss_mask"].to_pylist() == masked[-1]["loss_mask"].tolist()


def test_samples_that_are_masked_stay_in_their_batches() -> None:
    data = made_up((5, 1, 7, 0, 4, 9, 3))
    loader = loader_of(data, epochs=2)
    base = [*loader, *loader]
    names = [place.id for place in base[1].sources()[:2]]
    loader = goes_on(loader_of(data, names, epochs=2), base[0].state)
    for batch, plain in zip([*loader, *loader], base[1:], strict=True):
        equal_but_for_masks(batch, plain)
        assert batch["loss_mask"].tolist() == [int(place.id not in names) for place in batch.sources()]
    # What was before the change is as it was.
    loader.seek(0)
    first = next(iter(loader))
    assert list(first) == list(base[0])
    assert first["id"].tolist() == base[0]["id"].tolist()
    # With filters a mask is as long as what they leave.
    filtered = data.filter(lambda sample: sample["id"] % 3)
    loader = goes_on(loader_of(filtered, names), loader_of(filtered).state_dict())
    for batch in loader:
        assert batch["loss_mask"].tolist() == [int(place.id not in names) for place in batch.sources()]
        assert len(batch["loss_mask"]) == len(batch["id"])


def test_samples_of_zips_mixtures_and_dynamic_pipelines_are_masked() -> None:
    one, other = made_up((4, 4)), made_up((5,), start=100)
    pairs = hr.zip([one, other], lambda pair: {"a": pair[0]["id"], "b": pair[1]["id"]})
    names = [one.place(2).id, other.place(4).id]
    loader = goes_on(loader_of(pairs, names, batch_size=None, global_batch_size=3), loader_of(pairs).state_dict())
    for batch in islice(loader, 4):
        hidden = [bool({place.id for place in places} & set(names)) for places in batch.sources()]
        assert batch["loss_mask"].tolist() == [int(not one) for one in hidden]
    for data, some in (
        (one.flat_map(lambda sample: [sample, sample]), names[:1]),
        (hr.mix({"one": (one, 1.0), "other": (other, 1.0)}), names),
    ):
        loader = goes_on(loader_of(data, some), loader_of(data).state_dict())
        batches = list(islice(loader, 6))
        for batch in batches:
            assert batch["loss_mask"].tolist() == [int(place.id not in some) for place in batch.sources()]
        assert 0 in np.concatenate([batch["loss_mask"] for batch in batches])


def test_a_mask_of_the_batchs_own_is_taken_in_and_other_batches_are_refused() -> None:
    data = made_up((9,))
    names = [data.place(number).id for number in range(0, 9, 2)]
    state = loader_of(data, shuffle=False).state_dict()
    masked = data.map(lambda sample: sample | {"loss_mask": np.array([2.0, 3.0])})
    batch = next(iter(goes_on(loader_of(masked, names, shuffle=False), state)))
    assert batch["loss_mask"].tolist() == [[0, 0], [2, 3]] * 3
    odd = data.map(lambda sample: sample | {"loss_mask": "all"})
    with pytest.raises(ValueError, match="an array with an entry for each of 6 samples, found list"):
        next(iter(goes_on(loader_of(odd, names, shuffle=False), state)))
    for one in (data.map(lambda sample: sample["id"]), data.flat_map(lambda sample: [sample["id"]])):
        loader = goes_on(loader_of(one, names), loader_of(one).state_dict())
        with pytest.raises(ValueError, match="masks samples in batches that are dicts, this one is a ndarray\nhint"):
            next(iter(loader))


def stacked(samples: list[Any]) -> dict[str, Any]:
    return {"id": np.array([sample["id"] for sample in samples])}


def with_own_mask(samples: list[Any]) -> dict[str, Any]:
    return stacked(samples) | {"loss_mask": np.ones(len(samples)) if samples else "none yet"}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("collate_fn,wanted", [(None, "a list"), (stacked, "a mask"), (with_own_mask, "its own")])
def test_an_empty_batch_of_a_rank_has_nothing_to_mask(zipped: bool, collate_fn: Any, wanted: str) -> None:
    data = made_up((9,))
    names = [data.place(4).id]
    data = hr.zip([data, made_up((9,), start=50)], itemgetter(0)) if zipped else data
    options = {"global_batch_size": 4, "world_size": 4, "epochs": 1, "allow_empty": True, "collate_fn": collate_fn}
    state = loader_of(data, **options, rank=0).state_dict()
    ranks = [list(goes_on(loader_of(data, names, **options, rank=rank), state)) for rank in range(4)]
    masks = [batch["loss_mask"].tolist() for batches in ranks for batch in batches if len(batch) and len(batch["id"])]
    assert sorted(masks) == [[0], *[[1]] * 8]
    empty = [batch for batches in ranks for batch in batches if not (len(batch) and len(batch["id"]))]
    assert len(empty) == 3
    for batch in empty:
        if wanted == "a list":
            assert batch == []
        elif wanted == "a mask":
            assert batch["loss_mask"].tolist() == []
        else:
            assert batch["loss_mask"] == "none yet"


@pytest.mark.parametrize("pipeline", ["counted", "best_fit", "samples"])
def test_a_run_passes_over_a_spike_and_masks_what_was_in_it(stored: hr.SampleDataset, pipeline: str) -> None:
    data = stored.select(["n"]) if pipeline == "samples" else PIPELINES[pipeline](stored)
    base = take_batches(loader_of(data), 10)
    names = some_of(base[4], 3)
    loader = goes_on(loader_of(data, names), base[3].state)
    loader.skip(range(4, 6))
    given = take_batches(loader, 2)
    assert [batch.step for batch in given] == [6, 7]
    loader = loader_of(data, names)
    loader.load_state_dict(given[-1].state)
    given += take_batches(loader, 2)
    for batch, plain in zip(given, base[6:], strict=True):
        equal_but_for_masks(batch, plain)
        if pipeline != "samples":
            assert np.array_equal(batch["loss_mask"], mask_of(batch, names))
    state = loader.state_dict()
    assert state["skipped"] == [[4, 6]]
    assert [(line["kind"], line["step"], line["row"]) for line in state["changes"]] == [("excluded", 4, 24)]


@pytest.mark.parametrize("pipeline", ["counted", "counted mixture", "samples"])
@pytest.mark.parametrize("size,first", [(2, 4), (4, 2), (6, 1), (3, 2)])
def test_masks_hold_from_the_row_of_a_state_on_in_batches_of_any_size(
    stored: hr.SampleDataset, pipeline: str, size: int, first: int
) -> None:
    data = stored.select(["n"]) if pipeline == "samples" else PIPELINES[pipeline](stored)
    lanes = {"global_batch_size": 2, "lanes": 1}
    base = take_batches(loader_of(data, **lanes), 12)
    names = some_of(base[5], 3)
    loader = goes_on(loader_of(data, names, **lanes), base[3].state)
    wanted = {
        int(row): mask
        for batch in take_batches(loader, 8)
        for row, mask in zip(batch.rows, batch["loss_mask"], strict=True)
    }
    loader.seek(0)
    loader.set_global_batch_size(size)
    found = take_batches(loader, 16 // size + 1)
    assert ["loss_mask" in batch for batch in found] == [step >= first for step in range(len(found))]
    for batch in found[first:]:
        for row, mask in zip(batch.rows.tolist(), batch["loss_mask"], strict=True):
            assert np.array_equal(mask, wanted.get(row, mask))


# What a state knows of it


def test_a_list_grows_at_its_end_from_restart_to_restart(stored: hr.SampleDataset) -> None:
    packed = stored.pack(**PACKING)
    first, second, third = (some_of(take_batches(loader_of(packed), 6)[step], 3) for step in (0, 3, 5))
    second = [name for name in second if name not in first]
    third = [name for name in third if name not in first + second]
    begun = loader_of(packed, first)
    base = take_batches(begun, 8)
    with pytest.raises(
        hr.StateMismatch, match=r"are only here.*\nhint: strict=False masks their tokens from step 2 on"
    ):
        loader_of(packed, first + second).load_state_dict(base[1].state)
    one = goes_on(loader_of(packed, first + second), base[1].state)
    middle = take_batches(one, 2)
    other = goes_on(loader_of(packed, first + second + third), middle[-1].state)
    rest = take_batches(other, 4)
    masks = [first + second] * 2 + [first + second + third] * 4
    for batch, plain, names in zip(middle + rest, base[2:], masks, strict=True):
        equal_but_for_masks(batch, plain)
        assert np.array_equal(batch["loss_mask"], mask_of(batch, names))
    other.seek(2)
    for batch, before in zip(take_batches(other, 2), middle, strict=True):
        assert np.array_equal(batch["loss_mask"], before["loss_mask"]), "what came later is not masked before"
    changes = rest[-1].state["changes"]
    assert [(line["step"], line["after"]["documents"], line["after"]["masked"]) for line in changes] == [
        (0, len(first), False),
        (2, len(first + second), True),
        (4, len(first + second + third), True),
    ]
    # It may be moved back, and grow there.
    other.seek(1)
    fourth = next(part.id for batch in base for part in flat(batch) if part.id not in first + second + third)
    moved = goes_on(loader_of(packed, [*first, *second, *third, fourth]), other.state_dict())
    assert [line["step"] for line in moved.state_dict()["changes"]] == [0, 2, 4, 1], "in the order in which they came"
    moved.load_state_dict(hr.State.from_bytes(hr.State.to_bytes(moved.state_dict())))


def lane_streams(batches: Sequence[Any], seq_len: int, lanes: int) -> dict[int, list[int]]:
    """The tokens of each lane's rows, one after another, an overlap's once."""
    streams: dict[int, list[int]] = {lane: [] for lane in range(lanes)}
    for batch in batches:
        for row, tokens in zip(batch.rows.tolist(), batch["tokens"].tolist(), strict=True):
            streams[row % lanes] += tokens[:seq_len]
    return streams


def test_documents_stay_left_out_and_masked_where_rows_become_longer(corpus: Corpus) -> None:
    def loader(seq_len: int, exclude: Sequence[str]) -> hr.DataLoader:
        data = corpus.open(**PACKING | {"seq_len": seq_len, "overlap": 1})
        return loader_of(data, exclude, lanes=3, seed=5)

    def changed(state: Any, seq_len: int, exclude: Sequence[str], warned: list[str]) -> hr.DataLoader:
        one = loader(seq_len, exclude)
        with pytest.warns(UserWarning, match="^headrace: ") as caught:
            one.load_state_dict(state, strict=False)
        texts = " | ".join(str(told.message) for told in caught)
        assert len(caught) == len(warned)
        assert all(part in texts for part in warned), texts
        assert {told.filename for told in caught} == {__file__}
        return one

    every = list(dict.fromkeys(part.id for batch in take_batches(loader(8, []), 30) for part in flat(batch)))
    out, masked, more = every[::4], every[1::4], every[2::4]
    begun = take_batches(loader(8, out), 4)
    state = begun[-1].state
    longer = changed(state, 20, out, ["seq_len changes from 8 to 20"])
    base = take_batches(longer, 7)
    streams = lane_streams(begun, 8, 3)
    for lane, tokens in lane_streams(base, 20, 3).items():
        streams[lane] += tokens
    never_changed = lane_streams(take_batches(loader(4, out), (4 * 8 + 7 * 20) // 4), 4, 3)
    assert streams == never_changed
    given_documents = {part.id for batch in begun + base for part in flat(batch)}
    assert not given_documents & set(out)
    assert given_documents & set(masked)

    # Others are masked from the change on, and still others where rows become shorter again.
    one = changed(state, 20, out + masked, ["seq_len changes from 8 to 20", "masked from step 4"])
    middle = take_batches(one, 7)
    for batch, plain in zip(middle, base, strict=True):
        equal_but_for_masks(batch, plain)
        assert np.array_equal(batch["loss_mask"], mask_of(batch, masked))
    assert any(not batch["loss_mask"].all() for batch in middle)
    same = changed(middle[-1].state, 5, out + masked, ["seq_len changes from 20 to 5"])
    grown = changed(middle[-1].state, 5, out + masked + more, ["seq_len changes from 20 to 5", "masked from step 11"])
    for after, names in ((same, masked), (grown, masked + more)):
        rest = take_batches(after, 6)
        for batch in rest:
            assert np.array_equal(batch["loss_mask"], mask_of(batch, names))
        resumed = loader(5, out + names)
        resumed.load_state_dict(json.loads(json.dumps(rest[2].state)))
        for batch, before in zip(take_batches(resumed, 3), rest[3:], strict=True):
            assert all(np.array_equal(batch[name], before[name]) for name in before)


@pytest.mark.parametrize("pipeline", ["counted", "concat", "samples"])
def test_other_documents_than_the_states_are_refused(stored: hr.SampleDataset, pipeline: str) -> None:
    data = stored.select(["n"]) if pipeline == "samples" else PIPELINES[pipeline](stored)
    names = some_of(take_batches(loader_of(data), 1)[0], 3)
    begun = loader_of(data, names).state_dict()
    masked = goes_on(loader_of(data, names), loader_of(data).state_dict()).state_dict()
    assert begun["sources"] != masked["sources"] or begun["pipeline"] != masked["pipeline"]
    for state in (begun, masked):
        for others in (None, names[:2], names[::-1], [*names[1:], names[0]]):
            for strict in (True, False):
                with pytest.raises(hr.StateMismatch, match="expected exclude= to begin with the 3 of digest"):
                    loader_of(data, others).load_state_dict(state, strict=strict)
        loader = loader_of(data, names * 2)
        loader.load_state_dict(hr.State.from_bytes(hr.State.to_bytes(state)))
        assert loader.state_dict() == state
    assert loader_of(data, []).state_dict() == loader_of(data).state_dict()


@pytest.mark.parametrize("pipeline", [*PIPELINES, "samples"])
def test_a_state_that_is_refused_is_not_warned_of(stored: hr.SampleDataset, pipeline: str) -> None:
    data = stored.select(["n"]) if pipeline == "samples" else PIPELINES[pipeline](stored)
    plain = loader_of(data, seed=3)
    names = some_of(take_batches(plain, 1)[0], 3)
    loader = loader_of(data, names, seed=4)
    with pytest.raises(hr.StateMismatch, match="seed"):
        loader.load_state_dict(plain.state_dict(), strict=False)
    assert loader.step == 0


@pytest.mark.parametrize(
    "after,told",
    [
        (7, "have their number"),
        ({"documents": "7", "digest": "x", "masked": True}, "have their number"),
        ({"documents": 0, "digest": "x", "masked": True}, "more and more"),
        ({"documents": 3, "digest": None, "masked": False}, "have their number"),
    ],
)
def test_lines_of_excluded_documents_are_checked(corpus: Corpus, after: Any, told: str) -> None:
    loader = loader_of(corpus.open(**PACKING))
    line = {"kind": "excluded", "step": 0, "row": 0, "before": None, "after": after}
    with pytest.raises(hr.StateMismatch, match=told):
        loader.load_state_dict(loader.state_dict() | {"changes": [line]})


def test_a_loader_goes_from_one_kind_of_run_to_the_other(stored: hr.SampleDataset) -> None:
    """Workers and readers of the run before are not those of the next one."""
    for data in (stored.select(["n"]), PIPELINES["best_fit"](stored), PIPELINES["counted"](stored)):
        plain = take_batches(loader_of(data), 3)
        names = some_of(plain[1], 3)
        loader = loader_of(data, names)
        begun = take_batches(loader, 3)
        goes_on(loader, plain[0].state)
        for batch, wanted in zip(take_batches(loader, 2), plain[1:], strict=True):
            equal_but_for_masks(batch, wanted)
        loader.load_state_dict(begun[0].state)
        for batch, wanted in zip(take_batches(loader, 2), begun[1:], strict=True):
            assert all(np.array_equal(batch[name], wanted[name]) for name in wanted)
            assert batch.state == wanted.state


# What documents are called


def test_documents_that_there_are_not_are_warned_of(stored: hr.SampleDataset, tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_text("f0.parquet:0:3\nf0.parquet:0:8\n\nf0.parquet:9:0\nf0.parquet:0:3\n")
    for data in (stored.select(["n"]), stored.pack(**PACKING), PIPELINES["concat"](stored)):
        with pytest.warns(UserWarning, match="2 of 3 documents are not in the dataset, the first is 'f0.parquet:0:8'"):
            loader = loader_of(data, path)
        assert "exclude=<3 documents>" in repr(loader)
        assert loader.state_dict()["changes"][0]["after"]["documents"] == 3


def test_whole_urls_and_paths_name_the_same_documents(stored: hr.SampleDataset) -> None:
    """A whole URL goes with the row group's number in its file, a path below the root with that in the dataset."""
    data = PIPELINES["counted"](stored)
    urls = [source.id for source in flat(take_batches(loader_of(data), 3)[2])]
    root = f"{stored.url.rstrip('/')}/"
    names: list[str] = []
    for url in urls:
        file, group, row = url.removeprefix(root).rsplit(":", 2)
        names.append(f"{file}:{5 * int(file[1]) + int(group)}:{row}")
    for dataset in (data, stored.select(["n"])):
        one, other = (take_batches(loader_of(dataset, form), 3) for form in (urls, names))
        for batch, wanted in zip(one, other, strict=True):
            assert all(np.array_equal(batch[name], wanted[name]) for name in wanted)


def test_functions_and_datasets_say_which(stored: hr.SampleDataset) -> None:
    data = PIPELINES["counted"](stored)
    names = [stored.place(number).id for number in range(len(stored)) if number % 7 == 3]
    numbers = [stored[number]["n"] for number in range(len(stored)) if number % 7 == 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wanted = [batch["tokens"].tolist() for batch in take_batches(loader_of(data, names), 5)]
        for exclude in (
            lambda place: place.id in names,
            stored.where(hr.col("n").is_in(numbers)),
            [stored.place(number) for number in range(len(stored)) if number % 7 == 3],
            (json.loads(json.dumps(stored.place(number))) for number in range(len(stored)) if number % 7 == 3),
        ):
            found = loader_of(data, exclude)
            assert [batch["tokens"].tolist() for batch in take_batches(found, 5)] == wanted
    with pytest.raises(TypeError, match="exclude takes a dataset of stored samples, such as where"):
        loader_of(data, stored.filter(bool))
    with pytest.raises(TypeError, match="exclude takes a dataset of stored samples"):
        loader_of(data, data)
    with pytest.raises(ValueError, match="exclude has no meaning for an object that is not headrace's"):
        hr.DataLoader([1, 2, 3], exclude=names)


# Datasets say which


@pytest.fixture(scope="module", params=["jsonl", "parquet", "files"])
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders below one, with files of the same names; what is in them is 0..30 and 100..130."""
    folder = tmp_path_factory.mktemp("named")
    for name, start in (("a", 0), ("b", 100)):
        (folder / name).mkdir()
        for file in range(3):
            some = [{"n": start + row, "tokens": [row] * 3} for row in range(10 * file, 10 * file + 10)]
            if request.param == "jsonl":
                (folder / name / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
            elif request.param == "parquet":
                pq.write_table(pa.Table.from_pylist(some), folder / name / f"{file}.parquet", row_group_size=4)
            else:
                for row in some:
                    (folder / name / f"{row['n'] - start:03}.raw").write_bytes(bytes([row["n"]]))
    return folder


def number_of(sample: dict[str, Any]) -> int:
    return sample["n"] if "n" in sample else sample["data"][0]


def numbers_of(data: Any, exclude: Any) -> list[int]:
    """The numbers that a loader gives in an epoch."""
    loader = hr.DataLoader(data.map(number_of), batch_size=5, epochs=1, num_workers=1, exclude=exclude)
    return sorted(number for batch in loader for number in batch.tolist())


def test_a_dataset_means_its_documents_wherever_the_loader_has_them(folders: Path) -> None:
    some = hr.open(folders / "b").subset([3, 4, 25])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wanted = [*range(30), *(number for number in range(100, 130) if number not in (103, 104, 125))]
        assert numbers_of(hr.open(folders), some) == wanted
        assert numbers_of(hr.open(folders / "b"), hr.open(folders).subset([33, 34, 55])) == wanted[30:]
        assert numbers_of(hr.open(folders / "b"), some) == wanted[30:]
        both = hr.concat([hr.open(folders / "a"), hr.open(folders / "b")])
        assert numbers_of(both, some) == wanted
    # As names do that the loader's own batches tell, whose list goes on wherever the data lies.
    data = hr.open(folders)
    state = loader_of(data, some).state_dict()
    assert loader_of(data, [data.place(number) for number in (33, 34, 55)]).state_dict() == state


def test_documents_of_other_data_are_no_documents_of_this(folders: Path) -> None:
    with pytest.warns(
        UserWarning, match=r"exclude: 2 of 2 documents are not in the dataset, the first is '.*/a/"
    ) as told:
        assert numbers_of(hr.open(folders / "b"), hr.open(folders / "a").subset([3, 25])) == [*range(100, 130)]
    assert "hint: files are told from each other by their whole URLs" in str(told[0].message)
    with pytest.warns(UserWarning, match="exclude: 1 of 2 documents are not in the dataset"):
        assert 103 not in numbers_of(hr.open(folders / "b"), hr.open(folders).subset([3, 33]))


def test_a_dataset_of_one_source_of_a_mixture_means_that_source(folders: Path) -> None:
    one, other = hr.open(folders / "a"), hr.open(folders / "b")
    mixed = hr.mix({"a": (one, 1.0), "b": (other, 1.0)})
    for some, left in ((one.subset([3, 4]), {3, 4}), (other.subset([25]), {125})):
        batches = take_batches(hr.DataLoader(mixed, global_batch_size=1, num_workers=1, exclude=some), 150)
        places = {place for batch in batches for place in zip(batch["source"].tolist(), batch.sources(), strict=True)}
        sources = [(0, one, 0), (1, other, 100)]
        given = {
            base + number
            for which, data, base in sources
            for number in range(30)
            if (which, data.place(number)) in places
        }
        assert {*range(30), *range(100, 130)} - given == left


def test_a_dataset_that_is_cut_in_another_way_is_refused(tmp_path: Path) -> None:
    np.arange(120, dtype="<u2").tofile(tmp_path / "x.bin")
    ten, twenty = (hr.open(tmp_path, stored_dtype="uint16", sequence_length=length) for length in (10, 20))
    with pytest.raises(
        ValueError, match=r"has 12 samples of .*/x\.bin, as the loader's, found one with 6 .*\nhint: open"
    ):
        loader_of(ten, twenty.subset([1]))

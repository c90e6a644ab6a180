"""Datasets of samples and what can be made of them, against plain lists."""

import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.samples.dataset import SampleDataset
from headrace.samples.source import Chunk
from sample_sources import MadeUp, dataset_of, ids, made_up, sample_of, source_of

SIZES = (5, 1, 7, 0, 4, 9, 3)
"""29 samples."""

Samples = list[dict[str, Any]]


def all_of(sizes: Sequence[int], start: int = 0) -> Samples:
    return [sample_of(number) for number in range(start, start + sum(sizes))]


def more(sample: dict[str, Any]) -> dict[str, Any]:
    return sample | {"more": sample["id"] * 10}


def numbered(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": sample["id"] + 1}


def changed(data: st.DataObject, dataset: SampleDataset, model: Samples) -> tuple[SampleDataset, Samples]:
    """One step further: the dataset and the list."""
    count = len(model)
    step = data.draw(
        st.sampled_from(["select", "map", "where", "take", "skip", "subset", "slice", "mask", "repeat", "concat"]),
        "step",
    )
    if step == "select":
        names = data.draw(st.permutations(["id", "text", "half"]), "names")[: data.draw(st.integers(1, 3), "few")]
        names = [*names, "id"] if "id" not in names else names
        if not model or any(name not in sample for sample in model for name in names):
            names = ["id"]
        return dataset.select(names), [{name: sample[name] for name in names} for sample in model]
    if step == "map":
        function = data.draw(st.sampled_from([more, numbered]), "function")
        return dataset.map(function), [function(sample) for sample in model]
    if step == "where":
        if any(origin.stages for origin in dataset.pipeline.origins):
            return dataset, model
        modulus = data.draw(st.integers(1, 4), "modulus")
        return dataset.where(hr.col("id") % modulus != 0), [sample for sample in model if sample["id"] % modulus != 0]
    if step in ("take", "skip"):
        number = data.draw(st.integers(0, count + 2), "number")
        if step == "take":
            return dataset.take(number), model[:number]
        return dataset.skip(number), model[number:]
    if step == "subset":
        numbers = data.draw(st.lists(st.integers(-count, count - 1), max_size=8), "numbers") if count else []
        return dataset.subset(numbers), [model[number] for number in numbers]
    if step == "slice":
        parts = st.none() | st.integers(-count - 2, count + 2)
        piece = slice(*data.draw(st.tuples(parts, parts, st.none() | st.sampled_from([1, 2, -1, -3])), "slice"))
        return dataset.subset(piece), model[piece]
    if step == "mask":
        mask = data.draw(st.lists(st.booleans(), min_size=count, max_size=count), "mask")
        kept = [sample for sample, keep in zip(model, mask, strict=True) if keep]
        return dataset.subset(np.array(mask, dtype=np.bool_)), kept
    if step == "repeat":
        times = data.draw(st.integers(1, 3), "times")
        return dataset.repeat(times), model * times
    sizes = data.draw(st.lists(st.integers(0, 4), max_size=3), "sizes")
    other, others = made_up(sizes, start=1000), all_of(sizes, 1000)
    if data.draw(st.booleans(), "before"):
        return hr.concat([other, dataset]), others + model
    return hr.concat([dataset, other]), model + others


@given(data=st.data(), sizes=st.lists(st.integers(0, 6), max_size=5))
def test_any_chain_is_that_of_the_list(data: st.DataObject, sizes: list[int]) -> None:
    dataset, model = made_up(sizes), all_of(sizes)
    for _ in range(data.draw(st.integers(0, 5), "steps")):
        before, kept = dataset, list(model)
        dataset, model = changed(data, dataset, model)
        assert len(before) == len(kept), "the dataset that was changed stays as it was"
        assert len(dataset) == len(model)
    assert list(dataset) == model
    assert list(dataset) == model, "twice"
    assert dataset[:] == model
    assert dataset[::-1] == model[::-1]
    for number in range(-len(model), len(model)):
        assert dataset[number] == model[number]
    assert [list(sample) for sample in dataset] == [list(sample) for sample in model], "the order of parts"
    dropped = list(dataset.filter(lambda sample: sample["id"] % 2 == 0))
    assert dropped == [sample for sample in model if sample["id"] % 2 == 0]
    if model:
        loader = hr.DataLoader(dataset, len(model), shuffle=False, num_workers=0, collate_fn=list)
        assert next(iter(loader)) == model


def test_a_generator_of_samples_can_be_read_twice() -> None:
    """B005."""
    data = made_up(SIZES).map(more)
    assert list(data) == list(data) == [more(sample) for sample in all_of(SIZES)]


# Numbers


@pytest.mark.parametrize(
    "index, wanted",
    [
        (0, 0),
        (28, 28),
        (-1, 28),
        (-29, 0),
        (np.int64(3), 3),
        (np.uint8(3), 3),
        (np.array(4), 4),
        (True, 1),
        (slice(2, 4), [2, 3]),
        (slice(None, None, -10), [28, 18, 8]),
        (slice(40, 50), []),
        ([3, -1, 3], [3, 28, 3]),
        ((3, 1), [3, 1]),
        (range(27, 29), [27, 28]),
        (np.array([5, 6], dtype=np.uint64), [5, 6]),
        (np.array([-1, 6], dtype=np.int8), [28, 6]),
        (np.arange(29) > 26, [27, 28]),
        ([False] * 28 + [True], [28]),
        ([], []),
        (np.zeros(0), []),
    ],
)
def test_samples_are_had_by_number(index: Any, wanted: Any) -> None:
    found = made_up(SIZES)[index]
    assert ids(found if isinstance(found, list) else [found]) == (wanted if isinstance(wanted, list) else [wanted])
    assert isinstance(found, list) == isinstance(wanted, list)


@pytest.mark.parametrize(
    "index, error, message",
    [
        (29, IndexError, "sample 29 of 29"),
        (-30, IndexError, "sample -30 of 29"),
        (2**70, IndexError, f"sample {2**70} of 29"),
        ([3, 29], IndexError, "sample 29 of 29"),
        ([-30], IndexError, "sample -30 of 29"),
        (np.array([2**64 - 1], dtype=np.uint64), IndexError, "of 29"),
        (1.0, TypeError, "must be integers"),
        ([1.5], TypeError, "must be integers.*float64"),
        ("id", TypeError, "must be integers"),
        (["id"], TypeError, "must be integers"),
        (None, TypeError, "must be integers"),
        ([[1, 2]], TypeError, r"shape \(1, 2\)"),
        ([True, False], TypeError, "bool"),
    ],
)
def test_wrong_numbers_are_errors(index: Any, error: type[Exception], message: str) -> None:
    data = made_up(SIZES)
    with pytest.raises(error, match=message):
        data[index]
    if not isinstance(index, int | float | None | str):
        with pytest.raises(error, match=message):
            data.subset(index)


def test_an_empty_dataset_has_no_numbers() -> None:
    data = made_up([0, 0])
    assert (len(data), list(data), data[:]) == (0, [], [])
    with pytest.raises(IndexError, match="sample 0 of 0"):
        data[0]


def test_samples_know_their_place() -> None:
    data = made_up(SIZES).skip(4).subset([8, 0])
    assert [tuple(data.place(number)) for number in range(2)] == [("file-2", 2, 6), ("file-0", 0, 4)]
    assert str(data.place(-1)) == "file-0, chunk 0, row 4"
    with pytest.raises(IndexError, match="sample 2 of 2"):
        data.place(2)


def test_pytorch_loaders_take_samples() -> None:
    torch = pytest.importorskip("torch")
    loader = torch.utils.data.DataLoader(made_up(SIZES).select(["id"]), batch_size=10)
    assert [batch["id"].tolist() for batch in loader] == [[*range(10)], [*range(10, 20)], [*range(20, 29)]]


# select


def test_select_reads_only_what_is_wanted() -> None:
    data = made_up(SIZES)
    chosen = data.select(["text", "id"])
    assert chosen[6] == {"text": "sample 6", "id": 6}
    assert list(chosen[6]) == ["text", "id"]
    assert source_of(data).loads == [(2, ("text", "id"))]
    assert dict(chosen.schema) == {"text": "str", "id": "int"}
    assert chosen.select(["id"])[0] == {"id": 0}
    assert data[0] == sample_of(0)


def test_select_behind_a_function_picks_what_it_gave() -> None:
    data = made_up(SIZES).map(more).select(["more"])
    assert data[3] == {"more": 30}
    assert source_of(data).loads == [(0, None)]
    gone = made_up(SIZES).map(more).select(["gone"])
    with pytest.raises(hr.DataError, match="expected a dict with 'gone', found id, text, half, more") as caught:
        gone[3]
    assert "sample 3 (file-0, chunk 0, row 3)" in "\n".join(caught.value.__notes__)
    with pytest.raises(hr.DataError, match="expected a dict with id, found int"):
        made_up(SIZES).map(lambda sample: 1).select(["id"])[0]


@pytest.mark.parametrize(
    "names, error, message",
    [
        ("id", TypeError, "list of names, got 'id'"),
        ([], ValueError, "at least one name"),
        (["id", "id"], ValueError, "each once"),
        (["gone"], ValueError, "no part 'gone', only id, text, half"),
    ],
)
def test_select_refuses(names: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        made_up(SIZES).select(names)
    with pytest.raises(ValueError, match="no part 'text', only id"):
        made_up(SIZES).select(["id"]).select(["text"])


def test_samples_that_are_no_dicts_have_no_parts(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("1\n2\n")
    data = hr.open(tmp_path)
    assert list(data) == [1, 2]
    with pytest.raises(ValueError, match="are no dicts"):
        data.select(["id"])


# Functions


def fails_at(*numbers: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def function(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] in numbers:
            raise LookupError(f"no {sample['id']}")
        return sample

    return function


def test_errors_of_functions_keep_their_type_and_name_the_sample() -> None:
    data = made_up(SIZES).skip(1).map(more).map(fails_at(6))
    for read in (lambda: data[5], lambda: list(data), lambda: data[[1, 5]]):
        with pytest.raises(LookupError, match="no 6") as caught:
            read()
        notes = "\n".join(caught.value.__notes__)
        assert "sample 5 (file-2, chunk 2, row 0)" in notes
        assert "raised in map(fails_at.<locals>.function)" in notes
    assert data[4]["id"] == 5


def test_a_function_cannot_end_a_loop_over_samples() -> None:
    def stop(sample: dict[str, Any]) -> dict[str, Any]:
        raise StopIteration

    with pytest.raises(RuntimeError, match=r"map\(.*stop\) raised StopIteration"):
        list(made_up(SIZES).map(stop))


@pytest.mark.parametrize("method", ["map", "filter"])
def test_functions_must_be_functions(method: str) -> None:
    with pytest.raises(TypeError, match=f"{method} takes a function of a sample, got 5"):
        getattr(made_up(SIZES), method)(5)


def test_samples_may_be_anything() -> None:
    for value in (None, False, 0, [], {}, "x"):
        assert made_up([2]).map(lambda sample, value=value: value)[:] == [value, value]


def test_random_numbers_are_each_samples_own() -> None:
    def drawn(sample: dict[str, Any], rng: np.random.Generator) -> tuple[int, int]:
        return sample["id"], int(rng.integers(2**60))

    def again(pair: tuple[int, int], *, rng: np.random.Generator) -> tuple[int, int, int]:
        return (*pair, int(rng.integers(2**60)))

    data = made_up(SIZES).map(drawn).map(again)
    found = list(data)
    assert [one for one, *_ in found] == list(range(29))
    assert len({number for _, *numbers in found for number in numbers}) == 58, "samples and stages differ"
    assert [data[number] for number in range(29)] == found
    assert data[[7, 3]] == [found[7], found[3]]
    twice = list(made_up(SIZES).repeat(2).map(drawn))
    assert len({number for _, number in twice}) == 58
    # The number is that in the dataset that is read.
    assert [number for _, number in made_up(SIZES).skip(3).map(drawn)] == [number for _, number, _ in found[:26]]


def test_random_numbers_come_from_the_documented_generator() -> None:
    def drawn(sample: dict[str, Any], rng: np.random.Generator) -> float:
        return rng.random()

    data = made_up([5]).map(more).map(drawn)
    for number in range(5):
        key, counter = np.array([0, 1], np.uint64), np.array([0, 0, number, 0], np.uint64)
        assert data[number] == np.random.Generator(np.random.Philox(key=key, counter=counter)).random()


def test_a_filter_may_draw() -> None:
    def half(sample: dict[str, Any], rng: np.random.Generator) -> bool:
        return rng.random() < 0.5

    data = made_up([1000]).filter(half)
    found = ids(data)
    assert 400 < len(found) < 600
    assert ids(data) == found


@pytest.mark.parametrize(
    "use",
    [
        len,
        lambda data: data[0],
        lambda data: data[:2],
        lambda data: data.take(1),
        lambda data: data.skip(1),
        lambda data: data.split([0.5, 0.5]),
        lambda data: data.subset([1]),
        lambda data: data.subset(slice(0, 1)),
        lambda data: data.subsample(0.5),
    ],
)
def test_what_a_filter_leaves_has_no_length_and_no_numbers(use: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"how many there are(.|\n)*filter last(.|\n)*where"):
        use(made_up(SIZES).filter(lambda sample: True))


def test_filters_in_one_part_of_several() -> None:
    data = hr.concat([made_up([4]), made_up([4], start=10).filter(lambda sample: sample["id"] % 2)])
    assert ids(data) == [0, 1, 2, 3, 11, 13]
    assert ids(data.repeat(2)) == [0, 1, 2, 3, 11, 13] * 2
    with pytest.raises(TypeError, match="len"):
        len(data)


# Parts


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    cuts=st.lists(st.integers(1, 10), min_size=1, max_size=4),
    seed=st.integers(0, 2**64 - 1),
)
def test_parts_of_a_split_share_nothing_and_hold_everything(sizes: list[int], cuts: list[int], seed: int) -> None:
    data, total = made_up(sizes), sum(sizes)
    shares = [cut / sum(cuts) for cut in cuts]
    parts = data.split(shares, seed=seed)
    found = [ids(part) for part in parts]
    assert sorted(number for part in found for number in part) == list(range(total))
    assert all(part == sorted(part) for part in found), "in storage order"
    assert all(abs(len(part) - share * total) <= 1 for part, share in zip(found, shares, strict=True))
    assert [ids(part) for part in data.split(shares, seed=seed)] == found
    some = [len(part) for part in found][:-1] or [total]
    assert [ids(part) for part in data.split(some, seed=seed)] == found[: len(some)], "numbers are cut as shares are"


def test_splits_are_random_and_of_a_seed() -> None:
    data = made_up([100] * 10)
    train, test = data.split([0.9, 0.1])
    assert len(test) == 100
    assert len({number // 100 for number in ids(test)}) == 10, "from all chunks"
    assert ids(data.split([0.9, 0.1], seed=1)[1]) != ids(test)
    assert not test.pipeline.selection.scattered
    assert not train.pipeline.selection.scattered
    inner = test.split([0.5, 0.5])
    assert sorted(ids(inner[0]) + ids(inner[1])) == ids(test)
    assert len(data.split([0.1, 0.2])[1]) == 200


@pytest.mark.parametrize(
    "parts, error, message",
    [
        ([], ValueError, "at least one"),
        ([0.5, 0.6], ValueError, "at most 1"),
        ([10, 20], ValueError, "30 samples were asked for, there are 29"),
        ([-1, 2], ValueError, "at least 0"),
        ([-0.5], ValueError, "at least 0"),
        ([True], ValueError, "at least 0"),
        ([float("nan")], ValueError, "shares or numbers"),
        ("ab", TypeError, "list of shares"),
        (0.5, TypeError, "list of shares"),
        (["a"], TypeError, "list of shares"),
    ],
)
def test_split_refuses(parts: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        made_up(SIZES).split(parts)


def test_numbers_of_numpy_are_numbers() -> None:
    counts = [len(part) for part in made_up(SIZES).split([np.int64(1), np.int32(4)])]  # type: ignore[list-item]
    assert counts == [1, 4]
    assert [len(part) for part in made_up(SIZES).split([np.float64(0.5), np.float32(0.5)])] == [14, 15]  # type: ignore[list-item]
    assert len(made_up(SIZES).subsample(np.float32(0.5))) == 14  # type: ignore[arg-type]


def test_a_sample_of_samples_is_spread() -> None:
    data = made_up([100] * 10)
    some = data.subsample(0.1)
    found = ids(some)
    assert len(found) == 100
    assert found == sorted(set(found))
    assert len({number // 100 for number in found}) == 10
    assert max(np.diff(found)) < 150
    assert ids(data.subsample(0.1)) == found
    assert ids(data.subsample(0.1, seed=1)) != found
    parts = some.split([0.5, 0.5], seed=3)
    assert sorted(ids(parts[0]) + ids(parts[1])) == found, "a split of it stays inside it"


@pytest.mark.parametrize("share", [0, 0.0, 0.5, 1, 1.0, 2.5, 3])
def test_a_share_may_be_more_than_all(share: float) -> None:
    found = ids(made_up(SIZES).subsample(share))
    assert len(found) == int(share) * 29 + round(share % 1 * 29)
    counts = np.bincount(found, minlength=29)
    assert set(counts.tolist()) <= {int(share), int(np.ceil(share))}
    assert found[: int(share) * 29] == list(range(29)) * int(share)


@pytest.mark.parametrize("share", [-0.1, float("nan"), float("inf"), True, "0.5", None])
def test_subsample_refuses(share: Any) -> None:
    with pytest.raises(ValueError, match="share of at least 0"):
        made_up(SIZES).subsample(share)


@pytest.mark.parametrize(
    "use, error, message",
    [
        (lambda data: data.take(-1), ValueError, "take.*-1"),
        (lambda data: data.skip(-1), ValueError, "skip.*-1"),
        (lambda data: data.take(1.5), TypeError, r"take.*1\.5"),
        (lambda data: data.take(True), TypeError, "take.*True"),
        (lambda data: data.repeat(0), ValueError, "repeat.*0"),
        (lambda data: data.repeat(2.0), TypeError, "repeat"),
        (lambda data: data.split([0.5], seed=-1), ValueError, "seed.*-1"),
        (lambda data: data.subsample(0.5, seed=2**64), ValueError, "seed"),
        (lambda data: data.subsample(0.5, seed=0.5), TypeError, "seed"),
        (lambda data: data.pack(10), ValueError, "no part .tokens., only(.|\n)*column= names what is packed"),
        (lambda data: hr.concat([]), ValueError, "at least one dataset"),
        (lambda data: hr.concat([data, [1, 2]]), TypeError, r"datasets of samples, got \[1, 2\]"),
        (lambda data: hr.concat(data), TypeError, "datasets of samples"),
    ],
)
def test_wrong_arguments_are_refused(use: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        use(made_up(SIZES))


def test_empty_parts_of_a_whole_join_it() -> None:
    """B049."""
    empty, whole = made_up([0]), made_up([3])
    for parts in ([empty, whole], [whole, empty], [empty, whole, empty]):
        assert ids(hr.concat(parts)) == [0, 1, 2]
    assert list(hr.concat([empty, empty])) == []


def test_three_hundred_sources_are_one_dataset() -> None:
    """B056."""
    data = hr.concat([made_up([1], start=number) for number in range(300)])
    assert ids(data) == list(range(300))
    loader = hr.DataLoader(data, 10, num_workers=0)
    assert sorted(number for batch in loader for number in batch["id"].tolist()) == list(range(300))


class Plain(Chunk):
    """Samples that do not refer to their source, as those that were read into memory."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self.samples[row]


class InMemory(MadeUp):
    def load(self, chunk: int, columns: tuple[str, ...] | None = None) -> Chunk:
        read = super().load(chunk, columns)
        return Plain([read[row] for row in range(len(read))])


def test_what_is_kept_of_a_source_that_is_gone_is_not_taken_for_anothers() -> None:
    first = made_up([2])
    for start in range(10, 200, 10):
        joined = hr.concat([first, dataset_of(InMemory([2], start=start))])
        assert ids(joined) == [0, 1, start, start + 1]
        del joined


# Telling


def test_datasets_say_what_they_are() -> None:
    data = made_up(SIZES).map(more).filter(lambda sample: True)
    assert repr(made_up(SIZES)) == "Dataset('made-up://', format='made up', samples=29, chunks=6)"
    assert repr(data).endswith(".map(more).filter(test_datasets_say_what_they_are.<locals>.<lambda>)")
    assert "and 1 more" in repr(hr.concat([made_up([2]), made_up([3])]))
    info = made_up(SIZES).info()
    assert (info["samples"], info["chunks"], info["bytes"], info["format"], info["steps"]) == (
        29,
        6,
        2900,
        "made up",
        [],
    )
    assert data.info()["steps"][0] == "map(more)"
    assert made_up(SIZES).take(6).info()["bytes"] == 600
    assert dict(made_up(SIZES).schema) == {"id": "int", "text": "str", "half": "float"}


def test_reading_at_random_keeps_chunks() -> None:
    data = made_up(SIZES)
    for number in (0, 28, 1, 27, 0):
        data[number]
    assert source_of(data).loads == [(0, None), (6, None)]
    info = data.info()
    assert (info["chunks_loaded"], info["chunk_hits"], info["chunk_cache_bytes"]) == (2, 3, 80_000)
    data.take(3).map(more)[0]
    assert len(source_of(data).loads) == 2, "what is made of it shares them"


def test_datasets_go_to_other_processes() -> None:
    data = made_up(SIZES).map(more).skip(2).subset([3, 0])
    data[0]
    again = pickle.loads(pickle.dumps(data))
    assert list(again) == list(data)
    assert again.pipeline.selection.digest() == data.pipeline.selection.digest()


def test_a_store_that_does_not_answer_is_an_error_each_time() -> None:
    broken = True

    def fault(chunk: int, row: int) -> None:
        if chunk == 1 and broken:
            raise hr.StoreError("no answer")

    data = dataset_of(MadeUp([2, 2], fault=fault))
    for _ in range(2):
        with pytest.raises(hr.StoreError, match="no answer"):
            list(data)
    broken = False
    assert ids(data) == [0, 1, 2, 3]


def test_jsonl_files_are_samples(tmp_path: Path) -> None:
    for number in range(3):
        lines = [
            json.dumps({"id": 4 * number + row, "tags": ["a"] * row, "score": None if row == 2 else row / 2})
            for row in range(4)
        ]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines))
    data = hr.open(tmp_path)
    assert ids(data) == list(range(12))
    assert ids(data.where(hr.col("score") >= 0.5)) == [1, 3, 5, 7, 9, 11]
    assert ids(data.where(hr.col("score").is_null())) == [2, 6, 10]
    assert ids(data.where(hr.col("tags").length() > 2)) == [3, 7, 11]
    assert ids(data.where(hr.col("tags").contains("a")).skip(1).repeat(2)) == [2, 3, 5, 6, 7, 9, 10, 11] * 2
    assert data.select(["tags"])[5] == {"tags": ["a"]}
    assert data.place(5).file == "1.jsonl"

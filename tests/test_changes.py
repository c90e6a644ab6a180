"""What states tell of changes that were made on purpose: a line for each, for as long as the run goes on."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from datasets import Corpus, CorpusWriter, seeded, take
from lane_pipelines import begin
from loading_data import Numbers
from sample_loading import SIZES, given_by, load
from sample_sources import made_up

PACKING: dict[str, Any] = {"seq_len": 6, "eos_id": 2}

Line = tuple[str, int, int, Any, Any]


@pytest.fixture(scope="module")
def corpus(write: CorpusWriter) -> Corpus:
    return write(seeded(31))


def lines(state: dict[str, Any]) -> list[Line]:
    """The changes that a state tells of, which it keeps in its saved form."""
    assert hr.State.from_bytes(hr.State.to_bytes(state)) == state
    return [(line["kind"], line["step"], line["row"], line["before"], line["after"]) for line in state["changes"]]


def moved(corpus: Corpus, folder: Path) -> Corpus:
    """The same files in the same order, by other names."""
    folder.mkdir()
    for name in corpus.files:
        shutil.copy(corpus.folder / name, folder / f"new-{name}")
    return Corpus(folder, {f"new-{name}": groups for name, groups in corpus.files.items()})


def identity(loader: hr.DataLoader) -> str:
    return loader.state_dict()["sources"][0]["identity"]


def test_a_run_that_was_not_changed_tells_of_nothing(corpus: Corpus) -> None:
    packed = hr.DataLoader(corpus.open(**PACKING), global_batch_size=4)
    take(packed, 3)
    for loader in (
        packed,
        hr.DataLoader(hr.mix({"a": (corpus.open(**PACKING), 1)}), global_batch_size=4),
        load(made_up(SIZES), 4),
        hr.DataLoader(made_up(SIZES).map(begin).pack(20), global_batch_size=4, num_workers=0),
        hr.DataLoader(Numbers(10), global_batch_size=4),
    ):
        assert lines(loader.state_dict()) == []


@pytest.mark.parametrize("by_schedule", [True, False])
def test_batch_sizes_of_packed_tokens(corpus: Corpus, by_schedule: bool) -> None:
    sizes = {0: 4, 2: 6, 3: 12} if by_schedule else {0: 4}
    loader = hr.DataLoader(corpus.open(**PACKING), global_batch_size=sizes)
    take(loader, 2)
    if not by_schedule:
        loader.set_global_batch_size(6)
    take(loader, 1)
    if not by_schedule:
        loader.set_global_batch_size(12)
    first, second = ("batch size", 2, 8, 4, 6), ("batch size", 3, 14, 6, 12)
    assert lines(loader.state_dict()) == [first, second]
    again = hr.DataLoader(corpus.open(**PACKING), global_batch_size=2)
    again.load_state_dict(loader.state_dict())
    assert lines(again.state_dict()) == [first, ("batch size", 3, 14, 6, 2)], "no row came by 12"
    loader.seek(1)
    assert lines(loader.state_dict()) == []


def test_batch_sizes_of_samples() -> None:
    loader = load(made_up(SIZES), 4)
    given_by(loader, 2)
    loader.set_global_batch_size(6)
    state = given_by(loader, 9)[-1].state
    assert lines(state) == [("batch size", 2, 8, 4, 6)]
    again = load(made_up(SIZES), 3)
    again.load_state_dict(state)
    taken = given_by(again, 30)
    change = ("batch size", state["step"], state["position"], 6, 3)
    assert lines(taken[-1].state) == [("batch size", 2, 8, 4, 6), change]
    assert taken[-1].epoch > 3


def test_batch_sizes_of_dynamic_pipelines() -> None:
    loader = hr.DataLoader(made_up(SIZES).map(begin).pack(20), global_batch_size=4, num_workers=0)
    next(iter(loader))
    loader.set_global_batch_size(8)
    assert lines(next(iter(loader)).state) == [("batch size", 1, 4, 4, 8)]


def test_batch_sizes_of_objects() -> None:
    loader = hr.DataLoader(Numbers(10), global_batch_size=4)
    next(iter(loader))
    again = hr.DataLoader(Numbers(10), global_batch_size=3)
    again.load_state_dict(loader.state_dict())
    assert lines(again.state_dict()) == [("batch size", 1, 4, 4, 3)]
    assert len(list(again)) == 2
    third = hr.DataLoader(Numbers(10), global_batch_size=3)
    third.load_state_dict(again.state_dict())
    assert lines(third.state_dict()) == [("batch size", 1, 4, 4, 3)]


def test_data_that_moved(corpus: Corpus, tmp_path: Path) -> None:
    loader = hr.DataLoader(corpus.open(**PACKING), global_batch_size=4)
    take(loader, 2)
    other = moved(corpus, tmp_path / "moved")
    again = hr.DataLoader(other.open(**PACKING), global_batch_size=4)
    with pytest.warns(UserWarning, match="has moved"):
        again.load_state_dict(loader.state_dict(), strict=False)
    line = ("data moved", 2, 8, identity(loader), identity(again))
    assert lines(again.state_dict()) == [line]
    again.set_global_batch_size(8)
    take(again, 2)
    third = hr.DataLoader(other.open(**PACKING))
    third.load_state_dict(again.state_dict())
    take(third, 1)
    assert lines(third.state_dict()) == [line, ("batch size", 2, 8, 4, 8)]
    fourth = hr.DataLoader(corpus.open(**PACKING))
    with pytest.warns(UserWarning, match="has moved"):
        fourth.load_state_dict(third.state_dict(), strict=False)
    back = ("data moved", 5, 32, line[4], line[3])
    assert lines(fourth.state_dict()) == [line, ("batch size", 2, 8, 4, 8), back]


def test_files_that_were_added(corpus: Corpus, tmp_path: Path) -> None:
    """Of packed columns and of sources of mixtures: twice, and a batch size between."""
    folders = [tmp_path / str(count) for count in (1, 2, 3)]
    for count, folder in enumerate(folders, 1):
        folder.mkdir()
        for name in sorted(corpus.files)[:count]:
            shutil.copy(corpus.folder / name, folder / name)
    parts = [hr.open(folder).pack(**PACKING) for folder in folders]
    for made, told in (
        (lambda part: part, "they are used from epoch"),
        (lambda part: hr.mix({"a": (part, 1), "b": (parts[0], 1)}), "they are used from its pass"),
    ):
        loader = hr.DataLoader(made(parts[0]), global_batch_size=4)
        data: list[dict[str, Any]] = []
        for part, batch in zip(parts[1:], (4, 8), strict=True):
            take(loader, 3)
            data.append(loader.state_dict()["sources"][0])
            again = hr.DataLoader(made(part), global_batch_size=batch)
            with pytest.warns(UserWarning, match=told):
                again.load_state_dict(loader.state_dict(), strict=False)
            loader = again
        take(loader, 3)
        state = loader.state_dict()
        data.append(state["sources"][0])
        first, second, size = lines(state)
        assert [line[:3] for line in (first, second)] == [("data added", 3, 12), ("data added", 6, 24)]
        assert size == ("batch size", 6, 24, 4, 8)
        pairs = [(line[3], line[4]) if "files" in line[3] else (line[3]["a"], line[4]["a"]) for line in (first, second)]
        for number, (before, after) in enumerate(pairs):
            assert before == {key: data[number][key] for key in before}
            assert after == {"epoch": after["epoch"]} | {key: data[number + 1][key] for key in before}
            assert {"identity", "files", "row_groups", "rows", "tokens"} <= set(before)
        fresh = hr.DataLoader(made(parts[2]))
        fresh.load_state_dict(state)
        assert fresh.state_dict() == state


def test_mixtures(corpus: Corpus, tmp_path: Path) -> None:
    """Data that moved, other weights, other sources: one after another."""
    one = corpus.open(**PACKING)
    loader = hr.DataLoader(hr.mix({"a": (one, 1), "b": (one, 1)}), global_batch_size=4)
    next(iter(loader))
    there = moved(corpus, tmp_path / "moved").open(**PACKING)

    def changed(state: dict[str, Any], told: str, **sources: Any) -> hr.DataLoader:
        again = hr.DataLoader(hr.mix(sources), global_batch_size=4)
        with pytest.warns(UserWarning, match=told):
            again.load_state_dict(state, strict=False)
        next(iter(again))
        return again

    second = changed(loader.state_dict(), "source 'b' has moved", a=(one, 1), b=(there, 1))
    digests = [source["identity"] for source in second.state_dict()["sources"]]
    first_line = ("data moved", 1, 4, {"b": digests[0]}, {"b": digests[1]})
    assert lines(second.state_dict()) == [first_line]
    third = changed(second.state_dict(), "weight of source 'a'", a=(one, 3), b=(there, 1))
    second_line = lines(third.state_dict())[1]
    assert second_line[:3] == ("weights", 2, 8)
    assert [weights["points"] for weights in second_line[3:]] == [
        [[0, {"a": 1.0, "b": 1.0}]],
        [[0, {"a": 3.0, "b": 1.0}]],
    ]
    fourth = changed(third.state_dict(), "source 'c' is only here", a=(one, 3), c=(one, 1))
    assert lines(fourth.state_dict()) == [first_line, second_line, ("sources", 3, 12, ["a", "b"], ["a", "c"])]
    fifth = hr.DataLoader(hr.mix({"a": (one, 3), "c": (one, 1)}))
    fifth.load_state_dict(fourth.state_dict())
    assert fifth.state_dict() == fourth.state_dict()


def here(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def there(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def test_functions_that_were_renamed() -> None:
    def ranks(function: Any) -> list[hr.DataLoader]:
        data = made_up(SIZES).map(begin).map(function).pack(20)
        return [hr.DataLoader(data, global_batch_size=4, num_workers=0, rank=rank, world_size=2) for rank in range(2)]

    before, after = ranks(here), ranks(there)
    parts = [next(iter(loader)).state for loader in before]
    for loader in after:
        with pytest.warns(UserWarning, match="other names"):
            loader.load_state_dict(parts, strict=False)
        next(iter(loader))
    state = hr.State.merge([loader.state_dict() for loader in after])
    [line] = lines(state)
    assert line == ("functions", 1, 4, ["map(begin)", "map(here)"], ["map(begin)", "map(there)"])


def test_data_that_was_added() -> None:
    """A line for each source of a zip, and one for its epochs, which end elsewhere."""

    def zipped(*sizes: Any) -> hr.ZipDataset:
        return hr.zip([made_up(one).map(here) for one in sizes], _first)

    loader = load(zipped((3, 3), (4, 4)), 2)
    state = given_by(loader, 2)[-1].state
    loader = load(zipped((3, 3, 3), (4, 4, 2)), 2)
    with pytest.warns(UserWarning, match="samples were added to source [01]|an epoch of the zip has 9"):
        loader.load_state_dict(state, strict=False)
    found = [(kind, step, row) for kind, step, row, *_ in lines(loader.state_dict())]
    assert found == [("data added", 2, 6), ("data added", 2, 8), ("length", 2, 6)]
    before, after = zip(*(change[3:] for change in lines(loader.state_dict())), strict=True)
    assert [list(one) for one in before] == [["0"], ["1"], ["samples"]]
    assert [one["samples"] for one in (before[0]["0"], after[0]["0"], before[1]["1"], after[1]["1"])] == [6, 9, 8, 10]
    assert (before[2], after[2]) == ({"samples": 6}, {"epoch": 1, "samples": 9})
    again = load(zipped((3, 3, 3), (4, 4, 2)))
    again.load_state_dict(given_by(loader, 4)[-1].state)
    assert lines(again.state_dict()) == lines(loader.state_dict())


def _first(samples: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return samples[0]


@pytest.mark.parametrize(
    "changes, message",
    [
        ("none", "'changes' to be list"),
        ([3], r"'changes' to hold dicts of kind, step, row, before, after, found 3"),
        ([{"kind": "data moved"}], "'changes' to hold dicts"),
        ([{"kind": 1, "step": 0, "row": 0, "before": None, "after": None}], "'changes' to hold dicts"),
        ([{"kind": "a", "step": True, "row": 0, "before": None, "after": None}], "'changes' to hold dicts"),
        ([{"kind": "a", "step": 0, "row": -1, "before": None, "after": None}], "'changes' to hold dicts"),
        ([{"kind": "a", "step": 0, "row": 2**64, "before": None, "after": None}], "'changes' to hold dicts"),
    ],
)
def test_changes_that_are_none_are_refused(corpus: Corpus, changes: Any, message: str) -> None:
    loader = hr.DataLoader(corpus.open(**PACKING), global_batch_size=4)
    take(loader, 3)
    with pytest.raises(hr.StateMismatch, match=message):
        loader.load_state_dict(loader.state_dict() | {"changes": changes})


def test_a_state_of_an_earlier_build_tells_of_its_batch_sizes_alone(corpus: Corpus) -> None:
    loader = hr.DataLoader(corpus.open(**PACKING), global_batch_size=4)
    take(loader, 1)
    loader.set_global_batch_size(8)
    state = loader.state_dict()
    for earlier in (state | {"changes": []}, {key: value for key, value in state.items() if key != "changes"}):
        again = hr.DataLoader(corpus.open(**PACKING))
        again.load_state_dict(earlier)
        assert again.state_dict() == state

"""Samples that are added in the course of a run: its epoch goes on without them, and all later ones are of all."""

import gzip
import json
import warnings
from collections.abc import Callable, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.loading.prefetch import Prefetcher, View
from headrace.samples.cache import ChunkCache
from headrace.samples.order import GrownOrder, LaneOrder
from headrace.testing import check_resume
from mds_files import rows as mds_rows
from mds_files import write as write_mds
from sample_loading import ORDERS, WORLDS, Given, given_by, load, merged
from sample_sources import made_up
from tar_files import archive

OLD, NEW, NEWER = (5, 1, 7, 0, 4), (5, 1, 7, 0, 4, 9, 3), (5, 1, 7, 0, 4, 9, 3, 0, 2)
"""Chunks of 17, 29 and 31 samples."""


def grown(data: Any, state: dict[str, Any], **options: Any) -> hr.DataLoader:
    """A loader that goes on with more data than the state's, which it says."""
    loader = load(data, **options)
    with pytest.raises(hr.StateMismatch, match=r"samples were added behind those of the state(.|\n)*strict=False"):
        loader.load_state_dict(state)
    with pytest.warns(UserWarning, match="samples were added behind those of the state") as warned:
        loader.load_state_dict(state, strict=False)
    assert [Path(warning.filename) for warning in warned] == [Path(__file__)], "it points at the caller"
    return loader


def epochs(found: Sequence[Given]) -> dict[int, list[int]]:
    """The samples of each epoch, in their order."""
    return {
        epoch: [one for batch in part for one in batch.ids] for epoch, part in groupby(found, lambda one: one.epoch)
    }


def alone(sizes: Sequence[int], kind: str, last: int, **options: Any) -> dict[int, list[int]]:
    """The samples of each epoch of a run that had all of this data from its beginning."""
    source, order = ORDERS[kind]
    return epochs(given_by(load(made_up(sizes, **source), 1, epochs=last + 1, **order, **options)))


def _left(loader: hr.DataLoader) -> int:
    rest: Any = iter(loader)
    return len(rest)


@pytest.mark.parametrize("kind", ORDERS)
def test_the_epoch_goes_on_and_the_next_ones_are_those_of_all_data(kind: str) -> None:
    source, order = ORDERS[kind]
    loader = load(made_up(OLD, **source), 4, seed=3, **order)
    before = given_by(loader, 7)
    again = grown(made_up(NEW, **source), before[-1].state)
    assert (again.epoch, len(again), _left(again)) == (1, 5, 3), "of the old data"
    after = given_by(again, 3)
    assert (again.epoch, len(again), _left(again)) == (2, 8, 8), "of all data"
    after += given_by(again, 16)
    assert again.epoch == 4
    old, new = alone(OLD, kind, 1, seed=3), alone(NEW, kind, 3, seed=3)
    assert epochs([*before, *after]) == {0: old[0], 1: old[1], 2: new[2], 3: new[3]}
    [line] = after[-1].state["changes"]
    assert (line["kind"], line["step"], line["row"]) == ("data added", 7, 34)
    assert (line["before"]["samples"], line["after"]["samples"], line["after"]["epoch"]) == (17, 29, 2)
    # Steps are found without a replay, on both sides.
    for step in (0, 6, 7, 9, 10, 17, 18, 25):
        again.seek(step)
        wanted = [*before, *after][step]
        [found] = given_by(again, 1)
        assert found._replace(state={}) == wanted._replace(state={})
        places: list[Any] = again.sources(step)
        assert [sum(NEW[: place.chunk]) + place.row for place in places] == wanted.ids
        third = load(made_up(NEW, **source))
        third.load_state_dict(found.state)
        assert given_by(third, 2) == given_by(again, 2)


@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_at_an_epochs_end_the_next_one_is_of_all_data(kind: str, drop_last: bool) -> None:
    source, order = ORDERS[kind]
    loader = load(made_up(OLD, **source), 4, drop_last=drop_last, **order)
    before = given_by(loader, 4 if drop_last else 5)
    after = given_by(grown(made_up(NEW, **source), before[-1].state, drop_last=drop_last), 7)
    assert {one.epoch for one in after} == {1}
    assert epochs(after)[1] == alone(NEW, kind, 1)[1][: 28 if drop_last else 29][: sum(len(one.ids) for one in after)]
    first = load(made_up(OLD, **source), 4, **order)
    [start] = [grown(made_up(NEW, **source), first.state_dict())]
    assert epochs(given_by(start, 8)) == {0: alone(NEW, kind, 0)[0]}, "nothing was given yet"


@settings(max_examples=30)
@given(data=st.data(), kind=st.sampled_from(list(ORDERS)), drop_last=st.booleans())
def test_any_number_of_additions_restarts_and_ranks(data: st.DataObject, kind: str, drop_last: bool) -> None:
    """Against epochs of runs that had their data from the beginning: nothing is lost, nothing comes twice."""
    source, order = ORDERS[kind]
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=2, max_size=4).filter(lambda one: sum(one) >= 12), "sizes")
    batch, seed = data.draw(st.sampled_from([6, 12])), data.draw(st.integers(0, 3))
    loader = load(made_up(sizes, **source), batch, drop_last=drop_last, seed=seed, **order)
    state = loader.state_dict()
    held: dict[int, list[int]] = {0: list(sizes)}
    """The chunks that each epoch is of, from where it changes."""
    found: dict[int, list[tuple[int, int]]] = {}
    step = 0
    for _ in range(data.draw(st.integers(1, 6), "restarts")):
        more = data.draw(st.lists(st.integers(0, 9), max_size=2), "added")
        world = data.draw(st.sampled_from([one for one in WORLDS if batch % one == 0]), "world")
        before = _epoch(state, held)
        left = _size(held, before) - (state["position"] - _begin(held, before))
        if left < world and not drop_last:
            continue  # too little is left of the epoch for the ranks, which is an error of its own
        sizes = [*sizes, *more] if sum(more) else sizes
        ranks = [
            load(made_up(sizes, **source), rank=rank, world_size=world, drop_last=drop_last) for rank in range(world)
        ]
        for one in ranks:
            if sum(more):
                with pytest.warns(UserWarning, match="were added"):
                    one.load_state_dict(state, strict=False)
            else:
                one.load_state_dict(state)
        if sum(more):
            epoch = before + (state["position"] > _begin(held, before))
            held = {first: chunks for first, chunks in held.items() if first < epoch} | {epoch: list(sizes)}
        count = data.draw(st.integers(0, 7), "steps")
        parts = [given_by(one, count) for one in ranks]
        for number, epoch, pairs in merged(parts):
            assert number == step
            found.setdefault(epoch, []).extend(pairs)
            step += 1
        state = ranks[0].state_dict()
        assert all(one.state_dict() == state for one in ranks)
    for epoch, pairs in found.items():
        begin = _begin(held, epoch)
        assert [row for row, _ in pairs] == list(range(begin, begin + len(pairs)))
        wanted = alone(_at(held, epoch), kind, epoch, seed=seed) if pairs else {epoch: []}
        assert [one for _, one in pairs] == wanted[epoch][: len(pairs)]
        whole = len(pairs) == len(wanted[epoch])
        assert whole or epoch == max(found) or (drop_last and len(wanted[epoch]) - len(pairs) < batch)


def _at(held: dict[int, list[int]], epoch: int) -> list[int]:
    return held[max(first for first in held if first <= epoch)]


def _size(held: dict[int, list[int]], epoch: int) -> int:
    return sum(_at(held, epoch))


def _begin(held: dict[int, list[int]], epoch: int) -> int:
    return sum(_size(held, one) for one in range(epoch))


def _epoch(state: dict[str, Any], held: dict[int, list[int]]) -> int:
    epoch = 0
    while _begin(held, epoch + 1) <= state["position"]:
        epoch += 1
    return epoch


def test_random_numbers_are_those_of_the_epoch() -> None:
    def drawn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"id": sample["id"], "drawn": int(rng.integers(1 << 40))}

    def numbers(loader: hr.DataLoader, count: int) -> dict[tuple[int, int], int]:
        found: dict[tuple[int, int], int] = {}
        for _ in range(count):
            for batch in loader:
                for one, number in zip(batch["id"].tolist(), batch["drawn"].tolist(), strict=True):
                    assert found.setdefault((batch.epoch, one), number) == number
        return found

    loader = load(made_up(OLD).map(drawn), 4, lanes=4, window=2)
    state = [batch.state for _, batch in zip(range(3), loader, strict=False)][-1]
    wanted = numbers(load(made_up(NEW).map(drawn), 4, lanes=4, window=2), 3)
    for workers in (0, 2):
        found = numbers(grown(made_up(NEW).map(drawn), state, num_workers=workers), 3)
        assert {epoch for epoch, _ in found} == {0, 1, 2}
        assert found == {key: wanted[key] for key in found}


@pytest.mark.parametrize("kind", ORDERS)
def test_check_resume_over_data_that_was_added(kind: str) -> None:
    """Restart after restart, on all ranks: a run whose loader begins with a state over less data."""
    source, order = ORDERS[kind]
    state = given_by(load(made_up(OLD, **source), 12, **order), 1)[-1].state
    state = grown(made_up(NEW, **source), state).state_dict()
    ran = check_resume(made_up(NEW, **source), steps=5, world_sizes=(1, 2, 3, 4), state=state)
    assert ran.restarts == 18
    with pytest.raises(hr.StateMismatch, match="chunks of source 0 is 5 here"):
        load(made_up(OLD, **source)).load_state_dict(state, strict=False)


def test_a_rank_reads_ahead_what_its_lanes_lie_in() -> None:
    """Where rows of all data begin, lanes do not begin with the first one."""
    old, new = made_up([3] * 39 + [2]), made_up([3] * 39 + [2] + [3] * 20)
    pipeline, seed, lanes = new.pipeline, 5, 4
    parts = [(0, old.pipeline), (1, pipeline)]
    order = GrownOrder([(epoch, LaneOrder(one.selection.in_storage_order(), seed, lanes, 20)) for epoch, one in parts])
    row = order.begin_of(1)
    assert row == 119
    for world in (2, 4):
        for rank in range(world):
            [window] = order.windows_of(row + 5)
            cache = ChunkCache(1 << 20)
            ahead = Prefetcher(pipeline, cache, in_use := set(), threads=0)
            ahead.reach(View(pipeline, order, rank, world), row + 5)
            rows = np.arange(window.begin, window.end)
            positions = order.positions(window.begin, window.end)[rows % lanes * world // lanes == rank]
            found = pipeline.selection.locate(positions)
            needed = set(zip(found.origin.tolist(), found.chunk.tolist(), strict=True))
            assert needed <= in_use
            assert len(in_use) <= len(needed) + 4 < len(window.items)


@pytest.mark.parametrize("steps, epoch", [(7, 2), (3, 1)])
@pytest.mark.parametrize("kind", ORDERS)
def test_of_additions_with_one_epoch_or_an_earlier_one_the_last_holds(kind: str, steps: int, epoch: int) -> None:
    """The run was moved back before an addition, and more was added there."""
    source, order = ORDERS[kind]
    before = given_by(load(made_up(OLD, **source), 4, seed=3, **order), 8)
    again = grown(made_up(NEW, **source), before[-1].state)
    again.seek(steps)
    again.set_global_batch_size(3)
    third = grown(made_up(NEWER, **source), again.state_dict())
    found = [*before[:steps], *given_by(third, 1)]
    third.set_global_batch_size(2)
    found += given_by(third, 1)
    state = found[-1].state
    changes = [(line["kind"], line["step"]) for line in state["changes"]]
    assert changes == [("data added", 8), ("data added", steps), ("batch size", steps), ("batch size", steps + 1)]
    assert [line["after"]["epoch"] for line in state["changes"][:2]] == [2, epoch]
    fourth = load(made_up(NEWER, **source))
    fourth.load_state_dict(state)
    assert fourth.state_dict() == state
    found += given_by(fourth, 30)
    old, new = alone(OLD, kind, 1, seed=3), alone(NEWER, kind, 3, seed=3)
    given = epochs(found)
    assert max(given) > epoch
    for number, samples in given.items():
        wanted = old[number] if number < epoch else new[number]
        assert samples == (wanted[: len(samples)] if number == max(given) else wanted)


# What is no addition


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "other samples before": (lambda: made_up((2, *OLD)), "chunks of source 0 is 6 here and 5"),
    "other content": (lambda: made_up(NEW, start=1), "chunks of source 0 is 7 here and 5"),
    "a chunk that grew": (lambda: made_up((*OLD[:-1], 5, 3)), "chunks of source 0 is 6 here and 5"),
    "fewer": (lambda: made_up(OLD[:-1]), "chunks of source 0 is 4 here and 5"),
    "a part": (lambda: made_up(NEW).subsample(0.5), "chunks of source 0"),
    "two datasets": (lambda: hr.concat([made_up(OLD), made_up((3,))]), "2 sources here, 1 in the state"),
    "another order": (lambda: made_up(NEW, random_access=True), "chunks of source 0"),
    "a zip": (lambda: hr.zip([made_up(NEW)]), "chunks of part 0|order|samples"),
}


@pytest.mark.parametrize("other", REFUSED)
def test_other_changes_of_data_are_refused(other: str) -> None:
    make, message = REFUSED[other]
    state = given_by(load(made_up(OLD), 4), 2)[-1].state
    for strict in (True, False):
        loader = load(make(), 4)
        with pytest.raises(hr.StateMismatch, match=message):
            loader.load_state_dict(state, strict=strict)
        assert loader.step == 0
        loader.load_state_dict(loader.state_dict())


@pytest.mark.parametrize("total", [1, 2])
def test_what_comes_too_late_for_a_run_with_an_end_is_said_not_to_be_used(total: int) -> None:
    loader = load(made_up(OLD), 4, epochs=total)
    next(iter(loader))
    again = load(made_up(NEW), 4, epochs=total)
    with pytest.warns(UserWarning, match="; no epoch to come is of them$" if total == 1 else "from epoch 1 on$"):
        again.load_state_dict(loader.state_dict(), strict=False)
    assert sorted(epochs(given_by(again))) == list(range(total))


def test_a_state_that_is_refused_is_not_warned_of() -> None:
    state = given_by(load(made_up(OLD), 4, lanes=4, seed=3), 2)[-1].state
    for options, message in (({"lanes": 2}, "lanes"), ({"seed": 4}, "seed")):
        loader = load(made_up(NEW), 4, **options)
        with pytest.raises((hr.StateMismatch, ValueError), match=message):
            loader.load_state_dict(state, strict=False)
        assert loader.step == 0
    with pytest.raises(hr.StateMismatch, match="history"):
        load(made_up(NEW), 4).load_state_dict(state | {"position": 9}, strict=False)


def test_what_is_done_to_samples_may_go_on_with_more_of_them() -> None:
    """Filters, conditions and the last part of several datasets: where the old samples are the first of the new."""
    first = made_up((4, 4))
    for data in (
        lambda sizes: made_up(sizes).filter(lambda sample: sample["id"] % 3),
        lambda sizes: made_up(sizes).where(hr.col("id") % 2 == 0),
        lambda sizes: hr.concat([first, made_up(sizes, start=100)]),
        lambda sizes: made_up(sizes).skip(2),
        lambda sizes: made_up(NEW).take(sum(sizes)),
    ):
        loader = load(data(OLD), 4, lanes=2, window=2)
        before = given_by(loader, 2)
        after = given_by(grown(data(NEW), before[-1].state), 17)
        whole = epochs([*before, *after])
        assert sorted(whole[0]) == sorted(epochs(given_by(load(data(OLD), 4, epochs=1)))[0])
        assert sorted(whole[1]) == sorted(epochs(given_by(load(data(NEW), 4, epochs=1)))[0])
    for data in (lambda sizes: hr.concat([made_up(sizes), first]), lambda sizes: made_up(sizes).repeat(2)):
        state = load(data(OLD), 4).state_dict()
        with pytest.raises(hr.StateMismatch, match="the data is not that of the state"):
            load(data(NEW)).load_state_dict(state, strict=False)


@pytest.mark.parametrize("shuffle", [True, False])
def test_what_is_added_behind_the_samples_of_a_run_changes_nothing(shuffle: bool) -> None:
    """All files are sources, of which the run takes the first samples."""
    for steps in (lambda data: data.take(14), lambda data: data.take(14).flat_map(twice)):
        old, new = (steps(made_up(sizes)) for sizes in ((4, 4, 4, 4), (4, 4, 4, 4, 4)))
        options: dict[str, Any] = {"shuffle": shuffle, "collate_fn": ids_of} | ({"lanes": 2} if shuffle else {})
        whole = list(islice(load(old, 2, **options), 7))
        for at in (0, 3, 5):
            loader = load(new, 2, **options)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                loader.load_state_dict(whole[at].state)
            assert [batch["id"] for batch in islice(loader, 6 - at)] == [batch["id"] for batch in whole[at + 1 :]]
            assert loader.state_dict()["changes"] == []
            again = load(new, 2, **options)
            again.load_state_dict(loader.state_dict())
            assert again.state_dict() == loader.state_dict()


def twice(sample: dict[str, Any]) -> list[dict[str, Any]]:
    return [sample, sample]


def ids_of(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": [sample["id"] for sample in samples]}


def test_a_state_whose_additions_do_not_fit_is_refused() -> None:
    state = given_by(load(made_up(OLD), 4), 2)[-1].state
    state = grown(made_up(NEW), state).state_dict()
    [line] = state["changes"]
    for change, message in (
        ({"row": 33}, "epoch 1 begins with row 17"),
        ({"before": None}, "to have samples"),
        ({"before": {"samples": 0}}, "added at an epoch"),
        ({"before": {"samples": 40}}, "added at an epoch"),
        ({"after": line["after"] | {"samples": 30}}, "added at an epoch, to at most 29 samples"),
        ({"after": line["after"] | {"samples": 28}}, "there are 28 samples, found 29"),
        ({"after": line["after"] | {"epoch": -1}}, "added at an epoch"),
        ({"after": line["after"] | {"epoch": "1"}}, "added at an epoch"),
        ({"after": line["after"] | {"epoch": 2}}, "epoch 2 begins with row 34"),
    ):
        with pytest.raises(hr.StateMismatch, match=message):
            load(made_up(NEW)).load_state_dict(state | {"changes": [line | change]})


# Formats


def _parquet(folder: Path, count: int) -> None:
    for number in range(count):
        table = pa.table({"id": list(range(number * 4, number * 4 + 4))})
        pq.write_table(table, folder / f"f{number}.parquet", row_group_size=3)


def _jsonl(folder: Path, count: int) -> None:
    for number in range(count):
        lines = [json.dumps({"id": one}) for one in range(number * 4, number * 4 + 4)]
        (folder / f"f{number}.jsonl").write_text("\n".join(lines))


def _jsonl_gz(folder: Path, count: int) -> None:
    for number in range(count):
        lines = [json.dumps({"id": one}) for one in range(number * 4, number * 4 + 4)]
        (folder / f"f{number}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def _arrow(folder: Path, count: int) -> None:
    for number in range(count):
        table = pa.table({"id": list(range(number * 4, number * 4 + 4))})
        with pa.ipc.new_file(folder / f"f{number}.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=3)


def _tar(folder: Path, count: int) -> None:
    for number in range(count):
        archive(
            folder / f"f{number}.tar", {f"{one}.id": str(one).encode() for one in range(number * 4, number * 4 + 4)}
        )


def _files(folder: Path, count: int) -> None:
    for number in range(count * 4):
        (folder / f"{number:03}.raw").write_bytes(bytes([number]))


def _mds(folder: Path, count: int) -> None:
    every = mds_rows(count * 4)
    columns = {"image": "bytes", "label": "int"}
    write_mds(folder, [(columns, every[number * 4 : number * 4 + 4]) for number in range(count)])


def _litdata(folder: Path, count: int) -> None:
    hr.optimize(
        _numbered,
        list(range(count * 4 - 8, count * 4)) if (folder / "index.json").exists() else list(range(count * 4)),
        folder,
        chunk_size=4,
        num_workers=1,
        mode="append" if (folder / "index.json").exists() else None,
        keep_data_ordered=True,
        verbose=False,
        progress=False,
    )


def _numbered(number: int) -> dict[str, int]:
    return {"id": number}


def _tokens(folder: Path, count: int) -> None:
    for number in range(count):
        if not (folder / f"f{number}.npy").exists():
            np.save(folder / f"f{number}.npy", np.arange(number * 20, number * 20 + 20, dtype=np.uint16))


FORMATS: dict[str, tuple[Callable[[Path, int], None], Callable[[Any], int], dict[str, Any]]] = {
    "parquet": (_parquet, lambda sample: sample["id"], {}),
    "jsonl": (_jsonl, lambda sample: sample["id"], {}),
    "jsonl.gz": (_jsonl_gz, lambda sample: sample["id"], {}),
    "arrow": (_arrow, lambda sample: sample["id"], {}),
    "tar": (_tar, lambda sample: int(sample["id"]), {}),
    "files": (_files, lambda sample: sample["data"][0], {}),
    "mds": (_mds, lambda sample: sample["label"], {}),
    "litdata": (_litdata, lambda sample: sample["id"], {}),
    "tokens": (_tokens, lambda sample: int(sample["tokens"][0]) // 5, {"sequence_length": 5}),
}


@pytest.mark.parametrize("name", FORMATS)
def test_files_of_each_format_are_added_to(name: str, tmp_path: Path) -> None:
    write, number, options = FORMATS[name]

    def data() -> Any:
        return hr.open(tmp_path, **options)

    def loader(count: int) -> hr.DataLoader:
        assert len(data()) == count
        return hr.DataLoader(data(), global_batch_size=4, num_workers=0, collate_fn=lambda samples: samples)

    def taken(one: hr.DataLoader) -> list[int]:
        return [number(sample) for batch in one for sample in batch]

    write(tmp_path, 3)
    first = loader(12)
    part = [number(sample) for sample in next(iter(first))]
    state = first.state_dict()
    write(tmp_path, 5)
    again = grown(data(), state, collate_fn=lambda samples: samples)
    assert sorted([*part, *taken(again)]) == list(range(12))
    assert sorted(taken(again)) == list(range(20))
    third = loader(20)
    third.load_state_dict(again.state_dict())
    assert taken(third) == taken(again)


def test_a_run_without_the_last_item_of_a_chunk_takes_more_of_that_chunk(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"x{number:04}.bin").write_bytes(bytes([number]))
    excluded = {"exclude": ["x0009.bin:0:9"]}
    begun = next(iter(load(hr.open(tmp_path, format="files"), 3, **excluded)))
    for number in range(10, 14):
        (tmp_path / f"x{number:04}.bin").write_bytes(bytes([number]))
    loader = grown(hr.open(tmp_path, format="files"), begun.state, batch=3, epochs=2, **excluded)
    rest, later = ([sample for batch in loader for sample in batch.sources()] for _ in range(2))
    assert sorted(place.row for place in [*begun.sources(), *rest]) == [*range(9)]
    assert sorted(place.row for place in later) == [*range(9), *range(10, 14)]


@pytest.mark.parametrize("name", ["parquet", "jsonl", "arrow", "tar", "files"])
def test_a_file_that_sorts_before_others_is_no_addition(name: str, tmp_path: Path) -> None:
    write, _, options = FORMATS[name]
    write(tmp_path, 3)
    state = load(hr.open(tmp_path, **options), 4).state_dict()
    last = max(tmp_path.iterdir())
    (tmp_path / f"a-{last.name}").write_bytes(last.read_bytes()) if name != "files" else (
        tmp_path / "000-a.raw"
    ).write_bytes(b"x")
    with pytest.raises(hr.StateMismatch, match="the data is not that of the state"):
        load(hr.open(tmp_path, **options), 4).load_state_dict(state, strict=False)


@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_that_the_core_gathers_are_added_to(shuffle: bool, tmp_path: Path) -> None:
    def loader(**options: Any) -> hr.DataLoader:
        return load(hr.open(tmp_path, sequence_length=5), shuffle=shuffle, **options)

    def taken(one: hr.DataLoader, count: int) -> list[list[int]]:
        return [batch["tokens"][:, 0].tolist() for _ in range(count) for batch in one]

    _tokens(tmp_path, 3)
    first, old = loader(batch=4), loader(batch=4)
    part = next(iter(first))["tokens"][:, 0].tolist()
    whole = taken(old, 1)
    _tokens(tmp_path, 5)
    again = loader()
    with pytest.warns(UserWarning, match="were added"):
        again.load_state_dict(first.state_dict(), strict=False)
    assert [part, *taken(again, 1)] == whole
    fresh = loader(batch=4)
    fresh.seek(5)
    assert fresh.epoch == 1
    assert taken(again, 2) == taken(fresh, 2)

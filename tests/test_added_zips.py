"""Data that is added to sources of a zip: each goes on without it to the end of its pass, and then has all of it."""

import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.testing import check_resume
from sample_loading import Given, given_by, load, merged
from sample_sources import made_up

SPREAD = 0x9E3779B97F4A7C15
"""By which the seeds of sources differ (docs/order.md)."""

APART = 1000
"""Numbers of samples of different sources lie this far apart."""

LANES = {"lanes": 4, "window": 2}
"""What holds for each source that is dealt to lanes."""

Sizes = tuple[int, ...]
"""The chunks of a source."""

CHUNKED, RANDOM, SHORT = (5, 1, 7, 0, 4), (3, 3, 4), (2, 1)
"""17, 10 and 3 samples."""


def drawing(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"id": sample["id"], "drawn": int(rng.integers(1 << 40))}


def joined(samples: tuple[dict[str, Any], ...], rng: np.random.Generator) -> dict[str, Any]:
    """All that a row holds: the numbers of samples, what was drawn for each, and for the tuple."""
    found = [[sample[key] for sample in samples] for key in ("id", "drawn")]
    return {"id": np.array([*found[0], *found[1], int(rng.integers(1 << 40))])}


def source(number: int, sizes: Sizes, *, random_access: bool = False) -> hr.SampleDataset:
    return made_up(sizes, random_access=random_access, start=APART * number)


def zipped(sizes: Sequence[Sizes], kinds: Sequence[bool], length: Any = None) -> hr.ZipDataset:
    parts = [
        source(number, one, random_access=kind) for number, (one, kind) in enumerate(zip(sizes, kinds, strict=True))
    ]
    return hr.zip([part.map(drawing) for part in parts], joined, length=length)


def grown(data: Any, state: dict[str, Any], *told: str, **options: Any) -> hr.DataLoader:
    """A loader that goes on with more data than the state's, which it says."""
    loader = load(data, **options)
    with pytest.raises(hr.StateMismatch, match=r"samples were added to source \d behind(.|\n)*strict=False goes on"):
        loader.load_state_dict(state)
    with pytest.warns(UserWarning, match="samples were added to source|an epoch of the zip has") as warned:
        loader.load_state_dict(state, strict=False)
    assert {Path(warning.filename) for warning in warned} == {Path(__file__)}, "it points at the caller"
    for text, warning in zip(told, warned, strict=True) if told else ():
        assert re.search(text, str(warning.message))
    return loader


# The slow reference


@cache
def alone(number: int, sizes: Sizes, kind: bool, seed: int, shuffle: bool, epoch: int) -> list[tuple[int, int]]:
    """A pass of a source that had this data from the beginning, by a run over it alone: numbers, and what was drawn."""
    options: dict[str, Any] = {"shuffle": shuffle, **(LANES if shuffle and not kind else {})}
    own = (seed + number * SPREAD) % 2**64
    loader = load(source(number, sizes, random_access=kind).map(drawing), 1, seed=own, **options)
    loader.seek(epoch * sum(sizes))
    return [(int(batch["id"][0]), int(batch["drawn"][0])) for batch in loader]


@dataclass
class Walk:
    """A run row by row: of each source it knows which pass has which data, and of the zip how long each epoch is."""

    kinds: Sequence[bool]
    sizes: Sequence[Sizes]
    length: Any
    """As it is given to `zip`."""
    seed: int = 0
    shuffle: bool = True
    passes: list[dict[int, Sizes]] = field(init=False)
    """For each source from which pass on it has which chunks."""
    epochs: dict[int, float] = field(init=False)
    """From which epoch on they have which length."""

    def __post_init__(self) -> None:
        self.passes = [{0: one} for one in self.sizes]
        self.epochs = {0: self._length()}

    def _length(self) -> float:
        return min(map(sum, self.sizes)) if self.length is None else self.length

    def grow(self, row: int, sizes: Sequence[Sizes]) -> list[int | None]:
        """Before a row of which nothing was given yet there is more: of which sources; None for longer epochs."""
        changed: list[int | None] = []
        for number, (before, after) in enumerate(zip(self.sizes, sizes, strict=True)):
            if before != after:
                self.passes[number] = self._from(self.passes[number], sum, row, after)
                changed.append(number)
        before, self.sizes = self._length(), sizes
        if before != self._length():
            self.epochs = self._from(self.epochs, float, row, self._length())
            changed.append(None)
        return changed

    def _from(self, held: dict[int, Any], size: Callable[[Any], float], row: int, new: Any) -> dict[int, Any]:
        number, index = self.place(held, size, row)
        first = number + (index > 0)
        return {one: data for one, data in held.items() if one < first} | {first: new}

    @staticmethod
    def place(held: dict[int, Any], size: Callable[[Any], float], row: int) -> tuple[int, int]:
        """The pass or epoch of a row, and how many rows of it come before."""
        number = index = 0
        for _ in range(row):
            index += 1
            if index == size(held[max(one for one in held if one <= number)]):
                number, index = number + 1, 0
        return number, index

    def epoch(self, row: int) -> tuple[int, int]:
        return self.place(self.epochs, float, row)

    def row(self, row: int) -> list[int]:
        """What a row holds, as `joined` gives it."""
        found: list[tuple[int, int]] = []
        for number, held in enumerate(self.passes):
            epoch, index = self.place(held, sum, row)
            data = held[max(one for one in held if one <= epoch)]
            found.append(alone(number, data, self.kinds[number], self.seed, self.shuffle, epoch)[index])
        epoch, index = self.epoch(row)
        key = np.array([(self.seed + len(self.kinds) * SPREAD) % 2**64, 0], np.uint64)
        draws = np.random.Philox(key=key, counter=np.array([0, 0, index, epoch], np.uint64))
        own = int(np.random.Generator(draws).integers(1 << 40))
        return [*(number for number, _ in found), *(drawn for _, drawn in found), own]

    def begin(self, row: int, batch: int, *, drop_last: bool) -> int:
        """Where a step begins that would begin with a row, unless that is of a last batch that is left out."""
        while drop_last and self.left(row) < batch:
            row += int(self.left(row))
        return row

    def left(self, row: int) -> float:
        epoch, index = self.epoch(row)
        return self.epochs[max(one for one in self.epochs if one <= epoch)] - index

    def step(self, row: int, batch: int) -> tuple[int, list[tuple[int, list[int]]]]:
        """The epoch and the rows of the step that begins with a row."""
        rows = range(row, row + int(min(batch, self.left(row))))
        return self.epoch(row)[0], [(one, self.row(one)) for one in rows]


def lines(state: dict[str, Any]) -> list[tuple[int | None, int]]:
    """What a state says was added: to which source, None for longer epochs, and from which epoch on."""
    found: list[tuple[int | None, int]] = []
    for line in state["changes"]:
        if line["kind"] == "length":
            found.append((None, line["after"]["epoch"]))
        elif line["kind"] == "data added":
            [(number, after)] = line["after"].items()
            assert set(line["before"]) == {number}
            found.append((int(number), after["epoch"]))
    return found


# Rows


MORE: list[Sequence[Sizes]] = [
    [(*CHUNKED, 9, 3), RANDOM, SHORT],
    [(*CHUNKED, 9, 3), (*RANDOM, 5), (*SHORT, 4)],
    [(*CHUNKED, 9, 3, 2), (*RANDOM, 5), (*SHORT, 4, 1)],
]
KINDS = (False, True, False)


@pytest.mark.parametrize("length", [None, 1, 4, 17, 23, math.inf])
@pytest.mark.parametrize("shuffle", [True, False])
def test_each_source_has_all_of_it_from_its_own_next_pass_on(length: Any, shuffle: bool) -> None:
    """Three additions: to one source, to the two others, and to two of them again; found again from any step."""
    walk = Walk(KINDS, [CHUNKED, RANDOM, SHORT], length, seed=3, shuffle=shuffle)
    options: dict[str, Any] = {"shuffle": shuffle, **(LANES if shuffle else {})}
    loader = load(zipped(walk.sizes, KINDS, length), 2, seed=3, **options)
    found = given_by(loader, 7)
    told: list[int | None] = []
    for more in MORE:
        told += walk.grow(found[-1].state["position"], more)
        loader = grown(zipped(more, KINDS, length), found[-1].state, **options)
        found += given_by(loader, 8)
    assert [number for number, _ in lines(found[-1].state)] == told
    assert [number for number in told if number is not None] == [0, 1, 2, 0, 2]
    row = 0
    for step, one in enumerate(found):
        epoch, wanted = walk.step(row, 2)
        assert (one.step, one.epoch, list(zip(one.rows, one.ids, strict=True))) == (step, epoch, wanted)
        row += len(wanted)
    assert row == found[-1].state["position"]
    # Steps are found without a replay, on both sides of each addition; so are their sources, and what they hold.
    for step in range(len(found)):
        loader.seek(step)
        [again] = given_by(loader, 1)
        assert again._replace(state={}) == found[step]._replace(state={})
        places: list[Any] = loader.sources(step)
        for place, ids in zip(places, found[step].ids, strict=True):
            for number, (part, one) in enumerate(zip(place, ids, strict=False)):
                assert sum(MORE[-1][number][: part.chunk]) + part.row + APART * number == one
        third = load(zipped(MORE[-1], KINDS, length), **options)
        third.load_state_dict(again.state)
        assert given_by(third, 2) == given_by(loader, 2)
    if length == math.inf:
        # No step is one of fewer rows than ranks.
        pair = load(zipped(MORE[-1], KINDS, length), rank=1, world_size=2, **options)
        pair.load_state_dict(found[-1].state)
        for step in range(len(found)):
            places = [place for rank in range(2) for place in pair.sources(step, rank)]
            assert sorted(map(str, places)) == sorted(map(str, loader.sources(step)))


def test_an_epochs_length_that_follows_from_the_sources_changes_with_an_epoch_of_the_zip() -> None:
    sizes: list[Sizes] = [CHUNKED, (4, 6)]
    loader = load(zipped(sizes, KINDS[:2]), 4, **LANES)
    state = given_by(loader, 4)[-1].state  # 14 rows: three steps of ten rows, and one of the next ten
    again = grown(
        zipped([CHUNKED, (4, 6, 5)], KINDS[:2]),
        state,
        "^headrace: 5 samples were added to source 1 behind .* 'file-2'; they are used from epoch 2 of the source on$",
        "^headrace: an epoch of the zip has 15 samples from epoch 2 on, 10 before$",
    )
    added, length = again.state_dict()["changes"]
    assert (added["kind"], added["step"], added["row"]) == ("data added", 4, 20)
    assert [(set(added[when]), added[when]["1"]["samples"]) for when in ("before", "after")] == [
        ({"1"}, 10),
        ({"1"}, 15),
    ]
    assert added["after"]["1"]["epoch"] == 2
    assert length == {
        "kind": "length",
        "step": 4,
        "row": 20,
        "before": {"samples": 10},
        "after": {"epoch": 2, "samples": 15},
    }
    assert (again.epoch, len(again)) == (1, 3)
    rest = given_by(again, 2 + 4 + 1)
    assert [len(one.rows) for one in rest] == [4, 2, 4, 4, 4, 3, 4]
    assert (again.epoch, len(again)) == (3, 4)
    # Of a zip whose length is given it stays, and the source's pass ends elsewhere.
    loader = load(zipped(sizes, KINDS[:2], 7), 4, **LANES)
    state = given_by(loader, 4)[-1].state
    again = grown(zipped([CHUNKED, (4, 6, 5)], KINDS[:2], 7), state, "to source 1 .* from epoch 2 of the source on")
    assert [len(one.rows) for one in given_by(again, 4)] == [4, 3, 4, 3]
    assert len(again.state_dict()["changes"]) == 1


@pytest.mark.parametrize(
    "length, epochs, told",
    [
        # The pass of ten in which the state stands ends with row 20.
        (None, 2, ["; no epoch to come is of them$", "has 15 samples, 10 before; there is none to come$"]),
        (None, 3, ["from epoch 2 of the source on$", "an epoch of the zip has 15 samples from epoch 2 on, 10 before$"]),
        (7, 2, ["; no epoch to come is of them$"]),
        (7, 3, ["from epoch 2 of the source on$"]),
    ],
)
def test_what_comes_too_late_for_a_zip_with_an_end_is_said_not_to_be_used(
    length: int | None, epochs: int, told: list[str]
) -> None:
    sizes: list[Sizes] = [CHUNKED, (4, 6)]
    loader = load(zipped(sizes, KINDS[:2], length), 4, epochs=epochs, **LANES)
    state = given_by(loader, 4 if length is None else 3)[-1].state  # 14 rows, or 11
    again = grown(zipped([CHUNKED, (4, 6, 5)], KINDS[:2], length), state, *told, epochs=epochs)
    ids = [row for one in given_by(again) for row in one.ids]
    assert ids
    assert any(own[1] >= APART + 10 for own in ids) == ("of the source on" in told[0])


@pytest.mark.parametrize(
    "steps, before, after",
    [
        (lambda data: data, 10, 15),
        (lambda data: data.take(12), 10, 12),
        (lambda data: data.take(6), 6, 6),
        (lambda data: data.repeat(3), 30, 45),
        (lambda data: data.take(12).repeat(2), 20, 24),
        (lambda data: data.repeat(2).take(25).repeat(2), 40, 50),
        (lambda data: data.repeat(2).map(same).take(30), 20, 30),
    ],
)
def test_shorter_and_longer_epochs_follow_from_the_sources_too(
    steps: Callable[[hr.ZipDataset], hr.ZipDataset], before: int, after: int
) -> None:
    data = [steps(zipped([CHUNKED, one], KINDS[:2])) for one in ((4, 6), (4, 6, 5))]
    assert [len(one) for one in data] == [before, after]
    state = given_by(load(data[0], 5, **LANES), 1)[-1].state
    loader = grown(data[1], state)
    changes = [line for line in loader.state_dict()["changes"] if line["kind"] == "length"]
    assert [(line["before"]["samples"], line["after"]["samples"]) for line in changes] == (
        [(before, after)] if before < after else []
    )
    walk = Walk(KINDS[:2], [CHUNKED, (4, 6)], None)
    walk.grow(5, [CHUNKED, (4, 6, 5)])
    walk.epochs = {0: before, 1: after}
    rows = {row: ids for one in given_by(loader, 14) for row, ids in zip(one.rows, one.ids, strict=True)}
    assert rows == {row: walk.row(row) for row in rows}
    given = [one.epoch for one in given_by(loader, 1)]
    assert given == [walk.epoch(max(rows) + 1)[0]]


def same(sample: Any) -> Any:
    return sample


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_additions_restarts_ranks_and_batches(data: st.DataObject) -> None:
    """Against the walk, row by row, several restarts deep; now and then the run is moved back before that."""
    kinds = data.draw(st.lists(st.booleans(), min_size=1, max_size=3), "kinds")
    chunks = st.lists(st.integers(0, 6), min_size=1, max_size=3).map(tuple)
    sizes: list[Sizes] = [data.draw(chunks.filter(lambda one: sum(one) >= 3), "sizes") for _ in kinds]
    length = data.draw(st.sampled_from([None, 5, 12, 31, math.inf]), "length")
    drop_last, shuffle = data.draw(st.booleans(), "drop_last"), data.draw(st.booleans(), "shuffle")
    options: dict[str, Any] = {"drop_last": drop_last, "shuffle": shuffle, "allow_empty": True}
    seed = data.draw(st.integers(0, 2**64 - 1), "seed")
    walk = Walk(kinds, sizes, length, seed=seed, shuffle=shuffle)
    dealt = LANES if shuffle and not all(kinds) else {}
    batches = st.integers(1, 3 if length is None else 5)
    batch = data.draw(batches, "batch")
    state = load(zipped(sizes, kinds, length), batch, seed=seed, **dealt, **options).state_dict()
    found: list[tuple[int, list[tuple[int, list[int]]]]] = []
    told: list[int | None] = []
    row = step = 0
    for _ in range(data.draw(st.integers(2, 5), "restarts")):
        more = [(*one, *data.draw(st.sampled_from([(), (), (2,), (1, 0, 4)]), "added")) for one in sizes]
        world = data.draw(st.sampled_from([1, 2, 3]), "world")
        batch = world * data.draw(st.integers(1, max(1, 5 // world)), "batch")
        if min(map(sum, sizes)) < batch and length is None:
            batch, world = 1, 1
        ranks = [
            load(zipped(more, kinds, length), batch, rank=rank, world_size=world, **options) for rank in range(world)
        ]
        with warnings.catch_warnings(record=more != sizes) as warned:
            warnings.simplefilter("always" if more != sizes else "error")
            for one in ranks:
                one.load_state_dict(state, strict=more == sizes)
        changed = walk.grow(row, more)
        told += changed
        assert len(warned or []) == world * len(changed)
        sizes = more
        row = walk.begin(row, batch, drop_last=drop_last)
        count = data.draw(st.integers(0, 6), "steps")
        for number, epoch, pairs in merged([given_by(one, count) for one in ranks]):
            assert (number, (epoch, pairs)) == (step, walk.step(row, batch))
            found.append((epoch, pairs))
            row, step = walk.begin(pairs[-1][0] + 1, batch, drop_last=drop_last), step + 1
        back = data.draw(st.integers(0, step), "back") if data.draw(st.booleans(), "moved back") else step
        for one in ranks:
            one.seek(back)
        if back < step:
            row, step, found = found[back][1][0][0], back, found[:back]
        state = ranks[0].state_dict()
        assert all(one.state_dict() == state for one in ranks)
        assert (state["step"], state["position"], ranks[0].epoch) == (step, row, walk.epoch(row)[0])
    assert [number for number, _ in lines(state)] == told


@pytest.mark.parametrize("length", [None, 18, math.inf])
def test_check_resume_over_data_that_was_added(length: Any) -> None:
    """Restart after restart, on all ranks: a run whose loader begins with a state over less data."""
    sizes: list[Sizes] = [CHUNKED, RANDOM]
    for at, more in ((1, [(*CHUNKED, 9), RANDOM]), (2, [(*CHUNKED, 9, 3), (*RANDOM, 5)])):
        state = given_by(load(zipped(sizes, KINDS[:2], length), 6, **LANES), at)[-1].state
        state = grown(zipped(more, KINDS[:2], length), state).state_dict()
        data = zipped(more, KINDS[:2], length)
        assert check_resume(data, steps=5, world_sizes=(1, 2, 3), state=state).restarts > 10


def test_workers_of_all_kinds_give_the_same() -> None:
    more: list[Sizes] = [(*CHUNKED, 9), (*RANDOM, 5)]
    state = given_by(load(zipped([CHUNKED, RANDOM], KINDS[:2], 13), 4, seed=1, **LANES), 2)[-1].state
    walk = Walk(KINDS[:2], [CHUNKED, RANDOM], 13, seed=1)
    walk.grow(8, more)
    wanted = [walk.row(row) for row in range(8, 13 * 4)]
    for options in ({}, {"num_workers": 2, "items_in_parallel": 2}, {"num_workers": 1, "worker_type": "process"}):
        with grown(zipped(more, KINDS[:2], 13), state, **options) as loader:
            assert [ids for _ in range(4) for batch in loader for ids in batch["id"].tolist()] == wanted


def test_parts_and_steps_of_sources_are_added_to() -> None:
    """What is made of the data has the old samples first."""
    first = made_up((4, 4))
    makes: list[Callable[[Sizes], hr.SampleDataset]] = [
        lambda sizes: made_up(sizes).filter(lambda sample: sample["id"] % 3),
        lambda sizes: made_up(sizes).where(hr.col("id") % 2 == 0),
        lambda sizes: hr.concat([first, made_up(sizes, start=100)]),
        lambda sizes: made_up(sizes).skip(2),
        lambda sizes: made_up((*CHUNKED, 20)).take(sum(sizes)),
        lambda sizes: made_up(sizes).split([0.5, 0.5])[0],
        lambda sizes: made_up(sizes).repeat(2),
    ]
    for number, make in enumerate(makes):
        data = [hr.zip([made_up((30,)).map(same), make(sizes)], length=6) for sizes in (CHUNKED, (*CHUNKED, 8, 2))]
        state = load(data[0], 3, collate_fn=_numbers).state_dict()
        if number < 5:
            assert lines(grown(data[1], state).state_dict()) == [(1, 0)]
            continue
        with pytest.raises(
            hr.StateMismatch, match=r"the data is not that of the state: (samples|selection) of source 1"
        ):
            load(data[1]).load_state_dict(state, strict=False)


def _numbers(samples: list[Any]) -> dict[str, Any]:
    return {"id": np.array([[part["id"] for part in sample] for sample in samples])}


def test_what_is_added_behind_the_samples_of_a_source_changes_nothing() -> None:
    def data(sizes: Sizes) -> hr.ZipDataset:
        return hr.zip([made_up(sizes).take(10), made_up((9, 9), start=100)])

    whole = given_by(load(data((4, 4, 4)), 4, collate_fn=_numbers, **LANES), 8)
    loader = load(data((4, 4, 4, 4)), collate_fn=_numbers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.load_state_dict(whole[3].state)
    after = given_by(loader, 4)
    assert [one._replace(state={}) for one in after] == [one._replace(state={}) for one in whole[4:]]
    assert loader.state_dict()["changes"] == []


# Documents to do without


def names(number: int, samples: Sequence[int], sizes: Sizes) -> list[str]:
    return [source(number, sizes).place(one).id for one in samples]


@pytest.mark.parametrize("left_out", [(16,), (0, 7, 9), (15, 16)])
@pytest.mark.parametrize("length", [None, 8])
def test_a_run_that_does_without_documents_goes_on(left_out: tuple[int, ...], length: Any) -> None:
    """It began without some, of which the last ones may be the last of the old data; more are masked later on."""
    old, more, other = CHUNKED, (*CHUNKED, 9), (30,)

    def data(sizes: Sizes) -> hr.ZipDataset:
        parts = [made_up(sizes), made_up(other, start=APART)]
        return hr.zip(parts, _joined, length=length)

    made = names(0, left_out, old)
    rest = [one for one in range(26) if one not in left_out]
    loader = load(data(old), 4, exclude=made, shuffle=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both sources have documents of these names
        found = given_by(loader, 3)
        again = load(data(more), exclude=[*made, *names(0, [20], more)])
        again.load_state_dict(found[-1].state, strict=False)
    batches = [batch for _ in range(6) for batch in again]
    assert lines(batches[-1].state)[0] == (0, 1)
    before = [one for one in rest if one < 17]
    first = [ids[0] for one in found for ids in one.ids] + [ids[0] for batch in batches for ids in batch["id"].tolist()]
    assert first[: len(before)] == before
    passes = first[len(before) :]
    assert passes[: len(rest)] == rest
    masked = [
        ids[0]
        for batch in batches
        for ids, kept in zip(batch["id"].tolist(), batch["loss_mask"], strict=True)
        if not kept
    ]
    assert 20 in masked
    assert 20 not in [
        ids[0] for batch in batches for ids, kept in zip(batch["id"], batch["loss_mask"], strict=True) if kept
    ]
    length_lines = [line for line in batches[-1].state["changes"] if line["kind"] == "length"]
    assert [(line["before"]["samples"], line["after"]["samples"]) for line in length_lines] == (
        [] if length else [(17, 26)]
    )


def _joined(samples: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return {"id": np.array([sample["id"] for sample in samples])}


# What is no addition


REFUSED: dict[str, tuple[Callable[[], list[hr.SampleDataset]], str]] = {
    "fewer": (
        lambda: [made_up((*CHUNKED, 2)), made_up(RANDOM[:2], random_access=True)],
        "samples of source 1 is 6 here and 10 in the state|chunks of part 0 of source 1 is 2 here and 3 in the state",
    ),
    "changed": (
        lambda: [made_up((*CHUNKED, 2)), made_up((*RANDOM, 2), random_access=True, start=1)],
        "source 1 is .* here and .* in the state",
    ),
    "reordered": (
        lambda: [made_up((2, *CHUNKED)), made_up((*RANDOM, 2), random_access=True)],
        "samples of source 0 is 19 here and 17 in the state",
    ),
    "another order": (
        lambda: [made_up((*CHUNKED, 2)), made_up((*RANDOM, 2))],
        "order of source 1 is 'lanes' here and 'permutation' in the state",
    ),
    "swapped": (
        lambda: [made_up(RANDOM, random_access=True), made_up(CHUNKED)],
        "order of source 0 is 'permutation' here and 'lanes' in the state",
    ),
    "one source more": (
        lambda: [made_up((*CHUNKED, 2)), made_up(RANDOM, random_access=True), made_up((2,))],
        "3 sources here, 2 in the state",
    ),
}


@pytest.mark.parametrize("other", REFUSED)
def test_other_changes_of_data_are_refused_by_the_source(other: str) -> None:
    make, message = REFUSED[other]
    state = load(hr.zip([made_up(CHUNKED), made_up(RANDOM, random_access=True)]), 2).state_dict()
    for strict in (True, False):
        loader = load(hr.zip(make()), 2)
        with pytest.raises(hr.StateMismatch, match=message):
            loader.load_state_dict(state, strict=strict)
        assert loader.step == 0
        assert loader.state_dict()["changes"] == []


def test_a_length_that_was_given_stays() -> None:
    """It may not become another one, whatever is added."""
    sizes: list[Sizes] = [CHUNKED, RANDOM]
    more: list[Sizes] = [CHUNKED, (*RANDOM, 4)]
    for before, after, message in (
        (10, 14, "samples is 14 here and 10"),
        (None, 12, "samples is 12 here and 10"),
        (9, None, "samples is 14 here and 9"),
        (None, math.inf, "samples is None here and 10"),
        (math.inf, None, "samples is 14 here and None"),
    ):
        state = load(zipped(sizes, KINDS[:2], before), 2).state_dict()
        with pytest.raises(hr.StateMismatch, match=message):
            load(zipped(more, KINDS[:2], after), 2).load_state_dict(state, strict=False)


def test_a_state_whose_additions_do_not_fit_is_refused() -> None:
    state = given_by(load(zipped([CHUNKED, RANDOM], KINDS[:2]), 4, **LANES), 2)[-1].state
    data = zipped([CHUNKED, (*RANDOM, 4)], KINDS[:2])
    state = grown(data, state).state_dict()
    added, length = state["changes"]
    after = added["after"]["1"]
    for changes, message in (
        ([added | {"row": 9}, length], "epoch 1 begins with row 10"),
        ([added | {"before": {"1": {}}}, length], "to have samples"),
        ([added | {"after": {"1": after | {"samples": 13}}}, length], "there are 13 samples of source 1, found 14"),
        ([added | {"after": {"1": after | {"epoch": 2}}}, length], "epoch 2 begins with row 20"),
        ([added | {"after": {"1": after | {"epoch": -1}}}, length], "expected data to be added at an epoch"),
        ([added, length | {"after": {"epoch": 1, "samples": 13}}], "there are 13 samples, found 14"),
        ([added, length | {"row": 12}], "epoch 1 begins with row 10"),
        ([added, length | {"before": None}], "to have samples"),
    ):
        with pytest.raises(hr.StateMismatch, match=message):
            load(data).load_state_dict(state | {"changes": changes})


def test_a_state_that_is_refused_is_not_warned_of() -> None:
    state = given_by(load(zipped([CHUNKED, RANDOM], KINDS[:2]), 4, seed=3, **LANES), 2)[-1].state
    for options, message in (({"lanes": 2}, "lanes"), ({"seed": 4}, "seed")):
        loader = load(zipped([CHUNKED, (*RANDOM, 4)], KINDS[:2]), 4, **options)
        with pytest.raises((hr.StateMismatch, ValueError), match=message):
            loader.load_state_dict(state, strict=False)
        assert loader.step == 0


# Files


def test_files_of_two_formats_are_added_to(tmp_path: Path) -> None:
    def write(lines: int, files: int) -> hr.ZipDataset:
        for number in range(lines):
            (tmp_path / "lines").mkdir(exist_ok=True)
            ids = range(number * 5, number * 5 + 5)
            (tmp_path / "lines" / f"{number}.jsonl").write_text("".join(f'{{"id": {one}}}\n' for one in ids))
        for number in range(files):
            (tmp_path / "files").mkdir(exist_ok=True)
            (tmp_path / "files" / f"{number:03}.bin").write_bytes(bytes([number]))
        return hr.zip([hr.open(tmp_path / "lines"), hr.open(tmp_path / "files", format="files")], _pair)

    loader = load(write(2, 7), 3)
    found = given_by(loader, 2)
    loader = grown(
        write(3, 11),
        found[-1].state,
        "5 samples were added to source 0 .*2.jsonl.*; they are used from epoch 1 of the source on",
        "4 samples were added to source 1 .*007.bin.*; they are used from epoch 1 of the source on",
        "has 11 samples from epoch 1 on, 7 before",
    )
    found += given_by(loader, 9)
    rows = [ids for one in found for ids in one.ids]
    for column, sizes in ((0, (10, 15)), (1, (7, 11))):
        ids = [row[column] for row in rows]
        assert sorted(ids[: sizes[0]]) == list(range(sizes[0]))
        assert sorted(ids[sizes[0] : sum(sizes)]) == list(range(sizes[1]))
    assert [len(list(part)) for _, part in groupby(epochs(found))] == [7, 11, 11]


def epochs(found: Sequence[Given]) -> list[int]:
    return [one.epoch for one in found for _ in one.rows]


def _pair(samples: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return {"id": np.array([samples[0]["id"], samples[1]["data"][0]])}

"""Mixtures of samples that end: sources that stop the mixture, or leave it, at the same row on all ranks."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from datasets import CorpusWriter, numbered
from headrace import _core
from headrace.testing import check_resume
from lane_mixtures import expected, lines, loaders, mixed, one_each, packed, plain, rows_of, steps

COUNTS = {"many": 90, "few": 17, "one": 1, "none": 0}
WEIGHTS = {"many": 5.0, "few": 2.0, "one": 0.5}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, hr.SampleDataset]:
    return lines(tmp_path_factory.mktemp("lines"), COUNTS)


@pytest.fixture(scope="module")
def sized(tmp_path_factory: pytest.TempPathFactory) -> dict[int, hr.SampleDataset]:
    """A source of each size up to 40; of the first ones' ids none lies in another one."""
    found = lines(tmp_path_factory.mktemp("sized"), {str(size): size for size in range(41)})
    return {int(name): one for name, one in found.items()}


@settings(max_examples=25, deadline=None)
@given(data=st.data(), lanes=st.sampled_from([1, 2, 3, 4, 6]), rule=st.sampled_from(["stop", "drop", "repeat"]))
def test_a_mixture_ends_where_the_page_says(
    sized: dict[int, hr.SampleDataset], data: st.DataObject, lanes: int, rule: Any
) -> None:
    sizes = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4, unique=True), label="sizes")
    weights = data.draw(
        st.lists(st.sampled_from([0.0, 0.2, 1.0, 3.0]), min_size=len(sizes), max_size=len(sizes)).filter(any),
        label="weights",
    )
    names = list(map(str, sizes))
    passes = data.draw(st.dictionaries(st.sampled_from(names), st.integers(1, 3)), label="max_epochs")
    parts = {name: sized[size] for name, size in zip(names, sizes, strict=True)}
    dataset = mixed(parts, dict(zip(names, weights, strict=True)), on_exhausted=rule, max_epochs=passes)
    limits = [
        None if (epochs := dataset.passes(name)) is None else epochs * size
        for name, size in zip(names, sizes, strict=True)
    ]
    how: Any = "stop" if rule == "stop" else "drop"
    wanted = expected(
        list(parts.values()), "samples", {0: weights}, 300, seed=4, lanes=lanes, limits=limits, exhausted=how
    )
    if not wanted:
        with pytest.raises(ValueError, match="too little data: the mixture ends after 0 rows"):
            loaders(dataset, 1, global_batch_size=lanes, seed=4)
        return
    count = None if len(wanted) < 300 else 300 // lanes
    ranks = loaders(dataset, 1, global_batch_size=lanes, seed=4, num_workers=0)
    taken = steps(ranks, count)
    assert rows_of(taken) == [(source, row) for source, row in wanted]
    if count is None:
        assert len(wanted) % lanes == 0
        assert rows_of(steps(loaders(dataset, lanes, global_batch_size=lanes, seed=4, num_workers=0))) == wanted


@pytest.mark.parametrize("rule", ["stop", "drop"])
@pytest.mark.parametrize("weights", [WEIGHTS, WEIGHTS | {"none": 0.0}, WEIGHTS | {"one": 0.0}])
def test_runs_go_on_exactly_to_their_end(samples: dict[str, hr.SampleDataset], rule: Any, weights: Any) -> None:
    dataset = mixed(samples, weights, on_exhausted=rule, max_epochs={"one": 6})
    whole = steps(loaders(dataset, 1, global_batch_size=6, num_workers=0))
    assert len(whole) > 3
    checked = check_resume(dataset, steps=30, global_batch_size=6, world_sizes=(1, 2, 3, 6), restarts=2)
    assert checked.steps == len(whole)
    for world in (2, 3, 6):
        ranks = loaders(dataset, world, global_batch_size=6)
        assert [step.rows for step in steps(ranks)] == [step.rows for step in whole]
        assert [len(loader) for loader in ranks] == [len(whole)] * world
        assert all(list(loader) == [] for loader in ranks)
    # A state of the end is one, too.
    assert steps(loaders(dataset, 2, whole[-1].parts)) == []
    again = loaders(dataset, 3, whole[-3].parts)
    rests: list[Any] = [iter(loader) for loader in again]
    assert [len(rest) for rest in rests] == [2] * 3
    assert [step.rows for step in steps(again)] == [step.rows for step in whole[-2:]]


def test_a_source_that_leaves_has_given_each_sample_once_a_pass(samples: dict[str, hr.SampleDataset]) -> None:
    dataset = mixed(samples, {"many": 5.0, "few": 2.0}, max_epochs={"few": 3})
    ranks = loaders(dataset, 1, global_batch_size=4, seed=2)
    taken = steps(ranks, 200)
    few = [value for source, value in rows_of(taken) if source == 1]
    # A lane may have some left where another one has none: at most 8, but for two in a round.
    assert 3 * COUNTS["few"] - 4 * 8 <= len(few) <= 3 * COUNTS["few"]
    assert max(map(few.count, few)) <= 3
    told = ranks[0].stats()
    assert told["sources"]["few"] == {"rows": len(few), "weight": 0.0, "epoch": 2}
    assert told["sources"]["many"]["weight"] == 1.0
    # The epoch is that of the sources that are left.
    assert told["epoch"] == (800 - len(few)) // COUNTS["many"]
    with pytest.raises(TypeError, match=r"len\(\): how many batches"):
        len(ranks[0])


@pytest.mark.parametrize("world", [1, 2])
def test_steps_of_several_rounds_end_with_the_last_whole_one(samples: dict[str, hr.SampleDataset], world: int) -> None:
    dataset = mixed(samples, {"many": 1.0, "few": 1.0}, on_exhausted="stop")
    rows = rows_of(steps(loaders(dataset, 1, global_batch_size=2, seed=2)))
    ranks = loaders(dataset, world, global_batch_size=8, lanes=2, seed=2)
    whole = steps(ranks)
    assert len(rows) % 8
    assert rows_of(whole) == rows[: len(rows) // 8 * 8]
    assert len(ranks[0]) == len(whole)
    # Another batch size from some step on ends elsewhere.
    [loader] = loaders(dataset, 1, global_batch_size=8, lanes=2, seed=2)
    before = steps([loader], 2)
    loader.set_global_batch_size(2)
    rest = steps([loader])
    assert rows_of(before) + rows_of(rest) == rows
    assert len(loader) == 2 + len(rest)
    loader.load_state_dict(before[-1].parts)
    loader.skip(range(2, 3))
    assert len(loader) == len(whole) - 1
    assert rows_of(steps([loader])) == rows[24 : len(whole) * 8]


def test_batches_of_one_source_end_too(samples: dict[str, hr.SampleDataset]) -> None:
    dataset = mixed(samples, {"many": 3.0, "few": 1.0}, on_exhausted="drop", per_batch=True)
    whole = steps(loaders(dataset, 1, global_batch_size=3, seed=5))
    assert all(len({source for source, _ in step.rows.values()}) == 1 for step in whole)
    assert len(rows_of(whole)) >= COUNTS["many"] + COUNTS["few"] - 4
    check_resume(dataset, steps=6, global_batch_size=3, world_sizes=(1, 3), loader={"seed": 5})


def test_an_empty_source_gives_nothing_where_that_is_asked_for(
    samples: dict[str, hr.SampleDataset], write: CorpusWriter
) -> None:
    for rule in ("repeat", "stop"):
        with pytest.raises(ValueError, match=r"source 'none' holds no sample\nhint: a weight of 0 leaves it out"):
            mixed(samples, {"few": 1.0, "none": 1.0}, on_exhausted=rule)
    with pytest.raises(ValueError, match="the sources hold no sample"):
        mixed(samples, {"none": 1.0}, on_exhausted="drop")
    alone = [
        value
        for _, value in rows_of(steps(loaders(mixed(samples, {"few": 1.0}, on_exhausted="stop"), 1, batch_size=2)))
    ]
    assert len(alone) == 16
    for weight, rule in ((1.0, "drop"), (0.0, "drop"), (0.0, "stop")):
        dataset = mixed(samples, {"none": weight, "few": 1.0}, on_exhausted=rule)
        assert rows_of(steps(loaders(dataset, 1, batch_size=2))) == [(1, value) for value in alone]
    # A packed column without a token, and one of weight 0 that has some.
    void = write(numbered([[[0, None, 0]]])).open(seq_len=8)
    some = write(numbered([[[5, 9]]])).open(seq_len=8)
    rows = samples["few"].pack(8)
    dataset = hr.mix({"void": (void, 0), "rows": (rows, 1), "some": (some, 0)})
    taken = steps(loaders(dataset, 2, global_batch_size=4), 5)
    assert {source for source, _ in rows_of(taken)} == {1}
    check_resume(dataset, steps=3, global_batch_size=4, world_sizes=(1, 2, 4))
    with pytest.raises(ValueError, match="source 'void' holds no sample"):
        hr.mix({"void": (void, 1), "rows": (rows, 1)})


@pytest.mark.parametrize(
    "make",
    [
        lambda one: plain(one).filter(bool),
        lambda one: plain(one).flat_map(one_each),
        lambda one: plain(one).batch_map(list, 2),
        packed,
    ],
)
def test_an_end_that_only_reading_tells_is_refused(samples: dict[str, hr.SampleDataset], make: Any) -> None:
    one = make(samples["many"])
    given: list[tuple[dict[str, Any], str]] = [
        ({"on_exhausted": "stop"}, "on_exhausted='stop'"),
        ({"on_exhausted": "drop"}, "on_exhausted='drop'"),
        ({"max_epochs": {"many": 2}}, r"max_epochs=\{'many': 2\}"),
    ]
    for arguments, told in given:
        with pytest.raises(ValueError, match=f"{told} needs sources whose rows are counted: .* 'many' ends\nhint: "):
            hr.mix({"many": (one, 1)}, **arguments)


def test_an_end_may_be_known_of_some(samples: dict[str, hr.SampleDataset]) -> None:
    dataset = hr.mix(
        {"many": (plain(samples["many"]).filter(_odd), 1), "few": (plain(samples["few"]).map(dict), 1)},
        max_epochs={"few": 1},
    )
    taken = rows_of(steps(loaders(dataset, 1, global_batch_size=4), 30))
    assert 17 - 2 * 4 <= sum(source for source, _ in taken) <= 17
    check_resume(dataset, steps=8, global_batch_size=4, world_sizes=(1, 2, 4))


def _odd(sample: dict[str, Any]) -> bool:
    return sample["id"] % 2 == 1


def test_arguments_that_an_end_does_not_bear(samples: dict[str, hr.SampleDataset]) -> None:
    dataset = mixed(samples, WEIGHTS, on_exhausted="drop")
    with pytest.raises(ValueError, match='on_error must be "raise" where rows are counted to tell the end of source'):
        hr.DataLoader(dataset, global_batch_size=4, on_error="skip")
    with pytest.raises(ValueError, match='remainder must be "drop" for a mixture that ends, got "pad"'):
        hr.DataLoader(dataset, global_batch_size=4, remainder="pad")
    with pytest.raises(ValueError, match=r"epochs has no meaning for a mixture, .* got 2\nhint: mix\(..., max_epochs"):
        hr.DataLoader(dataset, global_batch_size=4, epochs=2)
    with pytest.raises(ValueError, match=r"too little data: the mixture ends after \d+ rows; .*'many' 90, 'few' 17"):
        hr.DataLoader(dataset, global_batch_size=200)


def test_the_order_of_an_end_does_not_depend_on_its_folder(tmp_path: Path) -> None:
    runs = [
        rows_of(steps(loaders(mixed(lines(folder, COUNTS), WEIGHTS, on_exhausted="drop"), 1, global_batch_size=5)))
        for folder in (_made(tmp_path / "a"), _made(tmp_path / "b"))
    ]
    assert runs[0] == runs[1]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_where_three_hundred_sources_leave_is_soon_known() -> None:
    count, lanes = 300, 64
    rows = [2000 + number * 104_729 % 2000 for number in range(count)]
    begin = time.monotonic()
    mixture = _core.Mixture(
        seed=3,
        lanes=lanes,
        together=False,
        source_lanes=[lanes] * count,
        phases=[(0, 0, 1, [1.0 + number * 7919 % 101 / 30 for number in range(count)])],
        limits=[*rows],
        stop=False,
    )
    # It takes about half a second; counted anew for each source it would take minutes.
    assert time.monotonic() - begin < 20
    assert mixture.rows is not None
    sources = np.frombuffer(memoryview(mixture.sources(0, mixture.rows)), dtype=np.uint32).reshape(-1, lanes)
    given = np.stack([np.bincount(sources[:, lane], minlength=count) for lane in range(lanes)], axis=1)
    assert mixture.counts(mixture.rows) == given.sum(axis=1).tolist()
    # Each source leaves where the first of its lanes has no row left.
    left = -((np.arange(lanes) - np.array(rows)[:, None]) // lanes) - given
    assert left.min(axis=1).tolist() == [0] * count

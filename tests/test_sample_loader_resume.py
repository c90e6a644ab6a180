"""Loaders over samples go on exactly, on any ranks and in any batches, and go anywhere in a run."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from sample_loading import ORDERS, SIZES, WORLDS, Given, given_by, ids_of, load, merged
from sample_sources import Calls, ids, made_up, source_of

# After every step


RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{kind: (source, options | {"batch": 6}) for kind, (source, options) in ORDERS.items()},
    "dropping": ({}, {"batch": 5, "drop_last": True, "lanes": 5, "window": 3}),
    "a schedule": ({}, {"batch": {0: 4, 3: 8, 7: 2, 12: 6}, "lanes": 2, "window": 2}),
    "one chunk a window": ({}, {"batch": 7, "lanes": 7, "window": 1}),
    "all in one window": ({}, {"batch": 4, "window": 100}),
}


def going_on(options: dict[str, Any]) -> dict[str, Any]:
    """What is not in a state."""
    kept = {key: value for key, value in options.items() if key in ("drop_last",)}
    return kept | {"batch": options["batch"] if isinstance(options["batch"], dict) else None, "epochs": 3}


@pytest.mark.parametrize("run", RUNS)
def test_saved_after_every_step_the_rest_is_that_of_the_unbroken_run(run: str) -> None:
    source, options = RUNS[run]
    loader = load(made_up(SIZES, **source), **options, epochs=3, seed=5)
    first = loader.state_dict()
    unbroken = given_by(loader)
    assert {batch.epoch for batch in unbroken} == {0, 1, 2}
    assert loader.state_dict() == unbroken[-1].state
    states = [first, *[batch.state for batch in unbroken]]
    for step, state in enumerate(states):
        again = load(made_up(SIZES, **source), **going_on(options))
        again.load_state_dict(hr.State.from_bytes(hr.State.to_bytes(state)))
        assert again.state_dict() == state, "saved right after loading"
        assert again.step == step
        if step < len(unbroken):
            epoch = unbroken[step].epoch
            left = sum(batch.epoch == epoch for batch in unbroken[step:])
            assert len(again) == sum(batch.epoch == epoch for batch in unbroken)
            assert len(iter(again)) == left
        assert given_by(again) == unbroken[step:]


@pytest.mark.parametrize("run", RUNS)
def test_a_new_resume_after_each_batch(run: str) -> None:
    """B001: a second resume fell back to the first row."""
    source, options = RUNS[run]
    loader = load(made_up(SIZES, **source), **options, epochs=3, seed=5)
    state = loader.state_dict()
    unbroken = given_by(loader)
    found: list[Given] = []
    for _ in unbroken:
        again = load(made_up(SIZES, **source), **going_on(options), num_workers=1)
        again.load_state_dict(json.loads(json.dumps(state)))
        found += given_by(again, 1)
        state = again.state_dict()
        assert state == found[-1].state
    assert found == unbroken


@settings(max_examples=60)
@given(
    data=st.data(),
    kind=st.sampled_from(list(ORDERS)),
    drop_last=st.booleans(),
    allow_empty=st.booleans(),
    total=st.integers(12, 40),
)
def test_chains_of_resumes_on_other_ranks_and_batches(
    data: st.DataObject, kind: str, drop_last: bool, allow_empty: bool, total: int
) -> None:
    """B020: each link has other ranks and another batch size, and starts from fresh objects."""
    source, options = ORDERS[kind]
    sizes = [total - 2 * (total // 3), total // 3, 0, total // 3]
    kept: dict[str, Any] = {"drop_last": drop_last, "allow_empty": allow_empty, "epochs": 3}
    order = [
        number for batch in given_by(load(made_up(sizes, **source), 1, epochs=3, **options)) for number in batch.ids
    ]
    assert len(order) == 3 * total
    state = load(made_up(sizes, **source), 1, **options, **kept).state_dict()
    row = step = 0
    begun: dict[int, int] = {}  # epoch: its steps so far
    for _ in range(data.draw(st.integers(1, 5), "links")):
        world = data.draw(st.sampled_from(WORLDS), "world")
        batch = world * data.draw(st.integers(1, 12 // world), "share")
        count = data.draw(st.integers(0, 6), "steps")
        left = total - row % total
        loaders = [load(made_up(sizes, **source), batch, rank=rank, world_size=world, **kept) for rank in range(world)]
        if left < min(world, batch) and not drop_last and not allow_empty:
            with pytest.raises(ValueError, match=f"{left} samples.*{world} ranks"):
                loaders[0].load_state_dict(state)
            continue
        for loader in loaders:
            loader.load_state_dict([state] * world)
            epoch = loader.epoch
            assert loader.step == step
            assert loader.epoch == 3 or len(loader) == begun.get(epoch, 0) + len(iter(loader))
        # Where what is left of an epoch makes no batch, it is over.
        row = loaders[0].position
        found = merged([given_by(loader, count) for loader in loaders])
        for number, epoch, pairs in found:
            assert (number, epoch) == (step, row // total)
            assert [one for one, _ in pairs] == list(range(row, row + len(pairs))), "none lost, none twice"
            assert [one for _, one in pairs] == order[row : row + len(pairs)]
            begun[epoch] = begun.get(epoch, 0) + 1
            step, row = step + 1, row + len(pairs)
            rest = -row % total
            if drop_last and rest < batch and row % total:
                row += rest
        assert [loader.position for loader in loaders] == [row] * world
        states = [loader.state_dict() for loader in loaders]
        assert all(one == states[0] for one in states)
        state = states[0]


def test_read_save_load_again_and_again() -> None:
    """B001, B008: the count of what was given goes on from the state's."""
    state, found = load(made_up([40]), 1, shuffle=False).state_dict(), []
    for _ in range(3):
        loader = load(made_up([40]))
        loader.load_state_dict(state)
        found += [number for batch in given_by(loader, 5) for number in batch.ids]
        state = loader.state_dict()
    assert found == list(range(15))
    assert (loader.step, loader.position, state["step"]) == (15, 15, 15)


def test_epochs_after_a_resume_are_whole() -> None:
    """B004, B011."""
    data = made_up([20, 10]).subsample(1.5)
    loader = load(data, 4, num_workers=2)
    given_by(loader, len(loader) + 9)
    state = loader.state_dict()
    again = load(made_up([20, 10]).subsample(1.5), num_workers=2)
    again.load_state_dict(state)
    assert [len(list(again)) for _ in range(3)] == [3, 12, 12]


def test_a_state_soon_after_a_resume_is_whole() -> None:
    """B007."""
    loader = load(made_up(SIZES), 2, num_workers=4)
    unbroken = given_by(loader, 10)
    state = unbroken[2].state
    for step in range(3, 9, 2):
        again = load(made_up(SIZES), num_workers=4)
        again.load_state_dict(state)
        assert given_by(again, 2) == unbroken[step : step + 2]
        state = again.state_dict()


def test_another_loader_over_a_used_dataset() -> None:
    """B010."""
    data = made_up(SIZES)
    first = load(data, 1, num_workers=2)
    for number, _ in enumerate(first):
        if number == 4:
            break
    second = load(data)
    second.load_state_dict(first.state_dict())
    assert [batch.rows for batch in given_by(second, 2)] == [[5], [6]]
    assert [batch.rows for batch in given_by(load(data, 1), 1)] == [[0]]


def test_a_state_loaded_while_an_iterator_lives() -> None:
    """B014."""
    data = made_up(SIZES)
    other = load(data, 2, seed=9)
    given_by(other, 5)
    loader = load(data, 2, seed=9)
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(other.state_dict())
    with pytest.raises(RuntimeError, match=r"not the loader's latest(.|\n)*iterate over the loader again"):
        next(iterator)
    with pytest.raises(RuntimeError, match="not the loader's latest"):
        len(iterator)
    assert loader.state_dict() == other.state_dict()
    assert given_by(loader, 3) == given_by(other, 3)


@pytest.mark.parametrize("kind", ORDERS)
def test_a_resume_does_not_touch_samples_that_were_given(kind: str) -> None:
    """B019."""
    source, options = ORDERS[kind]
    loader = load(made_up([100] * 10, **source), 10, **options)
    loader.seek(90)
    calls = Calls()
    data = made_up([100] * 10, **source).map(calls)
    again = load(data, 10)
    again.load_state_dict(loader.state_dict())
    rest = ids_of(again)
    assert len(rest) == 100
    assert calls.ids == rest
    if kind == "sequential":
        assert {chunk for chunk, _ in source_of(data).loads} == {9}


def test_a_seed_from_a_state_reaches_functions() -> None:
    def drawn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return sample | {"drawn": int(rng.integers(2**40))}

    data = made_up(SIZES).map(drawn)
    wanted = load(data, 4, seed=7)
    state = wanted.state_dict()
    used = load(data, 4)
    next(iter(used))
    used.load_state_dict(state)
    for one, other in zip(used, wanted, strict=True):
        assert one["drawn"].tolist() == other["drawn"].tolist()


@pytest.mark.parametrize(
    "other, options, message",
    [
        (made_up((5, 1, 7, 0, 4, 9, 4)), {}, "not that of the state: samples of source 0 is 30 here and 29"),
        (made_up((5, 1, 7, 4, 9, 3)), {}, "not that of the state: chunks of source 0 is 6 here and 7"),
        (made_up(SIZES, start=1), {}, "not that of the state: identity of source 0 is"),
        (made_up([2]), {}, "not that of the state: chunks of source 0"),
        (hr.concat([made_up(SIZES), made_up(SIZES)]), {}, "2 sources here, 1 in the state"),
        (made_up(SIZES).take(28), {}, "not those of the state: samples is 28 here and 29"),
        (made_up(SIZES, random_access=True), {}, "not those of the state: order is 'permutation' here and 'lanes'"),
        (
            made_up(SIZES).subset(np.arange(29)[::-1]),
            {},
            "not those of the state: selection is",
        ),
        (hr.concat([made_up(SIZES).skip(1), made_up(SIZES).take(1)]), {}, "2 sources here"),
        (made_up(SIZES), {"seed": 4}, "seed is 4 here and 3 in the state(.|\n)*leave seed out"),
        (made_up(SIZES), {"shuffle": False}, "shuffle is False here and True in the state"),
        (made_up(SIZES), {"lanes": 2}, "lanes is 2 here and 4 in the state"),
        (made_up(SIZES), {"window": 3}, "window is 3 here and 2 in the state"),
    ],
)
def test_a_state_of_another_run_is_refused_by_the_first_difference(
    other: Any, options: dict[str, Any], message: str
) -> None:
    """B017."""
    loader = load(made_up(SIZES), 4, seed=3, lanes=4, window=2)
    given_by(loader, 2)
    before = load(other, 2, **options)
    kept = before.state_dict()
    with pytest.raises(hr.StateMismatch, match=message):
        before.load_state_dict(loader.state_dict())
    assert before.state_dict() == kept
    assert given_by(before, 1)[0].step == 0


def test_a_selection_of_as_many_other_samples_is_refused() -> None:
    data = made_up(SIZES)
    loader = load(data.take(10), 2)
    with pytest.raises(hr.StateMismatch, match="not those of the state: selection is"):
        load(data.skip(10).take(10), 2).load_state_dict(loader.state_dict())
    load(made_up(SIZES).subset(range(10)), 2).load_state_dict(loader.state_dict())


@pytest.mark.parametrize(
    "change, message",
    [
        ({"history": []}, "history"),
        ({"history": [[0, 0, 0]]}, "history"),
        ({"history": [[1, 4, 4]]}, "history"),
        ({"history": [[0, 0, 4], [0, 0, 4]]}, "history"),
        ({"history": [[0, 0, 4], [5, 20, 4]]}, "history"),
        ({"position": 9}, "history.*position 9"),
        ({"step": 1}, "history"),
        ({"step": -1}, "step"),
        ({"kind": "counted"}, "kind|history|step"),
        ({"more": 1}, "unknown key 'more'"),
        ({"seed": "a"}, "seed"),
    ],
)
def test_a_damaged_state_is_refused(change: dict[str, Any], message: str) -> None:
    loader = load(made_up(SIZES), 4)
    given_by(loader, 2)
    with pytest.raises(hr.StateMismatch, match=message):
        load(made_up(SIZES)).load_state_dict(loader.state_dict() | change)


def test_a_state_cut_or_changed_in_a_file_is_refused() -> None:
    data = hr.State.to_bytes(load(made_up(SIZES), 4).state_dict())
    for wrong in (data[:-1], data[:40] + b"X" + data[41:], b""):
        with pytest.raises(hr.StateMismatch):
            hr.State.from_bytes(wrong)


def test_a_batch_size_comes_from_an_argument_or_a_state() -> None:
    loader = load(made_up(SIZES))
    with pytest.raises(ValueError, match="batch size is missing"):
        next(iter(loader))
    loader.load_state_dict(load(made_up(SIZES), 5).state_dict())
    assert loader.global_batch_size == 5
    with pytest.raises(ValueError, match="multiple of world_size=2, got 5"):
        load(made_up(SIZES), rank=0, world_size=2).load_state_dict(loader.state_dict())


# Of several sources, on other ranks


def mixed() -> Any:
    """Samples of three sources: some twice, some left out, one source in an order of its own."""
    return hr.concat(
        [
            made_up((5, 0, 4)).where(hr.col("id") % 3 != 1).repeat(2),
            made_up((6, 6), start=100).split([0.5, 0.5], seed=1)[0],
            made_up((3, 3), start=200).subsample(1.5),
        ]
    )


@pytest.mark.parametrize("scattered", [False, True])
def test_a_resume_of_what_was_made_of_several_sources(scattered: bool) -> None:
    """B016."""

    def new() -> Any:
        return mixed().subset(np.arange(len(mixed()))[::-1]) if scattered else mixed()

    loader = load(new(), 4, epochs=3)
    assert loader.stats()["order"] == "lanes"
    unbroken = given_by(loader)
    every = sorted(ids(new()))
    for epoch in range(3):
        assert sorted(number for batch in unbroken if batch.epoch == epoch for number in batch.ids) == every
    for step in range(0, len(unbroken), 3):
        again = load(new(), epochs=3)
        again.load_state_dict(unbroken[step].state)
        assert given_by(again) == unbroken[step + 1 :]


def test_a_position_that_ranks_cannot_share_is_refused_when_it_is_loaded() -> None:
    loader = load(made_up([9]), 4)
    given_by(loader, 2)
    state = loader.state_dict()
    wide = load(made_up([9]), 4, rank=0, world_size=2)
    with pytest.raises(ValueError, match=r"1 samples cannot be shared out among 2 ranks(.|\n)*allow_empty=True"):
        wide.load_state_dict(state)
    assert wide.step == 0
    for options, left in (({"allow_empty": True}, 1), ({"drop_last": True}, 2)):
        again = load(made_up([9]), rank=1, world_size=2, **options)
        again.load_state_dict(state)
        assert len(iter(again)) == left
        assert len(list(again)) == left


def test_steps_that_other_ranks_made_are_not_guessed() -> None:
    """One rank makes three steps of nine samples, two ranks make two."""
    loader = load(made_up([9]), 4, shuffle=False)
    given_by(loader, 7)
    wide = load(made_up([9]), 4, rank=0, world_size=2)
    wide.load_state_dict(loader.state_dict())
    assert (wide.step, wide.epoch, len(wide)) == (7, 2, 2)
    assert [place.row for rank in range(2) for place in wide.sources(7, rank)] == [4, 5, 6, 7, 8]
    wide.seek(6)
    assert next(iter(wide))["id"].tolist() == [0, 1]
    for go in (wide.sources, wide.seek):
        with pytest.raises(ValueError, match=r"step 5 is not known(.|\n)*before step 6(.|\n)*load a state"):
            go(5)
    assert wide.step == 7
    # Where all ranks make the same steps, all are known.
    even = load(made_up([9]), 3)
    given_by(even, 7)
    other = load(made_up([9]), 3, rank=0, world_size=3)
    other.load_state_dict(even.state_dict())
    assert other.sources(1, 2) == even.sources(1)[2:]
    other.seek(0)
    assert next(iter(other)).step == 0


# Going elsewhere


@pytest.mark.parametrize("run", RUNS)
def test_seek_goes_to_any_step(run: str) -> None:
    source, options = RUNS[run]
    loader = load(made_up(SIZES, **source), **options, epochs=3)
    unbroken = given_by(loader)
    for step in [*range(len(unbroken) - 1, -1, -3), 0, 1]:
        loader.seek(step)
        assert (loader.step, loader.epoch) == (step, unbroken[step].epoch)
        assert given_by(loader, 2) == unbroken[step : step + 2]
    loader.seek(len(unbroken))
    assert given_by(loader) == []
    with pytest.raises(ValueError, match=f"0..{len(unbroken)}"):
        loader.seek(len(unbroken) + 1)


def test_seek_far_ahead_costs_nothing() -> None:
    loader = load(made_up([1000]), 7)
    loader.seek(10**12)
    steps = -(-1000 // 7)
    assert (loader.epoch, loader.position) == (10**12 // steps, 10**12 // steps * 1000 + 10**12 % steps * 7)
    assert len(next(iter(loader))["id"]) in (7, 1000 % 7)


def test_skipped_steps_are_passed_over_and_keep_their_numbers() -> None:
    unbroken = given_by(load(made_up(SIZES), 4, epochs=2))
    loader = load(made_up(SIZES), 4, epochs=2)
    given_by(loader, 1)
    loader.skip(range(2, 5))
    loader.skip(range(7, 9))
    assert len(loader) == 8 - 4
    assert len(iter(loader)) == 3
    state = loader.state_dict()
    found = given_by(loader)
    assert [batch.step for batch in found] == [1, 5, 6, *range(9, 16)]
    assert [batch.ids for batch in found] == [unbroken[batch.step].ids for batch in found]
    again = load(made_up(SIZES), epochs=2)
    again.load_state_dict(state)
    assert given_by(again) == found
    with pytest.raises(ValueError, match="from 16 on"):
        loader.skip(range(3, 5))
    with pytest.raises(TypeError, match="range"):
        loader.skip([17])  # type: ignore[arg-type]


def test_the_batch_size_may_change_at_any_step() -> None:
    order = [number for batch in given_by(load(made_up(SIZES), 12, lanes=12, epochs=2)) for number in batch.ids]
    loader = load(made_up(SIZES), 12, epochs=2, lanes=12)
    found = []
    for size in (3, 12, 1, 7, 50, 4):
        loader.set_global_batch_size(size)
        assert loader.global_batch_size == size
        found += given_by(loader, 1)
    assert [len(batch.ids) for batch in found] == [3, 12, 1, 7, 6, 4]
    rest = given_by(loader)
    assert [number for batch in [*found, *rest] for number in batch.ids] == order
    again = load(made_up(SIZES), epochs=2)
    again.load_state_dict(found[2].state)
    assert again.global_batch_size == 1


def test_a_schedule_is_refused_where_ranks_do_not_divide_it() -> None:
    with pytest.raises(ValueError, match=r"multiple of world_size=2, got 3(.|\n)*2 or 4"):
        load(made_up(SIZES), {0: 4, 5: 3}, rank=0, world_size=2)
    loader = load(made_up(SIZES), 4, rank=0, world_size=2)
    with pytest.raises(ValueError, match="multiple of world_size=2, got 5"):
        loader.set_global_batch_size(5)


def test_lengths_at_each_point() -> None:
    """B149, B038."""
    loader = load(made_up(SIZES), 5, epochs=3)
    for _ in range(3):
        assert len(loader) == 6
        iterator = iter(loader)
        for left in range(6, 0, -1):
            assert (len(loader), len(iterator)) == (6, left)
            next(iterator)
        assert len(iterator) == 0
        assert next(iterator, None) is None
    assert (loader.epoch, len(loader), list(loader)) == (3, 6, [])


def test_the_next_epoch_while_the_last_iterator_is_held() -> None:
    loader = load(made_up(SIZES), 5, num_workers=1)
    held = iter(loader)
    for _ in range(6):
        next(held)
    following = iter(loader)
    assert next(following).step == 6
    with pytest.raises(RuntimeError, match="latest"):
        next(held)


def test_a_batch_larger_than_what_is_left_ends_the_epoch_where_batches_are_whole() -> None:
    loader = load(made_up(SIZES), 4, drop_last=True, epochs=3)
    iterator = iter(loader)
    for _ in range(6):
        next(iterator)
    loader.set_global_batch_size(12)
    assert list(iterator) == []
    assert (loader.step, loader.epoch, loader.position, len(loader)) == (6, 1, 29, 2)
    state = loader.state_dict()
    again = load(made_up(SIZES), drop_last=True, epochs=3)
    again.load_state_dict(state)
    assert again.state_dict() == state
    rest = given_by(loader)
    assert [(batch.step, batch.epoch, len(batch.ids)) for batch in rest] == [
        (6, 1, 12),
        (7, 1, 12),
        (8, 2, 12),
        (9, 2, 12),
    ]
    assert given_by(again) == rest


def test_ranks_stay_apart_after_skips() -> None:
    """B026."""
    loaders = [load(made_up(SIZES), 4, rank=rank, world_size=2, epochs=1) for rank in range(2)]
    for loader in loaders:
        loader.skip(range(1))
    found = merged([given_by(loader) for loader in loaders])
    assert [row for *_, pairs in found for row, _ in pairs] == list(range(4, 29))
    assert len({number for *_, pairs in found for _, number in pairs}) == 25

"""Errors while samples are loaded name the sample and lose no other; filters and collation may leave nothing."""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

import headrace as hr
from sample_loading import SIZES, given_by, ids_of, load
from sample_sources import MadeUp, dataset_of, made_up

# Errors


def failing(*numbers: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def function(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] in numbers:
            raise KeyError(f"no {sample['id']}")
        return sample

    return function


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_names_the_sample_and_the_next_step_can_be_had(workers: int) -> None:
    loader = load(made_up(SIZES).map(failing(6)), 4, shuffle=False, num_workers=workers, epochs=1)
    iterator = iter(loader)
    assert next(iterator).step == 0
    with pytest.raises(KeyError, match="no 6") as caught:
        next(iterator)
    notes = "\n".join(caught.value.__notes__)
    assert "sample 6 (file-2, chunk 2, row 0)" in notes
    assert "map(" in notes
    assert loader.step == 2
    assert [batch.step for batch in iterator] == list(range(2, 8))


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_fail_are_skipped_counted_and_listed(workers: int) -> None:
    data = made_up(SIZES).map(failing(0, 6, 8, 9, 10, 11))
    loader = load(data, 4, shuffle=False, num_workers=workers, epochs=1, on_error="skip")
    found = [(batch.step, batch["id"].tolist(), batch.positions.tolist(), batch.rows.tolist()) for batch in loader]
    assert found[:3] == [
        (0, [1, 2, 3], [1, 2, 3], [1, 2, 3]),
        (1, [4, 5, 7], [4, 5, 7], [4, 5, 7]),
        (3, *[[*range(12, 16)]] * 3),
    ]
    assert len(found) == 7
    stats = loader.stats()
    assert (stats["samples"], stats["samples_skipped"], stats["samples_dropped"]) == (23, 6, 0)
    assert stats["skipped"][1] == (6, "file-2, chunk 2, row 0", "KeyError: 'no 6'")


def test_a_damaged_sample_is_an_error_or_skipped() -> None:
    def fault(chunk: int, row: int) -> None:
        if (chunk, row) == (2, 3):
            raise hr.DataError("damaged")

    def new() -> Any:
        return dataset_of(MadeUp(SIZES, fault=fault))

    with pytest.raises(hr.DataError, match="damaged") as caught:
        list(load(new(), 4, shuffle=False))
    assert "sample 9 (file-2, chunk 2, row 3)" in "\n".join(caught.value.__notes__)
    loader = load(new(), 4, shuffle=False, on_error="skip")
    assert ids_of(loader) == [*range(9), *range(10, 29)]
    assert loader.stats()["samples_skipped"] == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_store_that_does_not_answer_for_a_while_loses_no_step(workers: int) -> None:
    broken = threading.Event()

    def fault(chunk: int, row: int) -> None:
        if chunk == 4 and broken.is_set():
            raise hr.StoreError("no answer")

    data = dataset_of(MadeUp(SIZES, fault=fault))
    wanted = given_by(load(made_up(SIZES), 4, shuffle=False, epochs=1))
    loader = load(data, 4, shuffle=False, epochs=1, num_workers=workers, on_error="skip")
    broken.set()
    iterator = iter(loader)
    found = [next(iterator)["id"].tolist() for _ in range(3)]
    for _ in range(2):
        with pytest.raises(hr.StoreError, match="no answer"):
            next(iterator)
        assert loader.step == 3
    broken.clear()
    found += [batch["id"].tolist() for batch in iterator]
    assert found == [batch.ids for batch in wanted]


def test_a_function_that_raises_stop_iteration_does_not_end_the_epoch() -> None:
    def stop(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] == 5:
            raise StopIteration
        return sample

    iterator = iter(load(made_up(SIZES).map(stop), 4, shuffle=False))
    next(iterator)
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(iterator)
    assert next(iterator).step == 2


def test_a_batch_that_takes_too_long_is_not_lost() -> None:
    go = threading.Event()

    def slow(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] == 5:
            assert go.wait(30)
        return sample

    loader = load(made_up(SIZES).map(slow), 4, shuffle=False, num_workers=1, timeout=0.2, epochs=1)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(TimeoutError, match=r"0\.2 s"):
        next(iterator)
    go.set()
    time.sleep(0.05)
    assert [batch["id"].tolist()[0] for batch in patiently(iterator)] == list(range(4, 29, 4))


def patiently(iterator: Any) -> Iterable[Any]:
    """All batches; a slow machine may need longer than the timeout."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            yield next(iterator)
        except TimeoutError:
            continue
        except StopIteration:
            return


# Filters and collation


def even(sample: dict[str, Any]) -> bool:
    return sample["id"] % 2 == 0


def test_filters_make_batches_smaller_and_leave_steps_as_they_are() -> None:
    loader = load(made_up(SIZES).filter(even), 4, shuffle=False, epochs=1)
    assert len(loader) == 8
    found = list(loader)
    assert [len(batch["id"]) for batch in found] == [2] * 7 + [1]
    assert ids_of(found) == list(range(0, 29, 2))
    assert [batch.positions.tolist() for batch in found] == [batch["id"].tolist() for batch in found]
    assert (loader.stats()["samples"], loader.stats()["samples_dropped"]) == (15, 14)


def beyond(least: int) -> Callable[[dict[str, Any]], bool]:
    return lambda sample: sample["id"] >= least


@pytest.mark.parametrize("workers", [0, 2])
def test_a_step_of_which_nothing_is_left(workers: int) -> None:
    data = made_up(SIZES).filter(beyond(10))
    options: dict[str, Any] = {"shuffle": False, "epochs": 1, "num_workers": workers}
    assert [batch.step for batch in load(data, 4, **options)] == list(range(2, 8))
    ranks = [load(data, 4, rank=rank, world_size=2, **options) for rank in range(2)]
    for rank, loader in enumerate(ranks):
        iterator = iter(loader)
        for step in range(2):
            with pytest.raises(ValueError, match=f"step {step}.*nothing for rank {rank}(.|\n)*allow_empty=True"):
                next(iterator)
    empty = list(load(data, 4, rank=0, world_size=2, allow_empty=True, **options))
    assert empty[:2] == [[], []]
    # Eight steps: of the last one's single sample rank 0 has none.
    assert [len(batch) and len(batch["id"]) for batch in empty] == [0, 0, 0, 2, 2, 2, 2, 0]
    nothing = load(made_up(SIZES).filter(lambda sample: False), 4, **options)
    assert (list(nothing), nothing.step, nothing.epoch) == ([], 8, 1)


def test_an_empty_batch_goes_through_a_collate_function_if_it_may() -> None:
    data = made_up(SIZES).filter(beyond(10))
    sizes = list(load(data, 4, shuffle=False, epochs=1, collate_fn=len, allow_empty=True))
    assert sizes == [0, 0, 2, 4, 4, 4, 4, 1]
    assert list(load(data, 4, shuffle=False, epochs=1, collate_fn=len)) == [2, 4, 4, 4, 4, 1]


def test_collation_may_give_anything() -> None:
    assert list(load(made_up([4]), 2, shuffle=False, epochs=1, collate_fn=lambda samples: None)) == [None, None]
    plain = list(load(made_up([4]).map(lambda sample: sample["id"]), 2, shuffle=False, epochs=1))
    assert [batch.tolist() for batch in plain] == [[0, 1], [2, 3]]

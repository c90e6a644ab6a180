"""Dynamic pipelines when something goes wrong, and at their edges."""

import gc
import os
import re
import threading
import time
from itertools import islice
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.errors import StoreError
from lane_pipelines import begin, cut, dataset_of, join, loader_of, reference_of
from lane_reference import Packing, Step
from sample_sources import made_up

SIZES = (5, 1, 7, 0, 4, 9, 3)
CONCAT = Packing(mode="concat", seq_len=20)


def raising(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["id"] == 13:
        raise LookupError("no 13")
    return begin(sample)


def raising_group(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if any(document["id"] == 13 for document in documents):
        raise LookupError("no 13 here")
    return documents


class Unpicklable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__("it needs two")


def raising_unpicklable(sample: dict[str, Any]) -> dict[str, Any]:
    raise Unpicklable(1, 2)


@pytest.mark.parametrize(
    "options", [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 1, "worker_type": "process"}]
)
def test_an_item_that_fails_is_told_when_its_row_is_needed(options: dict[str, Any]) -> None:
    data = made_up(SIZES).map(raising).pack(20)
    whole = dataset_of(SIZES, (), CONCAT)
    wanted = [batch["tokens"].tobytes() for batch in islice(iter(loader_of(whole, 2, shuffle=False)), 20)]
    loader = loader_of(data, 2, shuffle=False, **options)
    found: list[bytes] = []
    with pytest.raises(LookupError, match="no 13") as raised:
        found.extend(batch["tokens"].tobytes() for batch in loader)
    # Lane 1 has the items 1, 3, 5 and so on: all rows that end before number 13 were given.
    tokens = sum(len(begin({"id": number})["tokens"]) for number in range(1, 13, 2))
    assert found == wanted[: tokens // 20]
    assert found
    notes = "\n".join(raised.value.__notes__)
    assert "headrace: sample 13 (file-4, chunk 4, row 0)" in notes
    assert "raised in map(raising)" in notes
    # It would fail again, whoever asks: the state is that of the last batch.
    with pytest.raises(LookupError):
        next(iter(loader))
    assert loader.step == len(found)
    skipping = loader_of(made_up(SIZES).map(raising).pack(20), 2, shuffle=False, **(options | {"on_error": "skip"}))
    assert skipping.load_state_dict(loader.state_dict()) is None
    next(iter(skipping))
    stats = skipping.stats()
    assert stats["documents_skipped"] >= 1
    assert (13, "file-4, chunk 4, row 0", "LookupError: no 13") in stats["skipped"]


def test_documents_that_fail_are_left_out_exactly() -> None:
    steps = (Step("flat_map", cut), Step("batch_map", raising_group, 3))
    data = made_up(SIZES).map(begin).flat_map(cut).batch_map(raising_group, 3).pack(20)
    found = [batch["tokens"].tobytes() for batch in islice(iter(loader_of(data, 4, on_error="skip")), 8)]
    left = (Step("flat_map", cut), Step("batch_map", without_13, 3))
    reference = reference_of(dataset_of(SIZES, left, CONCAT), SIZES, left, CONCAT, lanes=4)
    for step, tokens in enumerate(found):
        rows = [[token.value for token in reference.row(4 * step + lane)] for lane in range(4)]
        assert tokens == np.array(rows, dtype=np.int32).tobytes()
    with pytest.raises(LookupError, match="no 13 here"):
        list(islice(iter(loader_of(data, 4)), 20))
    assert steps[1].size == 3


def without_13(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [] if any(document["id"] == 13 for document in documents) else documents


def test_errors_that_do_not_pickle_come_from_processes() -> None:
    data = made_up([5]).map(raising_unpicklable).pack(4)
    with pytest.raises(RuntimeError, match="raised in a worker process") as raised:
        next(iter(loader_of(data, 1, num_workers=1, worker_type="process")))
    assert "Unpicklable: it needs two" in "\n".join(raised.value.__notes__)


def test_a_store_that_does_not_answer_is_asked_again_by_the_next_call() -> None:
    down = {"now": False}

    def fault(chunk: int, row: int) -> None:
        if down["now"]:
            raise StoreError("it does not answer")

    data = made_up([4] * 30, fault=fault).map(begin).pack(20)
    wanted = [batch["tokens"].tobytes() for batch in islice(iter(loader_of(data, 2, memory="1KiB")), 30)]
    loader = loader_of(data, 2, memory="1KiB", on_error="skip", num_workers=2)
    found = [batch["tokens"].tobytes() for batch in islice(iter(loader), 5)]
    down["now"] = True
    with pytest.raises(StoreError):
        found += [batch["tokens"].tobytes() for batch in islice(iter(loader), 500)]
    down["now"] = False
    found += [batch["tokens"].tobytes() for batch in islice(iter(loader), 30 - loader.step)]
    assert found[:5] == wanted[:5]
    assert loader.step == 30


def test_nothing_left_is_an_error_and_not_a_hang() -> None:
    for data in (
        made_up(SIZES).filter(lambda sample: False).pack(8),
        made_up(SIZES).map(lambda sample: {"tokens": []}).pack(8),
        made_up(SIZES).flat_map(lambda sample: []),
        made_up(SIZES).map(lambda sample: {"tokens": [1] * 9}).pack(8, mode="pad", long="drop"),
        made_up(SIZES).map(lambda sample: {"tokens": [1] * 9}).pack(8, mode="best_fit", long="drop"),
        made_up(SIZES).batch_map(lambda group: [], 3),
    ):
        with pytest.raises(hr.DataError, match="lane 0: nothing is left of its items from number 0 on"):
            next(iter(loader_of(data, 2)))
    with pytest.raises(ValueError, match="the dataset has no samples"):
        loader_of(made_up([0]).map(begin).pack(8), 2)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_lane_that_comes_to_few_items_says_so(shuffle: bool) -> None:
    data = made_up([4]).map(begin).filter(lambda sample: sample["id"] > 0).pack(8)
    with pytest.raises(hr.DataError) as raised:
        next(iter(loader_of(data, 8, shuffle=shuffle)))
    first, *more = str(raised.value).splitlines()
    assert re.match(
        r"lane \d: nothing is left of its items from number 0 on, .* dropped by map\(begin\), filter\(", first
    )
    assert more == [
        "of the 4 items it comes to 1 only, again and again: 0",
        "hint: with fewer lanes than 8 (lanes=) a lane comes to more of them",
    ]
    assert next(iter(loader_of(data, 8, shuffle=shuffle, lanes=1)))["tokens"].shape == (8, 8)
    mixed = hr.mix({"none": (made_up([4]).map(begin).pack(8), 0), "small": (data, 1)})
    with pytest.raises(hr.DataError, match=r"source 'small', lane \d: nothing is left of its items from number 0 on"):
        next(iter(loader_of(mixed, 8, shuffle=shuffle)))


def test_filters_may_drop_nearly_all() -> None:
    data = made_up([50] * 20).filter(lambda sample: sample["id"] == 713).flat_map(lambda sample: [sample] * 2)
    loader = loader_of(data, 4, num_workers=2)
    for batch in islice(iter(loader), 6):
        assert batch["id"].tolist() == [713] * 4
        assert batch.positions.tolist() == [713] * 4
        assert [place.row for place in batch.sources()] == [13] * 4


def test_few_items_fill_the_rows_of_many_lanes() -> None:
    data = made_up([3]).map(lambda sample: {"tokens": [sample["id"]] * 2}).pack(50)
    for shuffle in (True, False):
        seen: set[int] = set()
        for batch in islice(iter(loader_of(data, 64, shuffle=shuffle)), 3):
            assert batch["tokens"].shape == (64, 50)
            seen |= set(batch["tokens"].reshape(-1).tolist())
        assert seen == {0, 1, 2}


def test_huge_and_tiny_documents_share_rows() -> None:
    def sized(sample: dict[str, Any]) -> dict[str, Any]:
        return {"tokens": np.full(300_000 if sample["id"] == 4 else sample["id"] % 3, sample["id"], dtype=np.int32)}

    for mode in ("concat", "best_fit", "pad"):
        data = made_up([10]).map(sized).pack(640, mode=mode)
        loader = loader_of(data, 2, memory="64KiB", num_workers=1, shuffle=False, lanes=2)
        tokens = np.concatenate([batch["tokens"] for batch in islice(iter(loader), 600)])
        assert (tokens == 4).sum() >= 300_000


def test_what_dynamic_pipelines_cannot_do_is_said() -> None:
    data = made_up(SIZES).map(begin).pack(8)
    loader = loader_of(data, 2)
    for call, message in (
        (lambda: len(data), r"len\(\): how many there are of rows only reading tells\nhint: estimated_len"),
        (lambda: len(loader), r"len\(\): how many batches(.|\n)*hint: estimated_len"),
        (lambda: len(iter(loader)), "how many batches"),
        (lambda: loader.seek(3), "seek: rows of a dynamic pipeline"),
        (lambda: loader.sources(3), r"sources: rows of a dynamic pipeline(.|\n)*hint: batch.sources"),
        (lambda: made_up(SIZES).flat_map(None), "flat_map takes a function"),  # pyright: ignore
        (lambda: made_up(SIZES).tokenize(3), "tokenizer must be"),
    ):
        with pytest.raises(TypeError, match=message):
            call()
    for options, message in (
        (
            {"epochs": 2, "rank": 0, "world_size": 2},
            r"epochs must be left out with several ranks(.|\n)*hint: stop after",
        ),
        ({"collate_fn": list}, "collate_fn has no meaning"),
        ({"sampler": [1]}, "sampler has no meaning"),
        ({"items_in_parallel": 3}, "items_in_parallel has no meaning"),
        ({"shuffle": False, "window": 3}, "window must be left out for a sequential order"),
        ({"lanes": 3}, "a multiple or a divisor of the number of lanes, 3, got 2"),
    ):
        with pytest.raises(ValueError, match=message):
            loader_of(data, 2, **options)
    with pytest.raises(ValueError, match="a batch size is missing"):
        next(iter(hr.DataLoader(data)))


def test_a_flat_map_must_give_a_list() -> None:
    for wrong in (3, "text", {"a": 1}, None):
        data = made_up([3]).flat_map(lambda sample, wrong=wrong: wrong)
        with pytest.raises(TypeError, match="must give a list of samples, got"):
            next(iter(loader_of(data, 1)))


def test_lengths_are_estimated() -> None:
    sizes = [100] * 50
    data = made_up(sizes).map(begin)
    tokens = sum(len(sample["tokens"]) for sample in data)
    assert abs(data.pack(16).estimated_len() - tokens / 16) < 0.1 * tokens / 16
    assert abs(data.flat_map(cut).estimated_len() - len(list(data.flat_map(cut)))) < 0.1 * len(list(data.flat_map(cut)))
    assert data.pack(5, mode="truncate").estimated_len() <= 5000
    assert data.pack(5, mode="pad", long="drop").estimated_len() < data.pack(5, mode="pad").estimated_len()
    info = data.flat_map(cut).pack(16).info()
    assert info["steps"] == ["map(begin)", "flat_map(cut)"]
    assert (info["samples"], info["mode"], info["seq_len"]) == (5000, "concat", 16)


def test_an_epoch_ends_when_a_lane_does() -> None:
    data = made_up(SIZES).map(begin).batch_map(join, 4)
    for packing, remainder in ((None, "drop"), (None, "pad"), ("best_fit", "drop"), ("best_fit", "pad")):
        rows = data if packing is None else data.pack(24, mode="best_fit")
        options: dict[str, Any] = {} if packing else {"collate_fn": lambda documents: {"tokens": documents}}
        loader = loader_of(rows, 3, epochs=2, remainder=remainder, **options)
        batches = list(loader)
        assert batches
        assert list(loader) == []
        assert loader.epoch <= 2
        packed = Packing(mode=packing, seq_len=24)
        steps = (Step("batch_map", join, 4),)
        reference = reference_of(rows, SIZES, steps, packed, lanes=3, epochs=2)
        count = [sum(1 for _ in reference.rows(lane)) for lane in range(3)]
        assert len(batches) == (max(count) if remainder == "pad" else min(count))
        if remainder == "pad":
            given = sum(
                sum(bool(parts) for parts in batch.sources()) if packing else len(batch["tokens"]) for batch in batches
            )
            assert given == sum(count)


def test_half_used_iterators_leave_no_threads() -> None:
    others = set(threading.enumerate())
    data = made_up([50] * 10).map(begin).pack(20)
    loader = hr.DataLoader(data, global_batch_size=4, num_workers=2)
    next(iter(loader))
    before = threading.active_count()
    for _ in range(30):
        next(iter(loader))
    assert threading.active_count() <= before + 1
    assert loader.step == 31
    del loader
    gc.collect()
    end = time.monotonic() + 5
    while set(threading.enumerate()) - others and time.monotonic() < end:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - others


def test_a_slow_batch_is_a_timeout_and_comes_later() -> None:
    gate = threading.Event()

    def slow(sample: dict[str, Any]) -> dict[str, Any]:
        gate.wait(20)
        return begin(sample)

    loader = hr.DataLoader(made_up(SIZES).map(slow).pack(8), global_batch_size=2, num_workers=1, timeout=0.1)
    batches = iter(loader)
    with pytest.raises(TimeoutError, match=r"no result after 0.1 s"):
        next(batches)
    gate.set()
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            assert next(batches).step == 0
            return
        except TimeoutError:
            continue
    raise AssertionError("the batch never came")


def test_a_forked_child_is_refused() -> None:
    loader = hr.DataLoader(made_up(SIZES).map(begin).pack(8), global_batch_size=2, num_workers=1)
    next(iter(loader))
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            next(iter(loader))
            os.write(writing, b"it went on")
        except RuntimeError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"started in another process" in os.read(reading, 1000)
    os.close(reading)
    os.close(writing)


def test_an_older_iterator_raises() -> None:
    loader = loader_of(made_up(SIZES).map(begin).pack(8), 2)
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert next(second).step == 1
    with pytest.raises(RuntimeError, match="not the loader's latest"):
        next(first)


def test_provenance_is_told_after_the_loader_is_gone() -> None:
    batch = next(iter(loader_of(made_up(SIZES).map(begin).pack(8), 2)))
    gc.collect()
    assert all(part.tokens for row in batch.sources() for part in row)
    assert batch.epoch == 0
    assert batch.state["step"] == 1


def test_large_items_are_made_a_few_at_a_time() -> None:
    held = {"now": 0, "most": 0}

    class Large:
        def __init__(self) -> None:
            self.tokens = np.zeros(250_000, dtype=np.int32)
            held["now"] += 1
            held["most"] = max(held["most"], held["now"])

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return self.tokens

        def __del__(self) -> None:
            held["now"] -= 1

    data = made_up([100] * 10).map(lambda sample: {"tokens": Large()}).pack(100_000)
    loader = hr.DataLoader(data, global_batch_size=2, num_workers=2, memory="8MiB", prefetch_factor=1)
    for _ in islice(iter(loader), 40):
        pass
    # The first tasks know nothing of them yet: 16 in each of two threads, and none after that.
    assert held["most"] <= 2 * 16
    assert loader.stats()["items"] < 16 * 5 + 40

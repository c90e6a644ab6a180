"""What happens to a run's position when things go wrong around it: each found by review, none may come back."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from datasets import python


def dataset(folder: Path, documents: int = 400, row_group_size: int = 20) -> hr.PackedDataset:
    """Documents of 50 tokens each, all different, in rows of 64."""
    lists = pa.array([list(range(at * 50, at * 50 + 50)) for at in range(documents)], pa.list_(pa.int32()))
    pq.write_table(pa.table({"tokens": lists}), folder / "a.parquet", row_group_size=row_group_size)
    return hr.open(folder).pack(64)


def stream(loader: hr.DataLoader) -> list[Any]:
    return [batch["tokens"].copy() for batch in loader]


def test_a_change_of_ranks_keeps_the_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = hr.DataLoader(dataset(tmp_path), global_batch_size=4)
    loader.seek(7)
    loader.skip(range(10, 12))
    loader.set_global_batch_size(8)
    before = loader.state_dict()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert (loader.step, loader.rank, loader.world_size) == (7, 1, 2)
    assert loader.state_dict() == before
    assert next(iter(loader)).step == 7
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert (loader.step, loader.world_size) == (8, 1)


def test_ranks_that_come_up_before_the_first_step_count_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = hr.DataLoader(dataset(tmp_path), batch_size=4)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    late = hr.DataLoader(dataset(tmp_path), batch_size=4)
    assert early.state_dict() == late.state_dict()
    assert early.global_batch_size == 8


def test_an_iterator_ends_when_ranks_change_under_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = hr.DataLoader(dataset(tmp_path), global_batch_size=4)
    batches = iter(loader)
    next(batches)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert loader.step == 1
    with pytest.raises(RuntimeError, match="not the loader's latest"):
        next(batches)


INTERRUPTS = """
import signal, sys
import numpy as np
import headrace as hr

signal.signal(signal.SIGALRM, signal.default_int_handler)
packed = hr.open(sys.argv[1]).pack(64)
whole = [batch["tokens"].copy() for batch in hr.DataLoader(packed, global_batch_size=4)]
loader = hr.DataLoader(packed, global_batch_size=4)
batches, delays, interrupts, step = iter(loader), np.geomspace(1e-5, 3e-3, 60).tolist(), 0, 0
while step < len(whole):
    try:
        signal.setitimer(signal.ITIMER_REAL, delays.pop() if delays else 0)
        batch = next(batches)
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert batch.step == step and np.array_equal(batch["tokens"], whole[step]), step
    except KeyboardInterrupt:
        interrupts += 1
        # A signal on the way back from next() comes after the step was given.
        assert loader.step in (step, step + 1), (loader.step, step)
    step = loader.step
assert interrupts > 0
print("ok", interrupts)
"""


def test_interrupts_lose_nothing(tmp_path: Path) -> None:
    dataset(tmp_path)
    assert python(INTERRUPTS, str(tmp_path)).startswith("ok")


def test_an_iterator_goes_on_after_an_error_once_its_cause_is_gone(tmp_path: Path) -> None:
    packed = dataset(tmp_path)
    whole = stream(hr.DataLoader(packed, global_batch_size=4))
    path, away = tmp_path / "a.parquet", tmp_path / "_away"
    path.rename(away)
    batches = iter(hr.DataLoader(packed, global_batch_size=4))
    for _ in range(2):
        with pytest.raises(hr.MissingError, match=r"a\.parquet"):
            next(batches)
    away.rename(path)
    assert all(np.array_equal(batch["tokens"], other) for batch, other in zip(batches, whole, strict=True))


def test_lengths_and_epochs_count_what_skip_leaves(tmp_path: Path) -> None:
    loader = hr.DataLoader(dataset(tmp_path), global_batch_size=4)
    steps = len(loader)
    loader.skip(range(steps))
    assert (loader.step, loader.epoch) == (steps, 1)
    assert len(loader) == len(list(loader)) > 0


@pytest.mark.parametrize("step", [2**57, 2**60, 2**63 - 1])
def test_steps_beyond_counting_are_refused(tmp_path: Path, step: int) -> None:
    loader = hr.DataLoader(dataset(tmp_path), global_batch_size=4)
    with pytest.raises(ValueError, match="2\\^61"):
        loader.seek(step)
    with pytest.raises(ValueError, match="2\\^61"):
        loader.sources(step)
    assert loader.step == 0


def test_runs_beyond_counting_are_refused(tmp_path: Path) -> None:
    lists = pa.array([list(range(1000))] * 1000, pa.list_(pa.int32()))
    pq.write_table(pa.table({"tokens": lists}), tmp_path / "a.parquet")
    packed = hr.open(tmp_path).pack(64)
    assert hr.DataLoader(packed, global_batch_size=4, epochs=10**6).stats()["steps"] > 10**9
    with pytest.raises(ValueError, match=r"too little data"):
        hr.DataLoader(hr.open(tmp_path).pack(2**31 - 1), global_batch_size=2**31)


def test_a_count_that_no_pages_can_hold_is_refused(tmp_path: Path) -> None:
    """A footer that claims 2**62 values once led out of the memory that was taken for them."""
    lists = pa.array([[7] * 5] * 100, pa.list_(pa.int32()))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"tokens": lists}), path, use_dictionary=False, write_statistics=False)
    data = path.read_bytes()
    # Thrift compact: a field of 64 bits holds 500 as the zigzag varint e8 07.
    place = data.index(b"\xe8\x07", len(data) - 8 - int.from_bytes(data[-8:-4], "little"))
    huge = bytearray()
    number = 2 * (2**62 + 100)
    while number:
        huge.append((number & 0x7F) | (0x80 if number > 0x7F else 0))
        number >>= 7
    footer = int.from_bytes(data[-8:-4], "little") + len(huge) - 2
    path.write_bytes(data[:place] + bytes(huge) + data[place + 2 : -8] + footer.to_bytes(4, "little") + b"PAR1")
    with pytest.raises(hr.DataError, match=r"a\.parquet"):
        next(iter(hr.DataLoader(hr.open(tmp_path).pack(8), global_batch_size=1)))


def test_large_pages_are_read_or_refused_whatever_the_threads(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 2**31, 1 << 20, dtype=np.int32)
    lists = pa.array([tokens.tolist()], pa.list_(pa.int32()))
    for number in range(4):
        pq.write_table(
            pa.table({"tokens": lists}),
            tmp_path / f"{number}.parquet",
            use_dictionary=False,
            data_page_size=1 << 30,
            compression="none",
        )
    packed = hr.open(tmp_path).pack(1024)
    for memory, enough in (("16MiB", False), ("128MiB", True)):
        for workers in (1, 4):
            loader = hr.DataLoader(packed, global_batch_size=8, num_workers=workers, memory=memory, epochs=1)
            if enough:
                assert len(list(loader)) == 512
            else:
                with pytest.raises(hr.BudgetError, match=r"memory=16777216 .*needs (\d+)") as refused:
                    list(loader)
    needed = int(str(refused.value).split(" needs ")[1].split()[0])
    assert len(list(hr.DataLoader(packed, global_batch_size=8, num_workers=4, memory=needed, epochs=1))) == 512


def test_the_budget_error_names_an_amount_that_is_enough(tmp_path: Path) -> None:
    packed = dataset(tmp_path)
    with pytest.raises(hr.BudgetError) as refused:
        next(iter(hr.DataLoader(packed, global_batch_size=4, memory=1000)))
    needed = int(str(refused.value).split(" needs ")[1].split()[0])
    assert len(list(hr.DataLoader(packed, global_batch_size=4, memory=needed))) > 0
    with pytest.raises(hr.BudgetError):
        next(iter(hr.DataLoader(packed, global_batch_size=4, memory=needed - 1)))


def test_one_thread_at_a_time(tmp_path: Path) -> None:
    packed = dataset(tmp_path)
    whole = stream(hr.DataLoader(packed, global_batch_size=4))
    batches = iter(hr.DataLoader(packed, global_batch_size=4))
    got: list[tuple[int, Any]] = []
    refusals: set[str] = set()

    def take() -> None:
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except RuntimeError as error:
                refusals.add(str(error))
                continue
            got.append((batch.step, batch["tokens"].copy()))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("another thread" in refusal for refusal in refusals)
    assert sorted(step for step, _ in got) == list(range(len(whole)))
    assert all(np.array_equal(tokens, whole[step]) for step, tokens in got)

"""headrace with PyTorch, JAX and pyarrow: one memory, no copy; and under torch.distributed, killed and resumed."""

import gc
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.distributed
import torch.utils.data
from torchdata.stateful_dataloader import StatefulDataLoader

import headrace as hr
from datasets import TESTS, Corpus, CorpusWriter, Record, drain, equal_documents, merged, python, seeded, stream, take
from headrace.torch import DataLoader as DeviceLoader
from headrace.torch import IterableDataset

PACKING: dict[str, Any] = {"seq_len": 8, "eos_id": -1, "boundaries": True}
RUN: dict[str, Any] = {"seed": 2, "lanes": 4, "window": 4, "global_batch_size": 8, "epochs": 2}


@pytest.fixture(scope="module")
def corpus(write: CorpusWriter) -> Corpus:
    return write(seeded(41, files=4, groups=5, documents=16, longest=24))


@pytest.fixture(scope="module")
def unbroken(corpus: Corpus) -> list[Record]:
    return drain(hr.DataLoader(corpus.open(**PACKING), **RUN))


def torch_loader(corpus: Corpus, **arguments: Any) -> tuple[IterableDataset, torch.utils.data.DataLoader[Any]]:
    dataset = IterableDataset(corpus.open(**PACKING), **{**RUN, **arguments})
    return dataset, torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=0)


def test_masks_of_excluded_documents_are_tensors(corpus: Corpus) -> None:
    run = {**RUN, "epochs": None}
    state = hr.DataLoader(corpus.open(**PACKING), **run).state_dict()
    names = [part.id for row in hr.DataLoader(corpus.open(**PACKING), **run).sources(0) for part in row[1:]]
    own = hr.DataLoader(corpus.open(**PACKING), **run, exclude=names)
    dataset, loader = torch_loader(corpus, epochs=None, exclude=names)
    device = DeviceLoader(corpus.open(**PACKING), **run, exclude=names, device="cpu")
    for one in (own, dataset, device):
        with pytest.warns(UserWarning, match="masked from step 0 on"):
            one.load_state_dict(state, strict=False)
    for ours, *others in islice(zip(own, loader, device, strict=True), 3):
        for theirs in others:
            assert torch.equal(theirs["loss_mask"], torch.from_numpy(ours["loss_mask"]))
            assert torch.equal(theirs["tokens"], torch.from_numpy(ours["tokens"]))
        assert 0 in ours["loss_mask"] or ours.step
    device.close()


FROM_TORCHDATA = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
"""Its StatefulDataLoader calls what a newer PyTorch has deprecated."""


def tokens(records: list[Record]) -> list[list[list[int]]]:
    return [list(one.rows.values()) for one in records]


# PyTorch's loaders


def test_pytorch_gives_the_same_batches(corpus: Corpus) -> None:
    dataset, loader = torch_loader(corpus)
    own = hr.DataLoader(corpus.open(**PACKING), **RUN)
    for epoch in range(2):
        assert len(loader) == len(dataset) == len(own)
        pairs = list(zip(loader, own, strict=True))
        assert len(pairs) > 10
        for theirs, ours in pairs:
            assert list(theirs) == list(ours)
            assert ours.epoch == epoch
            for name, value in ours.items():
                if isinstance(value, np.ndarray):
                    assert torch.equal(theirs[name], torch.from_numpy(value))
                    assert theirs[name].dtype == torch.int32
                else:
                    assert theirs[name] == value
    assert list(loader) == []


def test_pytorch_goes_on_from_a_state(corpus: Corpus, unbroken: list[Record]) -> None:
    for cut in (0, 1, 7, len(unbroken) // 2, len(unbroken) - 1, len(unbroken)):
        dataset, loader = torch_loader(corpus)
        head: list[Any] = []
        while len(head) < cut:
            head += [batch["tokens"].tolist() for batch in islice(loader, cut - len(head))]
        state = json.loads(json.dumps(dataset.state_dict()))
        assert state["step"] == cut
        again, rest = torch_loader(corpus)
        again.load_state_dict(state)
        assert again.state_dict() == state
        tail = [batch["tokens"].tolist() for _ in range(2) for batch in rest]
        assert head + tail == tokens(unbroken)


class Watched:
    """A loader, and where the tokens of its batches lie."""

    def __init__(self, loader: hr.DataLoader) -> None:
        self.loader = loader
        self.places: list[int] = []

    def __iter__(self) -> Iterator[hr.Batch]:
        for batch in self.loader:
            self.places.append(batch["tokens"].ctypes.data)
            yield batch


def test_tensors_share_memory_with_the_batch(corpus: Corpus) -> None:
    dataset, loader = torch_loader(corpus)
    watched = Watched(dataset.loader)
    dataset.loader = watched  # type: ignore[assignment]
    assert [batch["tokens"].data_ptr() for batch in loader] == watched.places
    assert len(watched.places) > 10


WORKERS = """
import json, sys
import torch.utils.data
import headrace as hr
from headrace.torch import IterableDataset

folder, packing, run, method = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
dataset = IterableDataset(hr.open(folder).pack(**packing), **run)
loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=method)
try:
    next(iter(loader))
except Exception as refusal:
    print(type(refusal).__name__, refusal)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_worker_processes_are_refused_with_the_reason(corpus: Corpus, method: str) -> None:
    """However they are started: Python 3.14 changed the default."""
    out = python(WORKERS, str(corpus.folder), json.dumps(PACKING), json.dumps(RUN), method)
    assert "each worker process would begin the whole run anew" in out
    assert "num_workers=0" in out


@FROM_TORCHDATA
@pytest.mark.parametrize("cut", [0, 1, 2, 9])
def test_a_stateful_dataloader_saves_and_resumes_exactly(corpus: Corpus, unbroken: list[Record], cut: int) -> None:
    def stateful() -> StatefulDataLoader[Any]:
        return StatefulDataLoader(IterableDataset(corpus.open(**PACKING), **RUN), batch_size=None, num_workers=0)

    first_epoch = [one for one in unbroken if one.epoch == 0]
    loader = stateful()
    iterator = iter(loader)
    head = [batch["tokens"].tolist() for batch in islice(iterator, cut)]
    state = loader.state_dict()
    again = stateful()
    again.load_state_dict(state)
    tail = [batch["tokens"].tolist() for batch in again]
    assert head + tail == tokens(first_epoch)
    assert [batch["tokens"].tolist() for batch in again] == tokens([one for one in unbroken if one.epoch == 1])


@FROM_TORCHDATA
def test_a_stateful_dataloader_resumes_again_and_again(corpus: Corpus, unbroken: list[Record]) -> None:
    """Over the epoch's end too, where torchdata asks for the state before it makes a new iterator."""
    state: dict[str, Any] | None = None
    given: list[Any] = []
    for steps in (3, 4, 1, 2, 100, 3, 4, 100):
        loader: StatefulDataLoader[Any] = StatefulDataLoader(
            IterableDataset(corpus.open(**PACKING), **RUN), batch_size=None, num_workers=0
        )
        if state is not None:
            loader.load_state_dict(state)
        given += [batch["tokens"].tolist() for batch in islice(loader, steps)]
        state = loader.state_dict()
    assert given == tokens(unbroken)


# One memory


@contextmanager
def one_batch(corpus: Corpus, **packing: Any) -> Iterator[hr.Batch]:
    yield next(iter(hr.DataLoader(corpus.open(**PACKING | packing), **RUN)))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_arrays_go_to_pytorch_without_a_copy(corpus: Corpus, dtype: str) -> None:
    with one_batch(corpus, dtype=dtype) as batch:
        arrays = {name: value for name, value in batch.items() if isinstance(value, np.ndarray)}
        assert sorted(arrays) == ["cu_seqlens", "document_ids", "position_ids", "tokens"]
        for name, array in arrays.items():
            for tensor in (torch.from_dlpack(array), torch.from_numpy(array), torch.asarray(array)):
                assert tensor.data_ptr() == array.ctypes.data, name
                assert tensor.shape == array.shape
        assert batch["tokens"].dtype == dtype


def test_arrays_go_to_jax_without_a_copy(corpus: Corpus) -> None:
    with one_batch(corpus) as batch:
        array = batch["tokens"]
        taken = jax.dlpack.from_dlpack(array)
        assert taken.unsafe_buffer_pointer() == array.ctypes.data
        assert np.array_equal(np.asarray(taken), array)


def test_a_batch_goes_to_pyarrow_without_a_copy(corpus: Corpus) -> None:
    with one_batch(corpus) as batch:
        table = pa.record_batch(batch)
        table.validate(full=True)
        assert sorted(table.schema.names) == ["document_ids", "position_ids", "tokens"], "one entry a row"
        for name in table.schema.names:
            column = table.column(name)
            assert column.to_pylist() == batch[name].tolist()
            values = column.flatten()
            address = values.buffers()[1].address + values.offset * values.type.bit_width // 8
            assert address == batch[name].ctypes.data, name


def test_arrow_keeps_the_memory_alive(corpus: Corpus) -> None:
    loader = hr.DataLoader(corpus.open(**PACKING), **RUN)
    kept = [(pa.record_batch(batch).column("tokens"), batch["tokens"].tolist()) for batch in loader]
    gc.collect()
    list(loader)
    assert [column.to_pylist() for column, _ in kept] == [rows for _, rows in kept]


def test_arrays_are_whole_aligned_and_may_be_written_to(corpus: Corpus, unbroken: list[Record]) -> None:
    """Also to the last byte, and without a trace in any other batch."""
    given = []
    for batch in hr.DataLoader(corpus.open(**PACKING), **RUN):
        given.append(list(batch["tokens"].tolist()))
        for value in batch.values():
            if isinstance(value, np.ndarray):
                assert value.flags.c_contiguous
                assert value.flags.writeable
                assert value.ctypes.data % 64 == 0, "what JAX takes without a copy"
                value[...] = -99
    assert given == tokens([one for one in unbroken if one.epoch == 0])


def test_the_same_array_each_time_it_is_asked_for(corpus: Corpus) -> None:
    with one_batch(corpus) as batch:
        batch["tokens"][0, 0] = 4242
        assert batch["tokens"][0, 0] == 4242
        with pytest.raises(KeyError, match="holds tokens, "):
            batch["token"]


def digest(value: Any) -> str:
    return sha256(np.ascontiguousarray(np.asarray(value)).tobytes()).hexdigest()


def test_memory_is_not_used_again_while_something_refers_to_it(corpus: Corpus) -> None:
    """Whatever refers to it: the batch, an array, a view of a view, a tensor, Arrow, a memoryview."""
    loader = hr.DataLoader(corpus.open(**PACKING), **RUN | {"epochs": None}, prefetch_factor=1)
    keep = [
        lambda batch: batch,
        lambda batch: batch["tokens"],
        lambda batch: batch["tokens"][1:, ::2][::-1],
        lambda batch: batch["position_ids"].T,
        lambda batch: torch.from_dlpack(batch["tokens"])[2],
        lambda batch: torch.from_numpy(batch["document_ids"]).view(-1),
        lambda batch: jax.dlpack.from_dlpack(batch["tokens"]),
        lambda batch: pa.record_batch(batch).column("tokens").flatten(),
        lambda batch: memoryview(batch["tokens"]).cast("B").cast("i"),
        lambda batch: batch["cu_seqlens"][3:4],
    ]
    kept: list[tuple[Any, str]] = []

    def seen(value: Any) -> str:
        return digest(value["tokens"] if isinstance(value, hr.Batch) else value)

    for _ in range(4):
        for number, batch in enumerate(loader):
            value = keep[number % len(keep)](batch)
            kept.append((value, seen(value)))
            del batch, value
            # Some go, so that there is memory to be used again.
            if number % 7 == 6:
                del kept[len(kept) // 2]
    assert len(kept) > 80
    assert [seen(value) for value, _ in kept] == [wanted for _, wanted in kept]


def resident() -> int:
    """Bytes of anonymous memory of this process."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon"))


def test_memory_is_flat_where_batches_are_dropped(write: CorpusWriter) -> None:
    """And is used again: 200 batches of 1 MiB lie in a few places."""
    dataset = write(equal_documents(files=2, groups=4, documents=64, length=512)).open(seq_len=512)
    loader = hr.DataLoader(dataset, 512, lanes=4, num_workers=2, memory="64MiB")
    places, before, number = set(), 0, 0
    for _ in range(200):  # epochs of one batch
        for batch in loader:
            number += 1
            places.add(batch["tokens"].ctypes.data)
            assert batch["tokens"].nbytes == 2**20
        if number == 20:
            before = resident()
    assert number == 200
    assert len(places) <= 8
    assert resident() - before < 16 * 2**20


# Ranks


def test_nothing_given_is_one_rank(corpus: Corpus) -> None:
    loader = hr.DataLoader(corpus.open(**PACKING), **RUN)
    assert (loader.rank, loader.world_size) == (0, 1)


def test_ranks_come_from_the_environment(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ValueError, match="RANK and not WORLD_SIZE"):
        hr.DataLoader(corpus.open(**PACKING), **RUN)
    monkeypatch.setenv("WORLD_SIZE", "4")
    loader = hr.DataLoader(corpus.open(**PACKING), **RUN)
    assert (loader.rank, loader.world_size, loader.batch_size) == (1, 4, 2)
    loader = hr.DataLoader(corpus.open(**PACKING), **RUN, rank=2, world_size=8)
    assert (loader.rank, loader.world_size) == (2, 8), "arguments come first"
    for name, wrong in (("RANK", "4"), ("RANK", "one"), ("RANK", "-1"), ("WORLD_SIZE", ""), ("WORLD_SIZE", "0")):
        with monkeypatch.context() as patch:
            patch.setenv(name, wrong)
            with pytest.raises(ValueError, match=r"(?i)rank|world_size"):
                hr.DataLoader(corpus.open(**PACKING), **RUN)


def test_importing_headrace_imports_no_framework() -> None:
    out = python("import sys, headrace; print(*sys.modules)").split()
    assert "headrace" in out
    assert not {"torch", "jax", "pyarrow", "torchdata"} & set(out)


GROUP = """
import json, os, sys
import torch.distributed as dist
import headrace as hr

folder, packing, run, store = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
os.environ |= {"RANK": "2", "WORLD_SIZE": "4"}
dataset = hr.open(folder).pack(**packing)
early = hr.DataLoader(dataset, **run)
pinned = hr.DataLoader(dataset, **run, rank=3, world_size=8)
batch_size = run | {"global_batch_size": None, "batch_size": 8}
per_rank = hr.DataLoader(dataset, **batch_size)
assert per_rank.global_batch_size == 32
seen = {"before": [early.rank, early.world_size], "initialised before": dist.is_initialized()}
dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
seen["after"] = [early.rank, early.world_size]
seen["late"] = [hr.DataLoader(dataset, **run).rank, hr.DataLoader(dataset, **run).world_size]
seen["pinned"] = [pinned.rank, pinned.world_size]
seen["rows"] = [batch.rows.tolist() for batch in early][:2]
seen["global"] = per_rank.global_batch_size
dist.destroy_process_group()
print(json.dumps(seen))
"""


def test_a_loader_made_before_the_process_group_uses_it_afterwards(corpus: Corpus, tmp_path: Path) -> None:
    """B035: a loader that made the process group itself hung the trainer's own call. The group comes before RANK."""
    seen = json.loads(
        python(GROUP, str(corpus.folder), json.dumps(PACKING), json.dumps(RUN), str(tmp_path / "rendezvous"))
    )
    assert seen == {
        "before": [2, 4],
        "initialised before": False,
        "after": [0, 1],
        "late": [0, 1],
        "pinned": [3, 8],
        "rows": [list(range(8)), list(range(8, 16))],
        "global": 8,
    }


# Real processes

RANK = """
import json, os, sys
from pathlib import Path
import torch.distributed as dist
import headrace as hr

folder, packing, run, out = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]), Path(sys.argv[4])
dist.init_process_group("gloo")
rank = dist.get_rank()
loader = hr.DataLoader(hr.open(folder).pack(**packing), **run)
assert (loader.rank, loader.world_size) == (rank, dist.get_world_size())
checkpoint = Path(sys.argv[5])
if checkpoint.exists():
    loader.load_state_dict(hr.State.from_bytes(checkpoint.read_bytes()))
lines = open(out / f"rank{rank}.jsonl", "w")
while loader.step < loader.stats()["steps"]:
    for batch in loader:
        rows = dict(zip(batch.rows.tolist(), batch["tokens"].tolist()))
        print(json.dumps([batch.step, batch.epoch, list(rows.items())]), file=lines, flush=True)
        dist.barrier()
        if rank == 0 and batch.step % 3 == 2:
            fresh = checkpoint.with_suffix(".new")
            fresh.write_bytes(hr.State.to_bytes(batch.state))
            fresh.replace(checkpoint)
        print(batch.step, flush=True)
dist.destroy_process_group()
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_ranks(world: int, arguments: list[str], out: Path, checkpoint: Path, kill_after: int | None) -> None:
    """Starts ranks; kills all once the first says that it has done a step, or else waits for their end."""
    out.mkdir()
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    environment |= {"WORLD_SIZE": str(world), "PYTHONPATH": str(TESTS), "GLOO_SOCKET_IFNAME": "lo"}
    ranks = []
    try:
        for rank in range(world):
            command = [sys.executable, "-c", RANK, *arguments, str(out), str(checkpoint)]
            errors = (out / f"stderr{rank}").open("wb")
            with errors:
                ranks.append(
                    subprocess.Popen(
                        command,
                        env={**environment, "RANK": str(rank)},
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                        stderr=errors,
                        text=True,
                    )
                )
        stdout = ranks[0].stdout
        assert stdout is not None
        for line in stdout:
            if kill_after is not None and int(line) >= kill_after:
                break
        else:
            assert kill_after is None, f"the run ended before step {kill_after}: {(out / 'stderr0').read_text()}"
        if kill_after is None:
            for rank, process in enumerate(ranks):
                assert process.wait(60) == 0, (out / f"stderr{rank}").read_text()
    finally:
        for process in ranks:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
        for process in ranks:
            process.wait()
            if process.stdout:
                process.stdout.close()


def lines_of(out: Path, world: int, start: int, stop: int | None) -> list[Record]:
    """The global batches that the ranks wrote down before the checkpoint `stop` that the next ones began with."""
    ranks = []
    for rank in range(world):
        # A rank may have been killed while it wrote its last line.
        lines = (out / f"rank{rank}.jsonl").read_text().split("\n")[:-1]
        records = [Record(step, epoch, dict(map(tuple, rows))) for step, epoch, rows in map(json.loads, lines)]
        assert records[0].step == start, "it begins where the checkpoint says"
        ranks.append([one for one in records if stop is None or one.step < stop])
    return merged(ranks)


@pytest.mark.slow
def test_ranks_that_are_killed_go_on_with_fewer(corpus: Corpus, unbroken: list[Record], tmp_path: Path) -> None:
    """4 processes, killed at a random step; then 2, killed; then 3, on other batches, to the end."""
    random = Random(os.urandom(8))
    first = random.randint(3, len(unbroken) // 3)
    second = random.randint(first + 3, 2 * len(unbroken) // 3)
    print(f"kills at or after steps {first} and {second} of {len(unbroken)}")
    checkpoint = tmp_path / "checkpoint"
    given: list[Record] = []
    start = 0
    for world, batch, kill_after in ((4, 8, first), (2, 8, second), (3, 9, None)):
        run = RUN if start == 0 else {"global_batch_size": batch, "epochs": 2}
        out = tmp_path / f"{world} ranks"
        run_ranks(world, [str(corpus.folder), json.dumps(PACKING), json.dumps(run)], out, checkpoint, kill_after)
        stop = None
        if kill_after is not None:
            stop = hr.State.from_bytes(checkpoint.read_bytes())["step"]
            assert start < stop
        given += lines_of(out, world, start, stop)
        start = stop or 0
    every = stream(take(hr.DataLoader(corpus.open(**PACKING), **RUN | {"global_batch_size": 1}), 10**6))
    rows = stream(given)
    assert list(rows.items()) == list(every.items())[: len(rows)]
    assert len(every) - len(rows) < 9


def test_samples_come_as_tensors_too(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f'{{"id": {number}, "name": "n"}}\n' for number in range(8)))
    dataset = IterableDataset(hr.open(tmp_path), batch_size=4, shuffle=False)
    batches = list(torch.utils.data.DataLoader(dataset, batch_size=None))
    assert [batch["id"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert all(isinstance(batch["id"], torch.Tensor) for batch in batches)
    assert batches[0]["name"] == ["n"] * 4
    pairs = IterableDataset([(number, number) for number in range(4)], batch_size=2)
    assert [[part.tolist() for part in batch] for batch in pairs] == [[[0, 1], [0, 1]], [[2, 3], [2, 3]]]


def test_an_iterable_dataset_takes_what_a_loader_takes(tmp_path: Path) -> None:
    ours, loaders = (dict(inspect.signature(kind).parameters) for kind in (IterableDataset, hr.DataLoader))
    assert {name: one.default for name, one in ours.items()} == {
        name: one.default
        for name, one in loaders.items()
        if name not in ("pin_memory", "multiprocessing_context", "persistent_workers", "pin_memory_device", "in_order")
    }
    (tmp_path / "a.jsonl").write_text("".join(f'{{"id": {number}}}\n' for number in range(9)))
    started: list[int] = []

    def odd(sample: dict[str, Any]) -> dict[str, Any]:
        return {"id": 1 // (sample["id"] % 4)} | sample

    dataset = IterableDataset(
        hr.open(tmp_path).map(odd),
        batch_size=2,
        shuffle=False,
        num_workers=1,
        drop_last=True,
        on_error="skip",
        worker_type="thread",
        items_in_parallel=2,
        worker_init_fn=started.append,
        collate_fn=lambda samples: {"ids": np.array([sample["id"] for sample in samples])},
    )
    batches = list(torch.utils.data.DataLoader(dataset, batch_size=None))
    assert [batch["ids"].tolist() for batch in batches] == [[1], [2, 3], [5], [6, 7]]
    assert started == [0]
    empty = IterableDataset(hr.open(tmp_path).take(1), global_batch_size=2, world_size=2, rank=0, allow_empty=True)
    assert list(empty) == [[]]
    sampled: Any = IterableDataset([10, 11, 12, 13], batch_size=2, sampler=[3, 0, 2])
    assert [batch.tolist() for batch in sampled] == [[13, 10], [12]]
    batched: Any = IterableDataset([10, 11, 12, 13], batch_sampler=[[1], [2, 0]])
    assert [batch.tolist() for batch in batched] == [[11], [12, 10]]
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 1, 2)]
    shuffled: list[Any] = [IterableDataset(range(20), batch_size=5, shuffle=True, generator=one) for one in generators]
    drawn = [[batch.tolist() for batch in dataset] for dataset in shuffled]
    assert drawn[0] == drawn[1] != drawn[2]

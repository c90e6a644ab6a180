"""Loaders that move batches to devices ahead of use: where they stand, and what CUDA is asked for."""

import gc
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace as hr
from datasets import CorpusWriter, seeded
from headrace.torch import DataLoader, IterableDataset, TensorBatch
from headrace.torch.transfer import Cuda, CudaTransfer


class Numbers(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"tokens": np.full(8, number), "name": str(number)}


@pytest.fixture(scope="module")
def datasets(write: CorpusWriter, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    corpus = write(seeded(1, files=3, groups=6, documents=20, longest=30))
    table = hr.open(corpus.folder)
    folder = tmp_path_factory.mktemp("lines")
    (folder / "a.jsonl").write_text("".join(json.dumps({"tokens": [number] * 8}) + "\n" for number in range(100)))
    lines = hr.open(folder)

    def arrays(sample: dict[str, Any]) -> dict[str, Any]:
        return {"tokens": np.array(sample["tokens"], np.int32)}

    return {
        "packed": table.pack(16),
        "samples": lines.map(arrays),
        "dynamic": lines.map(arrays).pack(16),
        "packed, short rows": table.pack(8),
        "dynamic, short rows": lines.map(arrays).pack(8),
        "map": Numbers(),
    }


KINDS = ["packed", "samples", "dynamic", "map"]
SETTINGS: dict[str, Any] = {"global_batch_size": 4, "rank": 0, "world_size": 1, "seed": 5}


def plain(dataset: Any, count: int, **settings: Any) -> list[list[Any]]:
    loader = hr.DataLoader(dataset, **SETTINGS, **settings)
    found = [batch["tokens"].tolist() for batch, _ in zip(loader, range(count), strict=False)]
    loader.close()
    return found


class Recorded(DataLoader):
    """A loader over another device, as far as the loader is concerned: what is sent stays on the CPU."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, device="meta", **settings)
        self._transfer = None
        self.sent = 0

    def _send(self, batch: Any) -> Any:
        self.sent += 1
        return super()._send(batch)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_the_loader_and_some_are_ahead(datasets: dict[str, Any], kind: str) -> None:
    wanted = plain(datasets[kind], 12)
    with Recorded(datasets[kind], **SETTINGS, ahead=3) as loader:
        batches = iter(loader)
        for number, rows in enumerate(wanted):
            batch = next(batches)
            assert batch["tokens"].tolist() == rows
            assert loader.step == number + 1
            assert loader.state_dict()["step"] == number + 1
            if kind != "map":
                assert isinstance(batch, TensorBatch)
                assert batch.state == loader.state_dict()
                assert len(batch.sources()) >= 4
        deadline = time.monotonic() + 30
        while loader.sent < len(wanted) + 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert loader.sent >= len(wanted) + 3
    assert loader.step == len(wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", [0, 1, 5])
def test_what_was_sent_ahead_is_taken_back(datasets: dict[str, Any], kind: str, given: int) -> None:
    wanted = plain(datasets[kind], 10)
    loader = Recorded(datasets[kind], **SETTINGS)
    batches = iter(loader)
    for number in range(given):
        assert next(batches)["tokens"].tolist() == wanted[number]
    state = loader.state_dict()
    assert state["step"] == given
    del batches
    gc.collect()
    if kind != "map":
        # Of PyTorch's kind of dataset the next iterator is for another epoch.
        assert [batch["tokens"].tolist() for batch, _ in zip(loader, wanted[given:], strict=False)] == wanted[given:]
    loader.close()
    other = Recorded(datasets[kind], **SETTINGS)
    other.load_state_dict(state)
    assert [batch["tokens"].tolist() for batch, _ in zip(other, wanted[given:], strict=False)] == wanted[given:]
    other.close()


def test_moving_elsewhere_begins_behind_what_was_given(datasets: dict[str, Any]) -> None:
    loader = Recorded(datasets["packed"], **SETTINGS)
    reference = hr.DataLoader(datasets["packed"], **SETTINGS)
    ours, theirs = iter(loader), iter(reference)
    for _ in range(3):
        assert next(ours)["tokens"].tolist() == next(theirs)["tokens"].tolist()
    for change in (lambda one: one.skip(range(4, 6)), lambda one: one.set_global_batch_size(8)):
        change(loader)
        change(reference)
        # The same iterators go on.
        for _ in range(2):
            one, other = next(ours), next(theirs)
            assert (one.step, one["tokens"].tolist()) == (other.step, other["tokens"].tolist())
    loader.seek(1)
    with pytest.raises(RuntimeError, match="not the loader's latest"):
        next(ours)
    assert next(iter(loader)).step == 1
    loader.close()


@pytest.mark.parametrize("kind", ["packed", "samples", "map"])
def test_each_iterator_that_is_used_up_is_an_epoch(datasets: dict[str, Any], kind: str) -> None:
    loader = Recorded(datasets[kind], **SETTINGS)
    for epoch in range(3):
        assert loader.epoch == epoch
        count = len(loader)
        assert sum(1 for _ in loader) == count
    assert loader.epoch == 3


class Broken(Numbers):
    def __getitem__(self, number: int) -> dict[str, Any]:
        if number == 42:
            raise KeyError("sample 42")
        return super().__getitem__(number)


def test_an_error_comes_at_its_batch_and_not_before() -> None:
    loader = Recorded(Broken(), **SETTINGS, shuffle=False)
    batches = iter(loader)
    assert [next(batches)["tokens"][0, 0].item() for _ in range(10)] == list(range(0, 40, 4))
    with pytest.raises(KeyError, match="sample 42"):
        next(batches)
    assert next(batches)["tokens"][0, 0].item() == 44


def test_threads_end_with_their_iterator(datasets: dict[str, Any]) -> None:
    loader = Recorded(datasets["packed"], **SETTINGS)
    batches = iter(loader)
    before = set(threading.enumerate())
    next(batches)
    (sender,) = [thread for thread in set(threading.enumerate()) - before if thread.name == "headrace-sender"]
    assert sender.is_alive()
    del batches
    gc.collect()
    sender.join(30)
    assert not sender.is_alive()
    assert loader.step == 1


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16",
                                   "float32", "float64", "bool", "complex64"])  # fmt: skip
@pytest.mark.parametrize("device", [None, "cpu", "meta"])
def test_tensors_of_every_type(dtype: str, device: str | None) -> None:
    data = [{"x": np.ones((2, 3), dtype), "text": "a"} for _ in range(4)]
    batch = next(iter(DataLoader(data, 4, device=device, rank=0, world_size=1)))
    assert batch["x"].device.type == (device or "cpu")
    assert batch["x"].dtype == torch.from_numpy(np.ones(1, dtype)).dtype
    assert batch["x"].shape == (4, 2, 3)
    assert batch["text"] == ["a"] * 4


def test_collate_fn_and_pinning_are_the_loaders(datasets: dict[str, Any]) -> None:
    def collate(samples: list[Any]) -> Any:
        return [torch.tensor([len(samples)]), {"first": samples[0]["tokens"]}]

    batch = next(iter(DataLoader(datasets["samples"], **SETTINGS, collate_fn=collate, pin_memory=True)))
    assert batch[0].tolist() == [4]
    assert isinstance(batch[1]["first"], torch.Tensor)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: examples/gpu_check.py tests it")
def test_a_device_that_is_not_there_is_refused(datasets: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match="'cuda': PyTorch finds no CUDA device"):
        DataLoader(datasets["packed"], **SETTINGS, device="cuda")
    with pytest.raises(RuntimeError, match="nonsense"):
        DataLoader(datasets["packed"], **SETTINGS, device="nonsense")


# What CUDA is asked for, by a device that copies only when it is waited for.


class Event:
    def __init__(self, device: "LateDevice", copies: int) -> None:
        self._device, self._copies = device, copies

    def query(self) -> bool:
        return self._device.made >= self._copies

    def synchronize(self) -> None:
        self._device.run(self._copies)


class LateDevice(Cuda):
    """Copies at the last moment that is allowed, so that memory that is written too early shows in what arrives."""

    def __init__(self) -> None:
        self.asked = self.made = self.new = 0
        self._waiting: deque[tuple[torch.Tensor, torch.Tensor]] = deque()

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        target = torch.full_like(tensor, -1)
        self._waiting.append((tensor, target))
        self.asked += 1
        return target

    def event(self) -> Event:
        return Event(self, self.asked)

    def run(self, copies: int) -> None:
        while self.made < copies:
            source, target = self._waiting.popleft()
            target.copy_(source)
            self.made += 1

    def wait(self, event: Event) -> None:
        event.synchronize()

    def used(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        self.new += 1
        return torch.empty_like(like)


@pytest.mark.parametrize("ahead", [1, 5, 30])
def test_pinned_memory_is_not_written_before_it_was_copied(ahead: int) -> None:
    device = LateDevice()
    transfer = CudaTransfer(device, pinned=True)
    sent: deque[Any] = deque()
    given = 0
    for number in range(200):
        sent.append(transfer.send({"x": torch.full((4,), number), "y": [torch.full((2,), -number)]}))
        if len(sent) > ahead:
            batch = transfer.receive(sent.popleft())
            assert batch["x"].tolist() == [given] * 4
            assert batch["y"][0].tolist() == [-given] * 2
            given += 1
    assert device.new <= 2 * 10
    assert given == 200 - ahead


def test_batches_of_many_shapes_do_not_gather_pinned_memory() -> None:
    device = LateDevice()
    transfer = CudaTransfer(device, pinned=True)
    for length in range(1, 500):
        batch = transfer.receive(transfer.send(torch.full((length,), length)))
        assert batch.tolist() == [length] * length
    assert len(transfer._ring._free) <= 64  # pyright: ignore


# JAX

JAX = """
import json, sys
import numpy as np
import jax
root, processes, process, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if processes > 1:
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
import headrace as hr
import headrace.jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
mesh = Mesh(np.array(jax.devices()), ("data",))
data = hr.open(root).pack(16, boundaries=True)
sharding = NamedSharding(mesh, PartitionSpec("data"))
loader = headrace.jax.DataLoader(data, global_batch_size=8, seed=5, sharding=sharding)
for batch, _ in zip(loader, range(4)):
    tokens = batch["tokens"]
    assert tokens.shape == (8, 16), tokens.shape
    assert len(tokens.sharding.device_set) == len(jax.devices()) == 8
    assert isinstance(batch["cu_seqlens"], np.ndarray)
    parts = {shard.index[0].start or 0: np.asarray(shard.data).tolist() for shard in tokens.addressable_shards}
    print(json.dumps([loader.step, batch.rows.tolist(), batch.state["step"], sorted(parts.items())]), flush=True)
if processes > 1:
    loader.close()
    jax.distributed.shutdown()
# Of one process the thread is at work when it ends.
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_global_arrays_of_jax_are_the_global_batch(write: CorpusWriter, processes: int) -> None:
    corpus = write(seeded(1, files=3, groups=6, documents=20, longest=30))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={8 // processes}",
        "JAX_PLATFORMS": "cpu",
    }
    for name in ("RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", JAX, str(corpus.folder), str(processes), str(process), port],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for process in range(processes)
    ]
    done = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == [0] * processes, [error for _, error in done]
    found = [[json.loads(line) for line in output.splitlines()] for output, _ in done]
    loader = hr.DataLoader(hr.open(corpus.folder).pack(16), global_batch_size=8, seed=5, rank=0, world_size=1)
    for number, batch in zip(range(4), loader, strict=False):
        parts: dict[int, list[Any]] = {}
        for lines in found:
            step, _, after, shards = lines[number]
            assert step == after == number + 1
            parts |= dict(shards)
        assert [row for _, rows in sorted(parts.items()) for row in rows] == batch["tokens"].tolist()
        assert sorted(row for lines in found for row in lines[number][1]) == batch.rows.tolist()


def test_importing_headrace_imports_neither(tmp_path: Path) -> None:
    code = "import sys, headrace; assert not {'torch', 'jax'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


@pytest.mark.parametrize("make", [hr.DataLoader, DataLoader, IterableDataset])
@pytest.mark.parametrize("kind", ["packed", "samples", "dynamic"])
def test_warnings_point_at_the_line_that_called(datasets: dict[str, Any], kind: str, make: Any) -> None:
    state = make(datasets[kind], **SETTINGS).state_dict()
    other = datasets[kind] if kind == "samples" else datasets[f"{kind}, short rows"]
    with pytest.warns(UserWarning, match="1 of 1 documents are not in the dataset") as warned:
        loader = make(other, **SETTINGS, exclude=["nothing.jsonl:0:0"])
    assert {warning.filename for warning in warned} == {__file__}
    with pytest.warns(UserWarning, match="masked from step 0 on|seq_len changes") as warned:
        loader.load_state_dict(state, strict=False)
    assert {warning.filename for warning in warned} == {__file__}
    assert len(warned) == (1 if kind == "samples" else 2)

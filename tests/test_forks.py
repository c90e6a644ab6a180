"""Forked children use datasets and drop what their parent gave them, whatever its other threads hold at that moment."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datasets import python

SCRIPT = """
import os, signal, sys, threading, warnings
from itertools import count
warnings.simplefilter("ignore")  # Python's own, of a fork beside threads: that is what is tried here.
import numpy as np
import headrace as hr
from headrace import _core

kind, place, forks = sys.argv[1], sys.argv[2], int(sys.argv[3])
if kind == "memory":
    file, gather = _core.OpenFile(place, os.path.getsize(place), "", keep_open=8), _core.Gather(keep=8)
else:
    data = hr.open(place)

def use(turn):
    if kind == "memory":
        # Of many sizes, so that memory is mapped anew again and again, which is done behind the lock.
        width = 8 * (1 + turn * 7 % 500)
        return gather.take([file], np.zeros(64, np.int64), np.arange(64, dtype=np.int64) * width, width)
    if kind == "packed":
        return next(iter(hr.DataLoader(data.pack(32), global_batch_size=8, num_workers=2)))["tokens"]
    return data[turn * 31 % len(data)]

def go_on(number):
    for turn in count(number):
        use(turn)

held, expected = [use(turn) for turn in range(3)], bytes(use(1)) if kind == "memory" else repr(use(1))
for number in range(6):
    threading.Thread(target=go_on, args=(number,), daemon=True).start()
for number in range(forks):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(20)  # It ends a child that waits in the core, too.
            held.clear()
            code = int((bytes(use(1)) if kind == "memory" else repr(use(1))) != expected)
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, f"child {number} ended with {status}"
print(forks, flush=True)
os._exit(0)
"""


def memory(folder: Path) -> Path:
    np.arange(1 << 18, dtype=np.int64).tofile(folder / "numbers.bin")
    return folder / "numbers.bin"


def parquet(folder: Path) -> Path:
    """Footers are read, and kept for a while."""
    numbers = np.random.default_rng(0)
    for file in range(3):
        documents = [numbers.integers(0, 100, length).astype(np.int32) for length in numbers.integers(1, 40, 400)]
        pq.write_table(pa.table({"tokens": documents}), folder / f"f{file}.parquet", row_group_size=50)
    return folder


def arrow(folder: Path) -> Path:
    """Dictionaries likewise."""
    for file in range(3):
        words = pa.array([str(number % 7) for number in range(1000)]).dictionary_encode()
        table = pa.table({"id": range(1000), "word": words})
        with pa.ipc.new_file(folder / f"{file}.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=50)
    return folder


@pytest.mark.parametrize(
    "kind, write, forks",
    [("memory", memory, 150), ("samples", parquet, 30), ("packed", parquet, 30), ("samples", arrow, 30)],
)
def test_no_child_waits_for_a_thread_of_its_parent_s(
    tmp_path: Path, kind: str, write: Callable[[Path], Path], forks: int
) -> None:
    assert python(SCRIPT, kind, str(write(tmp_path)), str(forks)).strip() == str(forks)

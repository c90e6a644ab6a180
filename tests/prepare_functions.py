"""What tests of preparing give to worker processes, which import it from here."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import headrace


def sample(number: int) -> dict[str, Any]:
    """A sample that every format holds, and gives back as it is."""
    return {
        "text": "ä" * (number % 4),
        "number": number - 50,
        "data": bytes([number % 256]) * (number % 3),
        "array": np.arange(number % 5 + 1, dtype=np.int16) * number,
    }


def several(number: int) -> Iterator[dict[str, Any]]:
    """No sample, one or more."""
    for part in range(number % 3):
        yield sample(number * 10 + part)


def expected(count: int) -> list[dict[str, Any]]:
    """What `several` makes of so many inputs."""
    return [made for number in range(count) for made in several(number)]


def tokens(number: int) -> Any:
    return np.arange(number + 1, dtype=np.uint16)


def huge(number: int) -> Iterator[dict[str, Any]]:
    """More than a block of samples for each input."""
    for part in range(40):
        yield {"input": number, "part": part, "data": bytes([part]) * 300_000}


def letters(text: str) -> list[int]:
    """A tokenizer."""
    return list(text.encode())


class Logged:
    """Makes samples slowly, and notes which inputs it was called for."""

    def __init__(self, log: Path, seconds: float) -> None:
        self.log, self.seconds = log, seconds

    def __call__(self, number: int) -> Iterator[dict[str, Any]]:
        time.sleep(self.seconds)
        yield from several(number)
        with self.log.open("a") as out:
            out.write(f"{number}\n")

    def calls(self) -> list[int]:
        return [int(line) for line in self.log.read_text().split()] if self.log.exists() else []


class KilledOnce:
    """Kills its own process at some inputs, the first time."""

    def __init__(self, folder: Path, at: set[int], *, always: bool = False) -> None:
        self.folder, self.at, self.always = folder, at, always

    def __call__(self, number: int) -> Iterator[dict[str, Any]]:
        yield from several(number)
        mark = self.folder / str(number)
        if number in self.at and (self.always or not mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def fails(number: int) -> Iterator[dict[str, Any]]:
    """Raises for some inputs, for one of them after a sample."""
    if number % 10 == 3:
        raise ValueError(f"no {number}")
    yield sample(number)
    if number == 14:
        raise KeyError("late")


def write_file(number: int, folder: str) -> None:
    Path(folder, "deep").mkdir()
    Path(folder, "deep", f"{number}.txt").write_text(str(number))


def write_same(number: int, folder: str) -> None:
    Path(folder, "same.txt").write_text(str(number))


def image(number: int) -> dict[str, Any]:
    pixels = np.full((8, 9, 3), number, np.uint8)
    return {"image": headrace.Image(pixels), "label": number}


def batch(numbers: list[int]) -> Iterator[dict[str, Any]]:
    """The samples of several inputs."""
    assert isinstance(numbers, list)
    for number in numbers:
        yield from several(number)


def table(rows: Any) -> Iterator[dict[str, Any]]:
    """A sample for each row of a part of a Parquet file, and how large that part is."""
    for row in rows.to_pylist():
        yield {**row, "rows": rows.num_rows}


def put(queue: Any, numbers: range, seconds: float, ends: bool = True) -> None:
    """A producer of a queue."""
    for number in numbers:
        time.sleep(seconds)
        queue.put(number)
    if ends:
        queue.put(None)


class Squares:
    """A map-style dataset, once a test made it one of PyTorch's."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, number: int) -> dict[str, Any]:
        if number >= 30:
            raise IndexError(number)
        return {"number": number, "process": os.getpid()}


def where(item: dict[str, Any]) -> dict[str, Any]:
    """Whether an item was read by the process that is called with it."""
    return {"number": item["number"], "here": item["process"] == os.getpid()}


class Timed:
    """Notes in which order inputs are begun."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __call__(self, number: int) -> dict[str, Any]:
        with self.log.open("a") as out:
            out.write(f"{number}\n")
        return sample(number)

    def order(self) -> list[int]:
        return [int(line) for line in self.log.read_text().split()]


@dataclass(frozen=True)
class Point:
    """A value of one's own."""

    x: int
    y: int


class PointSerializer:
    def can_serialize(self, value: Any) -> bool:
        return isinstance(value, Point)

    def serialize(self, value: Point) -> tuple[bytes, None]:
        return f"{value.x},{value.y}".encode(), None

    def deserialize(self, data: bytes) -> Point:
        return Point(*map(int, bytes(data).split(b",")))

    def setup(self, name: str) -> None:
        """What litdata calls; there is nothing to set up."""


def point(number: int) -> dict[str, Any]:
    return {"at": Point(number, -number), "label": number}


class Reversed:
    """An encryption of one's own, which hides nothing."""

    algorithm = "reversed"
    level = "sample"

    def encrypt(self, data: bytes) -> bytes:
        return b"!" + data[::-1]

    def decrypt(self, data: bytes) -> bytes:
        if not data.startswith(b"!"):
            raise ValueError("not reversed")
        return data[:0:-1]


def sound(number: int) -> dict[str, Any]:
    return {"sound": headrace.Audio(np.array([number], np.int16), sampling_rate=8000), "number": number}


# What they compare with, and programs that are killed


def files(folder: Path) -> dict[str, bytes]:
    """All files below a folder, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def ours(folder: Path) -> list[Any]:
    data = headrace.open(folder)
    return [plain(data[number]) for number in range(len(data))]


def plain(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in sample.items()}


def wanted(count: int) -> list[Any]:
    return [plain(sample) for sample in expected(count)]


def by_number(samples: list[Any]) -> list[Any]:
    return sorted(samples, key=lambda sample: sample["number"])


def environment() -> dict[str, str]:
    """For programs that use what is tested here, and the functions of these tests."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}


PROGRAM = """
import sys
from pathlib import Path
import headrace, prepare_functions
if __name__ == "__main__":
    folder, format, ordered, workers = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "1", int(sys.argv[4])
    headrace.optimize(
        prepare_functions.Logged(folder / "log", 0.01), range(90), folder / "data", format=format, chunk_size=7,
        num_workers=workers, keep_data_ordered=ordered, progress=False, verbose=False,
    )
"""


def started(folder: Path, format: str, *, ordered: bool, workers: int) -> "subprocess.Popen[bytes]":
    folder.mkdir(exist_ok=True)
    program = folder / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, program, folder, format, str(int(ordered)), str(workers)]
    return subprocess.Popen(command, env=environment(), start_new_session=True)

"""The show: load this machine's text, measure it, break the run, resume it on other ranks, compare.

    headrace demo [--folder demo-data] [--text FOLDER] [--seconds 3]

Every number that it prints was measured by the run that prints it. It exits with 1 if the broken run's rows are not
those of the unbroken one.
"""

# pyarrow has no type stubs, and nothing here is public:
# pyright: basic

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.demo.prepare import Prepared
from headrace.demo.worker import GLOBAL_BATCH, SEQ_LEN, Step, open_loader, read_steps, state_path, steps_file

if TYPE_CHECKING:
    from headrace import Batch

__all__ = ["main"]

DEADLINE = 300  # seconds that a process of the demonstration may take: it never hangs
BROKEN_RUN = 3.0  # seconds that the run to be broken would take, so that there is a middle to break it in


def main(argv: Sequence[str] = ()) -> None:
    """Run the demonstration.

    Args:
        argv: its arguments, without the program's name.

    Raises:
        SystemExit: with 1 if the broken and the unbroken run differ, or a step fails.
    """
    parser = argparse.ArgumentParser(prog="headrace demo", description="Load this machine's own text, and break it.")
    parser.add_argument("--folder", type=Path, default=Path("demo-data"), help="where the data goes (%(default)s)")
    parser.add_argument("--text", default=os.environ.get("DEMO_TEXT"), metavar="FOLDER", help="default: $DEMO_TEXT")
    parser.add_argument("--seconds", type=float, default=3.0, help="load whole passes for as long (%(default)s)")
    arguments = parser.parse_args(argv)

    heading("The text", "the standard library's sources and this machine's documentation" if not arguments.text else "")
    prepared = prepare(arguments.folder, arguments.text)
    data = arguments.folder / "tokens"
    table(
        ("documents", f"{prepared.documents:,}"),
        ("characters", f"{prepared.characters:,}"),
        ("tokens", f"{prepared.tokens:,}  (a BPE of {prepared.vocabulary:,} trained on them)"),
        ("Parquet", f"{prepared.files} files, {prepared.row_groups} row groups, {prepared.bytes / 1e6:.1f} MB zstd"),
    )

    heading("Loading", f"rows of {SEQ_LEN:,} tokens, {GLOBAL_BATCH} a batch, shuffled, one process")
    measured = load(data, prepared, arguments.seconds)
    table(
        ("rows", f"{measured.rows:,} in {measured.passes} pass{'es' if measured.passes > 1 else ''}"),
        ("speed", f"{measured.tokens / measured.seconds / 1e6:,.1f} Mtokens/s"),
        ("CPU", f"{measured.cpu_seconds / measured.tokens * 1e9:.2f} ns per token, all threads"),
        ("peak memory", f"{measured.peak_bytes / 2**20:,.0f} MiB, Python and NumPy included"),
        ("first batch", f"{measured.first_seconds * 1e3:,.0f} ms after hr.open()"),
    )

    heading("Killed and resumed", "two ranks, SIGKILL in mid-epoch, three ranks go on")
    equal = prove(data, prepared)

    heading("One row and where it came from")
    show_row(measured.batch, data, arguments.folder / "tokenizer.json", prepared.end_id)
    if not equal:
        sys.exit(1)


# 1. The data


def prepare(folder: Path, text: str | None) -> Prepared:
    """In a process of its own, so that training a tokenizer does not count in the memory that loading took."""
    command = [sys.executable, "-m", "headrace.demo.prepare", str(folder)]
    if text:
        command += ["--text", text]
    if subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode:
        sys.exit(1)
    return Prepared(**json.loads((folder / "manifest.json").read_text(encoding="utf-8")))


# 2. The speed


@dataclass(frozen=True, slots=True)
class Measured:
    """What loading took, and the first batch."""

    batch: Batch
    rows: int
    tokens: int
    passes: int
    seconds: float
    cpu_seconds: float
    first_seconds: float
    peak_bytes: int


def load(data: Path, prepared: Prepared, seconds: float) -> Measured:
    """Whole passes, as many as begin within `seconds`."""
    begin, cpu_begin = time.perf_counter(), time.process_time()
    first: tuple[Batch, float] | None = None
    rows = tokens = passes = 0
    next_line = 0.0
    with progress() as line:
        loader = open_loader(data, end_id=prepared.end_id, epochs=None)
        while True:
            for batch in loader:
                elapsed = time.perf_counter() - begin
                if first is None:
                    first = (batch, elapsed)
                array = batch["tokens"]
                rows += array.shape[0]
                tokens += array.size
                if elapsed >= next_line:
                    next_line = elapsed + 0.1
                    line(f"step {batch.step:,}  {tokens / 1e6:,.1f} Mtokens  {tokens / elapsed / 1e6:,.1f} Mtokens/s")
            passes += 1
            if time.perf_counter() - begin >= seconds:
                break
        elapsed, cpu = time.perf_counter() - begin, time.process_time() - cpu_begin
        assert first is not None, "an epoch without a batch is an error of the loader's"
    return Measured(
        batch=first[0],
        rows=rows,
        tokens=tokens,
        passes=passes,
        seconds=elapsed,
        cpu_seconds=cpu,
        first_seconds=first[1],
        peak_bytes=peak_memory(),
    )


def peak_memory() -> int:
    """The most bytes that this process had resident."""
    # Linux's ru_maxrss also counts what the parent had when it started this process; VmHWM does not.
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


# 3. The proof


def prove(data: Path, prepared: Prepared) -> bool:
    """Break a run on two ranks, finish it on three, and compare its rows with those of an unbroken run."""
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as scratch, progress() as line:
        out = {name: Path(scratch, name) for name in ("unbroken", "broken", "resumed")}
        for folder in out.values():
            folder.mkdir()

        line("one process, unbroken")
        run_to_end(Workers(data, prepared, out["unbroken"], world_size=1))
        unbroken = read_steps(out["unbroken"], 0)
        if len(unbroken) < 8:
            sys.exit(f"demo: the text gives {len(unbroken)} batches, too few to break a run in the middle")

        target = random.randint(len(unbroken) // 3, len(unbroken) * 2 // 3)
        pause = BROKEN_RUN / len(unbroken)
        with Workers(data, prepared, out["broken"], world_size=2, pauses=[pause, pause * 1.1]) as workers:
            while (done := workers.steps_done())[0] < target:
                line(f"two ranks: steps {done[0]} and {done[1]} of {len(unbroken)}")
                workers.expect_running()
                time.sleep(0.02)
            workers.kill()
        broken = [read_steps(out["broken"], rank) for rank in range(2)]
        if any(len(steps) in (0, len(unbroken)) for steps in broken):
            sys.exit("demo: a rank was not in the middle of its epoch when it was killed; run the demo again")
        common = min(max(steps) for steps in broken)

        line(f"three ranks: from step {common} on")
        run_to_end(Workers(data, prepared, out["resumed"], world_size=3, state=state_path(out["broken"], common)))
        resumed = [read_steps(out["resumed"], rank) for rank in range(3)]

    kept = [step for steps in broken for number, step in steps.items() if number <= common]
    thrown_away = sum(len(steps) for steps in broken) - len(kept)
    hashes = stream_hash(kept + [step for steps in resumed for step in steps.values()])
    wanted = stream_hash(unbroken.values())
    table(
        ("two ranks", f"killed after {len(broken[0])} and {len(broken[1])} of {len(unbroken)} steps"),
        ("three ranks", f"went on after {len(kept) // 2} steps; batches thrown away: {thrown_away}"),
        ("unbroken", f"{wanted.text}  {wanted.rows:,} rows"),
        ("broken", f"{hashes.text}  {hashes.rows:,} rows"),
        ("", "equal: the same rows in the same order" if hashes == wanted else "DIFFERENT"),
    )
    return hashes == wanted


class Workers:
    """The processes of one run, one a rank; none of them outlives the `with` block."""

    def __init__(
        self,
        data: Path,
        prepared: Prepared,
        out: Path,
        *,
        world_size: int,
        state: Path | None = None,
        pauses: Sequence[float] = (),
    ) -> None:
        self._out = out
        self._deadline = time.monotonic() + DEADLINE
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(world_size):
            command = [sys.executable, "-m", "headrace.demo.worker", "--data", str(data), "--out", str(out)]
            command += ["--end-id", str(prepared.end_id), "--rank", str(rank), "--world-size", str(world_size)]
            if state is not None:
                command += ["--state", str(state)]
            if pauses:
                command += ["--pause", str(pauses[rank])]
            with self._errors(rank).open("wb") as errors:
                self._processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=errors))

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def steps_done(self) -> list[int]:
        """How many steps each rank has written down."""
        logs = [steps_file(self._out, rank) for rank in range(len(self._processes))]
        return [log.read_bytes().count(b"\n") if log.exists() else 0 for log in logs]

    def expect_running(self) -> None:
        """Exit if a rank has ended or time is up."""
        for rank, process in enumerate(self._processes):
            if process.poll() is not None:
                self._fail(rank, f"ended with {process.returncode} before it was killed")
        if time.monotonic() > self._deadline:
            sys.exit(f"demo: the ranks took more than {DEADLINE} s")

    def kill(self) -> None:
        """SIGKILL to each rank: no handler runs, nothing is flushed."""
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
        for rank, process in enumerate(self._processes):
            if process.wait() != -signal.SIGKILL:
                self._fail(rank, f"ended with {process.returncode} before it was killed")

    def wait(self) -> None:
        """Until each rank has finished the epoch."""
        for rank, process in enumerate(self._processes):
            try:
                status = process.wait(max(0.0, self._deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._fail(rank, f"took more than {DEADLINE} s")
            else:
                if status:
                    self._fail(rank, f"ended with {status}")

    def _errors(self, rank: int) -> Path:
        return self._out / f"rank-{rank}.stderr"

    def _fail(self, rank: int, what: str) -> None:
        errors = self._errors(rank).read_text(encoding="utf-8", errors="replace")
        sys.exit(f"demo: rank {rank} {what}\n{errors[-2000:]}")


def run_to_end(workers: Workers) -> None:
    """Wait for a run that nobody breaks."""
    with workers:
        workers.wait()


@dataclass(frozen=True, slots=True)
class StreamHash:
    """BLAKE2b over the hashes of all rows in the order of their numbers, and how many there are."""

    text: str
    rows: int


def stream_hash(steps: Iterable[Step]) -> StreamHash:
    """Of the rows that all ranks together have given; a row that is missing or comes twice exits."""
    pairs = sorted(pair for step in steps for pair in zip(step.rows, step.hashes, strict=True))
    numbers = [number for number, _ in pairs]
    if numbers != list(range(len(numbers))):
        wrong = next(place for place, number in enumerate(numbers) if place != number)
        sys.exit(f"demo: wanted each row once, found row {numbers[wrong]} where row {wrong} should be")
    digest = hashlib.blake2b(digest_size=16)
    for _, row_hash in pairs:
        digest.update(bytes.fromhex(row_hash))
    return StreamHash(text=digest.hexdigest(), rows=len(pairs))


# 4. The source of a row


def show_row(batch: Batch, data: Path, tokenizer_file: Path, end_id: int) -> None:
    """The text of a row of several documents, beside what pyarrow reads at the places that the batch names."""
    import pyarrow.parquet as pq
    from tokenizers import Tokenizer

    tokenizer: Any = Tokenizer.from_file(str(tokenizer_file))
    every = batch.sources()
    place = min(range(len(every)), key=lambda row: (abs(len(every[row]) - 4), row))
    row = np.asarray(batch["tokens"][place])
    print(f"  row {int(batch.rows[place])} of step {batch.step}, {len(every[place])} pieces\n")

    at, equal = 0, True
    for source in every[place]:
        piece = row[at : at + source.tokens]
        at += source.tokens
        if at < len(row) and row[at] == end_id:
            at += 1
        name = Path(source.file).name
        group: Any = pq.ParquetFile(data / name).read_row_group(source.row_group, columns=["id", "tokens"])
        stored = np.asarray(group["tokens"][source.row].values)
        last = source.first_token + source.tokens
        equal = equal and np.array_equal(stored[source.first_token : last], piece)
        print(f"  {name}, row group {source.row_group}, row {source.row}, tokens {source.first_token}..{last}", end="")
        print(f" of {len(stored)}: {group['id'][source.row].as_py()}")
        for line in excerpt(tokenizer.decode(piece.tolist())):
            print(f"      | {line}")
    if not (equal and at == len(row)):
        sys.exit("demo: the row's tokens are not those that pyarrow reads at these places")
    print(f"\n  pyarrow reads the same {len(row):,} tokens at these places")


def excerpt(text: str, lines: int = 2, width: int = 90) -> list[str]:
    """The first lines that say something."""
    printable = ("".join(c if c.isprintable() else " " for c in line).rstrip() for line in text.splitlines())
    chosen = [line for line in printable if len(line.strip()) > 8][:lines]
    return [line if len(line) <= width else line[: width - 1] + "…" for line in chosen]


# What is printed


def heading(title: str, note: str = "") -> None:
    """A line that begins a part."""
    bold, dim, plain = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if sys.stdout.isatty() else ("", "", "")
    print(f"\n{bold}{title}{plain}" + (f"  {dim}{note}{plain}" if note else ""), flush=True)


def table(*rows: tuple[str, str]) -> None:
    """Names and values, aligned."""
    width = max(len(name) for name, _ in rows) + 2
    for name, value in rows:
        print(f"  {name:<{width}}{value}", flush=True)


@contextmanager
def progress() -> Generator[Callable[[str], None]]:
    """A line on a terminal that changes and is gone at the end; elsewhere nothing."""
    live = sys.stderr.isatty()

    def line(text: str) -> None:
        if live:
            print(f"\r  {text}\x1b[K", end="", file=sys.stderr, flush=True)

    try:
        yield line
    finally:
        if live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

"""Files for the tests of formats, opening, loading and stores, and what pyarrow reads in them.

A test writes Parquet with pyarrow, has headrace read it in storage order, and compares tokens and sources with what
pyarrow reads. `run_python` runs a test's program in a process of its own, with a deadline.
"""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
# What a process of a test may hold beyond `memory`: code, the interpreter, NumPy, the index, threads' stacks.
BESIDE_THE_BUDGET = 96 << 20

INT_TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


class Stored(NamedTuple):
    """What a dataset holds: all tokens in storage order, and (file, row group, row, 0, tokens) of each document."""

    tokens: np.ndarray
    sources: list[tuple[str, int, int, int, int]]


def bounds(name: str) -> tuple[int, int]:
    """The least and the largest token that a type can hold."""
    info = np.iinfo(name)
    return max(int(info.min), INT32_MIN), min(int(info.max), INT32_MAX)


def write(
    path: Path, documents: Sequence[Sequence[int] | None], kind: pa.DataType | None = None, **options: Any
) -> str:
    """Writes a column `tokens` and returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    column = pa.array(documents, kind or pa.list_(pa.int32()))
    pq.write_table(pa.table({"tokens": column}), path, **options)
    return str(path)


def count_up(rows: int, tokens: int = 4, start: int = 0) -> list[list[int]]:
    """Documents of equal length that count on from one to the next."""
    return [list(range(start + row * tokens, start + (row + 1) * tokens)) for row in range(rows)]


def stored(paths: Iterable[str | os.PathLike[str]], column: str = "tokens") -> Stored:
    """What pyarrow reads."""
    tokens, sources = [np.zeros(0, np.int64)], []
    for path in map(os.fspath, paths):
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=[column])
                values: Any = table.combine_chunks()
                name, values = column, values
                if column not in table.column_names:
                    outer, name = column.split(".", 1)
                    values = table.column(outer)
                    values = values.combine_chunks()
                    for part in name.split("."):
                        values = values.flatten()[values.type.get_field_index(part)]
                else:
                    values = table.column(column)
                for row, document in enumerate(values.to_pylist()):
                    if document:
                        tokens.append(np.array(document, np.int64))
                        sources.append((path, group, row, 0, len(document)))
    return Stored(np.concatenate(tokens), sources)


def loaded(dataset: hr.PackedDataset, batch_size: int = 1, **options: Any) -> Stored:
    """What headrace gives in storage order; the parts of a document are put together again."""
    options = {"shuffle": False, "epochs": 1, "remainder": "pad", "num_workers": 2} | options
    loader = hr.DataLoader(dataset, batch_size, **options)
    tokens, sources = [], []
    for batch in loader:
        mask = batch["loss_mask"].astype(bool)
        tokens.append(batch["tokens"][mask].astype(np.int64))
        for part in (part for row in batch.sources() for part in row):
            last = sources[-1] if sources else None
            if last and last[:3] == part[:3] and last[3] + last[4] == part[3]:
                sources[-1] = (*last[:4], last[4] + part[4])
            else:
                sources.append(tuple(part))
    return Stored(np.concatenate(tokens), sources)


def assert_same(found: Stored, wanted: Stored) -> None:
    """Fails with the first document that differs."""
    if np.array_equal(found.tokens, wanted.tokens) and found.sources == wanted.sources:
        return
    for number, (one, other) in enumerate(zip(found.sources, wanted.sources, strict=False)):
        assert one == other, f"source {number}"
    assert len(found.sources) == len(wanted.sources)
    assert len(found.tokens) == len(wanted.tokens)
    at = int(np.flatnonzero(found.tokens != wanted.tokens)[0])
    ends = np.cumsum([source[4] for source in wanted.sources])
    source = wanted.sources[int(np.searchsorted(ends, at, side="right"))]
    raise AssertionError(f"token {at}, of {source}: found {found.tokens[at]}, wanted {wanted.tokens[at]}")


def assert_reads_as_pyarrow(
    url: Any,
    paths: Iterable[str | os.PathLike[str]],
    column: str = "tokens",
    seq_len: int | None = None,
    **options: Any,
) -> hr.TableDataset:
    """Opens `url` and compares it, read in storage order, with what pyarrow reads in `paths`."""
    wanted = stored(paths, column)
    dataset = hr.open(url)
    length = seq_len or max(1, min(1021, len(wanted.tokens) // 3))
    packed = dataset.pack(length, column=column)
    assert packed.tokens == len(wanted.tokens)
    assert_same(loaded(packed, **options), wanted)
    return dataset


@contextmanager
def environment(**changes: str | None) -> Iterator[None]:
    """Variables set or (None) removed for a while."""
    before = {name: os.environ.get(name) for name in changes}
    try:
        for name, value in changes.items():
            _set(name, value)
        yield
    finally:
        for name, value in before.items():
            _set(name, value)


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def start_python(program: str, *arguments: object, **variables: str) -> "subprocess.Popen[str]":
    """Starts a program of a test; `tests` is on its path. `stdin` and `stdout` are pipes."""
    # Where this process finds its modules, too.
    places = [str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    # The root of the checkout must not come first: its folders are no packages.
    command = [sys.executable, "-P", "-c", textwrap.dedent(program), *map(str, arguments)]
    return subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places)), **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]", timeout: float = 60) -> str:
    """Waits for a program and returns what it printed; fails if it does, or if it hangs."""
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        raise AssertionError(f"still running after {timeout} s\n{output[-2000:]}\n{errors[-4000:]}") from None
    assert process.returncode == 0, f"exit code {process.returncode}\n{output[-2000:]}\n{errors[-4000:]}"
    return output


def run_python(program: str, *arguments: object, timeout: float = 60, **variables: str) -> str:
    """Runs a program of a test to its end and returns what it printed."""
    return finish(start_python(program, *arguments, **variables), timeout)

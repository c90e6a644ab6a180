"""What a run remembers of its inputs and its function, so that another one does not go on with it."""

import collections
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import headrace
import prepare_functions as functions
from headrace.cli import app
from headrace.prepare.chunking import Chunks
from headrace.prepare.digests import Told, digest
from prepare_functions import environment

QUIET: dict[str, Any] = {"progress": False, "verbose": False, "num_workers": 0, "chunk_size": 3}


def stopped(number: Any, *rest: Any, k: int = 0) -> Any:
    """A sample of what is no number 5; that ends the run."""
    if number == 5 or Path(str(number)).name.startswith("5"):
        raise RuntimeError("stopped")
    return {"k": k, "text": str(number)}


def tagged(sample: Any, k: int) -> Any:
    return {**sample, "k": k}


class Point:
    def __init__(self, x: int) -> None:
        self.x = x
        self.itself = self

    def __str__(self) -> str:
        return str(self.x)


Pair = collections.namedtuple("Pair", "x y")


class Named(Told):
    def __init__(self, name: str, other: Any) -> None:
        self.name, self.other = name, other

    def told_by(self) -> Any:
        return self.name


VALUES: list[Callable[[int], Any]] = [
    lambda k: k,
    lambda k: np.int64(k),
    lambda k: np.array([1, k]),
    lambda k: np.array([[1, None], [k, "a"]]),
    lambda k: Point(k),
    lambda k: Pair(1, k),
    lambda k: {"a": [Path(str(k))]},
    lambda k: {1, k + 10, "text"},
    lambda k: functools.partial(stopped, k=k),
    lambda k: Point(k).__str__,
    lambda k: [f"{k}\udc80", b"", None],
    lambda k: Named(str(k), threading.Lock()),
    lambda k: (os.getpid, Point, [[k]]),
    lambda k: collections.OrderedDict(a=k),
]


@pytest.mark.parametrize("at", range(len(VALUES)))
def test_values_are_told_apart_and_equal_ones_are_not(at: int) -> None:
    make = VALUES[at]
    assert digest(make(3)) == digest(make(3))
    assert digest(make(3)) != digest(make(4))


def test_it_is_the_same_in_every_process() -> None:
    program = (
        "import test_prepare_digests as these; from headrace.prepare.digests import digest\n"
        "print([digest(make(3)) for make in these.VALUES])"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**environment(), "PYTHONHASHSEED": str(seed)},
            check=True,
            stdout=subprocess.PIPE,
        ).stdout
        for seed in (1, 2)
    }
    assert len(found) == 1


def test_what_cannot_be_pickled_has_no_digest() -> None:
    with pytest.raises(TypeError, match="cannot"):
        digest([1, threading.Lock()])


def refused(folder: Path, first: tuple[Any, Any], second: tuple[Any, Any], **how: Any) -> None:
    """The second call does not go on with what the first one left; the first one does."""
    with pytest.raises(RuntimeError, match="stopped"):
        headrace.optimize(*first, folder, **QUIET, **how)
    with pytest.raises(headrace.StateMismatch, match="unfinished run with other arguments"):
        headrace.optimize(*second, folder, **QUIET, **how)
    with pytest.raises(RuntimeError, match="stopped"):
        headrace.optimize(*first, folder, **QUIET, **how)


def test_a_file_that_was_added_to_a_folder_is_noticed(tmp_path: Path) -> None:
    inputs = tmp_path / "in"
    inputs.mkdir()
    for name in "123456":
        (inputs / name).touch()
    first = headrace.walk(inputs)
    assert first == [str(inputs / name) for name in "123456"]
    (inputs / "0").touch()
    refused(tmp_path / "out", (stopped, first), (stopped, headrace.walk(inputs)), weights=None)


@pytest.mark.parametrize("make", [np.int64, Point, lambda k: np.array(k)])
def test_inputs_that_are_no_plain_values_are_told_apart(tmp_path: Path, make: Callable[[int], Any]) -> None:
    def fn(value: Any) -> Any:
        return stopped(int(str(value)))

    refused(tmp_path / "out", (fn, [make(k) for k in range(8)]), (fn, [make(k + 1) for k in range(8)]))


def test_an_array_of_inputs_is_told_from_another(tmp_path: Path) -> None:
    refused(tmp_path / "out", (stopped, np.arange(8)), (stopped, np.arange(1, 9)))


def test_what_a_function_holds_is_told_apart(tmp_path: Path) -> None:
    one, hundred = (functools.partial(stopped, k=k) for k in (1, 100))
    refused(tmp_path / "out", (one, range(8)), (hundred, range(8)))
    refused(tmp_path / "other", (stopped, range(8)), (functions.sample, range(8)))


def test_inputs_that_cannot_be_looked_at_do_not_go_on(tmp_path: Path) -> None:
    def fn(value: Any) -> Any:
        return stopped(value[0])

    inputs = [(number, threading.Lock()) for number in range(8)]
    with pytest.raises(RuntimeError, match="stopped"):
        headrace.optimize(fn, inputs, tmp_path / "out", **QUIET)
    with pytest.raises(headrace.StateMismatch, match="cannot be told from others"):
        headrace.optimize(fn, inputs, tmp_path / "out", **QUIET)


def test_columns_of_a_reader_are_told_apart(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    parquet.write_table(arrow.table({"a": range(8), "b": range(8)}), tmp_path / "in.parquet")

    def fn(table: Any) -> Any:
        return stopped(table.slice(0, 1).to_pylist()[0].popitem()[1])

    for name in "ab":
        reader = headrace.ParquetReader(rows=1, columns=[name], storage_options={"timeout": "9s"})
        with pytest.raises(RuntimeError if name == "a" else headrace.StateMismatch):
            headrace.optimize(fn, [str(tmp_path / "in.parquet")], tmp_path / "out", reader=reader, **QUIET)
    # Settings of the store are others where a key was renewed.
    reader = headrace.ParquetReader(rows=1, columns=["a"])
    with pytest.raises(RuntimeError):
        headrace.optimize(fn, [str(tmp_path / "in.parquet")], tmp_path / "out", reader=reader, **QUIET)


def lines(folder: Path, letters: str) -> headrace.SampleDataset:
    folder.mkdir()
    (folder / "data.txt").write_text("\n".join(letters))
    return headrace.open(folder, format="text")


def test_datasets_are_told_apart_though_they_are_of_one_size(tmp_path: Path) -> None:
    one, other = lines(tmp_path / "one", "1234567"), lines(tmp_path / "other", "2345671")

    def fn(sample: Any) -> Any:
        return stopped(sample if isinstance(sample, str) else next(iter(sample.values())))

    refused(tmp_path / "out", (fn, one), (fn, other))
    refused(tmp_path / "shuffled", (fn, one), (fn, one.subset([1, 0, 2, 3, 4, 5, 6])))
    kept = one.map(functools.partial(tagged, k=1))
    refused(tmp_path / "mapped", (fn, kept), (fn, one.map(functools.partial(tagged, k=2))))


def test_convert_does_not_go_on_with_another_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines(tmp_path / "one", "1234567")
    lines(tmp_path / "other", "2345671")

    def convert(name: str) -> Any:
        how = ["--source-format", "text", "--format", "mds", "--workers", "0", "--chunk-size", "2"]
        return CliRunner().invoke(app, ["convert", str(tmp_path / name), str(tmp_path / "out"), *how])

    with monkeypatch.context() as patch:
        patch.setattr(Chunks, "finish", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        convert("one")
    assert (tmp_path / "out" / ".headrace" / "journal.jsonl").exists()
    assert "unfinished run with other arguments: content of the inputs is not what it was" in convert("other").output
    assert convert("one").exit_code == 0
    data = headrace.open(tmp_path / "out")
    assert [next(iter(data[at].values())) for at in range(7)] == list("1234567")


def test_an_iterator_that_ends_before_what_was_done_is_refused(tmp_path: Path) -> None:
    def some(count: int) -> Iterator[int]:
        yield from range(count)

    folder = tmp_path / "out"
    with pytest.raises(RuntimeError, match="stopped"):
        headrace.optimize(stopped, some(9), folder, **QUIET)
    with pytest.raises(headrace.StateMismatch, match="gave 3 inputs, and the unfinished run had done input 4"):
        headrace.optimize(stopped, some(3), folder, **QUIET)
    with pytest.raises(RuntimeError, match="stopped"):
        headrace.optimize(stopped, some(9), folder, **QUIET)


@pytest.mark.parametrize("counted", [True, False])
def test_errors_of_the_inputs_say_whose_they_are(tmp_path: Path, counted: bool) -> None:
    class Broken(list[int]):
        def __getitem__(self, number: Any) -> Any:
            raise LookupError(f"no {number}")

    def broken() -> Iterator[int]:
        yield 1
        raise LookupError("no 1")

    with pytest.raises(LookupError) as caught:
        headrace.optimize(stopped, Broken([1, 2]) if counted else broken(), tmp_path / "out", **QUIET)
    assert any("while an input was taken" in note for note in caught.value.__notes__)

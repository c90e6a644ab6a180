"""What `optimize` shows of how far it is, and of what it made in the end."""

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.prepare import progress, spool
from headrace.prepare.progress import Meter


def read(path: str) -> dict[str, Any]:
    return {"data": Path(path).read_bytes()[::2]}


def paths(folder: Path) -> list[str]:
    for number in range(10):
        (folder / f"{number}.bin").write_bytes(bytes(1000))
    return [str(folder / f"{number}.bin") for number in range(10)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [None, 3])
def test_the_summary_compares_with_the_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], workers: int, size: int | None
) -> None:
    made = headrace.optimize(
        read if size is None else read_some, paths(tmp_path), tmp_path / "out", batch_size=size, num_workers=workers
    )
    assert made.read == 10_000
    assert f"10 samples in 1 chunks, {made.bytes / 1024:.1f} KiB ({made.bytes / 10_000:.2f} of the 9.8 KiB" in str(made)
    assert str(made) in capsys.readouterr().err


def read_some(some: list[str]) -> Any:
    for path in some:
        yield read(path)


def test_a_run_that_goes_on_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    how: dict[str, Any] = {"chunk_size": 3, "num_workers": 0, "keep_data_ordered": True}
    fn = Reads(tmp_path / "on")
    for times in range(3):
        with pytest.raises(ValueError, match="not yet"):
            headrace.optimize(fn, paths(tmp_path), tmp_path / "out", **how)
        shown = capsys.readouterr().err
        assert shown == ("headrace optimize: going on with an unfinished run, 7 inputs are done\n" if times else "")
    with pytest.raises(ValueError, match="not yet"):
        headrace.optimize(fn, paths(tmp_path), tmp_path / "out", progress=False, **how)
    with pytest.raises(ValueError, match="not yet"):
        headrace.optimize(fn, paths(tmp_path), tmp_path / "out", resume=False, **how)
    assert capsys.readouterr().err == ""


def test_of_inputs_that_are_no_files_nothing_is_compared(tmp_path: Path) -> None:
    made = headrace.optimize(str, ["a" * 9999, "b\0", "nothing"], tmp_path / "out", num_workers=0, verbose=False)
    assert made.read == 0
    assert "of the inputs" not in str(made)


def test_a_run_that_goes_on_counts_each_input_once(tmp_path: Path) -> None:
    inputs = paths(tmp_path)
    how: dict[str, Any] = {"chunk_size": 3, "num_workers": 0, "keep_data_ordered": True, "verbose": False}
    with pytest.raises(ValueError, match="not yet"):
        headrace.optimize(Reads(tmp_path / "on"), inputs, tmp_path / "out", **how)
    (tmp_path / "on").touch()
    assert headrace.optimize(Reads(tmp_path / "on"), inputs, tmp_path / "out", **how).read == 10_000


class Reads:
    def __init__(self, switch: Path) -> None:
        self.switch = switch

    def __call__(self, path: str) -> dict[str, Any]:
        if path.endswith("7.bin") and not self.switch.exists():
            raise ValueError("not yet")
        return read(path)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_line_says_how_far_it_is_and_who_does_how_much(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    # Of what the thread shows that watches it is another test.
    monkeypatch.setattr(progress, "_TERMINAL_SECONDS", 30.0)
    clock = iter([0.0, 0.0, 100.0, 200.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    meter = Meter("optimize", shown=True)
    meter.begin(400, 100)
    meter.add(75, 80, 1 << 20, "1 on a")
    meter.add(25, 20, 1 << 20, "2 on a")
    shown = capsys.readouterr().err
    last = shown.split("\r")[-1] if terminal else shown.splitlines()[-1]
    assert last == (
        "headrace optimize: 200 of 400 inputs, 0.5/s, 100 samples, 2.0 MiB (10.2 KiB/s), 6:40 left, 2 workers: 75% 25%"
    )
    meter.close()
    assert capsys.readouterr().err == ("\r" + " " * len(last) + "\r" if terminal else "")


def test_a_run_says_how_far_it_is_while_an_input_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_LOG_SECONDS", 0.01)
    shown = threading.Event()
    write = sys.stderr.write

    def seen(text: str) -> int:
        if "headrace optimize: 0 of 1 inputs" in text:
            shown.set()
        return write(text)

    monkeypatch.setattr(sys.stderr, "write", seen)

    def waits(number: int) -> str:
        assert shown.wait(30)
        return "a"

    headrace.optimize(waits, [1], tmp_path / "out", num_workers=0, verbose=False)
    assert "headrace optimize: 0 of 1 inputs" in capsys.readouterr().err
    assert not [one for one in threading.enumerate() if one.name == "headrace-meter"]


def test_blocks_that_waited_for_their_turn_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heavy inputs were done when the run ended, and those before them were not."""
    monkeypatch.setattr(spool, "_HELD_BYTES", 0)
    how: dict[str, Any] = {"num_workers": 0, "keep_data_ordered": True, "format": "arrow", "verbose": False}
    how["weights"] = [1, 1, 1, 1, 1, 9, 9, 9, 9, 9]

    def stops(number: int) -> str:
        if number == 0:
            raise ValueError("not yet")
        return {"text": str(number)}

    with pytest.raises(ValueError, match="not yet"):
        headrace.optimize(stops, range(10), tmp_path / "out", **how)
    meters: list[Meter] = []
    begin = Meter.begin

    def noted(self: Meter, total: int | None, done: int) -> None:
        assert (total, done) == (10, 5)
        meters.append(self)
        begin(self, total, done)

    monkeypatch.setattr(Meter, "begin", noted)
    monkeypatch.setattr(stops, "__code__", (lambda number: {"text": str(number)}).__code__)
    headrace.optimize(stops, range(10), tmp_path / "out", **how)
    assert meters[0]._done == 10  # pyright: ignore[reportPrivateUsage]


def test_of_many_workers_the_ends_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    meter = Meter("map", shown=True)
    meter.begin(None, 0)
    request.addfinalizer(meter.close)
    monkeypatch.setattr(progress, "_LOG_SECONDS", 0.0)
    for number in range(20):
        meter.add(number + 1, 0, 10, f"{number} on a")
    assert capsys.readouterr().err.splitlines()[-1].endswith("20 workers: 10% to 0%")

"""The benchmark of preparing, run as a user runs it, on little data; and each of those who make something by itself."""

import importlib.util
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from headrace.bench.preparing import cases, command, data, makers
from headrace.bench.preparing.cases import CASES
from headrace.bench.preparing.data import text
from headrace.bench.preparing.job import Place

CASE = CASES["tokenize"]
FIELDS = {"checksum", "rounds", "rate", "spread", "cores", "cpu_us", "versions"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few documents, and a tokenizer that was trained on them."""
    path = tmp_path_factory.mktemp("text")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "VOCABULARY", 500)
        text.write(path, 0)
        assert (path / text.LINES).read_text() == ""
        patch.setattr(text, "SAMPLE", 20_000)
        lines = list(_first(60))
        (path / text.LINES).write_text("".join(json.dumps({"id": str(n), "text": one}) + "\n" for n, one in lines))
        text._train(path)
    return path


def _first(count: int) -> Any:
    return zip(range(count), text._documents(), strict=False)


def made(maker: str, folder: Path, output: Path) -> tuple[int, int]:
    """In a process of its own: makers set environment variables, and import what tests here shadow."""
    output.mkdir()
    code = (
        "import json, sys, dataclasses; from pathlib import Path; from headrace.bench.preparing import makers, worker;"
        "from headrace.bench.preparing.job import Place\n"
        "if __name__ == '__main__':\n"
        "    place = Place(data=Path(sys.argv[2]), output=Path(sys.argv[3]), workers=1)\n"
        "    print(json.dumps(worker.make(makers.load(sys.argv[1]), place, looks=True)))\n"
    )
    program = output / "program.py"
    program.write_text(code)
    run = subprocess.run([sys.executable, program, maker, folder, output], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["seconds"] > 0
    return found["amount"], found["checksum"]


@pytest.mark.parametrize("maker", CASE.makers.values())
def test_all_make_the_same_tokens(maker: str, folder: Path, tmp_path: Path) -> None:
    for package in makers.PACKAGES[maker]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    amount, checksum = made(maker, folder, tmp_path / "output")
    assert (amount, checksum) == _expected(folder)


def _expected(folder: Path) -> tuple[int, int]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / text.TOKENIZER))
    amount = checksum = 0
    for one in text.texts(folder):
        ids = [*tokenizer.encode(one, add_special_tokens=False).ids, tokenizer.token_to_id(text.END)]
        amount += len(ids)
        checksum = zlib.crc32(b"".join(number.to_bytes(8, "little") for number in ids), checksum)
    return amount, checksum


@pytest.mark.parametrize("name", ["images", "arrays"])
def test_all_make_the_same_samples(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    (tmp_path / "data").mkdir()
    data.load(case.data).write(tmp_path / "data", 50)
    found: dict[str, tuple[int, int]] = {}
    for maker in case.makers.values():
        if not [package for package in makers.PACKAGES[maker] if importlib.util.find_spec(package) is None]:
            found[maker] = made(maker, tmp_path / "data", tmp_path / maker)
    assert len(found) >= 2
    assert {amount for amount, _ in found.values()} == {50}
    assert len(set(found.values())) == 1


def test_documents_are_the_same_each_time_and_of_all_lengths() -> None:
    documents = [one for _, one in _first(100)]
    assert documents == [one for _, one in _first(100)]
    lengths = sorted(len(one.split()) for one in documents)
    assert lengths[0] < 200
    assert lengths[-1] > 2000
    assert 300 < lengths[50] < 700


def test_results_are_compared_with_the_aims() -> None:
    rounds = [{"amount": 10, "seconds": seconds, "cpu_seconds": 1.0} for seconds in (1.0, 2.0, 4.0)]
    own = command.summarise(rounds) | {"checksum": 1}
    assert (own["rate"], own["spread"], own["cores"]) == (5.0, 1.5, 0.5)
    near, far = own | {"rate": 5.5}, own | {"rate": 6.0, "checksum": 2}
    assert command.compared(CASE, "tokenizers", own, near) == {
        "times_as_fast": pytest.approx(5 / 5.5), "alike": True, "aim": 0.9, "met": True,
    }  # fmt: skip
    assert command.compared(CASE, "tokenizers", own, far)["met"] is False
    assert "aim" not in command.compared(CASE, "datasets", own, near)
    assert command.compared(CASE, "datasets", own, {"failed": "x"}) == {}
    results = {
        "headrace": own,
        "tokenizers": far | command.compared(CASE, "tokenizers", own, far),
        "datasets": {"failed": "no memory"},
    }
    head, _, first, second, third = command.table([CASE], {"tokenize": results}).splitlines()
    assert head.split("|")[1].strip() == "task"
    assert "5 tokens" in first
    assert "0.83 times" in second
    assert "0.9: missed" in second
    assert second.split("|")[-2].strip() == "no"
    assert "failed: no memory" in third


def test_unknown_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="no such task: 'x'; there are tokenize, images, arrays, start"):
        cases.chosen(["x"])
    assert cases.chosen(["tokenize"]) == [CASE]
    assert set(CASE.makers.values()) <= makers.PACKAGES.keys()
    assert CASE.data in data.PACKAGES
    assert Place(data=Path(), output=Path(), workers=1).workers == 1


@pytest.mark.slow
def test_the_command_measures_and_says_so(tmp_path: Path) -> None:
    arguments = ["preparing", tmp_path, "--quick", "--workers", "1", "--json", tmp_path / "out.json"]
    run = subprocess.run(
        [sys.executable, "-m", "headrace.bench", *arguments], capture_output=True, text=True, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("| tokenize |") == len(CASE.makers)
    found = json.loads((tmp_path / "out.json").read_text())["cases"]["tokenize"]
    for maker, result in found.items():
        if "skipped" not in result:
            assert result.keys() >= FIELDS, maker
            assert result.get("alike", True)
    assert not list(tmp_path.glob("preparing-*/output"))

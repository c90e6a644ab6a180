"""The benchmark of samples, run as a user runs it, on little data; and each of its loaders by itself."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.bench.samples import cases, data, loaders, report, worker
from headrace.bench.samples.cases import CASES
from headrace.bench.samples.job import Case, Place
from headrace.bench.samples.jpeg import SIZE, decoded, encoded

FIELDS = {
    "lost",
    "repeated",
    "shuffled",
    "content",
    "memory",
    "memory_before",
    "memory_growth",
    "samples_per_second",
    "spread",
    "cores",
    "cpu_us_per_sample",
    "first_batch_seconds",
    "next_epoch_seconds",
    "rounds",
    "versions",
}
SAMPLES = 96


def bench(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace.bench", "samples", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """Table and JSON of a run with loaders that are here and one that is not."""
    folder = tmp_path_factory.mktemp("bench")
    done = bench(folder, "--quick", "--tasks", "overhead-2,mds-bytes", "--json", folder / "out.json")
    return done.stdout, json.loads((folder / "out.json").read_text())


def test_the_json_has_all_that_is_measured(run: tuple[str, dict[str, Any]]) -> None:
    assert list(run[1]["cases"]) == ["overhead-2", "mds-bytes"]
    case = run[1]["cases"]["overhead-2"]
    assert (case["samples"], case["batch"], case["workers"], case["aim"]) == (4_000, 64, 2, 8.0)
    assert case["loaders"]["headrace"].keys() == FIELDS
    assert case["loaders"]["torch"].keys() == FIELDS | {"times_as_fast", "aim", "met"}
    for result in case["loaders"].values():
        assert (result["lost"], result["repeated"], result["shuffled"]) == (0, 0, True)
        assert result["content"] == 4_000 * 3_999 / 2
        assert result["samples_per_second"] > 0
        assert 0 < result["next_epoch_seconds"] < 10
        assert len(result["memory"]) == 3
        assert len(result["rounds"]) == 1
        assert result["versions"]


def test_the_table_is_markdown_with_a_row_for_each_loader_of_each_case(run: tuple[str, dict[str, Any]]) -> None:
    table = next(part for part in run[0].split("\n\n") if part.startswith("|")).splitlines()
    assert len({line.count("|") for line in table}) == 1
    cells = [[cell.strip() for cell in line.split("|")[1:3]] for line in table]
    assert cells[0] == ["task", "loader"]
    assert cells[2:4] == [["overhead-2", "headrace"], ["overhead-2", "torch"]]
    assert cells[4:] == [["mds-bytes", "headrace"], ["mds-bytes", "mosaic"]]


@pytest.mark.skipif(importlib.util.find_spec("streaming") is not None, reason="MosaicML Streaming is installed")
def test_a_missing_peer_is_named_and_skipped_in_sight(run: tuple[str, dict[str, Any]]) -> None:
    wanted = "skipped: mosaicml-streaming not installed"
    assert run[0].count(wanted) == 2  # headrace lacks the files that it would have written
    assert run[1]["cases"]["mds-bytes"]["loaders"]["mosaic"] == {"skipped": wanted}


def test_a_wrong_task_is_refused() -> None:
    assert "no such task: 'fastest'" in bench("--tasks", "fastest", code=2).stderr


def test_tasks_and_cases_are_chosen_by_name() -> None:
    assert [case.name for case in cases.chosen(["epoch", "litdata", "overhead-0"])] == [
        "overhead-0",
        "epoch",
        "litdata-bytes",
        "litdata-decoded",
    ]
    assert len(cases.TASKS) == 8


def pairs() -> list[Any]:
    """Each loader of each case, those that want a missing package marked so.

    Not those of Hugging Face datasets: a module of the tests has its name.
    """
    found: list[Any] = []
    for case in CASES.values():
        for loader, module in case.loaders.items():
            if "datasets" in loaders.PACKAGES[module]:
                continue
            packages = loaders.PACKAGES[module] | data.PACKAGES[case.data]
            lacking = [name for name in packages if importlib.util.find_spec(name) is None]
            marks = [pytest.mark.skip(reason=f"{lacking[0]} is not installed")] if lacking else []
            found.append(pytest.param(case, loader, id=f"{case.name}-{loader}", marks=marks))
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.mark.parametrize("case, loader", pairs())
@pytest.mark.filterwarnings("ignore")  # of other packages
def test_every_loader_gives_each_sample_once_in_an_order_of_its_own(root: Path, case: Case, loader: str) -> None:
    folder = root / case.data
    if not folder.exists():
        folder.mkdir()
        if case.data not in data.UNWRITTEN:
            data.load(case.data).write(folder, SAMPLES)
    copy = root / f"{case.name}-{loader}"
    copy.mkdir()
    # Without workers, as this process has threads already.
    case = replace(case, batch=8, epochs=1, worker_type="thread")
    place = Place(case=case, samples=SAMPLES, data=folder, copy=copy, workers=0)
    module = loaders.load(case.loaders[loader])
    found = worker.check(module, place, epochs=2)
    assert (found["lost"], found["repeated"], found["shuffled"], len(found["memory"])) == (0, 0, True, 2)
    assert worker.rate(module, place)["samples"] == SAMPLES


def test_so_do_those_of_hugging_face(tmp_path: Path) -> None:
    code = f"""
from dataclasses import replace
from pathlib import Path
from headrace.bench.samples import data, loaders, worker
from headrace.bench.samples.cases import CASES
from headrace.bench.samples.job import Place
folder = Path({str(tmp_path)!r})
data.load("rows").write(folder, {SAMPLES})
place = Place(case=replace(CASES["parquet"], batch=8), samples={SAMPLES}, data=folder, copy=folder, workers=0)
for name in ("hf_rows", "hf_rows_torch"):
    found = worker.check(loaders.load(name), place, epochs=2)
    print(name, found["lost"], found["repeated"], found["shuffled"], found["content"])
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("hf_")]
    assert [line[:4] for line in lines] == [[name, "0", "0", "True"] for name in ("hf_rows", "hf_rows_torch")], done
    assert float(lines[0][4]) == pytest.approx(float(lines[1][4]))


def test_what_is_lost_and_repeated_is_counted(tmp_path: Path) -> None:
    class Faulty:
        class Loader:
            def __init__(self, place: Place) -> None:
                pass

            def epoch(self) -> Any:
                yield {"id": np.array([3, 1, 1]), "text": ["a", "bc", "d"]}
                yield {"id": np.array([0, 1, 3]), "text": ["", "", ""]}

    case = replace(CASES["parquet"], batch=3)
    found = worker.check(Faulty, Place(case=case, samples=6, data=tmp_path, copy=tmp_path), epochs=1)  # type: ignore[arg-type]
    assert (found["lost"], found["repeated"], found["shuffled"], found["content"]) == (3, 3, True, 13)


def test_aims_are_about_times_as_fast_of_what_counts() -> None:
    fast, slow = {"samples_per_second": 30.0}, {"samples_per_second": 10.0}
    assert report.compared(CASES["network"], "torch", fast, slow) == {"times_as_fast": 3.0, "aim": 3.0, "met": True}
    assert report.compared(CASES["network"], "torch", slow, fast)["met"] is False
    soon, late = {"next_epoch_seconds": 0.1}, {"next_epoch_seconds": 1.0}
    assert report.compared(CASES["epoch"], "torch", soon, late)["times_as_fast"] == 10.0
    assert report.compared(CASES["epoch"], "torch-persistent", soon, late) == {"times_as_fast": 10.0}
    assert report.compared(CASES["epoch"], "torch", soon, {"failed": "why"}) == {}


def test_growth_is_seen_through_batches_on_their_way() -> None:
    assert report.growth([30, 46, 51, 48, 49, 47, 47, 47, 49, 49]) == pytest.approx(0)
    assert report.growth([300, 310, 320, 330, 340, 350, 360, 370, 380, 390]) == pytest.approx(60 / 320)
    assert report.growth([1, 4, 5]) == 0.25


def test_images_are_the_same_each_time_and_no_two_alike() -> None:
    first = encoded(0)
    assert first == encoded(0) != encoded(1)
    assert 8_000 < len(first) < 40_000
    sample = decoded({"id": 0, "image": first})
    assert (sample["image"].shape, sample["image"].dtype) == ((SIZE, SIZE, 3), np.uint8)
    assert sample["image"].std() > 20

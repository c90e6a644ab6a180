"""Runs over lanes go on exactly where they were saved: at any step, on other ranks, in other processes."""

import copy
import json
import os
import re
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.testing import Checked, check_resume
from lane_pipelines import begin, cut, dataset_of, grow, join, keep, loader_of, packings, reference_of, steps_of
from lane_reference import Packing, Starved, Step
from sample_sources import made_up

SIZES = (5, 1, 7, 0, 4, 9, 3)
BEST_FIT = Packing(mode="best_fit", seq_len=20, lookahead=5, eos_id=2)
MODES = {
    "concat": Packing(mode="concat", seq_len=20, overlap=1, bos_id=1),
    "best_fit": BEST_FIT,
    "pad": Packing(mode="pad", seq_len=6),
    "truncate": Packing(mode="truncate", seq_len=6),
    "documents": Packing(mode=None),
}
DEEP = (Step("flat_map", cut), Step("batch_map", join, 3), Step("filter", keep), Step("batch_map", join, 2))


def tokens_of(documents: list[Any]) -> dict[str, Any]:
    return {"tokens": [document["tokens"].tolist() for document in documents]}


def collated(packing: Packing) -> dict[str, Any]:
    return {} if packing.mode else {"collate_fn": tokens_of}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("steps", [(), DEEP], ids=["plain", "deep"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_dynamic_runs_resume(mode: str, steps: tuple[Step, ...], shuffle: bool) -> None:
    packing = MODES[mode]
    data = dataset_of(SIZES, steps, packing)
    checked = check_resume(data, steps=4, loader={"shuffle": shuffle, **collated(packing)})
    assert checked == Checked(8, 15, checked.rows)
    assert checked.rows > 300


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_pipeline_resumes(data: st.DataObject) -> None:
    steps, packing = data.draw(steps_of), data.draw(packings)
    dataset = dataset_of(SIZES, steps, packing, random_access=data.draw(st.booleans()))
    lanes = data.draw(st.sampled_from([6, 12]))
    reference = reference_of(dataset, SIZES, steps, packing, lanes=lanes)
    try:
        assert reference.row(3 * 12 - 1) is not None
    except Starved:
        reject()
    check_resume(dataset, steps=3, restarts=2, world_sizes=(3, 1, 2), loader={"lanes": lanes, **collated(packing)})


def test_a_run_with_an_end_resumes() -> None:
    for packing in MODES.values():
        for remainder in ("drop", "pad"):
            arguments = {"epochs": 2, "remainder": remainder, "lanes": 3, **collated(packing)}
            checked = check_resume(
                dataset_of(SIZES, DEEP, packing), steps=50, global_batch_size=3, world_sizes=(1,), loader=arguments
            )
            assert 1 <= checked.steps < 50


def test_counted_runs_resume(tmp_path: Path) -> None:
    lists = [list(range(at, at + at % 13)) for at in range(300)]
    pq.write_table(
        pa.table({"tokens": pa.array(lists, pa.list_(pa.int32()))}), tmp_path / "a.parquet", row_group_size=30
    )
    data = hr.open(tmp_path)
    assert check_resume(data.pack(16), steps=4, loader={"num_workers": 1}).rows > 300
    assert check_resume(data.pack(16, mode="best_fit", boundaries=True), steps=4).rows > 300


def test_runs_of_samples_resume() -> None:
    # Three steps an epoch, the last one smaller, though not so small that other ranks would cut epochs elsewhere.
    assert check_resume(made_up((*SIZES, 1)), steps=7).rows > 300
    assert check_resume(made_up(SIZES).filter(_not_a_third), steps=7, world_sizes=(1, 2)).rows > 200


def test_workers_change_nothing() -> None:
    data = dataset_of(SIZES, DEEP, BEST_FIT)
    found = [
        [batch["tokens"].tobytes() for batch in islice(hr.DataLoader(data, global_batch_size=12, **options), 5)]
        for options in (
            {"num_workers": 0},
            {"num_workers": 1},
            {"num_workers": 4, "prefetch_factor": 5},
            {"num_workers": 2, "worker_type": "process"},
            {"num_workers": 2, "worker_type": "auto"},
            {"num_workers": 2, "memory": "1KiB"},
        )
    ]
    assert all(one == found[0] for one in found)


def test_a_resume_makes_no_more_than_its_buffers_hold() -> None:
    calls: list[int] = []

    def counted(sample: dict[str, Any]) -> dict[str, Any]:
        calls.append(sample["id"])
        return begin(sample)

    for mode in ("concat", "best_fit"):
        data = made_up([50] * 40).map(counted).pack(16, mode=mode)
        loader = loader_of(data, 4, prefetch_factor=1)
        for batch in islice(iter(loader), 400):
            state = batch.state
        before = len(calls)
        again = loader_of(data, 4, prefetch_factor=1)
        again.load_state_dict(state)
        calls.clear()
        next(iter(again))
        # Four rows of about two documents a lane, what best_fit holds, and tasks that keep workers busy.
        assert len(calls) < before / 4
        needed = {"concat": 4 * 6, "best_fit": 4 * (64 + 6)}[mode]
        assert len(calls) <= needed + 2 * 512
        calls.clear()


def test_a_part_is_enough_for_its_rank() -> None:
    data = dataset_of(SIZES, (), MODES["concat"])
    ranks = [loader_of(data, 12, rank=rank, world_size=3) for rank in range(3)]
    batches = [next(iter(one)) for one in ranks]
    parts = [batch.state for batch in batches]
    assert all(part["part"] for part in parts)
    assert [list(part["lane_states"]) for part in parts] == [list(map(str, range(at, at + 4))) for at in (0, 4, 8)]
    again = loader_of(data, 12, rank=1, world_size=3)
    again.load_state_dict(parts[1])
    assert next(iter(again))["tokens"].tobytes() == next(iter(ranks[1]))["tokens"].tobytes()
    other = loader_of(data, 12, rank=0, world_size=2)
    with pytest.raises(hr.StateMismatch, match=r"lacks lanes of rank 0: 0, 1, 2, 3 of 12\nhint: load the parts of all"):
        other.load_state_dict(parts[1])
    with pytest.raises(hr.StateMismatch, match="lack lanes: 8, 9, 10, 11 of 12"):
        hr.State.merge(parts[:2])
    moved = next(iter(ranks[0])).state
    with pytest.raises(hr.StateMismatch, match=r"step is 2 in the one and 1 in the other"):
        hr.State.merge([moved, *parts[1:]])
    whole = hr.State.merge(parts)
    assert whole["part"] is False
    assert hr.State.from_bytes(hr.State.to_bytes(whole)) == whole
    assert hr.State.from_bytes(hr.State.to_bytes(parts[2])) == parts[2]


def test_states_of_other_pipelines_are_refused() -> None:
    packing = MODES["concat"]
    state = next(iter(loader_of(dataset_of(SIZES, (), packing), 12))).state
    for other, message in (
        (dataset_of(SIZES, (Step("filter", keep),), packing), "document_stages|stages is .*filter"),
        (dataset_of(SIZES, (), BEST_FIT), "mode is 'best_fit' here and 'concat' in the state"),
        (dataset_of((2, *SIZES), (), packing), "samples is 31 here and 29 in the state"),
        (dataset_of(SIZES, (), packing, start=5), "identity of source 0"),
        (dataset_of(SIZES, (), Packing(mode="concat", seq_len=21, overlap=1, bos_id=1)), "seq_len is 21 here and 20"),
    ):
        with pytest.raises(hr.StateMismatch, match=message):
            loader_of(other, 12).load_state_dict(state)
    renamed = made_up(SIZES).map(lambda sample: begin(sample)).pack(20, overlap=1, bos_id=1)
    with pytest.raises(hr.StateMismatch, match=r"functions have other names(.|\n)*strict=False allows it"):
        loader_of(renamed, 12).load_state_dict(state)
    with pytest.warns(UserWarning, match="functions have other names"):
        loader_of(renamed, 12).load_state_dict(state, strict=False)
    for change, message in (
        ({"lane_states": {"0": 1}}, "'part' to say whether lanes are missing"),
        ({"lane_states": state["lane_states"] | {"12": 0}}, "lanes 0..12, found '12'"),
        ({"position": 3}, "step 1 begins with row 12, its position is 3"),
        ({"kind": "counted"}, "expected kind 'dynamic', found 'counted'"),
        ({"lanes": 4}, "lane"),
    ):
        with pytest.raises(hr.StateMismatch, match=message):
            loader_of(dataset_of(SIZES, (), packing), 12).load_state_dict(state | change)


def test_tokens_that_a_document_has_not_are_told() -> None:
    data = dataset_of(SIZES, (), BEST_FIT)
    state = next(iter(loader_of(data, 12))).state
    first, *others = state["lane_states"]["3"].split(" ")
    assert others
    wrong = " ".join([first.split("-")[0].split("/")[0] + ":99", others[-1]])
    loader = loader_of(data, 12)
    loader.load_state_dict(state | {"lane_states": state["lane_states"] | {"3": wrong}})
    with pytest.raises(hr.StateMismatch, match="expected 99 tokens or more in the one at"):
        next(iter(loader))


def test_a_function_that_gives_other_documents_after_a_restart_is_told() -> None:
    length = {"now": 12}

    def changing(sample: dict[str, Any]) -> dict[str, Any]:
        return {"tokens": np.arange(length["now"])}

    for mode in ("concat", "best_fit", "pad"):
        length["now"] = 12
        data = made_up([40]).map(changing).pack(7, mode=mode)
        state = next(iter(loader_of(data, 1))).state
        length["now"] = 2
        loader = loader_of(data, 1)
        loader.load_state_dict(state)
        with pytest.raises(hr.StateMismatch, match="documents are not those of the state"):
            next(iter(loader))


def _overlapping(mode: str) -> dict[str, Any]:
    return {"mode": "concat", "overlap": 1} if mode == "overlap" else {"mode": mode}


@pytest.mark.parametrize("mode", ["concat", "overlap", "pad", "truncate", "best_fit", "documents"])
@pytest.mark.parametrize("grouped", [False, True])
def test_documents_that_an_item_has_no_more_are_told(mode: str, grouped: bool) -> None:
    """Whatever the state points at, the first item or group has fewer documents then."""
    some = {"now": 5}

    def several(sample: Any) -> list[dict[str, Any]]:
        document = sample[0] if grouped else sample
        count = some["now"] if document["id"] == 0 else 5
        return [{"id": document["id"], "part": part, "tokens": np.arange(9 + 9 * part)} for part in range(count)]

    cut = made_up([40]).batch_map(several, 2) if grouped else made_up([40]).flat_map(several)
    data = cut if mode == "documents" else cut.pack(8, **_overlapping(mode))
    options: dict[str, Any] = {"shuffle": False}
    if mode == "documents":
        options["collate_fn"] = tokens_of
    elif mode == "best_fit":
        data = cut.pack(8, mode="best_fit", lookahead=2)
    states: list[Any] = [batch.state for batch in islice(loader_of(data, 1, **options), 12)]
    refused = 0
    for state in states:
        text = state["lane_states"]["0"]
        # The number of the document that it points at, of the first item or group.
        ends = [re.fullmatch(r"0(?:\.0)?(?:\.(\d+))?(/\d+)?(?::\d+)?", word) for word in re.split("[ >]", text)]
        numbers = [(int(end[1] or 0), end[2]) for end in ends if end]
        for count in range(5):
            some["now"] = count
            loader = loader_of(data, 1, **options)
            loader.load_state_dict(state)
            if all(number < count or (number == 0 and used is None) for number, used in numbers):
                next(iter(loader))
                continue
            refused += 1
            for _ in range(2):
                with pytest.raises(hr.StateMismatch, match="documents are not those of the state: expected one at"):
                    next(iter(loader))
        some["now"] = 5
    assert refused > 4


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"window": 1}])
def test_items_beyond_counting_are_refused(options: dict[str, Any]) -> None:
    data = made_up([40]).flat_map(cut_in_two).pack(7)
    state = next(iter(loader_of(data, 3, **options))).state
    for item in (2**60 // 3, 10**18, 10**19 - 1):
        wrong = state | {"lane_states": state["lane_states"] | {"1": f"{item}"}}
        with pytest.raises(hr.StateMismatch, match=f"state: lane 1: expected a document .*, found '{item}'"):
            loader_of(data, 3).load_state_dict(wrong)
    loader = loader_of(data, 3)
    loader.load_state_dict(state | {"lane_states": state["lane_states"] | {"1": f"{2**60 // 3 - 1}.1/3"}})
    assert next(iter(loader))["tokens"].shape == (3, 7)


def cut_in_two(sample: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"tokens": np.arange(5)}] * 2


def test_check_resume_finds_what_does_not_resume() -> None:
    count = iter(range(10**9))
    fresh = made_up(SIZES).map(lambda sample: {"tokens": np.arange(3) + next(count)}).pack(10)
    with pytest.raises(AssertionError, match=r"step \d+, saved after step \d+, restart 1 on \d ranks: row"):
        check_resume(fresh, steps=2)
    with pytest.raises(ValueError, match="world_sizes must divide global_batch_size=12, got 5"):
        check_resume(fresh, world_sizes=(5,))
    with pytest.raises(TypeError, match="batches that are dicts, got list"):
        check_resume(fresh.pipeline and made_up(SIZES).map(begin), steps=1, loader={"collate_fn": list})


def test_batch_sizes_may_change() -> None:
    data = dataset_of(SIZES, (Step("map", grow),), BEST_FIT)
    whole = rows_of(loader_of(data, 12), 8)
    scheduled = rows_of(loader_of(data, {0: 12, 1: 24, 3: 36}), 4)
    assert scheduled == {row: whole[row] for row in range(12 + 24 + 24 + 36)}
    # One rank owns all lanes: it may also take a part of them at a time.
    loader = loader_of(data, 12)
    found = rows_of(loader, 1)
    loader.set_global_batch_size(4)
    found |= rows_of(loader, 4)
    loader.set_global_batch_size(24)
    found |= rows_of(loader, 1)
    assert found == {row: whole[row] for row in range(12 + 16 + 24)}
    state = loader.state_dict()
    ranks = [loader_of(data, 4, rank=rank, world_size=2) for rank in range(2)]
    for one in ranks:
        one.load_state_dict(state)
    found |= rows_of(ranks[0], 3) | rows_of(ranks[1], 3)
    assert found == {row: whole[row] for row in range(12 + 16 + 24 + 12)}
    with pytest.raises(ValueError, match=r"from step 9 on would give lanes to other ranks(.|\n)*multiples of 12"):
        ranks[0].set_global_batch_size(12)
    with pytest.raises(ValueError, match=r"multiple or a divisor of the number of lanes, 12, got 18\nhint: 12 or 24"):
        loader.set_global_batch_size(18)
    with pytest.raises(ValueError, match=r"world_size must divide the number of lanes, 12(.|\n)*hint: 4 or 6 ranks"):
        loader_of(data, 60, lanes=12, rank=0, world_size=5)


def test_steps_may_be_passed_over() -> None:
    data = dataset_of(SIZES, (), BEST_FIT)
    whole = rows_of(loader_of(data, 12), 6)
    loader = loader_of(data, 12)
    loader.skip(range(1, 3))
    found = rows_of(loader, 1)
    assert loader.step == 3
    state = loader.state_dict()
    found |= rows_of(loader, 2)
    assert found == {row: whole[row] for row in whole if not 12 <= row < 36 and row < 60}
    again = loader_of(data, 12)
    again.load_state_dict(state)
    assert next(iter(again)).step == 3
    assert again.state_dict()["skipped"] == [[1, 3]]


def rows_of(loader: hr.DataLoader, steps: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for batch in islice(iter(loader), steps):
        found |= {row: tokens.tobytes() for row, tokens in zip(batch.rows.tolist(), batch["tokens"], strict=True)}
    return found


PROGRAM = """
import json, sys
import headrace as hr
from lane_pipelines import cut, join
folder, batch, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
data = hr.open(folder + "/data").flat_map(cut).batch_map(join, 2).pack(16, mode="best_fit", lookahead=7)
loader = hr.DataLoader(data, global_batch_size=batch, rank=rank, world_size=world, num_workers=2)
states = json.loads(sys.stdin.readline())
if states:
    loader.load_state_dict(states)
for batch in loader:
    rows = {str(row): tokens.tolist() for row, tokens in zip(batch.rows.tolist(), batch["tokens"])}
    print(json.dumps({"step": batch.step, "rows": rows, "state": batch.state}), flush=True)
"""


def test_a_run_that_was_killed_goes_on_in_other_processes(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    lines = [json.dumps({"id": number, "tokens": list(range(number, number + number % 19))}) for number in range(120)]
    (tmp_path / "data" / "a.jsonl").write_text("\n".join(lines) + "\n")
    whole: dict[int, Any] = {}
    parts: list[dict[str, Any]] = []
    for step, world in enumerate((1, 3, 2, 6)):
        given = [steps_given(tmp_path, rank, world, parts) for rank in range(world)]
        for steps in given:
            assert [one["step"] for one in steps] == [2 * step, 2 * step + 1]
            for one in steps:
                whole |= {int(row): tokens for row, tokens in one["rows"].items()}
        parts = [steps[-1]["state"] for steps in given]
    assert sorted(whole) == list(range(8 * 12))
    data = hr.open(tmp_path / "data").flat_map(cut).batch_map(join, 2).pack(16, mode="best_fit", lookahead=7)
    unbroken: dict[int, Any] = {}
    for batch in islice(iter(loader_of(data, 12)), 8):
        unbroken |= dict(zip(batch.rows.tolist(), batch["tokens"].tolist(), strict=True))
    assert whole == unbroken


def steps_given(folder: Path, rank: int, world: int, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Two steps of a rank in a process of its own, which is killed then."""
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(Path(hr.__file__).parents[1])])
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), "12", str(rank), str(world)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(parts) + "\n")
    process.stdin.flush()
    found = [json.loads(process.stdout.readline()) for _ in range(2)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()
    return found


GATHER = """
import json, sys
import torch.distributed as dist
import headrace as hr
from lane_pipelines import dataset_of
from lane_reference import Packing
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
data = dataset_of((5, 1, 7), (), Packing(mode="concat", seq_len=20))
loader = hr.DataLoader(data, global_batch_size=12, num_workers=1)
next(iter(loader))
print(json.dumps([loader.state_dict(), loader.gather_state()]))
dist.destroy_process_group()
"""


def test_ranks_gather_their_states(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(hr.__file__).parents[1])])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", GATHER, str(tmp_path / "store"), str(rank)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": paths},
        )
        for rank in range(2)
    ]
    found = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    assert [own["part"] for own, _ in found] == [True, True]
    assert found[0][1] == found[1][1] == hr.State.merge([own for own, _ in found])
    loader = loader_of(dataset_of((5, 1, 7), (), Packing(mode="concat", seq_len=20)), 12, rank=0, world_size=2)
    with pytest.raises(RuntimeError, match=r"expected a process group of 2 ranks(.|\n)*hint: save the state_dict\(\)"):
        loader.gather_state()


def _not_a_third(sample: dict[str, Any]) -> bool:
    return sample["id"] % 3 != 0


@pytest.mark.parametrize(
    "mode, states",
    {
        "concat": ["", "3-4", "3 4", "03", "3.0", "3/0", "3.1.1", "-1", "3 ", "x", "3:4", 3, None, {"next": [3, 0]}],
        "pad": ["3-4", "3/", "3/-1", ["3"]],
        "truncate": ["3/1", "3 4"],
        "documents": ["3/1", "3-4"],
        # Out of order, not joined, a run of one or of too many, a next one that was begun or is no longer to come.
        "best_fit": [
            "4 3 5",
            "3 4 5",
            "3-3 5",
            "3-5",
            "4-3 5",
            "3-9 20",
            "0-999999999999999999 3",
            "3 5/1",
            "3 3",
            "3-6 6",
            # A document twice, one of which nothing is left, and what is written in another way.
            "3:4 3/4 5",
            "3/4:4 5",
            "3/5:4 5",
            "3:0 5",
            "3-4:2 5",
            "3 5:4",
        ],
    }.items(),
)
def test_states_of_lanes_that_no_run_has_are_refused(mode: str, states: list[Any]) -> None:
    data = dataset_of(SIZES, (), MODES[mode])
    saved = next(iter(loader_of(data, 3, **collated(MODES[mode])))).state
    for state in states:
        with pytest.raises(hr.StateMismatch, match=r"state: lane 1: expected .*document.*, found"):
            loader_of(data, 3).load_state_dict(saved | {"lane_states": saved["lane_states"] | {"1": state}})
    for lane, state in saved["lane_states"].items():
        assert re.fullmatch(r"[0-9./: >-]+", state), (lane, state)


@pytest.mark.parametrize("mode", ["best_fit", "concat", "pad", "truncate"])
def test_lanes_that_are_written_in_another_version_are_refused(mode: str) -> None:
    data = dataset_of(SIZES, (), MODES[mode])
    mixed = hr.mix({"one": (data, 1.0), "other": (data, 1.0)})
    state = next(iter(loader_of(data, 3, **collated(MODES[mode])))).state
    states = next(iter(hr.DataLoader(mixed, global_batch_size=2, **collated(MODES[mode])))).state
    counts_tokens = mode in ("best_fit", "pad")
    for version in (None, 1, 2, 3, "2"):
        for saved, of in ((state, ""), (states, " of source 'one'")):
            saved = copy.deepcopy(saved)
            pipeline = saved["sources"][0]["pipeline"] if of else saved["pipeline"]
            del pipeline["marks"]
            if version is not None:
                pipeline["marks"] = version
            loader = hr.DataLoader(mixed, global_batch_size=2) if of else loader_of(data, 3)
            if (version or 1) == 1 + counts_tokens:
                loader.load_state_dict(saved)
                continue
            wanted = f"reads lanes of version {1 + counts_tokens}{of}, those of the state are of {version or 1!r}\n"
            for strict in (True, False):
                with pytest.raises(hr.StateMismatch, match=re.escape(wanted)):
                    loader.load_state_dict(saved, strict=strict)


@pytest.mark.parametrize("mode", ["best_fit", "pad", "truncate"])
def test_rows_that_are_filled_up_with_something_else_are_of_another_run(tmp_path: Path, mode: Any) -> None:
    rows = [{"ids": [number] * (number % 7 + 1), "labels": [1] * (number % 7 + 1)} for number in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = hr.open(tmp_path / "a.jsonl")

    def loader(**how: Any) -> hr.DataLoader:
        pads = {"pad_id": 7, "ignore_index": -100, "pad_values": None} | how
        columns = {"ids": "int32", "labels": pads.pop("kind", "int64")}
        return hr.DataLoader(data.pack(9, mode=mode, columns=columns, **pads), global_batch_size=2, seed=0)

    it = iter(loader())
    state = json.loads(json.dumps([next(it), next(it)][-1].state))
    wanted = next(it)
    others: list[dict[str, Any]] = [{"pad_id": 8}, {"ignore_index": -1}, {"pad_values": {"labels": 0}}]
    for how in others:
        with pytest.raises(hr.StateMismatch, match=r"pads is \[.*\] here and \[7, -100\] in the state"):
            loader(**how).load_state_dict(state)
    # What is the same in another type, or only told beside the rows, is the same run.
    same_runs: list[tuple[Any, dict[str, Any]]] = [(state, {"kind": "int32"}), (state, {"boundaries": True})]
    if mode == "truncate":  # of which states of earlier builds load
        old = {key: value for key, value in state["pipeline"].items() if key not in ("pads", "marks")}
        same_runs.append((state | {"pipeline": old}, {"pad_id": 8}))
    for saved, same in same_runs:
        again = loader(**same)
        again.load_state_dict(saved)
        assert next(iter(again))["loss_mask"].tolist() == wanted["loss_mask"].tolist()
    nothing = loader(kind="float32", pad_values={"labels": float("nan")})
    again = loader(kind="float32", pad_values={"labels": float("nan")})
    again.load_state_dict(json.loads(json.dumps(next(iter(nothing)).state, allow_nan=False)))

"""The benchmark of pipelines, run as a user runs it, on little data."""

import json
import subprocess
import sys
from pathlib import Path

from headrace.bench.pipelines import command, states
from headrace.bench.preparing.data import text


def test_a_trial_measures_every_pipeline(tmp_path: Path) -> None:
    folder = tmp_path / f"pipelines-{command.SHAPE}-{command.QUICK}"
    folder.mkdir()
    documents = zip(range(60), text._documents(), strict=False)
    (folder / text.LINES).write_text("".join(json.dumps({"id": str(n), "text": one}) + "\n" for n, one in documents))
    text._train(folder)
    states.write(folder)
    (folder / "done").touch()
    call = [sys.executable, "-m", "headrace.bench", "pipelines", str(tmp_path), "--quick", "--workers", "1"]
    run = subprocess.run([*call, "--json", str(tmp_path / "found.json")], capture_output=True, text=True)
    found = json.loads((tmp_path / "found.json").read_text())
    assert set(found["results"]) == {"tokenizers", "concat", "best_fit", "pad", "truncate"}
    assert all(result["rate"] > 0 and result["cpu_ns"] > 0 for result in found["results"].values())
    assert found["results"]["pad"]["padding"] > 0.2
    assert found["results"]["best_fit"]["padding"] < found["results"]["pad"]["padding"] / 4
    # With sixty lengths of documents alone the aim of padding may be missed.
    assert run.returncode == int(found["results"]["best_fit"]["padding"] > 0.01), run.stderr
    assert "of tokenizers, aim 0.9" in run.stdout
    assert f"States of {states.LANES:,} lanes, mixtures of {states.SOURCES} sources" in run.stdout
    assert set(found["states"]) == set(states.CASES)
    sizes = {case: state["bytes"] for case, state in found["states"].items()}
    assert sizes["counted"] < 1000
    assert sizes["counted mixture"] < 10_000
    # Five bytes more of a lane than its number, or ten for each source.
    assert sizes["concat"] < 20 * states.LANES
    assert sizes["concat mixture"] < 12 * states.LANES * states.SOURCES
    # A fourth of what a list of documents that wait would be.
    assert sizes["best_fit"] < 2 * states.LANES * 64

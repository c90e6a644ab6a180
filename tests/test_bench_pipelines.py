"""The benchmark of pipelines, run as a user runs it, on little data."""

import json
import subprocess
import sys
from pathlib import Path

from headrace.bench.pipelines import worker
from headrace.bench.preparing.data import text


def test_a_trial_measures_every_pipeline(tmp_path: Path) -> None:
    folder = tmp_path / "pipelines-2"
    folder.mkdir()
    documents = zip(range(60), text._documents(), strict=False)
    (folder / text.LINES).write_text("".join(json.dumps({"id": str(n), "text": one}) + "\n" for n, one in documents))
    text._train(folder)
    (folder / "done").touch()
    command = [sys.executable, "-m", "headrace.bench", "pipelines", str(tmp_path), "--quick", "--workers", "1"]
    run = subprocess.run([*command, "--json", str(tmp_path / "found.json")], capture_output=True, text=True)
    found = json.loads((tmp_path / "found.json").read_text())
    assert set(found["results"]) == {"tokenizers", "concat", "best_fit", "pad", "truncate"}
    assert all(result["rate"] > 0 and result["cpu_ns"] > 0 for result in found["results"].values())
    assert found["results"]["pad"]["padding"] > 0.2
    assert found["results"]["best_fit"]["padding"] < found["results"]["pad"]["padding"] / 4
    # With sixty lengths of documents alone the aim of padding may be missed.
    assert run.returncode == int(found["results"]["best_fit"]["padding"] > 0.01), run.stderr
    assert "of tokenizers, aim 0.9" in run.stdout
    assert f"State of {worker.STATE_LANES:,} lanes, best_fit" in run.stdout
    assert found["states"]["best_fit"]["bytes"] > found["states"]["concat"]["bytes"] > 100_000

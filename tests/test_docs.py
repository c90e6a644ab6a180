"""What the documentation shows is run: the examples of public docstrings, and the README's ten lines."""

import ast
import doctest
import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import headrace
from headrace.loading import collate
from headrace.tokenizing import encoder_of

ROOT = Path(__file__).parents[1]

# Made by other callables, whose examples show them; or a property in all but name.
NO_EXAMPLE = {"PackedDataset", "TableDataset", "info"}


@pytest.fixture
def names(tmp_path: Path) -> dict[str, Any]:
    """What the examples take for granted: 200 documents of 50 tokens each, packed, and a loader."""
    documents = pa.array([list(range(at, at + 50)) for at in range(200)], pa.list_(pa.int32()))
    folder = tmp_path / "data"
    folder.mkdir()
    pq.write_table(pa.table({"tokens": documents}), folder / "a.parquet", row_group_size=20)
    packed = headrace.open(folder).pack(64, column="tokens", eos_id=0)
    loader = headrace.DataLoader(packed, global_batch_size=4)
    lines = tmp_path / "samples" / "part.jsonl"
    lines.parent.mkdir()
    lines.write_text("".join(f'{{"text": "sample {number}", "label": {number % 2}}}\n' for number in range(12)))
    with headrace.DocumentWriter(tmp_path / "stream", "uint16") as writer:
        for number in range(3):
            writer.write([number] * 4)
    return {
        "headrace": headrace,
        "np": np,
        "torch": torch,
        "folder": folder,
        "data": headrace.open(folder),
        "packed": packed,
        "loader": loader,
        "samples": headrace.open(lines.parent),
        "stream": tmp_path / "stream",
        "encoder_of": encoder_of,
        "start": loader.state_dict(),
    }


MODULES = [
    *("batch", "dataset", "encryption", "loader", "opening", "jax", "records", "state", "store"),
    *("torch.dataset", "torch.loader"),
    *("samples.batch", "samples.dataset", "samples.expression", "samples.source", "samples.zipped"),
    *(
        "prepare.arguments",
        "prepare.mapping",
        "prepare.merging",
        "prepare.optimizing",
        "prepare.recording",
        "prepare.tokenizing",
        "prepare.walking",
        "prepare.writing.graphs",
    ),
    *("media.audio", "media.files", "media.images"),
    *("loading.collate", "loading.keys", "loading.steps"),
    *("samples.dynamic", "testing", "tokenizing.choose", "tokenizing.encoder"),
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module: str, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    imported = importlib.import_module(f"headrace.{module}")
    found = doctest.DocTestFinder(exclude_empty=True).find(imported, globs=vars(imported) | names)
    examples = [example for example in found if example.examples]
    assert examples
    for example in examples:
        names["loader"].load_state_dict(names["start"])
        monkeypatch.setattr(collate, "_registered", {})
        assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example).failed == 0, example.name


def test_every_public_callable_is_documented() -> None:
    seen = 0
    for name in headrace.__all__:
        value = getattr(headrace, name)
        members = [value, *(vars(value).values() if isinstance(value, type) else ())]
        for member in members:
            if callable(member) and not getattr(member, "__name__", "_").startswith("_"):
                assert member.__doc__, f"{name}: {member} has no docstring"
                is_error = isinstance(member, type) and issubclass(member, Exception)
                shown = ">>>" in member.__doc__ or is_error or member in (headrace.State, headrace.Dataset)
                assert shown or member.__name__ in NO_EXAMPLE, f"{name}: {member.__name__} shows no example"
                seen += 1
    assert seen > 30


def test_the_readme_example_runs(names: dict[str, Any], tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(code) == 1
    code = code[0].replace("s3://bucket/fineweb-edu", str(names["folder"])).replace("2048", "64")
    code = code.replace("global_batch_size=512", "global_batch_size=4")
    assert ast.parse(code)
    trained: list[torch.Tensor] = []
    start = names["loader"].state_dict()
    scope: dict[str, Any] = {"rank": 0, "world_size": 1, "checkpoint": {"loader": start}, "train": trained.append}
    exec(compile(code, "README.md", "exec"), scope)
    assert len(trained) == len(names["loader"])
    assert scope["checkpoint"]["loader"]["step"] == len(trained)

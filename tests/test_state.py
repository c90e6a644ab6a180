"""States: their saved form, and what refuses them. Each refusal names what was expected and what was found."""

import io
import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from datasets import Corpus, CorpusWriter, drain, equal_documents, numbered, python, seeded, take

PACKING: dict[str, Any] = {"seq_len": 6, "overlap": 1, "bos_id": 1, "eos_id": 2}
RUN: dict[str, Any] = {"seed": 4, "lanes": 4, "window": 3, "shuffle": True, "global_batch_size": 8, "epochs": 2}


@pytest.fixture(scope="module")
def corpus(write: CorpusWriter) -> Corpus:
    return write(seeded(31))


@pytest.fixture(scope="module")
def state(corpus: Corpus) -> dict[str, Any]:
    """A state with everything in it: a position, a change of the batch size, steps passed over."""
    loader = hr.DataLoader(corpus.open(**PACKING), **RUN)
    loader.skip(range(5, 7))
    take(loader, 2)
    loader.set_global_batch_size(12)
    take(loader, 1)
    saved = loader.state_dict()
    assert (saved["step"], saved["history"], saved["skipped"]) == (3, [[0, 0, 8], [2, 16, 12]], [[5, 7]])
    return saved


def fresh(corpus: Corpus, **arguments: Any) -> hr.DataLoader:
    return hr.DataLoader(corpus.open(**PACKING), **{"global_batch_size": 8, "epochs": 2, **arguments})


# The saved form


def test_a_state_is_plain_json(state: dict[str, Any]) -> None:
    assert json.loads(json.dumps(state)) == state
    assert hr.State.from_bytes(hr.State.to_bytes(state)) == state
    assert hr.State.from_bytes(bytearray(hr.State.to_bytes(state))) == state
    assert hr.State.from_bytes(memoryview(hr.State.to_bytes(state))) == state
    assert pickle.loads(pickle.dumps(state)) == state


# Of sparse tensors, which other tests in the same process may have read.
@pytest.mark.filterwarnings("ignore:Validating sparse tensor")
def test_a_state_goes_through_torch_save_with_weights_only(state: dict[str, Any]) -> None:
    file = io.BytesIO()
    torch.save({"loader": state}, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == {"loader": state}


def test_the_saved_form_has_magic_version_length_and_checksum(state: dict[str, Any]) -> None:
    data = hr.State.to_bytes(state)
    magic, version, length = struct.unpack_from("<8sIQ", data)
    assert (magic, version) == (b"HEADRACE", state["schema"])
    body, checksum = data[20 : 20 + length], data[20 + length :]
    assert json.loads(body) == state
    assert checksum == blake2b(data[: 20 + length], digest_size=16).digest()
    assert hr.State.to_bytes(dict(reversed(state.items()))) == data, "the order of keys does not matter"


def test_any_flipped_byte_is_noticed(state: dict[str, Any]) -> None:
    data = hr.State.to_bytes(state)
    for place in range(len(data)):
        for flip in (1, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[place] ^= flip
            with pytest.raises(hr.StateMismatch):
                hr.State.from_bytes(damaged)


def test_any_cut_or_longer_state_is_noticed(state: dict[str, Any]) -> None:
    data = hr.State.to_bytes(state)
    for length in range(len(data)):
        with pytest.raises(hr.StateMismatch, match=rf"found {length}$" if length >= 20 else "no saved state"):
            hr.State.from_bytes(data[:length])
    with pytest.raises(hr.StateMismatch, match=rf"expected {len(data)} bytes, found {len(data) + 1}"):
        hr.State.from_bytes(data + b"\0")
    with pytest.raises(hr.StateMismatch):
        hr.State.from_bytes(data + data)


def sealed(body: bytes, version: int = 1) -> bytes:
    """Bytes whose checksum is right, whatever they say."""
    head = struct.pack("<8sIQ", b"HEADRACE", version, len(body))
    return head + body + blake2b(head + body, digest_size=16).digest()


@given(body=st.one_of(st.binary(max_size=40), st.text(max_size=40).map(str.encode)))
def test_sealed_rubbish_is_refused(body: bytes) -> None:
    with pytest.raises(hr.StateMismatch):
        hr.State.from_bytes(sealed(body))


@pytest.mark.parametrize("body", [b"[]", b"null", b"3", b'"text"', b"{}", b"\xff\xfe", b"{", b"", b"[" * 100_000])
def test_sealed_json_that_is_no_state_is_refused(body: bytes) -> None:
    with pytest.raises(hr.StateMismatch):
        hr.State.from_bytes(sealed(body))


def test_another_version_of_the_saved_form_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(hr.StateMismatch, match="schema version 1, found 2"):
        hr.State.from_bytes(sealed(json.dumps(state).encode(), version=2))


@pytest.mark.parametrize("files", [1, 400])
def test_a_state_is_small_whatever_the_number_of_files(write: CorpusWriter, files: int) -> None:
    corpus = write(equal_documents(files=files, groups=2, documents=2, length=3))
    loader = hr.DataLoader(corpus.open(seq_len=3), global_batch_size=2)
    take(loader, 1)
    assert len(hr.State.to_bytes(loader.state_dict())) < 1000


# Merging


def test_equal_parts_merge_to_one(state: dict[str, Any]) -> None:
    merged = hr.State.merge([state, json.loads(json.dumps(state)), state])
    assert merged == state
    assert hr.State.merge(iter([state])) == state


def test_parts_of_the_ranks_of_one_step_merge(corpus: Corpus) -> None:
    states = []
    for rank in range(4):
        loader = fresh(corpus, rank=rank, world_size=4)
        take(loader, 3)
        states.append(loader.state_dict())
    whole = hr.State.merge(states)
    again = fresh(corpus)
    again.load_state_dict(whole)
    assert take(again, 2) == take_alone(corpus)[3:5]


def take_alone(corpus: Corpus) -> list[Any]:
    return drain(fresh(corpus))


def test_parts_that_differ_are_refused(state: dict[str, Any], corpus: Corpus) -> None:
    with pytest.raises(hr.StateMismatch, match=r"parts 0 and 2 .*seed is 4 in the one and 5 in the other"):
        hr.State.merge([state, state, state | {"seed": 5}])
    loader = fresh(corpus)
    before = loader.state_dict()
    take(loader, 1)
    with pytest.raises(hr.StateMismatch, match=r"parts 0 and 1 .*step is 0 in the one and 1 in the other"):
        hr.State.merge([before, loader.state_dict()])
    with pytest.raises(ValueError, match="at least one"):
        hr.State.merge([])
    with pytest.raises(hr.StateMismatch, match="unknown key"):
        hr.State.merge([state | {"rank": 0}])


# Malformed states

MALFORMED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a list of something else": (lambda state: [5], "expected a dict, found int"),
    "empty": (lambda state: {}, "no state of headrace"),
    "of something else": (lambda state: {"_num_yielded": 3}, "'_num_yielded'"),
    "unknown key": (lambda state: state | {"colour": "red"}, "unknown key 'colour'"),
    "two unknown keys": (lambda state: state | {"x": 1, "y": 2}, "unknown key 'x'"),
    "older schema": (lambda state: state | {"schema": 0}, "expected schema version 1, found 0"),
    "newer schema": (lambda state: state | {"schema": 2}, "expected schema version 1, found 2"),
    "no schema": (lambda state: {key: value for key, value in state.items() if key != "schema"}, "schema version 1"),
    "other order": (lambda state: state | {"order": 2}, "order version 1, the state is of version 2"),
    "other kind": (lambda state: state | {"kind": "dynamic"}, "expected kind 'counted', found 'dynamic'"),
    "seed is text": (lambda state: state | {"seed": "4"}, "'seed' to be int, found '4'"),
    "seed is a bool": (lambda state: state | {"seed": True}, "'seed' to be int, found True"),
    "seed is a float": (lambda state: state | {"seed": 4.0}, "'seed' to be int, found 4.0"),
    "seed is null": (lambda state: state | {"seed": None}, "'seed' to be int, found None"),
    "seed is negative": (lambda state: state | {"seed": -1}, "'seed'.*found -1"),
    "seed is too large": (lambda state: state | {"seed": 2**64}, f"'seed'.*found {2**64}"),
    "shuffle is a number": (lambda state: state | {"shuffle": 1}, "'shuffle' to be bool, found 1"),
    "no lanes": (lambda state: state | {"lanes": 0}, "'lanes'.*found 0"),
    "no window": (lambda state: state | {"window": 0}, "'window'.*found 0"),
    "step is negative": (lambda state: state | {"step": -1}, "'step'.*found -1"),
    "another position": (lambda state: state | {"position": 27}, "begins with row 28.* position is 27"),
    "a position that wraps around": (
        lambda state: state | {"step": 2**64 - 1, "position": 2**64 - 20},
        "step|position",
    ),
    "no history": (lambda state: state | {"history": []}, "history"),
    "history of text": (lambda state: state | {"history": ["0, 0, 8"]}, "'history'.*found '0, 0, 8'"),
    "history is too narrow": (lambda state: state | {"history": [[0, 8]]}, r"'history'.*found \[0, 8\]"),
    "history does not begin at 0": (lambda state: state | {"history": [[2, 16, 12]]}, "must begin at step 0"),
    "history with a gap": (lambda state: state | {"history": [[0, 0, 8], [2, 17, 12]]}, "cannot be followed by"),
    "history with an empty batch": (lambda state: state | {"history": [[0, 0, 0]]}, "at least one row"),
    "history of a float": (lambda state: state | {"history": [[0, 0, 8.0]]}, r"found \[0, 0, 8.0\]"),
    "history too large": (lambda state: state | {"history": [[0, 0, 2**64]]}, "state"),
    "skipped is backwards": (lambda state: state | {"skipped": [[7, 5]]}, "skipped"),
    "skipped is empty": (lambda state: state | {"skipped": [[5, 5]]}, "skipped"),
    "skipped is too large": (lambda state: state | {"skipped": [[5, 2**64]]}, "skipped"),
    "skipped overlaps": (lambda state: state | {"skipped": [[5, 8], [7, 9]]}, "skipped"),
    "skipped is not sorted": (lambda state: state | {"skipped": [[9, 11], [5, 7]]}, "skipped"),
    "skipped is negative": (lambda state: state | {"skipped": [[-1, 7]]}, r"found \[-1, 7\]"),
    "pipeline is a list": (lambda state: state | {"pipeline": []}, "'pipeline' to be dict"),
    "pipeline lacks a key": (
        lambda state: state | {"pipeline": {"mode": "concat"}},
        "column is 'tokens' here and None",
    ),
    "pipeline with a key": (
        lambda state: state | {"pipeline": state["pipeline"] | {"limit": 3}},
        "unknown key 'limit' in its pipeline",
    ),
    "no source": (lambda state: state | {"sources": []}, r"one source.*found \[\]"),
    "two sources": (lambda state: state | {"sources": state["sources"] * 2}, "one source"),
    "source is text": (lambda state: state | {"sources": ["web"]}, "one source.*found"),
    "source is a number": (lambda state: state | {"sources": [7]}, "one source.*found"),
    "source lacks a key": (lambda state: state | {"sources": [{"identity": "0"}]}, "one source.*found"),
}
MALFORMED |= {
    f"{key} is missing": (
        lambda state, key=key: {name: value for name, value in state.items() if name != key},
        f"key '{key}' is missing",
    )
    for key in ("kind", "seed", "shuffle", "lanes", "window", "step", "position", "history", "skipped", "sources")
}


@pytest.mark.parametrize("change, message", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_state_is_refused(
    corpus: Corpus, state: dict[str, Any], change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    loader = fresh(corpus)
    before = loader.state_dict()
    with pytest.raises(hr.StateMismatch, match=message):
        loader.load_state_dict(change(state))
    assert loader.state_dict() == before
    assert len(take(loader, 1)) == 1


MANY_LANES = """
import json, sys
import headrace as hr

folder, packing, state, lanes = sys.argv[1], *map(json.loads, sys.argv[2:])
dataset = hr.open(folder).pack(**packing)
try:
    if state is None:
        hr.DataLoader(dataset, 8, lanes=lanes, epochs=2)
    else:
        hr.DataLoader(dataset, 8, epochs=2).load_state_dict(state | {"lanes": lanes})
except (ValueError, hr.StateMismatch) as refusal:
    print(refusal)
"""


@pytest.mark.parametrize("loaded, lanes", [(False, 2**32 - 1), (True, 2**32), (True, 2**62), (True, 2**62 + 1)])
def test_more_lanes_than_tokens_are_refused_at_once(
    corpus: Corpus, state: dict[str, Any], loaded: bool, lanes: int
) -> None:
    """Neither arithmetic that wraps around nor a loop over all lanes. In a process, which can be stopped."""
    saved = json.dumps(state if loaded else None)
    out = python(MANY_LANES, str(corpus.folder), json.dumps(PACKING), saved, str(lanes), seconds=15)
    assert "lanes" in out


# Another run


@pytest.mark.parametrize(
    "argument, here, there",
    [("seed", 5, 4), ("seed", 2**64 - 1, 4), ("lanes", 2, 4), ("window", 4, 3), ("shuffle", False, True)],
)
def test_a_given_argument_that_differs_is_refused(
    corpus: Corpus, state: dict[str, Any], argument: str, here: Any, there: Any
) -> None:
    loader = fresh(corpus, **{argument: here})
    with pytest.raises(hr.StateMismatch, match=rf"{argument} is {here} here and {there} in the state"):
        loader.load_state_dict(state)
    loader = fresh(corpus, **{argument: there})
    loader.load_state_dict(state)
    assert loader.step == 3


@pytest.mark.parametrize(
    "argument, here, there",
    [
        ("seq_len", 7, 6),
        ("overlap", 0, 1),
        ("bos_id", None, 1),
        ("bos_id", 3, 1),
        ("eos_id", None, 2),
        ("eos_id", 3, 2),
    ],
)
def test_another_packing_is_refused(
    corpus: Corpus, state: dict[str, Any], argument: str, here: Any, there: Any
) -> None:
    loader = hr.DataLoader(corpus.open(**PACKING | {argument: here}), global_batch_size=8)
    with pytest.raises(hr.StateMismatch, match=rf"{argument} is {here} here and {there} in the state"):
        loader.load_state_dict(state)


def test_another_column_is_refused(write: CorpusWriter) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    corpus = write({})
    documents = pa.array([[1, 2, 3]] * 8, pa.list_(pa.int32()))
    pq.write_table(pa.table({"tokens": documents, "other": documents}), corpus.folder / "two.parquet")
    state = hr.DataLoader(corpus.open(seq_len=3), 2).state_dict()
    loader = hr.DataLoader(corpus.open(seq_len=3, column="other"), 2)
    with pytest.raises(hr.StateMismatch, match="column is 'other' here and 'tokens' in the state"):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    "other",
    [{"boundaries": True}, {"dtype": "int64"}, {"name": "input_ids"}],
    ids=lambda other: next(iter(other)),
)
def test_the_form_of_a_batch_may_change(corpus: Corpus, state: dict[str, Any], other: dict[str, Any]) -> None:
    """What decides nothing that a row holds is not part of a state: see also test_packing_identity.py."""
    loader = hr.DataLoader(corpus.open(**PACKING, **other), epochs=2)
    loader.load_state_dict(state)
    same = fresh(corpus, global_batch_size=12)
    same.load_state_dict(state)
    name = other.get("name", "tokens")
    assert [batch[name].tolist() for batch in loader] == [batch["tokens"].tolist() for batch in same]


def test_what_is_not_given_comes_from_the_state(corpus: Corpus, state: dict[str, Any]) -> None:
    loader = hr.DataLoader(corpus.open(**PACKING), epochs=2)
    loader.load_state_dict(state)
    stats = loader.stats()
    assert (stats["lanes"], stats["window"], loader.global_batch_size, loader.step) == (4, 3, 12, 3)
    assert loader.state_dict() == state


def test_a_loader_without_a_batch_size_needs_a_state(corpus: Corpus) -> None:
    loader = hr.DataLoader(corpus.open(**PACKING))
    for use in (lambda: loader.step, lambda: len(loader), lambda: iter(loader), loader.state_dict):
        with pytest.raises(ValueError, match="batch size is missing"):
            use()


# Other data


def mismatch(corpus: Corpus, state: dict[str, Any]) -> str:
    """What the refusal says; it must be one with `strict=False` too."""
    messages = []
    for strict in (True, False):
        with pytest.raises(hr.StateMismatch) as refusal:
            fresh(corpus).load_state_dict(state, strict=strict)
        messages.append(str(refusal.value))
    assert messages[0] == messages[1]
    return messages[0]


def copy(corpus: Corpus, folder: Path) -> Corpus:
    shutil.copytree(corpus.folder, folder)
    return Corpus(folder, corpus.files)


def test_the_state_of_another_dataset_is_refused_by_both_names(
    corpus: Corpus, state: dict[str, Any], write: CorpusWriter
) -> None:
    """B017: a deep traceback."""
    other = write(seeded(32, files=4))
    message = mismatch(other, state)
    here = hr.DataLoader(other.open(**PACKING), 8).state_dict()["sources"][0]
    assert here["files"] == 4
    assert "4 files here, 3 in the state" in message
    assert "hint" in message


def test_a_changed_file_is_named(corpus: Corpus, state: dict[str, Any], tmp_path: Path) -> None:
    other = copy(corpus, tmp_path / "copy")
    groups = [[list(document or ()) for document in group] for group in corpus.files["f1.parquet"]]
    next(document for group in groups for document in group if document)[0] = 12345
    other.write("f1.parquet", groups)
    message = mismatch(other, state)
    assert "f1.parquet" in message
    here = hr.DataLoader(other.open(**PACKING), 8).state_dict()["sources"][0]
    assert here["identity"] in message
    assert state["sources"][0]["identity"] in message


def test_a_file_with_fewer_tokens_is_named(corpus: Corpus, state: dict[str, Any], tmp_path: Path) -> None:
    other = copy(corpus, tmp_path / "copy")
    groups = [list(group) for group in corpus.files["f2.parquet"]]
    dropped = groups[-1].pop()
    groups[-1].append([*(dropped or []), 7, 7])
    other.write("f2.parquet", groups)
    message = mismatch(other, state)
    assert "f2.parquet" in message
    tokens = len(corpus.tokens)
    assert f"{tokens + 2} tokens here, {tokens} in the state" in message


@pytest.mark.parametrize("name", ["a.parquet", "f1a.parquet", "below/x.parquet"])
def test_a_file_that_was_added_among_the_others_is_named(
    corpus: Corpus, state: dict[str, Any], tmp_path: Path, name: str
) -> None:
    other = copy(corpus, tmp_path / "copy")
    other.write(name, [[[1, 2, 3]]])
    message = mismatch(other, state)
    assert name in message
    assert "4 files here, 3 in the state" in message


@pytest.mark.parametrize("name", ["f0.parquet", "f1.parquet", "f2.parquet"])
def test_a_removed_file_is_named(corpus: Corpus, state: dict[str, Any], tmp_path: Path, name: str) -> None:
    other = copy(corpus, tmp_path / "copy")
    (other.folder / name).unlink()
    message = mismatch(other, state)
    assert name in message
    assert "2 files here, 3 in the state" in message


def test_a_difference_is_told_in_counts_where_no_table_of_files_is_kept(
    corpus: Corpus, state: dict[str, Any], tmp_path: Path
) -> None:
    """As on another machine, whose cache has not seen the old data."""
    other = copy(corpus, tmp_path / "copy")
    (other.folder / "f1.parquet").unlink()
    dataset = hr.open(other.folder, cache_dir=tmp_path / "cache").pack(**PACKING)
    with pytest.raises(hr.StateMismatch, match="2 files here, 3 in the state"):
        hr.DataLoader(dataset, 8).load_state_dict(state)


# Moved data


def test_data_in_another_folder_is_the_same(corpus: Corpus, state: dict[str, Any], tmp_path: Path) -> None:
    moved = copy(corpus, tmp_path / "elsewhere" / "with % and ü")
    for file in moved.folder.iterdir():
        os.utime(file, (1, 1))
    before, after = fresh(corpus), fresh(moved)
    before.load_state_dict(state)
    after.load_state_dict(state)
    assert after.state_dict() == before.state_dict()
    assert drain(after) == drain(before)


def renamed(corpus: Corpus, folder: Path) -> Corpus:
    """The same files in the same order by other names."""
    for name in corpus.files:
        (folder / "part").mkdir(parents=True, exist_ok=True)
        shutil.copy(corpus.folder / name, folder / "part" / f"new-{name}")
    return Corpus(folder, {f"part/new-{name}": groups for name, groups in corpus.files.items()})


def test_renamed_files_are_refused_unless_asked_for(corpus: Corpus, state: dict[str, Any], tmp_path: Path) -> None:
    moved = renamed(corpus, tmp_path / "renamed")
    loader = fresh(moved)
    with pytest.raises(
        hr.StateMismatch, match=r"(?s)'part/new-f0.parquet' here, 'f0.parquet' in the state.*strict=False"
    ):
        loader.load_state_dict(state)
    with pytest.warns(UserWarning, match="'part/new-f0.parquet' here, 'f0.parquet' in the state") as warned:
        loader.load_state_dict(state, strict=False)
    assert [Path(warning.filename) for warning in warned] == [Path(__file__)], "it points at the caller"
    before = fresh(corpus)
    before.load_state_dict(state)
    assert drain(loader) == drain(before)
    # From here on it is the state of the data as they are called now.
    again = fresh(moved)
    again.load_state_dict(loader.state_dict())
    assert again.step == loader.step


def test_files_in_another_order_are_other_data(corpus: Corpus, state: dict[str, Any], tmp_path: Path) -> None:
    other = copy(corpus, tmp_path / "copy")
    (other.folder / "f0.parquet").rename(other.folder / "g0.parquet")
    assert "f0.parquet" in mismatch(other, state)


def test_identity_does_not_depend_on_how_the_data_was_named(corpus: Corpus) -> None:
    """A folder, with a slash or through a link, or a list of its files: the same data, if paths below the root are."""
    states = []
    for name in (
        corpus.folder,
        f"{corpus.folder}/",
        f"file://{corpus.folder}",
        f"{corpus.folder}/../{corpus.folder.name}",
    ):
        states.append(hr.DataLoader(hr.open(name).pack(**PACKING), 8).state_dict())
    assert all(state == states[0] for state in states)


def test_identity_sees_where_row_groups_begin(write: CorpusWriter) -> None:
    """The same tokens in the same documents, stored otherwise, have another order."""
    states = [
        hr.DataLoader(write(numbered([lengths])).open(seq_len=2), 1).state_dict()
        for lengths in ([[2, 2, 4]], [[2], [2, 4]], [[2, 2], [4]])
    ]
    assert len({state["sources"][0]["content"] for state in states}) == 3

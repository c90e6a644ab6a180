"""Token files of others: flat ones, llm.c's, NumPy's, and Megatron-LM's."""

import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest

import headrace as hr

ROOT = Path(__file__).parent.parent
PEERS = ROOT / ".venv-peers/bin/python"

TOKENS = np.arange(1000, dtype=np.uint16) * 7


def opened(path, **settings) -> hr.StreamDataset:
    data = hr.open(path, **settings)
    assert isinstance(data, hr.StreamDataset)
    return data


def samples(dataset) -> np.ndarray:
    return np.stack([sample["tokens"] for sample in dataset])


# Flat files


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "uint32", "int64", "uint64", "float32"])
def test_flat_files_are_read_with_the_type_that_they_are_said_to_have(tmp_path, dtype):
    tokens = (TOKENS % 251).astype(dtype)
    tokens[:600].tofile(tmp_path / "a.bin")
    tokens[600:].tofile(tmp_path / "b.bin")
    data = opened(tmp_path, stored_dtype=dtype, sequence_length=70)
    assert (len(data), data.records, data.sequence_length) == (8 + 5, 1000, 70)
    assert samples(data).dtype == dtype
    parts = [tokens[:560].reshape(8, 70), tokens[600:950].reshape(5, 70)]
    assert np.array_equal(samples(data), np.concatenate(parts))
    overlapping = data.sequences(70, overlap=1)
    assert np.array_equal(overlapping[7]["tokens"], tokens[490:561])
    assert np.array_equal(samples(pickle.loads(pickle.dumps(overlapping)))[:, :70], samples(data))
    assert data.place(8).file == "b.bin"


@pytest.mark.parametrize("magic, version, dtype", [(20240520, 1, "uint16"), (20240801, 7, "uint32")])
def test_the_header_of_llm_c_says_what_a_token_is(tmp_path, magic, version, dtype):
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, 900
    (tmp_path / "train.bin").write_bytes(header.tobytes() + TOKENS[:900].astype(dtype).tobytes())
    data = hr.open(tmp_path / "train.bin", sequence_length=100)
    assert np.array_equal(samples(data), TOKENS[:900].reshape(9, 100))
    assert samples(data).dtype == dtype
    with pytest.raises(hr.DataError, match="expected uint8 as stored_dtype says, found uint"):
        hr.open(tmp_path / "train.bin", sequence_length=100, stored_dtype="uint8")
    (tmp_path / "train.bin").write_bytes(header.tobytes() + TOKENS[:800].astype(dtype).tobytes())
    with pytest.raises(hr.DataError, match=r"for 900 tokens of .*, found"):
        hr.open(tmp_path / "train.bin", sequence_length=100)


def test_arrays_of_numpy_are_read_in_one_dimension_and_in_two(tmp_path):
    np.save(tmp_path / "flat.npy", TOKENS.astype(">u2"))
    flat = hr.open(tmp_path / "flat.npy", sequence_length=100)
    assert np.array_equal(samples(flat), TOKENS.reshape(10, 100))
    assert np.array_equal(samples(flat.sequences(100, dtype="int32")), TOKENS.reshape(10, 100))
    np.save(tmp_path / "rows.npy", TOKENS.reshape(50, 20))
    rows = opened(tmp_path / "rows.npy", format="tokens")
    assert (len(rows), rows.sequence_length) == (50, 20)
    assert np.array_equal(samples(rows), TOKENS.reshape(50, 20))
    for wrong in (np.asfortranarray(TOKENS.reshape(50, 20)), TOKENS.reshape(5, 10, 20), TOKENS.astype(str)):
        np.save(tmp_path / "rows.npy", wrong)
        with pytest.raises(hr.DataError, match=r"expected numbers in one dimension, or in two in C order, found .*"):
            hr.open(tmp_path / "rows.npy", format="tokens")


@pytest.mark.parametrize("settings", [{"stored_dtype": "uint16"}, {"sequence_length": 5}, {"format": "tokens"}])
def test_an_empty_file_is_said_to_be_empty(tmp_path, settings):
    (tmp_path / "a.bin").touch()
    (tmp_path / "notes.md").write_text("empty")
    for place in (tmp_path, tmp_path / "a.bin"):
        with pytest.raises(hr.DataError, match=r"a\.bin: expected tokens, found an empty file$"):
            hr.open(place, **settings)
    (tmp_path / "b.npy").touch()
    with pytest.raises(hr.DataError, match=r"a\.bin: expected tokens, found an empty file, and 1 more$"):
        hr.open(tmp_path, **settings)


def test_a_wrong_width_is_refused_by_size_or_by_the_largest_id(tmp_path):
    """B074."""
    TOKENS[:999].tofile(tmp_path / "t.bin")
    with pytest.raises(hr.DataError, match=r"4 bytes each, found 1998 bytes"):
        hr.open(tmp_path / "t.bin", stored_dtype="uint32")
    TOKENS.tofile(tmp_path / "t.bin")
    with pytest.raises(hr.DataError, match=r"expected tokens below 7000 as vocab_size says, found 458752 at record 0"):
        hr.open(tmp_path / "t.bin", stored_dtype="uint32", vocab_size=7000)
    assert opened(tmp_path / "t.bin", stored_dtype="uint16", vocab_size=7000).records == 1000
    with pytest.raises(hr.DataError, match=r"found 6993 at record 999"):
        hr.open(tmp_path / "t.bin", stored_dtype="uint16", vocab_size=6993)


def test_what_cannot_be_meant_is_refused(tmp_path):
    TOKENS.tofile(tmp_path / "t.bin")
    with pytest.raises(ValueError, match=r"does not say what a token is: give stored_dtype"):
        hr.open(tmp_path / "t.bin", sequence_length=10)
    for wrong in ("object", "nonsense", "str", "S4"):
        with pytest.raises(ValueError, match="stored_dtype must be a type of numbers"):
            hr.open(tmp_path / "t.bin", stored_dtype=wrong)
    data = hr.open(tmp_path / "t.bin", stored_dtype="uint16")
    with pytest.raises(TypeError, match="does not say where documents end"):
        data.sequences(10, within_documents=True)
    with pytest.raises(ValueError, match="overlap must be"):
        data.sequences(10, overlap=11)
    with pytest.raises(ValueError, match='dtype must be None, "int32" or "int64"'):
        data.sequences(10, dtype="uint16")  # pyright: ignore
    # Without a word about tokens it is a file like any other.
    assert hr.open(tmp_path).info()["format"] == "files"
    (tmp_path / "t.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match="sequence_length is for token files and stores of records"):
        hr.open(tmp_path / "t.jsonl", sequence_length=4)


def test_numbers_that_do_not_fit_are_refused_by_name(tmp_path):
    np.array([1, 2**31, 3, 4], "<u4").tofile(tmp_path / "t.bin")
    data = hr.open(tmp_path / "t.bin", stored_dtype="uint32").sequences(2, dtype="int32")
    with pytest.raises(hr.DataError, match=r"t\.bin.* found 2147483648 at byte 4"):
        data[0]
    assert data[1]["tokens"].tolist() == [3, 4]
    assert data.sequences(2, dtype="int64")[0]["tokens"].tolist() == [1, 2**31]


def test_a_file_that_changed_is_an_error_and_not_other_tokens(tmp_path):
    TOKENS.tofile(tmp_path / "t.bin")
    data = hr.open(tmp_path / "t.bin", stored_dtype="uint16", sequence_length=100)
    assert data[9]["tokens"][0] == 6300
    TOKENS[:400].tofile(tmp_path / "t.bin")
    with pytest.raises(hr.DataError, match="changed"):
        data[0]


def test_more_than_two_to_the_32_tokens(tmp_path):
    """B076."""
    count = 2**32 + 1000
    with (tmp_path / "large.bin").open("wb") as file:
        file.truncate(2 * count)
        file.seek(2 * (count - 1000))
        file.write(TOKENS.tobytes())
    data = hr.open(tmp_path / "large.bin", stored_dtype="uint16", sequence_length=100)
    assert len(data) == count // 100
    last = (count // 100) * 100 - (count - 1000)
    assert np.array_equal(data[-1]["tokens"], TOKENS[last - 100 : last])
    loader = hr.DataLoader(data, batch_size=4, rank=0, world_size=1)
    loader.seek(10**6)
    batch = next(iter(loader))
    assert batch["tokens"].shape == (4, 100)
    assert int(batch.positions.max()) < len(data)


# Megatron-LM


@pytest.fixture(scope="module")
def megatron(tmp_path_factory) -> Path:
    if not PEERS.exists():
        pytest.skip("megatron-core is not installed: make .venv-peers/.installed")
    folder = tmp_path_factory.mktemp("megatron")
    done = subprocess.run([PEERS, ROOT / "tests/tools/write_megatron.py", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16"])
def test_megatrons_documents_of_all_types(megatron, dtype):
    with np.load(megatron / "documents.npz") as wanted:
        tokens, ends = wanted[dtype], wanted[f"{dtype}-ends"]
    data = hr.open(megatron / dtype)
    assert isinstance(data, hr.DocumentDataset)
    assert len(data) == len(ends) == 40
    for number, document in enumerate(data):
        assert document["tokens"].dtype == dtype
        assert np.array_equal(document["tokens"], tokens[0 if number == 0 else ends[number - 1] : ends[number]])
    stream = data.sequences(16)
    assert np.array_equal(samples(stream).reshape(-1), tokens[: len(stream) * 16])
    pieces = data.sequences(16, within_documents=True)
    assert sum(int(piece["loss_mask"].sum()) for piece in pieces) == len(tokens)


def test_damage_to_megatrons_files_is_named(megatron, tmp_path):
    for name in ("text.bin", "text.idx"):
        (tmp_path / name).write_bytes((megatron / "uint16" / name).read_bytes())
    index = (tmp_path / "text.idx").read_bytes()
    tokens = (tmp_path / "text.bin").read_bytes()
    (tmp_path / "text.bin").write_bytes(tokens[:-2])
    with pytest.raises(hr.DataError, match=r"text\.bin: expected \d+ tokens of uint16 as its index says"):
        hr.open(tmp_path)
    (tmp_path / "text.bin").write_bytes(tokens)
    for cut in (0, 5, 20, len(index) - 1):
        (tmp_path / "text.idx").write_bytes(index[:cut])
        with pytest.raises(hr.DataError, match=r"text\.idx: expected|expected text\.bin and text\.idx"):
            hr.open(tmp_path, format="megatron")
    rng = np.random.default_rng(0)
    messages: list[str] = []
    for _ in range(300):
        broken = bytearray(index)
        broken[rng.integers(len(broken))] ^= 1 << rng.integers(8)
        (tmp_path / "text.idx").write_bytes(broken)
        try:
            found = [document["tokens"].dtype.kind for document in hr.open(tmp_path, format="megatron")]
        except hr.DataError as error:
            messages.append(str(error))
        else:
            assert set(found) <= set("iuf")
    assert len(messages) > 100
    assert all(str(tmp_path) in message for message in messages)
    (tmp_path / "text.idx").unlink()
    with pytest.raises(hr.DataError, match="found only one of them"):
        hr.open(tmp_path, format="megatron")

"""Encoders: every kind of tokenizer gives the ids that its own package gives, around which bos and eos are put."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import MissingError
from headrace.tokenizing import Encoded, encoder_of
from tokenizer_files import END, TEXTS, byte_encoding, byte_level, letters, saved, utf8

ROOT = Path(__file__).parent.parent
PEERS = ROOT / ".venv-peers/bin/python"


def documents(encoded: Encoded) -> list[list[int]]:
    assert encoded.lengths.dtype == np.int64
    assert encoded.lengths.sum() == len(encoded.ids)
    return [part.tolist() for part in np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])]


def theirs(tokenizer: Any) -> list[list[int]]:
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]


def test_a_tokenizers_object_gives_its_own_ids() -> None:
    tokenizer = byte_level()
    encoder = encoder_of(tokenizer, eos=False)
    assert documents(encoder.encode(TEXTS)) == theirs(tokenizer)
    assert (encoder.vocab_size, encoder.dtype) == (tokenizer.get_vocab_size(), np.uint16)


def test_a_file_and_a_folder_give_the_ids_of_the_object(tmp_path: Path) -> None:
    file = saved(tmp_path)
    for path in (file, str(file), tmp_path):
        encoder = encoder_of(path, eos=False)
        assert documents(encoder.encode(TEXTS)) == theirs(byte_level())
        assert encoder.digest == encoder_of(byte_level(), eos=False).digest


def test_what_pads_cuts_or_adds_special_tokens_does_not() -> None:
    from tokenizers import ByteLevelBPETokenizer, processors

    tokenizer, plain = byte_level(), byte_level()
    tokenizer.enable_padding(length=50)
    tokenizer.enable_truncation(3)
    tokenizer.post_processor = processors.TemplateProcessing(f"{END} $A {END}", special_tokens=[(END, 0)])
    assert documents(encoder_of(tokenizer, eos=False).encode(TEXTS)) == theirs(plain)
    assert tokenizer.padding["length"] == 50, "the user's tokenizer is not changed"
    wrapped = ByteLevelBPETokenizer()
    wrapped.add_tokens(["a", "b"])
    assert documents(encoder_of(wrapped, eos=False).encode(["ab", "c"])) == [[0, 1], []]


def test_texts_that_spell_special_tokens_are_up_to_the_tokenizer() -> None:
    tokenizer = byte_level()
    assert documents(encoder_of(tokenizer, eos=False).encode([END])) == [[0]]
    tokenizer.encode_special_tokens = True
    encoder = encoder_of(tokenizer, eos=False)
    assert len(documents(encoder.encode([END]))[0]) > 1
    assert encoder.digest != encoder_of(byte_level(), eos=False).digest
    again = pickle.loads(pickle.dumps(encoder))
    assert documents(again.encode([END])) == documents(encoder.encode([END]))


def test_a_tiktoken_encoding_gives_its_own_ids() -> None:
    encoding = byte_encoding()
    encoder = encoder_of(encoding, eos=False)
    assert documents(encoder.encode(TEXTS)) == [encoding.encode_ordinary(text) for text in TEXTS]
    assert (encoder.vocab_size, encoder.dtype) == (301, np.uint16)
    assert encoder_of(encoding).eos_id == 300
    assert encoder_of(encoding, eos=False).digest == encoder.digest
    with pytest.raises(ValueError, match=r"tiktoken bytes: expected a bos token, found none of <s>, .*\nhint: "):
        encoder_of(encoding, bos=True)
    with pytest.raises(ValueError, match=r"expected an encoding of tiktoken, one of gpt2, .*, found 'gpt5'"):
        encoder_of("tiktoken:gpt5")


def test_functions_give_lists_and_arrays() -> None:
    encoder = encoder_of(letters, eos=10)
    assert documents(encoder.encode(["ab", "", "ä"])) == [[97, 98, 10], [], [228, 10]]
    assert (encoder.vocab_size, encoder.dtype) == (None, np.int32)
    narrow = encoder_of(utf8, eos=0, vocab_size=256)
    assert documents(narrow.encode(["ä"])) == [[195, 164, 0]]
    assert narrow.dtype == np.uint8
    assert encoder.digest != narrow.digest


IDS = st.lists(st.lists(st.integers(0, 999), max_size=5), max_size=8)


@given(rows=IDS, bos=st.one_of(st.just(False), st.integers(0, 999)), eos=st.one_of(st.just(False), st.integers(0, 999)))
def test_bos_and_eos_stand_around_each_document_that_has_a_token(rows: list[list[int]], bos: Any, eos: Any) -> None:
    encoder = encoder_of(lambda text: rows[int(text)], bos=bos, eos=eos, vocab_size=1000)
    before, after = ([] if token is False else [token] for token in (bos, eos))
    expected = [[*before, *row, *after] if row else [] for row in rows]
    encoded = encoder.encode([str(number) for number in range(len(rows))])
    assert encoded.ids.dtype == np.uint16
    assert (documents(encoded) if rows else []) == expected


@pytest.mark.parametrize(
    "size, dtype", [(1, "u1"), (256, "u1"), (257, "u2"), (65536, "u2"), (65537, "i4"), (2**31, "i4"), (2**31 + 1, "i8")]
)
def test_ids_have_the_smallest_type_that_holds_the_vocabulary(size: int, dtype: str) -> None:
    encoder = encoder_of(lambda text: [size - 1], eos=False, vocab_size=size)
    assert encoder.dtype == np.dtype(dtype)
    assert encoder.encode(["x"]).ids.tolist() == [size - 1]
    beyond = encoder_of(lambda text: [0, size], eos=False, vocab_size=size)
    with pytest.raises(ValueError, match=rf"expected ids below {size:,}, found {size:,}\nhint: give vocab_size"):
        beyond.encode(["x"])


def test_a_vocabulary_with_holes_counts_to_its_largest_id() -> None:
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 70_000}, unk_token="a"))
    encoder = encoder_of(tokenizer, eos=False)
    assert (encoder.vocab_size, encoder.dtype) == (70_001, np.int32)
    assert encoder.encode(["b"]).ids.tolist() == [70_000]
    with pytest.raises(ValueError, match="vocab_size must be at least 70,001, as tokenizers WordLevel has it, got 5"):
        encoder_of(tokenizer, eos=False, vocab_size=5)


class TestSpecialTokens:
    def test_are_found_by_their_usual_names(self) -> None:
        encoder = encoder_of(byte_level(special=("<s>", "</s>")), bos=True)
        assert (encoder.bos_id, encoder.eos_id) == (0, 1)
        assert repr(encoder) == "Encoder(tokenizers BPE: 300 ids, bos 0, eos 1)"

    def test_are_refused_if_none_or_several_are_there(self) -> None:
        with pytest.raises(ValueError, match=r"expected a eos token, found none of </s>, <eos>, .*\nhint: give its id"):
            encoder_of(byte_level(special=()))
        with pytest.raises(ValueError, match=r"expected one eos token, found </s>, <\|endoftext\|>\nhint: give its id"):
            encoder_of(byte_level(special=(END, "</s>")))
        with pytest.raises(ValueError, match="which a function does not tell\nhint: give it, eos=<id>"):
            encoder_of(letters)

    def test_may_be_numbers_and_zero_is_not_false(self) -> None:
        encoder = encoder_of(byte_level(), bos=0, eos=np.int64(1))
        assert (encoder.bos_id, encoder.eos_id) == (0, 1)
        with pytest.raises(ValueError, match="eos must be an id of tokenizers BPE, 0 to 299, got 300"):
            encoder_of(byte_level(), eos=300)
        assert encoder_of(byte_level(), eos=300, vocab_size=301).eos_id == 300
        with pytest.raises(TypeError, match=r"bos must be an integer, got 1.5"):
            encoder_of(byte_level(), bos=1.5)  # type: ignore[arg-type]

    def test_are_those_of_the_settings_beside_a_file(self, tmp_path: Path) -> None:
        saved(tmp_path, special=(END, "</s>", "<end>"))
        settings = tmp_path / "tokenizer_config.json"
        settings.write_text(json.dumps({"eos_token": {"content": "<end>"}, "bos_token": None}))
        assert encoder_of(tmp_path).eos_id == 2
        with pytest.raises(ValueError, match="expected a bos token, found that its settings have none"):
            encoder_of(tmp_path, bos=True)
        settings.write_text(json.dumps({"eos_token": "<unknown>"}))
        with pytest.raises(ValueError, match=r"expected a eos_token that tokenizer.json has, found '<unknown>'"):
            encoder_of(tmp_path)
        settings.write_text("[")
        with pytest.raises(ValueError, match="expected the settings of a tokenizer as JSON"):
            encoder_of(tmp_path)


def test_pickles_for_other_processes(tmp_path: Path) -> None:
    for encoder in (
        encoder_of(byte_level(), bos=3),
        encoder_of(saved(tmp_path), eos=True),
        encoder_of(byte_encoding()),
        encoder_of(letters, eos=7),
    ):
        again = pickle.loads(pickle.dumps(encoder))
        assert documents(again.encode(TEXTS)) == documents(encoder.encode(TEXTS))
        assert (again.digest, repr(again), again.dtype) == (encoder.digest, repr(encoder), encoder.dtype)


def test_the_digest_is_that_of_every_process(tmp_path: Path) -> None:
    file = saved(tmp_path)
    code = "import sys; from headrace.tokenizing import encoder_of; print(encoder_of(sys.argv[1]).digest)"
    run = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == encoder_of(file).digest
    assert encoder_of(byte_level(290)).digest != encoder_of(file).digest


def test_threads_may_share_an_encoder() -> None:
    encoder = encoder_of(byte_level())
    expected = documents(encoder.encode(TEXTS))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: documents(encoder.encode(TEXTS)), range(40)))
    assert all(each == expected for each in found)


def test_a_forked_child_may_use_an_encoder_without_a_warning(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys; from headrace.tokenizing import encoder_of; e = encoder_of(sys.argv[1]);"
        "e.encode(['a'] * 100); subprocess.run(['true'], process_group=0); print(e.encode(['a']).lengths.tolist())"
    )
    environ = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    command = [sys.executable, "-c", code, str(saved(tmp_path))]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    assert (run.stdout.strip(), run.stderr) == ("[2]", "")


class TestRefuses:
    @pytest.mark.parametrize("make", [byte_level, byte_encoding], ids=["tokenizers", "tiktoken"])
    def test_what_is_no_text(self, make: Callable[[], Any]) -> None:
        encoder = encoder_of(make())
        with pytest.raises(TypeError, match="expected text, found a int"):
            encoder.encode(["a", 5])  # type: ignore[list-item]
        with pytest.raises(ValueError, match=r"expected text that UTF-8 can hold, found surrogates not allowed at 1"):
            encoder.encode(["a", "b\ud800"])

    @pytest.mark.parametrize(
        "gives, error, message",
        [
            ("text", TypeError, "expected a list or an array of ids with 1 dimension, found str"),
            (5, TypeError, "found int"),
            ([1.5], TypeError, "found an array of float64 with 1 dimensions"),
            ([[1], [2]], TypeError, "found an array of int64 with 2 dimensions"),
            ([[1], [2, 3]], ValueError, "found one that is no array"),
            ([2**64], TypeError, "found an array of object"),
            (np.array([2**63], np.uint64), ValueError, "expected ids of at most 63 bits, found 9223372036854775808"),
            ([3, -1], ValueError, "expected ids from 0 on, found -1"),
            ([2**31], ValueError, "expected ids below 2,147,483,648, found 2,147,483,648"),
        ],
    )
    def test_what_functions_must_not_give(self, gives: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            encoder_of(lambda text: gives, eos=False).encode(["x"])

    def test_a_panic_becomes_an_exception(self) -> None:
        panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})

        def panics(text: str) -> Any:
            raise panic("index out of bounds")

        with pytest.raises(RuntimeError, match="the tokenizer panicked: index out of bounds"):
            encoder_of(panics, eos=False).encode(["x"])

    def test_what_is_no_tokenizer(self, tmp_path: Path) -> None:
        with pytest.raises(TypeError, match=r"tokenizer must be the path of a tokenizer.json, .*, got a int"):
            encoder_of(5)
        with pytest.raises(MissingError, match=r"none\.json: expected a tokenizers JSON file, found none"):
            encoder_of(tmp_path / "none.json")
        (tmp_path / "tokenizer.json").write_text("{}")
        with pytest.raises(ValueError, match=r"tokenizer\.json: expected a tokenizers JSON file: "):
            encoder_of(tmp_path)

    def test_packages_that_are_not_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = saved(tmp_path)
        monkeypatch.setitem(sys.modules, "tokenizers", None)
        monkeypatch.setitem(sys.modules, "tiktoken", None)
        with pytest.raises(ImportError, match="needs tokenizers\nhint: pip install"):
            encoder_of(file)
        with pytest.raises(ImportError, match="tiktoken:gpt2 needs tiktoken\nhint: pip install tiktoken"):
            encoder_of("tiktoken:gpt2")


TRANSFORMERS = """
import json, pickle, sys, tempfile
from pathlib import Path
from transformers import BertTokenizer, GPT2Tokenizer, PreTrainedTokenizerFast
from headrace.tokenizing import encoder_of

texts, file = json.loads(sys.argv[1]), sys.argv[2]
fast = PreTrainedTokenizerFast(tokenizer_file=file, eos_token="<|endoftext|>", pad_token="<|endoftext|>")
fast(texts, padding=True, max_length=4, truncation=True, **{"split_special_tokens": True})
words = Path(file).with_name("vocab.txt")
words.write_text("\\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "quick", "##er", "x"]))
slow = BertTokenizer(str(words))
assert fast.is_fast
for tokenizer, eos in ((fast, True), (slow, 3)):
    encoder = pickle.loads(pickle.dumps(encoder_of(tokenizer, eos=eos)))
    ids, lengths = encoder.encode(texts)
    ends = lengths.cumsum().tolist()
    found = [ids[end - length : end].tolist() for end, length in zip(ends, lengths.tolist())]
    expected = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert found == [[*row, encoder.eos_id] if row else [] for row in expected], (found, expected)
    try:
        encoder_of(tokenizer, bos=True)
    except ValueError as error:
        assert "expected a bos token" in str(error)
    else:
        raise AssertionError("a bos token from nowhere")
print(encoder_of(fast), encoder_of(slow, eos=3), slow.is_fast)
digests = [encoder_of(BertTokenizer(str(words), do_lower_case=lower), eos=3).digest for lower in (True, True, False)]
assert digests[0] == digests[1] != digests[2], digests
merges = []
for order in (["t h", "h e"], ["h e", "t h"]):
    folder = Path(tempfile.mkdtemp(dir=words.parent))
    pieces = ["t", "h", "e", "th", "he", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("\\n".join(["#version: 0.2", *order, ""]))
    one = GPT2Tokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    merges.append((one("the")["input_ids"], encoder_of(one).digest))
assert merges[0][0] != merges[1][0] and merges[0][1] != merges[1][1], merges
"""


def test_tokenizers_of_transformers_give_their_own_ids(tmp_path: Path) -> None:
    if not PEERS.exists():
        pytest.skip("transformers is not installed: make .venv-peers/.installed")
    command = [PEERS, "-c", TRANSFORMERS, json.dumps(TEXTS), saved(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    run = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert run.returncode == 0, run.stderr
    assert "Encoder(tokenizers BPE: 300 ids, bos None, eos 0)" in run.stdout
    assert "Encoder(transformers BertTokenizer: 9 ids, bos None, eos 3) False" in run.stdout

"""What went wrong for users of other packers and token files, tried on every kind of pipeline that has tokens.

The ids in docstrings are those of the collected cases; `APPLIES` says of which kinds each can be true.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.testing import check_resume
from kinds import KINDS, Documents, tokens_of
from packing_kinds import PACKINGS

PACKED = tuple(PACKINGS)
BEST_FIT = tuple(name for name, packing in PACKINGS.items() if packing.mode == "best_fit")
RECORDS = ("pieces", "sequences")
"""Samples that are cut from records: within documents, and across their ends."""
OTHERS = tuple(name for name in KINDS if name not in PACKINGS)
"""Kinds that do not pack, or as one above does."""

APPLIES: Mapping[str, tuple[str, ...]] = {
    "B058": BEST_FIT,
    "B059": PACKED,
    "B061": (*PACKED, "pieces"),
    "B062": (*PACKED, *RECORDS),
    "B064": (*PACKED, *RECORDS),
    "B065": PACKED,
    "B067": PACKED,
    "B068": (*PACKED, "pieces"),
    "B070": (*PACKED, *RECORDS),
    "B071": (*PACKED, "pieces"),
    "B073": (*PACKED, *RECORDS, *OTHERS),
    "B074": tuple(name for name, packing in PACKINGS.items() if packing.stored != "lines") + RECORDS,
    "B076": (
        # Those whose places are counts of tokens, or of bytes.
        *("counted", "mixture of counted", *RECORDS),
        *(name for name, packing in PACKINGS.items() if packing.stored == "records"),
    ),
    "B077": (*PACKED, *RECORDS),
}
"""The cap on documents is of rows that are filled from a choice of them, masks and boundaries of rows that have them,
widths of files that store them.
"""

_shown: dict[str, set[str]] = {case: set() for case in APPLIES}


def shows(names: Iterable[str], *cases: str) -> pytest.MarkDecorator:
    """Parametrizes a test by the names of kinds, and notes for which cases it stands."""
    found = list(names)
    for case in cases:
        _shown[case] |= set(found)
    return pytest.mark.parametrize("name", found)


@pytest.mark.parametrize("case", APPLIES)
def test_each_case_is_shown_of_every_kind_that_it_applies_to(case: str) -> None:
    assert _shown[case] == set(APPLIES[case])


def test_every_kind_of_pipeline_is_in_the_table() -> None:
    named = {name for names in APPLIES.values() for name in names}
    assert named >= {*KINDS, *PACKINGS, *RECORDS}


# Documents whose tokens look like ends

SEQ_LEN = 9
END = 7
BOS, EOS, PAD = -3, -2, -1


def chat(number: int) -> list[int]:
    """A document of number % 4 turns of three tokens, of which the first may be an end token: some hold nothing."""
    return [END if turn % 2 else number * 100 + turn for turn in range(3 * (number % 4))]


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Documents:
    return Documents(tmp_path_factory.mktemp("chats") / "documents", range(40), tokens=chat)


def loader_of(data: Any, batch: int = 4, **arguments: Any) -> hr.DataLoader:
    return hr.DataLoader(data, global_batch_size=batch, **{"num_workers": 0, **arguments})


def check_rows(documents: Documents, batch: Any) -> list[Any]:
    """Whether a batch is what its sources say, and nothing else; gives these."""
    tokens, ids, positions = batch["tokens"], batch["document_ids"], batch["position_ids"]
    mask = batch["loss_mask"] if "loss_mask" in batch else np.ones_like(tokens)
    assert tokens.shape == ids.shape == positions.shape == mask.shape
    offsets = batch["cu_seqlens"]
    assert (np.diff(offsets) > 0).all()
    assert (offsets[0], offsets[-1]) == (0, tokens.size)
    assert batch["max_seqlen"] == np.diff(offsets).max()
    ends = {place for row in ids for place in np.flatnonzero(np.diff(row, append=-1)) + 1}
    assert ends == {*(offsets[1:] % tokens.shape[1])} - {0} | {tokens.shape[1]}
    sources = batch.sources()
    for row, parts in enumerate(sources):
        stored = [token for part in parts for token in documents.tokens_at(part)]
        assert [token for token in tokens[row].tolist() if token >= 0] == stored != []
        assert mask[row].tolist() == [int(token != PAD) for token in tokens[row].tolist()]
        count = int(mask[row].sum())
        assert mask[row, :count].all(), "padding is at the end"
        assert ids[row, :count].max() == len(parts) - 1
        runs = [np.flatnonzero(ids[row] == part) for part in range(ids[row].max() + 1)]
        assert np.concatenate(runs).tolist() == list(range(tokens.shape[1]))
        assert positions[row].tolist() == [place for run in runs for place in range(len(run))]
        if not {BOS, EOS} & {*tokens.ravel().tolist()}:
            assert [len(run) for run in runs[: len(parts)]] == [part.tokens for part in parts]
    return sources


@shows(PACKED, "B062", "B064", "B067", "B071")
@pytest.mark.parametrize("added", [{}, {"bos_id": BOS, "eos_id": EOS}, {"eos_id": END}], ids=["none", "both", "end"])
def test_boundaries_come_from_documents(chats: Documents, name: str, added: dict[str, int]) -> None:
    """B062, B064, B067, B071: ends found by a token, an empty part, a row of padding."""
    data = PACKINGS[name].pack(chats, SEQ_LEN, boundaries=True, pad_id=PAD, **added)
    for batch in islice(loader_of(data), 8):
        if added.get("eos_id") != END:
            check_rows(chats, batch)
            continue
        # An end that is added is of its document.
        for row, parts in enumerate(batch.sources()):
            ids = batch["document_ids"][row]
            values = [batch["tokens"][row][ids == part].tolist() for part in range(len(parts))]
            stored = [chats.tokens_at(part) for part in parts]
            assert all(found in (wanted, [*wanted, END]) for found, wanted in zip(values, stored, strict=True))


@shows(["pieces"], "B061", "B062", "B064", "B068", "B071")
def test_pieces_of_documents_have_a_mask_by_their_lengths(chats: Documents, name: str) -> None:
    """B061, B062, B064, B068, B071: ends found by a token, a mask of padding's id, a row of padding."""
    del name
    data = chats.records.sequences(4, within_documents=True, pad_id=END)
    found: list[list[int]] = []
    for batch in loader_of(data, shuffle=False):
        mask = batch["loss_mask"]
        assert (mask.dtype, mask.shape) == (np.uint8, batch["tokens"].shape)
        lengths = mask.sum(axis=1)
        assert mask.tolist() == (np.arange(4) < lengths[:, None]).astype(int).tolist()
        assert lengths.all()
        found += [row[:length].tolist() for row, length in zip(batch["tokens"], lengths, strict=True)]
    assert found == [one[at : at + 4] for one in chats.tokens for at in range(0, len(one), 4)]


@shows(["sequences"], "B062", "B064")
def test_sequences_do_not_look_for_ends(chats: Documents, name: str) -> None:
    """B062, B064: tokens of the same value as an end are tokens like others."""
    del name
    stored = [token for document in chats.tokens for token in document]
    found = [row.tolist() for batch in loader_of(chats.records.sequences(4), shuffle=False) for row in batch["tokens"]]
    assert found == [stored[at : at + 4] for at in range(0, len(stored) - 3, 4)]


@shows(PACKED, "B061", "B068")
def test_masks_are_zeros_and_ones_of_the_rows_shape(chats: Documents, name: str) -> None:
    """B061, B068: filled up with a token's id, or shorter than the tokens; here of documents to do without, too."""
    data = PACKINGS[name].pack(chats, SEQ_LEN, boundaries=True, pad_id=PAD)
    first = loader_of(data)
    batches = list(islice(first, 6))
    excluded = {part.id for batch in batches[2:4] for row in batch.sources() for part in row[:1]}
    loader = loader_of(data, exclude=sorted(excluded))
    with pytest.warns(UserWarning, match="exclude"):
        loader.load_state_dict(batches[1].state, strict=False)
    masked = 0
    for batch, whole in zip(loader, batches[2:], strict=False):
        mask = batch["loss_mask"]
        assert (mask.dtype, mask.shape) == (np.uint8, (4, SEQ_LEN))
        assert all(batch[key].shape == mask.shape for key in ("tokens", "document_ids", "position_ids"))
        assert batch["tokens"].tolist() == whole["tokens"].tolist()
        wanted = [[int(part.id not in excluded) for part in row for _ in range(part.tokens)] for row in batch.sources()]
        assert mask.tolist() == [row + [0] * (SEQ_LEN - len(row)) for row in wanted]
        masked += sum(row.count(0) for row in wanted)
    assert masked > 10


@shows(PACKED, "B065")
def test_positions_go_on_where_a_run_was_saved(chats: Documents, name: str) -> None:
    """B065: positions ran on across documents, or began elsewhere after a resume."""
    data = PACKINGS[name].pack(chats, 5, boundaries=True)
    checked = check_resume(data, steps=4, global_batch_size=4, world_sizes=(1, 2, 4), restarts=2)
    assert checked.restarts == 10
    assert all({"position_ids", "document_ids"} <= batch.keys() for batch in islice(loader_of(data), 1))


# Documents of other lengths


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Documents:
    """One token each."""
    return Documents(tmp_path_factory.mktemp("single") / "documents", range(64), tokens=lambda number: [number])


@shows(BEST_FIT, "B058")
def test_no_row_has_more_documents_than_asked_for(single: Documents, name: str) -> None:
    """B058: the limit held for the first batch alone."""
    data = PACKINGS[name].pack(single, 50, max_documents=4)
    for batch in islice(loader_of(data), 12):
        assert batch["loss_mask"].sum(axis=1).tolist() == [4] * 4
        assert [len(parts) for parts in batch.sources()] == [4] * 4


@pytest.fixture(scope="module")
def equal(tmp_path_factory: pytest.TempPathFactory) -> Documents:
    """64 tokens each."""
    return Documents(tmp_path_factory.mktemp("equal") / "documents", range(64), tokens=lambda number: [number + 1] * 64)


@shows(PACKED, "B059")
def test_rows_are_as_full_whatever_their_length(equal: Documents, name: str) -> None:
    """B059: nothing was packed unless the length was a power of two."""
    for seq_len in (256, 257, 319):
        wanted = {"concat": seq_len, "best_fit": 256, "pad": 64, "truncate": 64}[PACKINGS[name].mode]
        data = PACKINGS[name].pack(equal, seq_len)
        for batch in islice(loader_of(data), 4):
            assert (batch["tokens"] > 0).sum(axis=1).tolist() == [wanted] * 4


@shows(PACKED, "B070")
def test_documents_of_one_token_fill_rows(single: Documents, name: str) -> None:
    """B070: a corpus of one-sentence documents gave an empty index, or a hang."""
    packing = PACKINGS[name]
    loader = loader_of(packing.pack(single, 5, boundaries=True, pad_id=PAD))
    seen = Counter[int]()
    for batch in islice(loader, 24):
        check_rows(single, batch)
        lengths = {len(parts) for parts in batch.sources()}
        assert lengths == ({5} if packing.mode in ("concat", "best_fit") else {1})
        seen.update(token for token in batch["tokens"].ravel().tolist() if token != PAD)
    assert set(seen) == {*range(64)}


@shows(RECORDS, "B070")
def test_records_of_one_token_documents_are_cut_as_any(single: Documents, name: str) -> None:
    """B070: a corpus of one-sentence documents gave an empty index, or a hang."""
    data = single.records.sequences(5, within_documents=name == "pieces")
    assert len(data) == (64 if name == "pieces" else 12)
    assert sum(len(batch["tokens"]) for batch in loader_of(data)) == len(data)


@pytest.fixture(scope="module")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Documents:
    """Documents without a token."""
    return Documents(tmp_path_factory.mktemp("nothing") / "documents", range(8), tokens=lambda _: [])


@shows((*PACKED, *RECORDS), "B070")
def test_documents_without_a_token_are_told(nothing: Documents, name: str) -> None:
    """B070: an empty index, or a hang. The error says what there is none of."""
    message = "no token|no sample|nothing is left of its items"
    with pytest.raises(ValueError, match=message):  # noqa: PT012
        if name in PACKINGS:
            data = PACKINGS[name].pack(nothing, 5)
        else:
            data = nothing.records.sequences(5, within_documents=name == "pieces")
        next(iter(loader_of(data)))


@shows((name for name in PACKED if PACKINGS[name].functions), "B070")
def test_a_filter_that_leaves_nothing_is_named(single: Documents, name: str) -> None:
    """B070: an empty index, or a hang."""
    filtered = single.samples.filter(_never).flat_map(_listed)
    mode = PACKINGS[name].mode
    packed, whole = filtered.pack(5, mode=mode), PACKINGS[name].pack(single, 5)
    for data in (packed, hr.mix({"none": (packed, 1), "all": (whole, 1)})):
        with pytest.raises(hr.DataError, match=r"nothing is left of its items.*_never"):
            list(islice(loader_of(data), 2))


def _never(sample: dict[str, Any]) -> bool:
    return sample["id"] < 0


def _listed(sample: dict[str, Any]) -> list[dict[str, Any]]:
    return [sample]


# Widths and sizes

EDGES = (65535, 65536, 2**31 - 1)


def wide(number: int) -> list[int]:
    """A document whose tokens are on both sides of 16 bits, and the largest of 32."""
    return [number * 100, *EDGES]


@pytest.fixture(scope="module")
def wides(tmp_path_factory: pytest.TempPathFactory) -> Documents:
    numbers = [*range(1, 40), 655, 656, 65535, 65536, 2**24 + 1]
    return Documents(tmp_path_factory.mktemp("wides") / "documents", numbers, tokens=wide)


def seen_in(data: Any, column: str, **arguments: Any) -> tuple[Any, set[int]]:
    """The type of some column, and what is in it in the first steps: more than two passes."""
    found: set[int] = set()
    batches = list(islice(loader_of(data, **arguments), 24))
    while len(batches) < 24:
        batches += list(loader_of(data, **arguments | {"seed": len(batches)}))
    for batch in batches:
        found |= {*np.asarray(batch[column]).ravel().tolist()}
    return batches[0][column].dtype, found


@shows(PACKED, "B073")
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_packed_tokens_keep_all_their_bits(wides: Documents, name: str, dtype: str) -> None:
    """B073: ids above 65535 stored in 16 bits."""
    found, values = seen_in(PACKINGS[name].pack(wides, 6, dtype=dtype, pad_id=PAD), "tokens")
    assert found == dtype
    assert values - {PAD} == {*EDGES, *(number * 100 for number in wides.numbers)}


@shows(RECORDS, "B073")
@pytest.mark.parametrize("dtype", [None, "int32", "int64"])
def test_sequences_keep_all_bits_of_tokens(wides: Documents, name: str, dtype: Any) -> None:
    """B073: ids above 65535 stored in 16 bits."""
    data = wides.records.sequences(4, within_documents=name == "pieces", dtype=dtype)
    found, values = seen_in(data, "tokens")
    assert found == (dtype or "int32")
    assert values == {*EDGES, *(number * 100 for number in wides.numbers)}


@shows(OTHERS, "B073")
def test_all_kinds_keep_all_bits_of_what_they_give(wides: Documents, name: str) -> None:
    """B073: ids above 65535 stored in 16 bits."""
    kind = KINDS[name]
    data = kind.make(wides)
    column = "tokens" if "tokens" in next(iter(loader_of(data))) else "id"
    _, values = seen_in(data, column, **kind.arguments)
    wanted = {*EDGES, *(number * 100 for number in wides.numbers)} if column == "tokens" else {*wides.numbers}
    # Some documents are filtered out of one source of a mixture, and all are in the other.
    assert values - {0} == wanted


@pytest.fixture(scope="module")
def beyond(tmp_path_factory: pytest.TempPathFactory) -> Documents:
    """The last document has a token that 32 bits do not hold."""
    tokens: Callable[[int], list[int]] = lambda number: [number, 2**31 if number == 11 else 5]  # noqa: E731
    return Documents(tmp_path_factory.mktemp("beyond") / "documents", range(12), tokens=tokens, stored="int64")


@shows((*PACKED, *RECORDS), "B073")
def test_tokens_that_do_not_fit_are_refused_by_their_place(beyond: Documents, name: str) -> None:
    """B073: another id came of it."""
    if name in PACKINGS:
        data = PACKINGS[name].pack(beyond, 2)
    else:
        data = beyond.records.sequences(2, within_documents=name == "pieces", dtype="int32")
    place = {"parquet": r"00\.parquet", "lines": r"03\.jsonl", "records": r"shard-0+\.bin"}
    stored = place[PACKINGS[name].stored] if name in PACKINGS else place["records"]
    if name.startswith("mixture of") and name != "mixture of counted":
        stored = f"{place['parquet']}|{place['records']}"
    with pytest.raises(hr.DataError, match="2147483648") as refusal:
        list(islice(loader_of(data, shuffle=False), 16))
    told = "\n".join([str(refusal.value), *getattr(refusal.value, "__notes__", [])])
    assert re.search(stored, told), told


@pytest.fixture(scope="module")
def stored_as(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Documents]:
    """The same documents in files of several widths."""
    folder = tmp_path_factory.mktemp("stored")
    tokens: Callable[[int], list[int]] = lambda number: [number * 7, 65535 - number, number]  # noqa: E731
    return {
        stored: Documents(folder / stored, range(24), tokens=tokens, stored=stored)
        for stored in ("int32", "uint16", "uint32", "int64", "uint64")
    }


@shows(APPLIES["B074"], "B074")
def test_the_width_is_stored_with_the_tokens(stored_as: Mapping[str, Documents], name: str) -> None:
    """B074: a file of 16 bits that was read as one of 32. The files say it, and every width gives the same rows."""
    rows: dict[str, list[Any]] = {}
    for stored, documents in stored_as.items():
        if name in PACKINGS:
            data = PACKINGS[name].pack(documents, 4)
        else:
            data = documents.records.sequences(4, within_documents=name == "pieces", dtype="int32")
        rows[stored] = [batch["tokens"].tolist() for batch in islice(loader_of(data), 5)]
    assert len(rows["int32"]) == 5
    assert 65535 in {token for batch in rows["int32"] for row in batch for token in row}
    assert [stored for stored in rows if rows[stored] != rows["int32"]] == []


class Large:
    """More than 2**32 tokens, and the documents at their end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._write_columns(folder / "parquet")
        self._write_megatron(folder / "megatron")

    def _write_columns(self, folder: Path, links: int = 257) -> None:
        """One file of 2**24 tokens by many names, which takes a few kB, and a small one behind them."""
        folder.mkdir()
        values = pa.array(np.repeat(np.arange(16, dtype=np.int32), 2**20))
        column = pa.ListArray.from_arrays(pa.array(np.arange(17, dtype=np.int32) * 2**20), values)
        pq.write_table(pa.table({"tokens": column}), folder / "000.parquet")
        for number in range(1, links):
            os.link(folder / "000.parquet", folder / f"{number:03}.parquet")
        pq.write_table(
            pa.table({"tokens": pa.array(map(tokens_of, range(24)), pa.list_(pa.int32()))}), folder / "z.parquet"
        )

    def _write_megatron(self, folder: Path) -> None:
        """Two documents of 2**31 - 1 tokens in a file with a hole, and small ones behind them."""
        folder.mkdir()
        small = [tokens_of(number) for number in range(24)]
        sizes = np.array([2**31 - 1, 2**31 - 1, *map(len, small)], "<i4")
        begins = np.concatenate([[0], np.cumsum(sizes.astype(np.int64))])
        with (folder / "a.idx").open("wb") as file:
            file.write(b"MMIDIDX\x00\x00" + np.uint64(1).tobytes() + np.uint8(8).tobytes())
            file.write(np.array([len(sizes), len(sizes) + 1], "<u8").tobytes())
            file.write(sizes.tobytes() + (begins[:-1] * 2).tobytes() + np.arange(len(sizes) + 1, dtype="<i8").tobytes())
        with (folder / "a.bin").open("wb") as file:
            file.truncate(2 * int(begins[-1]))
            file.seek(2 * int(begins[2]))
            file.write(np.concatenate(small).astype("<u2").tobytes())

    @property
    def records(self) -> "Large":
        return self

    def documents(self) -> Any:
        return hr.open(self.folder / "megatron").skip(2)

    def sequences(self, length: int, **options: Any) -> Any:
        found = hr.open(self.folder / "megatron")
        assert isinstance(found, hr.DocumentDataset)
        data = found.sequences(length, **options)
        return data.skip(len(data) - 20)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Large:
    return Large(tmp_path_factory.mktemp("large"))


@shows((name for name in APPLIES["B076"] if name not in ("counted", "mixture of counted")), "B076")
def test_documents_behind_the_first_4_gib_are_read_right(large: Large, name: str) -> None:
    """B076: an offset of 32 bits overflowed."""
    if name in PACKINGS:
        data: Any = PACKINGS[name].pack(large, 4)
    else:
        data = large.sequences(4, within_documents=name == "pieces")
    stored = {token for number in range(24) for token in tokens_of(number)}
    found = {
        token
        for batch in islice(loader_of(data, shuffle=False), 5)
        for row in batch["tokens"].tolist()
        for token in row
    }
    assert len(found) > 40
    assert found <= stored


@shows(("counted", "mixture of counted"), "B076")
def test_a_pass_of_more_than_two_to_the_32_tokens(large: Large, name: str) -> None:
    """B076: a sum of 32 bits overflowed."""
    data = PACKINGS[name].pack(large, 1000)
    first = data if name == "counted" else data.sources["one"]
    assert first.weight == 257 * 2**24 + sum(len(tokens_of(number)) for number in range(24))
    loader = loader_of(data, shuffle=False, num_workers=1)
    # Of a mixture, steps of its first source too.
    step = first.weight // 4000 - 2
    loader.seek(step if name == "counted" else step * 4 // 3)
    tokens = 0
    for batch in islice(loader, 4):
        for row, parts in zip(batch["tokens"], batch.sources(), strict=True):
            at = 0
            for part in parts:
                stored = (
                    tokens_of(part.row)[part.first_token :][: part.tokens]
                    if part.file.endswith("z.parquet")
                    else [part.row] * part.tokens
                )
                assert row[at : at + part.tokens].tolist() == stored
                at += part.tokens
                tokens += part.file.endswith("z.parquet") * part.tokens
    assert tokens > 100, "the documents at the end were reached"


@pytest.fixture(scope="module")
def two_files(tmp_path_factory: pytest.TempPathFactory) -> Documents:
    return Documents(tmp_path_factory.mktemp("two") / "documents", [1, 2, 3, 4], files=2)


@shows(PACKED, "B077")
def test_documents_of_several_files_keep_their_ends(two_files: Documents, name: str) -> None:
    """B077: merging files of tokens forgot where documents begin."""
    data = PACKINGS[name].pack(two_files, 4, boundaries=True, pad_id=PAD)
    parts = {
        (part.file, part.row_group, part.row)
        for batch in islice(loader_of(data, batch=2, lanes=1), 32)
        for row in check_rows(two_files, batch)
        for part in row
    }
    # Some mixtures have the documents in two formats.
    assert len(parts) == 4 * len({file.rsplit(".", 1)[-1] for file, _, _ in parts})


@shows(RECORDS, "B077")
def test_records_of_several_files_keep_their_ends(two_files: Documents, name: str) -> None:
    """B077: merging files of tokens forgot where documents begin."""
    data = two_files.records.sequences(100 if name == "pieces" else 4, within_documents=name == "pieces")
    found = [row.tolist() for batch in loader_of(data, shuffle=False) for row in batch["tokens"]]
    files = [two_files.tokens[:2], two_files.tokens[2:]]
    if name == "pieces":
        assert found == [one + [0] * (100 - len(one)) for one in two_files.tokens]
    else:
        streams = [[token for one in documents for token in one] for documents in files]
        assert found == [one[at : at + 4] for one in streams for at in range(0, len(one) - 3, 4)]

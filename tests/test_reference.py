"""The reference model's own sanity: what `docs/order.md` promises must hold for it before others are held to it."""

from collections import Counter
from collections.abc import Sequence
from inspect import signature
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from reference import Chunk, Reference, Span, below, chacha8_words, default_lanes, default_window, shuffle

TC1 = (
    "3e00ef2f895f40d67f5bb8e81f09a5a12c840ec3ce9a7f3b181be188ef711a1e"
    "984ce172b9216f419f445367456d5619314a42a3da86b001387bfdb80e0cfe42"
    "d2aefa0deaa5c151bf0adb6c01f2a5adc0fd581259f9a2aadcf20f8fd566a26b"
    "5032ec38bbc5da98ee0c6f568b872a65a08abf251deb21bb4b56e5d8821e68aa"
)
TC8_KEY = "c46ec1b18ce8a878725a37e780dfb7351f68ed2e194c79fbc6aebee1a667975d"
TC8 = (
    "838751b42d8ddd8a3d77f48825a2ba752cf4047cb308a5978ef274973be374c9"
    "6ad848065871417b08f034e681fe46a93f7d5c61d1306614d4aaf257a7cff08b"
    "16f2fda170cc18a4b58a2667ed962774af792a6e7f3c77992540711a7a136d7e"
    "8a2f8d3f93816709d45a3fa5f8ce72fde15be7b841acba3a2abd557228d9fe4f"
)

documents = st.one_of(st.none(), st.lists(st.integers(100, 999), max_size=6))
chunk_lists = st.lists(st.lists(documents, max_size=5), min_size=1, max_size=6)
specials = st.one_of(st.none(), st.integers(1, 9))


@st.composite
def references(draw: st.DrawFn, /, shuffles: Sequence[bool] = (True, False), **fixed: Any) -> Reference:
    """Small runs of every kind."""
    chunks = draw(chunk_lists)
    assume(any(document for chunk in chunks for document in chunk))
    shuffled = draw(st.sampled_from(shuffles))
    return Reference(
        chunks,
        seed=draw(st.integers(0, 2**64 - 1)),
        shuffle=shuffled,
        lanes=draw(st.integers(1, 7)) if shuffled else 1,
        window=draw(st.integers(1, 7)),
        seq_len=draw(st.integers(1, 9)),
        global_batch_size=draw(st.integers(1, 8)),
        overlap=draw(st.integers(0, 3)),
        bos_id=draw(specials),
        eos_id=draw(specials),
        **{name: draw(value) for name, value in fixed.items()},
    )


def finite_references(**fixed: Any) -> st.SearchStrategy[Reference]:
    """Small runs with an end."""
    schedules = st.dictionaries(st.integers(0, 4), st.integers(1, 8), max_size=2)
    remainders = st.sampled_from(["drop", "pad"])
    return references(**{"epochs": st.integers(1, 4), "remainder": remainders, "batch_schedule": schedules} | fixed)


def run(chunks: Sequence[Chunk], **changed: Any) -> Reference:
    """A run whose arguments have values where a test does not care."""
    return Reference(chunks, **{"seed": 0, "lanes": 1, "window": 1, "seq_len": 1, "global_batch_size": 1} | changed)


@pytest.mark.parametrize(
    "key, nonce, stream",
    [
        pytest.param("00" * 32, "00" * 8, TC1, id="TC1"),
        pytest.param(TC8_KEY, "1ada31d5cf688221", TC8, id="TC8"),
    ],
)
def test_chacha8_gives_the_published_vectors(key: str, nonce: str, stream: str) -> None:
    """draft-strombergson-chacha-test-vectors-01, 256-bit keys, 8 rounds, two blocks each."""
    words = chacha8_words(bytes.fromhex(key), int.from_bytes(bytes.fromhex(nonce), "little"))
    assert b"".join(word.to_bytes(4, "little") for word in islice(words, 32)).hex() == stream


def test_below_draws_again_where_it_would_be_biased() -> None:
    # 2**32 mod 3 = 1: of all words, only 0 has a product below 1
    assert below(3, iter([0, 0, 2**31])) == 1
    assert below(3, iter([1])) == 0
    assert below(3, iter([2**32 - 1])) == 2
    assert below(3, iter([0xAAAAAAAB])) == 2  # its product is 1 exactly, which will do
    # 2**32 mod (2**31 + 1) = 2**31 - 1: the product of 1 is above, that of 2 is 2 and below
    assert below(2**31 + 1, iter([2, 1])) == 0
    for n in (0, 2**32):
        with pytest.raises(ValueError, match="below"):
            below(n, iter([]))


def test_shuffle_swaps_from_the_end() -> None:
    lowest, highest = 1, 2**32 - 1
    assert shuffle([0, 1, 2, 3], iter([lowest] * 3)) == [1, 2, 3, 0]
    assert shuffle([0, 1, 2, 3], iter([highest] * 3)) == [0, 1, 2, 3]
    assert shuffle([], iter([])) == []
    assert shuffle([7], iter([])) == [7]


def test_shuffle_gives_every_order_alike() -> None:
    words = chacha8_words(bytes(32), 0)
    seen = Counter(tuple(shuffle(range(3), words)) for _ in range(6000))
    assert len(seen) == 6
    assert all(850 < times < 1150 for times in seen.values())


def test_keys_byte_by_byte() -> None:
    chunks = [[[c, r] for r in range(6)] for c in range(7)]
    reference = run(chunks, seed=0x0102030405060708, lanes=3, window=2)
    seed, version, epoch = bytes([8, 7, 6, 5, 4, 3, 2, 1]), bytes([1, 0, 0, 0]), bytes([5] + [0] * 7)

    of_the_pass = seed + version + bytes([1, 0, 0, 0]) + epoch + bytes(8)
    order = shuffle(range(7), chacha8_words(of_the_pass, 0))
    assert reference.pass_windows(5) == [order[0:2], order[2:4], order[4:6], order[6:]]

    of_the_slice = seed + version + bytes([2, 0, 0, 0]) + epoch + bytes([1] + [0] * 7)
    stored = reference.slices(5, 1)[2]  # 24 units: 8 for each lane, 4 documents of 2
    order = shuffle(range(4), chacha8_words(of_the_slice, 2))
    assert reference.pieces(5, 1, 2) == [stored[2 * n : 2 * n + 2] for n in order]


def test_two_lanes_by_hand() -> None:
    # One document of 5 units: pass 0 gives units 0 2 4 | 1 3, so 3 tokens and 2; pass 1 units 6 8 | 5 7 9, so 2 and 3.
    reference = run([[None, [10, 11, 12, 13, 14], []]], lanes=2, seq_len=5)
    assert reference.row(0) == [10, 11, 12, 10, 11]
    assert reference.row(1) == [13, 14, 12, 13, 14]
    assert reference.row_pieces(0) == [Span(0, 1, 0, 3), Span(0, 1, 0, 2)]
    assert reference.row_pieces(1) == [Span(0, 1, 3, 2), Span(0, 1, 2, 3)]
    assert [reference.epoch_of_row(g) for g in range(6)] == [0, 0, 2, 2, 4, 4]


def test_neighbouring_parts_of_a_document_stay_two_pieces() -> None:
    # Of 6 units, lane 2 of 4 has unit 4 in pass 0, units 2 and 3 in pass 1, and unit 4, which follows them, in pass 2.
    reference = run([[[10, 11, 12, 13, 14, 15]]], lanes=4, seq_len=4)
    assert reference.row(2) == [14, 12, 13, 14]
    assert reference.row_pieces(2) == [Span(0, 0, 4, 1), Span(0, 0, 2, 2), Span(0, 0, 4, 1)]
    assert reference.document_ids(2) == [0, 1, 1, 2]


def test_spans_do_not_count_specials() -> None:
    reference = run([[[10, 11], [20]]], shuffle=False, bos_id=1, eos_id=2, seq_len=3, overlap=1)
    assert [reference.row(g) for g in range(3)] == [[1, 10, 11, 2], [2, 1, 20, 2], [2, 1, 10, 11]]
    assert reference.row_pieces(0) == [Span(0, 0, 0, 2)]
    assert reference.row_pieces(1) == [Span(0, 0, 2, 0), Span(0, 1, 0, 1)]
    assert reference.row_pieces(2) == [Span(0, 1, 1, 0), Span(0, 0, 0, 2)]
    assert reference.document_ids(1) == [0, 1, 1, 1]
    assert reference.position_ids(1) == [0, 0, 1, 2]
    assert reference.cu_seqlens([0, 1]) == [0, 3, 4, 6]


@given(references())
def test_every_pass_holds_each_token_once(reference: Reference) -> None:
    expanded = []
    for c, chunk in enumerate(reference.chunks):
        for r, document in enumerate(chunk):
            if document:
                extra = (reference.bos_id is not None) + (reference.eos_id is not None)
                expanded += [(c, r, position) for position in range(len(document) + extra)]
    assert len(expanded) == reference.pass_weight
    for epoch in range(3):
        units = [
            unit
            for window in range(len(reference.pass_windows(epoch)))
            for lane in range(reference.lanes)
            for piece in reference.pieces(epoch, window, lane)
            for unit in piece
        ]
        assert sorted(unit.source[:3] for unit in units) == expanded
        for unit in units:
            document = reference.chunks[unit.source.chunk][unit.source.row] or []
            if not unit.source.special:
                assert unit.token == document[unit.source.position - (reference.bos_id is not None)]
            else:
                assert unit.token == (reference.eos_id if unit.source.position else reference.bos_id)


@given(references())
def test_lanes_are_even_after_every_window_and_follow_the_formula(reference: Reference) -> None:
    n, s1 = reference.lanes, 0
    lengths = [0] * n
    for epoch in range(3):
        for window in range(len(reference.pass_windows(epoch))):
            slices = reference.slices(epoch, window)
            lengths = [length + len(part) for length, part in zip(lengths, slices, strict=True)]
            s1 += sum(len(part) for part in slices)
            assert max(lengths) - min(lengths) <= 1
            assert lengths == [(s1 + n - 1 - i) // n for i in range(n)]


@given(references())
def test_slices_are_contiguous_and_pieces_are_parts_of_documents(reference: Reference) -> None:
    for epoch in range(2):
        for window, chunks in enumerate(reference.pass_windows(epoch)):
            slices = reference.slices(epoch, window)
            laid = [unit for chunk in chunks for unit in reference._expanded[chunk]]
            assert [unit for part in slices for unit in part] == laid
            for lane, part in enumerate(slices):
                pieces = reference.pieces(epoch, window, lane)
                assert sorted(unit for piece in pieces for unit in piece) == sorted(part)
                for piece in pieces:
                    first = piece[0].source
                    assert [unit.source[:3] for unit in piece] == [
                        (first.chunk, first.row, first.position + n) for n in range(len(piece))
                    ]
                assert len({unit.source[:2] for unit in part}) == len(pieces)


@given(references(shuffles=[False]))
def test_sequential_order_is_storage_order(reference: Reference) -> None:
    stored = [unit for chunk in range(len(reference.chunks)) for unit in reference._expanded[chunk]]
    stream = list(islice(reference.lane_stream(0), 3 * len(stored)))
    assert stream == [tuple(unit) for unit in stored] * 3


@given(references())
def test_rows_cut_the_streams_and_know_their_sources(reference: Reference) -> None:
    size = reference.seq_len + reference.overlap
    for g in range(2 * reference.lanes + 3):
        k, lane = divmod(g, reference.lanes)
        stream = list(islice(reference.lane_stream(lane), k * reference.seq_len, k * reference.seq_len + size))
        assert reference.row(g) == [token for token, _ in stream]
        tokens: list[int] = []
        for span in reference.row_pieces(g):
            tokens += (reference.chunks[span.chunk][span.row] or [])[span.first_token :][: span.token_count]
        assert tokens == [token for token, source in stream if not source.special]
        if g >= reference.lanes:
            assert reference.row(g)[: reference.overlap] == reference.row(g - reference.lanes)[reference.seq_len :]


@given(references())
def test_the_epoch_of_a_row_follows_the_formula_and_never_decreases(reference: Reference) -> None:
    n = reference.lanes
    epochs = [reference.epoch_of_row(g) for g in range(3 * n + 5)]
    assert epochs == [(g // n * reference.seq_len * n + g % n) // reference.pass_weight for g in range(len(epochs))]
    assert epochs == sorted(epochs)


@given(references())
def test_lanes_run_on_from_pass_to_pass_and_pieces_do_not(reference: Reference) -> None:
    for lane in range(reference.lanes):
        units = reference.lane_units(lane, 0, 3 * reference.pass_weight)
        assert [unit.epoch for unit in units] == sorted(unit.epoch for unit in units)
        assert units[-1].epoch >= 2
        assert all(later.piece - unit.piece in (0, 1) for unit, later in pairwise(units))
        assert len({unit.piece for unit in units}) == len({(unit.piece, unit.epoch) for unit in units})


@given(finite_references())
@settings(max_examples=200)
def test_a_finite_run_accounts_for_every_unit(reference: Reference) -> None:
    assert reference.epochs is not None
    size = reference.seq_len + reference.overlap
    lengths = [reference.lane_length(lane) for lane in range(reference.lanes)]
    rows_of_lanes = [reference.rows_of_lane(lane) for lane in range(reference.lanes)]
    assert sum(lengths) == reference.epochs * reference.pass_weight
    for t, has in zip(lengths, rows_of_lanes, strict=True):
        full, left = divmod(max(t - reference.overlap, 0), reference.seq_len)
        assert has == full + (left > 0 and reference.remainder == "pad")
    # the rows that exist are the first ones: none is missing among them
    exist = [g // reference.lanes < rows_of_lanes[g % reference.lanes] for g in range(reference.total_rows())]
    assert all(exist)

    rows = [g for batch in reference.batches() for g in batch.rows]
    assert rows == list(range(len(rows)))
    assert all(len(reference.row(g)) == size for g in rows)
    given_units = [len(reference.row_units(g)) for g in rows]
    if reference.remainder == "drop":
        assert len(rows) <= reference.total_rows()
        assert all(n == size for n in given_units)
        with pytest.raises(IndexError):
            reference.row(reference.total_rows())
    else:
        assert len(rows) >= reference.total_rows()
        assert reference.remainder_tokens() == sum(t for t in lengths if t <= reference.overlap)
        padding = [g for g in rows if reference.row_units(g) == []]
        assert padding == list(range(reference.total_rows(), len(rows)))
    repeated = reference.overlap * len([g for g in rows if g >= reference.lanes and reference.row_units(g)])
    assert sum(given_units) - repeated + reference.remainder_tokens() == sum(lengths)


@given(finite_references(remainder=st.just("drop"), batch_schedule=st.none()))
def test_a_finite_run_begins_as_an_endless_one(reference: Reference) -> None:
    names = set(signature(Reference).parameters) - {"epochs", "remainder"}
    endless = Reference(**{name: getattr(reference, name) for name in names})
    for g in range(reference.total_rows()):
        assert reference.row(g) == endless.row(g)
        assert reference.row_pieces(g) == endless.row_pieces(g)
    steps = list(reference.batches())
    assert steps == list(islice(endless.batches(), len(steps)))


@given(finite_references())
def test_every_step_belongs_to_one_epoch(reference: Reference) -> None:
    steps = list(reference.batches())
    assert reference.epochs is not None
    assert sum(reference.len_of_epoch(epoch) for epoch in range(reference.epochs)) == len(steps)
    assert [batch.step for batch in steps] == list(range(len(steps)))


@given(finite_references(), st.integers(1, 8))
def test_ranks_share_each_batch(reference: Reference, world: int) -> None:
    for batch in reference.batches():
        if len(batch.rows) % world:
            with pytest.raises(ValueError, match="ranks"):
                reference.rank_rows(batch.rows, world, 0)
            continue
        shares = [reference.rank_rows(batch.rows, world, rank) for rank in range(world)]
        assert sorted(g for share in shares for g in share) == batch.rows
        assert all(share == sorted(share) and len(share) == len(batch.rows) // world for share in shares)


def test_ranks_by_hand() -> None:
    reference = run([[[1]]], lanes=4)
    assert reference.rank_rows(range(8), 2, 0) == [0, 1, 4, 5]  # N divides B, R divides N: lanes 0 and 1
    assert reference.rank_rows(range(12), 3, 1) == [4, 5, 6, 7]  # R does not divide N: a contiguous third
    assert reference.rank_rows(range(2, 4), 2, 1) == [3]  # B divides N: a contiguous half
    assert reference.rank_rows(range(2, 6), 2, 0) == [4, 5]  # N = B, not from a multiple of N: the lanes decide


@given(finite_references())
def test_segments_fill_the_rows(reference: Reference) -> None:
    size = reference.seq_len + reference.overlap
    rows = [g for batch in reference.batches() for g in batch.rows]
    for g in rows:
        ids, positions = reference.document_ids(g), reference.position_ids(g)
        assert len(ids) == len(positions) == size
        assert ids[0] == 0
        assert all(b - a in (0, 1) for a, b in pairwise(ids))
        assert [n for n, place in enumerate(positions) if place == 0] == [ids.index(i) for i in sorted(set(ids))]
        padded = len(reference.row_units(g)) < size
        assert ids[-1] + 1 == len(reference.row_pieces(g)) + padded
    if rows:
        bounds = reference.cu_seqlens(rows)
        assert bounds[0] == 0
        assert bounds[-1] == len(rows) * reference.seq_len
        assert all(a < b for a, b in pairwise(bounds))
        assert set(range(0, bounds[-1], reference.seq_len)) <= set(bounds)


def test_padding_is_the_last_segment() -> None:
    reference = run([[[5, 6, 7]]], lanes=2, seq_len=3, epochs=1, remainder="pad", pad_id=9, global_batch_size=3)
    assert [reference.row(g) for g in range(3)] == [[5, 6, 9], [7, 9, 9], [9, 9, 9]]
    assert [reference.document_ids(g) for g in range(3)] == [[0, 0, 1], [0, 1, 1], [0, 0, 0]]
    assert reference.cu_seqlens([0, 1, 2]) == [0, 2, 3, 4, 6, 9]
    assert reference.row_pieces(2) == []
    assert reference.remainder_tokens() == 0
    assert reference.total_rows() == 2


@pytest.mark.parametrize("changed", [{"seed": 1}, {"window": 3}, {"lanes": 3}])
def test_the_order_depends_on(changed: dict[str, int]) -> None:
    chunks = [[[100 * c + 10 * r + n for n in range(4)] for r in range(9)] for c in range(8)]
    same, other = (run(chunks, **{"lanes": 2, "window": 4, "seq_len": 64} | values) for values in ({}, changed))
    assert same.row(0) != other.row(0)


def test_data_without_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="without a token"):
        run([[None, []], []], bos_id=1)


def test_defaults_by_hand() -> None:
    assert default_window([2**20] * 100, largest_batch=8) == 64
    assert default_window([2**20] * 100, largest_batch=8, lanes=320) == 80
    assert default_window([2**20] * 100, largest_batch=512) == 100
    assert default_window([2**30], largest_batch=1) == 1
    chunks = [[[1]] * 10 + [None]] * 10
    assert default_lanes(chunks, window=10, largest_batch=24) == 12  # 100 documents: 12 lanes get 8.3 each
    assert default_lanes(chunks, window=1, largest_batch=24) == 1
    assert default_lanes(chunks, window=1, largest_batch=7) == 1
    assert default_lanes([[None]] * 3, window=1, largest_batch=4) == 1

"""A second, slow implementation of headrace's order, written from `docs/order.md` and from nothing else.

It exists to be compared with. So it counts where the real implementation computes: it writes every pass out token by
token, deals units to lanes one at a time, and keeps whatever it has written. Nothing here should be clever: a mistake
in a closed form must not be able to occur on both sides.

Where `docs/order.md` leaves something open, the reading taken here is marked `Reading:`.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import count, groupby, islice, takewhile
from math import ceil
from typing import Literal, NamedTuple

ORDER_VERSION = 1
CHUNKS_OF_A_PASS = 1
PIECES_OF_A_SLICE = 2
KEYS_OF_A_PERMUTATION = 3
WORD = 2**32

Document = Sequence[int] | None
Chunk = Sequence[Document]


# Random numbers


def chacha8_words(key: bytes, nonce: int) -> Iterator[int]:
    """The ChaCha8 key stream as little-endian 32-bit words: 256-bit key, 64-bit counter from 0, 64-bit nonce."""
    if len(key) != 32:
        raise ValueError(f"a ChaCha key has 32 bytes, not {len(key)}")
    for counter in count():
        start = struct.unpack("<16I", b"expand 32-byte k" + key + struct.pack("<QQ", counter, nonce))
        state = list(start)
        for _ in range(4):  # 8 rounds: 4 times one over the columns and one over the diagonals
            for column in range(4):
                _quarter_round(state, column, 4 + column, 8 + column, 12 + column)
            for column in range(4):
                _quarter_round(state, column, 4 + (column + 1) % 4, 8 + (column + 2) % 4, 12 + (column + 3) % 4)
        yield from ((mixed + first) % WORD for mixed, first in zip(state, start, strict=True))


def _quarter_round(x: list[int], a: int, b: int, c: int, d: int) -> None:
    for target, addend, turned, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        x[target] = (x[target] + x[addend]) % WORD
        mixed = x[turned] ^ x[target]
        x[turned] = (mixed << by) % WORD | mixed >> (32 - by)


def below(n: int, words: Iterator[int]) -> int:
    """An unbiased number in 0 ... n-1 (Lemire), for 1 <= n <= 2**32 - 1."""
    if not 1 <= n < WORD:
        raise ValueError(f"below({n}): n must be from 1 to 2**32 - 1")
    threshold = (WORD - n) % n
    product = next(words) * n
    while product % WORD < threshold:
        product = next(words) * n
    return product // WORD


def shuffle(a: Iterable[int], words: Iterator[int]) -> list[int]:
    """`a` shuffled by Fisher and Yates, from the end."""
    a = list(a)
    for j in range(len(a) - 1, 0, -1):
        other = below(j + 1, words)
        a[j], a[other] = a[other], a[j]
    return a


def shuffled_range(n: int, *, seed: int, purpose: int, epoch: int, window: int = 0, lane: int = 0) -> list[int]:
    """The numbers 0 ... n-1 in the order that the key (seed, purpose, epoch, window) and the nonce `lane` give."""
    key = struct.pack("<QIIQQ", seed, ORDER_VERSION, purpose, epoch, window)
    return shuffle(range(n), chacha8_words(key, lane))


# Permutation


def mix(x: int) -> int:
    """The finaliser of MurmurHash3's 32-bit variant."""
    x ^= x >> 16
    x = x * 0x85EBCA6B % WORD
    x ^= x >> 13
    x = x * 0xC2B2AE35 % WORD
    return x ^ x >> 16


def permuted(x: int, size: int, *, seed: int, epoch: int) -> int:
    """P(x) of the permutation of `size` items."""
    words = chacha8_words(struct.pack("<QIIQQ", seed, ORDER_VERSION, KEYS_OF_A_PERMUTATION, epoch, 0), 0)
    keys = list(islice(words, 12))
    bits = (size - 1).bit_length()
    bits = 2 if bits < 2 else 4 if bits == 3 else bits
    lower = 2 ** (bits // 2)
    upper = 2 ** (bits - bits // 2)
    while True:
        high, low = divmod(x, lower)
        for i in range(0, 12, 2):
            high ^= mix(low ^ keys[i]) % upper
            low ^= mix(high ^ keys[i + 1]) % lower
        x = high * lower + low
        if x < size:
            return x


# Defaults


def default_item_window(items: Sequence[int], stored_bytes: int, lanes: int) -> int:
    """W of items where it is not given, from the items of all chunks."""
    by_items = ceil(Fraction(max(65536, lanes * 16) * len(items), max(sum(items), 1)))
    by_bytes = 2**28 * len(items) // max(stored_bytes, 1)
    return min(max(min(by_items, by_bytes), 1), len(items))


def default_window(weights: Sequence[int], largest_batch: int, lanes: int | None = None) -> int:
    """W where it is not given, from the weights of all chunks.

    Reading: a "token" is a unit of weight, and the average is the exact quotient, which is not rounded on the way.
    """
    wanted = max(64 * 2**20, (lanes or largest_batch) * 2**18)
    average = Fraction(sum(weights), len(weights))
    return min(max(ceil(wanted / average), 1), len(weights))


def default_lanes(chunks: Sequence[Chunk], window: int, largest_batch: int) -> int:
    """N where it is not given and `shuffle=True`."""
    documents = sum(1 for chunk in chunks for document in chunk if document)
    in_a_window = Fraction(documents * window, len(chunks))
    divisors = [d for d in range(1, largest_batch + 1) if largest_batch % d == 0]
    return max([d for d in divisors if in_a_window / d >= 8], default=1)


# The order


class Source(NamedTuple):
    """Where a unit comes from: `position` counts the document's expanded tokens, a bos being number 0."""

    chunk: int
    row: int
    position: int
    special: bool


class Unit(NamedTuple):
    """One token of the expanded data."""

    token: int
    source: Source


class LaneUnit(NamedTuple):
    """A unit in a lane's stream, with the pass and the lane's piece (counted through its whole stream) it is of."""

    token: int
    source: Source
    epoch: int
    piece: int


class Span(NamedTuple):
    """A part of a document's stored tokens, specials not counted."""

    chunk: int
    row: int
    first_token: int
    token_count: int


class Batch(NamedTuple):
    """One global batch: its step, its epoch, and the numbers g of its rows."""

    step: int
    epoch: int
    rows: list[int]


class Reference:
    """The order of one run.

    Args:
        chunks: the data, in storage order.
        seed: any 64-bit number.
        lanes: N; 1 where `shuffle` is false.
        window: W.
        seq_len: L, the stride between the rows of a lane.
        global_batch_size: B of the first step.
        overlap: o, so that a row holds L + o tokens.
        bos_id: put before each document that has a token.
        eos_id: put after each document that has a token.
        shuffle: lanes order if true, else sequential order.
        epochs: E, or None for a run without end.
        remainder: what becomes of the last tokens of a finite run.
        pad_id: the token that fills rows up where `remainder="pad"`.
        batch_schedule: {step: the B that holds from this step on}.
        data: {pass: how many of the chunks, the first ones, the data has from this pass on}; all in each pass if it is
            left out.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        *,
        seed: int,
        lanes: int,
        window: int,
        seq_len: int,
        global_batch_size: int,
        overlap: int = 0,
        bos_id: int | None = None,
        eos_id: int | None = None,
        shuffle: bool = True,
        epochs: int | None = None,
        remainder: Literal["drop", "pad"] = "drop",
        pad_id: int = 0,
        batch_schedule: Mapping[int, int] | None = None,
        data: Mapping[int, int] | None = None,
    ) -> None:
        self.chunks = chunks
        self.seed = seed
        self.lanes = lanes
        self.window = window
        self.seq_len = seq_len
        self.global_batch_size = global_batch_size
        self.overlap = overlap
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.shuffle = shuffle
        self.epochs = epochs
        self.remainder = remainder
        self.pad_id = pad_id
        self.batch_schedule = dict(batch_schedule or {})
        self.data = dict(data or {0: len(chunks)})
        if min(lanes, window, seq_len, global_batch_size, *self.batch_schedule.values()) < 1 or overlap < 0:
            raise ValueError("lanes, window, seq_len and batch sizes must be at least 1, overlap at least 0")
        if not shuffle and lanes != 1:
            raise ValueError("the sequential order has one lane")
        self._expanded = [self._expand(number) for number in range(len(chunks))]
        self.pass_weight = sum(len(units) for units in self._expanded)
        if self.weight_of_pass(0) == 0:
            raise ValueError("data without a token has no order")
        self._written: list[list[LaneUnit]] = [[] for _ in range(lanes)]
        self._next_windows = ((epoch, window) for epoch in count() for window in range(len(self.pass_windows(epoch))))

    # Passes, windows, slices, pieces

    def _expand(self, chunk: int) -> list[Unit]:
        """The tokens of a chunk, each document as `[bos] tokens [eos]`."""
        bos = [] if self.bos_id is None else [(self.bos_id, True)]
        eos = [] if self.eos_id is None else [(self.eos_id, True)]
        units = []
        for row, document in enumerate(self.chunks[chunk]):
            if document:
                expanded = bos + [(token, False) for token in document] + eos
                for position, (token, special) in enumerate(expanded):
                    units.append(Unit(token, Source(chunk, row, position, special)))
        return units

    def chunks_of_pass(self, epoch: int) -> int:
        """The number of chunks that the data has in a pass."""
        return self.data[max(begin for begin in self.data if begin <= epoch)]

    def weight_of_pass(self, epoch: int) -> int:
        """The number of units of a pass."""
        return sum(len(units) for units in self._expanded[: self.chunks_of_pass(epoch)])

    def begin_of_pass(self, epoch: int) -> int:
        """The number of units of all passes before one."""
        return sum(self.weight_of_pass(before) for before in range(epoch))

    def pass_windows(self, epoch: int) -> list[list[int]]:
        """The windows of a pass, each a list of chunk numbers."""
        order = list(range(self.chunks_of_pass(epoch)))
        if self.shuffle:
            order = shuffled_range(len(order), seed=self.seed, purpose=CHUNKS_OF_A_PASS, epoch=epoch)
        return [order[start : start + self.window] for start in range(0, len(order), self.window)]

    def slices(self, epoch: int, window: int) -> list[list[Unit]]:
        """The slice of each lane of a window, not shuffled yet."""
        windows = self.pass_windows(epoch)
        before = sum(len(self._expanded[chunk]) for chunks in windows[:window] for chunk in chunks)
        begin = self.begin_of_pass(epoch) + before
        units = [unit for chunk in windows[window] for unit in self._expanded[chunk]]
        shares = Counter(v % self.lanes for v in range(begin, begin + len(units)))
        rest = iter(units)
        return [list(islice(rest, shares[lane])) for lane in range(self.lanes)]

    def pieces(self, epoch: int, window: int, lane: int) -> list[list[Unit]]:
        """The pieces of a lane's slice of a window, in the order in which the lane has them."""
        units = self.slices(epoch, window)[lane]
        stored = [list(piece) for _, piece in groupby(units, key=lambda unit: (unit.source.chunk, unit.source.row))]
        order = list(range(len(stored)))
        if self.shuffle:
            order = shuffled_range(
                len(order), seed=self.seed, purpose=PIECES_OF_A_SLICE, epoch=epoch, window=window, lane=lane
            )
        return [stored[number] for number in order]

    # Lanes

    def _write_next_window(self) -> None:
        epoch, window = next(self._next_windows)
        for lane, written in enumerate(self._written):
            for piece in self.pieces(epoch, window, lane):
                number = written[-1].piece + 1 if written else 0
                written += [LaneUnit(unit.token, unit.source, epoch, number) for unit in piece]

    def lane_units(self, lane: int, start: int, stop: int) -> list[LaneUnit]:
        """Units start ... stop-1 of a lane's stream, which is written on as far as that takes."""
        while len(self._written[lane]) < stop:
            self._write_next_window()
        return self._written[lane][start:stop]

    def lane_stream(self, lane: int) -> Iterator[tuple[int, Source]]:
        """A lane's stream, without end, even where the run has one."""
        for place in count():
            [unit] = self.lane_units(lane, place, place + 1)
            yield unit.token, unit.source

    @cached_property
    def _units_dealt(self) -> Counter[int]:
        if self.epochs is None:
            raise ValueError("a run without end has no last unit")
        return Counter(v % self.lanes for v in range(self.begin_of_pass(self.epochs)))

    def lane_length(self, lane: int) -> int:
        """The number of units of a lane's stream in a finite run."""
        return self._units_dealt[lane]

    # Rows

    def rows_of_lane(self, lane: int) -> int:
        """The number of rows of a lane of a finite run: full ones if dropping, those with a new token if padding."""
        needed = self.overlap + (self.seq_len if self.remainder == "drop" else 1)
        rows = 0
        while rows * self.seq_len + needed <= self.lane_length(lane):
            rows += 1
        return rows

    def total_rows(self) -> int:
        """The number of rows of all lanes of a finite run, whether or not they fill whole batches (`batches` cares)."""
        return sum(self.rows_of_lane(lane) for lane in range(self.lanes))

    def row_units(self, g: int) -> list[LaneUnit]:
        """The units of row g, without padding: none for a row of padding."""
        k, lane = divmod(g, self.lanes)
        start = k * self.seq_len
        stop = start + self.seq_len + self.overlap
        if self.epochs is not None:
            if k >= self.rows_of_lane(lane):
                if self.remainder == "drop":
                    raise IndexError(f"row {g} is not in a run of {self.total_rows()} rows")
                return []
            stop = min(stop, self.lane_length(lane))
        return self.lane_units(lane, start, stop)

    def row(self, g: int) -> list[int]:
        """The L + o tokens of row g."""
        tokens = [unit.token for unit in self.row_units(g)]
        return tokens + [self.pad_id] * (self.seq_len + self.overlap - len(tokens))

    def row_pieces(self, g: int) -> list[Span]:
        """The sources of row g, one span for each piece with a unit in it.

        Reading: `first_token` is the number of the document's stored tokens before the part, so that the span of
        a lone bos is (0, 0) and that of a lone eos is (all its tokens, 0).
        """
        return [self._span(list(part)) for _, part in groupby(self.row_units(g), key=lambda unit: unit.piece)]

    def _span(self, part: list[LaneUnit]) -> Span:
        chunk, row, position, _ = part[0].source
        document = [unit.source for unit in self._expanded[chunk] if unit.source.row == row]
        before = sum(1 for source in document[:position] if not source.special)
        return Span(chunk, row, before, sum(1 for unit in part if not unit.source.special))

    def epoch_of_row(self, g: int) -> int:
        """The pass of the first token of row g; for a row of padding, of the token that an endless run had there."""
        k, lane = divmod(g, self.lanes)
        [first] = self.lane_units(lane, k * self.seq_len, k * self.seq_len + 1)
        return first.epoch

    def first_pass_of_added(self, rows: Iterable[int]) -> int:
        """The first pass over data that is added when these rows were given."""
        used = 0
        for g in rows:
            k, lane = divmod(g, self.lanes)
            for place in range(k * self.seq_len, (k + 1) * self.seq_len + self.overlap):
                used = max(used, place * self.lanes + lane + 1)
        return next(epoch for epoch in count() if self.begin_of_pass(epoch) >= used)

    # Batches

    def batches(self) -> Iterator[Batch]:
        """The global batches from step 0 on.

        A finite run ends before the first batch that is not whole (drop), or that has no row of a lane (pad).
        """
        position, size = 0, self.global_batch_size
        for step in count():
            size = self.batch_schedule.get(step, size)
            if self.epochs is not None:
                needed = position + size if self.remainder == "drop" else position + 1
                if needed > self.total_rows():
                    return
            yield Batch(step, self.epoch_of_row(position), list(range(position, position + size)))
            position += size

    def len_of_epoch(self, epoch: int) -> int:
        """The number of steps of an epoch."""
        up_to_it = takewhile(lambda batch: batch.epoch <= epoch, self.batches())
        return sum(1 for batch in up_to_it if batch.epoch == epoch)

    def rank_rows(self, rows: Sequence[int], world: int, rank: int) -> list[int]:
        """Those of a batch's rows that a rank has."""
        if len(rows) % world:
            raise ValueError(f"{world} ranks cannot share a batch of {len(rows)} rows")
        if len(rows) % self.lanes == 0 and self.lanes % world == 0:
            own = range(rank * self.lanes // world, (rank + 1) * self.lanes // world)
            return [g for g in rows if g % self.lanes in own]
        share = len(rows) // world
        return list(rows[rank * share : (rank + 1) * share])

    def remainder_tokens(self) -> int:
        """The number of units, of all those dealt in a finite run, that are in no row of a batch.

        Reading: this counts the rows that make no whole batch, too, and with `remainder="pad"` the units of lanes
        that have no more than the overlap and so no row.
        """
        given = set()
        for g in [g for batch in self.batches() for g in batch.rows]:
            k, lane = divmod(g, self.lanes)
            given |= {(lane, k * self.seq_len + n) for n in range(len(self.row_units(g)))}
        return self._units_dealt.total() - len(given)

    # What attention needs

    def segments(self, g: int) -> list[int]:
        """The lengths of the parts of row g: its pieces, then its padding if it has some."""
        lengths = [len(list(part)) for _, part in groupby(unit.piece for unit in self.row_units(g))]
        padding = self.seq_len + self.overlap - sum(lengths)
        return [*lengths, padding] if padding else lengths

    def document_ids(self, g: int) -> list[int]:
        """For each of the L + o places of row g the number of its segment in the row."""
        return [number for number, length in enumerate(self.segments(g)) for _ in range(length)]

    def position_ids(self, g: int) -> list[int]:
        """For each of the L + o places of row g its place in its segment."""
        return [place for length in self.segments(g) for place in range(length)]

    def cu_seqlens(self, rows: Sequence[int]) -> list[int]:
        """The bounds of all segments of the first L places of each row, the rows laid end to end."""
        flat = [(n, segment) for n, g in enumerate(rows) for segment in self.document_ids(g)[: self.seq_len]]
        return [0] + [n for n in range(1, len(flat)) if flat[n] != flat[n - 1]] + [len(flat)]

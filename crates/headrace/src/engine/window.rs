//! A decoded window, and a lane's way through the windows.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::decode::{ChunkDocs, ChunkSlots};
use super::memory::{Arena, Layout, Region, Slot, SlotMut};
use super::plan::{ChunkPlan, WindowPlan};
use super::run::Run;
use crate::error::{Error, Result};
use crate::pack::Span;

/// The regions of a window's arena.
#[derive(Debug)]
pub struct WindowLayout {
    /// Of the arena that [`WindowLayout::carve`] needs.
    pub layout: Layout,
    /// Bytes of what is kept of chunks and lanes beside the arena.
    pub overhead: u64,
    chunks: Vec<(Region<i32>, Region<u64>, Region<u32>)>,
    pieces: Region<u32>,
}

impl WindowLayout {
    /// Room for what a plan keeps, at most.
    ///
    /// # Errors
    /// [`Error::Argument`] if the window holds 2^32 documents or more.
    pub fn new(run: &Run, plan: &WindowPlan) -> Result<Self> {
        let mut layout = Layout::new();
        let column = run.column();
        let mut documents = 0_usize;
        let chunks = plan.chunks.iter().map(|chunk| {
            let most = chunk.most_documents(column);
            documents = documents.saturating_add(most);
            (layout.add(chunk.most_tokens(column)), layout.add(most), layout.add(most))
        });
        let chunks = chunks.collect();
        // A document that a slice's end cuts is a piece in each slice.
        let lanes: u64 = plan.lanes.iter().map(|part| part.end - part.start).sum();
        let pieces = if run.order().spec().shuffle { documents.saturating_add(lanes as usize) } else { 0 };
        if u32::try_from(documents.saturating_add(lanes as usize)).is_err() {
            return Err(Error::Argument(format!(
                "a window may hold at most 2^32 documents, got {documents}\nhint: a smaller window="
            )));
        }
        let pieces = layout.add(pieces);
        let a_lane = size_of::<Slice>() + size_of::<Mutex<PieceOrder>>();
        // A chunk's plan, its documents and, while it is decoded, its task and its result.
        let a_chunk = 2 * (size_of::<ChunkPlan>() + size_of::<ChunkDocs>() + size_of::<ChunkSlots>());
        let overhead = lanes * a_lane as u64 + (plan.chunks.len() * a_chunk) as u64 + size_of::<Window>() as u64;
        Ok(Self { layout, overhead, chunks, pieces })
    }

    /// Takes the regions out of an arena with this layout.
    pub fn carve(self, arena: &Arc<Arena>) -> (Vec<ChunkSlots>, SlotMut<u32>) {
        let chunks = self.chunks.into_iter().map(|(tokens, ends, rows)| ChunkSlots {
            tokens: arena.carve(tokens),
            ends: arena.carve(ends),
            rows: arena.carve(rows),
        });
        (chunks.collect(), arena.carve(self.pieces))
    }
}

/// A lane's slice of a decoded window.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Slice {
    /// As a stretch of the window.
    range: Range<u64>,
    /// Its documents, by their number among all kept ones of the window.
    documents: Range<u32>,
}

/// A decoded window.
#[derive(Debug)]
pub struct Window {
    plan: WindowPlan,
    ordinal: u64,
    chunks: Vec<ChunkDocs>,
    /// How many documents lie before each chunk, and in all.
    bases: Vec<u32>,
    /// The piece order of each own lane; empty if pieces stay in the order in which they lie.
    orders: Vec<Mutex<PieceOrder>>,
    slices: Vec<Slice>,
}

/// The order of a slice's pieces, made when its lane gets there.
#[derive(Debug)]
enum PieceOrder {
    /// Where it will be written.
    Room(Option<SlotMut<u32>>),
    Ready(Slot<u32>),
}

impl Window {
    /// Puts the decoded chunks of a plan together.
    pub fn new(run: &Run, plan: WindowPlan, chunks: Vec<ChunkDocs>, pieces: SlotMut<u32>) -> Self {
        let mut bases = Vec::with_capacity(chunks.len() + 1);
        let mut base = 0;
        bases.push(base);
        for chunk in &chunks {
            base += chunk.len() as u32;
            bases.push(base);
        }
        let ordinal = plan.ordinal(run.order());
        let mut window = Self { plan, ordinal, chunks, bases, orders: Vec::new(), slices: Vec::new() };
        let lanes = window.plan.lanes.iter().flat_map(Clone::clone);
        window.slices = lanes.map(|lane| window.slice(lane)).collect();
        if run.order().spec().shuffle {
            let mut rest = pieces;
            for slice in &window.slices {
                let (own, tail) = rest.split_at(slice.documents.len());
                window.orders.push(Mutex::new(PieceOrder::Room(Some(own))));
                rest = tail;
            }
        }
        window
    }

    /// The window's number, counted through all passes.
    pub fn ordinal(&self) -> u64 {
        self.ordinal
    }

    /// The unit of the dealt line behind the window.
    pub fn end(&self) -> u64 {
        self.plan.span.end()
    }

    fn slice(&self, lane: u64) -> Slice {
        let range = self.plan.span.slice(lane);
        let documents =
            if range.is_empty() { 0..0 } else { self.document_at(range.start)..self.document_at(range.end - 1) + 1 };
        Slice { range, documents }
    }

    /// The order of the pieces of own lane `number`; `None` for that in which they lie.
    fn order(&self, run: &Run, number: usize, lane: u64) -> Option<Slot<u32>> {
        let mut order = self.orders.get(number)?.lock().unwrap_or_else(PoisonError::into_inner);
        if let PieceOrder::Room(room) = &mut *order {
            let mut room = room.take()?;
            run.order().order_pieces(&self.plan.span, lane, &mut room);
            let len = room.len();
            *order = PieceOrder::Ready(room.freeze(len));
        }
        match &*order {
            PieceOrder::Ready(order) => Some(order.clone()),
            PieceOrder::Room(_) => None,
        }
    }

    /// The number, among all kept documents, of the one at a place of the window.
    fn document_at(&self, place: u64) -> u32 {
        let at = self.plan.chunks.partition_point(|chunk| chunk.at <= place) - 1;
        self.bases[at] + self.chunks[at].at(place - self.plan.chunks[at].at) as u32
    }

    /// A piece of a slice.
    fn piece(&self, slice: &Slice, number: u32) -> Piece {
        let number = slice.documents.start + number;
        let chunk = self.bases.partition_point(|&base| base <= number) - 1;
        let document = self.chunks[chunk].document((number - self.bases[chunk]) as usize);
        let at = self.plan.chunks[chunk].at;
        let start = document.start.max(slice.range.start.saturating_sub(at));
        let end = document.end.min(slice.range.end - at);
        Piece { chunk, document, next: start, end }
    }
}

/// What is left of a piece: a stretch of a document.
#[derive(Debug, Clone, Copy)]
struct Piece {
    /// Among the window's chunks.
    chunk: usize,
    document: super::decode::Document,
    /// In expanded tokens of the chunk.
    next: u64,
    end: u64,
}

/// Decoded windows with neighbouring ordinals.
#[derive(Debug, Clone)]
pub struct Windows(pub Arc<[Arc<Window>]>);

impl Windows {
    /// The window that holds a token of a lane's stream.
    fn holding(&self, lane: u64, token: u64) -> Result<&Arc<Window>> {
        let at = self.0.partition_point(|window| window.plan.span.lane_tokens(lane).end <= token);
        let window = self.0.get(at).filter(|window| window.plan.span.lane_tokens(lane).start <= token);
        window.ok_or_else(|| Error::Internal(format!("token {token} of lane {lane} was not decoded in time")))
    }
}

/// A lane's place in its stream.
#[derive(Debug, Clone)]
pub struct Cursor {
    lane: u64,
    /// Tokens of the lane's stream before the cursor.
    token: u64,
    window: Arc<Window>,
    slice: Slice,
    /// The order of the slice's pieces; `None` for that in which they lie.
    order: Option<Slot<u32>>,
    /// Pieces begun.
    begun: u32,
    piece: Option<Piece>,
}

impl Cursor {
    /// A cursor at the start of a lane's slice of a window.
    fn enter(run: &Run, window: &Arc<Window>, lane: u64) -> Result<Self> {
        let missing = || Error::Internal(format!("lane {lane} is not among those decoded"));
        let number = window.plan.lane_number(lane).ok_or_else(missing)?;
        let slice = window.slices[number].clone();
        let order = window.order(run, number, lane);
        let token = window.plan.span.lane_tokens(lane).start;
        Ok(Self { lane, token, window: Arc::clone(window), slice, order, begun: 0, piece: None })
    }

    /// A cursor at a token of a lane's stream.
    pub fn seek(run: &Run, windows: &Windows, lane: u64, token: u64) -> Result<Self> {
        let mut cursor = Self::enter(run, windows.holding(lane, token)?, lane)?;
        cursor.advance(run, windows, token)?;
        Ok(cursor)
    }

    /// Tokens of the lane's stream before the cursor.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The unit of the dealt line behind the cursor's window.
    pub fn window_end(&self) -> u64 {
        self.window.end()
    }

    /// Whether the next token goes on with the piece of the one before.
    pub fn is_within_piece(&self) -> bool {
        self.piece.is_some_and(|piece| piece.next < piece.end)
    }

    /// Goes on to a later token.
    pub fn advance(&mut self, run: &Run, windows: &Windows, token: u64) -> Result<()> {
        if token > self.window.plan.span.lane_tokens(self.lane).end {
            *self = Self::enter(run, windows.holding(self.lane, token)?, self.lane)?;
        }
        while self.token < token {
            let left = token - self.token;
            let piece = self.piece(run, windows)?;
            let count = (piece.end - piece.next).min(left);
            piece.next += count;
            self.token += count;
        }
        Ok(())
    }

    /// The piece that the next token lies in.
    fn piece(&mut self, run: &Run, windows: &Windows) -> Result<&mut Piece> {
        while self.piece.is_none_or(|piece| piece.next == piece.end) {
            if self.begun as usize == self.slice.documents.len() {
                *self = Self::enter(run, windows.holding(self.lane, self.token)?, self.lane)?;
                continue;
            }
            let number = self.order.as_ref().map_or(self.begun, |order| order[self.begun as usize]);
            self.piece = Some(self.window.piece(&self.slice, number));
            self.begun += 1;
        }
        self.piece.as_mut().ok_or_else(|| Error::Internal("a cursor without a piece".to_owned()))
    }

    /// Fills `out` with the next tokens of the lane's stream and appends where they come from.
    pub fn fill<T: crate::pack::Token>(
        &mut self,
        run: &Run,
        windows: &Windows,
        out: &mut [T],
        spans: &mut Vec<Span>,
    ) -> Result<()> {
        let mut rest = out;
        while !rest.is_empty() {
            let piece = self.piece(run, windows)?;
            let count = (piece.end - piece.next).min(rest.len() as u64);
            let Piece { chunk, document, next, .. } = *piece;
            piece.next += count;
            let (head, tail) = rest.split_at_mut(count as usize);
            let whole = document.end - document.start - run.specials().added();
            let start = next - document.start;
            let stored = run.specials().stored(whole, start, count);
            let docs = &self.window.chunks[chunk];
            let tokens = docs.tokens(&document, stored.clone(), run.specials());
            run.specials().write(tokens, whole, start, head);
            spans.push(Span {
                chunk: docs.chunk,
                row: document.row,
                first: stored.start,
                tokens: (stored.end - stored.start) as u32,
                positions: count as u32,
            });
            self.token += count;
            rest = tail;
        }
        Ok(())
    }
}

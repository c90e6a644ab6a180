//! A decoded window, and a lane's way through the windows.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::documents::{Document, Documents, Stretches, TokenRegion, Tokens, tokens_of};
use super::keep::ChunkSlots;
use super::memory::{Arena, Layout, Region, Slot, SlotMut};
use super::plan::{ChunkPlan, WindowPlan};
use super::run::Run;
use crate::error::{Error, Result};
use crate::pack::Span;

/// The regions of a window's arenas.
#[derive(Debug)]
pub struct WindowLayout {
    /// Of the arena for where documents lie.
    pub documents: Layout,
    /// Of the arena for their tokens.
    pub tokens: Layout,
    /// Bytes of what is kept of chunks and lanes beside the arenas.
    pub overhead: u64,
    chunks: Vec<(TokenRegion, Region<u64>, Region<u32>)>,
    pieces: Region<u32>,
}

impl WindowLayout {
    /// Room for what a plan keeps, at most.
    ///
    /// # Errors
    /// [`Error::Argument`] if the window holds 2^32 documents or more.
    pub fn new(run: &Run, plan: &WindowPlan) -> Result<Self> {
        let (mut layout, mut tokens) = (Layout::new(), Layout::new());
        let column = run.column();
        let mut documents = 0_usize;
        let chunks = plan.chunks.iter().map(|chunk| {
            let most = chunk.most_documents(column);
            documents = documents.saturating_add(most);
            let region =
                TokenRegion::add(&mut tokens, chunk.most_tokens(column), column.chunks.is_narrow(chunk.chunk as usize));
            (region, layout.add(most), layout.add(most))
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
        let a_chunk =
            2 * (size_of::<ChunkPlan>() + size_of::<Documents>() + size_of::<Tokens>() + size_of::<ChunkSlots>());
        let overhead = lanes * a_lane as u64 + (plan.chunks.len() * a_chunk) as u64 + size_of::<Directory>() as u64;
        Ok(Self { documents: layout, tokens, overhead, chunks, pieces })
    }

    /// Bytes of both arenas.
    pub fn bytes(&self) -> u64 {
        self.documents.bytes().saturating_add(self.tokens.bytes()) as u64
    }

    /// Takes the regions out of arenas with these layouts; without one for tokens there is no room for them.
    pub fn carve(self, documents: &Arc<Arena>, tokens: Option<&Arc<Arena>>) -> (Vec<ChunkSlots>, SlotMut<u32>) {
        let chunks = self.chunks.into_iter().map(|(region, ends, rows)| ChunkSlots {
            tokens: tokens.map(|arena| region.carve(arena)),
            ends: documents.carve(ends),
            rows: documents.carve(rows),
        });
        (chunks.collect(), documents.carve(self.pieces))
    }
}

/// The regions of an arena for some stretches of a window's tokens.
#[derive(Debug)]
pub struct ExcerptLayout {
    /// Of the arena.
    pub layout: Layout,
    /// For each chunk.
    pub tokens: Vec<TokenRegion>,
}

impl ExcerptLayout {
    /// Room for stretches of each chunk of a window.
    pub fn new(run: &Run, window: &Window, needs: &[Stretches]) -> Self {
        let mut layout = Layout::new();
        let regions = window.chunks().zip(needs).map(|(chunk, stretches)| {
            TokenRegion::add(&mut layout, tokens_of(stretches), run.column().chunks.is_narrow(chunk as usize))
        });
        let tokens = regions.collect();
        Self { layout, tokens }
    }
}

/// A lane's slice of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Slice {
    /// As a stretch of the window.
    range: Range<u64>,
    /// Its documents, by their number among all kept ones of the window.
    documents: Range<u32>,
}

/// Where the documents of a window lie, and in which order lanes take them.
#[derive(Debug)]
struct Directory {
    plan: WindowPlan,
    ordinal: u64,
    chunks: Vec<Documents>,
    /// How many documents lie before each chunk, and in all.
    bases: Vec<u32>,
    /// The piece order of each own lane; empty if pieces stay in the order in which they lie.
    orders: Vec<Mutex<PieceOrder>>,
    slices: Vec<Slice>,
}

/// A decoded window: its directory, and those of its tokens that are in memory.
#[derive(Debug)]
pub struct Window {
    directory: Arc<Directory>,
    /// Of each chunk.
    tokens: Vec<Tokens>,
}

/// The order of a slice's pieces, made when its lane gets there.
#[derive(Debug)]
enum PieceOrder {
    /// Where it will be written.
    Room(Option<SlotMut<u32>>),
    Ready(Slot<u32>),
}

impl Directory {
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

impl Window {
    /// Puts the decoded chunks of a plan together.
    pub fn new(run: &Run, plan: WindowPlan, decoded: Vec<(Documents, Tokens)>, pieces: SlotMut<u32>) -> Self {
        let (chunks, tokens): (Vec<_>, Vec<_>) = decoded.into_iter().unzip();
        let mut bases = Vec::with_capacity(chunks.len() + 1);
        let mut base = 0;
        bases.push(base);
        for chunk in &chunks {
            base += chunk.len() as u32;
            bases.push(base);
        }
        let ordinal = plan.ordinal(run.order());
        let mut directory = Directory { plan, ordinal, chunks, bases, orders: Vec::new(), slices: Vec::new() };
        let lanes = directory.plan.lanes.iter().flat_map(Clone::clone);
        directory.slices = lanes.map(|lane| directory.slice(lane)).collect();
        if run.order().spec().shuffle {
            let mut rest = pieces;
            for slice in &directory.slices {
                let (own, tail) = rest.split_at(slice.documents.len());
                directory.orders.push(Mutex::new(PieceOrder::Room(Some(own))));
                rest = tail;
            }
        }
        Self { directory: Arc::new(directory), tokens }
    }

    /// The same window with other tokens in memory.
    pub fn with_tokens(&self, tokens: Vec<Tokens>) -> Self {
        Self { directory: Arc::clone(&self.directory), tokens }
    }

    /// The same window with nothing but some stretches of its tokens in memory, in `arena`.
    pub fn excerpt(&self, needs: &[Stretches], layout: ExcerptLayout, arena: &Arc<Arena>) -> Result<Self> {
        let copies = layout.tokens.into_iter().zip(needs).zip(&self.tokens).map(|((region, stretches), tokens)| {
            let (mut slot, mut at) = (region.carve(arena), 0);
            for stretch in stretches {
                let stored = tokens.get(stretch.clone()).filter(|&stored| slot.copy(at, stored));
                at += stored.ok_or_else(not_in_memory)?.len();
            }
            Ok(Tokens::new(slot.freeze(at), stretches.clone()))
        });
        Ok(self.with_tokens(copies.collect::<Result<_>>()?))
    }

    /// The window's number, counted through all passes.
    pub fn ordinal(&self) -> u64 {
        self.directory.ordinal
    }

    /// The unit of the dealt line behind the window.
    pub fn end(&self) -> u64 {
        self.directory.plan.span.end()
    }

    /// Its chunks, by their numbers in the index.
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.directory.chunks.iter().map(|documents| documents.chunk)
    }
}

fn not_in_memory() -> Error {
    Error::Internal("tokens that are not in memory".to_owned())
}

/// What is left of a piece: a stretch of a document.
#[derive(Debug, Clone, Copy)]
struct Piece {
    /// Among the window's chunks.
    chunk: usize,
    document: Document,
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
        let lane_tokens = |window: &Window| window.directory.plan.span.lane_tokens(lane);
        let at = self.0.partition_point(|window| lane_tokens(window).end <= token);
        let window = self.0.get(at).filter(|window| lane_tokens(window).start <= token);
        window.ok_or_else(|| Error::Internal(format!("token {token} of lane {lane} was not decoded in time")))
    }

    /// Which stored tokens the streams of lanes take, for each chunk of each window; `parts` are lanes with the tokens
    /// of their streams, of which those in later windows are left out. Needs no token in memory.
    pub fn needs(&self, run: &Run, parts: impl Iterator<Item = (u64, Range<u64>)>) -> Result<Vec<Vec<Stretches>>> {
        let mut needs: Vec<Vec<Stretches>> =
            self.0.iter().map(|window| vec![Stretches::new(); window.tokens.len()]).collect();
        let (Some(first), Some(last)) = (self.0.first(), self.0.last()) else { return Ok(needs) };
        let first = first.ordinal();
        for (lane, tokens) in parts {
            let end = tokens.end.min(last.directory.plan.span.lane_tokens(lane).end);
            if tokens.start >= end {
                continue;
            }
            let mut cursor = Cursor::seek(run, self, lane, tokens.start)?;
            cursor.pass(run, self, end - tokens.start, |part| {
                let window = &mut needs[(part.window.ordinal() - first) as usize];
                window[part.chunk].push(part.stored);
                Ok(())
            })?;
        }
        for stretches in needs.iter_mut().flatten() {
            stretches.retain(|stretch| !stretch.is_empty());
            stretches.sort_unstable_by_key(|stretch| stretch.start);
            stretches.dedup_by(|next, before| {
                let joined = next.start <= before.end;
                if joined {
                    before.end = before.end.max(next.end);
                }
                joined
            });
        }
        Ok(needs)
    }
}

/// A part of a piece that a cursor passes.
#[derive(Debug)]
struct Part<'a> {
    window: &'a Window,
    /// Among the window's chunks.
    chunk: usize,
    document: Document,
    /// Where it begins, in expanded tokens of the document; and how many they are.
    start: u64,
    count: u64,
    /// The document's stored tokens.
    whole: u64,
    /// Those of the part: as numbers in the document, and in the chunk.
    own: Range<u64>,
    stored: Range<u64>,
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
    /// The one after it, looked up ahead so that its tokens are near when they are needed.
    coming: Option<Piece>,
}

impl Cursor {
    /// A cursor at the start of a lane's slice of a window.
    fn enter(run: &Run, window: &Arc<Window>, lane: u64) -> Result<Self> {
        let missing = || Error::Internal(format!("lane {lane} is not among those decoded"));
        let directory = &window.directory;
        let number = directory.plan.lane_number(lane).ok_or_else(missing)?;
        let slice = directory.slices[number].clone();
        let order = directory.order(run, number, lane);
        let token = directory.plan.span.lane_tokens(lane).start;
        Ok(Self { lane, token, window: Arc::clone(window), slice, order, begun: 0, piece: None, coming: None })
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
        if token > self.window.directory.plan.span.lane_tokens(self.lane).end {
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
            self.piece = self.coming.take().or_else(|| self.look_up(self.begun));
            self.begun += 1;
            self.coming = self.look_up(self.begun);
            if let Some(Piece { chunk, document, next, .. }) = &self.coming {
                let first = self.window.directory.chunks[*chunk].first_stored(document, *next, run.specials());
                self.window.tokens[*chunk].prefetch(first);
            }
        }
        self.piece.as_mut().ok_or_else(|| Error::Internal("a cursor without a piece".to_owned()))
    }

    /// The slice's piece `number`, if it has so many.
    fn look_up(&self, number: u32) -> Option<Piece> {
        if number as usize >= self.slice.documents.len() {
            return None;
        }
        let number = self.order.as_ref().map_or(number, |order| order[number as usize]);
        Some(self.window.directory.piece(&self.slice, number))
    }

    /// Goes on by `count` tokens and shows each part of a piece on the way.
    fn pass(
        &mut self,
        run: &Run,
        windows: &Windows,
        count: u64,
        mut see: impl FnMut(Part<'_>) -> Result<()>,
    ) -> Result<()> {
        let (specials, end) = (run.specials(), self.token + count);
        while self.token < end {
            let left = end - self.token;
            let piece = self.piece(run, windows)?;
            let count = (piece.end - piece.next).min(left);
            let Piece { chunk, document, next, .. } = *piece;
            piece.next += count;
            let whole = document.end - document.start - specials.added();
            let start = next - document.start;
            let own = specials.stored(whole, start, count);
            let stored = self.window.directory.chunks[chunk].stored(&document, own.clone(), specials);
            see(Part { window: &self.window, chunk, document, start, count, whole, own, stored })?;
            self.token += count;
        }
        Ok(())
    }

    /// Fills `out` with the next tokens of the lane's stream and appends where they come from.
    pub fn fill<T: crate::pack::Token>(
        &mut self,
        run: &Run,
        windows: &Windows,
        out: &mut [T],
        spans: &mut Vec<Span>,
    ) -> Result<()> {
        let (count, mut rest) = (out.len() as u64, out);
        self.pass(run, windows, count, |part| {
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(part.count as usize);
            rest = tail;
            let tokens = part.window.tokens[part.chunk].get(part.stored).ok_or_else(not_in_memory)?;
            run.specials().write(tokens, part.whole, part.start, head);
            spans.push(Span {
                chunk: part.window.directory.chunks[part.chunk].chunk,
                row: part.document.row,
                first: part.own.start,
                tokens: (part.own.end - part.own.start) as u32,
                positions: part.count as u32,
            });
            Ok(())
        })
    }
}

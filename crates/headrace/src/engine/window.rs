//! A decoded window: where its documents lie, in which order lanes take them, and their tokens.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::documents::{Document, Documents, Stretches, Tokens};
use super::laid::Laid;
use super::layout::ExcerptLayout;
use super::memory::{Arena, Slot, SlotMut};
use super::plan::WindowPlan;
use super::run::Run;
use crate::error::{Error, Result};

/// A lane's slice of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slice {
    /// As a stretch of the window.
    pub(super) range: Range<u64>,
    /// Its documents, by their number among all kept ones of the window.
    pub(super) documents: Range<u32>,
}

/// Where the documents of a window lie, and in which order lanes take them.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) plan: WindowPlan,
    pub(super) ordinal: u64,
    pub(super) chunks: Vec<Documents>,
    /// How many documents lie before each chunk, and in all.
    bases: Vec<u32>,
    /// The piece order of each own lane; empty if pieces stay in the order in which they lie.
    orders: Vec<Mutex<PieceOrder>>,
    pub(super) slices: Vec<Slice>,
}

/// A decoded window: its directory, and those of its tokens that are in memory.
#[derive(Debug)]
pub struct Window {
    pub(super) directory: Arc<Directory>,
    /// Of each chunk.
    pub(super) tokens: Vec<Tokens>,
    /// In the order of use, instead: then there is no more in the directory than what was planned.
    pub(super) laid: Option<Laid>,
}

/// The order of a slice's pieces, made when its lane gets there.
#[derive(Debug)]
pub(super) enum PieceOrder {
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
    pub(super) fn order(&self, run: &Run, number: usize, lane: u64) -> Option<Slot<u32>> {
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
    pub(super) fn piece(&self, slice: &Slice, number: u32) -> Piece {
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
        Self { directory: Arc::new(directory), tokens, laid: None }
    }

    /// A window in the order of use.
    pub fn in_order(run: &Run, plan: WindowPlan, laid: Laid) -> Self {
        let ordinal = plan.ordinal(run.order());
        let (chunks, bases, orders, slices) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let directory = Arc::new(Directory { plan, ordinal, chunks, bases, orders, slices });
        Self { directory, tokens: Vec::new(), laid: Some(laid) }
    }

    /// The same window with other tokens in memory.
    pub fn with_tokens(&self, tokens: Vec<Tokens>) -> Self {
        Self { directory: Arc::clone(&self.directory), tokens, laid: None }
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

    /// Lets go of tokens that were used: what lies before a token of the lane's stream, given for each lane.
    pub fn release(&self, before: impl Fn(u64) -> u64) {
        let Some(laid) = &self.laid else { return };
        for (lane, slice) in self.lanes().zip(&laid.slices) {
            slice.release(before(lane).saturating_sub(self.directory.plan.span.lane_tokens(lane).start));
        }
    }

    /// The lanes that it was decoded for.
    pub fn lanes(&self) -> impl Iterator<Item = u64> + '_ {
        self.directory.plan.lanes.iter().flat_map(Clone::clone)
    }

    /// Its chunks, by their numbers in the index.
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.directory.chunks.iter().map(|documents| documents.chunk)
    }
}

pub(super) fn not_in_memory() -> Error {
    Error::Internal("tokens that are not in memory".to_owned())
}

/// What is left of a piece: a stretch of a document.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    /// Among the window's chunks.
    pub(super) chunk: usize,
    pub(super) document: Document,
    /// In expanded tokens of the chunk.
    pub(super) next: u64,
    pub(super) end: u64,
}

//! A window in the order of use: each lane's tokens one after another, in blocks that go as soon as they are used.
//!
//! What a lane takes from a window is written as it will be taken, bos and eos included: reading is copying, and
//! what lies before a lane's cursor is of no more use to anybody.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::documents::{Document, Documents, Tokens};
use super::memory::{Block, Plain, Slot, SlotMut};
use super::run::Run;
use super::window::not_in_memory;
use crate::error::{Error, Result};
use crate::order::WindowSpan;
use crate::pack::{Span, Specials, Token};

/// The lanes' slices of a window.
#[derive(Debug)]
pub struct Laid {
    /// Of each own lane.
    pub(super) slices: Vec<LaidSlice>,
}

/// A lane's slice of a window, in the order of use.
#[derive(Debug, Default)]
pub(super) struct LaidSlice {
    /// Whether its tokens are kept in 16 bits.
    is_narrow: bool,
    blocks: Mutex<InUse>,
    pieces: Option<Pieces>,
}

#[derive(Debug, Default)]
struct InUse {
    /// `None` for those that were let go.
    blocks: Vec<Option<Block>>,
    /// How many were.
    gone: usize,
}

/// The pieces of a slice, in their order.
#[derive(Debug)]
struct Pieces {
    /// Where each ends, in tokens of the slice.
    ends: Slot<u32>,
    /// The row of its document in the row group.
    rows: Slot<u32>,
    /// The row group, by its number in the index.
    chunks: Slot<u32>,
    /// Those that are not whole documents: two at most.
    cuts: Vec<Cut>,
}

/// A piece that is a part of its document.
#[derive(Debug)]
struct Cut {
    piece: u32,
    /// Where it begins, in expanded tokens of the document.
    start: u64,
    /// The document's stored tokens.
    whole: u64,
}

/// A decoded chunk that a slice has tokens of: where it begins in the window, and what it holds.
pub(super) type Source = (u64, Arc<(Documents, Tokens)>);

/// Of a chunk, the documents that a slice has a token of.
struct Part<'a> {
    documents: &'a Documents,
    tokens: &'a Tokens,
    /// The slice, as a stretch of the chunk.
    range: Range<u64>,
    /// The number of the first of them in the slice, and among those kept of the chunk.
    base: u32,
    first: usize,
}

impl Part<'_> {
    /// A document, and where the piece of it begins and ends in the chunk.
    fn piece(&self, number: u32) -> (Document, Range<u64>) {
        let document = self.documents.document(self.first + (number - self.base) as usize);
        (document, document.start.max(self.range.start)..document.end.min(self.range.end))
    }
}

impl LaidSlice {
    /// Numbers that are kept of each piece.
    pub(super) const NUMBERS: usize = 3;

    /// Lays a lane's slice of a window out, from the chunks that it lies in. `numbers` gives room for so many.
    pub(super) fn new(
        run: &Run,
        (span, lane): (&WindowSpan, u64),
        sources: &[Source],
        (mut blocks, is_narrow): (Vec<Block>, bool),
        numbers: impl FnOnce(usize) -> Option<SlotMut<u32>>,
    ) -> Result<Self> {
        let slice = span.slice(lane);
        let mut parts = Vec::with_capacity(sources.len());
        let mut count = 0_u32;
        for (at, content) in sources {
            let range = slice.start.saturating_sub(*at)..slice.end - at;
            let documents = &content.0;
            let first = documents.at(range.start);
            let end = (documents.at(range.end - 1) + 1).min(documents.len());
            parts.push(Part { documents, tokens: &content.1, range, base: count, first });
            count += (end - first) as u32;
        }
        let missing = || Error::Internal("pieces of a slice without room".to_owned());
        let numbers = numbers(count as usize * Self::NUMBERS).ok_or_else(missing)?;
        let (mut ends, rest) = numbers.split_at(count as usize);
        let (mut rows, mut chunks) = rest.split_at(count as usize);
        // First the order lies where the ends will be.
        run.order().order_pieces(span, lane, &mut ends);
        let part_of = |number: u32| &parts[parts.partition_point(|part| part.base <= number) - 1];
        let specials = run.specials();
        let (mut at, mut cuts) = (0, Vec::new());
        for piece in 0..count as usize {
            let number = ends[piece];
            if let Some(&next) = ends.get(piece + 1) {
                let part = part_of(next);
                let (document, range) = part.piece(next);
                part.tokens.prefetch(part.documents.first_stored(&document, range.start, specials));
            }
            let part = part_of(number);
            let (document, range) = part.piece(number);
            if range != (document.start..document.end) {
                let whole = document.end - document.start - specials.added();
                cuts.push(Cut { piece: piece as u32, start: range.start - document.start, whole });
            }
            let length = range.end - range.start;
            let write = if is_narrow { write::<u16> } else { write::<i32> };
            write(specials, part, &document, range, (&mut blocks, at))?;
            at += length;
            (ends[piece], rows[piece], chunks[piece]) = (at as u32, document.row, part.documents.chunk);
        }
        if at != slice.end - slice.start {
            return Err(not_in_memory());
        }
        let freeze = |slot: SlotMut<u32>| slot.freeze(count as usize);
        let pieces = Pieces { ends: freeze(ends), rows: freeze(rows), chunks: freeze(chunks), cuts };
        let blocks = InUse { blocks: blocks.into_iter().map(Some).collect(), gone: 0 };
        Ok(Self { is_narrow, blocks: Mutex::new(blocks), pieces: Some(pieces) })
    }

    /// Copies the tokens from `at` on to `out`.
    pub(super) fn copy<T: Token>(&self, at: u64, out: &mut [T]) -> Result<()> {
        let in_use = self.in_use();
        if self.is_narrow {
            copy::<u16, T>(&in_use, at, out, T::copy_narrow)
        } else {
            copy::<i32, T>(&in_use, at, out, T::copy)
        }
    }

    /// Lets go of what lies before `at`.
    pub(super) fn release(&self, at: u64) {
        let mut in_use = self.in_use();
        while let Some(Some(block)) = in_use.blocks.get(in_use.gone) {
            let end = (in_use.gone + 1) * if self.is_narrow { block.count::<u16>() } else { block.count::<i32>() };
            if end as u64 > at {
                break;
            }
            let gone = in_use.gone;
            in_use.blocks[gone] = None;
            in_use.gone += 1;
        }
    }

    fn in_use(&self) -> MutexGuard<'_, InUse> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The piece that the token at `at` lies in.
    pub(super) fn piece_at(&self, at: u64) -> usize {
        self.pieces.as_ref().map_or(0, |pieces| pieces.ends.partition_point(|&end| u64::from(end) <= at))
    }

    /// Whether the token at `at` goes on with `piece`.
    pub(super) fn is_within(&self, piece: usize, at: u64) -> bool {
        let Some(pieces) = &self.pieces else { return false };
        pieces.range(piece).is_some_and(|range| range.start < at && at < range.end)
    }

    /// Where `count` tokens from `at` on come from; `piece` holds the first, and then the one behind the last.
    pub(super) fn spans(
        &self,
        specials: Specials,
        (piece, at): (&mut usize, u64),
        count: u64,
        spans: &mut Vec<Span>,
    ) -> Result<()> {
        let (mut at, end) = (at, at + count);
        let pieces = self.pieces.as_ref().filter(|_| count > 0);
        let Some(pieces) = pieces else { return Ok(()) };
        let before_last = pieces.ends.iter().skip(*piece).take_while(|&&piece| u64::from(piece) < end).count();
        spans.reserve_exact(before_last + 1);
        while at < end {
            let range = pieces.range(*piece).filter(|range| range.contains(&at)).ok_or_else(not_in_memory)?;
            let positions = range.end.min(end) - at;
            // Those are its first and its last piece in the order of storage.
            let cut = pieces.cuts.iter().find(|cut| cut.piece as usize == *piece);
            let (first, whole) = match cut {
                Some(cut) => (cut.start, cut.whole),
                None => (0, range.end - range.start - specials.added()),
            };
            let own = specials.stored(whole, first + at - range.start, positions);
            spans.push(Span {
                chunk: pieces.chunks[*piece],
                row: pieces.rows[*piece],
                first: own.start,
                tokens: (own.end - own.start) as u32,
                positions: positions as u32,
            });
            at += positions;
            if at == range.end {
                *piece += 1;
            }
        }
        Ok(())
    }
}

impl Pieces {
    /// Which tokens of the slice a piece is.
    fn range(&self, piece: usize) -> Option<Range<u64>> {
        let end = *self.ends.get(piece)?;
        let start = if piece == 0 { 0 } else { self.ends[piece - 1] };
        Some(start.into()..end.into())
    }
}

/// Writes the stretch `range` of a chunk, which lies in one document, from token `at` of `blocks` on.
fn write<T: Token + Plain>(
    specials: Specials,
    part: &Part<'_>,
    document: &Document,
    range: Range<u64>,
    (blocks, at): (&mut [Block], u64),
) -> Result<()> {
    let whole = document.end - document.start - specials.added();
    let (mut start, end) = (range.start - document.start, range.end - document.start);
    let mut at = at as usize;
    while start < end {
        let each = blocks.first().map_or(0, Block::count::<T>);
        let number = at.checked_div(each).ok_or_else(not_in_memory)?;
        let block = blocks.get_mut(number).ok_or_else(not_in_memory)?;
        let room = &mut block.numbers_mut::<T>()[at % each..];
        let count = (end - start).min(room.len() as u64);
        let stored = part.documents.stored(document, specials.stored(whole, start, count), specials);
        let tokens = part.tokens.get(stored).ok_or_else(not_in_memory)?;
        specials.write(tokens, whole, start, &mut room[..count as usize]);
        start += count;
        at += count as usize;
    }
    Ok(())
}

/// Copies numbers from `at` on to `out`.
fn copy<F: Plain, T>(in_use: &InUse, at: u64, out: &mut [T], copy: fn(&[F], &mut [T])) -> Result<()> {
    let (mut at, mut rest, blocks) = (at as usize, out, &in_use.blocks);
    // All are of one size.
    let each = blocks.get(in_use.gone).and_then(Option::as_ref).map_or(0, Block::count::<F>);
    while !rest.is_empty() {
        let number = at.checked_div(each).ok_or_else(not_in_memory)?;
        let block = blocks.get(number).and_then(Option::as_ref).ok_or_else(not_in_memory)?;
        let from = &block.numbers::<F>()[at % each..];
        let count = from.len().min(rest.len());
        let (head, tail) = std::mem::take(&mut rest).split_at_mut(count);
        copy(&from[..count], head);
        rest = tail;
        at += count;
        if rest.is_empty() {
            // The lane's next row begins here, and its reading with it, once other lanes had their turn.
            block.prefetch::<F>(at % each);
        }
    }
    Ok(())
}

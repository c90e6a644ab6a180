//! The documents of a chunk: where each lies, and which of their tokens are in memory.

use std::ops::Range;

use super::memory::{Arena, Layout, Region, Slot, SlotMut};
use crate::format::parquet::TokensMut;
use crate::pack::{Specials, Stored};

/// The kept documents of one chunk.
///
/// Positions are in expanded tokens of the whole chunk. Only the first and the last document can be kept in part.
#[derive(Debug)]
pub struct Documents {
    /// The chunk's number in the index.
    pub chunk: u32,
    /// What was to be kept.
    pub need: Range<u64>,
    /// Where each kept document ends.
    pub ends: Slot<u64>,
    /// The row of each kept document in the row group.
    pub rows: Slot<u32>,
    /// Where the first kept document begins.
    pub first_start: u64,
    /// Stored tokens that are kept of the first document.
    pub first_tokens: u64,
    /// Stored tokens of the chunk before the first that is kept.
    pub skipped: u64,
}

/// One of [`Documents`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Document {
    /// Its row in the row group.
    pub row: u32,
    /// Where its expanded tokens begin in the chunk.
    pub start: u64,
    /// Where they end.
    pub end: u64,
    number: usize,
}

impl Documents {
    /// Kept documents.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// The number of the kept document that holds the expanded token at `position` of the chunk.
    pub fn at(&self, position: u64) -> usize {
        self.ends.partition_point(|&end| end <= position)
    }

    /// A kept document.
    pub fn document(&self, number: usize) -> Document {
        let start = if number == 0 { self.first_start } else { self.ends[number - 1] };
        Document { row: self.rows[number], start, end: self.ends[number], number }
    }

    /// Which of the chunk's stored tokens is the first at or behind `position`, which lies in a document.
    pub fn first_stored(&self, document: &Document, position: u64, specials: Specials) -> u64 {
        let whole = document.end - document.start - specials.added();
        let own = specials.stored(whole, position - document.start, 1);
        self.stored(document, own, specials).start
    }

    /// Which of the chunk's stored tokens are those of `range` in a document; that must lie within what is kept.
    pub fn stored(&self, document: &Document, range: Range<u64>, specials: Specials) -> Range<u64> {
        let added = specials.added();
        // Where the document's first kept token lies among the kept ones, and which of its tokens that is.
        let (at, first) = if document.number == 0 {
            let whole = document.end - document.start - added;
            (0, specials.stored(whole, self.need.start.saturating_sub(document.start), u64::MAX >> 1).start)
        } else {
            (self.first_tokens + document.start - self.ends[0] - (document.number as u64 - 1) * added, 0)
        };
        let before = self.skipped + at;
        before + range.start - first..before + range.end - first
    }
}

/// Stretches of a chunk's stored tokens, in ascending order and disjoint.
pub type Stretches = Vec<Range<u64>>;

/// How many tokens stretches hold.
pub fn tokens_of(stretches: &[Range<u64>]) -> usize {
    stretches.iter().map(|stretch| stretch.end - stretch.start).sum::<u64>() as usize
}

/// The stored tokens of a chunk that are in memory.
#[derive(Debug, Default)]
pub struct Tokens {
    numbers: Option<TokenSlot>,
    /// Which they are, each with its place in `numbers`.
    stretches: Vec<(Range<u64>, usize)>,
}

impl Tokens {
    /// Tokens that lie one after another, as many as `stretches` say.
    pub fn new(numbers: TokenSlot, stretches: Stretches) -> Self {
        let mut at = 0;
        let placed = stretches.into_iter().map(|stretch| {
            let place = at;
            at += (stretch.end - stretch.start) as usize;
            (stretch, place)
        });
        Self { stretches: placed.collect(), numbers: Some(numbers) }
    }

    /// Those of `range`, if they are there.
    pub fn get(&self, range: Range<u64>) -> Option<Stored<'_>> {
        if range.is_empty() {
            return Some(Stored::I32(&[]));
        }
        let (at, end, numbers) = self.place(range.start)?;
        let count = (range.end - range.start) as usize;
        if range.end <= end { numbers.get(at..at + count) } else { None }
    }

    /// Says that tokens from `first` on are about to be read.
    pub fn prefetch(&self, first: u64) {
        match self.place(first) {
            Some((at, _, TokenSlot::U16(numbers))) => numbers.prefetch(at),
            Some((at, _, TokenSlot::I32(numbers))) => numbers.prefetch(at),
            None => {}
        }
    }

    /// Where a token lies, and which is the first behind it that does not lie there too.
    fn place(&self, token: u64) -> Option<(usize, u64, &TokenSlot)> {
        let at = self.stretches.partition_point(|(stretch, _)| stretch.end <= token);
        let (stretch, place) = self.stretches.get(at)?;
        let within = token.checked_sub(stretch.start)? as usize;
        Some((place + within, stretch.end, self.numbers.as_ref()?))
    }
}

/// Where tokens will be, in the form in which they are kept.
#[derive(Debug)]
pub enum TokenRegion {
    /// In 16 bits.
    U16(Region<u16>),
    /// In 32.
    I32(Region<i32>),
}

impl TokenRegion {
    /// Room for `len` tokens.
    pub fn add(layout: &mut Layout, len: usize, is_narrow: bool) -> Self {
        if is_narrow { Self::U16(layout.add(len)) } else { Self::I32(layout.add(len)) }
    }

    /// Takes the region out of an arena, to be filled.
    pub fn carve(self, arena: &std::sync::Arc<Arena>) -> TokenSlotMut {
        match self {
            Self::U16(region) => TokenSlotMut::U16(arena.carve(region)),
            Self::I32(region) => TokenSlotMut::I32(arena.carve(region)),
        }
    }
}

/// Tokens being written.
#[derive(Debug)]
pub enum TokenSlotMut {
    /// In 16 bits.
    U16(SlotMut<u16>),
    /// In 32.
    I32(SlotMut<i32>),
}

impl TokenSlotMut {
    /// A part of them.
    pub fn get_mut(&mut self, range: Range<usize>) -> Option<TokensMut<'_>> {
        Some(match self {
            Self::U16(tokens) => TokensMut::U16(tokens.get_mut(range)?),
            Self::I32(tokens) => TokensMut::I32(tokens.get_mut(range)?),
        })
    }

    /// Writes tokens of the same form to `at`; `false` if they are of another or there is no room.
    pub fn copy(&mut self, at: usize, tokens: Stored<'_>) -> bool {
        match (self.get_mut(at..at + tokens.len()), tokens) {
            (Some(TokensMut::U16(to)), Stored::U16(from)) => to.copy_from_slice(from),
            (Some(TokensMut::I32(to)), Stored::I32(from)) => to.copy_from_slice(from),
            _ => return tokens.is_empty(),
        }
        true
    }

    /// Ends the writing. Only the first `len` tokens stay reachable.
    pub fn freeze(self, len: usize) -> TokenSlot {
        match self {
            Self::U16(tokens) => TokenSlot::U16(tokens.freeze(len)),
            Self::I32(tokens) => TokenSlot::I32(tokens.freeze(len)),
        }
    }
}

/// Tokens that were written.
#[derive(Debug)]
pub enum TokenSlot {
    /// In 16 bits.
    U16(Slot<u16>),
    /// In 32.
    I32(Slot<i32>),
}

impl TokenSlot {
    fn get(&self, range: Range<usize>) -> Option<Stored<'_>> {
        Some(match self {
            Self::U16(tokens) => Stored::U16(tokens.get(range)?),
            Self::I32(tokens) => Stored::I32(tokens.get(range)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tokens_that_are_there_are_given() {
        let mut layout = Layout::new();
        let region = TokenRegion::add(&mut layout, 5, true);
        let mut slot = region.carve(&Arena::small(&layout).unwrap());
        assert!(slot.copy(0, Stored::U16(&[3, 4, 5, 10, 11])));
        assert!(!slot.copy(0, Stored::I32(&[3])), "another form");
        assert!(!slot.copy(4, Stored::U16(&[3, 4])), "beyond the end");
        let tokens = Tokens::new(slot.freeze(5), vec![3..6, 10..12]);
        assert_eq!(tokens.get(3..6), Some(Stored::U16(&[3, 4, 5])));
        assert_eq!(tokens.get(4..5), Some(Stored::U16(&[4])));
        assert_eq!(tokens.get(10..12), Some(Stored::U16(&[10, 11])));
        for missing in [2..4, 5..7, 6..7, 9..11, 11..13, 12..13] {
            assert_eq!(tokens.get(missing), None);
        }
        assert!(Tokens::default().get(7..7).is_some_and(|tokens| tokens.is_empty()));
        assert_eq!(Tokens::default().get(7..8), None);
    }
}

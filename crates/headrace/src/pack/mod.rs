//! How documents become rows. No I/O: tokens in, tokens out.
//!
//! A document's *expanded* tokens are `[bos] tokens [eos]` (nothing for an empty document). Packing, dealing and
//! cutting all count in expanded tokens; what a row came from is reported in stored ones.

mod boundaries;
mod masked;

pub use boundaries::{Boundaries, cu_seqlens, write_boundaries};
pub use masked::Masked;

/// The tokens that packing puts around each document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Specials {
    /// Before a document's tokens.
    pub bos: Option<i32>,
    /// After them.
    pub eos: Option<i32>,
}

impl Specials {
    /// Tokens that are added to each document that has one.
    pub fn added(self) -> u64 {
        u64::from(self.bos.is_some()) + u64::from(self.eos.is_some())
    }

    /// Expanded tokens of `documents` documents (none of them empty) with `tokens` stored ones.
    pub fn weight(self, tokens: u64, documents: u64) -> u64 {
        tokens.saturating_add(self.added().saturating_mul(documents))
    }

    /// Which stored tokens the expanded stretch `start..start + count` of a document of `tokens` stored ones holds.
    pub fn stored(self, tokens: u64, start: u64, count: u64) -> std::ops::Range<u64> {
        let bos = u64::from(self.bos.is_some());
        let first = start.saturating_sub(bos).min(tokens);
        first..(start + count).saturating_sub(bos).min(tokens)
    }

    /// Writes the expanded stretch of a document that begins at `start` to `out`, as long as `out` is.
    ///
    /// `stored` are the stored tokens that [`Specials::stored`] names for the stretch; `whole` is the document's
    /// number of stored tokens.
    pub fn write<T: Token>(self, stored: Stored<'_>, whole: u64, start: u64, out: &mut [T]) {
        let mut out = out;
        if let (Some(bos), 0, false) = (self.bos, start, out.is_empty()) {
            out[0] = T::from_token(bos);
            out = &mut out[1..];
        }
        let (body, rest) = out.split_at_mut(stored.len());
        match stored {
            Stored::U16(tokens) => T::copy_narrow(tokens, body),
            Stored::I32(tokens) => T::copy(tokens, body),
        }
        if let ([last], Some(eos)) = (rest, self.eos) {
            debug_assert!(start + stored.len() as u64 <= whole + 1);
            *last = T::from_token(eos);
        }
    }
}

/// Tokens as they are kept in memory: in 16 bits where all of a chunk fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored<'a> {
    /// Tokens of 0 to 65,535.
    U16(&'a [u16]),
    /// Any.
    I32(&'a [i32]),
}

impl Stored<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::U16(tokens) => tokens.len(),
            Self::I32(tokens) => tokens.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A type that tokens are handed out as.
pub trait Token: Copy + Send + 'static {
    /// One token.
    fn from_token(token: i32) -> Self;
    /// Many, into as many places.
    fn copy(from: &[i32], to: &mut [Self]);
    /// Many of 16 bits, into as many places.
    fn copy_narrow(from: &[u16], to: &mut [Self]);
}

impl Token for i32 {
    fn from_token(token: i32) -> Self {
        token
    }
    fn copy(from: &[i32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }
    fn copy_narrow(from: &[u16], to: &mut [Self]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = i32::from(*from);
        }
    }
}

/// As tokens wait, where all that they are made of fit.
impl Token for u16 {
    fn from_token(token: i32) -> Self {
        token as Self
    }
    fn copy(from: &[i32], to: &mut [Self]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = *from as Self;
        }
    }
    fn copy_narrow(from: &[u16], to: &mut [Self]) {
        to.copy_from_slice(from);
    }
}

impl Token for i64 {
    fn from_token(token: i32) -> Self {
        i64::from(token)
    }
    fn copy(from: &[i32], to: &mut [Self]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = i64::from(*from);
        }
    }
    fn copy_narrow(from: &[u16], to: &mut [Self]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = i64::from(*from);
        }
    }
}

/// A part of a document in a row: the single record from which boundaries and provenance are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The chunk, as its number in the index.
    pub chunk: u32,
    /// The document's row in its chunk.
    pub row: u32,
    /// The first stored token.
    pub first: u64,
    /// Stored tokens.
    pub tokens: u32,
    /// Positions in the row, bos and eos included.
    pub positions: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_stretch_equals_that_of_the_whole(
            tokens in prop::collection::vec(0_i32..9, 1..9), bos: bool, eos: bool, from in 0_usize..12, to in 0_usize..12,
        ) {
            let specials = Specials { bos: bos.then_some(-1), eos: eos.then_some(-2) };
            let mut whole: Vec<i32> = specials.bos.into_iter().collect();
            whole.extend(&tokens);
            whole.extend(specials.eos);
            prop_assert_eq!(whole.len() as u64, specials.weight(tokens.len() as u64, 1));
            let (from, to) = (from.min(whole.len()), to.min(whole.len()));
            let (from, to) = (from.min(to), from.max(to));
            let range = specials.stored(tokens.len() as u64, from as u64, (to - from) as u64);
            let stored = &tokens[range.start as usize..range.end as usize];
            let mut out = vec![0_i32; to - from];
            let narrow: Vec<u16> = stored.iter().map(|&token| token as u16).collect();
            for stored in [Stored::I32(stored), Stored::U16(&narrow)] {
                out.fill(-9);
                specials.write(stored, tokens.len() as u64, from as u64, &mut out);
                prop_assert_eq!(&out, &whole[from..to]);
                let mut wide = vec![0_i64; to - from];
                specials.write(stored, tokens.len() as u64, from as u64, &mut wide);
                prop_assert_eq!(wide, out.iter().map(|&token| i64::from(token)).collect::<Vec<_>>());
            }
        }
    }
}

//! Any bytes as the pages of a column chunk: both readers come back, and where both read the chunk they agree.
//!
//! The first eight bytes choose the chunk's shape, codec and counts; the rest are its pages.
#![no_main]

use std::ops::Range;

use headrace::error::{Place, Result};
use headrace::format::parquet::{
    ChunkDecoder, Delivered, Limits, PageValues, Progress, TokenChunk, TokenShape, TokenSink, TokensMut, fallback,
};
use libfuzzer_sys::fuzz_target;

/// Small, so that a page that declares much shows in the time that a run takes.
const LIMITS: Limits = Limits { page_bytes: 1 << 20 };

#[derive(Debug, Default, PartialEq)]
struct Collected {
    lengths_only: bool,
    lengths: Vec<u64>,
    values: Vec<i32>,
}

impl TokenSink for Collected {
    fn wants(&mut self, _tokens: Range<u64>) -> bool {
        !self.lengths_only
    }

    fn documents(&mut self, continued: bool, lengths: &[u64], values: &mut PageValues<'_>) -> Result<()> {
        while !self.lengths_only && values.left() > 0 {
            let start = self.values.len();
            self.values.resize(start + values.left().min(1 << 16) as usize, 0);
            values.read(TokensMut::I32(&mut self.values[start..]))?;
        }
        let mut lengths = lengths;
        if continued {
            let (first, rest) = lengths.split_first().expect("a document to go on with");
            *self.lengths.last_mut().expect("a document before") += first;
            lengths = rest;
        }
        self.lengths.extend_from_slice(lengths);
        Ok(())
    }
}

/// Decodes in pieces of `step` bytes more than asked for: the documents, or `None` if they cannot be read.
fn fast(chunk: &TokenChunk, bytes: &[u8], lengths_only: bool, step: usize) -> Option<Collected> {
    let mut decoder = ChunkDecoder::new(LIMITS);
    decoder.begin(chunk, Place::file("fuzz"));
    let (mut start, mut end) = (0, 0);
    let mut sink = Collected { lengths_only, ..Collected::default() };
    loop {
        match decoder.push(&bytes[start..end], &mut sink).ok()? {
            Progress::Done => return Some(sink),
            Progress::Unsupported(_) => return None,
            Progress::Need { consumed, want } => {
                start += consumed;
                end = end.max(start);
                assert!(want > end - start && start + want <= bytes.len());
                end = (start + want + step).min(bytes.len());
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((head, bytes)) = data.split_first_chunk::<8>() else { return };
    let [kind, codec, defs, step, rows, more_rows, levels, more_levels] = *head;
    let value_bytes = if kind & 1 == 0 { 4 } else { 8 };
    let list_def = 1 + i16::from(defs % 4);
    let rows = u64::from(u16::from_le_bytes([rows, more_rows]));
    let chunk = TokenChunk {
        shape: TokenShape {
            value_bytes,
            bits: [8, 16, 32, value_bytes * 8][usize::from(kind >> 1 & 3)],
            signed: kind & 8 == 0,
            max_def: list_def + i16::from(defs >> 2 & 1),
            list_def,
        },
        codec: codec % 9,
        narrow: kind & 16 != 0,
        encodings: 0,
        start: 4,
        len: bytes.len() as u64,
        levels: rows + u64::from(u16::from_le_bytes([levels, more_levels])),
        rows,
    };
    let whole = fast(&chunk, bytes, false, usize::MAX >> 1);
    assert_eq!(whole, fast(&chunk, bytes, false, usize::from(step)), "in pieces as at once");
    if let Some(whole) = &whole {
        assert_eq!(whole.values.len() as u64, whole.lengths.iter().sum::<u64>());
        assert_eq!(whole.lengths.len() as u64, chunk.rows);
        let lengths = fast(&chunk, bytes, true, 0).map(|found| found.lengths);
        assert_eq!(lengths.as_ref(), Some(&whole.lengths), "lengths alone");
    }
    let mut slow = Collected::default();
    let bytes = bytes::Bytes::copy_from_slice(bytes);
    let done = fallback::decode(&chunk, &Place::file("fuzz"), bytes, Delivered::default(), LIMITS, &mut slow);
    if let (Some(whole), Ok(())) = (whole, done) {
        assert_eq!(whole, slow, "one reader as the other");
    }
});

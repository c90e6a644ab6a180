//! Parquet: where the token columns of a file lie, and how their pages become documents.
//!
//! A *token column* is a leaf of integers that repeats once a row (a list, large list or fixed-size list; at any
//! depth of structs). Its column chunk in one row group is described by a [`TokenChunk`], which holds all that is
//! needed to decode it: footers are read once, when the dataset is indexed.
//!
//! [`footer`] finds the chunks, [`decoder`] reads them, and [`fallback`] reads the rare ones that it does not know.
//! `check` reads chunks of all other columns, to tell whether they can be read.

#[doc(hidden)]
pub mod bench_support;
pub(crate) mod check;
mod codec;
pub mod cpu;
mod data;
pub mod decoder;
mod delta;
mod dictionary;
mod documents;
pub mod fallback;
mod flaw;
pub mod footer;
mod front;
mod indices;
mod levels;
mod page;
mod schema;
mod sink;
mod thrift;
mod unpack;
mod values;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests;

pub use decoder::{ChunkDecoder, Delivered, Limits, Outcome, Progress, Unsupported, decode_stream};
pub use footer::{ColumnFooter, FileFooter, RowGroupFooter};
pub use sink::{PageValues, TokenSink, TokensMut};

use crate::error::{Error, Place, Result};

/// What a leaf's schema says about how its levels and values are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenShape {
    /// 4 or 8: the physical type is INT32 or INT64.
    pub value_bytes: u8,
    /// Bits of the logical type: 8, 16, 32 or 64.
    pub bits: u8,
    /// Whether the logical type is signed. An unsigned 32-bit value above `i32::MAX` is stored as a negative INT32.
    pub signed: bool,
    /// Definition level of a value that is there.
    pub max_def: i16,
    /// Definition level from which a list has an element (below it: a null or empty list). An element with a level
    /// in `list_def..max_def` is a null.
    pub list_def: i16,
}

/// One token column in one row group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenChunk {
    /// How to read it.
    pub shape: TokenShape,
    /// Compression, as Parquet numbers it (0 none, 1 snappy, 2 gzip, 4 brotli, 5 lz4, 6 zstd, 7 lz4 raw).
    pub codec: u8,
    /// Bit `e` is set if Parquet's encoding number `e` occurs, as the footer says.
    pub encodings: u32,
    /// Byte offset of the first page (dictionary page included) in the file.
    pub start: u64,
    /// Bytes of all pages with their headers.
    pub len: u64,
    /// Levels: tokens, plus one for each empty or null list.
    pub levels: u64,
    /// Rows.
    pub rows: u64,
    /// Whether all tokens fit in a `u16`, as the type or the footer's statistics say. A value that does not is an
    /// error then, so that tokens of this chunk can be kept in half the memory.
    pub narrow: bool,
}

/// Checks what a decoder relies on, so that a chunk that no footer gave is an error and not a panic.
fn check_shape(chunk: &TokenChunk, place: &Place) -> Result<()> {
    let TokenShape { value_bytes, bits, max_def, list_def, .. } = chunk.shape;
    let bits_fit = matches!((value_bytes, bits), (4, 8 | 16 | 32) | (8, 8 | 16 | 32 | 64));
    if bits_fit && 0 < list_def && list_def <= max_def {
        return Ok(());
    }
    Err(Error::data(place.clone(), format!("expected the shape of a token column, found {:?}", chunk.shape)))
}

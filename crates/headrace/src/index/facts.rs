//! What can be said of a token column without reading it, for people.

use std::collections::BTreeSet;

use crate::cancel::Cancel;
use crate::error::Result;
use crate::index::{Index, UNKNOWN};

/// A column's sums over the whole dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnFacts {
    /// Integer types of its tokens, such as `"int32"`; several if files differ.
    pub types: Vec<String>,
    /// Tokens; [`UNKNOWN`] if any chunk's were not counted.
    pub tokens: u64,
    /// Documents with a token; [`UNKNOWN`] if any chunk's were not counted.
    pub documents: u64,
    /// Stored bytes.
    pub bytes: u64,
    /// Names of its codecs.
    pub codecs: Vec<&'static str>,
    /// Names of its encodings.
    pub encodings: Vec<&'static str>,
}

/// Parquet's codecs, by number.
const CODECS: [&str; 8] = ["uncompressed", "snappy", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4_raw"];

/// Parquet's encodings, by number; `""` for one that is not in use.
const ENCODINGS: [&str; 10] = [
    "plain",
    "",
    "plain_dictionary",
    "rle",
    "bit_packed",
    "delta_binary_packed",
    "delta_length_byte_array",
    "delta_byte_array",
    "rle_dictionary",
    "byte_stream_split",
];

impl Index {
    /// The sums of a token column, which every file must have.
    pub fn column_facts(&self, name: &str) -> Result<ColumnFacts> {
        let column = &self.columns[self.check_column(name, &Cancel::new())?];
        let sum = |counts: &[u64]| {
            let known = counts.iter().all(|&count| count != UNKNOWN);
            if known { counts.iter().sum() } else { UNKNOWN }
        };
        let (mut types, mut codecs, mut encodings) = (BTreeSet::new(), BTreeSet::new(), 0);
        for chunk in column.chunks.iter().filter(|chunk| chunk.rows > 0) {
            types.insert((!chunk.shape.signed, chunk.shape.bits));
            codecs.insert(chunk.codec);
            encodings |= chunk.encodings;
        }
        let type_name = |(unsigned, bits): (bool, u8)| format!("{}int{bits}", if unsigned { "u" } else { "" });
        let codec = |codec: u8| CODECS.get(usize::from(codec)).copied().unwrap_or("unknown");
        let encoding = |number: usize| ENCODINGS.get(number).copied().unwrap_or("unknown");
        Ok(ColumnFacts {
            types: types.into_iter().map(type_name).collect(),
            tokens: sum(&column.tokens),
            documents: sum(&column.documents),
            bytes: (0..column.chunks.len()).map(|at| column.chunks.bytes(at)).sum(),
            codecs: codecs.into_iter().map(codec).collect(),
            encodings: (0..32).filter(|number| encodings >> number & 1 == 1).map(encoding).collect(),
        })
    }
}

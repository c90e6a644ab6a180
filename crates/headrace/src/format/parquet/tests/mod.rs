//! Whole chunks and files: what was written is what is read, and damage is an error.

mod build;
mod damage;

mod files;
mod pages;
mod pulls;

use std::ops::Range;

use super::cpu::Cpu;
use super::{
    ChunkDecoder, Delivered, Limits, PageValues, Progress, TokenChunk, TokenSink, TokensMut, Unsupported, fallback,
};
use crate::error::{Error, Place, Result};

/// Large enough for every page of these tests.
const LIMITS: Limits = Limits { page_bytes: 16 << 20 };

/// Collects documents, and checks what every sink may rely on.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Collected {
    lengths: Vec<u64>,
    values: Vec<i32>,
    lengths_only: bool,
}

impl TokenSink for Collected {
    fn wants(&mut self, _tokens: Range<u64>) -> bool {
        !self.lengths_only
    }

    fn documents(&mut self, continued: bool, lengths: &[u64], values: &mut PageValues<'_>) -> Result<()> {
        assert!(!lengths.is_empty(), "a page of no documents");
        assert!(lengths.len() <= 64 << 10, "batches are bounded");
        assert_eq!(values.left(), lengths.iter().sum::<u64>());
        // Piece by piece: levels may claim any number of tokens.
        while !self.lengths_only && values.left() > 0 {
            let start = self.values.len();
            self.values.resize(start + values.left().min(10_000) as usize, 0);
            values.read(TokensMut::I32(&mut self.values[start..]))?;
        }
        let mut lengths = lengths;
        if continued {
            let (first, rest) = lengths.split_first().unwrap();
            assert!(*first > 0, "the rest of a document is not nothing");
            *self.lengths.last_mut().expect("a document to go on with") += first;
            lengths = rest;
        }
        self.lengths.extend_from_slice(lengths);
        Ok(())
    }
}

impl Collected {
    /// What is expected of these documents.
    fn of(documents: &[Vec<i32>]) -> Self {
        let lengths = documents.iter().map(|document| document.len() as u64).collect();
        Self { lengths, values: documents.concat(), lengths_only: false }
    }

    /// The same, without tokens.
    fn lengths_of(documents: &[Vec<i32>]) -> Self {
        Self { values: Vec::new(), lengths_only: true, ..Self::of(documents) }
    }
}

fn place() -> Place {
    Place::file("/data/a.parquet").in_column("tokens").at_row_group(3)
}

/// Decodes a chunk that is pushed in pieces, each as long as asked for or as the next of `steps` (over and over).
fn decode(
    chunk: &TokenChunk,
    bytes: &[u8],
    lengths_only: bool,
    steps: &[usize],
) -> Result<(Collected, Option<Unsupported>)> {
    let mut sink = Collected { lengths_only, ..Collected::default() };
    let unsupported = decode_to(chunk, bytes, steps, &mut sink)?;
    Ok((sink, unsupported))
}

/// The same, for any sink.
fn decode_to(
    chunk: &TokenChunk,
    bytes: &[u8],
    steps: &[usize],
    sink: &mut dyn TokenSink,
) -> Result<Option<Unsupported>> {
    decode_on(Cpu::detect(), chunk, bytes, steps, sink)
}

/// The same, as a kind of processor does it.
fn decode_on(
    cpu: Cpu,
    chunk: &TokenChunk,
    bytes: &[u8],
    steps: &[usize],
    sink: &mut dyn TokenSink,
) -> Result<Option<Unsupported>> {
    let mut decoder = ChunkDecoder::new(LIMITS).with_cpu(cpu);
    decoder.begin(chunk, place());
    let (mut start, mut end) = (0, 0);
    let mut steps = steps.iter().cycle();
    loop {
        match decoder.push(&bytes[start..end], sink)? {
            Progress::Done => return Ok(None),
            Progress::Unsupported(unsupported) => return Ok(Some(unsupported)),
            Progress::Need { consumed, want } => {
                start += consumed;
                end = end.max(start);
                assert!(want > end - start, "wants {want} of {} that are there", end - start);
                assert!((start + want) as u64 <= chunk.len, "wants more than the chunk has");
                if start + want > bytes.len() {
                    return Err(Error::Internal("the input ended".to_owned()));
                }
                end = (start + want + steps.next().copied().unwrap_or_default()).min(bytes.len());
            }
        }
    }
}

/// Decodes a chunk by the other reader.
fn decode_slowly(chunk: &TokenChunk, bytes: &[u8], lengths_only: bool, delivered: Delivered) -> Result<Collected> {
    let mut sink = Collected { lengths_only, ..Collected::default() };
    if delivered.rows > 0 {
        sink.lengths.push(0);
    }
    fallback::decode(chunk, &place(), bytes.to_vec().into(), delivered, LIMITS, &mut sink)?;
    Ok(sink)
}

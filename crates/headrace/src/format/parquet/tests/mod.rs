//! Whole chunks and files: what was written is what is read, and damage is an error.

mod build;
mod damage;

mod files;
mod pages;

use super::{ChunkDecoder, Delivered, Limits, Progress, TokenChunk, TokenSink, Unsupported, fallback};
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
    fn page(&mut self, continued: bool, lengths: &[u64], values: &[i32]) -> Result<()> {
        assert!(!lengths.is_empty(), "a page of no documents");
        assert!(lengths.len() <= 64 << 10, "batches are bounded");
        let sum: u64 = lengths.iter().sum();
        assert_eq!(values.len() as u64, if self.lengths_only { 0 } else { sum });
        let mut lengths = lengths;
        if continued {
            let (first, rest) = lengths.split_first().unwrap();
            assert!(*first > 0, "the rest of a document is not nothing");
            *self.lengths.last_mut().expect("a document to go on with") += first;
            lengths = rest;
        }
        self.lengths.extend_from_slice(lengths);
        self.values.extend_from_slice(values);
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
    let mut decoder = ChunkDecoder::new(LIMITS);
    let mut sink = Collected { lengths_only, ..Collected::default() };
    decoder.begin(chunk, place(), lengths_only);
    let (mut start, mut end) = (0, 0);
    let mut steps = steps.iter().cycle();
    loop {
        match decoder.push(&bytes[start..end], &mut sink)? {
            Progress::Done => return Ok((sink, None)),
            Progress::Unsupported(unsupported) => return Ok((sink, Some(unsupported))),
            Progress::Need { consumed, want } => {
                start += consumed;
                assert!(start <= end);
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
    fallback::decode(chunk, &place(), bytes.to_vec().into(), lengths_only, delivered, LIMITS, &mut sink)?;
    Ok(sink)
}

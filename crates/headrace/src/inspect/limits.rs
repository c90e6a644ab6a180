//! What decoding costs this machine: a measure to hold a loader against.

use std::ops::Range;
use std::time::Duration;

use crate::cancel::Cancel;
use crate::error::{Error, Place, Result};
use crate::format::parquet::{ChunkDecoder, Limits as Bounds, PageValues, Progress, TokenChunk, TokenSink, TokensMut};
use crate::index::Index;
use crate::index::chunks::LARGEST;

/// How often each chunk is decoded; the best time counts, which other work on the machine disturbed least.
const REPEATS: usize = 5;

/// Tokens that are decoded at a time, into the same memory again and again: it stays in a core's own cache.
const SLICE: usize = 32 << 10;

/// What some chunks of a column cost to decode, on one thread and from memory: what the fastest loader could cost.
///
/// Times are of the processor, not of the clock, and do not contain reading.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Chunks that were decoded. Those that only the general reader knows are left out.
    pub chunks: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Stored bytes of their pages.
    pub stored_bytes: u64,
    /// Bytes of their pages once decompressed.
    pub page_bytes: u64,
    /// Tokens that were kept as 16-bit numbers; all others as 32-bit ones.
    pub narrow_tokens: u64,
    /// Nanoseconds to decompress all pages.
    pub decompress_ns: u64,
    /// Nanoseconds to find the lengths of all documents.
    pub levels_ns: u64,
    /// Nanoseconds to decode all tokens, decompression and levels included.
    pub decode_ns: u64,
}

/// Measures up to `most_chunks` chunks of a column, spread over the whole dataset, on the calling thread.
///
/// # Errors
/// Whatever keeps a chunk from being read, and [`Error::Cancelled`].
pub fn limits(index: &Index, column: &str, most_chunks: usize, cancel: &Cancel) -> Result<Limits> {
    let column = &index.columns[index.check_column(column, cancel)?];
    let filled: Vec<usize> = (0..column.chunks.len()).filter(|group| column.chunks.get(*group).levels > 0).collect();
    let wanted = most_chunks.min(filled.len());
    let mut decoder = ChunkDecoder::new(Bounds { page_bytes: LARGEST });
    let mut bytes = Vec::new();
    let mut sum = Limits::default();
    for number in 0..wanted {
        let group = filled[number * filled.len() / wanted];
        let chunk = &column.chunks.get(group);
        let row_group = index.row_groups.get(group);
        let object = &index.files[row_group.file as usize].object;
        let place = Place::file(index.store.uri(&object.path)).in_column(&column.name).at_row_group(row_group.number);
        if chunk.len > LARGEST {
            continue;
        }
        bytes.clear();
        index.store.fetch(object, chunk.start..chunk.start + chunk.len).wait_into(cancel, &mut bytes)?;
        measure(&mut decoder, chunk, &place, &bytes, cancel, &mut sum)?;
    }
    Ok(sum)
}

fn measure(
    decoder: &mut ChunkDecoder,
    chunk: &TokenChunk,
    place: &Place,
    bytes: &[u8],
    cancel: &Cancel,
    sum: &mut Limits,
) -> Result<()> {
    let mut all = Slice::new(chunk.narrow, true);
    // Once without a clock, to see whether it can be done.
    if !decode(decoder, chunk, place, bytes, &mut all)? {
        return Ok(());
    }
    let tokens = std::mem::take(&mut all.tokens);
    let mut lengths = Slice::new(false, false);
    let [mut decompress_ns, mut levels_ns, mut decode_ns] = [u64::MAX; 3];
    let mut page_bytes = 0;
    for _ in 0..REPEATS {
        cancel.check()?;
        let start = cpu_time()?;
        page_bytes = decoder.decompress_pages(chunk, place.clone(), bytes)?;
        let middle = cpu_time()?;
        decode(decoder, chunk, place, bytes, &mut lengths)?;
        let end = cpu_time()?;
        decode(decoder, chunk, place, bytes, &mut all)?;
        let times = [middle - start, end - middle, cpu_time()? - end].map(|time| time.as_nanos() as u64);
        decompress_ns = decompress_ns.min(times[0]);
        levels_ns = levels_ns.min(times[1]);
        decode_ns = decode_ns.min(times[2]);
    }
    sum.chunks += 1;
    sum.tokens += tokens;
    sum.stored_bytes += bytes.len() as u64;
    sum.page_bytes += page_bytes;
    sum.narrow_tokens += if chunk.narrow { tokens } else { 0 };
    sum.decompress_ns += decompress_ns;
    sum.levels_ns += levels_ns;
    sum.decode_ns += decode_ns;
    Ok(())
}

/// Decodes a chunk; `false` if this decoder cannot.
fn decode(
    decoder: &mut ChunkDecoder,
    chunk: &TokenChunk,
    place: &Place,
    bytes: &[u8],
    sink: &mut Slice,
) -> Result<bool> {
    decoder.begin(chunk, place.clone());
    match decoder.push(bytes, sink)? {
        Progress::Done => Ok(true),
        Progress::Unsupported(_) => Ok(false),
        Progress::Need { .. } => Err(Error::data(place.clone(), "expected a whole column chunk, found a part of one")),
    }
}

/// Decodes into the same memory again and again.
struct Slice {
    /// Whether tokens are wanted, or only lengths.
    values: bool,
    narrow: bool,
    wide_tokens: Vec<i32>,
    narrow_tokens: Vec<u16>,
    tokens: u64,
}

impl Slice {
    fn new(narrow: bool, values: bool) -> Self {
        Self { values, narrow, wide_tokens: vec![0; SLICE], narrow_tokens: vec![0; SLICE], tokens: 0 }
    }
}

impl TokenSink for Slice {
    fn wants(&mut self, _tokens: Range<u64>) -> bool {
        self.values
    }

    fn documents(&mut self, _continued: bool, _lengths: &[u64], values: &mut PageValues<'_>) -> Result<()> {
        self.tokens += values.left();
        while self.values && values.left() > 0 {
            let count = values.left().min(SLICE as u64) as usize;
            values.read(match self.narrow {
                true => TokensMut::U16(&mut self.narrow_tokens[..count]),
                false => TokensMut::I32(&mut self.wide_tokens[..count]),
            })?;
        }
        Ok(())
    }
}

/// The time that this thread has run.
fn cpu_time() -> Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `time` alone, which is there and of the type that it wants.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    match (done, u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
        (0, Ok(seconds), Ok(nanos)) => Ok(Duration::new(seconds, nanos)),
        _ => Err(Error::Internal("the system does not tell how long a thread has run".to_owned())),
    }
}

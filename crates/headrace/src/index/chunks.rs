//! Reading whole chunks of a token column for what they tell: how many documents, how long.

use std::sync::Arc;

use bytes::Bytes;

use crate::cancel::Cancel;
use crate::error::{Error, Place, Result};
use crate::format::parquet::decoder::{ChunkDecoder, Limits, Outcome, decode_stream};
use crate::format::parquet::{TokenChunk, TokenSink, fallback};
use crate::index::read::{parallel, threads};
use crate::index::{Index, Progress};
use crate::store::{ByteStream, Object, Store};

/// The largest page, or chunk of a kind that must be read whole. Scope: a thread that reads. Unit: bytes.
/// Evidence: writers end pages at 1 MiB and row groups at 512 MiB or less by default.
pub(crate) const LARGEST: u64 = 1 << 30;

/// Bytes read at a time, and reads under way beyond that. Scope: a thread that reads.
const BLOCK: u64 = 1 << 20;
const AHEAD_REMOTE: usize = 3;

/// Bytes read at a time of a local file of which only lengths are wanted: little more than the decoder asks for at the
/// front of a page, for the rest is skipped. A remote store answers sooner with a whole block than with two parts.
const BLOCK_LENGTHS: u64 = 32 << 10;

/// A stretch of a file, read from its start to its end with reads of a fit size.
pub(crate) fn stream(store: &Arc<dyn Store>, object: &Object, start: u64, len: u64, cancel: &Cancel) -> ByteStream {
    stream_by(BLOCK, store, object, start, len, cancel)
}

fn stream_by(block: u64, store: &Arc<dyn Store>, object: &Object, start: u64, len: u64, cancel: &Cancel) -> ByteStream {
    let ahead = if store.is_remote() { AHEAD_REMOTE } else { 0 };
    ByteStream::new(Arc::clone(store), object.clone(), start..start + len, block, ahead, cancel.clone())
}

/// Reads chunks one after another, and keeps its buffers between them.
pub(crate) struct ChunkReader {
    decoder: ChunkDecoder,
    buffer: Vec<u8>,
}

impl ChunkReader {
    pub(crate) fn new() -> Self {
        Self { decoder: ChunkDecoder::new(Limits { page_bytes: LARGEST }), buffer: Vec::new() }
    }

    /// Passes all documents of a chunk to `sink`.
    pub(crate) fn read(
        &mut self,
        store: &Arc<dyn Store>,
        object: &Object,
        chunk: &TokenChunk,
        place: Place,
        cancel: &Cancel,
        sink: &mut dyn TokenSink,
    ) -> Result<()> {
        let done = self.read_within(store, object, chunk, place.clone(), cancel, sink);
        done.map_err(|error| match error {
            // What the error says of a memory budget is for those who train.
            Error::Memory { needed, available, .. } => {
                Error::data(place, format!("expected a page of at most {available} bytes, found one of {needed}"))
            }
            other => other,
        })
    }

    fn read_within(
        &mut self,
        store: &Arc<dyn Store>,
        object: &Object,
        chunk: &TokenChunk,
        place: Place,
        cancel: &Cancel,
        sink: &mut dyn TokenSink,
    ) -> Result<()> {
        let values = store.is_remote() || sink.wants(0..chunk.levels);
        let block = if values { BLOCK } else { BLOCK_LENGTHS };
        let mut stream = stream_by(block, store, object, chunk.start, chunk.len, cancel);
        self.buffer.clear();
        let mut fill = |buffer: &mut Vec<u8>, skip: usize, want: usize| {
            stream.skip(skip as u64);
            stream.fill(buffer, want)
        };
        let (decoder, buffer) = (&mut self.decoder, &mut self.buffer);
        let outcome = decode_stream(decoder, chunk, place.clone(), &mut fill, buffer, sink)?;
        let Outcome::Unsupported(unsupported) = outcome else { return Ok(()) };
        if chunk.len > LARGEST {
            let purpose = format!("{place} ({})", unsupported.what);
            return Err(Error::Memory { purpose, needed: chunk.len, available: LARGEST });
        }
        let mut bytes = Vec::new();
        store.fetch(object, chunk.start..chunk.start + chunk.len).wait_into(cancel, &mut bytes)?;
        let limits = Limits { page_bytes: LARGEST };
        fallback::decode(chunk, &place, Bytes::from(bytes), unsupported.delivered, limits, sink)
    }
}

/// Reads the lengths of all documents in the given row groups of a column, on several threads.
///
/// Each chunk gets a new sink, made for its number, and what `done` makes of it is returned by row group, along with how it ended: after
/// a failure no new chunk is begun.
pub(crate) fn each_length<S: TokenSink, T: Send>(
    index: &Index,
    column: usize,
    groups: &[usize],
    cancel: &Cancel,
    progress: &Progress,
    new: impl Fn(usize) -> S + Sync,
    done: impl Fn(S) -> T + Sync,
) -> (Vec<(usize, T)>, Result<()>) {
    let store = &index.store;
    let column = &index.columns[column];
    let work = |reader: &mut ChunkReader, take: &mut dyn FnMut() -> Option<usize>, found: &mut dyn FnMut(usize, T)| {
        while let Some(number) = take() {
            let group = index.row_groups.get(groups[number]);
            let object = &index.files[group.file as usize].object;
            let place = Place::file(store.uri(&object.path)).in_column(&column.name).at_row_group(group.number);
            let mut sink = new(groups[number]);
            reader
                .read(store, object, &column.chunks.get(groups[number]), place, cancel, &mut sink)
                .map_err(|error| (number, error))?;
            found(number, done(sink));
            progress.step();
        }
        Ok(())
    };
    let threads = threads(index.home.threads, store.as_ref(), groups.len());
    let (results, ended) = parallel(groups.len(), threads, cancel, ChunkReader::new, work);
    (results.into_iter().map(|(number, value)| (groups[number], value)).collect(), ended)
}

//! Counting tokens and documents where footers do not tell: reading the levels of column chunks once.

use std::sync::Arc;

use bytes::Bytes;

use crate::cancel::Cancel;
use crate::error::{Error, Place, Result};
use crate::format::parquet::decoder::{ChunkDecoder, Limits, Outcome, decode_stream};
use crate::format::parquet::{TokenChunk, TokenSink, fallback};
use crate::index::read::{parallel, threads};
use crate::index::{Index, Progress};
use crate::store::{ByteStream, Object, Store};

/// The largest page, or chunk of a kind that must be read whole. Scope: a thread that counts. Unit: bytes.
/// Evidence: writers end pages at 1 MiB and row groups at 512 MiB or less by default.
const LARGEST: u64 = 1 << 30;

/// Bytes read at a time, and reads under way beyond that. Scope: a thread that counts.
const BLOCK: u64 = 1 << 20;
const AHEAD_REMOTE: usize = 3;

/// What one chunk holds.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) tokens: u64,
    /// Documents with at least one token.
    pub(crate) documents: u64,
    /// Whether the document that the last page ended with has been counted.
    open: bool,
}

impl TokenSink for Count {
    fn page(&mut self, continued: bool, lengths: &[u64], _values: &[i32]) -> Result<()> {
        for (number, len) in lengths.iter().enumerate() {
            if number > 0 || !continued {
                self.open = false;
            }
            self.tokens += len;
            if *len > 0 && !self.open {
                self.documents += 1;
                self.open = true;
            }
        }
        Ok(())
    }
}

/// Counts the given row groups of a column; the results that there are, by row group, and how it ended.
pub(crate) fn count_chunks(
    index: &Index,
    column: usize,
    groups: &[usize],
    cancel: &Cancel,
    progress: &Progress,
) -> (Vec<(usize, Count)>, Result<()>) {
    let store = &index.store;
    let work = |state: &mut (ChunkDecoder, Vec<u8>),
                take: &mut dyn FnMut() -> Option<usize>,
                done: &mut dyn FnMut(usize, Count)| {
        let (decoder, buffer) = state;
        while let Some(number) = take() {
            let group = &index.row_groups[groups[number]];
            let object = &index.files[group.file as usize].object;
            let column = &index.columns[column];
            let place = Place::file(store.uri(&object.path)).in_column(column.name.as_str()).at_row_group(group.number);
            let chunk = &column.chunks[groups[number]];
            let count =
                count_chunk(store, object, chunk, place, decoder, buffer, cancel).map_err(|error| (number, error))?;
            done(number, count);
            progress.step();
        }
        Ok(())
    };
    let state = || (ChunkDecoder::new(Limits { page_bytes: LARGEST }), Vec::new());
    let (counts, result) =
        parallel(groups.len(), threads(index.home.threads, store.as_ref(), groups.len()), cancel, state, work);
    (counts.into_iter().map(|(number, count)| (groups[number], count)).collect(), result)
}

fn count_chunk(
    store: &Arc<dyn Store>,
    object: &Object,
    chunk: &TokenChunk,
    place: Place,
    decoder: &mut ChunkDecoder,
    buffer: &mut Vec<u8>,
    cancel: &Cancel,
) -> Result<Count> {
    let range = chunk.start..chunk.start + chunk.len;
    let ahead = if store.is_remote() { AHEAD_REMOTE } else { 0 };
    let mut stream = ByteStream::new(Arc::clone(store), object.clone(), range.clone(), BLOCK, ahead, cancel.clone());
    let mut count = Count::default();
    buffer.clear();
    let mut fill = |buffer: &mut Vec<u8>, want: usize| stream.fill(buffer, want);
    let outcome = decode_stream(decoder, chunk, place.clone(), true, &mut fill, buffer, &mut count)?;
    if let Outcome::Unsupported(unsupported) = outcome {
        if chunk.len > LARGEST {
            let purpose = format!("{place} ({})", unsupported.what);
            return Err(Error::Memory { purpose, needed: chunk.len, available: LARGEST });
        }
        let mut bytes = Vec::new();
        store.fetch(object, range).wait_into(cancel, &mut bytes)?;
        let limits = Limits { page_bytes: LARGEST };
        let delivered = unsupported.delivered;
        fallback::decode(chunk, &place, Bytes::from(bytes), true, delivered, limits, &mut count)?;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_over_several_pages_counts_once() {
        let mut count = Count::default();
        for (continued, lengths) in
            [(false, vec![2, 0, 0]), (true, vec![3, 1]), (true, vec![4]), (true, vec![0, 0, 5]), (true, vec![])]
        {
            count.page(continued, &lengths, &[]).expect("page");
        }
        count.page(true, &[1], &[]).expect("page");
        // Documents: 2 | 0 | 0+3 | 1+4+0 | 0 | 5+1.
        assert_eq!((count.tokens, count.documents), (16, 4));
    }
}

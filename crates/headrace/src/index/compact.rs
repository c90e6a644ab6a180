//! What an index keeps of each row group, in few bytes: its numbers in arrays, and what chunks have in common once.
//!
//! With one token column that is 56 bytes a row group: 12 for the group, 28 for its chunk, 16 for what that holds.

use std::collections::HashMap;
use std::sync::Arc;

use crate::format::parquet::{TokenChunk, TokenShape};
use crate::index::{RowGroup, TokenColumn};

/// What [`Chunks::get`] gives for a row group whose file has no such column.
pub(crate) const MISSING: TokenChunk = TokenChunk {
    shape: TokenShape { value_bytes: 0, bits: 0, signed: false, max_def: 0, list_def: 0 },
    codec: 0,
    encodings: 0,
    start: 0,
    len: 0,
    levels: 0,
    rows: 0,
    narrow: false,
};

/// The row groups of a dataset, in storage order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowGroups {
    /// The file of each: sorted.
    files: Arc<[u32]>,
    rows: Arc<[u64]>,
}

impl RowGroups {
    /// Row groups by their files, which must be sorted, and their rows.
    pub(crate) fn new(files: Vec<u32>, rows: Vec<u64>) -> Self {
        debug_assert!(files.len() == rows.len() && files.is_sorted());
        Self { files: files.into(), rows: rows.into() }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// One of them. Its number in its file is found by binary search.
    pub fn get(&self, at: usize) -> RowGroup {
        let file = self.files[at];
        let first = self.files[..at].partition_point(|other| *other < file);
        RowGroup { file, number: (at - first) as u32, rows: self.rows[at] }
    }

    /// The rows of each.
    pub fn rows(&self) -> &Arc<[u64]> {
        &self.rows
    }
}

/// What tends to be the same for all chunks of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Kind {
    shape: TokenShape,
    codec: u8,
    encodings: u32,
    narrow: bool,
}

impl Kind {
    fn of(chunk: &TokenChunk) -> Self {
        let TokenChunk { shape, codec, encodings, narrow, .. } = *chunk;
        Self { shape, codec, encodings, narrow }
    }
}

/// The number of the kind of [`MISSING`].
const NO_KIND: u32 = 0;

/// The chunks of a token column, one for each row group.
///
/// Rows are those of the row group, as [`crate::format::parquet::footer`] has them for every chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunks {
    /// Each kind once, in the order in which they come first, after [`NO_KIND`].
    kinds: Box<[Kind]>,
    /// The kind of each chunk.
    kind: Box<[u32]>,
    start: Box<[u64]>,
    len: Box<[u64]>,
    levels: Box<[u64]>,
    rows: Arc<[u64]>,
}

impl Chunks {
    /// Row groups, with those whose files lack the column.
    pub fn len(&self) -> usize {
        self.kind.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.kind.is_empty()
    }

    /// Whether the row group's file lacks the column.
    pub fn is_missing(&self, at: usize) -> bool {
        self.kind[at] == NO_KIND
    }

    /// The first row group whose file lacks the column.
    pub fn first_missing(&self) -> Option<usize> {
        self.kind.iter().position(|kind| *kind == NO_KIND)
    }

    /// A chunk; an empty one of no bytes a value where the file lacks the column.
    pub fn get(&self, at: usize) -> TokenChunk {
        let kind = self.kind[at];
        if kind == NO_KIND {
            return MISSING;
        }
        let Kind { shape, codec, encodings, narrow } = self.kinds[kind as usize];
        let (start, len, levels, rows) = (self.start[at], self.len[at], self.levels[at], self.rows[at]);
        TokenChunk { shape, codec, encodings, start, len, levels, rows, narrow }
    }

    /// Stored bytes of a chunk.
    pub fn bytes(&self, at: usize) -> u64 {
        self.len[at]
    }

    /// Rows of a chunk.
    pub fn rows(&self, at: usize) -> u64 {
        if self.is_missing(at) { 0 } else { self.rows[at] }
    }

    /// Whether all tokens of a chunk fit in 16 bits, see [`TokenChunk::narrow`].
    pub fn is_narrow(&self, at: usize) -> bool {
        self.kinds[self.kind[at] as usize].narrow
    }

    /// All chunks.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = TokenChunk> + '_ {
        (0..self.len()).map(|at| self.get(at))
    }
}

/// A token column that is being put together.
#[derive(Debug)]
pub(crate) struct ColumnBuilder {
    name: String,
    kinds: Vec<Kind>,
    numbers: HashMap<Kind, u32>,
    kind: Vec<u32>,
    start: Vec<u64>,
    len: Vec<u64>,
    levels: Vec<u64>,
    tokens: Vec<u64>,
    documents: Vec<u64>,
}

impl ColumnBuilder {
    pub(crate) fn new(name: &str) -> Self {
        let missing = Kind::of(&MISSING);
        Self {
            name: name.to_owned(),
            kinds: vec![missing],
            numbers: HashMap::from([(missing, NO_KIND)]),
            kind: Vec::new(),
            start: Vec::new(),
            len: Vec::new(),
            levels: Vec::new(),
            tokens: Vec::new(),
            documents: Vec::new(),
        }
    }

    /// Adds the next row group's chunk, with its tokens and documents.
    pub(crate) fn push(&mut self, chunk: &TokenChunk, tokens: u64, documents: u64) {
        let kind = self.number(Kind::of(chunk));
        self.kind.push(kind);
        self.start.push(chunk.start);
        self.len.push(chunk.len);
        self.levels.push(chunk.levels);
        self.tokens.push(tokens);
        self.documents.push(documents);
    }

    /// Leaves the column out of the row groups up to `len`.
    pub(crate) fn fill_up(&mut self, len: usize) {
        self.kind.resize(len, NO_KIND);
        for numbers in [&mut self.start, &mut self.len, &mut self.levels, &mut self.tokens, &mut self.documents] {
            numbers.resize(len, 0);
        }
    }

    /// Whether any row group has it.
    pub(crate) fn is_anywhere(&self) -> bool {
        self.kind.iter().any(|kind| *kind != NO_KIND)
    }

    /// The column over row groups of these rows.
    pub(crate) fn finish(self, rows: &Arc<[u64]>) -> TokenColumn {
        debug_assert_eq!(self.kind.len(), rows.len());
        let chunks = Chunks {
            kinds: self.kinds.into(),
            kind: self.kind.into(),
            start: self.start.into(),
            len: self.len.into(),
            levels: self.levels.into(),
            rows: Arc::clone(rows),
        };
        let (tokens, documents) = (self.tokens.into(), self.documents.into());
        TokenColumn { name: self.name, chunks: Arc::new(chunks), tokens, documents, left_out: Arc::default() }
    }

    fn number(&mut self, kind: Kind) -> u32 {
        // Most chunks are like the one before.
        if let Some(last) = self.kind.last()
            && self.kinds[*last as usize] == kind
        {
            return *last;
        }
        // There are no more kinds than chunks, and those are numbered in 32 bits elsewhere too.
        *self.numbers.entry(kind).or_insert_with(|| {
            self.kinds.push(kind);
            (self.kinds.len() - 1) as u32
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use proptest::prelude::*;

    impl RowGroups {
        pub(crate) fn heap_bytes(&self) -> usize {
            size_of_val(&*self.files) + size_of_val(&*self.rows)
        }
    }

    impl TokenColumn {
        /// Bytes beside the row groups' rows, which they share.
        pub(crate) fn heap_bytes(&self) -> usize {
            let Chunks { kinds, kind, start, len, levels, rows: _ } = &*self.chunks;
            let chunks = size_of_val(&**kinds) + size_of_val(&**kind);
            let numbers: usize = [&**start, len, levels, &self.tokens, &self.documents].map(size_of_val).iter().sum();
            self.name.capacity() + size_of::<Self>() + size_of::<Chunks>() + chunks + numbers
        }
    }

    fn chunk() -> impl Strategy<Value = TokenChunk> {
        (0..3_u8, 0..3_u32, any::<bool>(), any::<[u64; 4]>()).prop_map(|(codec, encodings, narrow, numbers)| {
            let shape = TokenShape { value_bytes: 4, bits: 32, signed: narrow, max_def: 1, list_def: 1 };
            let [start, len, levels, rows] = numbers;
            TokenChunk { shape, codec, encodings, start, len, levels, rows, narrow }
        })
    }

    proptest! {
        #[test]
        fn chunks_come_back(chunks in prop::collection::vec(prop::option::of(chunk()), 0..40)) {
            let mut builder = ColumnBuilder::new("tokens");
            let mut rows = Vec::new();
            for (at, chunk) in chunks.iter().enumerate() {
                match chunk {
                    Some(chunk) => builder.push(chunk, at as u64, 1),
                    None => builder.fill_up(at + 1),
                }
                // A row group that lacks the column has rows all the same.
                rows.push(chunk.map_or(7, |chunk| chunk.rows));
            }
            prop_assert_eq!(builder.is_anywhere(), chunks.iter().any(Option::is_some));
            let column = builder.finish(&rows.into());
            prop_assert_eq!(column.chunks.len(), chunks.len());
            prop_assert_eq!(column.chunks.first_missing(), chunks.iter().position(Option::is_none));
            for (at, (found, wanted)) in column.chunks.iter().zip(&chunks).enumerate() {
                let wanted = wanted.unwrap_or(MISSING);
                prop_assert_eq!(found, wanted);
                prop_assert_eq!(column.chunks.is_missing(at), wanted == MISSING);
                let apart = (column.chunks.bytes(at), column.chunks.rows(at), column.chunks.is_narrow(at));
                prop_assert_eq!(apart, (wanted.len, wanted.rows, wanted.narrow));
                prop_assert_eq!(column.tokens[at], if wanted == MISSING { 0 } else { at as u64 });
            }
        }

        #[test]
        fn row_groups_know_their_numbers(counts in prop::collection::vec(0..5_u32, 0..10)) {
            let wanted: Vec<(u32, u32)> =
                counts.iter().zip(0..).flat_map(|(count, file)| (0..*count).map(move |number| (file, number))).collect();
            let groups = RowGroups::new(wanted.iter().map(|group| group.0).collect(), vec![3; wanted.len()]);
            let found: Vec<(u32, u32)> =
                (0..groups.len()).map(|at| groups.get(at)).map(|group| (group.file, group.number)).collect();
            prop_assert_eq!(found, wanted);
        }
    }

    /// Nothing keeps a footer from claiming other encodings for each chunk.
    #[test]
    fn chunks_that_are_all_of_another_kind_take_no_longer() {
        let shape = TokenShape { value_bytes: 8, bits: 64, signed: true, max_def: 1, list_def: 1 };
        let chunk = |encodings| TokenChunk { shape, encodings, len: 1, rows: 1, ..MISSING };
        let start = Instant::now();
        let mut builder = ColumnBuilder::new("tokens");
        (0..200_000).for_each(|encodings| builder.push(&chunk(encodings), 0, 0));
        let column = builder.finish(&vec![1; 200_000].into());
        assert!(column.chunks.iter().zip(0..).all(|(found, encodings)| found == chunk(encodings)));
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        let each = column.heap_bytes() / 200_000;
        assert!(each <= 64, "{each} bytes a chunk with its kind and counts");
    }
}

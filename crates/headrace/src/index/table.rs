//! What an index holds, apart from where the data lies: put together file by file, from footers or from a saved one.

use std::collections::HashMap;

use crate::format::parquet::{ColumnFooter, FileFooter, RowGroupFooter, TokenChunk, TokenShape};
use crate::index::{FileEntry, RowGroup, TokenColumn, UNKNOWN};
use crate::store::Object;

/// In [`TokenColumn::chunks`]: the row group's file has no such column.
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

/// Whether a chunk is there.
pub(crate) fn is_missing(chunk: &TokenChunk) -> bool {
    chunk.shape.value_bytes == 0
}

/// A file's footer, as far as the index keeps it.
///
/// The schema is not kept: a hundred thousand of them would be most of the memory. It can be read again.
#[derive(Debug, Clone)]
pub(crate) struct FileRead {
    rows: u64,
    row_groups: Vec<RowGroupFooter>,
    columns: Vec<ColumnFooter>,
    digest: u128,
}

impl FileRead {
    /// What is kept of a footer; `digest` is that of its bytes.
    pub(crate) fn new(footer: FileFooter, digest: u128) -> Self {
        let FileFooter { rows, row_groups, columns, .. } = footer;
        Self { rows, row_groups, columns, digest }
    }
}

/// Files, row groups and token columns.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    pub(crate) files: Vec<FileEntry>,
    pub(crate) row_groups: Vec<RowGroup>,
    pub(crate) columns: Vec<TokenColumn>,
}

/// The same, belonging to somebody else.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TableRef<'a> {
    pub(crate) files: &'a [FileEntry],
    pub(crate) row_groups: &'a [RowGroup],
    pub(crate) columns: &'a [TokenColumn],
}

impl Table {
    pub(crate) fn borrow(&self) -> TableRef<'_> {
        TableRef { files: &self.files, row_groups: &self.row_groups, columns: &self.columns }
    }
}

impl TableRef<'_> {
    /// The first row group of each file, and the number of row groups at the end.
    pub(crate) fn starts(&self) -> Vec<usize> {
        let mut at = 0;
        let mut starts = Vec::with_capacity(self.files.len() + 1);
        for file in self.files {
            starts.push(at);
            at += file.row_groups as usize;
        }
        starts.push(at);
        starts
    }
}

/// Puts a [`Table`] together, file by file.
#[derive(Debug, Default)]
pub(crate) struct TableBuilder {
    table: Table,
    by_name: HashMap<String, usize>,
    /// Columns that a footer names, be it one without row groups.
    named: Vec<bool>,
}

impl TableBuilder {
    /// Adds a file from its footer.
    pub(crate) fn add_read(&mut self, object: Object, read: &FileRead) {
        let first = self.add_file(object, read.rows, read.digest, read.row_groups.iter().map(|g| (g.rows, g.bytes)));
        for column in &read.columns {
            // Two columns that users would call by one name: neither can be chosen, as if there were none.
            if read.columns.iter().filter(|other| other.name == column.name).count() > 1 {
                continue;
            }
            let column_at = self.column(&column.name, first);
            self.named[column_at] = true;
            let to = &mut self.table.columns[column_at];
            to.chunks.extend(column.chunks.iter().map(|chunk| chunk.chunk));
            to.tokens.extend(column.chunks.iter().map(|chunk| chunk.tokens.unwrap_or(UNKNOWN)));
            to.documents.extend(column.chunks.iter().map(|chunk| chunk.documents.unwrap_or(UNKNOWN)));
        }
        self.fill_up();
    }

    /// Adds a file as `saved` has it; `starts` are its [`TableRef::starts`].
    pub(crate) fn add_saved(&mut self, object: Object, saved: &Table, starts: &[usize], file: usize) {
        let entry = &saved.files[file];
        let range = starts[file]..starts[file + 1];
        let groups = &saved.row_groups[range.clone()];
        let first = self.add_file(object, entry.rows, entry.footer_digest, groups.iter().map(|g| (g.rows, g.bytes)));
        for column in &saved.columns {
            let chunks = &column.chunks[range.clone()];
            if chunks.iter().any(is_missing) {
                continue;
            }
            let column_at = self.column(&column.name, first);
            let to = &mut self.table.columns[column_at];
            to.chunks.extend_from_slice(chunks);
            to.tokens.extend_from_slice(&column.tokens[range.clone()]);
            to.documents.extend_from_slice(&column.documents[range.clone()]);
        }
        self.fill_up();
    }

    /// The table, without columns that no file has any more.
    pub(crate) fn finish(self) -> Table {
        let mut table = self.table;
        let has_groups = !table.row_groups.is_empty();
        let mut named = self.named.into_iter();
        table.columns.retain(|column| {
            let named = named.next().unwrap_or(false);
            named || !has_groups || column.chunks.iter().any(|chunk| !is_missing(chunk))
        });
        table
    }

    fn add_file(
        &mut self,
        object: Object,
        rows: u64,
        footer_digest: u128,
        groups: impl Iterator<Item = (u64, u64)>,
    ) -> usize {
        let first = self.table.row_groups.len();
        let file = self.table.files.len() as u32;
        let groups = groups.zip(0..).map(|((rows, bytes), number)| RowGroup { file, number, rows, bytes });
        self.table.row_groups.extend(groups);
        let row_groups = (self.table.row_groups.len() - first) as u32;
        self.table.files.push(FileEntry { object, rows, row_groups, footer_digest });
        first
    }

    /// The column of a name, filled up to row group `first`.
    fn column(&mut self, name: &str, first: usize) -> usize {
        if let Some(at) = self.by_name.get(name) {
            return *at;
        }
        let at = self.table.columns.len();
        self.table.columns.push(TokenColumn {
            name: name.to_owned(),
            chunks: vec![MISSING; first],
            tokens: vec![0; first],
            documents: vec![0; first],
        });
        self.named.push(false);
        self.by_name.insert(name.to_owned(), at);
        at
    }

    fn fill_up(&mut self) {
        let len = self.table.row_groups.len();
        for column in &mut self.table.columns {
            column.chunks.resize(len, MISSING);
            column.tokens.resize(len, 0);
            column.documents.resize(len, 0);
        }
    }
}

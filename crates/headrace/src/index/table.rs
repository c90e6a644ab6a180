//! What an index holds, apart from where the data lies: put together file by file, from footers or from a saved one.

use std::collections::HashMap;
use std::sync::Arc;

use crate::format::parquet::{ColumnFooter, FileFooter, RowGroupFooter};
use crate::index::compact::{ColumnBuilder, RowGroups};
use crate::index::{FileEntry, TokenColumn, UNKNOWN};
use crate::store::Object;

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
    pub(crate) files: Arc<[FileEntry]>,
    pub(crate) row_groups: RowGroups,
    pub(crate) columns: Vec<Arc<TokenColumn>>,
}

/// The same, belonging to somebody else.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TableRef<'a> {
    pub(crate) files: &'a [FileEntry],
    pub(crate) row_groups: &'a RowGroups,
    pub(crate) columns: &'a [Arc<TokenColumn>],
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
    files: Vec<FileEntry>,
    /// Of each row group.
    group_files: Vec<u32>,
    group_rows: Vec<u64>,
    columns: Vec<ColumnBuilder>,
    by_name: HashMap<String, usize>,
    /// Columns that a footer names, be it one without row groups.
    named: Vec<bool>,
}

impl TableBuilder {
    /// Adds a file from its footer.
    pub(crate) fn add_read(&mut self, object: Object, read: &FileRead) {
        let first = self.add_file(object, read.rows, read.digest, read.row_groups.iter().map(|group| group.rows));
        for column in &read.columns {
            // Two columns that users would call by one name: neither can be chosen, as if there were none.
            if read.columns.iter().filter(|other| other.name == column.name).count() > 1 {
                continue;
            }
            let column_at = self.column(&column.name, first);
            self.named[column_at] = true;
            let to = &mut self.columns[column_at];
            for (chunk, group) in column.chunks.iter().zip(&read.row_groups) {
                // The footer's reader gives a chunk its row group's rows, so they are kept once.
                debug_assert_eq!(chunk.chunk.rows, group.rows);
                to.push(&chunk.chunk, chunk.tokens.unwrap_or(UNKNOWN), chunk.documents.unwrap_or(UNKNOWN));
            }
        }
        self.fill_up();
    }

    /// Adds a file as `saved` has it; `starts` are its [`TableRef::starts`].
    pub(crate) fn add_saved(&mut self, object: Object, saved: &Table, starts: &[usize], file: usize) {
        let entry = &saved.files[file];
        let range = starts[file]..starts[file + 1];
        let groups = saved.row_groups.rows()[range.clone()].iter().copied();
        let first = self.add_file(object, entry.rows, entry.footer_digest, groups);
        for column in &saved.columns {
            if range.clone().any(|at| column.chunks.is_missing(at)) {
                continue;
            }
            let column_at = self.column(&column.name, first);
            let to = &mut self.columns[column_at];
            for at in range.clone() {
                to.push(&column.chunks.get(at), column.tokens[at], column.documents[at]);
            }
        }
        self.fill_up();
    }

    /// Adds a column over all files that were added.
    pub(crate) fn add_column(&mut self, name: &str, column: ColumnBuilder) {
        self.by_name.insert(name.to_owned(), self.columns.len());
        self.columns.push(column);
        self.named.push(true);
    }

    /// The files that were added.
    pub(crate) fn files(&self) -> &[FileEntry] {
        &self.files
    }

    /// The table, without columns that no file has any more.
    pub(crate) fn finish(self) -> Table {
        let Self { files, group_files, group_rows, mut columns, named, .. } = self;
        let row_groups = RowGroups::new(group_files, group_rows);
        let mut named = named.into_iter();
        columns.retain(|column| {
            let named = named.next().unwrap_or(false);
            named || row_groups.is_empty() || column.is_anywhere()
        });
        let columns = columns.into_iter().map(|column| Arc::new(column.finish(row_groups.rows()))).collect();
        Table { files: files.into(), row_groups, columns }
    }

    /// Adds a file with row groups of the given rows; returns the first.
    pub(crate) fn add_file(
        &mut self,
        object: Object,
        rows: u64,
        footer_digest: u128,
        groups: impl Iterator<Item = u64>,
    ) -> usize {
        let first = self.group_rows.len();
        self.group_rows.extend(groups);
        self.group_files.resize(self.group_rows.len(), self.files.len() as u32);
        let row_groups = (self.group_rows.len() - first) as u32;
        self.files.push(FileEntry { object, rows, row_groups, footer_digest });
        first
    }

    /// The column of a name, filled up to row group `first`.
    fn column(&mut self, name: &str, first: usize) -> usize {
        if let Some(at) = self.by_name.get(name) {
            return *at;
        }
        let at = self.columns.len();
        let mut column = ColumnBuilder::new(name);
        column.fill_up(first);
        self.columns.push(column);
        self.named.push(false);
        self.by_name.insert(name.to_owned(), at);
        at
    }

    fn fill_up(&mut self) {
        let len = self.group_rows.len();
        self.columns.iter_mut().for_each(|column| column.fill_up(len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::parquet::footer::ChunkFooter;
    use crate::format::parquet::{TokenChunk, TokenShape};
    use crate::store::Version;

    impl Table {
        /// Bytes that are held, beside the files' paths.
        fn heap_bytes(&self) -> usize {
            let tag = |file: &FileEntry| if let Version::ETag(tag) = &file.object.version { tag.capacity() } else { 0 };
            let files = size_of_val(&*self.files) + self.files.iter().map(tag).sum::<usize>();
            let columns = self.columns.capacity() * size_of::<Arc<TokenColumn>>();
            let held: usize = self.columns.iter().map(|column| column.heap_bytes()).sum();
            files + self.row_groups.heap_bytes() + columns + held
        }
    }

    /// A file of a thousand row groups of one token column, with codecs and encodings as they come.
    fn file(number: u64) -> (Object, FileRead) {
        let shape = TokenShape { value_bytes: 4, bits: 32, signed: true, max_def: 3, list_def: 2 };
        let chunk = |at: u64| TokenChunk {
            shape,
            codec: 6,
            encodings: 1 << 8 | (at % 3) as u32,
            start: at << 20,
            len: 1 << 20,
            levels: at << 10,
            rows: at,
            narrow: at.is_multiple_of(2),
        };
        let chunk = |at| ChunkFooter { chunk: chunk(at), tokens: Some(at << 9), documents: None };
        let columns = vec![ColumnFooter { name: "tokens".to_owned(), leaf: 0, chunks: (0..1000).map(chunk).collect() }];
        let row_groups = (0..1000).map(|rows| RowGroupFooter { rows }).collect();
        let object =
            Object { path: format!("{number:05}.parquet"), size: 1 << 30, version: Version::ETag("\"e\"".to_owned()) };
        (object, FileRead { rows: 499_500, row_groups, columns, digest: number.into() })
    }

    #[test]
    fn a_row_group_takes_at_most_64_bytes() {
        let mut builder = TableBuilder::default();
        for (object, read) in (0..200).map(file) {
            builder.add_read(object, &read);
        }
        let read = builder.finish();
        // Most of what is saved comes back by another way, which must hold no more.
        let mut builder = TableBuilder::default();
        let starts = read.borrow().starts();
        for (number, file) in read.files.iter().enumerate() {
            builder.add_saved(file.object.clone(), &read, &starts, number);
        }
        let saved = builder.finish();
        assert_eq!((read.row_groups.len(), &read.row_groups), (200_000, &saved.row_groups));
        assert_eq!(read.columns, saved.columns);
        for table in [read, saved] {
            let each = table.heap_bytes() as f64 / table.row_groups.len() as f64;
            assert!((50.0..=64.0).contains(&each), "{each} bytes a row group");
        }
    }
}

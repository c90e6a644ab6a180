//! What a dataset holds: its files, row groups and token columns, read from footers once and cached.

use std::sync::Arc;

use crate::format::parquet::TokenChunk;
use crate::store::{Object, Store};

/// A file of the dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// Path below the dataset's root, size, and version when indexed.
    pub object: Object,
    /// Rows in all its row groups.
    pub rows: u64,
    /// Row groups.
    pub row_groups: u32,
    /// xxh3-128 of the footer's bytes.
    pub footer_digest: u128,
}

/// A row group of the dataset: the chunk that a Parquet store is read by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowGroup {
    /// Which file, as an index into [`Index::files`].
    pub file: u32,
    /// Its number in that file, from 0.
    pub number: u32,
    /// Rows.
    pub rows: u64,
    /// Compressed bytes of all its columns.
    pub bytes: u64,
}

/// One token column over the whole dataset.
#[derive(Debug, Clone)]
pub struct TokenColumn {
    /// The name by which a user selects it: `"tokens"` or `"a.b"`.
    pub name: String,
    /// One for each of [`Index::row_groups`], in the same order.
    pub chunks: Vec<TokenChunk>,
    /// Tokens of each chunk.
    pub tokens: Vec<u64>,
    /// Documents with at least one token, of each chunk.
    pub documents: Vec<u64>,
}

/// What a dataset holds.
#[derive(Debug, Clone)]
pub struct Index {
    /// Where it lies.
    pub store: Arc<dyn Store>,
    /// Its files, sorted by path.
    pub files: Vec<FileEntry>,
    /// Their row groups, in storage order.
    pub row_groups: Vec<RowGroup>,
    /// The columns that can be packed.
    pub columns: Vec<TokenColumn>,
}

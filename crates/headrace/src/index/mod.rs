//! What a dataset holds: its files, row groups and token columns, read from footers once and cached.

mod build;
pub mod cache;
pub(crate) mod chunks;
mod column;
pub(crate) mod compact;
pub(crate) mod count;
mod facts;
mod footers;
mod glob;
mod identity;
pub mod listing;
mod progress;
pub(crate) mod read;
mod table;
mod tables;
pub mod without;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

pub use compact::{Chunks, RowGroups};
pub use facts::ColumnFacts;
pub use listing::IN_PLACE;
pub use progress::{Phase, Progress};
pub use tables::ArrowFile;

use crate::cancel::Cancel;
use crate::error::Result;
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
}

/// One token column over the whole dataset. A copy shares what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenColumn {
    /// The name by which a user selects it: `"tokens"` or `"a.b"`.
    pub name: String,
    /// One for each of [`Index::row_groups`], in the same order.
    pub chunks: Arc<Chunks>,
    /// Tokens of each chunk; [`UNKNOWN`] until [`Index::count`].
    pub tokens: Arc<[u64]>,
    /// Documents with at least one token, of each chunk; [`UNKNOWN`] until [`Index::count`].
    pub documents: Arc<[u64]>,
    /// Those that are stored and yet count as empty, see [`Index::without`].
    pub left_out: Arc<without::Documents>,
}

/// What a dataset holds. A copy shares all that is large.
#[derive(Debug, Clone)]
pub struct Index {
    /// Where it lies.
    pub store: Arc<dyn Store>,
    /// Its files, sorted by path.
    pub files: Arc<[FileEntry]>,
    /// Their row groups, in storage order.
    pub row_groups: RowGroups,
    /// The columns that can be packed. One that some files lack is among them; [`Index::token_column`] refuses it.
    pub columns: Vec<Arc<TokenColumn>>,
    /// What went otherwise than planned and hinders nothing, such as a cache folder that cannot be written.
    pub notes: Vec<String>,
    home: build::Home,
    footers: Arc<footers::Footers>,
}

/// How a dataset is to be opened.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Settings of the store, see [`crate::store::remote`].
    pub storage_options: BTreeMap<String, String>,
    /// Where indexes are kept; by default `$HEADRACE_CACHE`, `$XDG_CACHE_HOME/headrace` or `~/.cache/headrace`.
    pub cache_dir: Option<PathBuf>,
    /// Whether a saved index is used.
    pub mode: IndexMode,
    /// Token columns that every file must have; checked at once rather than when they are used.
    pub columns: Option<Vec<String>>,
    /// Threads that read footers; by default chosen from the machine and the store.
    pub threads: Option<usize>,
}

/// Whether a saved index is used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum IndexMode {
    /// Take what is saved next to the data or in the cache folder, read what is new, save the result.
    #[default]
    Auto,
    /// Read all footers, save the result.
    Rebuild,
    /// Take what is saved in this file, read what is new, save the result there.
    Path(PathBuf),
}

/// What a dataset's content is, the same on every machine that sees the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Of relative paths, sizes, footers and the weights of all chunks.
    pub digest: u128,
    /// The same without the paths: equal for data that was moved or renamed without a change of order.
    pub content: u128,
}

/// In [`TokenColumn::tokens`] and [`TokenColumn::documents`]: not counted yet, see [`Index::count`].
pub const UNKNOWN: u64 = u64::MAX;

impl Index {
    /// Lists `urls` and reads what is not saved of the footers below them.
    pub fn open(urls: &[String], options: &OpenOptions, cancel: &Cancel, progress: &Progress) -> Result<Self> {
        build::open(urls, options, cancel, progress)
    }

    /// The same for files that were listed before, without listing them again.
    pub fn open_found(
        found: listing::Found,
        options: &OpenOptions,
        cancel: &Cancel,
        progress: &Progress,
    ) -> Result<Self> {
        build::open_found(found, options, cancel, progress)
    }

    /// The files, for saying what differs between two datasets.
    pub fn file_table(&self) -> &[FileEntry] {
        &self.files
    }
}

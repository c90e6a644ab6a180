//! Opening datasets of real files in temporary folders.

mod large;
mod listing;
mod opening;
mod s3;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Int32Builder, ListBuilder, RecordBatch};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use crate::cancel::Cancel;
use crate::error::Result;
use crate::index::{Index, IndexMode, OpenOptions, Progress};

/// A folder with data and a cache folder beside it.
pub(crate) struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("folder");
        fs::create_dir(folder.path().join("data")).expect("folder");
        Self { folder }
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    pub(crate) fn write(&self, path: &str, bytes: &[u8]) {
        let path = self.data().join(path);
        fs::create_dir_all(path.parent().expect("parent")).expect("folder");
        fs::write(path, bytes).expect("write");
    }

    pub(crate) fn options(&self) -> OpenOptions {
        OpenOptions { cache_dir: Some(self.cache()), ..OpenOptions::default() }
    }

    pub(crate) fn open(&self) -> Result<Index> {
        self.open_with(&self.options())
    }

    pub(crate) fn open_with(&self, options: &OpenOptions) -> Result<Index> {
        open(&[text(&self.data())], options)
    }

    pub(crate) fn rebuild(&self) -> Index {
        self.open_with(&OpenOptions { mode: IndexMode::Rebuild, ..self.options() }).expect("rebuild")
    }
}

pub(crate) fn open(urls: &[String], options: &OpenOptions) -> Result<Index> {
    Index::open(urls, options, &Cancel::new(), &Progress::new())
}

pub(crate) fn text(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

/// A Parquet file with a token column `name`: one row group for each list of documents.
pub(crate) fn tokens(name: &str, groups: &[Vec<Option<Vec<i32>>>], statistics: bool) -> Vec<u8> {
    let batch = |documents: &[Option<Vec<i32>>]| {
        let mut lists = ListBuilder::new(Int32Builder::new());
        for document in documents {
            lists.append_option(document.as_ref().map(|tokens| tokens.iter().copied().map(Some)));
        }
        RecordBatch::try_from_iter_with_nullable([(name, Arc::new(lists.finish()) as _, true)]).expect("batch")
    };
    let level = if statistics { EnabledStatistics::Chunk } else { EnabledStatistics::None };
    let properties = WriterProperties::builder()
        .set_statistics_enabled(level)
        // Without it, chunks have no histogram and no null count that could be relied on.
        .set_created_by(if statistics { "parquet-rs version 60.0.0".to_owned() } else { "somebody".to_owned() })
        .build();
    let schema = batch(&[]).schema();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema, Some(properties)).expect("writer");
    for group in groups {
        writer.write(&batch(group)).expect("write");
        writer.flush().expect("flush");
    }
    writer.into_inner().expect("finish")
}

/// A file of one row group with documents of these lengths.
pub(crate) fn documents(lengths: &[usize]) -> Vec<u8> {
    let documents: Vec<_> = lengths.iter().map(|len| Some((0..*len as i32).collect())).collect();
    tokens("tokens", &[documents], true)
}

//! What is to be stored, and under which condition.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::{Error, Result};
use crate::store::Version;
use crate::store::local::{describe, io_error, not_a_file, open_file};
use crate::store::walk::modified;

/// What is to be stored: bytes, or a local file, of which parts are in memory at a time.
#[derive(Debug, Clone, Copy)]
pub enum Content<'a> {
    /// Bytes.
    Bytes(&'a [u8]),
    /// A local file.
    File(&'a Path),
}

/// When something is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Whatever is there.
    Always,
    /// If there is nothing of that name.
    Absent,
    /// If what is there is of this version.
    Unchanged(Version),
}

/// A content that is being read. A file must stay what it is meanwhile.
pub(crate) struct Source<'a> {
    content: Content<'a>,
    /// With its time of modification.
    file: Option<(File, i64)>,
    /// Bytes.
    pub(crate) len: u64,
}

impl<'a> Source<'a> {
    pub(crate) fn open(content: Content<'a>) -> Result<Self> {
        match content {
            Content::Bytes(bytes) => Ok(Self { content, file: None, len: bytes.len() as u64 }),
            Content::File(path) => {
                let file = open_file(path)?;
                let metadata = file.metadata().map_err(|e| io_error(path, "open", &e))?;
                if !metadata.is_file() {
                    return Err(not_a_file(path));
                }
                Ok(Self { content, len: metadata.len(), file: Some((file, modified(&metadata))) })
            }
        }
    }

    /// The bytes of a range that lies within it.
    pub(crate) fn read(&self, range: Range<u64>) -> Result<Vec<u8>> {
        match (self.content, &self.file) {
            (Content::File(path), Some((file, _))) => {
                let mut bytes = vec![0; (range.end - range.start) as usize];
                let read = file.read_exact_at(&mut bytes, range.start);
                // Whatever the read said, a file that changed is the better explanation.
                self.check()?;
                read.map_err(|e| io_error(path, &format!("read bytes {}..{}", range.start, range.end), &e))?;
                Ok(bytes)
            }
            (Content::Bytes(bytes), _) => Ok(bytes[range.start as usize..range.end as usize].to_vec()),
            (Content::File(_), None) => Err(Error::Internal("a file that is not open".to_owned())),
        }
    }

    /// An error if it is a file that changed since it was opened.
    pub(crate) fn check(&self) -> Result<()> {
        let (Content::File(path), Some((file, before))) = (self.content, &self.file) else { return Ok(()) };
        let metadata = file.metadata().map_err(|e| io_error(path, "open", &e))?;
        let now = modified(&metadata);
        if metadata.len() == self.len && now == *before {
            return Ok(());
        }
        Err(Error::Moved {
            path: path.display().to_string(),
            wanted: describe(self.len, Some(*before)),
            found: describe(metadata.len(), Some(now)),
        })
    }
}

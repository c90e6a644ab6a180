//! A local file that stays open for many small reads.
//!
//! It is what it was when it was listed, or an error: size and modification time are compared when it is opened, and as
//! often as its holder asks. What replaces it by renaming does not disturb it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::Version;
use super::local::{check_unchanged, io_error, open_file};
use crate::error::Result;

/// A file on a disk, open for reading.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    path: PathBuf,
    size: u64,
    modified: Option<i64>,
}

impl OpenFile {
    /// Opens a file that has this size and version.
    ///
    /// # Errors
    /// [`crate::Error::Store`] if it cannot be opened, [`crate::Error::Changed`] if it is another one.
    pub fn open(path: &Path, size: u64, version: &Version) -> Result<Self> {
        let modified = match version {
            Version::Modified(time) => Some(*time),
            _ => None,
        };
        let opened = Self { file: open_file(path)?, path: path.to_owned(), size, modified };
        opened.check()?;
        Ok(opened)
    }

    /// The file's name, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Refuses a file that was written to or cut short since it was listed.
    ///
    /// # Errors
    /// [`crate::Error::Changed`].
    pub fn check(&self) -> Result<()> {
        check_unchanged(&self.file, &self.path, self.size, self.modified)
    }

    /// Fills `out` with the bytes from `start` on.
    ///
    /// # Errors
    /// [`crate::Error::Store`] if they cannot be read, or are not there.
    pub fn read_at(&self, start: u64, out: &mut [u8]) -> Result<()> {
        let end = start.saturating_add(out.len() as u64);
        self.file.read_exact_at(out, start).map_err(|error| {
            // A file that changed is the better explanation.
            let changed = self.check().err();
            changed.unwrap_or_else(|| io_error(&self.path, &format!("read bytes {start}..{end}"), &error))
        })
    }
}

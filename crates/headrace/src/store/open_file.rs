//! A local file that stays open for many small reads.
//!
//! It is what it was when it was listed, or an error: size and modification time are compared when it is opened, and as
//! often as its holder asks. What replaces it by renaming does not disturb it.

use std::fs::File;
use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

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
    /// Whether its file system cannot tell what is in memory.
    is_opaque: AtomicBool,
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
        let (file, is_opaque) = (open_file(path)?, AtomicBool::new(false));
        let opened = Self { file, path: path.to_owned(), size, modified, is_opaque };
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

    /// Fills `out` with the bytes from `start` on if all of them are in memory; what it holds is undefined if not.
    pub fn read_cached(&self, start: u64, out: &mut [u8]) -> bool {
        if self.is_opaque.load(Ordering::Relaxed) {
            return false;
        }
        let wanted = out.len();
        match preadv2(&self.file, &mut [IoSliceMut::new(out)], start, ReadWriteFlags::NOWAIT) {
            Ok(read) => read == wanted,
            Err(error) => {
                // Others than these are of file systems, or of sandboxes, that do not know such reads.
                if !matches!(error, Errno::AGAIN | Errno::INTR) {
                    self.is_opaque.store(true, Ordering::Relaxed);
                }
                false
            }
        }
    }

    /// Has bytes read into memory meanwhile that will be asked for soon. A system may do nothing.
    pub fn will_need(&self, start: u64, bytes: u64) {
        if let Some(bytes) = NonZeroU64::new(bytes).filter(|_| !self.is_opaque.load(Ordering::Relaxed)) {
            fadvise(&self.file, start, Some(bytes), Advice::WillNeed).ok();
        }
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

    /// Has its bytes leave memory, as far as the system does that.
    #[cfg(test)]
    pub(crate) fn forget(&self) {
        fadvise(&self.file, 0, None, Advice::DontNeed).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_memory_is_read_at_once_and_only_what_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"abcdef").unwrap();
        let file = OpenFile::open(&path, 6, &Version::Unknown).unwrap();
        let mut out = [0; 4];
        assert!(file.read_cached(1, &mut out) || file.is_opaque.load(Ordering::Relaxed));
        file.read_at(1, &mut out).unwrap();
        assert_eq!(&out, b"bcde");
        assert!(!file.read_cached(3, &mut out));
        file.will_need(0, 6);
        file.will_need(0, 0);
        assert!(file.read_at(3, &mut out).is_err());
    }
}

//! A local file that stays open for many small reads.
//!
//! It is what it was when it was listed, or an error: size and modification time are compared when it is opened, and as
//! often as its holder asks. What replaces it by renaming does not disturb it.

use std::fs::File;
use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use once_cell::race::OnceBox;
use rustix::fs::{Advice, fadvise, fstatfs};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::Version;
use super::local::{check_unchanged, io_error, open_file};
use super::mapping::{Guard, Mapping};
use crate::error::Result;

/// Bytes that reads find in memory, one after another, before a file is mapped: those of a file of which 1 % is not there do
/// not come that far.
const WARM: u64 = 4 << 20;

/// The part of a file that was read so before it is mapped for the first time. Each 64 KiB that are touched cost a fault then:
/// three to four times what is gained by not calling the system for 4 KiB of them.
const WORTH: u64 = 16;

/// A file on a disk, open for reading.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    path: PathBuf,
    size: u64,
    modified: Option<i64>,
    /// Whether its file system cannot tell what is in memory.
    is_opaque: AtomicBool,
    /// Whether it is mapped after many reads although it is opaque: that tells, by waiting.
    is_tried: AtomicBool,
    /// Bytes that were read since something was not in memory.
    warmth: AtomicU64,
    /// Once it was wanted; `None` if there cannot be one. Nobody waits for a thread that makes it: a forked child would for ever.
    mapping: OnceBox<Option<Mapping>>,
    /// Where it is counted as long as it is open.
    count: Option<&'static AtomicUsize>,
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
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
        let opened = Self {
            file: open_file(path)?,
            path: path.to_owned(),
            size,
            modified,
            is_opaque: AtomicBool::new(false),
            is_tried: AtomicBool::new(false),
            warmth: AtomicU64::new(0),
            mapping: OnceBox::new(),
            count: None,
        };
        opened.check()?;
        Ok(opened)
    }

    /// The same, counted by `count` until it is closed.
    pub(crate) fn counted(mut self, count: &'static AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        self.count = Some(count);
        self
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
            Ok(read) if read == wanted => {
                self.warm(wanted as u64);
                return true;
            }
            Ok(_) => {}
            Err(error) => {
                // Others than these are of file systems, or of sandboxes, that do not know such reads.
                if !matches!(error, Errno::AGAIN | Errno::INTR) {
                    self.is_tried.store(self.is_of_this_machine(), Ordering::Relaxed);
                    self.is_opaque.store(true, Ordering::Relaxed);
                }
            }
        }
        self.cool();
        false
    }

    /// Whether its file system, which cannot tell what is in memory, is one of layers of others, or of memory. The rest may be a
    /// network's, where a page that a mapping waits for is a request.
    fn is_of_this_machine(&self) -> bool {
        let is_local = |kind| matches!(kind, libc::OVERLAYFS_SUPER_MAGIC | libc::TMPFS_MAGIC);
        fstatfs(&self.file).is_ok_and(|system| is_local(system.f_type))
    }

    /// Whether its reads have found all in memory for long, and it can be mapped: then [`Self::copy`] is faster.
    pub(crate) fn is_warm(&self) -> bool {
        let wanted = match self.mapping.get() {
            None => WARM.max(self.size / WORTH),
            Some(Some(mapping)) if mapping.is_whole() => WARM,
            Some(_) => return false,
        };
        self.warmth.load(Ordering::Relaxed) >= wanted
    }

    /// Takes note of bytes that were in memory, until there are enough: threads that read do not write to one place for ever.
    fn warm(&self, bytes: u64) {
        if self.warmth.load(Ordering::Relaxed) < WARM.max(self.size) {
            self.warmth.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Takes note that not all of it is in memory.
    pub(crate) fn cool(&self) {
        if self.warmth.load(Ordering::Relaxed) > 0 {
            self.warmth.store(0, Ordering::Relaxed);
        }
    }

    /// Fills `out` with the bytes from `start` on, wherever they are; what it holds is undefined if that failed, and why is
    /// for [`Self::read_at`] to say. What was written to the file meanwhile is for [`Self::check`] to find: behind an
    /// end that came nearer there are zeros.
    pub(crate) fn copy(&self, guard: &Guard, start: u64, out: &mut [u8]) -> bool {
        let mapping = self.mapping.get_or_init(|| Box::new(Mapping::new(&self.file, self.size)));
        mapping.as_ref().is_some_and(|mapping| mapping.copy(guard, start, out))
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
        })?;
        if self.is_tried.load(Ordering::Relaxed) {
            self.warm(out.len() as u64);
        }
        Ok(())
    }

    /// Has its bytes leave memory, as far as the system does that.
    #[cfg(test)]
    pub(crate) fn forget(&self) {
        fadvise(&self.file, 0, None, Advice::DontNeed).ok();
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if let Some(count) = self.count {
            count.fetch_sub(1, Ordering::Relaxed);
        }
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

    #[test]
    fn what_was_found_in_memory_for_long_is_copied_until_something_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let bytes: Vec<u8> = (0..2_u32 << 20).flat_map(u32::to_le_bytes).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = OpenFile::open(&path, bytes.len() as u64, &Version::Unknown).unwrap();
        let mut out = vec![0; 1 << 20];
        let mut read = |from: usize| {
            let is_found = file.read_cached(from as u64, &mut out);
            if !is_found {
                file.read_at(from as u64, &mut out).unwrap();
            }
            assert_eq!(out, bytes[from..from + (1 << 20)]);
            is_found || file.is_tried.load(Ordering::Relaxed)
        };
        assert!(!file.is_warm());
        if (0..4).map(|part| read(part << 20)).any(|is_found| !is_found) {
            // Its file system does not tell, or memory is full.
            return;
        }
        assert!(file.is_warm());
        let guard = Guard::soon();
        let mut out = vec![0; 100];
        for from in [0, 5, (8 << 20) - 100] {
            assert!(file.copy(&guard, from as u64, &mut out));
            assert_eq!(out, bytes[from..from + 100]);
        }
        file.cool();
        assert!(!file.is_warm());
    }
}

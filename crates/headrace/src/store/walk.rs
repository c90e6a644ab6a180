//! Walking a local folder, in an order of discovery that depends on names alone.
//!
//! Every real folder is entered once (by device and inode), so that symbolic links may form loops. Which of
//! several ways into a folder is taken must not depend on the order in which the system lists names, or two
//! machines would give one file two paths: folders that are no links come first, then linked ones, in the order
//! of their paths.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::store::local::io_error;
use crate::store::{Object, Version};

/// Calls `found` with every regular file below `folder`, its path relative to `folder`, and with those that links
/// lead to. `descend` says by relative path whether a folder below is of interest. `wants` says the same of what has a
/// name that is not UTF-8, by its path with U+FFFD in it and whether it is a folder: if it is of interest, that is an
/// error.
pub(crate) fn walk(
    folder: &Path,
    cancel: &Cancel,
    descend: &mut dyn FnMut(&str) -> bool,
    wants: &mut dyn FnMut(&str, bool) -> bool,
    found: &mut dyn FnMut(Object) -> Result<()>,
) -> Result<()> {
    let (visited, linked) = (HashSet::new(), BTreeSet::new());
    let mut walker = Walker { root: folder, visited, linked, cancel, descend, wants, found };
    walker.enter("")?;
    while let Some(path) = walker.linked.pop_first() {
        walker.enter(&path)?;
    }
    Ok(())
}

/// Modification time in nanoseconds since 1970, saturating.
pub(crate) fn modified(metadata: &Metadata) -> i64 {
    let Ok(time) = metadata.modified() else { return 0 };
    let nanos = |d: std::time::Duration| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => nanos(after),
        Err(before) => -nanos(before.duration()),
    }
}

struct Walker<'a> {
    root: &'a Path,
    visited: HashSet<(u64, u64)>,
    /// Folders behind links, by relative path, that wait until all real ones are done.
    linked: BTreeSet<String>,
    cancel: &'a Cancel,
    descend: &'a mut dyn FnMut(&str) -> bool,
    wants: &'a mut dyn FnMut(&str, bool) -> bool,
    found: &'a mut dyn FnMut(Object) -> Result<()>,
}

impl Walker<'_> {
    fn enter(&mut self, start: &str) -> Result<()> {
        let mut folders = vec![start.to_owned()];
        while let Some(relative) = folders.pop() {
            self.cancel.check()?;
            let path = self.full(&relative);
            let failed = |e: io::Error| io_error(&path, "list", &e);
            let metadata = fs::metadata(&path).map_err(failed)?;
            if !self.visited.insert(file_id(&metadata)) {
                continue;
            }
            for entry in fs::read_dir(&path).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let name = entry.file_name();
                let text = name.to_string_lossy();
                let child = if relative.is_empty() { text.to_string() } else { format!("{relative}/{text}") };
                let kind = entry.file_type().map_err(failed)?;
                if name.to_str().is_none() {
                    self.misnamed(&entry.path(), &child)?;
                    continue;
                }
                if kind.is_dir() {
                    if (self.descend)(&child) {
                        folders.push(child);
                    }
                } else if kind.is_symlink() {
                    self.link(&child)?;
                } else if kind.is_file() {
                    match entry.metadata() {
                        Ok(metadata) => self.file(child, &metadata)?,
                        // Removed since the folder was read: as if it had been removed before.
                        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                        Err(e) => return Err(io_error(&entry.path(), "list", &e)),
                    }
                }
                // Pipes, sockets and devices are no data files, and opening a pipe may wait for ever.
            }
        }
        Ok(())
    }

    /// Passes over what has a name that is not UTF-8, unless it is of interest.
    fn misnamed(&mut self, path: &Path, child: &str) -> Result<()> {
        // A link to nothing would be a file that cannot be read.
        let is_folder = match fs::metadata(path) {
            Ok(metadata) if !metadata.is_dir() && !metadata.is_file() => return Ok(()),
            metadata => metadata.is_ok_and(|metadata| metadata.is_dir()),
        };
        if !(self.wants)(child, is_folder) {
            return Ok(());
        }
        let what = if is_folder { "folder" } else { "file" };
        Err(Error::Argument(format!(
            "{}: the name is not UTF-8, so no state or message could hold it\nhint: rename the {what}",
            path.display()
        )))
    }

    fn link(&mut self, child: &str) -> Result<()> {
        let path = self.full(child);
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => {
                if (self.descend)(child) {
                    self.linked.insert(child.to_owned());
                }
                Ok(())
            }
            Ok(metadata) if metadata.is_file() => self.file(child.to_owned(), &metadata),
            Ok(_) => Ok(()),
            // A link to nothing is passed on as an empty file: the listing's rule leaves it out if it is hidden or
            // no data file by name, and otherwise reading it fails and names it.
            Err(e) if e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(libc::ELOOP) => {
                (self.found)(Object { path: child.to_owned(), size: 0, version: Version::Unknown })
            }
            Err(e) => Err(io_error(&path, "list", &e)),
        }
    }

    fn file(&mut self, path: String, metadata: &Metadata) -> Result<()> {
        (self.found)(Object { path, size: metadata.len(), version: Version::Modified(modified(metadata)) })
    }

    fn full(&self, relative: &str) -> PathBuf {
        if relative.is_empty() { self.root.to_owned() } else { self.root.join(relative) }
    }
}

#[cfg(unix)]
fn file_id(metadata: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

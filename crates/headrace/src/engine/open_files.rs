//! Files of this machine that are read in any order, of which a bounded number stays open.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Result;
use crate::per_process::PerProcess;
use crate::store::Version;
use crate::store::open_file::OpenFile;

/// A file as it was listed. It is opened when a row of it is wanted.
#[derive(Debug)]
pub struct StoredFile {
    path: PathBuf,
    pub(super) size: u64,
    version: Version,
}

impl StoredFile {
    /// A file that has this size and version.
    pub fn new(path: PathBuf, size: u64, version: Version) -> Self {
        Self { path, size, version }
    }
}

/// Files by number. Those that were used last stay open; who reads one holds it, and no lock.
#[derive(Debug)]
pub(super) struct OpenFiles {
    files: Vec<StoredFile>,
    most: usize,
    kept: PerProcess<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    /// By their numbers, each with the time of its last use.
    files: HashMap<usize, (Arc<OpenFile>, u64)>,
    /// Calls so far.
    time: u64,
}

impl OpenFiles {
    /// At most `most` of `files` stay open when nobody reads them, and at least one.
    pub(super) fn new(files: Vec<StoredFile>, most: usize) -> Self {
        Self { files, most: most.max(1), kept: PerProcess::default() }
    }

    /// A file as it was listed.
    pub(super) fn get(&self, number: usize) -> Option<&StoredFile> {
        self.files.get(number)
    }

    /// How many different files one reader is to hold at a time, so that several do not hold many more than are kept.
    pub(super) fn at_once(&self) -> usize {
        if self.files.len() <= self.most { self.most } else { (self.most / 4).clamp(1, 16) }
    }

    /// Some files, each named once, open as long as they are held.
    ///
    /// # Errors
    /// [`crate::Error::Store`] for one that cannot be opened, [`crate::Error::Changed`] if it is another one by now.
    pub(super) fn open(&self, numbers: &[usize]) -> Result<Vec<Arc<OpenFile>>> {
        let mut found: Vec<_> = {
            let mut kept = self.lock();
            numbers.iter().map(|&number| kept.used(number)).collect()
        };
        let mut opened = Vec::new();
        for (found, &number) in found.iter_mut().zip(numbers) {
            if found.is_none() {
                let file = &self.files[number];
                let file = Arc::new(OpenFile::open(&file.path, file.size, &file.version)?);
                opened.push((number, Arc::clone(&file)));
                *found = Some(file);
            }
        }
        if !opened.is_empty() {
            // Closed behind the lock.
            let gone = self.lock().keep(opened, self.most);
            drop(gone);
        }
        Ok(found.into_iter().flatten().collect())
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.get().lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// A file, if it is open.
    fn used(&mut self, number: usize) -> Option<Arc<OpenFile>> {
        self.time += 1;
        let (file, last) = self.files.get_mut(&number)?;
        *last = self.time;
        Some(Arc::clone(file))
    }

    /// Keeps files that were opened, and gives those that were used least recently for them.
    fn keep(&mut self, opened: Vec<(usize, Arc<OpenFile>)>, most: usize) -> Vec<Arc<OpenFile>> {
        let mut gone = Vec::new();
        for (number, file) in opened {
            self.time += 1;
            // Another thread may have opened it too: one of the two is kept.
            gone.extend(self.files.insert(number, (file, self.time)).map(|(file, _)| file));
            if self.files.len() > most {
                let oldest = self.files.iter().min_by_key(|(_, (_, last))| *last).map(|(&number, _)| number);
                gone.extend(oldest.and_then(|number| self.files.remove(&number)).map(|(file, _)| file));
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::per_process::tests::holds_in_child;

    #[test]
    fn a_forked_child_waits_for_no_thread_of_its_parent_s() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0");
        std::fs::write(&path, [7; 8]).unwrap();
        let files = OpenFiles::new(vec![StoredFile::new(path, 8, Version::Unknown)], 3);
        let busy = files.lock();
        assert!(holds_in_child(|| {
            let mut out = [0; 8];
            files.open(&[0]).is_ok_and(|found| found[0].read_at(0, &mut out).is_ok()) && out == [7; 8]
        }));
        drop(busy);
    }

    #[test]
    fn those_that_were_used_last_stay_open() {
        let folder = tempfile::tempdir().unwrap();
        let list = |number: usize| {
            let path = folder.path().join(number.to_string());
            std::fs::write(&path, [7; 8]).unwrap();
            StoredFile::new(path, 8, Version::Unknown)
        };
        let files = OpenFiles::new((0..6).map(list).collect(), 3);
        let open = || {
            let mut numbers: Vec<usize> = files.lock().files.keys().copied().collect();
            numbers.sort_unstable();
            numbers
        };
        let first = files.open(&[0, 1, 2]).unwrap();
        assert!(Arc::ptr_eq(&first[0], &files.open(&[0]).unwrap()[0]));
        files.open(&[3]).unwrap();
        assert_eq!(open(), [0, 2, 3]);
        // What is held stays open.
        let mut out = [0; 8];
        first[1].read_at(0, &mut out).unwrap();
        assert_eq!(out, [7; 8]);
        assert_eq!(files.open(&[0, 1, 4, 5, 2]).unwrap().len(), 5);
        assert_eq!(open(), [1, 4, 5]);
        assert!(files.get(5).is_some() && files.get(6).is_none());
        std::fs::write(folder.path().join("3"), b"other").unwrap();
        assert!(matches!(files.open(&[3]), Err(crate::Error::Changed { .. })));
        assert_eq!(open(), [1, 4, 5]);
    }
}

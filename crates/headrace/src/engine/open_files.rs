//! Files of this machine that are read in any order, of which a bounded number stays open: one number for the process.

use std::cmp::Reverse;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use once_cell::race::OnceBox;

use crate::error::Result;
use crate::per_process::PerProcess;
use crate::store::Version;
use crate::store::open_file::OpenFile;

/// Files that one reader opens at a time, at most; or a quarter of those that stay open, if that is less. What others hold
/// cannot be closed for them. So it is fewer, and at last one, where all readers together have come to twice as many open files
/// as may stay open: that is a quarter of what the process may have.
const AT_ONCE: usize = 16;

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

/// Files by number. Those of the process that were used last stay open; who reads one holds it, and no lock.
#[derive(Debug)]
pub struct OpenFiles {
    files: Vec<StoredFile>,
    most: usize,
    seats: PerProcess<Arc<[Mutex<Seat>]>>,
    kept: &'static Kept,
}

/// Where a file is while it stays open.
#[derive(Debug, Default)]
struct Seat {
    file: Option<Arc<OpenFile>>,
    /// The time of its last use.
    used: u64,
}

/// A seat among those of its dataset, which may be gone.
type SeatOf = (Weak<[Mutex<Seat>]>, usize);

/// The seats that are taken, of all datasets.
#[derive(Debug, Default)]
struct Kept {
    /// How often files were opened so far: the only time that there is, so that using a file that is open costs no more than
    /// a look at it.
    time: AtomicU64,
    /// Files that are open, whoever holds them: a forked child's are also its parent's.
    open: AtomicUsize,
    /// Locked before any of the seats.
    seats: PerProcess<Mutex<Vec<SeatOf>>>,
}

/// Files of some places that are held open.
#[derive(Debug)]
pub(super) struct Held {
    /// How many places these are, from the first one on.
    pub(super) places: usize,
    /// Ascending.
    numbers: Vec<usize>,
    pub(super) files: Vec<Arc<OpenFile>>,
}

impl Held {
    /// One of them.
    pub(super) fn file(&self, number: usize) -> &OpenFile {
        &self.files[self.numbers.partition_point(|&other| other < number)]
    }
}

impl OpenFiles {
    /// Files that are opened as they are needed. They stay open while no more than `most` of the process do, or one.
    pub fn new(files: Vec<StoredFile>, most: usize) -> Self {
        static KEPT: OnceBox<Kept> = OnceBox::new();
        Self::among(files, most, KEPT.get_or_init(Box::default))
    }

    fn among(files: Vec<StoredFile>, most: usize, kept: &'static Kept) -> Self {
        let seats = PerProcess::new(empty(files.len()));
        Self { files, most: most.max(1), seats, kept }
    }

    /// A file as it was listed.
    pub(super) fn get(&self, number: usize) -> Option<&StoredFile> {
        self.files.get(number)
    }

    /// One file, open as long as it is held.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub fn one(&self, number: usize) -> Result<Arc<OpenFile>> {
        let mut files = self.hold(&[number], 1)?.unwrap_or_default();
        files.pop().ok_or_else(|| crate::Error::Internal("a file was not opened".to_owned()))
    }

    /// The files of the first of some places, each a file and where in it: of all places if their files are open, or few.
    ///
    /// # Errors
    /// [`crate::Error::Store`] for one that cannot be opened, [`crate::Error::Changed`] if it is another one by now.
    pub(super) fn open(&self, places: &[(usize, u64)]) -> Result<Held> {
        let room = (2 * self.most).saturating_sub(self.kept.open.load(Ordering::Relaxed));
        let at_once = room.min(self.most / 4).clamp(1, AT_ONCE);
        // Where not all of them can be open, there is no use in looking for that.
        let most = if self.files.len() <= self.most { self.most } else { at_once };
        let (numbers, count) = first_files(places, most);
        if let Some(files) = self.hold(&numbers, at_once)? {
            return Ok(Held { places: count, numbers, files });
        }
        let (numbers, count) = first_files(places, at_once);
        let files = self.hold(&numbers, at_once)?.unwrap_or_default();
        Ok(Held { places: count, numbers, files })
    }

    /// Some files, each named once; `None` if more than `most` of them are not open.
    fn hold(&self, numbers: &[usize], most: usize) -> Result<Option<Vec<Arc<OpenFile>>>> {
        let seats = self.seats.get_or(|seats| empty(seats.len()));
        let time = self.kept.time.load(Ordering::Relaxed);
        let mut found: Vec<_> = numbers.iter().map(|&number| lock(&seats[number]).used(time)).collect();
        let missing = found.iter().filter(|file| file.is_none()).count();
        if missing > most {
            return Ok(None);
        }
        if missing > 0 {
            let mut opened = Vec::new();
            for (&number, _) in numbers.iter().zip(&found).filter(|(_, file)| file.is_none()) {
                let StoredFile { path, size, version } = &self.files[number];
                let file = OpenFile::open(path, *size, version)?.counted(&self.kept.open);
                opened.push((number, Arc::new(file)));
            }
            // Closed behind the locks.
            let gone = self.kept.keep(seats, &mut opened, self.most);
            drop(gone);
            let missing = found.iter_mut().filter(|file| file.is_none());
            missing.zip(opened).for_each(|(found, (_, file))| *found = Some(file));
        }
        Ok(Some(found.into_iter().flatten().collect()))
    }
}

impl Seat {
    /// Its file, if that is open.
    fn used(&mut self, time: u64) -> Option<Arc<OpenFile>> {
        self.used = time;
        self.file.clone()
    }
}

impl Kept {
    /// Keeps files of some seats that were opened, if there is room, and gives those that are not kept any more. A file that
    /// another thread has opened meanwhile takes the place of one.
    fn keep(&self, own: &Arc<[Mutex<Seat>]>, opened: &mut [(usize, Arc<OpenFile>)], most: usize) -> Vec<Arc<OpenFile>> {
        let time = self.time.fetch_add(1, Ordering::Relaxed) + 1;
        let mut kept = lock(self.seats.get());
        kept.retain(|(seats, _)| seats.strong_count() > 0);
        let wanted = (kept.len() + opened.len()).saturating_sub(most);
        let mut gone = if wanted > 0 { leave(&mut kept, wanted) } else { Vec::new() };
        for (number, file) in opened {
            let mut seat = lock(&own[*number]);
            if let Some(other) = &seat.file {
                gone.push(std::mem::replace(file, Arc::clone(other)));
            } else if kept.len() < most {
                *seat = Seat { file: Some(Arc::clone(file)), used: time };
                kept.push((Arc::downgrade(own), *number));
            }
        }
        gone
    }
}

/// Takes so many files from their seats, of those that nobody holds: those that were used least recently.
fn leave(kept: &mut Vec<SeatOf>, wanted: usize) -> Vec<Arc<OpenFile>> {
    let idle = |(at, (seats, number)): (usize, &SeatOf)| {
        let seats = seats.upgrade()?;
        let seat = lock(&seats[*number]);
        let is_idle = seat.file.as_ref().is_some_and(|file| Arc::strong_count(file) == 1);
        is_idle.then_some((seat.used, at))
    };
    let mut oldest: Vec<_> = kept.iter().enumerate().filter_map(idle).collect();
    oldest.sort_unstable();
    oldest.truncate(wanted);
    // From behind, so that those before stay where they are.
    oldest.sort_unstable_by_key(|&(_, at)| Reverse(at));
    let leave = |(_, at)| {
        let (seats, number) = kept.swap_remove(at);
        // Who has begun to use it meanwhile holds it.
        seats.upgrade().and_then(|seats| lock(&seats[number]).file.take())
    };
    oldest.into_iter().filter_map(leave).collect()
}

fn empty(seats: usize) -> Arc<[Mutex<Seat>]> {
    (0..seats).map(|_| Mutex::default()).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The files of the first places, ascending, and how many places these are: those of at most `most` files.
fn first_files(places: &[(usize, u64)], most: usize) -> (Vec<usize>, usize) {
    let mut files = Vec::new();
    for (number, (file, _)) in places.iter().enumerate() {
        if let Err(at) = files.binary_search(file) {
            if files.len() == most {
                return (files, number);
            }
            files.insert(at, *file);
        }
    }
    (files, places.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::per_process::tests::holds_in_child;

    /// Files of eight bytes, and whoever keeps no others.
    fn files(count: usize) -> (tempfile::TempDir, &'static Kept, impl Fn(std::ops::Range<usize>, usize) -> OpenFiles) {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..count {
            std::fs::write(folder.path().join(number.to_string()), [7; 8]).unwrap();
        }
        let path = folder.path().to_owned();
        let kept: &Kept = Box::leak(Box::default());
        let some = move |numbers: std::ops::Range<usize>, most| {
            let list = |number: usize| StoredFile::new(path.join(number.to_string()), 8, Version::Unknown);
            OpenFiles::among(numbers.map(list).collect(), most, kept)
        };
        (folder, kept, some)
    }

    fn open(files: &OpenFiles, numbers: &[usize]) -> Vec<Arc<OpenFile>> {
        files.hold(numbers, numbers.len()).unwrap().unwrap()
    }

    /// The numbers of those that stay open.
    fn kept(files: &OpenFiles) -> Vec<usize> {
        let seats = files.seats.get_or(|seats| empty(seats.len()));
        (0..seats.len()).filter(|&number| lock(&seats[number]).file.is_some()).collect()
    }

    #[test]
    fn a_forked_child_waits_for_no_thread_of_its_parent_s() {
        let (_folder, all, some) = files(2);
        let files = some(0..2, 3);
        open(&files, &[1]);
        let busy = (lock(all.seats.get()), lock(&files.seats.get_or(|_| empty(0))[0]));
        assert!(holds_in_child(|| {
            let mut out = [0; 8];
            let read = files.one(0).is_ok_and(|file| file.read_at(0, &mut out).is_ok()) && out == [7; 8];
            // Its own are counted, and no others.
            read && kept(&files) == [0] && lock(all.seats.get()).len() == 1
        }));
        drop(busy);
        assert_eq!(kept(&files), [1]);
    }

    #[test]
    fn those_that_were_used_last_stay_open() {
        let (folder, _, some) = files(6);
        let files = some(0..6, 3);
        for number in 0..3 {
            open(&files, &[number]);
        }
        let first = files.one(0).unwrap();
        assert!(Arc::ptr_eq(&first, &files.one(0).unwrap()));
        open(&files, &[3]);
        assert_eq!(kept(&files), [0, 2, 3]);
        // What is held stays open, and those that find no room are closed after use.
        let held = open(&files, &[2, 3]);
        assert_eq!(open(&files, &[1, 2, 4]).len(), 3);
        assert_eq!(kept(&files), [0, 2, 3]);
        drop(held);
        drop(first);
        assert_eq!(open(&files, &[0, 1, 4, 5, 2]).len(), 5);
        assert_eq!(kept(&files), [0, 1, 2]);
        assert!(files.get(5).is_some() && files.get(6).is_none());
        std::fs::write(folder.path().join("3"), b"other").unwrap();
        assert!(matches!(files.one(3), Err(crate::Error::Changed { .. })));
        assert_eq!(kept(&files), [0, 1, 2]);
    }

    #[test]
    fn datasets_share_the_number_that_stays_open() {
        let (_folder, all, some) = files(8);
        let (one, other) = (some(0..4, 5), some(4..8, 5));
        for number in 0..4 {
            open(&one, &[number]);
        }
        open(&other, &[0]);
        assert_eq!((kept(&one), kept(&other)), (vec![0, 1, 2, 3], vec![0]));
        open(&one, &[0]);
        open(&other, &[1]);
        open(&other, &[2]);
        assert_eq!((kept(&one), kept(&other)), (vec![0, 3], vec![0, 1, 2]));
        // Those of a dataset that is gone are closed, and leave room.
        drop(other);
        open(&one, &[1]);
        open(&one, &[2]);
        assert_eq!(kept(&one), [0, 1, 2, 3]);
        assert_eq!(lock(all.seats.get()).len(), 4);
    }

    #[test]
    fn all_places_come_at_once_where_their_files_are_open() {
        let (_folder, _, some) = files(40);
        let (files, many) = (some(0..20, 32), some(0..40, 32));
        let places: Vec<(usize, u64)> = (0..60).map(|number| (number * 7 % 20, 0)).collect();
        // A quarter of what stays open is opened at a time.
        assert_eq!(files.open(&places).unwrap().places, 8);
        assert_eq!(kept(&files).len(), 8);
        let held = open(&files, &(0..12).collect::<Vec<_>>());
        assert_eq!(files.open(&places).unwrap().places, 60);
        assert_eq!(kept(&files).len(), 20);
        let found = files.open(&places).unwrap();
        assert!(std::ptr::eq(found.file(5), &raw const *files.one(5).unwrap()));
        drop(held);
        assert_eq!(many.open(&[(3, 0), (39, 0), (3, 1)]).unwrap().places, 3);
        let places: Vec<(usize, u64)> = (0..40).map(|number| (number, 0)).collect();
        assert_eq!(many.open(&places).unwrap().places, 8);
    }

    #[test]
    fn readers_that_hold_many_files_leave_fewer_to_open_at_a_time() {
        let (_folder, all, some) = files(100);
        let (one, other) = (some(0..60, 32), some(60..100, 32));
        let places: Vec<(usize, u64)> = (0..40).map(|number| (number, 0)).collect();
        for (held, wanted) in [(0, 8), (32, 8), (58, 6), (60, 4)] {
            let held = open(&one, &(0..held).collect::<Vec<_>>());
            assert_eq!(other.open(&places).unwrap().places, wanted);
            drop(held);
        }
        let held = open(&one, &(0..60).collect::<Vec<_>>());
        let more = open(&other, &(0..30).collect::<Vec<_>>());
        assert_eq!(all.open.load(Ordering::Relaxed), 90);
        assert_eq!(other.open(&places[30..]).unwrap().places, 1);
        drop((held, more));
        assert_eq!(all.open.load(Ordering::Relaxed), 32);
        drop((one, other));
        assert_eq!(all.open.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn threads_that_open_the_same_files_hold_the_same_ones() {
        let (_folder, all, some) = files(16);
        let both = [some(0..8, 9), some(8..16, 9)];
        std::thread::scope(|scope| {
            for turn in 0..4 {
                let both = &both;
                scope.spawn(move || {
                    for round in 0..200 {
                        let files = &both[(turn + round) % 2];
                        let found = open(files, &[round % 8, 8 - 1 - round % 4]);
                        let mut out = [0; 8];
                        found.iter().for_each(|file| file.read_at(0, &mut out).unwrap());
                        assert_eq!(out, [7; 8]);
                    }
                });
            }
        });
        let open = kept(&both[0]).len() + kept(&both[1]).len();
        assert_eq!(lock(all.seats.get()).len(), open);
        assert!((1..=9).contains(&open), "{open}");
    }
}

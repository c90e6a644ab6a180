//! A cache in front of a store that counts, as one process sees it and as several do.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::entry::Key;
use super::folder::Asked;
use super::{Folder, cached, clear, usage};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::store::local::LocalStore;
use crate::store::{Condition, Content, Entry, Fetch, Object, Pending, Store, Traffic, Version};

/// A mount that takes its time, and counts the reads that were begun.
#[derive(Debug)]
struct Slow {
    store: LocalStore,
    wait: Duration,
    begun: AtomicU64,
}

struct SlowRead(Fetch, Duration);

impl Pending for SlowRead {
    fn finish(self: Box<Self>, cancel: &Cancel, buffer: &mut Vec<u8>) -> Result<()> {
        std::thread::sleep(self.1);
        self.0.wait_into(cancel, buffer)
    }
}

impl Store for Slow {
    fn url(&self) -> &str {
        self.store.url()
    }

    fn below(&self, prefix: &str) -> Result<Arc<dyn Store>> {
        self.store.below(prefix)
    }

    fn list(&self, prefix: &str, cancel: &Cancel, found: &mut dyn FnMut(Object)) -> Result<()> {
        self.store.list(prefix, cancel, found)
    }

    fn head(&self, path: &str, cancel: &Cancel) -> Result<Object> {
        self.store.head(path, cancel)
    }

    fn fetch(&self, object: &Object, range: Range<u64>) -> Fetch {
        self.begun.fetch_add(1, Ordering::Relaxed);
        Fetch::new(SlowRead(self.store.fetch(object, range), self.wait))
    }

    fn write(&self, path: &str, content: Content<'_>, when: &Condition, cancel: &Cancel) -> Result<Option<Entry>> {
        self.store.write(path, content, when, cancel)
    }

    fn delete(&self, path: &str, cancel: &Cancel) -> Result<()> {
        self.store.delete(path, cancel)
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn traffic(&self) -> &Traffic {
        self.store.traffic()
    }
}

const LEN: u64 = 100_000;

struct Place {
    data: tempfile::TempDir,
    cache: tempfile::TempDir,
    store: Arc<Slow>,
    object: Object,
}

impl Place {
    fn new(wait: Duration) -> Self {
        let (data, cache) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
        let bytes: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
        fs::write(data.path().join("x"), bytes).expect("write");
        let store = LocalStore::new(data.path()).expect("store");
        let object = store.head("x", &Cancel::new()).expect("head");
        Self { data, cache, store: Arc::new(Slow { store, wait, begun: AtomicU64::new(0) }), object }
    }

    /// A cache as a process has it.
    fn cached(&self, limit: u64) -> (Arc<dyn Store>, Arc<Folder>) {
        let folder = Arc::new(Folder::new(self.cache.path(), limit));
        (cached(self.store.clone(), Some(&folder)), folder)
    }

    fn begun(&self) -> u64 {
        self.store.begun.load(Ordering::Relaxed)
    }

    fn check(&self, store: &Arc<dyn Store>, range: Range<u64>) {
        let mut buffer = b"before".to_vec();
        store.fetch(&self.object, range.clone()).wait_into(&Cancel::new(), &mut buffer).expect("read");
        let wanted = &fs::read(self.data.path().join("x")).expect("read")[range.start as usize..range.end as usize];
        assert_eq!(&buffer[6..], wanted);
    }

    fn entries(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        files(self.cache.path(), &mut found);
        found
    }
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("list").flatten() {
        if entry.path().is_dir() { files(&entry.path(), found) } else { found.push(entry.path()) }
    }
}

#[test]
fn what_was_read_is_not_fetched_again() {
    let place = Place::new(Duration::ZERO);
    let (store, folder) = place.cached(1 << 30);
    for _ in 0..3 {
        place.check(&store, 0..50_000);
        place.check(&store, 50_000..LEN);
    }
    // Another process.
    place.check(&place.cached(1 << 30).0, 0..50_000);
    assert_eq!(place.begun(), 2);
    assert_eq!(store.traffic().cached.load(Ordering::Relaxed), 2 * LEN + 50_000);
    assert_eq!(usage(place.cache.path()).entries, 2);
    assert_eq!(folder.take_problem(), None);
    // A range of a few bytes is not worth a file; and a content that nothing tells from others cannot be kept.
    place.check(&store, 0..10);
    place.check(&store, 0..10);
    assert_eq!(place.begun(), 4);
    let unknown = Object { version: Version::Unknown, ..place.object.clone() };
    for _ in 0..2 {
        store.fetch(&unknown, 0..50_000).wait_into(&Cancel::new(), &mut Vec::new()).expect("read");
    }
    assert_eq!(place.begun(), 6);
}

#[test]
fn data_that_was_replaced_is_never_served() {
    let mut place = Place::new(Duration::ZERO);
    let (store, _) = place.cached(1 << 30);
    place.check(&store, 0..LEN);
    fs::write(place.data.path().join("x"), vec![7; LEN as usize]).expect("write");
    place.object = place.store.head("x", &Cancel::new()).expect("head");
    place.check(&store, 0..LEN);
    assert_eq!(place.begun(), 2);
}

#[test]
fn a_limit_that_was_lowered_is_kept_to() {
    let place = Place::new(Duration::ZERO);
    let (store, _) = place.cached(1 << 30);
    for begin in 0..20 {
        place.check(&store, begin * 1000..begin * 1000 + 10_000);
    }
    let (_, folder) = place.cached(100_000);
    folder.tidy();
    let end = Instant::now() + Duration::from_secs(30);
    while usage(place.cache.path()).bytes > 100_000 {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(usage(place.cache.path()).entries > 5);
}

#[test]
fn of_many_that_want_a_range_one_fetches_it() {
    let place = Place::new(Duration::from_millis(200));
    let stores: Vec<_> = (0..8).map(|_| place.cached(1 << 30).0).collect();
    std::thread::scope(|scope| {
        for store in &stores {
            scope.spawn(|| place.check(store, 0..LEN));
        }
    });
    assert_eq!(place.begun(), 1);
    // One that is given up is there all the same, for those who wait for it.
    drop(stores[0].fetch(&place.object, 0..50_000));
    place.check(&stores[1], 0..50_000);
    assert_eq!(place.begun(), 2);
}

#[test]
fn a_read_that_fails_is_an_error_and_leaves_nothing() {
    let place = Place::new(Duration::ZERO);
    let (store, _) = place.cached(1 << 30);
    fs::write(place.data.path().join("x"), b"shorter").expect("write");
    let mut buffer = b"before".to_vec();
    let read = |buffer: &mut Vec<u8>| store.fetch(&place.object, 0..LEN).wait_into(&Cancel::new(), buffer);
    assert!(matches!(read(&mut buffer), Err(Error::Changed { .. })));
    assert_eq!(buffer, b"before");
    assert_eq!(place.entries(), [] as [PathBuf; 0]);
    assert!(matches!(read(&mut buffer), Err(Error::Changed { .. })));
}

#[test]
fn a_damaged_entry_is_fetched_anew_and_noted_once() {
    for damage in [|bytes: &mut Vec<u8>| bytes[60] ^= 1, |bytes: &mut Vec<u8>| bytes.truncate(5000), Vec::clear] {
        let place = Place::new(Duration::ZERO);
        let (store, folder) = place.cached(1 << 30);
        place.check(&store, 0..LEN);
        let [entry] = &place.entries()[..] else { panic!("one entry") };
        let mut bytes = fs::read(entry).expect("read");
        damage(&mut bytes);
        fs::write(entry, bytes).expect("write");
        place.check(&store, 0..LEN);
        place.check(&store, 0..LEN);
        assert_eq!(place.begun(), 2);
        assert!(folder.take_problem().expect("noted").contains("damaged"));
        assert_eq!(folder.take_problem(), None);
    }
}

#[test]
fn it_stays_below_its_limit_and_keeps_what_was_used_last() {
    let place = Place::new(Duration::ZERO);
    let (store, _) = place.cached(100_000);
    let foreign = place.cache.path().join("mine.txt");
    fs::write(&foreign, b"mine").expect("write");
    for begin in 0..40 {
        place.check(&store, begin * 1000..begin * 1000 + 10_000);
        assert!(usage(place.cache.path()).bytes <= 100_000);
        if begin == 0 {
            // One that looks like an entry by its name alone.
            let named = place
                .entries()
                .into_iter()
                .find(|path| *path != foreign)
                .expect("entry")
                .with_file_name("0".repeat(32));
            fs::write(named, vec![0; 10]).expect("write");
        }
    }
    assert!(usage(place.cache.path()).entries >= 7);
    let begun = place.begun();
    place.check(&store, 39_000..49_000);
    assert_eq!(place.begun(), begun, "the last one is there");
    place.check(&store, 0..10_000);
    assert_eq!(place.begun(), begun + 1, "the first one is not");
    // One that would take most of it is not kept.
    place.check(&store, 0..LEN);
    place.check(&store, 0..LEN);
    assert_eq!(place.begun(), begun + 3);
    assert!(clear(place.cache.path()).entries >= 7);
    let left: Vec<_> = place.entries().into_iter().map(|path| fs::read(path).expect("read")).collect();
    assert_eq!(left.len(), 2, "what it did not write");
    assert!(left.contains(&b"mine".to_vec()) && left.contains(&vec![0; 10]));
}

#[test]
fn one_that_died_is_in_nobodys_way() {
    let place = Place::new(Duration::ZERO);
    let (store, _) = place.cached(1 << 30);
    place.check(&store, 0..LEN);
    let [entry] = &place.entries()[..] else { panic!("one entry") };
    // Its unfinished file, half written, without a lock.
    fs::rename(entry, entry.with_extension("part")).expect("rename");
    place.check(&store, 0..LEN);
    place.check(&store, 0..LEN);
    assert_eq!(place.begun(), 2);
    assert_eq!(&place.entries(), std::slice::from_ref(entry));
}

#[test]
fn a_folder_that_cannot_be_written_is_noted_and_hinders_nothing() {
    let place = Place::new(Duration::ZERO);
    // A file where a folder should be: it hinders the superuser as well.
    let blocked = place.cache.path().join("file");
    fs::write(&blocked, b"x").expect("write");
    let folder = Arc::new(Folder::new(&blocked, 1 << 30));
    assert!(folder.take_problem().expect("noted").contains("nothing more is cached"));
    let store = cached(place.store.clone(), Some(&folder));
    place.check(&store, 0..LEN);
    place.check(&store, 0..LEN);
    assert_eq!(place.begun(), 2);
    assert_eq!(folder.take_problem(), None, "once");
}

#[test]
fn one_that_was_stopped_is_not_waited_for_for_ever() {
    let place = Place::new(Duration::ZERO);
    let (store, folder) = place.cached(1 << 30);
    let key = Key::new(place.store.as_ref(), &place.object, &(0..LEN)).expect("key");
    let Asked::Claimed(claim) = folder.ask(key, LEN) else { panic!("nobody else wants it") };
    place.check(&place.cached(1 << 30).0, 0..LEN);
    assert_eq!(place.begun(), 1);
    drop(claim);
    // A child that was forked meanwhile would keep the file open: the lock is gone all the same.
    place.check(&store, 0..LEN);
    assert_eq!((place.begun(), place.entries().len()), (2, 1));
}

#[test]
fn a_folder_that_others_can_write_to_is_not_believed() {
    let place = Place::new(Duration::ZERO);
    place.check(&place.cached(1 << 30).0, 0..LEN);
    let root = place.entries()[0].parent().and_then(Path::parent).expect("root").to_owned();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).expect("mode");
    let (store, folder) = place.cached(1 << 30);
    assert!(folder.take_problem().expect("noted").contains("only this user"));
    place.check(&store, 0..LEN);
    assert_eq!(place.begun(), 2);
}

#[test]
fn many_that_ask_at_once_leave_nothing_unfinished() {
    let place = Place::new(Duration::ZERO);
    for round in 0..40 {
        let stores: Vec<_> = (0..4).map(|_| place.cached(1 << 30).0).collect();
        std::thread::scope(|scope| {
            for store in &stores {
                scope.spawn(|| place.check(store, round * 1000..round * 1000 + 5000));
            }
        });
    }
    assert_eq!(place.entries().len(), 40);
}

#[test]
fn waiting_ends_when_it_is_to() {
    let place = Place::new(Duration::from_secs(5));
    let (store, _) = place.cached(1 << 30);
    let read = store.fetch(&place.object, 0..LEN);
    let cancel = Cancel::new();
    cancel.cancel();
    assert!(matches!(read.wait_into(&cancel, &mut Vec::new()), Err(Error::Cancelled)));
    let other = place.cached(1 << 30).0.fetch(&place.object, 0..LEN);
    assert!(matches!(other.wait_into(&cancel, &mut Vec::new()), Err(Error::Cancelled)));
}

//! What every store must do, shown on the local one.

use std::fs;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use crate::cancel::Cancel;
use crate::error::{Error, Result, StoreFault};
use crate::store::local::LocalStore;
use crate::store::{
    ByteStream, Condition, Content, Entry, Fetch, Object, Pages, Store, Traffic, Version, delete, read, write,
};

fn store() -> (tempfile::TempDir, Arc<dyn Store>) {
    let folder = tempfile::tempdir().expect("folder");
    let store = LocalStore::new(folder.path()).expect("store");
    (folder, Arc::new(store))
}

#[test]
fn a_put_replaces_a_file_whole_and_leaves_nothing_else() {
    let (folder, store) = store();
    let never = Cancel::new();
    store.put("a/b c.txt", b"one", &never).expect("put");
    store.put("a/b c.txt", b"three", &never).expect("put");
    let mut found = Vec::new();
    store.list("", &never, &mut |object| found.push(object)).expect("list");
    assert_eq!(found, [store.head("a/b c.txt", &never).expect("head")]);
    assert_eq!(fs::read(folder.path().join("a/b c.txt")).expect("read"), b"three");
    assert_eq!(store.uri("a/b c.txt"), format!("{}/a/b c.txt", folder.path().display()));
    let mut below = Vec::new();
    store.list("a", &never, &mut |object| below.push(object)).expect("list");
    assert_eq!(below, found);
}

#[test]
fn a_listing_begins_where_it_is_told_and_a_root_lies_below_another() {
    let (_folder, store) = store();
    let never = Cancel::new();
    for path in ["a/b1", "a/b2/c", "a/c", "ab", "b"] {
        store.put(path, path.as_bytes(), &never).expect("put");
    }
    let starting = |store: &Arc<dyn Store>, start: &str| {
        let mut found = Vec::new();
        store.list_starting(start, &never, &mut |object| found.push(object.path)).expect("list");
        found.sort();
        found
    };
    assert_eq!(starting(&store, "a/b"), ["a/b1", "a/b2/c"]);
    assert_eq!(starting(&store, "a"), ["a/b1", "a/b2/c", "a/c", "ab"]);
    assert_eq!(starting(&store, "x"), [""; 0]);
    let below = store.below("a").expect("below");
    assert_eq!(starting(&below, ""), ["b1", "b2/c", "c"]);
    assert_eq!(below.url(), format!("{}/a", store.url()));
    assert!(store.can_list() && store.endpoint().is_none());
}

#[test]
fn a_condition_that_does_not_hold_leaves_what_is_there() {
    let (_folder, store) = store();
    let never = Cancel::new();
    let write = |condition: Condition, bytes: &[u8]| {
        store.write("a/x", Content::Bytes(bytes), &condition, &never).expect("write")
    };
    assert_eq!(write(Condition::Unchanged(Version::Modified(0)), b"0"), None, "there is none");
    let first = write(Condition::Absent, b"1").expect("new");
    assert_eq!(first, store.entry("a/x", &never).expect("entry"));
    assert_eq!(write(Condition::Absent, b"2"), None);
    assert_eq!(write(Condition::Unchanged(Version::Modified(0)), b"3"), None);
    assert_eq!(read(&store, &first.object, 0..1, &never).expect("read"), b"1");
    assert_eq!(write(Condition::Unchanged(first.object.version), b"4444").expect("unchanged").object.size, 4);
    store.delete("a/x", &never).expect("delete");
    store.delete("a/x", &never).expect("nothing to delete");
    assert!(store.delete("a", &never).is_err(), "a folder is no file");
}

#[test]
fn a_file_is_stored_as_it_is() {
    let (folder, store) = store();
    let never = Cancel::new();
    let source = tempfile::NamedTempFile::new().expect("source");
    let bytes: Vec<u8> = (0..20_000_000_u32).map(|at| at as u8).collect();
    fs::write(source.path(), &bytes).expect("write");
    let stored = store.write("x", Content::File(source.path()), &Condition::Always, &never).expect("write");
    assert_eq!(stored.expect("stored").object.size, bytes.len() as u64);
    assert!(fs::read(folder.path().join("x")).expect("read") == bytes);
    assert!(store.write("x", Content::File(folder.path()), &Condition::Always, &never).is_err(), "a folder is no file");
    for path in ["", "../x", "a//b", "/x"] {
        assert!(write(store.as_ref(), path, Content::Bytes(b""), &Condition::Always, &never).is_err(), "{path}");
        assert!(delete(store.as_ref(), path, &never).is_err(), "{path}");
    }
}

#[test]
fn pages_hold_all_files_and_end_with_none() {
    let (folder, store) = store();
    let never = Cancel::new();
    for number in 0..2500 {
        fs::write(folder.path().join(format!("{:04}", number * 7 % 2500)), b"").expect("write");
    }
    for ordered in [true, false] {
        let pages = Pages::start(Arc::clone(&store), String::new(), ordered).expect("start");
        let mut paths = Vec::new();
        loop {
            let page = pages.next(&never).expect("page");
            assert!(page.len() <= 1000);
            if page.is_empty() {
                break;
            }
            paths.extend(page.into_iter().map(|entry| entry.object.path));
        }
        assert!(!ordered || paths.is_sorted());
        paths.sort();
        assert!(paths.len() == 2500 && paths[2499] == "2499");
    }
    drop(Pages::start(Arc::clone(&store), String::new(), false).expect("start"));
    fs::write(folder.path().join(".headrace-1.tmp"), b"").expect("write");
    let pages = Pages::start(store, ".".to_owned(), true).expect("start");
    assert!(pages.next(&never).expect("page").is_empty(), "what is not whole yet is not there");
}

/// Readers see the old content or the new, never a mixture or none.
#[test]
fn a_put_is_atomic_for_readers() {
    let (folder, store) = store();
    let path = folder.path().join("x");
    store.put("x", &[0; 5000], &Cancel::new()).expect("put");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..50_u8 {
                store.put("x", &vec![round; 5000], &Cancel::new()).expect("put");
            }
        });
        for _ in 0..200 {
            let bytes = fs::read(&path).expect("read");
            assert!(bytes.len() == 5000 && bytes.iter().all(|byte| *byte == bytes[0]));
        }
    });
}

#[test]
fn what_is_missing_is_not_found() {
    let (folder, store) = store();
    let error = store.head("nothing", &Cancel::new()).expect_err("missing");
    assert!(matches!(error, Error::Store { fault: StoreFault::NotFound, .. }), "{error}");
    assert!(LocalStore::new(&folder.path().join("nothing")).is_err());
    fs::write(folder.path().join("file"), b"x").expect("write");
    assert!(matches!(LocalStore::new(&folder.path().join("file")), Err(Error::Argument(_))));
    assert!(store.head("", &Cancel::new()).is_err(), "a folder is no file");
}

proptest! {
    #[test]
    fn a_stream_gives_the_range_in_order(
        len in 0..5000_usize, from in 0..5000_usize, to in 0..5000_usize, block in 1..700_u64, ahead in 0..4_usize,
        wants in proptest::collection::vec((0..900_usize, 0..900_usize), 1..40),
    ) {
        let (_folder, store) = store();
        let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        store.put("x", &bytes, &Cancel::new()).expect("put");
        let object = store.head("x", &Cancel::new()).expect("head");
        let (from, to) = (from.min(len), to.min(len));
        let range = from.min(to)..from.max(to);
        let wanted = &bytes[range.clone()];
        let mut stream = ByteStream::new(
            Arc::clone(&store), object, range.start as u64..range.end as u64, block, ahead, Cancel::new(),
        );
        let (mut seen, mut buffer) = (Vec::new(), Vec::new());
        for (want, used) in wants {
            stream.fill(&mut buffer, want).expect("fill");
            prop_assert!(buffer.len() >= want || stream.remaining() == 0);
            seen.extend(buffer.drain(..used.min(buffer.len())));
            prop_assert_eq!(seen.len() + buffer.len() + stream.remaining() as usize, wanted.len());
        }
        stream.fill(&mut buffer, usize::MAX).expect("fill");
        seen.append(&mut buffer);
        prop_assert_eq!(seen, wanted);
        prop_assert_eq!(store.traffic().bytes.load(Ordering::Relaxed), wanted.len() as u64);
    }
}

/// A local store that says it is far away, so that reads are started ahead of use.
#[derive(Debug)]
struct Far(Arc<dyn Store>);

impl Store for Far {
    fn url(&self) -> &str {
        self.0.url()
    }

    fn below(&self, prefix: &str) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Self(self.0.below(prefix)?)))
    }

    fn list(&self, prefix: &str, cancel: &Cancel, found: &mut dyn FnMut(Object)) -> Result<()> {
        self.0.list(prefix, cancel, found)
    }

    fn head(&self, path: &str, cancel: &Cancel) -> Result<Object> {
        self.0.head(path, cancel)
    }

    fn fetch(&self, object: &Object, range: Range<u64>) -> Fetch {
        self.0.fetch(object, range)
    }

    fn write(&self, path: &str, content: Content<'_>, when: &Condition, cancel: &Cancel) -> Result<Option<Entry>> {
        self.0.write(path, content, when, cancel)
    }

    fn delete(&self, path: &str, cancel: &Cancel) -> Result<()> {
        self.0.delete(path, cancel)
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn traffic(&self) -> &Traffic {
        self.0.traffic()
    }
}

proptest! {
    #[test]
    fn a_stream_passes_over_what_nobody_wants(
        len in 0..5000_usize, block in 1..700_u64, ahead in 0..4_usize, far: bool,
        steps in proptest::collection::vec((0..900_u64, 0..900_usize), 1..20),
    ) {
        let (_folder, store) = store();
        let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        store.put("x", &bytes, &Cancel::new()).expect("put");
        let object = store.head("x", &Cancel::new()).expect("head");
        let reader: Arc<dyn Store> = if far { Arc::new(Far(Arc::clone(&store))) } else { Arc::clone(&store) };
        let mut stream = ByteStream::new(reader, object, 0..len as u64, block, ahead, Cancel::new());
        let (mut at, mut most) = (0, 0);
        for (skip, want) in steps {
            stream.start();
            stream.skip(skip);
            at = (at + skip as usize).min(len);
            prop_assert_eq!(stream.remaining() as usize, len - at);
            let mut buffer = Vec::new();
            stream.fill(&mut buffer, want).expect("fill");
            prop_assert!(buffer.len() >= want.min(len - at));
            prop_assert_eq!(&buffer, &bytes[at..at + buffer.len()]);
            most += buffer.len() as u64 + block;
            at += buffer.len();
        }
        prop_assert!(store.traffic().bytes.load(Ordering::Relaxed) <= most);
    }
}

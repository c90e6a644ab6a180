//! Objects of stores, of which many short ranges are read: in an order, with those to come under way.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::cancel::Cancel;
use crate::error::Result;
use crate::store::{Fetch, Object, Store};

/// Ranges under way. Scope: a reader. Evidence: as many requests as a process has under way at once by default, so that one
/// reader alone keeps that busy; those of more readers wait for their turn, and hold no memory until then.
const AT_ONCE: usize = 32;

/// Bytes of them, beyond one range. Scope: a reader. Evidence: the longest body that is asked for with one request.
const BYTES: u64 = 8 << 20;

/// An object as it was listed, and where.
#[derive(Debug, Clone)]
pub struct StoredObject {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The object.
    pub object: Object,
}

/// Neighbouring bytes of one of some objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// Which of the objects.
    pub(super) file: usize,
    /// The first byte.
    pub(super) start: u64,
    /// Bytes.
    pub(super) bytes: usize,
}

/// What holds rows that are `width` long, each at a place: an object and the first byte there. Those that lie one behind
/// another are one extent, up to the bytes that are asked for at once.
pub(super) fn extents(places: &[(usize, u64)], width: usize) -> impl Iterator<Item = Extent> {
    let follow = move |one: &(usize, u64), next: &(usize, u64)| one.0 == next.0 && one.1 + width as u64 == next.1;
    let most = (BYTES as usize / width.max(1)).max(1);
    let runs = places.chunk_by(follow).flat_map(move |run| run.chunks(most));
    runs.map(move |run| Extent { file: run[0].0, start: run[0].1, bytes: run.len() * width })
}

/// Reads extents in their order.
pub(super) struct Ahead<'a> {
    objects: &'a [StoredObject],
    extents: &'a [Extent],
    /// The first one that was not begun.
    next: usize,
    /// Reads that were begun and not waited for, with the numbers of their extents.
    begun: VecDeque<(usize, Fetch)>,
    /// Bytes of these.
    bytes: u64,
}

impl<'a> Ahead<'a> {
    pub(super) fn new(objects: &'a [StoredObject], extents: &'a [Extent]) -> Self {
        Self { objects, extents, next: 0, begun: VecDeque::new(), bytes: 0 }
    }

    /// The bytes of an extent, by its number, which is above those asked for before. What is passed over is given up.
    ///
    /// # Errors
    /// [`crate::Error::Changed`] for an object that is another one by now, and those of reading.
    pub(super) fn read(&mut self, number: usize, cancel: &Cancel) -> Result<Vec<u8>> {
        while self.begun.front().is_some_and(|(first, _)| *first < number) {
            self.take();
        }
        self.next = self.next.max(number);
        while let Some(&Extent { file, start, bytes }) = self.extents.get(self.next) {
            let bytes = bytes as u64;
            if !self.begun.is_empty() && (self.begun.len() >= AT_ONCE || self.bytes + bytes > BYTES) {
                break;
            }
            let StoredObject { store, object } = &self.objects[file];
            self.begun.push_back((self.next, store.fetch(object, start..start + bytes)));
            self.next += 1;
            self.bytes += bytes;
        }
        // The store's own memory is handed on.
        let mut bytes = Vec::new();
        if let Some(read) = self.take() {
            read.wait_into(cancel, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// The first of what was begun.
    fn take(&mut self) -> Option<Fetch> {
        let (number, read) = self.begun.pop_front()?;
        self.bytes -= self.extents[number].bytes as u64;
        Some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::local::LocalStore;
    use proptest::prelude::*;
    use std::sync::atomic::Ordering;

    fn extent(file: usize, start: u64, bytes: usize) -> Extent {
        Extent { file, start, bytes }
    }

    /// Objects of so many bytes, each of which is the last digit of its place; and their folder.
    fn objects(sizes: &[usize]) -> (tempfile::TempDir, Vec<StoredObject>) {
        let folder = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(LocalStore::new(folder.path()).unwrap());
        let list = |(number, &size): (usize, &usize)| {
            let (path, bytes): (_, Vec<u8>) = (number.to_string(), (0..size).map(|at| (at % 251) as u8).collect());
            store.put(&path, &bytes, &Cancel::new()).unwrap();
            StoredObject { store: Arc::clone(&store), object: store.head(&path, &Cancel::new()).unwrap() }
        };
        let objects = sizes.iter().enumerate().map(list).collect();
        (folder, objects)
    }

    #[test]
    fn rows_that_lie_one_behind_another_are_read_at_once() {
        let places = [(0, 0), (0, 4), (0, 8), (1, 12), (1, 15), (0, 12)];
        let found: Vec<Extent> = extents(&places, 4).collect();
        assert_eq!(found, [extent(0, 0, 12), extent(1, 12, 4), extent(1, 15, 4), extent(0, 12, 4)]);
        let width = 3 << 20;
        let places: Vec<(usize, u64)> = (0..5).map(|row| (0, row * width)).collect();
        let found: Vec<u64> = extents(&places, width as usize).map(|extent| extent.bytes as u64 / width).collect();
        assert_eq!(found, [2, 2, 1]);
        assert_eq!(extents(&[(0, 0), (0, 9 << 20)], 9 << 20).count(), 2);
    }

    proptest! {
        #[test]
        fn each_extent_is_read_whatever_is_passed_over(
            wanted in prop::collection::vec((0_usize..2, 0_u64..900, 1_usize..100, prop::bool::weighted(0.7)), 1..120),
        ) {
            let (_folder, objects) = objects(&[1000, 1000]);
            let extents: Vec<Extent> = wanted.iter().map(|&(file, start, bytes, _)| extent(file, start, bytes)).collect();
            let mut ahead = Ahead::new(&objects, &extents);
            let mut read = 0;
            for (number, &(_, start, bytes, is_wanted)) in wanted.iter().enumerate() {
                if is_wanted {
                    let found = ahead.read(number, &Cancel::new()).unwrap();
                    let expected: Vec<u8> = (start..start + bytes as u64).map(|at| (at % 251) as u8).collect();
                    prop_assert_eq!(found, expected);
                    prop_assert!(ahead.begun.len() < AT_ONCE);
                    read += bytes as u64;
                }
            }
            prop_assert_eq!(objects[0].store.traffic().bytes.load(Ordering::Relaxed), read);
        }
    }

    #[test]
    fn no_more_bytes_are_under_way_than_there_may_be() {
        let (_folder, objects) = objects(&[20 << 20]);
        let extents = [extent(0, 0, 3 << 20), extent(0, 1, 3 << 20), extent(0, 2, 3 << 20), extent(0, 3, 10 << 20)];
        let mut ahead = Ahead::new(&objects, &extents);
        for (number, under_way) in [1, 1, 0, 0].into_iter().enumerate() {
            assert_eq!(ahead.read(number, &Cancel::new()).unwrap().len(), extents[number].bytes);
            assert_eq!(ahead.begun.len(), under_way);
        }
        assert_eq!(ahead.bytes, 0);
    }
}

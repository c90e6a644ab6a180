//! Items that are rows of one width in files, whatever their number: any of them is found by arithmetic.

use super::gather::{Gather, Values};
use super::memory::Slot;
use super::objects::{Ahead, StoredObject, extents};
use super::open_files::{OpenFiles, StoredFile};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};

/// Files, and where they lie.
#[derive(Debug)]
pub enum Stored {
    /// On this machine.
    Disk(Vec<StoredFile>),
    /// In stores, which are slow to answer.
    Remote(Vec<StoredObject>),
}

/// Neighbouring items of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The file.
    pub file: usize,
    /// The first byte of the first item there.
    pub start: u64,
    /// Items.
    pub items: u64,
}

/// How items lie in all files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowShape {
    /// Bytes from one item to the next.
    pub stride: u64,
    /// Bytes of an item.
    pub width: usize,
    /// What becomes of them.
    pub values: Values,
}

/// What of what is not in use is kept, at most.
#[derive(Debug, Clone, Copy)]
pub struct RowsKept {
    /// The memory of so many batches.
    pub batches: usize,
    /// So many open files, with those of others.
    pub files: usize,
}

#[derive(Debug)]
enum Files {
    Disk(OpenFiles),
    Remote(Vec<StoredObject>),
}

impl Files {
    fn size_of(&self, number: usize) -> Option<u64> {
        match self {
            Self::Disk(files) => files.get(number).map(|file| file.size),
            Self::Remote(objects) => objects.get(number).map(|stored| stored.object.size),
        }
    }
}

/// Items of pieces, laid end to end, and numbered so.
#[derive(Debug)]
pub struct StoredRows {
    files: Files,
    pieces: Vec<Piece>,
    /// The number of each piece's first item, and of all items.
    starts: Vec<u64>,
    shape: RowShape,
    row_bytes: usize,
    gather: Gather,
    /// Whether what was read last had long been in memory.
    is_warm: AtomicBool,
}

impl StoredRows {
    /// Items of `pieces` of `files`, which are opened as they are needed.
    ///
    /// # Errors
    /// [`Error::Argument`] if a file does not hold the items of a piece, or no item is of whole values.
    pub fn new(files: Stored, pieces: Vec<Piece>, shape: RowShape, kept: RowsKept) -> Result<Self> {
        let Some(widths) = shape.values.widths(shape.width).filter(|_| shape.width > 0) else {
            return Err(Error::Argument(format!("there are no rows of {shape:?}")));
        };
        let files = match files {
            Stored::Disk(files) => Files::Disk(OpenFiles::new(files, kept.files)),
            Stored::Remote(objects) => Files::Remote(objects),
        };
        let mut starts = vec![0];
        let mut total = 0_u64;
        for piece in &pieces {
            let last = piece.items.checked_sub(1).and_then(|last| last.checked_mul(shape.stride));
            let end = last.and_then(|last| last.checked_add(piece.start)?.checked_add(shape.width as u64));
            let holds = files.size_of(piece.file).zip(end).is_some_and(|(size, end)| end <= size);
            let sum = total.checked_add(piece.items).filter(|_| holds);
            total = sum.ok_or_else(|| Error::Argument(format!("no file holds the items of {piece:?}")))?;
            starts.push(total);
        }
        let row_bytes = widths.into_iter().sum();
        Ok(Self {
            files,
            pieces,
            starts,
            shape,
            row_bytes,
            gather: Gather::new(kept.batches),
            is_warm: AtomicBool::new(false),
        })
    }

    /// Items.
    pub fn len(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of an item as it comes.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Whether reads have to be waited for.
    pub fn is_remote(&self) -> bool {
        matches!(self.files, Files::Remote(_))
    }

    /// Whether nothing is waited for, as far as the last read tells.
    pub fn is_warm(&self) -> bool {
        self.is_warm.load(Ordering::Relaxed)
    }

    /// The bytes of the items of each of some batches, by their numbers, one behind another: an array, or one for each
    /// field.
    ///
    /// # Errors
    /// In place of a batch: [`Error::Argument`] for a number that no item has, [`Error::Data`] for a value that does not
    /// fit, [`Error::Changed`] for a file that changed, and those of reading.
    pub fn take(&self, batches: &[&[i64]], cancel: &Cancel) -> Vec<Result<Vec<Slot<u8>>>> {
        match &self.files {
            Files::Disk(files) => batches.iter().map(|numbers| self.read(files, numbers)).collect(),
            Files::Remote(objects) => self.fetch(objects, batches, cancel),
        }
    }

    /// The file of each item, and its first byte there.
    fn places(&self, numbers: &[i64]) -> Result<Vec<(usize, u64)>> {
        let find = |&number: &i64| {
            let Some(number) = u64::try_from(number).ok().filter(|&number| number < self.len()) else {
                return Err(Error::Argument(format!("there is no item {number} among {}", self.len())));
            };
            let at = self.starts.partition_point(|&start| start <= number) - 1;
            let piece = self.pieces[at];
            let start = piece.start + (number - self.starts[at]) * self.shape.stride;
            Ok((piece.file, start))
        };
        numbers.iter().map(find).collect()
    }

    fn read(&self, files: &OpenFiles, numbers: &[i64]) -> Result<Vec<Slot<u8>>> {
        let places = self.places(numbers)?;
        let mut filling = self.gather.begin(places.len(), self.shape.width, &self.shape.values)?;
        let (mut left, mut is_warm) = (&places[..], true);
        while !left.is_empty() {
            let held = files.open(left)?;
            let (some, others) = left.split_at(held.places);
            let row = |&(file, start)| (held.file(file), start);
            filling.add(&some.iter().map(row).collect::<Vec<_>>())?;
            is_warm = is_warm && held.files.iter().all(|file| file.is_warm());
            left = others;
        }
        if is_warm != self.is_warm() {
            self.is_warm.store(is_warm, Ordering::Relaxed);
        }
        Ok(filling.finish())
    }

    /// Batches whose rows are under way at the same time. One that fails takes no other with it.
    fn fetch(&self, objects: &[StoredObject], batches: &[&[i64]], cancel: &Cancel) -> Vec<Result<Vec<Slot<u8>>>> {
        let mut wanted = Vec::new();
        let find = |numbers: &&[i64]| {
            let (places, first) = (self.places(numbers)?, wanted.len());
            wanted.extend(extents(&places, self.shape.width));
            Ok(first..wanted.len())
        };
        let found: Vec<Result<_>> = batches.iter().map(find).collect();
        let mut ahead = Ahead::new(objects, &wanted);
        let mut fill = |rows: usize, own: Result<std::ops::Range<usize>>| {
            let mut filling = self.gather.begin(rows, self.shape.width, &self.shape.values)?;
            for number in own? {
                let StoredObject { store, object } = &objects[wanted[number].file];
                let stored = ahead.read(number, cancel)?;
                filling.put(&stored, || store.uri(&object.path), wanted[number].start)?;
            }
            Ok(filling.finish())
        };
        batches.iter().zip(found).map(|(numbers, own)| fill(numbers.len(), own)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::fields::{Field, Fields};
    use super::super::gather::Whole;
    use super::*;
    use crate::store::local::LocalStore;
    use crate::store::{Store, Version};
    use std::sync::Arc;

    const KEPT: RowsKept = RowsKept { batches: 1, files: 8 };

    const SHAPE: RowShape = RowShape { stride: 2, width: 3, values: Values::Stored };

    fn files(contents: &[&[u8]]) -> (tempfile::TempDir, Vec<StoredFile>) {
        let folder = tempfile::tempdir().unwrap();
        let list = |(number, bytes): (usize, &&[u8])| {
            let path = folder.path().join(number.to_string());
            std::fs::write(&path, bytes).unwrap();
            StoredFile::new(path, bytes.len() as u64, Version::Unknown)
        };
        let files = contents.iter().enumerate().map(list).collect();
        (folder, files)
    }

    /// The same files, as if they were far away.
    fn objects(contents: &[&[u8]]) -> (tempfile::TempDir, Vec<StoredObject>) {
        let (folder, _) = files(contents);
        let store: Arc<dyn Store> = Arc::new(LocalStore::new(folder.path()).unwrap());
        let list = |number: usize| {
            let object = store.head(&number.to_string(), &Cancel::new()).unwrap();
            StoredObject { store: Arc::clone(&store), object }
        };
        (folder, (0..contents.len()).map(list).collect())
    }

    fn take(rows: &StoredRows, numbers: &[i64]) -> Result<Vec<u8>> {
        let mut taken = rows.take(&[numbers], &Cancel::new());
        assert_eq!(taken.len(), 1);
        taken.remove(0).map(|arrays| arrays[0].to_vec())
    }

    #[test]
    fn items_are_found_in_the_pieces_that_they_lie_in() {
        let contents: [&[u8]; 2] = [b"abcdefg", b"0123456"];
        let (near, far) = (files(&contents), objects(&contents));
        for stored in [Stored::Disk(near.1), Stored::Remote(far.1)] {
            let pieces = [(1, 2, 2), (0, 0, 3)].map(|(file, start, items)| Piece { file, start, items });
            let rows = StoredRows::new(stored, pieces.to_vec(), SHAPE, KEPT).unwrap();
            assert_eq!(rows.len(), 5);
            assert_eq!(take(&rows, &[0, 1, 2, 3, 4]).unwrap(), b"234456abccdeefg");
            assert_eq!(take(&rows, &[4, 0]).unwrap(), b"efg234");
            for number in [-1, 5] {
                assert!(matches!(take(&rows, &[number]), Err(Error::Argument(_))));
            }
        }
    }

    #[test]
    fn a_batch_that_fails_takes_no_other_with_it() {
        let (folder, objects) = objects(&[b"abcdef", b"012345"]);
        let values = [
            (Values::Stored, 2, vec![b"01ab".to_vec()]),
            (Values::Converted(Whole::U8, Whole::U16), 2, vec![b"0\x001\x00a\0b\0".to_vec()]),
            (
                Values::Split(Fields::new(2, vec![Field { start: 1, size: 1 }, Field { start: 0, size: 2 }]).unwrap()),
                2,
                vec![b"1b".to_vec(), b"01ab".to_vec()],
            ),
        ];
        for (values, width, wanted) in values {
            let pieces = [1, 0].map(|file| Piece { file, start: 0, items: 3 });
            let shape = RowShape { stride: 2, width, values };
            let rows = StoredRows::new(Stored::Remote(objects.clone()), pieces.to_vec(), shape, KEPT).unwrap();
            let taken = rows.take(&[&[0, 3], &[7], &[0, 3]], &Cancel::new());
            assert!(matches!(taken[1], Err(Error::Argument(_))));
            for arrays in [&taken[0], &taken[2]] {
                let arrays: Vec<&[u8]> = arrays.as_ref().unwrap().iter().map(|array| &**array).collect();
                assert_eq!(arrays, wanted);
            }
            assert!(rows.is_remote());
        }
        let shape = RowShape { stride: 2, width: 2, values: Values::Converted(Whole::U8, Whole::I8) };
        std::fs::write(folder.path().join("1"), b"0123").unwrap();
        let pieces = [1, 0].map(|file| Piece { file, start: 0, items: 3 });
        let rows = StoredRows::new(Stored::Remote(objects), pieces.to_vec(), shape, KEPT).unwrap();
        let taken = rows.take(&[&[3, 0, 4], &[5]], &Cancel::new());
        assert!(matches!(taken[0], Err(Error::Changed { .. })));
        assert_eq!(&*taken[1].as_ref().unwrap()[0], b"ef");
    }

    #[test]
    fn rows_of_more_files_than_stay_open_come_in_their_order() {
        let contents: Vec<Vec<u8>> = (0..40).map(|file| vec![file; 5]).collect();
        let contents: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
        for most in [0, 1, 3, 8, 39, 40] {
            let (_folder, files) = files(&contents);
            let pieces = (0..40).map(|file| Piece { file, start: 0, items: 2 }).collect();
            let rows =
                StoredRows::new(Stored::Disk(files), pieces, SHAPE, RowsKept { batches: 1, files: most }).unwrap();
            let numbers: Vec<i64> = (0..200).map(|number| number * 37 % 80).collect();
            let wanted: Vec<u8> = numbers.iter().flat_map(|&number| [number as u8 / 2; 3]).collect();
            assert_eq!(take(&rows, &numbers).unwrap(), wanted, "{most}");
        }
    }

    #[test]
    fn pieces_that_no_file_holds_are_refused() {
        for (file, start, items) in [(0, 0, 4), (1, 0, 1), (0, u64::MAX, 1), (0, 0, u64::MAX), (0, 0, 0)] {
            let (_folder, files) = files(&[b"abcdefg"]);
            let found = StoredRows::new(Stored::Disk(files), vec![Piece { file, start, items }], SHAPE, KEPT);
            assert!(matches!(found, Err(Error::Argument(_))), "{file} {start} {items}");
        }
    }

    #[test]
    fn a_file_that_changed_is_noticed_and_one_that_was_replaced_goes_on() {
        let (folder, files) = files(&[b"abcdefg"]);
        let rows =
            StoredRows::new(Stored::Disk(files), vec![Piece { file: 0, start: 0, items: 3 }], SHAPE, KEPT).unwrap();
        assert_eq!(take(&rows, &[0]).unwrap(), b"abc");
        let path = folder.path().join("0");
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        std::fs::write(&path, b"other").unwrap();
        assert_eq!(take(&rows, &[2]).unwrap(), b"efg");
        std::fs::write(folder.path().join("old"), b"abc").unwrap();
        assert!(matches!(take(&rows, &[0]), Err(Error::Changed { .. })));
    }
}

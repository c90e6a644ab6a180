//! Items that are rows of one width in files of this machine, whatever their number: any of them is found by arithmetic.

use super::gather::{Gather, Values};
use super::memory::Slot;
use super::open_files::{OpenFiles, StoredFile};
use crate::error::{Error, Result};

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// So many open files.
    pub files: usize,
}

/// Items of pieces, laid end to end, and numbered so.
#[derive(Debug)]
pub struct StoredRows {
    files: OpenFiles,
    pieces: Vec<Piece>,
    /// The number of each piece's first item, and of all items.
    starts: Vec<u64>,
    shape: RowShape,
    row_bytes: usize,
    gather: Gather,
}

impl StoredRows {
    /// Items of `pieces` of `files`, which are opened as they are needed.
    ///
    /// # Errors
    /// [`Error::Argument`] if a file does not hold the items of a piece, or no item is of whole numbers.
    pub fn new(files: Vec<StoredFile>, pieces: Vec<Piece>, shape: RowShape, kept: RowsKept) -> Result<Self> {
        let Some(row_bytes) = shape.values.bytes_of(shape.width) else {
            return Err(Error::Argument(format!("there are no rows of {shape:?}")));
        };
        let files = OpenFiles::new(files, kept.files);
        let mut starts = vec![0];
        let mut total = 0_u64;
        for piece in &pieces {
            let last = piece.items.checked_sub(1).and_then(|last| last.checked_mul(shape.stride));
            let end = last.and_then(|last| last.checked_add(piece.start)?.checked_add(shape.width as u64));
            let holds = files.get(piece.file).zip(end).is_some_and(|(file, end)| end <= file.size);
            let sum = total.checked_add(piece.items).filter(|_| holds);
            total = sum.ok_or_else(|| Error::Argument(format!("no file holds the items of {piece:?}")))?;
            starts.push(total);
        }
        Ok(Self { files, pieces, starts, shape, row_bytes, gather: Gather::new(kept.batches) })
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

    /// The bytes of the items with some numbers, one behind another.
    ///
    /// # Errors
    /// [`Error::Argument`] for a number that no item has, [`Error::Data`] for a value that does not fit,
    /// [`Error::Changed`] for a file that changed, and those of reading.
    pub fn take(&self, numbers: &[i64]) -> Result<Slot<u8>> {
        let find = |&number: &i64| {
            let Some(number) = u64::try_from(number).ok().filter(|&number| number < self.len()) else {
                return Err(Error::Argument(format!("there is no item {number} among {}", self.len())));
            };
            let at = self.starts.partition_point(|&start| start <= number) - 1;
            let piece = self.pieces[at];
            let start = piece.start + (number - self.starts[at]) * self.shape.stride;
            Ok((piece.file, start))
        };
        let places = numbers.iter().map(find).collect::<Result<Vec<_>>>()?;
        let mut filling = self.gather.begin(places.len(), self.shape.width, self.shape.values)?;
        let mut left = &places[..];
        while !left.is_empty() {
            let (files, count) = self.first_files(left);
            let (some, others) = left.split_at(count);
            let opened = self.files.open(&files)?;
            let row = |&(file, start)| (&*opened[files.partition_point(|&other| other < file)], start);
            filling.add(&some.iter().map(row).collect::<Vec<_>>())?;
            left = others;
        }
        Ok(filling.finish())
    }

    /// The files of the first places, ascending, and how many places these are: as many as may be held at once.
    fn first_files(&self, places: &[(usize, u64)]) -> (Vec<usize>, usize) {
        let mut files = Vec::new();
        for (number, (file, _)) in places.iter().enumerate() {
            if let Err(at) = files.binary_search(file) {
                if files.len() == self.files.at_once() {
                    return (files, number);
                }
                files.insert(at, *file);
            }
        }
        (files, places.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Version;

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

    #[test]
    fn items_are_found_in_the_pieces_that_they_lie_in() {
        let (_folder, files) = files(&[b"abcdefg", b"0123456"]);
        let pieces = [(1, 2, 2), (0, 0, 3)].map(|(file, start, items)| Piece { file, start, items });
        let rows = StoredRows::new(files, pieces.to_vec(), SHAPE, KEPT).unwrap();
        assert_eq!(rows.len(), 5);
        assert_eq!(&*rows.take(&[0, 1, 2, 3, 4]).unwrap(), b"234456abccdeefg");
        assert_eq!(&*rows.take(&[4, 0]).unwrap(), b"efg234");
        for number in [-1, 5] {
            assert!(matches!(rows.take(&[number]), Err(Error::Argument(_))));
        }
    }

    #[test]
    fn rows_of_more_files_than_stay_open_come_in_their_order() {
        let contents: Vec<Vec<u8>> = (0..40).map(|file| vec![file; 5]).collect();
        let contents: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
        for most in [0, 1, 3, 8, 39, 40] {
            let (_folder, files) = files(&contents);
            let pieces = (0..40).map(|file| Piece { file, start: 0, items: 2 }).collect();
            let rows = StoredRows::new(files, pieces, SHAPE, RowsKept { batches: 1, files: most }).unwrap();
            let numbers: Vec<i64> = (0..200).map(|number| number * 37 % 80).collect();
            let wanted: Vec<u8> = numbers.iter().flat_map(|&number| [number as u8 / 2; 3]).collect();
            assert_eq!(&*rows.take(&numbers).unwrap(), wanted, "{most}");
        }
    }

    #[test]
    fn pieces_that_no_file_holds_are_refused() {
        for (file, start, items) in [(0, 0, 4), (1, 0, 1), (0, u64::MAX, 1), (0, 0, u64::MAX), (0, 0, 0)] {
            let (_folder, files) = files(&[b"abcdefg"]);
            let found = StoredRows::new(files, vec![Piece { file, start, items }], SHAPE, KEPT);
            assert!(matches!(found, Err(Error::Argument(_))), "{file} {start} {items}");
        }
    }

    #[test]
    fn a_file_that_changed_is_noticed_and_one_that_was_replaced_goes_on() {
        let (folder, files) = files(&[b"abcdefg"]);
        let rows = StoredRows::new(files, vec![Piece { file: 0, start: 0, items: 3 }], SHAPE, KEPT).unwrap();
        assert_eq!(&*rows.take(&[0]).unwrap(), b"abc");
        let path = folder.path().join("0");
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        std::fs::write(&path, b"other").unwrap();
        assert_eq!(&*rows.take(&[2]).unwrap(), b"efg");
        std::fs::write(folder.path().join("old"), b"abc").unwrap();
        assert!(matches!(rows.take(&[0]), Err(Error::Changed { .. })));
    }
}

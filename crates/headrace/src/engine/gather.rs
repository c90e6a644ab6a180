//! Rows of one width, gathered from open files: any rows in any order, into one array, or one for each field of a record.
//!
//! Several threads may gather at once. The arrays' memory is used again once nobody refers to it, as that of batches.

use std::sync::Arc;

use super::fields::Fields;
use super::memory::{Budget, Layout, Shelf, Slot, SlotMut};
use crate::error::{Error, Place, Result};
use crate::store::mapping::Guard;
use crate::store::open_file::OpenFile;

/// Whole numbers as files hold them, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whole {
    /// 8 bits.
    U8,
    /// 8 bits, signed.
    I8,
    /// 16 bits.
    U16,
    /// 16 bits, signed.
    I16,
    /// 32 bits.
    U32,
    /// 32 bits, signed.
    I32,
    /// 64 bits.
    U64,
    /// 64 bits, signed.
    I64,
}

impl Whole {
    /// Bytes of a number.
    pub fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 => 4,
            Self::U64 | Self::I64 => 8,
        }
    }
}

/// What becomes of the bytes of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Values {
    /// They stay as they are.
    Stored,
    /// They are numbers of the first kind, and become some of the second.
    Converted(Whole, Whole),
    /// They are records, and each of these fields becomes an array of its own.
    Split(Fields),
}

impl Values {
    /// Bytes of a row of `width` stored ones in each array; `None` if it is no row of such values, or too long.
    pub fn widths(&self, width: usize) -> Option<Vec<usize>> {
        match self {
            Self::Stored => Some(vec![width]),
            Self::Converted(from, _) if !width.is_multiple_of(from.size()) => None,
            Self::Converted(from, to) => (width / from.size()).checked_mul(to.size()).map(|bytes| vec![bytes]),
            Self::Split(fields) => fields.widths(width),
        }
    }
}

/// A row: which of the files, and where in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The file.
    pub file: usize,
    /// Its first byte there.
    pub start: u64,
}

/// Gathers rows, and keeps the memory of arrays that went.
#[derive(Debug)]
pub struct Gather {
    shelf: Arc<Shelf>,
}

impl Gather {
    /// Keeps the memory of at most `keep` arrays that nobody refers to.
    pub fn new(keep: usize) -> Self {
        Self { shelf: Shelf::new(&Budget::new(u64::MAX), keep) }
    }

    /// The bytes of `rows`, each `width` long as it is stored, one behind another, as `values` says: an array, or one for
    /// each field.
    ///
    /// # Errors
    /// [`Error::Argument`] for a row that no file has, [`Error::Data`] for a number that does not fit,
    /// [`Error::Changed`] for a file that changed, and those of reading.
    pub fn take(&self, files: &[Arc<OpenFile>], rows: &[Row], width: usize, values: &Values) -> Result<Vec<Slot<u8>>> {
        let find = |row: &Row| {
            let Some(file) = files.get(row.file) else {
                return Err(Error::Argument(format!("there is no file {} among {}", row.file, files.len())));
            };
            if row.start.checked_add(width as u64).is_none_or(|end| end > file.size()) {
                let (path, size) = (file.path().display(), file.size());
                return Err(Error::Argument(format!(
                    "{path}: {width} bytes at {} are not within its {size}",
                    row.start
                )));
            }
            Ok((&**file, row.start))
        };
        let places = rows.iter().map(find).collect::<Result<Vec<_>>>()?;
        let mut filling = self.begin(places.len(), width, values)?;
        filling.add(&places)?;
        Ok(filling.finish())
    }

    /// The same of so many rows that are added one after another, and lie within their files.
    pub(super) fn begin<'a>(&self, rows: usize, width: usize, values: &'a Values) -> Result<Filling<'a>> {
        let mut layout = Layout::new();
        let region = |width: usize| Some((layout.add::<u8>(width.checked_mul(rows)?), width));
        let regions: Option<Vec<_>> = values.widths(width).and_then(|widths| widths.into_iter().map(region).collect());
        let Some(regions) = regions else {
            return Err(Error::Argument(format!("{rows} rows of {width} bytes cannot be gathered")));
        };
        let Some(arena) = self.shelf.take(&layout)? else {
            return Err(Error::Internal("a budget without end has an end".to_owned()));
        };
        let arrays = regions.into_iter().map(|(region, width)| (arena.carve(region), width)).collect();
        Ok(Filling { arrays, filled: 0, width, values })
    }
}

/// Arrays that rows are gathered into, some at a time.
#[derive(Debug)]
pub(super) struct Filling<'a> {
    /// Each with the bytes of a row there.
    arrays: Vec<(SlotMut<u8>, usize)>,
    /// Rows.
    filled: usize,
    /// Bytes of a row as it is stored.
    width: usize,
    values: &'a Values,
}

impl Filling<'_> {
    /// Reads the next rows: a file and the first byte there for each.
    ///
    /// # Errors
    /// Those of [`Gather::take`]. Nothing more can be added then.
    pub(super) fn add(&mut self, rows: &[(&OpenFile, u64)]) -> Result<()> {
        let (begin, end) = (self.filled, self.filled + rows.len());
        let mut arrays = parts(&mut self.arrays, begin, end);
        let read = match self.values {
            Values::Stored => read_stored(rows, self.width, arrays[0]),
            Values::Converted(from, to) => read_converted(rows, self.width, *from, *to, arrays[0]),
            Values::Split(fields) => read_split(rows, self.width, fields, &mut arrays),
        };
        // Behind the reads, so that what was written to a file meanwhile is noticed too; it explains any other fault.
        check(rows)?;
        read?;
        self.filled = end;
        Ok(())
    }

    /// Takes in the next rows as they are stored, which were read elsewhere: from byte `start` of the file on that `name`
    /// names.
    ///
    /// # Errors
    /// [`Error::Data`] for a number that does not fit. Nothing more can be added then.
    pub(super) fn put(&mut self, stored: &[u8], name: impl Fn() -> String, start: u64) -> Result<()> {
        let (begin, end) = (self.filled, self.filled + stored.len() / self.width);
        let mut arrays = parts(&mut self.arrays, begin, end);
        match self.values {
            Values::Stored => arrays[0].copy_from_slice(stored),
            Values::Converted(from, to) => {
                convert(stored, *from, arrays[0], *to).map_err(|at| misfit(name(), start, at, stored, *from, *to))?
            }
            Values::Split(fields) => fields.split(stored, 0, &mut arrays),
        }
        self.filled = end;
        Ok(())
    }

    /// What was filled.
    pub(super) fn finish(self) -> Vec<Slot<u8>> {
        self.arrays.into_iter().map(|(array, width)| array.freeze(self.filled * width)).collect()
    }
}

/// Some rows of each array.
fn parts(arrays: &mut [(SlotMut<u8>, usize)], begin: usize, end: usize) -> Vec<&mut [u8]> {
    arrays.iter_mut().map(|(array, width)| &mut array[begin * *width..end * *width]).collect()
}

/// Stretches that are asked for before the first of them is waited for, at most: more than any disk does at once.
const ASKED: usize = 256;

/// Stretches of bytes of files, read one after another. From the first one on that is not in memory those that follow are
/// asked for at once, so that a disk has more than one to do. Files that have long been in memory are copied from there.
struct Reads<'a> {
    /// File, first byte, and bytes.
    stretches: Vec<(&'a OpenFile, u64, usize)>,
    /// Those before this one were asked for.
    asked: usize,
    /// Where some file may be copied.
    guard: Option<Guard>,
}

impl<'a> Reads<'a> {
    fn new(stretches: impl Iterator<Item = (&'a OpenFile, u64, usize)>) -> Self {
        let stretches: Vec<_> = stretches.collect();
        let guard = stretches.iter().any(|(file, ..)| file.is_warm()).then(Guard::now).flatten();
        Self { stretches, asked: 0, guard }
    }

    /// Fills `out` with the bytes of a stretch. They are read in order.
    fn read(&mut self, number: usize, out: &mut [u8]) -> Result<()> {
        let (file, start, _) = self.stretches[number];
        if let Some(guard) = self.guard.as_ref().filter(|_| file.is_warm())
            && file.copy(guard, start, out)
        {
            return Ok(());
        }
        if number >= self.asked {
            if file.read_cached(start, out) {
                return Ok(());
            }
            self.asked = self.stretches.len().min(number + ASKED);
            if number + 1 < self.asked {
                for &(file, start, bytes) in &self.stretches[number..self.asked] {
                    file.will_need(start, bytes as u64);
                }
            }
        }
        file.read_at(start, out)
    }

    /// Behind the last one: files are not copied again soon if that had to wait.
    fn end(self) {
        if self.guard.is_some_and(|guard| guard.has_waited()) {
            self.stretches.iter().for_each(|(file, ..)| file.cool());
        }
    }
}

/// Rows as stretches of bytes: those that lie one behind another are one.
fn stretches<'a>(rows: &[(&'a OpenFile, u64)], width: usize) -> impl Iterator<Item = (&'a OpenFile, u64, usize)> {
    let follow = move |one: &(&OpenFile, u64), next: &(&OpenFile, u64)| {
        std::ptr::eq(one.0, next.0) && one.1 + width as u64 == next.1
    };
    rows.chunk_by(follow).map(move |run| (run[0].0, run[0].1, run.len() * width))
}

fn read_stored(rows: &[(&OpenFile, u64)], width: usize, mut out: &mut [u8]) -> Result<()> {
    let mut reads = Reads::new(stretches(rows, width));
    for number in 0..reads.stretches.len() {
        let here;
        (here, out) = out.split_at_mut(reads.stretches[number].2);
        reads.read(number, here)?;
    }
    reads.end();
    Ok(())
}

/// Bytes of records that are read before they are split: what stays in a core's own cache until then.
const SPLIT_BYTES: usize = 64 << 10;

fn read_split(rows: &[(&OpenFile, u64)], width: usize, fields: &Fields, arrays: &mut [&mut [u8]]) -> Result<()> {
    let most = (SPLIT_BYTES / fields.record()).max(1) * fields.record();
    let blocks = stretches(rows, width).flat_map(|(file, start, bytes)| {
        (0..bytes).step_by(most).map(move |at| (file, start + at as u64, most.min(bytes - at)))
    });
    let mut reads = Reads::new(blocks);
    let (mut stored, mut first) = (vec![0; most], 0);
    for number in 0..reads.stretches.len() {
        let here = &mut stored[..reads.stretches[number].2];
        reads.read(number, here)?;
        fields.split(here, first, arrays);
        first += here.len() / fields.record();
    }
    reads.end();
    Ok(())
}

fn read_converted(rows: &[(&OpenFile, u64)], width: usize, from: Whole, to: Whole, out: &mut [u8]) -> Result<()> {
    let out_width = width / from.size() * to.size();
    let mut reads = Reads::new(rows.iter().map(|&(file, start)| (file, start, width)));
    let mut stored = vec![0; width];
    for (number, out) in out.chunks_exact_mut(out_width.max(1)).enumerate() {
        reads.read(number, &mut stored)?;
        let (file, start) = rows[number];
        convert(&stored, from, out, to)
            .map_err(|at| misfit(file.path().display().to_string(), start, at, &stored, from, to))?;
    }
    reads.end();
    Ok(())
}

/// Refuses files that changed: each once, however many rows lie in it.
fn check(rows: &[(&OpenFile, u64)]) -> Result<()> {
    let mut files: Vec<&OpenFile> = rows.iter().map(|&(file, _)| file).collect();
    files.dedup_by(|one, other| std::ptr::eq(*one, *other));
    files.sort_unstable_by_key(|&file| std::ptr::from_ref(file).addr());
    files.dedup_by(|one, other| std::ptr::eq(*one, *other));
    files.into_iter().try_for_each(OpenFile::check)
}

fn misfit(name: String, start: u64, at: usize, stored: &[u8], from: Whole, to: Whole) -> Error {
    let size = from.size();
    let mut bytes = [0; 8];
    bytes[..size].copy_from_slice(&stored[at * size..(at + 1) * size]);
    // Signed numbers of less than 64 bits always fit.
    let found = match from {
        Whole::I64 => i64::from_le_bytes(bytes).to_string(),
        _ => u64::from_le_bytes(bytes).to_string(),
    };
    let place = Place::file(name);
    let at = start + (at * size) as u64;
    Error::data(place, format!("expected numbers that fit into {to:?}, found {found} at byte {at}"))
}

/// Numbers of one kind as another; the place of the first that does not fit.
fn convert(stored: &[u8], from: Whole, out: &mut [u8], to: Whole) -> Result<(), usize> {
    /// One kind to another: `stored` and `out` hold equally many numbers.
    macro_rules! loop_over {
        ($from:ty, $to:ty) => {{
            let numbers = stored.chunks_exact(size_of::<$from>()).zip(out.chunks_exact_mut(size_of::<$to>()));
            let mut fits = true;
            for (stored, out) in numbers {
                let mut bytes = [0; size_of::<$from>()];
                bytes.copy_from_slice(stored);
                let number = <$from>::from_le_bytes(bytes);
                // Without a way out of the loop, so that many are done at once.
                fits &= <$to>::try_from(number).is_ok();
                out.copy_from_slice(&(number as $to).to_le_bytes());
            }
            if fits {
                return Ok(());
            }
            let mut numbers = stored.chunks_exact(size_of::<$from>()).map(|stored| {
                let mut bytes = [0; size_of::<$from>()];
                bytes.copy_from_slice(stored);
                <$from>::from_le_bytes(bytes)
            });
            Err(numbers.position(|number| <$to>::try_from(number).is_err()).unwrap_or(0))
        }};
    }
    macro_rules! from_any {
        ($to:ty) => {
            match from {
                Whole::U8 => loop_over!(u8, $to),
                Whole::I8 => loop_over!(i8, $to),
                Whole::U16 => loop_over!(u16, $to),
                Whole::I16 => loop_over!(i16, $to),
                Whole::U32 => loop_over!(u32, $to),
                Whole::I32 => loop_over!(i32, $to),
                Whole::U64 => loop_over!(u64, $to),
                Whole::I64 => loop_over!(i64, $to),
            }
        };
    }
    match to {
        Whole::I32 => from_any!(i32),
        Whole::I64 => from_any!(i64),
        Whole::U8 => from_any!(u8),
        Whole::I8 => from_any!(i8),
        Whole::U16 => from_any!(u16),
        Whole::I16 => from_any!(i16),
        Whole::U32 => from_any!(u32),
        Whole::U64 => from_any!(u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Version;
    use proptest::prelude::*;

    fn file(bytes: &[u8]) -> (tempfile::TempDir, Arc<OpenFile>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records.bin");
        std::fs::write(&path, bytes).unwrap();
        let opened = OpenFile::open(&path, bytes.len() as u64, &Version::Unknown).unwrap();
        (folder, Arc::new(opened))
    }

    #[test]
    fn rows_come_in_the_order_asked_for_and_memory_is_used_again() {
        let (_kept, one) = file(b"abcdefgh");
        let (_too, two) = file(b"01234567");
        let gather = Gather::new(2);
        let rows = [(1, 6), (0, 0), (0, 5), (1, 0)].map(|(file, start)| Row { file, start });
        let files = [one, two];
        let slot = gather.take(&files, &rows, 2, &Values::Stored).unwrap();
        assert_eq!(&*slot[0], b"67abfg01");
        let before = slot[0].as_ptr();
        drop(slot);
        assert_eq!(gather.take(&files, &rows[..3], 2, &Values::Stored).unwrap()[0].as_ptr(), before);
        assert_eq!(gather.take(&files, &[], 2, &Values::Stored).unwrap()[0].len(), 0);
        assert_eq!(gather.take(&files, &rows, 0, &Values::Stored).unwrap()[0].len(), 0);
    }

    #[test]
    fn what_is_not_in_memory_is_read_from_the_disk() {
        let bytes: Vec<u8> = (0..600_000_u32).flat_map(u32::to_le_bytes).collect();
        let (_kept, opened) = file(&bytes);
        // Written out first: what is not on the disk stays in memory.
        std::fs::File::open(opened.path()).unwrap().sync_all().unwrap();
        let gather = Gather::new(1);
        let rows: Vec<Row> = (0..500).map(|row| Row { file: 0, start: row * 37 % 500 * 4800 }).collect();
        for values in [Values::Stored, Values::Converted(Whole::U32, Whole::I64)] {
            opened.forget();
            let slot = gather.take(&[Arc::clone(&opened)], &rows, 40, &values).unwrap().remove(0);
            let size = slot.len() / rows.len() / 10;
            for (row, found) in rows.iter().zip(slot.chunks_exact(10 * size)) {
                let numbers = (row.start / 4..).take(10).flat_map(|number| number.to_le_bytes()[..size].to_vec());
                assert_eq!(found, numbers.collect::<Vec<u8>>());
            }
        }
    }

    #[test]
    fn rows_outside_of_a_file_and_files_that_changed_are_refused() {
        let (folder, opened) = file(&[7; 8]);
        let gather = Gather::new(1);
        let at = |file, start| [Row { file, start }];
        for (row, width) in [(at(0, 7), 2), (at(1, 0), 2), (at(0, u64::MAX), 2), (at(0, 0), usize::MAX)] {
            assert!(matches!(
                gather.take(&[Arc::clone(&opened)], &row, width, &Values::Stored),
                Err(Error::Argument(_))
            ));
        }
        std::fs::write(folder.path().join("records.bin"), b"short").unwrap();
        let found = gather.take(&[Arc::clone(&opened)], &at(0, 0), 2, &Values::Stored);
        assert!(matches!(found, Err(Error::Changed { .. })), "{found:?}");
        assert!(OpenFile::open(opened.path(), 8, &Version::Unknown).is_err());
    }

    #[test]
    fn a_number_that_does_not_fit_is_named() {
        let bytes: Vec<u8> = [5_u32, 3_000_000_000].iter().flat_map(|number| number.to_le_bytes()).collect();
        let (_folder, opened) = file(&bytes);
        let values = Values::Converted(Whole::U32, Whole::I32);
        let error = Gather::new(1).take(&[opened], &[Row { file: 0, start: 0 }], 8, &values).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("3000000000 at byte 4") && message.contains("I32"), "{message}");
    }

    proptest! {
        #[test]
        fn numbers_are_converted_as_rust_does(numbers in prop::collection::vec(any::<u16>(), 1..70), wide: bool) {
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            let (_folder, opened) = file(&bytes);
            let to = if wide { Whole::I64 } else { Whole::I32 };
            let rows = [Row { file: 0, start: 0 }];
            let found = Gather::new(1).take(&[opened], &rows, bytes.len(), &Values::Converted(Whole::U16, to));
            let wanted: Vec<u8> = if wide {
                numbers.iter().flat_map(|&number| i64::from(number).to_le_bytes()).collect()
            } else {
                numbers.iter().flat_map(|&number| i32::from(number).to_le_bytes()).collect()
            };
            prop_assert_eq!(&*found.unwrap()[0], &wanted[..]);
        }
    }
}

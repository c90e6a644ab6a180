//! Records of several fields, and an array for each field that is wanted.

use crate::error::{Error, Result};

/// A part of each record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Its first byte in a record.
    pub start: usize,
    /// Bytes.
    pub size: usize,
}

/// Records of one width, and what of them becomes arrays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields {
    record: usize,
    fields: Vec<Field>,
}

impl Fields {
    /// Some fields of records of so many bytes. They may overlap.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is none, or one is empty or does not lie within a record.
    pub fn new(record: usize, fields: Vec<Field>) -> Result<Self> {
        let holds =
            |field: &Field| field.size > 0 && field.start.checked_add(field.size).is_some_and(|end| end <= record);
        if fields.is_empty() || !fields.iter().all(holds) {
            return Err(Error::Argument(format!("expected fields within records of {record} bytes, got {fields:?}")));
        }
        Ok(Self { record, fields })
    }

    /// Bytes of a record.
    pub(super) fn record(&self) -> usize {
        self.record
    }

    /// Bytes of each field's array for `width` bytes of records; `None` if these are no whole records.
    pub(super) fn widths(&self, width: usize) -> Option<Vec<usize>> {
        let records = width / self.record;
        (records * self.record == width).then(|| self.fields.iter().map(|field| records * field.size).collect())
    }

    /// Writes the fields of whole records to their arrays, from record number `first` of these on.
    pub(super) fn split(&self, stored: &[u8], first: usize, arrays: &mut [&mut [u8]]) {
        let records = stored.len() / self.record;
        for (field, array) in self.fields.iter().zip(arrays) {
            let array = &mut array[first * field.size..(first + records) * field.size];
            match field.size {
                1 => self.copy::<1>(stored, field.start, array),
                2 => self.copy::<2>(stored, field.start, array),
                4 => self.copy::<4>(stored, field.start, array),
                8 => self.copy::<8>(stored, field.start, array),
                16 => self.copy::<16>(stored, field.start, array),
                size => {
                    for (record, out) in stored.chunks_exact(self.record).zip(array.chunks_exact_mut(size)) {
                        out.copy_from_slice(&record[field.start..field.start + size]);
                    }
                }
            }
        }
    }

    /// Copies `SIZE` bytes of each record, from byte `start` of it on: a move or two, as the size is known.
    fn copy<const SIZE: usize>(&self, stored: &[u8], start: usize, array: &mut [u8]) {
        for (record, out) in stored.chunks_exact(self.record).zip(array.as_chunks_mut::<SIZE>().0) {
            out.copy_from_slice(&record[start..start + SIZE]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn field(start: usize, size: usize) -> Field {
        Field { start, size }
    }

    proptest! {
        #[test]
        fn each_array_has_its_part_of_each_record(
            stored in prop::collection::vec(any::<u8>(), 0..700),
            parts in prop::collection::vec((0_usize..20, 1_usize..18), 1..5),
            first in 0_usize..3,
        ) {
            let record = parts.iter().map(|&(start, size)| start + size).max().unwrap();
            let stored = &stored[..stored.len() / record * record];
            let records = stored.len() / record;
            let fields = Fields::new(record, parts.iter().map(|&(start, size)| field(start, size)).collect()).unwrap();
            let mut arrays: Vec<Vec<u8>> = parts.iter().map(|&(_, size)| vec![7; (first + records) * size]).collect();
            let mut outs: Vec<&mut [u8]> = arrays.iter_mut().map(Vec::as_mut_slice).collect();
            fields.split(stored, first, &mut outs);
            for (&(start, size), array) in parts.iter().zip(&arrays) {
                let mut wanted = vec![7; first * size];
                wanted.extend(stored.chunks(record).flat_map(|record| &record[start..start + size]));
                prop_assert_eq!(array, &wanted);
            }
            let widths: Vec<usize> = parts.iter().map(|&(_, size)| records * size).collect();
            prop_assert_eq!(fields.widths(stored.len()), Some(widths));
            prop_assert!(record == 1 || fields.widths(stored.len() + 1).is_none());
        }
    }

    #[test]
    fn fields_that_no_record_holds_are_refused() {
        for fields in [vec![], vec![field(0, 0)], vec![field(0, 4), field(3, 3)], vec![field(usize::MAX, 2)]] {
            assert!(matches!(Fields::new(5, fields), Err(Error::Argument(_))));
        }
        assert!(Fields::new(0, vec![]).is_err());
    }
}

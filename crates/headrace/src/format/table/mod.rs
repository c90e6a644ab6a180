//! Tables: all columns of a chunk as Arrow arrays, for samples of any schema.
//!
//! [`row_group`] reads row groups of Parquet files, [`ipc`] the batches of Arrow files and streams. Both say which bytes
//! they need, and are handed them. Token columns that are packed have a faster way, see [`super::parquet`].

mod hidden;
pub mod ipc;
pub mod row_group;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;

use crate::error::{Error, Place, Result};

/// The rows of a chunk.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Its columns.
    pub schema: SchemaRef,
    /// Its rows, part by part; each but the last has [`Self::part_rows`] of them.
    batches: Vec<RecordBatch>,
    part_rows: usize,
}

impl Table {
    /// A table of parts that have `part_rows` rows each, the last at most as many.
    fn new(schema: SchemaRef, batches: Vec<RecordBatch>, part_rows: usize) -> Self {
        debug_assert!(batches.iter().rev().skip(1).all(|batch| batch.num_rows() == part_rows));
        Self { schema, batches, part_rows: part_rows.max(1) }
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// Its parts.
    pub fn parts(&self) -> &[RecordBatch] {
        &self.batches
    }

    /// In which part a row lies, and which row of the part it is.
    pub fn locate(&self, row: usize) -> (usize, usize) {
        (row / self.part_rows, row % self.part_rows)
    }

    /// Bytes of memory that its columns hold; what several share counts once.
    pub fn bytes(&self) -> usize {
        let mut seen = BTreeSet::new();
        self.batches.iter().flat_map(RecordBatch::columns).map(|column| held(column, &mut seen)).sum()
    }

    /// All rows in one part, copied if there are several.
    pub fn whole(&self) -> Result<RecordBatch> {
        match &self.batches[..] {
            [batch] => Ok(batch.clone()),
            batches => concat_batches(&self.schema, batches).map_err(|error| Error::Internal(error.to_string())),
        }
    }
}

fn held(column: &ArrayRef, seen: &mut BTreeSet<usize>) -> usize {
    let mut waiting = vec![column.to_data()];
    let mut bytes = 0;
    while let Some(data) = waiting.pop() {
        for buffer in data.buffers().iter().chain(data.nulls().map(|nulls| nulls.buffer())) {
            if seen.insert(buffer.as_ptr() as usize) {
                bytes += buffer.len();
            }
        }
        waiting.extend(data.child_data().iter().cloned());
    }
    bytes
}

/// Runs what may panic at bytes that no writer makes: a library that is used below.
fn guarded<T>(place: &Place, expected: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    // After a panic nothing is used but the message.
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Error::data(place.clone(), format!("expected {expected}, found bytes that are none"))))
}

/// The places of the chosen columns among `names`, in the order of the file.
///
/// # Errors
/// [`Error::Data`] at `place` for a name that is not there, or is there twice; [`Error::Argument`] for none at all.
fn choose(names: &[&str], columns: Option<&[String]>, place: &Place) -> Result<Vec<usize>> {
    let chosen: Vec<usize> = match columns {
        None => (0..names.len()).collect(),
        Some([]) => return Err(Error::Argument("no column was chosen: expected at least one".to_owned())),
        Some(columns) => {
            if let Some(missing) = columns.iter().find(|column| !names.contains(&column.as_str())) {
                let all = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                let what =
                    format!("expected a column {missing:?}, found none of that name\nhint: the columns are: {all}");
                return Err(Error::data(place.clone(), what));
            }
            (0..names.len()).filter(|&number| columns.iter().any(|column| column == names[number])).collect()
        }
    };
    let mut seen = BTreeSet::new();
    match chosen.iter().find(|&&number| !seen.insert(names[number])) {
        None => Ok(chosen),
        Some(&twice) => Err(Error::data(place.clone().in_column(names[twice]), "expected one column, found several")),
    }
}

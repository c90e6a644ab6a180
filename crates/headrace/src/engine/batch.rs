//! What is handed to the training loop.

use std::sync::Arc;

use arrow::array::ArrayData;
use arrow::datatypes::{DataType, Field};
use arrow::error::ArrowError;

use super::memory::{Arena, Layout, Slot};
use crate::error::{Error, Result};
use crate::pack::{Masked, Span};

/// The numbers of an array.
#[derive(Debug, Clone)]
pub enum Numbers {
    /// 32-bit signed integers.
    I32(Slot<i32>),
    /// 64-bit signed integers.
    I64(Slot<i64>),
    /// Bytes, for masks of 0 and 1.
    U8(Slot<u8>),
}

/// One array of a batch, in C order.
#[derive(Debug, Clone)]
pub struct Array {
    /// What it holds.
    pub kind: ArrayKind,
    /// Its numbers.
    pub numbers: Numbers,
    /// Numbers in a row; `None` for an array of one dimension whose length is its own.
    pub width: Option<usize>,
}

/// What an array of a batch holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrayKind {
    /// The tokens, (rows, L + o).
    Tokens,
    /// Which part of its row a token belongs to, (rows, L + o).
    DocumentIds,
    /// The token's place in that part, (rows, L + o).
    PositionIds,
    /// 1 for tokens, 0 for padding, (rows, L + o).
    LossMask,
    /// Cumulative lengths of the parts, each row cut to L; one dimension.
    CuSeqlens,
    /// Of a mixture the number of the source of each row, (rows,).
    Source,
}

/// One rank's part of a global batch.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The step.
    pub step: u64,
    /// The epoch of the global batch's first row.
    pub epoch: u64,
    /// The rows, by their number in the run.
    pub rows: Vec<u64>,
    /// The arrays.
    pub arrays: Vec<Array>,
    /// With boundaries: the longest part that `cu_seqlens` counts.
    pub max_seqlen: Option<i32>,
    /// Where the rows come from, one after another.
    pub spans: Vec<Span>,
    /// How many of `spans` lie before the end of each row.
    pub span_ends: Vec<u32>,
    /// Of a mixture: the source that each row is of. `arrays` have it too, but whoever gets those may write to them.
    pub owners: Vec<u32>,
}

impl Batch {
    /// Where a row of this batch comes from.
    pub fn sources(&self, row: usize) -> &[Span] {
        let start = if row == 0 { 0 } else { self.span_ends[row - 1] };
        &self.spans[start as usize..self.span_ends[row] as usize]
    }

    /// The number of the source that a row is of; 0 but in a mixture.
    pub fn source(&self, row: usize) -> usize {
        self.owners.get(row).map_or(0, |&source| source as usize)
    }

    /// The same batch with a mask in which the tokens of some documents are 0, whatever was masked before; `documents`
    /// are those of each source of a mixture, or of the one dataset.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no memory for it.
    pub fn masked(&self, documents: &[Masked]) -> Result<Self> {
        let tokens = self.arrays.iter().find(|array| array.kind == ArrayKind::Tokens);
        let Some(width) = tokens.and_then(|array| array.width) else { return Ok(self.clone()) };
        let mut layout = Layout::new();
        let region = layout.add::<u8>(self.rows.len() * width);
        let mut mask = Arena::small(&layout)?.carve(region);
        let old = self.arrays.iter().position(|array| array.kind == ArrayKind::LossMask);
        match old.map(|at| &self.arrays[at].numbers) {
            Some(Numbers::U8(old)) => mask.copy_from_slice(old),
            _ => mask.fill(1),
        }
        for (row, places) in mask.chunks_exact_mut(width).enumerate() {
            if let Some(documents) = documents.get(self.source(row)) {
                documents.write(self.sources(row), self.step, places);
            }
        }
        let numbers = Numbers::U8(mask.freeze(self.rows.len() * width));
        let array = Array { kind: ArrayKind::LossMask, numbers, width: Some(width) };
        let mut batch = self.clone();
        match old {
            Some(at) => batch.arrays[at] = array,
            None => batch.arrays.push(array),
        }
        Ok(batch)
    }

    /// The arrays that have one entry a row, as one struct array over the same memory; `name` names its fields.
    ///
    /// # Errors
    /// [`Error::Internal`] if Arrow refuses them.
    pub fn to_arrow(&self, name: &dyn Fn(ArrayKind) -> String) -> Result<ArrayData> {
        let (mut fields, mut children) = (Vec::new(), Vec::new());
        for array in &self.arrays {
            let (kind, buffer, len) = match &array.numbers {
                Numbers::I32(numbers) => (DataType::Int32, numbers.to_arrow(), numbers.len()),
                Numbers::I64(numbers) => (DataType::Int64, numbers.to_arrow(), numbers.len()),
                Numbers::U8(numbers) => (DataType::UInt8, numbers.to_arrow(), numbers.len()),
            };
            let values = ArrayData::builder(kind.clone()).len(len).add_buffer(buffer);
            let Some(width) = array.width else {
                // Lengths have no entry a row.
                if array.kind == ArrayKind::Source {
                    children.push(values.build().map_err(refused)?);
                    fields.push(Field::new(name(array.kind), kind, false));
                }
                continue;
            };
            let item = Arc::new(Field::new("item", kind, false));
            let list = DataType::FixedSizeList(item, width as i32);
            let list_data = ArrayData::builder(list.clone()).len(self.rows.len());
            children.push(list_data.add_child_data(values.build().map_err(refused)?).build().map_err(refused)?);
            fields.push(Field::new(name(array.kind), list, false));
        }
        let data = ArrayData::builder(DataType::Struct(fields.into())).len(self.rows.len());
        data.child_data(children).build().map_err(refused)
    }

    /// Bytes of all arrays.
    pub fn bytes(&self) -> usize {
        let bytes = |array: &Array| match &array.numbers {
            Numbers::I32(numbers) => 4 * numbers.len(),
            Numbers::I64(numbers) => 8 * numbers.len(),
            Numbers::U8(numbers) => numbers.len(),
        };
        self.arrays.iter().map(bytes).sum()
    }
}

#[allow(clippy::needless_pass_by_value, reason = "used as a function to map errors with")]
fn refused(error: ArrowError) -> Error {
    Error::Internal(error.to_string())
}

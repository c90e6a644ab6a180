//! Columns of some rows of several chunks at once: what a batch is when no function looks at single samples.

use arrow::array::cast::AsArray;
use arrow::array::{Array, ArrayRef};
use arrow::compute::interleave;
use arrow::datatypes::DataType;
use pyo3::exceptions::{PyIndexError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyDict, PyList};

use crate::buffer::numbers;
use crate::rows::Rows;
use crate::values::{Column, Raw, bool_dtype, booleans, from_buffer, reshaped};

/// The columns of some rows: row `rows[n]` of chunk `which[n]` for each n, both buffers of 64-bit numbers.
///
/// Numbers and booleans are arrays of their stored type, lists of numbers that are equally long are arrays of two
/// dimensions, both if none is null; all other columns are lists of values. `None` if the chunks' columns differ.
#[pyfunction]
pub(crate) fn gather<'py>(
    py: Python<'py>,
    chunks: Vec<PyRef<'py, Rows>>,
    which: &Bound<'py, PyAny>,
    rows: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    let columns = PyDict::new(py);
    let Some(first) = chunks.first() else { return Ok(Some(columns)) };
    let kinds = |rows: &Rows| -> Vec<(String, DataType)> {
        let fields = rows.table.schema.fields().iter();
        fields.map(|field| (field.name().clone(), field.data_type().clone())).collect()
    };
    let wanted = kinds(first);
    if chunks[1..].iter().any(|chunk| kinds(chunk) != wanted) {
        return Ok(None);
    }
    // Parts of all chunks, one after another.
    let firsts: Vec<usize> =
        chunks.iter().scan(0, |next, chunk| Some(std::mem::replace(next, *next + chunk.table.parts().len()))).collect();
    let mut places = Vec::new();
    for (chunk, row) in numbers(which)?.into_iter().zip(numbers(rows)?) {
        let found = usize::try_from(chunk).ok().and_then(|chunk| Some((chunks.get(chunk)?, firsts[chunk])));
        match (found, usize::try_from(row)) {
            (Some((chunk, first)), Ok(row)) if row < chunk.table.rows() => {
                let (part, at) = chunk.table.locate(row);
                places.push((first + part, at));
            }
            _ => return Err(PyIndexError::new_err(format!("there is no row {row} in chunk {chunk}"))),
        }
    }
    for (number, (name, _)) in wanted.iter().enumerate() {
        let parts: Vec<ArrayRef> = chunks
            .iter()
            .flat_map(|chunk| chunk.table.parts().iter().map(|part| part.column(number).clone()))
            .collect();
        let column = py.detach(|| {
            let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
            interleave(&parts, &places)
        });
        let column = column.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        let value = match array(py, &column)? {
            Some(array) => array,
            None => list(py, &column)?.into_any(),
        };
        columns.set_item(name, value)?;
    }
    Ok(Some(columns))
}

/// A column as an array with its own memory, if it is one.
fn array<'py>(py: Python<'py>, column: &ArrayRef) -> PyResult<Option<Bound<'py, PyAny>>> {
    if column.null_count() > 0 {
        return Ok(None);
    }
    let (values, start, width) = match column.data_type() {
        DataType::Boolean => {
            let bytes = PyByteArray::new(py, &booleans(column.as_ref()));
            return from_buffer(py, bytes, &bool_dtype(py)?).map(Some);
        }
        DataType::List(_) => {
            let lists = column.as_list::<i32>();
            let Some((start, width)) = equal(lists.value_offsets()) else { return Ok(None) };
            (lists.values().clone(), start, width)
        }
        DataType::LargeList(_) => {
            let lists = column.as_list::<i64>();
            let Some((start, width)) = equal(lists.value_offsets()) else { return Ok(None) };
            (lists.values().clone(), start, width)
        }
        DataType::FixedSizeList(_, width) => {
            let lists = column.as_fixed_size_list();
            (lists.values().clone(), 0, *width as usize)
        }
        _ => {
            let Some(raw) = Raw::new(py, column.as_ref())? else { return Ok(None) };
            return raw.copy(py, 0, column.len());
        }
    };
    if width == 0 || values.len() < start + column.len() * width {
        return Ok(None);
    }
    let Some(raw) = Raw::new(py, values.as_ref())? else { return Ok(None) };
    let Some(flat) = raw.copy(py, start, column.len() * width)? else { return Ok(None) };
    reshaped(&flat, column.len(), width).map(Some)
}

/// Where the first of some lists begins, and how long each is, if they are equally long.
fn equal<O: arrow::array::OffsetSizeTrait>(offsets: &[O]) -> Option<(usize, usize)> {
    let mut lengths = offsets.windows(2).map(|pair| (pair[1] - pair[0]).as_usize());
    let width = lengths.next()?;
    lengths.all(|length| length == width).then_some((offsets[0].as_usize(), width))
}

fn list<'py>(py: Python<'py>, column: &ArrayRef) -> PyResult<Bound<'py, PyList>> {
    let values = Column::new(py, column)?;
    let list = PyList::empty(py);
    for at in 0..column.len() {
        list.append(values.get(py, at)?)?;
    }
    Ok(list)
}

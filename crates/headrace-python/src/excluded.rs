//! Documents whose tokens do not count for the loss.

use headrace::pack;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::buffer::numbers;

/// Documents of each source of a mixture, or of one dataset, which batches mask.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct Masked(pub(crate) Vec<pack::Masked>);

#[pymethods]
impl Masked {
    /// For each source three arrays of 64-bit numbers: row groups by their number in the index, rows in them, and the
    /// step from which on each is masked.
    #[new]
    fn new(documents: Vec<[Bound<'_, PyAny>; 3]>) -> PyResult<Self> {
        documents.iter().map(of_source).collect::<PyResult<_>>().map(Self)
    }
}

fn of_source([chunks, rows, steps]: &[Bound<'_, PyAny>; 3]) -> PyResult<pack::Masked> {
    let (rows, steps) = (numbers(rows)?, numbers(steps)?);
    let places = documents(&numbers(chunks)?, &rows)?;
    if steps.len() != places.len() {
        return Err(PyValueError::new_err(format!("{} steps for {} documents", steps.len(), places.len())));
    }
    let steps = steps.into_iter().map(u64::try_from).collect::<Result<Vec<_>, _>>();
    let steps = steps.map_err(|_| PyValueError::new_err("a step is negative"))?;
    Ok(pack::Masked::new(places.into_iter().zip(steps).map(|((chunk, row), step)| (chunk, row, step)).collect()))
}

/// Row groups and rows, side by side.
pub(crate) fn documents(chunks: &[i64], rows: &[i64]) -> PyResult<Vec<(u32, u32)>> {
    if chunks.len() != rows.len() {
        return Err(PyValueError::new_err(format!("{} row groups for {} rows", chunks.len(), rows.len())));
    }
    let place = |(&chunk, &row): (&i64, &i64)| Some((u32::try_from(chunk).ok()?, u32::try_from(row).ok()?));
    let places: Option<Vec<_>> = chunks.iter().zip(rows).map(place).collect();
    places.ok_or_else(|| PyValueError::new_err("a row group or row is not in 0..2^32"))
}

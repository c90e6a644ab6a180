//! Decompression, detached from the interpreter.

use std::sync::{Mutex, PoisonError};

use headrace::error::Place;
use headrace::format::compress::{self, Codec};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::{Buffer, View};
use crate::errors::to_python;

fn place(name: Option<String>) -> Place {
    Place::file(name.unwrap_or_else(|| "compressed data".to_owned()))
}

/// Decompresses all of `data`: to exactly `size` bytes if that is given, and never to more than `most`.
///
/// Raises DataError that names `name` for anything else.
#[pyfunction]
#[pyo3(signature = (codec, data, *, size, most, name = None))]
pub(crate) fn decompress(
    py: Python<'_>,
    codec: &str,
    data: &Bound<'_, PyAny>,
    size: Option<u64>,
    most: u64,
    name: Option<String>,
) -> PyResult<Buffer> {
    let codec = Codec::named(codec).map_err(to_python)?;
    let (view, place) = (View::new(data)?, place(name));
    let made = py.detach(|| compress::decompress(codec, view.bytes(), size, most, &place));
    made.map(Buffer::bytes).map_err(to_python)
}

/// Decompresses data that comes piece by piece.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct Decompressor(Mutex<compress::Decompressor>);

#[pymethods]
impl Decompressor {
    #[new]
    #[pyo3(signature = (codec, *, name = None))]
    fn new(codec: &str, name: Option<String>) -> PyResult<Self> {
        let codec = Codec::named(codec).map_err(to_python)?;
        compress::Decompressor::new(codec, place(name)).map(|made| Self(Mutex::new(made))).map_err(to_python)
    }

    /// What the next bytes make.
    fn feed<'py>(&self, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let (py, view) = (data.py(), View::new(data)?);
        let made = py.detach(|| self.0.lock().unwrap_or_else(PoisonError::into_inner).feed(view.bytes()));
        Ok(PyBytes::new(py, &made.map_err(to_python)?))
    }

    /// Raises DataError unless the data has come to its end.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.lock().unwrap_or_else(PoisonError::into_inner).finish()).map_err(to_python)
    }
}

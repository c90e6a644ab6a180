//! Batches and their memory, handed to Python without a copy.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use headrace::engine::{self, Array, ArrayKind, Numbers};
use headrace::pack::Span;
use pyo3::exceptions::{PyBufferError, PyRuntimeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// (file, row group, row in the row group, first token, tokens).
pub(crate) type SourceTuple = (String, u32, u32, u64, u32);

/// Spans as Python shows them.
pub(crate) fn source_tuples(run: &engine::Run, spans: &[Span]) -> Vec<SourceTuple> {
    let source = |span: &Span| {
        let place = run.place(span.chunk);
        (place.uri, place.row_group.unwrap_or(0), span.row, span.first, span.tokens)
    };
    spans.iter().map(source).collect()
}

/// One rank's part of a global batch.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct Batch {
    batch: engine::Batch,
    run: Arc<engine::Run>,
}

impl Batch {
    pub(crate) fn new(batch: engine::Batch, run: Arc<engine::Run>) -> Self {
        Self { batch, run }
    }
}

#[pymethods]
impl Batch {
    #[getter]
    fn step(&self) -> u64 {
        self.batch.step
    }

    #[getter]
    fn epoch(&self) -> u64 {
        self.batch.epoch
    }

    /// The rows' numbers in the run.
    #[getter]
    fn rows(&self) -> Vec<u64> {
        self.batch.rows.clone()
    }

    /// The longest part that `cu_seqlens` counts, with boundaries.
    #[getter]
    fn max_seqlen(&self) -> Option<i32> {
        self.batch.max_seqlen
    }

    /// (name, memory) of each array.
    fn arrays(&self) -> Vec<(&'static str, Buffer)> {
        self.batch.arrays.iter().map(|array| (name(array.kind), Buffer::new(array.clone()))).collect()
    }

    /// For each row, where its parts come from.
    fn sources(&self) -> Vec<Vec<SourceTuple>> {
        (0..self.batch.rows.len()).map(|row| source_tuples(&self.run, self.batch.sources(row))).collect()
    }

    /// The arrays of one entry a row, under the given names, as a struct array by the Arrow PyCapsule interface.
    fn arrow_c_array<'py>(
        &self,
        py: Python<'py>,
        names: Vec<(String, String)>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        let rename = |kind| {
            let own = name(kind);
            names.iter().find(|(from, _)| from == own).map_or_else(|| own.to_owned(), |(_, to)| to.clone())
        };
        let failed = |error: arrow::error::ArrowError| PyRuntimeError::new_err(error.to_string());
        let data = self.batch.to_arrow(&rename).map_err(crate::errors::to_python)?;
        let (array, schema) = arrow::ffi::to_ffi(&data).map_err(failed)?;
        Ok((schema_capsule(py, schema)?, array_capsule(py, array)?))
    }
}

pub(crate) fn schema_capsule(py: Python<'_>, schema: FFI_ArrowSchema) -> PyResult<Bound<'_, PyCapsule>> {
    PyCapsule::new_with_value(py, schema, c"arrow_schema")
}

fn array_capsule(py: Python<'_>, array: FFI_ArrowArray) -> PyResult<Bound<'_, PyCapsule>> {
    PyCapsule::new_with_value(py, array, c"arrow_array")
}

fn name(kind: ArrayKind) -> &'static str {
    match kind {
        ArrayKind::Tokens => "tokens",
        ArrayKind::DocumentIds => "document_ids",
        ArrayKind::PositionIds => "position_ids",
        ArrayKind::LossMask => "loss_mask",
        ArrayKind::CuSeqlens => "cu_seqlens",
    }
}

/// The memory of one array, by the buffer protocol. It is used again when no view of it is left.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct Buffer {
    array: Array,
    shape: Vec<ffi::Py_ssize_t>,
    strides: Vec<ffi::Py_ssize_t>,
}

impl Buffer {
    fn new(array: Array) -> Self {
        let (_, size, len, _) = parts(&array.numbers);
        let shape = match array.width {
            Some(width) => vec![len / width.max(1), width],
            None => vec![len],
        };
        let mut strides = vec![size; shape.len()];
        if let Some(width) = array.width {
            strides[0] = width * size;
        }
        let signed = |sizes: Vec<usize>| sizes.into_iter().map(|size| size as ffi::Py_ssize_t).collect();
        Self { array, shape: signed(shape), strides: signed(strides) }
    }
}

/// Address, bytes of a number, numbers, and `struct` format.
fn parts(numbers: &Numbers) -> (*const c_void, usize, usize, &'static std::ffi::CStr) {
    match numbers {
        Numbers::I32(slot) => (slot.as_ptr().cast(), 4, slot.len(), c"i"),
        Numbers::I64(slot) => (slot.as_ptr().cast(), 8, slot.len(), c"q"),
        Numbers::U8(slot) => (slot.as_ptr().cast(), 1, slot.len(), c"B"),
    }
}

#[pymethods]
impl Buffer {
    /// # Safety
    /// Called by the interpreter, which gives a `view` that is valid for writing, or null.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let this = slf.get();
        let (start, size, len, format) = parts(&this.array.numbers);
        let wants = |flag: c_int| flags & flag == flag;
        let (shape, strides) = (this.shape.as_ptr().cast_mut(), this.strides.as_ptr().cast_mut());
        // SAFETY: `view` is valid for writing (checked above, and the caller's contract). What it points to lives as
        // long as `obj`, a new reference to this object, which owns a part of the arena. The batch is the only holder
        // of the memory, so Python may write it; nothing in Rust reads it afterwards but exports of the same batch.
        unsafe {
            (*view).buf = start.cast_mut();
            (*view).len = (size * len) as ffi::Py_ssize_t;
            (*view).readonly = 0;
            (*view).itemsize = size as ffi::Py_ssize_t;
            (*view).format = if wants(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).ndim = this.shape.len() as c_int;
            (*view).shape = if wants(ffi::PyBUF_ND) { shape } else { ptr::null_mut() };
            (*view).strides = if wants(ffi::PyBUF_STRIDES) { strides } else { ptr::null_mut() };
            (*view).suboffsets = ptr::null_mut();
            (*view).internal = ptr::null_mut();
            (*view).obj = slf.clone().into_any().into_ptr();
        }
        Ok(())
    }
}

//! Batches.

use std::sync::Arc;

use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use headrace::engine::{self, ArrayKind};
use headrace::pack::Span;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::buffer::Buffer;
use crate::excluded::Masked;

/// (file, row group, row in the row group, first token, tokens).
pub(crate) type SourceTuple = (String, u32, u32, u64, u32);

/// The runs that batches are of: one, or the sources of a mixture by their number; `None` for those never drawn.
pub(crate) type Runs = Arc<[Option<Arc<engine::Run>>]>;

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
    runs: Runs,
}

impl Batch {
    pub(crate) fn new(batch: engine::Batch, runs: Runs) -> Self {
        Self { batch, runs }
    }

    /// For each row, where its parts come from.
    pub(crate) fn source_tuples(&self) -> Vec<Vec<SourceTuple>> {
        let row = |row| {
            let run = self.runs.get(self.batch.source(row)).and_then(Option::as_ref);
            run.map_or_else(Vec::new, |run| source_tuples(run, self.batch.sources(row)))
        };
        (0..self.batch.rows.len()).map(row).collect()
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
        self.batch.arrays.iter().map(|array| (name(array.kind), Buffer::array(array.clone()))).collect()
    }

    /// For each row, where its parts come from.
    fn sources(&self) -> Vec<Vec<SourceTuple>> {
        self.source_tuples()
    }

    /// The same batch with a ``loss_mask``, in which the tokens of some documents are 0.
    fn masked(&self, py: Python<'_>, documents: &Masked) -> PyResult<Self> {
        let batch = py.detach(|| self.batch.masked(&documents.0)).map_err(crate::errors::to_python)?;
        Ok(Self::new(batch, Arc::clone(&self.runs)))
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

pub(crate) fn array_capsule(py: Python<'_>, array: FFI_ArrowArray) -> PyResult<Bound<'_, PyCapsule>> {
    PyCapsule::new_with_value(py, array, c"arrow_array")
}

fn name(kind: ArrayKind) -> &'static str {
    match kind {
        ArrayKind::Tokens => "tokens",
        ArrayKind::DocumentIds => "document_ids",
        ArrayKind::PositionIds => "position_ids",
        ArrayKind::LossMask => "loss_mask",
        ArrayKind::CuSeqlens => "cu_seqlens",
        ArrayKind::Source => "source",
    }
}

//! Rows of any schema: chunks of Parquet and Arrow files, as Python's values and as arrays.

use std::sync::Arc;

use arrow::array::cast::AsArray;
use arrow::array::{Array, ArrayRef, StructArray};
use arrow::compute::concat;
use arrow::datatypes::DataType;
use arrow::ffi::FFI_ArrowSchema;
use headrace::cancel::Cancel;
use headrace::format::table::Table;
use headrace::index;
use headrace::store::{Object, Version};
use pyo3::exceptions::{PyIndexError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList, PyString};

use crate::batch::{array_capsule, schema_capsule};
use crate::blocking::blocking;
use crate::buffer::{Buffer, numbers};
use crate::errors::to_python;
use crate::listing::Listing;
use crate::values::{Column, Raw, bool_dtype, booleans, from_buffer, reshaped, row};

/// A decoded chunk.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct Rows {
    pub(crate) table: Table,
    names: Vec<Py<PyString>>,
    /// Of each part.
    columns: Vec<Vec<Column>>,
}

impl Rows {
    pub(crate) fn new(py: Python<'_>, table: Table) -> PyResult<Self> {
        let names = table.schema.fields().iter().map(|field| PyString::new(py, field.name()).unbind()).collect();
        let part = |part: &arrow::array::RecordBatch| {
            part.columns().iter().map(|column| Column::new(py, column)).collect::<PyResult<Vec<_>>>()
        };
        let columns = table.parts().iter().map(part).collect::<PyResult<_>>()?;
        Ok(Self { table, names, columns })
    }

    fn at<'py>(&self, py: Python<'py>, at: i64) -> PyResult<Bound<'py, PyDict>> {
        let rows = self.table.rows();
        match usize::try_from(at) {
            Ok(at) if at < rows => {
                let (part, at) = self.table.locate(at);
                row(py, &self.names, &self.columns[part], at)
            }
            _ => Err(PyIndexError::new_err(format!("expected a row of the {rows} that there are, got {at}"))),
        }
    }

    fn array<'py>(&self, py: Python<'py>, number: usize) -> PyResult<Option<Bound<'py, PyAny>>> {
        let parts: Vec<&dyn Array> = self.table.parts().iter().map(|part| part.column(number).as_ref()).collect();
        let kind = self.table.schema.field(number).data_type();
        let is_numbers = |kind: &DataType| kind.is_integer() || kind.is_floating();
        let wanted = match kind {
            DataType::Boolean => true,
            DataType::FixedSizeList(field, len) => is_numbers(field.data_type()) && *len > 0,
            other => is_numbers(other),
        };
        if !wanted || parts.is_empty() || parts.iter().any(|part| part.null_count() > 0) {
            return Ok(None);
        }
        let whole: ArrayRef = match &parts[..] {
            [_] => Arc::clone(self.table.parts()[0].column(number)),
            parts => py.detach(|| concat(parts)).map_err(|error| PyRuntimeError::new_err(error.to_string()))?,
        };
        let raw = |array: &dyn Array| -> PyResult<Option<Bound<'py, PyAny>>> {
            let Some(raw) = Raw::new(py, array)? else { return Ok(None) };
            from_buffer(py, Buffer::arrow(raw.buffer), raw.dtype.bind(py)).map(Some)
        };
        match kind {
            DataType::Boolean => from_buffer(py, Buffer::bytes(booleans(whole.as_ref())), &bool_dtype(py)?).map(Some),
            DataType::FixedSizeList(_, len) => {
                let list = whole.as_fixed_size_list();
                if list.values().null_count() > 0 {
                    return Ok(None);
                }
                let flat = raw(list.values().as_ref())?;
                flat.map(|flat| reshaped(&flat, list.len(), *len as usize)).transpose()
            }
            _ => raw(whole.as_ref()),
        }
    }
}

#[pymethods]
impl Rows {
    fn __len__(&self) -> usize {
        self.table.rows()
    }

    /// Bytes of memory that the columns hold.
    #[getter]
    fn nbytes(&self) -> usize {
        self.table.bytes()
    }

    /// The columns' names.
    #[getter]
    fn columns(&self) -> Vec<String> {
        self.table.schema.fields().iter().map(|field| field.name().clone()).collect()
    }

    /// A row by its number, as a dict; `docs/formats/values.md` says which Python type is which Arrow type.
    fn row<'py>(&self, py: Python<'py>, number: i64) -> PyResult<Bound<'py, PyDict>> {
        self.at(py, number)
    }

    /// Rows by their numbers: a buffer of 64-bit numbers, or a sequence.
    fn take<'py>(&self, py: Python<'py>, rows: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let wanted = numbers(rows).or_else(|_| rows.extract::<Vec<i64>>())?;
        let list = PyList::empty(py);
        for number in wanted {
            list.append(self.at(py, number)?)?;
        }
        Ok(list)
    }

    /// Whole columns as read-only NumPy arrays: those of numbers and booleans without nulls, and of fixed-size lists of
    /// numbers (then with two dimensions). Without a copy where the column lies in one piece.
    fn arrays<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let arrays = PyDict::new(py);
        for (number, name) in self.names.iter().enumerate() {
            if let Some(array) = self.array(py, number)? {
                arrays.set_item(name, array)?;
            }
        }
        Ok(arrays)
    }

    /// All columns as a struct array by the Arrow PyCapsule interface.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        // What is asked for is a wish: the interface allows another type to be given.
        drop(requested_schema);
        let whole = py.detach(|| self.table.whole()).map_err(to_python)?;
        let failed = |error: arrow::error::ArrowError| PyRuntimeError::new_err(error.to_string());
        let (array, schema) = arrow::ffi::to_ffi(&StructArray::from(whole).into_data()).map_err(failed)?;
        Ok((schema_capsule(py, schema)?, array_capsule(py, array)?))
    }
}

/// An Arrow file or stream.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct ArrowFile(index::ArrowFile);

#[pymethods]
impl ArrowFile {
    /// Finds the batches of a file that a listing has.
    #[staticmethod]
    fn open(py: Python<'_>, listing: &Listing, path: String, size: u64, version: &str) -> PyResult<Self> {
        let object = Object { path, size, version: Version::from_token(version).map_err(to_python)? };
        let cancel = Cancel::new();
        blocking(py, &cancel, |_| Ok(()), || index::ArrowFile::open(&listing.store, &object, &cancel)).map(Self)
    }

    /// (name, type) of each column.
    fn schema(&self) -> Vec<(String, String)> {
        let fields = self.0.schema().fields().iter();
        fields.map(|field| (field.name().clone(), field.data_type().to_string())).collect()
    }

    /// The schema by the Arrow PyCapsule interface.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(self.0.schema().as_ref());
        schema_capsule(py, schema.map_err(|error| PyRuntimeError::new_err(error.to_string()))?)
    }

    /// Rows of each batch.
    fn batch_rows(&self) -> Buffer {
        Buffer::counts(self.0.batch_rows())
    }

    /// Stored bytes of each batch.
    fn batch_bytes(&self) -> Buffer {
        Buffer::counts(self.0.batch_bytes())
    }

    /// Reads a batch, and decodes some of its columns or all.
    #[pyo3(signature = (batch, columns = None))]
    fn read(&self, py: Python<'_>, batch: usize, columns: Option<Vec<String>>) -> PyResult<Rows> {
        let cancel = Cancel::new();
        let table = blocking(py, &cancel, |_| Ok(()), || self.0.read(batch, columns.as_deref(), &cancel))?;
        Rows::new(py, table)
    }
}

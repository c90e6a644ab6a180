//! Datasets' indexes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::ffi::FFI_ArrowSchema;
use headrace::cancel::Cancel;
use headrace::error::{Error, Place};
use headrace::index::{self, IndexMode, OpenOptions, Phase, Progress, TokenColumn, UNKNOWN};
use headrace::store::Store;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::batch::schema_capsule;
use crate::blocking::blocking;
use crate::buffer::{Buffer, numbers};
use crate::errors::to_python;
use crate::excluded::documents;
use crate::rows::Rows;

/// What a dataset holds.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct Index(pub(crate) Arc<index::Index>);

impl Index {
    /// The index and one of its columns, of which the tokens are counted.
    pub(crate) fn column(&self, name: &str) -> PyResult<(Arc<index::Index>, Arc<TokenColumn>)> {
        let column = self.0.token_column(name).map_err(to_python)?;
        Ok((Arc::clone(&self.0), Arc::clone(column)))
    }
}

#[pymethods]
impl Index {
    /// Lists and reads footers; `progress` is called with (phase, done, total) now and then.
    #[staticmethod]
    #[pyo3(signature = (urls, *, storage_options, cache_dir, index, columns, progress))]
    fn open(
        py: Python<'_>,
        urls: Vec<String>,
        storage_options: BTreeMap<String, String>,
        cache_dir: Option<PathBuf>,
        index: &str,
        columns: Option<Vec<String>>,
        progress: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let options = OpenOptions { storage_options, cache_dir, mode: mode(index), columns, threads: None };
        let (cancel, counts) = (Cancel::new(), Progress::new());
        let tick = |_: Python<'_>| tell(progress, &counts);
        let work = || index::Index::open(&urls, &options, &cancel, &counts);
        blocking(py, &cancel, tick, work).map(|index| Self(Arc::new(index)))
    }

    /// The same index with a column of which all tokens, and on request all documents, are counted.
    #[pyo3(signature = (column, *, documents, progress))]
    fn counted(&self, py: Python<'_>, column: &str, documents: bool, progress: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (cancel, counts) = (Cancel::new(), Progress::new());
        let tick = |_: Python<'_>| tell(progress, &counts);
        let work = || {
            let mut index = index::Index::clone(&self.0);
            let count = if documents { index::Index::count } else { index::Index::count_tokens };
            count(&mut index, column, &cancel, &counts).map(|()| index)
        };
        blocking(py, &cancel, tick, work).map(|index| Self(Arc::new(index)))
    }

    /// The same index with a column in which some documents are as empty ones: by the number of their row group and
    /// their row in it, arrays of 64-bit numbers.
    #[pyo3(signature = (column, row_groups, rows, *, progress))]
    fn without(
        &self,
        py: Python<'_>,
        column: &str,
        row_groups: &Bound<'_, PyAny>,
        rows: &Bound<'_, PyAny>,
        progress: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let mut places = documents(&numbers(row_groups)?, &numbers(rows)?)?;
        places.sort_unstable();
        places.dedup();
        let chunks = places.chunk_by(|one, other| one.0 == other.0);
        let left_out = chunks.map(|part| (part[0].0, part.iter().map(|&(_, row)| row).collect())).collect();
        let (cancel, counts) = (Cancel::new(), Progress::new());
        let tick = |_: Python<'_>| tell(progress, &counts);
        let work = || self.0.without(column, &left_out, &cancel, &counts);
        blocking(py, &cancel, tick, work).map(|index| Self(Arc::new(index)))
    }

    /// The root, without secrets.
    #[getter]
    fn url(&self) -> String {
        self.0.store.url().to_owned()
    }

    /// Whether the files are read over a network.
    #[getter]
    fn is_remote(&self) -> bool {
        self.0.store.is_remote()
    }

    /// All files, in storage order, by their full names.
    fn files(&self) -> Vec<String> {
        self.0.files.iter().map(|file| self.0.store.uri(&file.object.path)).collect()
    }

    /// (path below the root, size, rows, digest of the footer) of each file.
    fn file_table(&self) -> Vec<(String, u64, u64, String)> {
        let row = |file: &index::FileEntry| {
            (file.object.path.clone(), file.object.size, file.rows, format!("{:032x}", file.footer_digest))
        };
        self.0.files.iter().map(row).collect()
    }

    #[getter]
    fn file_count(&self) -> usize {
        self.0.files.len()
    }

    #[getter]
    fn row_group_count(&self) -> usize {
        self.0.row_groups.len()
    }

    #[getter]
    fn rows(&self) -> u64 {
        self.0.rows()
    }

    /// Bytes of all files.
    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    /// Reads of the store so far: (requests, bytes, requests sent again, bytes from the disk cache).
    fn traffic(&self) -> Counts {
        traffic(self.0.store.as_ref())
    }

    /// What went otherwise than planned and hinders nothing.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.0.notes.clone()
    }

    /// The token columns' names, also of those that some files lack.
    #[getter]
    fn columns(&self) -> Vec<String> {
        self.0.columns.iter().map(|column| column.name.clone()).collect()
    }

    /// Whether every file has a token column.
    fn is_whole(&self, name: &str) -> bool {
        self.0.columns.iter().any(|column| column.name == name && column.is_whole())
    }

    /// What the footers, and what was counted, say of a token column.
    fn column_info<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyDict>> {
        let facts = self.0.column_facts(name).map_err(to_python)?;
        let known = |count: u64| (count != UNKNOWN).then_some(count);
        let info = PyDict::new(py);
        info.set_item("type", facts.types.join(", "))?;
        info.set_item("tokens", known(facts.tokens))?;
        info.set_item("documents", known(facts.documents))?;
        info.set_item("bytes", facts.bytes)?;
        info.set_item("codecs", facts.codecs)?;
        info.set_item("encodings", facts.encodings)?;
        Ok(info)
    }

    /// Digests of the data, or of its first files alone, seen through one column: with the paths, and without.
    #[pyo3(signature = (column, *, files = None))]
    fn identity(&self, column: &str, files: Option<usize>) -> PyResult<(String, String)> {
        let files = files.unwrap_or(self.0.files.len());
        let identity = self.0.identity_of_first(files, column).map_err(to_python)?;
        Ok((format!("{:032x}", identity.digest), format!("{:032x}", identity.content)))
    }

    /// Rows of each row group, in storage order.
    fn row_group_sizes(&self) -> Buffer {
        Buffer::counts(self.0.row_groups.rows().to_vec())
    }

    /// Stored bytes of each row group: its share of its file by rows.
    fn row_group_bytes(&self) -> Buffer {
        Buffer::counts(self.0.row_group_bytes())
    }

    /// Where a row group is: the number of its file, and its own in that file.
    fn row_group_place(&self, row_group: usize) -> PyResult<(u32, u32)> {
        let found = self.0.row_groups.len();
        if row_group >= found {
            let message = format!("there is no row group {row_group}: the dataset has {found}");
            return Err(PyValueError::new_err(message));
        }
        let group = self.0.row_groups.get(row_group);
        Ok((group.file, group.number))
    }

    /// Reads some columns of a row group, or all, and decodes them.
    #[pyo3(signature = (row_group, columns = None))]
    fn read_rows(&self, py: Python<'_>, row_group: usize, columns: Option<Vec<String>>) -> PyResult<Rows> {
        let cancel = Cancel::new();
        let work = || self.0.read_rows(row_group, columns.as_deref(), &cancel);
        Rows::new(py, blocking(py, &cancel, |_| Ok(()), work)?)
    }

    /// Writes the index next to the data, and says where.
    fn save_in_place(&self, py: Python<'_>) -> PyResult<String> {
        let cancel = Cancel::new();
        blocking(py, &cancel, |_| Ok(()), || self.0.save_in_place(&cancel))?;
        Ok(self.0.store.uri(index::IN_PLACE))
    }

    /// (name, type) of each column of the first file.
    fn schema(&self, py: Python<'_>) -> PyResult<Vec<(String, String)>> {
        let schema = self.arrow_schema(py)?;
        Ok(schema.fields().iter().map(|field| (field.name().clone(), field.data_type().to_string())).collect())
    }

    /// The schema of the first file by the Arrow PyCapsule interface.
    fn arrow_c_schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = self.arrow_schema(py)?;
        let schema = FFI_ArrowSchema::try_from(schema.as_ref());
        schema_capsule(py, schema.map_err(|error| PyRuntimeError::new_err(error.to_string()))?)
    }
}

impl Index {
    fn arrow_schema(&self, py: Python<'_>) -> PyResult<arrow::datatypes::SchemaRef> {
        let cancel = Cancel::new();
        let footer = blocking(py, &cancel, |_| Ok(()), || self.0.footer(0, &cancel))?;
        let place = Place::file(self.0.store.uri(&self.0.files[0].object.path));
        footer.schema.map_err(|what| to_python(Error::data(place, what)))
    }
}

/// What `index=` says.
pub(crate) fn mode(index: &str) -> IndexMode {
    match index {
        "auto" => IndexMode::Auto,
        "rebuild" => IndexMode::Rebuild,
        path => IndexMode::Path(PathBuf::from(path)),
    }
}

/// (requests, bytes, requests sent again, bytes from the disk cache, second requests beside the first)
pub(crate) type Counts = (u64, u64, u64, u64, u64);

/// Reads of a store so far.
pub(crate) fn traffic(store: &dyn Store) -> Counts {
    let traffic = store.traffic();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    (
        count(&traffic.requests),
        count(&traffic.bytes),
        count(&traffic.retries),
        count(&traffic.cached),
        count(&traffic.hedged),
    )
}

/// Calls a progress callback with (phase, done, total).
pub(crate) fn tell(progress: &Bound<'_, PyAny>, counts: &Progress) -> PyResult<()> {
    let (phase, done, total) = match counts.phase() {
        Phase::Idle | Phase::Done => return Ok(()),
        Phase::Listing => ("files found", &counts.found, None),
        Phase::Footers => ("footers read", &counts.done, Some(&counts.total)),
        Phase::Levels => ("column chunks counted", &counts.done, Some(&counts.total)),
        Phase::Pages => ("row groups read", &counts.done, Some(&counts.total)),
    };
    let total = total.map_or(0, |total| total.load(Ordering::Relaxed));
    progress.call1((phase, done.load(Ordering::Relaxed), total)).map(drop)
}

//! Rows of one width, gathered from local files.

use std::path::PathBuf;
use std::sync::Arc;

use headrace::engine::{self, Values, Whole};
use headrace::store::Version;
use headrace::store::open_file;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

use crate::buffer::{Buffer, numbers};
use crate::errors::to_python;

/// A local file that stays open, as it was listed.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct OpenFile(Arc<open_file::OpenFile>);

#[pymethods]
impl OpenFile {
    /// Raises DataError if the file has another size or version.
    #[new]
    fn new(py: Python<'_>, path: PathBuf, size: u64, version: &str) -> PyResult<Self> {
        let version = Version::from_token(version).map_err(to_python)?;
        let file = py.detach(|| open_file::OpenFile::open(&path, size, &version)).map_err(to_python)?;
        Ok(Self(Arc::new(file)))
    }
}

/// Gathers rows, and keeps the memory of arrays that went.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct Gather(engine::Gather);

#[pymethods]
impl Gather {
    /// Keeps the memory of at most `keep` arrays that nobody refers to.
    #[new]
    #[pyo3(signature = (*, keep))]
    fn new(keep: usize) -> Self {
        Self(engine::Gather::new(keep))
    }

    /// The bytes of rows that are `width` long each: row n begins at byte `starts[n]` of file `which[n]`, both buffers
    /// of 64-bit numbers. With `convert` they are numbers of its first type, and come as its second.
    #[pyo3(signature = (files, which, starts, width, *, convert=None))]
    #[allow(clippy::needless_pass_by_value, reason = "as PyO3 extracts it")]
    fn take(
        &self,
        py: Python<'_>,
        files: Vec<PyRef<'_, OpenFile>>,
        which: &Bound<'_, PyAny>,
        starts: &Bound<'_, PyAny>,
        width: usize,
        convert: Option<(String, String)>,
    ) -> PyResult<Buffer> {
        let values = match &convert {
            Some((from, to)) => Values::Converted(whole(from)?, whole(to)?),
            None => Values::Stored,
        };
        let mut rows = Vec::new();
        for (file, start) in numbers(which)?.into_iter().zip(numbers(starts)?) {
            let (Ok(file), Ok(start)) = (usize::try_from(file), u64::try_from(start)) else {
                return Err(PyIndexError::new_err(format!("there is no byte {start} of file {file}")));
            };
            rows.push(engine::Row { file, start });
        }
        let files: Vec<_> = files.iter().map(|file| Arc::clone(&file.0)).collect();
        let slot = py.detach(|| self.0.take(&files, &rows, width, values)).map_err(to_python)?;
        Ok(Buffer::slot(slot))
    }
}

/// A type of whole numbers by NumPy's name.
fn whole(name: &str) -> PyResult<Whole> {
    Ok(match name {
        "uint8" => Whole::U8,
        "int8" => Whole::I8,
        "uint16" => Whole::U16,
        "int16" => Whole::I16,
        "uint32" => Whole::U32,
        "int32" => Whole::I32,
        "uint64" => Whole::U64,
        "int64" => Whole::I64,
        _ => return Err(PyValueError::new_err(format!("expected a type of whole numbers, got {name:?}"))),
    })
}

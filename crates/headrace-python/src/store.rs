//! A place of files that can be listed, read and written.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use headrace::cancel::Cancel;
use headrace::store::{self, Condition, Content, Entry, Version, root};
use pyo3::prelude::*;

use crate::blocking::blocking;
use crate::buffer::{Buffer, View};
use crate::errors::to_python;
use crate::index::{Counts, traffic};

/// (path below the root, size, version, nanoseconds since 1970 at which it was written)
type EntryTuple = (String, u64, String, Option<i64>);

/// Files below a root.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct Store(Arc<dyn store::Store>);

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (url, *, storage_options))]
    fn new(py: Python<'_>, url: &str, storage_options: BTreeMap<String, String>) -> PyResult<Self> {
        py.detach(|| root::place(url, &storage_options)).map(Self).map_err(to_python)
    }

    /// The root, without secrets.
    #[getter]
    fn url(&self) -> String {
        self.0.url().to_owned()
    }

    /// The full name of a path below the root.
    fn uri(&self, path: &str) -> String {
        self.0.uri(path)
    }

    /// Where requests go, if the URL does not say that. Holds no secret.
    #[getter]
    fn endpoint(&self) -> Option<String> {
        self.0.endpoint()
    }

    #[getter]
    fn is_remote(&self) -> bool {
        self.0.is_remote()
    }

    /// The root, if it is a folder of this machine.
    #[getter]
    fn local_root(&self) -> Option<String> {
        self.0.folder().and_then(|folder| folder.to_str()).map(str::to_owned)
    }

    /// Begins to list the files whose paths begin with `start`.
    #[pyo3(signature = (start, *, ordered))]
    fn list(&self, start: String, ordered: bool) -> PyResult<Pages> {
        store::Pages::start(Arc::clone(&self.0), start, ordered).map(Pages).map_err(to_python)
    }

    /// All that is known of a file now. Raises MissingError if there is none.
    fn head(&self, py: Python<'_>, path: &str) -> PyResult<EntryTuple> {
        let cancel = Cancel::new();
        blocking(py, &cancel, |_| Ok(()), || store::entry_below(self.0.as_ref(), path, &cancel)).map(tuple)
    }

    /// `length` bytes from `offset` on, or all that follow.
    #[pyo3(signature = (path, *, offset, length))]
    fn read(&self, py: Python<'_>, path: &str, offset: u64, length: Option<u64>) -> PyResult<Buffer> {
        let cancel = Cancel::new();
        let work = || {
            let object = store::head_below(self.0.as_ref(), path, &cancel)?;
            let end = length.map_or(object.size.max(offset), |length| offset.saturating_add(length));
            store::read(&self.0, &object, offset..end, &cancel)
        };
        blocking(py, &cancel, |_| Ok(()), work).map(Buffer::bytes)
    }

    /// Stores bytes whole, under a condition: "" for none, "new" or "=" and the version that must be there. None if that
    /// does not hold.
    #[pyo3(signature = (path, data, *, condition))]
    fn put(
        &self,
        py: Python<'_>,
        path: &str,
        data: &Bound<'_, PyAny>,
        condition: &str,
    ) -> PyResult<Option<EntryTuple>> {
        let view = View::new(data)?;
        let bytes = view.bytes();
        self.write(py, path, Content::Bytes(bytes), condition)
    }

    /// Stores a copy of a local file whole; see `put`.
    #[pyo3(signature = (path, file, *, condition))]
    fn put_file(&self, py: Python<'_>, path: &str, file: PathBuf, condition: &str) -> PyResult<Option<EntryTuple>> {
        self.write(py, path, Content::File(&file), condition)
    }

    /// Removes a file; nothing, if there is none.
    fn delete(&self, py: Python<'_>, path: &str) -> PyResult<()> {
        let cancel = Cancel::new();
        blocking(py, &cancel, |_| Ok(()), || store::delete(self.0.as_ref(), path, &cancel))
    }

    /// Reads so far: (requests, bytes, requests sent again, second requests, bytes from the disk cache).
    fn traffic(&self) -> Counts {
        traffic(self.0.as_ref())
    }
}

impl Store {
    fn write(&self, py: Python<'_>, path: &str, content: Content<'_>, condition: &str) -> PyResult<Option<EntryTuple>> {
        let condition = match condition {
            "" => Condition::Always,
            "new" => Condition::Absent,
            other => {
                let token = other.strip_prefix('=').unwrap_or(other);
                Condition::Unchanged(Version::from_token(token).map_err(to_python)?)
            }
        };
        let cancel = Cancel::new();
        let work = || store::write(self.0.as_ref(), path, content, &condition, &cancel);
        Ok(blocking(py, &cancel, |_| Ok(()), work)?.map(tuple))
    }
}

/// A listing that is under way.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct Pages(store::Pages);

#[pymethods]
impl Pages {
    /// The next files; none after the last, and it is not asked again.
    fn next(&self, py: Python<'_>) -> PyResult<Vec<EntryTuple>> {
        let cancel = Cancel::new();
        let page = blocking(py, &cancel, |_| Ok(()), || self.0.next(&cancel))?;
        Ok(page.into_iter().map(tuple).collect())
    }
}

fn tuple(entry: Entry) -> EntryTuple {
    let Entry { object, modified } = entry;
    (object.path, object.size, object.version.token(), modified)
}

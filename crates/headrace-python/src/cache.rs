//! The disk cache for remote data.

use std::path::PathBuf;
use std::sync::Arc;

use headrace::store::cache::{Folder, Usage, clear, usage};
use pyo3::prelude::*;

/// A folder that keeps what is read of remote stores, of a bounded size.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct DiskCache(pub(crate) Arc<Folder>);

#[pymethods]
impl DiskCache {
    /// A cache below `folder`, of at most `limit` bytes.
    #[new]
    fn new(py: Python<'_>, folder: PathBuf, limit: u64) -> Self {
        let folder = py.detach(|| Arc::new(Folder::new(&folder, limit)));
        folder.tidy();
        Self(folder)
    }

    /// What went otherwise than planned since the last call, and hinders nothing.
    fn take_problem(&self) -> Option<String> {
        self.0.take_problem()
    }

    /// (entries, bytes) below a folder.
    #[staticmethod]
    fn usage(py: Python<'_>, folder: PathBuf) -> (u64, u64) {
        pair(py.detach(|| usage(&folder)))
    }

    /// Removes all entries below a folder; gives (entries, bytes) of what was removed.
    #[staticmethod]
    fn clear(py: Python<'_>, folder: PathBuf) -> (u64, u64) {
        pair(py.detach(|| clear(&folder)))
    }
}

fn pair(usage: Usage) -> (u64, u64) {
    (usage.entries, usage.bytes)
}

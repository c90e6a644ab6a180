//! Files of any format: listed, and read in byte ranges.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use headrace::cancel::Cancel;
use headrace::index::listing::{self, Found, Rule};
use headrace::index::{self, OpenOptions, Progress};
use headrace::store::cache::cached;
use headrace::store::{self, Object, READ_BLOCK, Store, Version, root};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::blocking::blocking;
use crate::buffer::Buffer;
use crate::cache::DiskCache;
use crate::errors::to_python;
use crate::index::{Counts, Index, mode, tell, traffic};

/// (path below the root, size, version)
type FileTuple = (String, u64, String);

/// What paths and URLs stand for, or a root alone.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct Listing {
    pub(crate) store: Arc<dyn Store>,
    /// `None` for a root.
    found: Option<Found>,
    objects: Vec<Object>,
}

#[pymethods]
impl Listing {
    /// Lists all files that are not hidden; `progress` is called with (phase, done, total) now and then.
    #[staticmethod]
    #[pyo3(signature = (urls, *, storage_options, revision=None, cache=None, progress))]
    fn open(
        py: Python<'_>,
        urls: Vec<String>,
        storage_options: BTreeMap<String, String>,
        revision: Option<&str>,
        cache: Option<PyRef<'_, DiskCache>>,
        progress: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let (cancel, counts) = (Cancel::new(), Progress::new());
        let cache = cache.map(|cache| Arc::clone(&cache.0));
        let tick = |_: Python<'_>| tell(progress, &counts);
        let work = || {
            let mut found = listing::find(&urls, &storage_options, revision, &cancel, &counts)?;
            found.store = cached(found.store, cache.as_ref());
            let (objects, _) = found.clone().files(Rule::All)?;
            Ok(Self { store: Arc::clone(&found.store), found: Some(found), objects })
        };
        blocking(py, &cancel, tick, work)
    }

    /// A folder of which nothing is listed, because something else names its files.
    #[staticmethod]
    #[pyo3(signature = (url, *, storage_options, cache=None))]
    fn root(
        py: Python<'_>,
        url: &str,
        storage_options: BTreeMap<String, String>,
        cache: Option<PyRef<'_, DiskCache>>,
    ) -> PyResult<Self> {
        let store = py.detach(|| root::root(url, &storage_options)).map_err(to_python)?;
        Ok(Self::unlisted(store, cache))
    }

    /// What another process listed or opened, by what it was given and found. Nothing is listed again.
    #[staticmethod]
    #[pyo3(signature = (urls, root, *, storage_options, revision=None, cache=None))]
    fn again(
        py: Python<'_>,
        urls: Vec<String>,
        root: &str,
        storage_options: BTreeMap<String, String>,
        revision: Option<&str>,
        cache: Option<PyRef<'_, DiskCache>>,
    ) -> PyResult<Self> {
        let store = py.detach(|| listing::found_again(&urls, root, &storage_options, revision)).map_err(to_python)?;
        Ok(Self::unlisted(store, cache))
    }

    /// The root, without secrets.
    #[getter]
    fn url(&self) -> String {
        self.store.url().to_owned()
    }

    /// The revision that all is read of, once it is known; only some stores have any.
    #[getter]
    fn revision(&self) -> Option<String> {
        self.store.revision()
    }

    /// The full name of a path below the root.
    fn uri(&self, path: &str) -> String {
        self.store.uri(path)
    }

    #[getter]
    fn is_remote(&self) -> bool {
        self.store.is_remote()
    }

    /// The root, if it is a folder of this machine.
    #[getter]
    fn local_root(&self) -> Option<String> {
        self.store.folder().and_then(|folder| folder.to_str()).map(str::to_owned)
    }

    /// Whether one folder was given.
    #[getter]
    fn is_folder(&self) -> bool {
        self.found.as_ref().is_none_or(Found::is_folder)
    }

    /// What was asked for: one text names one listing. Empty for a root.
    #[getter]
    fn request(&self) -> String {
        self.found.as_ref().map(|found| found.request().to_owned()).unwrap_or_default()
    }

    /// (path below the root, size, version) of each file, by path.
    fn files(&self) -> Vec<FileTuple> {
        self.objects.iter().map(tuple).collect()
    }

    /// The Parquet files among them as an index, which is not listed anew.
    #[pyo3(signature = (*, cache_dir, index, columns, progress))]
    fn index(
        &self,
        py: Python<'_>,
        cache_dir: Option<PathBuf>,
        index: &str,
        columns: Option<Vec<String>>,
        progress: &Bound<'_, PyAny>,
    ) -> PyResult<Index> {
        let Some(found) = &self.found else {
            return Err(PyValueError::new_err("a root has no listing to make an index of"));
        };
        let options =
            OpenOptions { storage_options: BTreeMap::new(), cache_dir, mode: mode(index), columns, threads: None };
        let (cancel, counts) = (Cancel::new(), Progress::new());
        let tick = |_: Python<'_>| tell(progress, &counts);
        let work = || index::Index::open_found(found.clone(), &options, &cancel, &counts);
        blocking(py, &cancel, tick, work).map(|index| Index(Arc::new(index)))
    }

    /// Size and version of a file now. Raises MissingError if there is none.
    fn head(&self, py: Python<'_>, path: &str) -> PyResult<FileTuple> {
        let cancel = Cancel::new();
        let work = || store::head_below(self.store.as_ref(), path, &cancel);
        let object = if self.store.is_remote() {
            blocking(py, &cancel, |_| Ok(()), work)?
        } else {
            py.detach(work).map_err(to_python)?
        };
        Ok(tuple(&object))
    }

    /// The bytes from `start` to before `stop` of a file that has this size and version.
    fn read(&self, py: Python<'_>, path: String, size: u64, version: &str, start: u64, stop: u64) -> PyResult<Buffer> {
        let object = Object { path, size, version: Version::from_token(version).map_err(to_python)? };
        let cancel = Cancel::new();
        let work = || store::read(&self.store, &object, start..stop, &cancel);
        // A short read of a local file is done before a thread for it has begun.
        let bytes = if self.store.is_remote() || stop.saturating_sub(start) > READ_BLOCK {
            blocking(py, &cancel, |_| Ok(()), work)?
        } else {
            py.detach(work).map_err(to_python)?
        };
        Ok(Buffer::bytes(bytes))
    }

    /// Reads so far: (requests, bytes, requests sent again, bytes from the disk cache).
    fn traffic(&self) -> Counts {
        traffic(self.store.as_ref())
    }
}

impl Listing {
    fn unlisted(store: Arc<dyn Store>, cache: Option<PyRef<'_, DiskCache>>) -> Self {
        let store = cached(store, cache.map(|cache| Arc::clone(&cache.0)).as_ref());
        Self { store, found: None, objects: Vec::new() }
    }
}

fn tuple(object: &Object) -> FileTuple {
    (object.path.clone(), object.size, object.version.token())
}

//! Files of schemes that fsspec knows. What they mean is told in `headrace/_fsspec.py`; here is how the core calls it.
//!
//! The core calls from threads of its HTTP runtime that may block, which attach to the interpreter for the call alone.
//! Once the interpreter shuts down they do not attach any more.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use headrace::error::StoreFault;
use headrace::store::Version;
use headrace::store::remote::Facts;
use headrace::store::remote::foreign::{Called, Files, Opened, Place, Trouble};
use headrace::{Error, Result};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

/// The module of the Python side.
const MODULE: &str = "headrace._fsspec";

/// What fsspec says to a URL.
pub(crate) fn open(url: &str, options: &BTreeMap<String, String>) -> Result<Opened> {
    let asked = attached(|py| {
        let place = py.import(MODULE)?.call_method1("place", (url, options.clone()))?;
        match place.extract::<(String, String, String)>() {
            Ok(place) => Ok(Ok(place)),
            Err(_) => place.extract::<String>().map(Err),
        }
    });
    match asked {
        Ok(Ok((root, tail, key))) => {
            let (url, options) = (url.to_owned(), options.clone());
            let connect = Box::new(move || {
                let own = FileSystem { url: url.clone(), options: options.clone(), made: PyOnceLock::new() };
                Arc::new(own) as Arc<dyn Files>
            });
            Ok(Opened::Place(Place { root, tail, key, connect }))
        }
        Ok(Err(hint)) => Ok(Opened::Unknown(hint)),
        Err(Trouble { text, .. }) => Err(Error::Argument(text)),
    }
}

/// Runs `work` attached; what it raises is told in words.
fn attached<T>(work: impl FnOnce(Python<'_>) -> PyResult<T>) -> Called<T> {
    let done = Python::try_attach(|py| work(py).map_err(|error| trouble(py, &error)));
    let ended = || Trouble { fault: StoreFault::Other, text: "the interpreter is shutting down".to_owned() };
    done.unwrap_or_else(|| Err(ended()))
}

/// An exception as a fault. Arguments that are wrong are told as they are.
fn trouble(py: Python<'_>, error: &PyErr) -> Trouble {
    if error.is_instance_of::<PyValueError>(py) && error.get_type(py).is(py.get_type::<PyValueError>()) {
        return Trouble { fault: StoreFault::Other, text: error.value(py).to_string() };
    }
    let told = py.import(MODULE).and_then(|module| module.call_method1("trouble", (error.value(py),)));
    match told.and_then(|told| told.extract::<(String, String)>()) {
        Ok((kind, text)) => {
            let fault = match kind.as_str() {
                "missing" => StoreFault::NotFound,
                "denied" => StoreFault::Denied,
                "timeout" => StoreFault::Timeout,
                "passing" => StoreFault::Unavailable,
                _ => StoreFault::Other,
            };
            Trouble { fault, text }
        }
        Err(own) => Trouble { fault: StoreFault::Other, text: own.to_string() },
    }
}

/// Files of an fsspec filesystem, which is made when it is first asked.
struct FileSystem {
    url: String,
    options: BTreeMap<String, String>,
    made: PyOnceLock<Py<PyAny>>,
}

impl FileSystem {
    fn call<T>(&self, work: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Called<T> {
        attached(|py| {
            let own = self.made.get_or_try_init(py, || {
                let class = py.import(MODULE)?.getattr("FileSystem")?;
                class.call1((self.url.as_str(), self.options.clone())).map(Bound::unbind)
            })?;
            work(own.bind(py))
        })
    }
}

/// (size, version, time of writing) as Python tells them.
type Told = (u64, String, Option<i64>);

fn facts((size, token, modified): Told) -> PyResult<Facts> {
    Ok(Facts { size, version: version(&token)?, modified })
}

fn version(token: &str) -> PyResult<Version> {
    Version::from_token(token).map_err(crate::errors::to_python)
}

impl Files for FileSystem {
    fn read(&self, key: &str, range: Range<u64>) -> Called<(Vec<u8>, u64, Version)> {
        self.call(|own| {
            let found = own.call_method1("read", (key, range.start, range.end))?;
            let (bytes, size, token) = found.extract::<(PyBackedBytes, u64, String)>()?;
            Ok((bytes.to_vec(), size, version(&token)?))
        })
    }

    fn head(&self, key: &str) -> Called<Facts> {
        self.call(|own| facts(own.call_method1("head", (key,))?.extract()?))
    }

    fn list(&self, start: &str) -> Called<Vec<(String, Facts)>> {
        self.call(|own| {
            let found = own.call_method1("list", (start,))?.extract::<Vec<(String, Told)>>()?;
            found.into_iter().map(|(key, told)| Ok((key, facts(told)?))).collect()
        })
    }

    fn put(&self, key: &str, bytes: &[u8]) -> Called<()> {
        self.call(|own| own.call_method1("put", (key, PyBytes::new(own.py(), bytes))).map(drop))
    }

    fn put_file(&self, key: &str, path: &Path) -> Called<()> {
        self.call(|own| own.call_method1("put_file", (key, path)).map(drop))
    }

    fn delete(&self, key: &str) -> Called<()> {
        self.call(|own| own.call_method1("delete", (key,)).map(drop))
    }
}

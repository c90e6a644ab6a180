//! The core's errors as Python's. The classes are defined in Python, where they are documented and pickled.

use headrace::Error;
use headrace::error::StoreFault;
use pyo3::PyErr;
use pyo3::exceptions::{PyRuntimeError, PyValueError};

mod classes {
    #![allow(missing_docs, reason = "documented in headrace/errors.py")]
    pyo3::import_exception!(headrace.errors, DataError);
    pyo3::import_exception!(headrace.errors, StoreError);
    pyo3::import_exception!(headrace.errors, MissingError);
    pyo3::import_exception!(headrace.errors, BudgetError);
}

/// A DataError of the binding's own.
pub(crate) fn data(message: String) -> PyErr {
    classes::DataError::new_err(message)
}

/// The Python exception for an error of the core.
pub(crate) fn to_python(error: Error) -> PyErr {
    let message = error.to_string();
    match error {
        Error::Argument(_) => PyValueError::new_err(message),
        Error::Data { .. } | Error::Changed { .. } | Error::Moved { .. } => classes::DataError::new_err(message),
        Error::Store { fault: StoreFault::NotFound, .. } => classes::MissingError::new_err(message),
        Error::Store { .. } | Error::Disk { .. } => classes::StoreError::new_err(message),
        Error::Memory { .. } => classes::BudgetError::new_err(message),
        Error::Cancelled | Error::Internal(_) => PyRuntimeError::new_err(message),
    }
}

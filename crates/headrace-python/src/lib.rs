//! The core for Python: types and errors converted, and nothing decided.
//!
//! No Rust lock is held while attached to the interpreter. Every call that can block goes through
//! [`blocking::blocking`] or waits detached.

use pyo3::prelude::*;

mod batch;
mod blocking;
mod engine;
mod errors;
mod index;
mod inspect;
mod run;

/// The compiled core of headrace.
#[pymodule(gil_used = true)]
mod _core {
    #[pymodule_export]
    use super::batch::{Batch, Buffer};
    #[pymodule_export]
    use super::engine::{Engine, report, sources};
    #[pymodule_export]
    use super::index::Index;
    #[pymodule_export]
    use super::inspect::{fixed_memory, lengths, limits, verify};
    #[pymodule_export]
    use super::run::{Run, Steps, default_lanes, default_window};
    #[pymodule_export]
    use super::version;
}

/// The version of the package, and of the order.
#[pyfunction]
fn version() -> (&'static str, u32) {
    (env!("CARGO_PKG_VERSION"), headrace::order::ORDER_VERSION)
}

//! The core for Python: types and errors converted, and nothing decided.
//!
//! No Rust lock is held while attached to the interpreter. Every call that can block goes through
//! [`blocking::blocking`] or waits detached.

use pyo3::prelude::*;

mod batch;
mod blocking;
mod buffer;
mod cache;
mod compress;
mod engine;
mod errors;
mod gather;
mod index;
mod inspect;
mod listing;
mod order;
mod rows;
mod run;
mod values;

/// The compiled core of headrace.
#[pymodule(gil_used = true)]
mod _core {
    #[pymodule_export]
    use super::batch::Batch;
    #[pymodule_export]
    use super::buffer::Buffer;
    #[pymodule_export]
    use super::cache::DiskCache;
    #[pymodule_export]
    use super::compress::{Decompressor, decompress};
    #[pymodule_export]
    use super::engine::{Engine, report, sources};
    #[pymodule_export]
    use super::gather::gather;
    #[pymodule_export]
    use super::index::Index;
    #[pymodule_export]
    use super::inspect::{fixed_memory, lengths, limits, verify};
    #[pymodule_export]
    use super::listing::Listing;
    #[pymodule_export]
    use super::order::{ItemOrder, Permutation, default_item_window};
    #[pymodule_export]
    use super::rows::{ArrowFile, Rows};
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

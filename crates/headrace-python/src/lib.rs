//! The core for Python: types and errors converted, and nothing decided.
//!
//! No Rust lock is waited for while attached to the interpreter, but for one that is held for no longer than a pointer
//! takes to copy. Every call that can block goes through [`blocking::blocking`] or waits detached.
//!
//! It needs no GIL, and says so: every class is frozen, and what changes in one is behind a lock (the decompressor, the
//! passes of an order, whether an engine is closed) or an atomic. Objects of Python's that are kept (names, types and time
//! zones of columns; functions that are looked up once) are never replaced. Memory that Python lends is held by the
//! buffer protocol while it is read; that nobody writes it meanwhile is up to the caller, with a GIL as without.

use pyo3::prelude::*;

mod batch;
mod blocking;
mod buffer;
mod cache;
mod compress;
mod engine;
mod errors;
mod excluded;
mod fsspec;
mod gather;
mod index;
mod inspect;
mod listing;
mod mixture;
mod order;
mod records;
mod rows;
mod run;
mod store;
mod values;

/// The compiled core of headrace.
#[pymodule(gil_used = false)]
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
    use super::excluded::Masked;
    #[pymodule_export]
    use super::gather::gather;
    #[pymodule_export]
    use super::index::Index;
    #[pymodule_export]
    use super::inspect::{fetch, lengths, limits, shares, verify};
    #[pymodule_export]
    use super::listing::Listing;
    #[pymodule_export]
    use super::mixture::{Mixture, mixed_sources, weight_points};
    #[pymodule_export]
    use super::order::{ItemOrder, Permutation, default_item_window};
    #[pymodule_export]
    use super::records::{Gather, OpenFile, RowFeed, StoredRows};
    #[pymodule_export]
    use super::rows::{ArrowFile, Rows};
    #[pymodule_export]
    use super::run::{Run, Steps, default_lanes, default_window};
    #[pymodule_export]
    use super::store::{Pages, Store};
    #[pymodule_export]
    use super::version;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        headrace::store::remote::foreign::ask_about_others(super::fsspec::open);
        Ok(())
    }
}

/// The version of the package, and of the order.
#[pyfunction]
fn version() -> (&'static str, u32) {
    (env!("CARGO_PKG_VERSION"), headrace::order::ORDER_VERSION)
}

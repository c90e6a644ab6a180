//! The core of headrace, a data loader for model training: pure Rust, no Python.
//!
//! Data flows in one direction, and so do the dependencies (a module may use those above it, never one below):
//!
//! | module | question it answers |
//! | --- | --- |
//! | [`error`], [`cancel`] | what can go wrong, and how work is stopped |
//! | [`per_process`] | which locks a forked child has for itself |
//! | [`order`] | which tokens come next (pure arithmetic, no I/O) |
//! | [`pack`] | how documents become rows (no I/O) |
//! | [`format`] | how bytes become documents (no I/O) |
//! | [`store`] | where bytes come from |
//! | [`index`] | what a dataset holds |
//! | [`state`] | where a run is |
//! | [`engine`] | moving it: plan, prefetch, memory budget, assemble |
//! | [`inspect`] | looking at it: lengths of documents, damage (above [`state`], beside [`engine`]: neither uses the other) |

pub mod cancel;
pub mod engine;
pub mod error;
pub mod format;
pub mod index;
pub mod inspect;
pub mod order;
pub mod pack;
pub mod per_process;
pub mod state;
pub mod store;

pub use error::{Error, Result};

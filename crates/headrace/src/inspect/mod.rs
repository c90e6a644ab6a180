//! Looking at a dataset for people: how long its documents are, whether all of it can be read, and what decoding it
//! costs at least.
//!
//! Not for a run: nothing here is needed to train, and what is found is not kept.

mod lengths;
mod limits;
mod verify;

#[cfg(test)]
mod tests;

pub use lengths::{Bucket, Lengths, QUANTILES, lengths};
pub use limits::{Limits, limits};
pub use verify::{Fault, VerifyOptions, VerifyReport, verify};

//! Looking at a dataset for people: how long its documents are, and whether all of it can be read.
//!
//! Not for a run: nothing here is needed to train, and what is found is not kept.

mod lengths;
mod verify;

#[cfg(test)]
mod tests;

pub use lengths::{Bucket, Lengths, QUANTILES, lengths};
pub use verify::{Fault, VerifyOptions, VerifyReport, verify};

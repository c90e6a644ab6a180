//! Whole files, written by the `parquet` crate: what was written is what is read, and damage is an error.

//! How bytes become documents. No I/O here: a decoder is handed bytes and says how many it needs next.

pub mod compress;
pub mod parquet;
pub mod table;

//! Looking at datasets, for the command line.

use std::collections::BTreeMap;
use std::path::PathBuf;

use headrace::cancel::Cancel;
use headrace::engine::{self, LayOut, Options, Shares};
use headrace::index::Progress;
use headrace::inspect::{self, QUANTILES, VerifyOptions};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::blocking::blocking;
use crate::errors::to_python;
use crate::index::{Index, tell};
use crate::run::{Run, Steps, check_rank};

/// How long the documents of a token column are. Reads the whole column.
#[pyfunction]
#[pyo3(signature = (index, column, *, progress))]
pub(crate) fn lengths<'py>(
    py: Python<'py>,
    index: &Index,
    column: &str,
    progress: &Bound<'_, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let (cancel, counts) = (Cancel::new(), Progress::new());
    let tick = |_: Python<'_>| tell(progress, &counts);
    let found = blocking(py, &cancel, tick, || inspect::lengths(&index.0, column, &cancel, &counts))?;
    let buckets = found.buckets.iter().map(|bucket| (bucket.from, bucket.to, bucket.documents, bucket.tokens));
    let lengths = PyDict::new(py);
    lengths.set_item("documents", found.documents)?;
    lengths.set_item("tokens", found.tokens)?;
    lengths.set_item("min", found.min)?;
    lengths.set_item("max", found.max)?;
    lengths.set_item("quantiles", QUANTILES.into_iter().zip(found.quantiles).collect::<Vec<_>>())?;
    lengths.set_item("buckets", buckets.collect::<Vec<_>>())?;
    Ok(lengths)
}

/// What decoding some chunks of a token column costs one thread, in nanoseconds of CPU time.
#[pyfunction]
#[pyo3(signature = (index, column, *, most_chunks))]
pub(crate) fn limits<'py>(
    py: Python<'py>,
    index: &Index,
    column: &str,
    most_chunks: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let cancel = Cancel::new();
    let found = blocking(py, &cancel, |_| Ok(()), || inspect::limits(&index.0, column, most_chunks, &cancel))?;
    let limits = PyDict::new(py);
    limits.set_item("chunks", found.chunks)?;
    limits.set_item("tokens", found.tokens)?;
    limits.set_item("narrow_tokens", found.narrow_tokens)?;
    limits.set_item("stored_bytes", found.stored_bytes)?;
    limits.set_item("page_bytes", found.page_bytes)?;
    limits.set_item("decompress_ns", found.decompress_ns)?;
    limits.set_item("levels_ns", found.levels_ns)?;
    limits.set_item("decode_ns", found.decode_ns)?;
    Ok(limits)
}

/// (file, row group, column, row, message)
type FaultTuple = (String, Option<u32>, Option<String>, Option<u64>, String);

/// ((files, row groups, rows, tokens), faults)
type ReportTuple = ((u64, u64, u64, u64), Vec<FaultTuple>);

/// Reads everything: (files, row groups, rows, tokens) and all that is wrong.
#[pyfunction]
#[pyo3(signature = (urls, *, storage_options, column, progress))]
pub(crate) fn verify(
    py: Python<'_>,
    urls: Vec<String>,
    storage_options: BTreeMap<String, String>,
    column: Option<String>,
    progress: &Bound<'_, PyAny>,
) -> PyResult<ReportTuple> {
    let options = VerifyOptions { storage_options, column, threads: None };
    let (cancel, counts) = (Cancel::new(), Progress::new());
    let tick = |_: Python<'_>| tell(progress, &counts);
    let report = blocking(py, &cancel, tick, || inspect::verify(&urls, &options, &cancel, &counts))?;
    let faults = report.faults.into_iter();
    let faults = faults.map(|fault| (fault.uri, fault.row_group, fault.column, fault.row, fault.message));
    Ok(((report.files, report.row_groups, report.rows, report.tokens), faults.collect()))
}

/// How a rank's memory is shared out: bytes of its batches and buffers, which it holds beside decoded windows, and of one
/// read.
///
/// Raises BudgetError if `memory` is too small for them.
#[pyfunction]
#[pyo3(signature = (run, steps, *, world, workers, memory, prefetch))]
pub(crate) fn shares(
    run: &Run,
    steps: &Steps,
    world: u64,
    workers: usize,
    memory: u64,
    prefetch: usize,
) -> PyResult<(u64, usize)> {
    check_rank(world, 0)?;
    let shares = Shares::new(&run.0, &options(steps, world, 0, (workers, memory, prefetch))).map_err(to_python)?;
    Ok((shares.fixed, shares.block))
}

/// Reads what a rank reads in one pass, as a run does, and decodes nothing; gives the bytes.
///
/// Raises BudgetError if `memory` is too small for one step.
#[pyfunction]
#[pyo3(signature = (run, steps, *, epoch, world, rank, workers, memory, prefetch))]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn fetch(
    py: Python<'_>,
    run: &Run,
    steps: &Steps,
    epoch: u64,
    world: u64,
    rank: u64,
    workers: usize,
    memory: u64,
    prefetch: usize,
) -> PyResult<u64> {
    check_rank(world, rank)?;
    let options = options(steps, world, rank, (workers, memory, prefetch));
    let cancel = Cancel::new();
    blocking(py, &cancel, |_| Ok(()), || engine::fetch(&run.0, &options, epoch, &cancel))
}

/// What a rank wants of a run from its start, with (workers, memory, prefetch).
fn options(steps: &Steps, world: u64, rank: u64, (workers, memory, prefetch): (usize, u64, usize)) -> Options {
    let (steps, spill) = (steps.0.clone(), PathBuf::new());
    Options {
        world,
        rank,
        steps,
        start: 0,
        stop: None,
        skip: Vec::new(),
        workers,
        memory,
        prefetch,
        spill,
        layout: LayOut::Auto,
        part: None,
    }
}

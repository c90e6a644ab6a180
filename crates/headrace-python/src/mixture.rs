//! Mixtures: which source each row comes from, and where the rows of a step come from there.

use std::path::PathBuf;
use std::sync::Arc;

use headrace::cancel::Cancel;
use headrace::engine::{self, LayOut, Options};
use headrace::order::{self, Exhausted, Phase, Strides};
use pyo3::prelude::*;

use crate::batch::{Batch, Runs, SourceTuple};
use crate::blocking::blocking;
use crate::buffer::Buffer;
use crate::errors::to_python;
use crate::run::{Run, Steps, check_rank};

/// Where each row of a mixture comes from.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct Mixture(pub(crate) Arc<order::Mixture>);

#[pymethods]
impl Mixture {
    #[classattr]
    const MOST_ROUNDS: u64 = order::MOST_ROUNDS;

    /// From phases: (first round, its draw, rounds a draw, weights). `limits` are the tokens that the lanes of each source
    /// are dealt, of which the last `overlap` of each begin no row; where one has no row left, the mixture ends if
    /// `stop`, or else goes on without it. Rows have `seq_len` tokens, 1 where they are counted themselves, and by `changes`
    /// others from some rounds on.
    #[new]
    #[pyo3(signature = (*, seed, lanes, together, source_lanes, phases, limits, stop, seq_len = 1, overlap = 0,
                        changes = vec![]))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of one call from loading/mixture.py")]
    fn new(
        py: Python<'_>,
        seed: u64,
        lanes: u64,
        together: bool,
        source_lanes: Vec<u64>,
        phases: Vec<(u64, u64, u64, Vec<f64>)>,
        limits: Vec<Option<u64>>,
        stop: bool,
        seq_len: u64,
        overlap: u64,
        changes: Vec<(u64, u64)>,
    ) -> PyResult<Self> {
        let phase = |(round, draw, every, weights)| Phase { round, draw, every, weights };
        let phases = phases.into_iter().map(phase).collect();
        let exhausted = if stop { Exhausted::Stop } else { Exhausted::Leave };
        let made = py.detach(|| {
            let mut changes = changes.into_iter();
            let lengths =
                changes.try_fold(Strides::new(seq_len), |lengths, (round, seq_len)| lengths.changed(round, seq_len))?;
            let mut mixture = order::Mixture::new(seed, lanes, together, source_lanes, phases, lengths)?;
            mixture.limit(&limits, overlap, exhausted)?;
            Ok(mixture)
        });
        made.map(|mixture| Self(Arc::new(mixture))).map_err(to_python)
    }

    /// Rows until it ends; None for one without end.
    #[getter]
    fn rows(&self) -> Option<u64> {
        self.0.rows()
    }

    /// The source of each row from `begin` to before `end`.
    fn sources(&self, begin: u64, end: u64) -> Buffer {
        Buffer::u32((begin..end).map(|row| self.0.source(row) as u32).collect())
    }

    /// How many of the first `row` rows each source has given.
    fn counts(&self, py: Python<'_>, row: u64) -> Vec<u64> {
        py.detach(|| self.0.counts(row))
    }

    /// The first pass over a source that begins behind all of its tokens that are among the first `row` rows.
    fn pass_after(&self, py: Python<'_>, source: usize, run: &Run, row: u64) -> u64 {
        let pass = |row| run.0.rows().pass_after(row);
        py.detach(|| self.0.last_rows(source, row).into_iter().map(pass).max().unwrap_or(0))
    }

    /// Whether a source that had no row left went before the last of the first `row` rows.
    fn has_left(&self, source: usize, row: u64) -> bool {
        self.0.has_left(source, row)
    }

    /// The weights that hold in a round: 0 for sources that have left.
    fn weights(&self, round: u64) -> Vec<f64> {
        self.0.weights(round).to_vec()
    }
}

/// Weights as whole parts of 2^48.
#[pyfunction]
pub(crate) fn weight_points(weights: Vec<f64>) -> PyResult<Vec<u64>> {
    order::shares(&weights).map_err(to_python)
}

/// The runs of a mixture's sources, to be shared between threads.
pub(crate) fn shared(runs: &[Option<PyRef<'_, Run>>]) -> Runs {
    runs.iter().map(|run| run.as_ref().map(|run| Arc::clone(&run.0))).collect()
}

/// Where each row of a rank's part of a mixture's step comes from.
#[pyfunction]
#[pyo3(signature = (mixture, runs, steps, *, world, rank, step, workers, memory, spill))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments of one call from loading/mixture.py")]
pub(crate) fn mixed_sources(
    py: Python<'_>,
    mixture: &Mixture,
    runs: Vec<Option<PyRef<'_, Run>>>,
    steps: &Steps,
    world: u64,
    rank: u64,
    step: u64,
    workers: usize,
    memory: u64,
    spill: PathBuf,
) -> PyResult<Vec<Vec<SourceTuple>>> {
    check_rank(world, rank)?;
    let steps = steps.0.clone();
    let options = Options {
        world,
        rank,
        steps,
        start: step,
        stop: None,
        skip: Vec::new(),
        workers,
        memory,
        prefetch: 1,
        spill,
        layout: LayOut::Auto,
        part: None,
    };
    let (mixture, runs) = (Arc::clone(&mixture.0), shared(&runs));
    let cancel = Cancel::new();
    let batch = blocking(py, &cancel, |_| Ok(()), || engine::mixed_sources(mixture, &runs, options, &cancel))?;
    Ok(batch.map_or_else(Vec::new, |batch| Batch::new(batch, runs).source_tuples()))
}

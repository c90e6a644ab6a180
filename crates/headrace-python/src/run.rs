//! Runs and steps: the arithmetic of the order for the loader's control plane.

use std::sync::Arc;

use headrace::engine::{self, Changes, PackSpec};
use headrace::order::{self, OrderSpec, Remainder};
use headrace::pack::Specials;
use headrace::state::{self, Segment};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::to_python;
use crate::index::Index;
use crate::mixture::Mixture;

/// A token column in its order, packed.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct Run(pub(crate) Arc<engine::Run>);

#[pymethods]
impl Run {
    #[new]
    #[pyo3(signature = (index, column, *, seed, shuffle, lanes, window, seq_len, overlap, bos_id, eos_id, boundaries,
                        wide, pad_id, epochs, pad, changes = vec![], data = vec![]))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of one call from loader.py")]
    fn new(
        index: &Index,
        column: &str,
        seed: u64,
        shuffle: bool,
        lanes: u64,
        window: u64,
        seq_len: u64,
        overlap: u64,
        bos_id: Option<i32>,
        eos_id: Option<i32>,
        boundaries: bool,
        wide: bool,
        pad_id: i32,
        epochs: Option<u64>,
        pad: bool,
        changes: Vec<(u64, u64)>,
        data: Vec<(u64, u64)>,
    ) -> PyResult<Self> {
        let (index, column) = index.column(column)?;
        let spec = OrderSpec { seed, shuffle, lanes, window };
        let specials = Specials { bos: bos_id, eos: eos_id };
        let pack = PackSpec { seq_len, overlap, specials, boundaries, wide, pad_id };
        let remainder = if pad { Remainder::Pad } else { Remainder::Drop };
        let changes = Changes { lengths: &changes, data: &data };
        let run = engine::Run::new(index, column, spec, pack, changes, epochs, remainder);
        run.map(|run| Self(Arc::new(run))).map_err(to_python)
    }

    /// The same as a source of a mixture, whose rows change their length where those of its rounds do.
    fn in_mixture(&self, py: Python<'_>, mixture: &Mixture, source: usize) -> PyResult<Self> {
        let run = py.detach(|| self.0.in_mixture(&mixture.0, source));
        run.map(|run| Self(Arc::new(run))).map_err(to_python)
    }

    /// Windows in a pass to come.
    #[getter]
    fn windows(&self) -> u64 {
        self.0.order().passes().windows()
    }

    /// The first pass that begins behind all tokens of the first `rows` rows.
    fn pass_after(&self, rows: u64) -> u64 {
        rows.checked_sub(1).map_or(0, |last| self.0.rows().pass_after(last))
    }

    /// Rows of a finite run; None for one without end.
    #[getter]
    fn row_count(&self) -> Option<u64> {
        self.0.rows().count()
    }

    /// Tokens that the first `rows` rows of a finite run leave out; None for a run without end.
    fn left_out(&self, rows: u64) -> Option<u64> {
        self.0.rows().left_out(rows)
    }

    /// Tokens of the first `rows` rows, an overlap's once.
    fn tokens_before(&self, rows: u64) -> u64 {
        self.0.rows().tokens_before(rows)
    }

    /// Raises ValueError if a row is beyond counting.
    fn check_row(&self, row: u64) -> PyResult<()> {
        self.0.rows().check_countable(row).map_err(to_python)
    }

    /// Raises ValueError if an epoch cannot fill a global batch of this size.
    fn check_enough(&self, batch: u64) -> PyResult<()> {
        self.0.rows().check_enough(batch).map_err(to_python)
    }
}

/// How rows are grouped to steps, past and to come.
#[pyclass(frozen, module = "headrace._core")]
#[derive(Clone)]
pub(crate) struct Steps(pub(crate) state::Steps);

#[pymethods]
impl Steps {
    /// From (step, row, batch size) triples, of which the first must be (0, 0, n).
    #[new]
    fn new(segments: Vec<(u64, u64, u64)>) -> PyResult<Self> {
        let segments = segments.into_iter().map(|(step, row, batch)| Segment { step, row, batch }).collect();
        state::Steps::from_segments(segments).map(Self).map_err(to_python)
    }

    /// The same with another batch size from `step` on; what was said about later steps is forgotten.
    fn with_batch(&self, step: u64, batch: u64) -> PyResult<Self> {
        let mut steps = self.0.clone();
        steps.set_batch(step, batch).map_err(to_python)?;
        Ok(Self(steps))
    }

    /// The (step, row, batch size) triples.
    #[getter]
    fn segments(&self) -> Vec<(u64, u64, u64)> {
        self.0.segments().iter().map(|segment| (segment.step, segment.row, segment.batch)).collect()
    }

    /// The largest batch size.
    #[getter]
    fn largest_batch(&self) -> u64 {
        self.0.largest_batch()
    }

    /// The first row of a step.
    fn row_of(&self, step: u64) -> u64 {
        self.0.row_of(step)
    }

    /// The batch size of a step.
    fn batch_of(&self, step: u64) -> u64 {
        self.0.batch_of(step)
    }

    /// The number of steps that the first `rows` rows fill.
    fn whole(&self, rows: u64) -> u64 {
        self.0.whole(rows)
    }

    /// The epoch of a step; the number of epochs at and after a finite run's end.
    fn epoch_of(&self, run: &Run, step: u64) -> u64 {
        self.0.epoch_of(run.0.rows(), step)
    }

    /// The first step of an epoch.
    fn first_step(&self, run: &Run, epoch: u64) -> u64 {
        self.0.first_step_of_epoch(run.0.rows(), epoch)
    }

    /// Steps of a finite run; None for one without end.
    fn end(&self, run: &Run) -> Option<u64> {
        self.0.end(run.0.rows())
    }
}

/// The lanes that a run has by default.
#[pyfunction]
pub(crate) fn default_lanes(batch: u64, documents: u64, chunks: u64, window: u64) -> u64 {
    order::default_lanes(batch, documents, chunks, window)
}

/// The chunks that a window holds by default.
#[pyfunction]
pub(crate) fn default_window(chunks: u64, weight: u64, lanes: u64) -> u64 {
    order::default_window(chunks, weight, lanes)
}

/// Turns a rank and a number of ranks that do not fit into an error.
pub(crate) fn check_rank(world: u64, rank: u64) -> PyResult<()> {
    if world == 0 || rank >= world {
        let message = format!("rank must be in 0..world_size, got rank={rank}, world_size={world}");
        return Err(PyValueError::new_err(message));
    }
    Ok(())
}

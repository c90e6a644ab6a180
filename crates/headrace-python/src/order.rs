//! The orders of samples.

use std::sync::{Arc, Mutex, PoisonError};

use headrace::order::{self, OrderSpec, Pass};
use headrace::per_process::PerProcess;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::buffer::{Buffer, numbers};
use crate::errors::to_python;

/// Passes that are kept: the current one, the next where a window is fetched ahead, and one that is looked at.
const PASSES: usize = 3;

/// The order of items in chunks.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct ItemOrder {
    order: order::ItemOrder,
    /// Those used last, the latest at the end.
    passes: PerProcess<Mutex<Vec<Arc<Pass>>>>,
}

impl ItemOrder {
    /// The pass of a row. Only called detached.
    fn pass(&self, row: u64) -> headrace::Result<Arc<Pass>> {
        self.order.check_row(row)?;
        let epoch = self.order.epoch_of(row);
        let mut passes = self.passes.get().lock().unwrap_or_else(PoisonError::into_inner);
        let pass = match passes.iter().position(|pass| pass.epoch == epoch) {
            Some(at) => passes.remove(at),
            None => Arc::new(self.order.pass(epoch)),
        };
        if passes.len() == PASSES {
            passes.remove(0);
        }
        passes.push(Arc::clone(&pass));
        Ok(pass)
    }
}

#[pymethods]
impl ItemOrder {
    #[new]
    #[pyo3(signature = (weights, *, seed, shuffle, lanes, window))]
    fn new(weights: &Bound<'_, PyAny>, seed: u64, shuffle: bool, lanes: u64, window: u64) -> PyResult<Self> {
        let weights: Result<Vec<u64>, _> = numbers(weights)?.into_iter().map(u64::try_from).collect();
        let weights = weights.map_err(|_| PyValueError::new_err("a chunk has a negative number of items"))?;
        let spec = OrderSpec { seed, shuffle, lanes, window };
        let order = order::ItemOrder::new(spec, weights.into()).map_err(to_python)?;
        Ok(Self { order, passes: PerProcess::default() })
    }

    /// Items of a pass.
    #[getter]
    fn total(&self) -> u64 {
        self.order.total()
    }

    /// Windows of a pass.
    #[getter]
    fn windows(&self) -> u64 {
        self.order.windows()
    }

    /// The window that holds a row: its rows from `begin` to before `end`, and of each the chunk and the item in it.
    fn window_at(&self, py: Python<'_>, row: u64) -> PyResult<(u64, u64, Buffer, Buffer)> {
        let found = py.detach(|| {
            let pass = self.pass(row)?;
            self.order.items(&pass, &self.order.window(&pass, row))
        });
        let found = found.map_err(to_python)?;
        Ok((found.rows.start, found.rows.end, Buffer::u32(found.chunks), Buffer::u32(found.items)))
    }

    /// The same window's rows, and its chunks in the order of the pass.
    fn window_chunks(&self, py: Python<'_>, row: u64) -> PyResult<(u64, u64, Vec<u32>)> {
        let found = py.detach(|| {
            let pass = self.pass(row)?;
            let window = self.order.window(&pass, row);
            let chunks = pass.chunks[window.chunks.clone()].to_vec();
            Ok((window.begin, window.end(), chunks))
        });
        found.map_err(to_python)
    }
}

/// The chunks that a window of items holds by default.
#[pyfunction]
pub(crate) fn default_item_window(chunks: u64, items: u64, stored_bytes: u64, lanes: u64) -> u64 {
    order::default_item_window(chunks, items, stored_bytes, lanes)
}

/// A bijection on `range(size)`.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct Permutation(order::Permutation);

impl Permutation {
    /// What it is.
    pub(crate) fn order(&self) -> order::Permutation {
        self.0.clone()
    }
}

#[pymethods]
impl Permutation {
    #[new]
    #[pyo3(signature = (size, *, seed, epoch))]
    fn new(size: u64, seed: u64, epoch: u64) -> PyResult<Self> {
        order::Permutation::new(size, seed, epoch).map(Self).map_err(to_python)
    }

    /// How many numbers are permuted.
    #[getter]
    fn size(&self) -> u64 {
        self.0.size()
    }

    /// What stands at the places from `begin` to before `end`.
    fn take(&self, py: Python<'_>, begin: u64, end: u64) -> PyResult<Buffer> {
        let made = py.detach(|| {
            let mut numbers = Vec::new();
            self.0.take(begin..end, &mut numbers).map(|()| numbers)
        });
        made.map(Buffer::i64).map_err(to_python)
    }
}

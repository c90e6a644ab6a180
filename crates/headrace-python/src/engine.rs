//! The engine's handle.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use headrace::cancel::Cancel;
use headrace::engine::{self, LayOut, Next, Options};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch::{Batch, Runs, SourceTuple, source_tuples};
use crate::blocking::{POLL, blocking};
use crate::errors::to_python;
use crate::mixture::{Mixture, shared};
use crate::run::{Run, Steps, check_rank};

/// What feeds a rank.
enum Feed {
    Run(engine::Engine),
    Mixture(Box<engine::MixedEngine>),
}

/// Feeds one rank of a run, or of a mixture of several.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct Engine {
    /// `None` once closed.
    engine: Mutex<Option<Arc<Feed>>>,
    /// By their number in a mixture.
    runs: Runs,
    /// Set while a thread waits in `next`.
    busy: AtomicBool,
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (run, steps, *, world, rank, start, skip, workers, memory, prefetch, spill))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of one call from loader.py")]
    fn new(
        py: Python<'_>,
        run: &Run,
        steps: &Steps,
        world: u64,
        rank: u64,
        start: u64,
        skip: Vec<(u64, u64)>,
        workers: usize,
        memory: u64,
        prefetch: usize,
        spill: PathBuf,
    ) -> PyResult<Self> {
        check_rank(world, rank)?;
        let skip = skip.into_iter().map(|(start, stop)| Range { start, end: stop }).collect();
        let steps = steps.0.clone();
        let options = Options {
            world,
            rank,
            steps,
            start,
            stop: None,
            skip,
            workers,
            memory,
            prefetch,
            spill,
            layout: LayOut::Auto,
            part: None,
        };
        let run = Arc::clone(&run.0);
        let engine = py.detach(|| engine::Engine::start(Arc::clone(&run), options)).map_err(to_python)?;
        Ok(Self::over(Feed::Run(engine), Arc::new([Some(run)])))
    }

    /// Feeds one rank of a mixture; `runs` are its sources, None for those that are never drawn.
    #[staticmethod]
    #[pyo3(signature = (mixture, runs, steps, *, world, rank, start, skip, workers, memory, prefetch, spill))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of one call from loading/mixture.py")]
    fn mixed(
        py: Python<'_>,
        mixture: &Mixture,
        runs: Vec<Option<PyRef<'_, Run>>>,
        steps: &Steps,
        world: u64,
        rank: u64,
        start: u64,
        skip: Vec<(u64, u64)>,
        workers: usize,
        memory: u64,
        prefetch: usize,
        spill: PathBuf,
    ) -> PyResult<Self> {
        check_rank(world, rank)?;
        let skip = skip.into_iter().map(|(start, stop)| Range { start, end: stop }).collect();
        let steps = steps.0.clone();
        let options = Options {
            world,
            rank,
            steps,
            start,
            stop: None,
            skip,
            workers,
            memory,
            prefetch,
            spill,
            layout: LayOut::Auto,
            part: None,
        };
        let (mixture, runs) = (Arc::clone(&mixture.0), shared(&runs));
        let engine = py.detach(|| engine::MixedEngine::start(mixture, &runs, options)).map_err(to_python)?;
        Ok(Self::over(Feed::Mixture(Box::new(engine)), runs))
    }

    /// Waits for the next batch; None at the run's end. Ctrl-C interrupts, and nothing is lost by it.
    ///
    /// Raises TimeoutError after `timeout` seconds, RuntimeError if another thread is in here.
    #[pyo3(signature = (timeout = None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Batch>> {
        if self.busy.swap(true, Ordering::Acquire) {
            return Err(PyRuntimeError::new_err("another thread is waiting for this loader's next batch"));
        }
        let batch = self.wait(py, timeout);
        self.busy.store(false, Ordering::Release);
        batch
    }

    /// Ends the engine's threads, and waits for them.
    fn close(&self, py: Python<'_>) {
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(engine));
    }

    /// What was done so far.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = PyDict::new(py);
        if let Some(engine) = self.engine() {
            let total;
            let counters = match &*engine {
                Feed::Run(engine) => engine.counters(),
                Feed::Mixture(engine) => {
                    total = engine.counters();
                    &total
                }
            };
            counts.set_item("windows", counters.windows.load(Ordering::Relaxed))?;
            counts.set_item("windows_spilled", counters.spilled.load(Ordering::Relaxed))?;
            counts.set_item("window_bytes", counters.peak.load(Ordering::Relaxed))?;
            counts.set_item("chunk_bytes", counters.bytes.load(Ordering::Relaxed))?;
            counts.set_item("preview_bytes", counters.preview.load(Ordering::Relaxed))?;
        }
        Ok(counts)
    }
}

impl Engine {
    fn over(feed: Feed, runs: Runs) -> Self {
        Self { engine: Mutex::new(Some(Arc::new(feed))), runs, busy: AtomicBool::new(false) }
    }

    fn engine(&self) -> Option<Arc<Feed>> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Batch>> {
        let Some(engine) = self.engine() else { return Ok(None) };
        let started = std::time::Instant::now();
        loop {
            let next = py.detach(|| match &*engine {
                Feed::Run(engine) => engine.next(POLL),
                Feed::Mixture(engine) => engine.next(POLL),
            });
            match next.map_err(to_python)? {
                Next::Batch(batch) => return Ok(Some(Batch::new(*batch, Arc::clone(&self.runs)))),
                Next::End => return Ok(None),
                Next::Pending => py.check_signals()?,
            }
            if let Some(timeout) = timeout.filter(|&timeout| started.elapsed().as_secs_f64() > timeout) {
                let message = format!("no batch within timeout={timeout} seconds");
                return Err(pyo3::exceptions::PyTimeoutError::new_err(message));
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let engine = self.engine.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // Detached, if there is still an interpreter to detach from: its threads are waited for.
        Python::try_attach(|py| py.detach(|| drop(engine)));
    }
}

/// Where each row of a rank's part of a step comes from.
#[pyfunction]
#[pyo3(signature = (run, steps, *, world, rank, step, workers, memory, spill))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments of one call from loader.py")]
pub(crate) fn sources(
    py: Python<'_>,
    run: &Run,
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
    let cancel = Cancel::new();
    let run = &run.0;
    let rows = blocking(py, &cancel, |_| Ok(()), || engine::sources(Arc::clone(run), options, &cancel))?;
    Ok(rows.iter().map(|spans| source_tuples(run, spans)).collect())
}

/// Stored bytes, decoded bytes of the largest window, windows, and requests of `block` bytes to a remote store that a
/// rank reads in one pass.
#[pyfunction]
#[pyo3(signature = (run, *, epoch, batch, world, rank, block))]
pub(crate) fn report(
    py: Python<'_>,
    run: &Run,
    epoch: u64,
    batch: u64,
    world: u64,
    rank: u64,
    block: usize,
) -> PyResult<(u64, u64, u64, u64)> {
    check_rank(world, rank)?;
    let report = py.detach(|| engine::report(&run.0, epoch, batch, world, rank, block.max(1))).map_err(to_python)?;
    Ok((report.bytes, report.window_bytes, report.windows, report.requests))
}

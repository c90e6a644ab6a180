//! The thread that leads: it has windows decoded in time, and has batches assembled in order.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crossbeam_channel::Sender;

use super::assemble::{Assembler, Job};
use super::batch::Batch;
use super::cursor::Windows;
use super::memory::{Budget, Shelf};
use super::pool::{Pool, guarded};
use super::run::Run;
use super::shares::Shares;
use super::supply::Supply;
use crate::cancel::Cancel;
use crate::error::Result;
use crate::order::rank_rows;
use crate::state::Steps;

/// What a rank wants of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Ranks.
    pub world: u64,
    /// Which one.
    pub rank: u64,
    /// How rows are grouped to steps.
    pub steps: Steps,
    /// The first step.
    pub start: u64,
    /// The step before which to stop; `None` for the run's end, if it has one.
    pub stop: Option<u64>,
    /// Steps that are passed over.
    pub skip: Vec<Range<u64>>,
    /// Threads that decode and assemble, at least 1.
    pub workers: usize,
    /// Bytes of anonymous memory.
    pub memory: u64,
    /// Batches that are ready ahead of use, at least 1.
    pub prefetch: usize,
    /// Where windows go that the budget does not hold.
    pub spill: PathBuf,
    /// Which windows are laid out in the order of use.
    pub layout: LayOut,
}

/// Which windows are laid out in the order of use, of those that are shuffled and for which the budget has room so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LayOut {
    /// Those for which it pays.
    #[default]
    Auto,
    /// None.
    Never,
    /// All, in blocks of so many bytes.
    Always(usize),
}

/// What an engine did so far.
#[derive(Debug, Default)]
pub struct Counters {
    /// Windows decoded.
    pub windows: AtomicU64,
    /// Of those, windows that were decoded into a spill file.
    pub spilled: AtomicU64,
    /// And windows that were laid out in the order of use.
    pub laid: AtomicU64,
    /// Stored bytes of the chunks that were asked for.
    pub bytes: AtomicU64,
    /// The most bytes that windows held at once, of those in memory.
    pub peak: AtomicU64,
    /// Bytes that were read for the first batch before its window, and then again with that.
    pub preview: Arc<AtomicU64>,
}

/// Leads one rank through a run; lives on a thread of its own.
pub(super) struct Conductor {
    run: Arc<Run>,
    options: Arc<Options>,
    cancel: Cancel,
    pool: Arc<Pool>,
    supply: Supply,
    assembler: Assembler,
    ahead: usize,
    /// Whether no batch was made yet.
    is_first: bool,
    /// Batches that are assembled at once: now, and at most.
    group: (usize, usize),
}

impl Conductor {
    pub(super) fn new(run: Arc<Run>, options: Options, counters: Arc<Counters>, cancel: Cancel) -> Result<Self> {
        let shares = Shares::new(&run, &options)?;
        let (pool, options) = (Arc::new(Pool::start(options.workers, shares.block)?), Arc::new(options));
        // Batches are charged in `fixed`: no more are alive before they are handed over.
        let batches = Shelf::new(&Budget::new(u64::MAX), shares.ready + shares.group);
        Ok(Self {
            supply: Supply::new(&run, &options, &shares, &pool, counters, cancel.clone()),
            assembler: Assembler::new(Arc::clone(&run), batches),
            ahead: shares.groups_ahead(),
            is_first: true,
            group: (1, shares.group),
            pool,
            cancel,
            options,
            run,
        })
    }

    /// How many groups of batches may wait to be taken.
    pub(super) fn groups_ahead(&self) -> usize {
        self.ahead
    }

    /// Sends batches until the end, a fault, or until nobody listens.
    pub(super) fn lead(mut self, groups: &Sender<Result<Vec<Batch>>>) {
        let end = self.options.steps.end(self.run.rows());
        let end = [end, self.options.stop].into_iter().flatten().min().unwrap_or(u64::MAX);
        let mut step = self.options.start;
        while step < end {
            if let Some(skipped) = self.skipped(step) {
                step = skipped.end;
                continue;
            }
            match guarded(|| self.steps(step, end)) {
                Ok(group) => {
                    step += group.len() as u64;
                    if groups.send(Ok(group)).is_err() {
                        return;
                    }
                }
                Err(error) => {
                    // Nobody may be listening any more.
                    drop(groups.send(Err(error)));
                    return;
                }
            }
        }
    }

    fn skipped(&self, step: u64) -> Option<Range<u64>> {
        self.options.skip.iter().find(|skipped| skipped.contains(&step)).cloned()
    }

    fn job(&self, step: u64) -> Job {
        let steps = &self.options.steps;
        let (first, batch) = (steps.row_of(step), steps.batch_of(step));
        let epoch = self.run.rows().epoch_of(first);
        let rows = rank_rows(self.run.rows().lanes, first, batch, self.options.world, self.options.rank);
        Job { step, epoch, rows }
    }

    /// The last window that a batch needs; `None` for one of nothing but padding.
    fn last_window(&mut self, job: &Job) -> Option<u64> {
        let last = job.rows.iter().filter_map(|&row| self.run.rows().last_unit(row)).max()?;
        Some(self.supply.ordinal_of(last))
    }

    /// The batch of a step, and of those before `end` that follow it and need no other window.
    fn steps(&mut self, step: u64, end: u64) -> Result<Vec<Batch>> {
        self.cancel.check()?;
        let job = self.job(step);
        let unit = self.run.rows().first_unit(self.options.steps.row_of(step));
        self.assembler.retire(unit);
        self.supply.retire(unit);
        let Some(needed) = self.last_window(&job) else {
            return self.assembler.batches(&self.pool, &Windows(Arc::new([])), vec![job]);
        };
        if std::mem::take(&mut self.is_first)
            && let Some(windows) = self.supply.preview(&job, needed)?
        {
            let batches = self.assembler.batches(&self.pool, &windows, vec![job])?;
            self.assembler.forget();
            return Ok(batches);
        }
        let windows = self.supply.ready(step, needed, &mut self.assembler)?;
        let mut jobs = vec![job];
        while jobs.len() < self.group.0 {
            let step = step + jobs.len() as u64;
            if step >= end || self.skipped(step).is_some() {
                break;
            }
            let job = self.job(step);
            if self.last_window(&job).is_none_or(|last| last > needed) {
                break;
            }
            jobs.push(job);
        }
        // At first none waits for others.
        self.group.0 = (self.group.0 * 2).min(self.group.1);
        self.assembler.batches(&self.pool, &windows, jobs)
    }
}

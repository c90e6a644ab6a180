//! The thread that leads: it has windows decoded in time, and has batches assembled in order.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crossbeam_channel::Sender;

use super::assemble::{Assembler, Job};
use super::batch::Batch;
use super::board::Board;
use super::cursor::Windows;
use super::decode::Loans;
use super::demand::{Demand, Part};
use super::drafts::DraftShelves;
use super::memory::{Budget, Shelf};
use super::pool::{Pool, guarded};
use super::run::Run;
use super::shares::Shares;
use super::supply::{AHEAD_BYTES, Supply};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
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
    /// Of a run that is a mixture's source: its place there.
    pub part: Option<Part>,
}

impl Options {
    /// Whether only the first step is wanted.
    pub fn is_one_step(&self) -> bool {
        self.stop == Some(self.start + 1)
    }

    /// Refuses steps of rows of several lengths, which change at row `changed` for the last time.
    ///
    /// # Errors
    /// [`Error::Argument`] that names both.
    pub(super) fn check_behind(&self, changed: u64) -> Result<()> {
        let step = self.start;
        if self.steps.row_of(step) < changed && !self.is_one_step() {
            let message = format!("step {step} lies before row {changed}, where rows change their length");
            return Err(Error::Argument(message));
        }
        Ok(())
    }
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

/// What a conductor may use, some of it together with others.
pub(super) struct Means {
    pub pool: Arc<Pool>,
    /// For windows.
    pub budget: Arc<Budget>,
    pub loans: Arc<Loans>,
    pub drafts: Arc<DraftShelves>,
    /// Bytes of one read.
    pub block: usize,
    /// Batches that are assembled at once, at most.
    pub group: usize,
    /// Windows smaller than this are decoded several ahead.
    pub ahead_bytes: u64,
    pub counters: Arc<Counters>,
    pub cancel: Cancel,
}

impl Means {
    /// Those of a conductor that is alone.
    pub(super) fn new(options: &Options, shares: &Shares, counters: Arc<Counters>, cancel: Cancel) -> Result<Self> {
        Ok(Self {
            pool: Arc::new(Pool::start(options.workers, shares.block)?),
            budget: Budget::new(shares.windows(options.memory)),
            loans: Arc::new(Loans::new(options.memory, shares)),
            drafts: DraftShelves::new(1),
            block: shares.block,
            group: shares.group,
            ahead_bytes: AHEAD_BYTES,
            counters,
            cancel,
        })
    }
}

/// Leads one rank through a run; lives on a thread of its own.
pub(super) struct Conductor {
    run: Arc<Run>,
    options: Arc<Options>,
    cancel: Cancel,
    pool: Arc<Pool>,
    demand: Demand,
    supply: Supply,
    /// Whether no batch was made yet.
    is_first: bool,
    /// Batches that are assembled at once: now, and at most.
    group: (usize, usize),
}

/// Batches that are to be written at once.
struct Work {
    windows: Windows,
    jobs: Vec<Job>,
    /// The step after them.
    next: u64,
    /// Whether the windows are good for these alone.
    is_preview: bool,
}

impl Conductor {
    pub(super) fn new(run: &Arc<Run>, options: &Arc<Options>, means: Means) -> Self {
        let demand = Demand::new(run, options);
        Self {
            cancel: means.cancel.clone(),
            pool: Arc::clone(&means.pool),
            is_first: true,
            group: (1, means.group),
            supply: Supply::new(run, options, &demand, means),
            demand,
            options: Arc::clone(options),
            run: Arc::clone(run),
        }
    }

    /// Sends batches, which live in memory from `shelf`, until the end, a fault, or until nobody listens.
    pub(super) fn lead(mut self, shelf: Arc<Shelf>, groups: &Sender<Result<Vec<Batch>>>) {
        let mut assembler = Assembler::new(Arc::clone(&self.run), shelf);
        let end = self.demand.end();
        let mut step = self.options.start;
        while step < end {
            if let Some(skipped) = self.skipped(step) {
                step = skipped.end;
                continue;
            }
            let group = guarded(|| {
                let job = self.demand.job(step);
                let work = self.work(job, end, &|_| true, &mut assembler)?;
                let batches = assembler.batches(&self.pool, &work.windows, work.jobs)?;
                if work.is_preview {
                    assembler.forget();
                }
                Ok((batches, work.next))
            });
            let (group, next) = match group {
                Ok((batches, next)) => (Ok(batches), next),
                Err(error) => (Err(error), end),
            };
            if groups.send(group).is_err() {
                return;
            }
            step = next;
        }
    }

    /// Writes the rows of a mixture's source to its batches, until the end, a fault, or until nobody wants them.
    pub(super) fn feed(mut self, board: &Board, source: usize) {
        let mut assembler = Assembler::new(Arc::clone(&self.run), Shelf::new(&Budget::new(0), 0));
        let end = self.demand.end();
        let mut step = self.options.start;
        while step < end && board.wait(step, &self.cancel) {
            if let Some(skipped) = self.skipped(step) {
                step = skipped.end;
                continue;
            }
            match guarded(|| self.write(step, end, board, source, &mut assembler)) {
                Ok(next) => step = next,
                Err(error) => return board.fail(step, error),
            }
        }
    }

    /// Writes the rows of a step to the board, and those of some that follow it; gives the step after them.
    fn write(&mut self, step: u64, end: u64, board: &Board, source: usize, assembler: &mut Assembler) -> Result<u64> {
        let job = self.demand.job(step);
        if job.rows.is_empty() {
            // Its time will come.
            self.supply.begin(&self.demand)?;
            return Ok(step + 1);
        }
        let work = self.work(job, end, &|step| board.is_open(step), assembler)?;
        let rooms = work.jobs.iter().map(|job| board.room(job.step, &job.places)).collect::<Result<_>>()?;
        let mut rows = assembler.rows(&self.pool, &work.windows, &work.jobs, rooms)?;
        for job in &work.jobs {
            board.put(job.step, source, job.places.iter().copied().zip(rows.by_ref()))?;
        }
        board.tell();
        if work.is_preview {
            assembler.forget();
        }
        Ok(work.next)
    }

    fn skipped(&self, step: u64) -> Option<Range<u64>> {
        self.options.skip.iter().find(|skipped| skipped.contains(&step)).cloned()
    }

    /// The last window that a batch needs; `None` for one of nothing but padding.
    fn last_window(&mut self, job: &Job) -> Option<u64> {
        let last = job.rows.iter().filter_map(|&row| self.run.rows().last_unit(row)).max()?;
        Some(self.supply.ordinal_of(last))
    }

    /// A batch with the windows that it needs, and those before `end` that follow it, may be begun, and need no other.
    fn work(&mut self, job: Job, end: u64, is_open: &dyn Fn(u64) -> bool, assembler: &mut Assembler) -> Result<Work> {
        self.cancel.check()?;
        let mut next = job.step + 1;
        self.demand.go(job.step);
        let unit = self.demand.first_unit();
        assembler.retire(unit);
        self.supply.retire(unit);
        let Some(needed) = self.last_window(&job) else {
            return Ok(Work { windows: Windows(Arc::new([])), jobs: vec![job], next, is_preview: false });
        };
        if std::mem::take(&mut self.is_first)
            && let Some(windows) = self.supply.preview(&job, needed)?
        {
            return Ok(Work { windows, jobs: vec![job], next, is_preview: true });
        }
        let windows = self.supply.ready(&self.demand, needed, assembler)?;
        let mut jobs = vec![job];
        while jobs.len() < self.group.0 && next < end && self.skipped(next).is_none() && is_open(next) {
            let job = self.demand.job(next);
            // A mixture's source has no rows in some steps.
            if !job.rows.is_empty() {
                if self.last_window(&job).is_none_or(|last| last > needed) {
                    break;
                }
                jobs.push(job);
            }
            next += 1;
        }
        // At first none waits for others.
        self.group.0 = (self.group.0 * 2).min(self.group.1);
        Ok(Work { windows, jobs, next, is_preview: false })
    }
}

//! Several runs as one: each has a conductor that writes its rows straight into the mixture's batches.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Next;
use super::batch::Batch;
use super::board::Board;
use super::conductor::{Conductor, Counters, Means, Options};
use super::decode::Loans;
use super::demand::Part;
use super::drafts::DraftShelves;
use super::memory::Budget;
use super::pool::{Pool, guarded};
use super::run::{PackSpec, Run};
use super::shares::Shares;
use super::supply::AHEAD_BYTES;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::order::Mixture;

/// Feeds one rank of a mixture of runs. Dropping it ends its threads.
#[derive(Debug)]
pub struct MixedEngine {
    /// Steps that are passed over.
    skip: Vec<Range<u64>>,
    /// The next step, and the one after the last.
    steps: Mutex<(u64, u64)>,
    board: Arc<Board>,
    cancel: Cancel,
    counters: Vec<Arc<Counters>>,
    threads: Vec<JoinHandle<()>>,
    /// The process that its threads live in.
    process: u32,
}

impl MixedEngine {
    /// Starts to read for a rank. `runs` are the mixture's sources; `None` for one that is never drawn.
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget is too small for one step; [`Error::Argument`] if the runs are not alike.
    pub fn start(mixture: Arc<Mixture>, runs: &[Option<Arc<Run>>], options: Options) -> Result<Self> {
        let first = options.steps.row_of(options.start);
        let round = first / mixture.lanes();
        let drawn = drawn(&mixture, runs, round)?;
        let pack = PackSpec { seq_len: mixture.lengths().of(round), ..check(&mixture, &drawn)? };
        options.check_behind(mixture.lengths().current().1 * mixture.lanes())?;
        let all: Vec<&Run> = drawn.iter().map(|(_, run, _)| run.as_ref()).collect();
        let shares = Shares::of_parts(&all, &pack, &options)?;
        let (cancel, pool) = (Cancel::new(), Arc::new(Pool::start(options.workers, shares.block)?));
        let loans = Arc::new(Loans::new(options.memory, &shares));
        let ahead = shares.ready + shares.group;
        let board = Arc::new(Board::new(pack, options.clone(), mixture.lanes(), ahead));
        let drafts = DraftShelves::new(drawn.len());
        let windows = shares.windows(options.memory);
        let sum: f64 = drawn.iter().map(|(.., share)| share).sum();
        let end = mixture.rows().map(|rows| options.steps.whole(rows));
        let end = [end, options.stop].into_iter().flatten().min().unwrap_or(u64::MAX);
        let mut engine = Self {
            steps: Mutex::new((options.start, end)),
            board,
            cancel: cancel.clone(),
            counters: Vec::new(),
            threads: Vec::new(),
            process: std::process::id(),
            skip: options.skip.clone(),
        };
        for (source, run, share) in &drawn {
            // Half by weight, and half alike: a source that is drawn rarely has windows, too.
            let budget = windows / 2 / drawn.len() as u64 + (windows as f64 / 2.0 * share / sum) as u64;
            let counters = Arc::new(Counters::default());
            engine.counters.push(Arc::clone(&counters));
            let means = Means {
                pool: Arc::clone(&pool),
                budget: Budget::new(budget),
                loans: Arc::clone(&loans),
                drafts: Arc::clone(&drafts),
                block: shares.block,
                group: engine.board.group(),
                ahead_bytes: (AHEAD_BYTES as f64 * share / sum) as u64,
                counters,
                cancel: cancel.clone(),
            };
            let part = Some(Part { mixture: Arc::clone(&mixture), source: *source });
            let (run, options) = (Arc::clone(run), Arc::new(Options { part, ..options.clone() }));
            let (board, source) = (Arc::clone(&engine.board), *source);
            let thread = std::thread::Builder::new()
                .name("headrace-lead".to_owned())
                .spawn(move || match guarded(|| Ok(Conductor::new(&run, &options, means))) {
                    Ok(conductor) => conductor.feed(&board, source),
                    Err(error) => board.fail(options.start, error),
                })
                .map_err(|error| Error::Internal(format!("cannot start a thread: {error}")))?;
            engine.threads.push(thread);
        }
        Ok(engine)
    }

    /// Waits up to `timeout` for the next batch. After an error there is nothing more. For one thread at a time: another
    /// one waits for the first.
    pub fn next(&self, timeout: Duration) -> Result<Next> {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let skipped = |step: u64| self.skip.iter().find(|skipped| skipped.contains(&step));
        while let Some(skipped) = skipped(steps.0) {
            steps.0 = skipped.end;
        }
        let step = steps.0;
        if step >= steps.1 {
            return Ok(Next::End);
        }
        let Some(batch) = self.board.take(step, step + 1, timeout)? else { return Ok(Next::Pending) };
        steps.0 += 1;
        Ok(Next::Batch(Box::new(batch)))
    }

    /// Counts of what was done so far, for all sources: of windows in memory, too, though they are not the largest at the
    /// same time.
    pub fn counters(&self) -> Counters {
        let total = Counters::default();
        for one in &self.counters {
            let add = |to: &AtomicU64, from: &AtomicU64| to.fetch_add(from.load(Ordering::Relaxed), Ordering::Relaxed);
            add(&total.windows, &one.windows);
            add(&total.spilled, &one.spilled);
            add(&total.laid, &one.laid);
            add(&total.bytes, &one.bytes);
            add(&total.peak, &one.peak);
            add(&total.preview, &one.preview);
        }
        total
    }
}

/// The sources that are drawn from a round on: number, run, and largest share of the rows.
fn drawn<'a>(mixture: &Mixture, runs: &'a [Option<Arc<Run>>], round: u64) -> Result<Vec<(usize, &'a Arc<Run>, f64)>> {
    if runs.len() != mixture.len() {
        return Err(Error::Argument(format!("a mixture of {} sources has {} runs", mixture.len(), runs.len())));
    }
    let drawn = runs.iter().enumerate().filter(|(source, _)| mixture.is_drawn(*source, round));
    let run = |(source, run): (usize, &'a Option<Arc<Run>>)| match run {
        Some(run) => Ok((source, run, mixture.largest_share(source, round))),
        None => Err(Error::Argument(format!("source {source} of the mixture has rows to come, but no run"))),
    };
    drawn.map(run).collect()
}

/// Refuses runs that do not make one batch.
fn check(mixture: &Mixture, drawn: &[(usize, &Arc<Run>, f64)]) -> Result<PackSpec> {
    let Some((_, first, _)) = drawn.first() else {
        return Err(Error::Argument("no source of the mixture has a row to come".to_owned()));
    };
    let shape = |pack: &PackSpec| (pack.overlap, pack.boundaries, pack.wide);
    for (source, run, _) in drawn {
        let is_long = run.rows().strides.current() == mixture.lengths().current().0;
        let is_alike = is_long && shape(&run.pack(0)) == shape(&first.pack(0));
        if !is_alike || mixture.source_lanes(*source) != run.rows().lanes {
            return Err(Error::Argument(format!(
                "source {source} of the mixture has other rows or lanes than it says"
            )));
        }
    }
    Ok(first.pack(0))
}

impl Drop for MixedEngine {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            // In a forked child its threads are not there, and what they had locked stays locked for ever.
            std::mem::forget((std::mem::take(&mut self.threads), Arc::clone(&self.board)));
            return;
        }
        self.cancel.cancel();
        for thread in self.threads.drain(..) {
            // A panic on it was told to the board or has nobody left to tell.
            drop(thread.join());
        }
    }
}

/// Where each row of one step of one rank comes from: its source, and the spans there.
pub fn mixed_sources(
    mixture: Arc<Mixture>,
    runs: &[Option<Arc<Run>>],
    options: Options,
    cancel: &Cancel,
) -> Result<Option<Batch>> {
    let stop = Some(options.start + 1);
    let engine = MixedEngine::start(mixture, runs, Options { stop, skip: Vec::new(), prefetch: 1, ..options })?;
    loop {
        cancel.check()?;
        match engine.next(Duration::from_millis(20))? {
            Next::Batch(batch) => return Ok(Some(*batch)),
            Next::Pending => {}
            Next::End => return Ok(None),
        }
    }
}

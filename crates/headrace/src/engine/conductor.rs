//! The thread that leads: it plans windows, has them decoded in time, and has batches assembled in order.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::Sender;

use super::assemble::Assembler;
use super::batch::Batch;
use super::decode::{Loans, Scratch};
use super::load::{Loading, Reading, Room};
use super::memory::{Budget, Held, Shelf};
use super::plan::WindowPlan;
use super::pool::Pool;
use super::run::Run;
use super::window::{Window, WindowLayout, Windows};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::order::{LaneSet, Pass, rank_lanes, rank_rows, union_lanes};
use crate::state::Steps;

/// Reads are at most this large. Evidence: half a second at 16 MB/s, far below a store's 30 s request timeout.
const LARGEST_BLOCK: u64 = 8 << 20;
/// And at least this large where the memory budget is small: below it, requests cost more than bytes.
const SMALLEST_BLOCK: u64 = 256 << 10;
/// Windows smaller than this are decoded several ahead. Unit: bytes of decoded windows under way.
const AHEAD_BYTES: u64 = 64 << 20;
/// But not more than this many: each has a cost of its own.
const AHEAD_WINDOWS: u64 = 32;

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
}

/// What an engine did so far.
#[derive(Debug, Default)]
pub struct Counters {
    /// Windows decoded.
    pub windows: AtomicU64,
    /// Of those, windows that were decoded into a spill file.
    pub spilled: AtomicU64,
    /// Stored bytes of the chunks that were asked for.
    pub bytes: AtomicU64,
    /// The most bytes that windows held at once, of those in memory.
    pub peak: AtomicU64,
}

/// How the memory budget is shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Bytes of one read, and of a page without extra memory.
    pub block: usize,
    /// Bytes of what does not grow with the window: batches, threads' buffers.
    pub fixed: u64,
    /// The same with the largest blocks: what it is at most in a larger budget.
    pub most_fixed: u64,
}

impl Shares {
    /// Shares out `options.memory`.
    ///
    /// # Errors
    /// [`Error::Memory`] if it is too small for one step.
    pub fn new(run: &Run, options: &Options) -> Result<Self> {
        let rows = options.steps.largest_batch() / options.world;
        let most = i32::MAX as u64;
        if run.pack().boundaries && rows.saturating_mul(run.pack().seq_len) > most {
            let (found, seq_len) = (rows * run.pack().seq_len, run.pack().seq_len);
            return Err(Error::Argument(format!(
                "cu_seqlens are int32: a rank's rows may hold at most {most} tokens, got {rows} x {seq_len} = {found}"
            )));
        }
        // One more is being assembled.
        let batches = Assembler::bytes(run, rows).saturating_mul(options.prefetch as u64 + 1);
        let workers = options.workers as u64;
        let blocks = workers * Scratch::BLOCKS + Reading::ahead_blocks(run, workers);
        let small = workers * Scratch::bytes(0);
        let fixed = |block: u64| batches.saturating_add(small).saturating_add(blocks * block);
        // Half of what is left after the batches is for buffers, at most.
        let spare = options.memory.saturating_sub(batches) / 2;
        let block = (spare.saturating_sub(small) / blocks).clamp(SMALLEST_BLOCK, LARGEST_BLOCK);
        let (needed, available) = (fixed(block), options.memory);
        if needed > available {
            let purpose = format!("{} batches of {rows} rows and {workers} workers' buffers", options.prefetch + 1);
            return Err(Error::Memory { purpose, needed: fixed(SMALLEST_BLOCK), available });
        }
        Ok(Self { block: block as usize, fixed: needed, most_fixed: fixed(LARGEST_BLOCK) })
    }
}

/// What a window holds.
struct Holding {
    /// Bytes of its arena.
    bytes: u64,
    /// The budget's bytes for what is said of its chunks and lanes, if it had them: it cannot be spilled.
    _overhead: Option<Held>,
}

/// A window on its way.
enum Ahead {
    Loading(Loading),
    Ready(Arc<Window>),
}

impl Ahead {
    fn ordinal(&self) -> u64 {
        match self {
            Self::Loading(loading) => loading.ordinal(),
            Self::Ready(window) => window.ordinal(),
        }
    }

    fn end(&self) -> u64 {
        match self {
            Self::Loading(loading) => loading.end(),
            Self::Ready(window) => window.end(),
        }
    }
}

/// Leads one rank through a run; lives on a thread of its own.
pub(super) struct Conductor {
    run: Arc<Run>,
    options: Options,
    counters: Arc<Counters>,
    cancel: Cancel,
    pool: Pool,
    reading: Reading,
    assembler: Assembler,
    budget: Arc<Budget>,
    windows_shelf: Arc<Shelf>,
    /// The current windows and those ahead, with neighbouring ordinals; and what each holds.
    windows: VecDeque<(Ahead, Holding)>,
    /// The ordinal of the next window to plan.
    next: u64,
    /// Its plan, if it was made before there was room.
    planned: Option<(WindowPlan, WindowLayout)>,
    /// The passes used last: windows ahead may be of the next one.
    passes: VecDeque<Arc<Pass>>,
    /// Own lanes while each of the steps' segments lasts.
    lanes: Vec<LaneSet>,
}

impl Conductor {
    pub(super) fn new(run: Arc<Run>, options: Options, counters: Arc<Counters>, cancel: Cancel) -> Result<Self> {
        let shares = Shares::new(&run, &options)?;
        let loans = Arc::new(Loans::new(options.memory, &shares));
        let budget = Budget::new((options.memory - shares.fixed) / Loans::PARTS * (Loans::PARTS - 1));
        // Batches are charged in `fixed`: at most prefetch + 1 are alive before they are handed over.
        let batches = Shelf::new(&Budget::new(u64::MAX), options.prefetch + 1);
        let pool = Pool::start(options.workers, shares.block)?;
        let reading = Reading { block: shares.block, loans, cancel: cancel.clone() };
        let segments = options.steps.segments().iter();
        let lanes = match options.stop {
            // For one step, only what its rows touch.
            Some(stop) if stop == options.start + 1 => {
                let (row, batch) = (options.steps.row_of(options.start), options.steps.batch_of(options.start));
                let own = rank_rows(run.rows().lanes, row, batch, options.world, options.rank);
                let own = own.iter().map(|row| row % run.rows().lanes).map(|lane| lane..lane + 1);
                vec![union_lanes(own.collect()); segments.len()]
            }
            _ => {
                let own = |row, batch| rank_lanes(run.rows().lanes, row, batch, options.world, options.rank);
                let ends = options.steps.segments().iter().skip(1).map(|next| next.step).chain([u64::MAX]);
                // What is past was shared out among other ranks, perhaps.
                let lanes = segments.zip(ends).map(|(segment, end)| match end <= options.start {
                    true => LaneSet::new(),
                    false => own(segment.row, segment.batch),
                });
                lanes.collect()
            }
        };
        let first = options.steps.row_of(options.start);
        let pass = Arc::new(run.order().pass(run.rows().epoch_of(first)));
        Ok(Self {
            assembler: Assembler::new(Arc::clone(&run), batches),
            windows_shelf: Shelf::new(&budget, 1),
            budget,
            windows: VecDeque::new(),
            next: run.order().ordinal_of(&pass, run.rows().first_unit(first)),
            planned: None,
            passes: VecDeque::from([pass]),
            lanes,
            pool,
            reading,
            counters,
            cancel,
            options,
            run,
        })
    }

    /// Sends batches until the end, a fault, or until nobody listens.
    pub(super) fn lead(mut self, batches: &Sender<Result<Batch>>) {
        let end = self.options.steps.end(self.run.rows());
        let end = [end, self.options.stop].into_iter().flatten().min().unwrap_or(u64::MAX);
        let mut step = self.options.start;
        while step < end {
            if let Some(skipped) = self.options.skip.iter().find(|skipped| skipped.contains(&step)) {
                step = skipped.end;
                continue;
            }
            let batch = super::pool::guarded(|| self.step(step));
            let failed = batch.is_err();
            if batches.send(batch).is_err() || failed {
                return;
            }
            step += 1;
        }
    }

    fn step(&mut self, step: u64) -> Result<Batch> {
        self.cancel.check()?;
        let steps = &self.options.steps;
        let (first, batch) = (steps.row_of(step), steps.batch_of(step));
        let epoch = self.run.rows().epoch_of(first);
        let rows = rank_rows(self.run.rows().lanes, first, batch, self.options.world, self.options.rank);
        self.retire(self.run.rows().first_unit(first));
        let last = rows.iter().filter_map(|&row| self.run.rows().last_unit(row)).max();
        let windows = match last {
            Some(last) => self.ready(last)?,
            None => Windows(Arc::new([])),
        };
        self.assembler.batch(&self.pool, &windows, step, epoch, rows)
    }

    /// Lets go of windows that end before a unit.
    fn retire(&mut self, unit: u64) {
        self.assembler.retire(unit);
        while self.windows.pop_front_if(|(window, _)| window.end() <= unit).is_some() {}
        // Steps that are passed over may leave whole windows out.
        if self.windows.is_empty() {
            let ordinal = self.ordinal_of(unit);
            if ordinal > self.next {
                self.next = ordinal;
                self.planned = None;
            }
        }
    }

    /// The windows up to the one that holds a unit, decoded; and has some more decoded ahead.
    fn ready(&mut self, last: u64) -> Result<Windows> {
        let needed = self.ordinal_of(last);
        while self.next <= needed {
            self.plan_next(true)?;
        }
        self.plan_ahead(needed)?;
        let (mut ready, mut windows) = (Vec::new(), Vec::new());
        while let Some((window, holding)) = self.windows.pop_front_if(|(window, _)| window.ordinal() <= needed) {
            let window = match window {
                Ahead::Ready(window) => window,
                Ahead::Loading(loading) => Arc::new(loading.finish(&self.run, &self.cancel)?),
            };
            windows.push(Arc::clone(&window));
            ready.push((Ahead::Ready(window), holding));
        }
        for window in ready.into_iter().rev() {
            self.windows.push_front(window);
        }
        // With the windows done there may be room for the next.
        self.plan_ahead(needed)?;
        Ok(Windows(windows.into()))
    }

    /// Plans windows beyond `needed`: one always, more while they are small.
    fn plan_ahead(&mut self, needed: u64) -> Result<()> {
        loop {
            let ahead = self.next - needed - 1;
            let bytes: u64 = self.windows.iter().rev().take(ahead as usize).map(|(_, holding)| holding.bytes).sum();
            let end = self.run.rows().epochs.map(|epochs| epochs * self.run.order().windows());
            let stop = self.options.stop.is_some() || end.is_some_and(|end| self.next >= end);
            let stop = stop || ahead >= 1 && bytes >= AHEAD_BYTES || ahead >= AHEAD_WINDOWS;
            if stop || !self.plan_next(ahead == 0)? {
                return Ok(());
            }
        }
    }

    /// Plans the next window; `false` if there is no memory for it and it need not be yet.
    fn plan_next(&mut self, must: bool) -> Result<bool> {
        let (plan, layout) = match self.planned.take() {
            Some(planned) => planned,
            None => self.plan(self.next)?,
        };
        let bytes = layout.layout.bytes() as u64;
        let overhead = self.budget.try_take(layout.overhead);
        if overhead.is_none() && !must {
            self.planned = Some((plan, layout));
            return Ok(false);
        }
        let Some(room) = Room::take(&layout, &self.windows_shelf, must, &self.options.spill)? else {
            self.planned = Some((plan, layout));
            return Ok(false);
        };
        let count = |counter: &AtomicU64, by| counter.fetch_add(by, Ordering::Relaxed);
        count(&self.counters.windows, 1);
        count(&self.counters.spilled, u64::from(matches!(room, Room::Spilled(_))));
        count(&self.counters.bytes, plan.bytes(self.run.column()));
        let loading = Loading::start(&self.run, plan, layout, room, &self.pool, &self.reading);
        self.counters.peak.store(self.budget.peak(), Ordering::Relaxed);
        self.windows.push_back((Ahead::Loading(loading), Holding { bytes, _overhead: overhead }));
        self.next += 1;
        Ok(true)
    }

    fn plan(&mut self, ordinal: u64) -> Result<(WindowPlan, WindowLayout)> {
        let windows = self.run.order().windows();
        let pass = self.pass(ordinal / windows);
        let number = ordinal % windows;
        let lanes = self.lanes_of(&pass, number);
        let plan = WindowPlan::new(self.run.order(), &pass, number, lanes);
        let layout = WindowLayout::new(&self.run, &plan)?;
        Ok((plan, layout))
    }

    /// The window that holds a unit of the dealt line, counted through all passes.
    fn ordinal_of(&mut self, unit: u64) -> u64 {
        let pass = self.pass(unit / self.run.order().total());
        self.run.order().ordinal_of(&pass, unit)
    }

    fn pass(&mut self, epoch: u64) -> Arc<Pass> {
        if let Some(pass) = self.passes.iter().find(|pass| pass.epoch == epoch) {
            return Arc::clone(pass);
        }
        let pass = Arc::new(self.run.order().pass(epoch));
        self.passes.truncate(1);
        self.passes.push_front(Arc::clone(&pass));
        pass
    }

    /// The lanes that any step needs whose rows touch a window.
    fn lanes_of(&self, pass: &Pass, number: u64) -> LaneSet {
        if let [lanes] = self.lanes.as_slice() {
            return lanes.clone();
        }
        let span = self.run.order().window(pass, number);
        let touched = self.run.rows().touching(span.begin, span.end());
        let segments = self.options.steps.segments();
        let ends = segments.iter().skip(1).map(|next| next.row).chain([u64::MAX]);
        let parts = segments.iter().zip(ends).zip(&self.lanes);
        let parts = parts.filter(|((segment, end), _)| segment.row < touched.end && *end > touched.start);
        union_lanes(parts.flat_map(|(_, lanes)| lanes.clone()).collect())
    }
}

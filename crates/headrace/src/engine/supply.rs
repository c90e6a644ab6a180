//! Windows in time: which are decoded, which are on their way, and where their memory comes from.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::assemble::{Assembler, Job, lane_tokens};
use super::conductor::{Counters, Options};
use super::cursor::Windows;
use super::decode::Loans;
use super::layout::{ExcerptLayout, WindowLayout};
use super::load::{Loading, Reading, Room, excerpt};
use super::memory::{Budget, Held, Shelf};
use super::plan::WindowPlan;
use super::pool::Pool;
use super::run::Run;
use super::shares::Shares;
use super::window::Window;
use crate::cancel::Cancel;
use crate::error::Result;
use crate::order::{LaneSet, Pass, rank_lanes, rank_rows, union_lanes};

/// Windows smaller than this are decoded several ahead. Unit: bytes of decoded windows under way.
const AHEAD_BYTES: u64 = 64 << 20;
/// But not more than this many: each has a cost of its own.
const AHEAD_WINDOWS: u64 = 32;
/// The first batch does not wait for its window if that holds so many tokens, and so many times those of the batch.
/// Evidence: two threads decode two million tokens in three milliseconds.
const PREVIEW_TOKENS: u64 = 2 << 20;
const PREVIEW_TIMES: u64 = 8;

/// What a window holds.
struct Holding {
    /// Bytes of its arenas, and of that for tokens.
    bytes: u64,
    tokens: u64,
    is_spilled: bool,
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

/// Has the windows of one rank decoded, in their order and ahead of use.
pub struct Supply {
    run: Arc<Run>,
    options: Arc<Options>,
    counters: Arc<Counters>,
    cancel: Cancel,
    pool: Arc<Pool>,
    reading: Reading,
    budget: Arc<Budget>,
    windows_shelf: Arc<Shelf>,
    /// For windows of which only a part is in memory.
    excerpts_shelf: Arc<Shelf>,
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

impl Supply {
    /// Begins with the window of the first step.
    pub fn new(
        run: &Arc<Run>,
        options: &Arc<Options>,
        shares: &Shares,
        pool: &Arc<Pool>,
        counters: Arc<Counters>,
        cancel: Cancel,
    ) -> Self {
        let loans = Arc::new(Loans::new(options.memory, shares));
        let budget = Budget::new((options.memory - shares.fixed) / Loans::PARTS * (Loans::PARTS - 1));
        let first = options.steps.row_of(options.start);
        let pass = Arc::new(run.order().pass(run.rows().epoch_of(first)));
        Self {
            // The two arenas of a window.
            windows_shelf: Shelf::new(&budget, 2),
            excerpts_shelf: Shelf::new(&budget, 0),
            budget,
            windows: VecDeque::new(),
            next: run.order().ordinal_of(&pass, run.rows().first_unit(first)),
            planned: None,
            passes: VecDeque::from([pass]),
            lanes: own_lanes(run, options),
            reading: Reading { block: shares.block, loans, counter: None, cancel: cancel.clone() },
            pool: Arc::clone(pool),
            counters,
            cancel,
            options: Arc::clone(options),
            run: Arc::clone(run),
        }
    }

    /// Lets go of windows that end before a unit.
    pub fn retire(&mut self, unit: u64) {
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

    /// Windows of which only what one batch needs was decoded: first the lengths of all documents, which say where the
    /// batch's lie, then those. `None` if that is no shorter way to the batch than its windows, or there is no memory.
    pub fn preview(&mut self, job: &Job, needed: u64) -> Result<Option<Windows>> {
        // A remote store would be asked for the same bytes twice.
        if self.run.index().store.is_remote() || self.next > needed {
            return Ok(None);
        }
        let plans = (self.next..=needed).map(|ordinal| self.plan(ordinal)).collect::<Result<Vec<_>>>()?;
        let chunks = plans.iter().flat_map(|(plan, _)| &plan.chunks);
        let tokens: u64 = chunks.map(|chunk| chunk.most_tokens(self.run.column()) as u64).sum();
        let batch = (job.rows.len() as u64).saturating_mul(self.run.rows().row_tokens());
        if tokens < PREVIEW_TOKENS || tokens / PREVIEW_TIMES < batch {
            return Ok(None);
        }
        let reading = Reading { counter: Some(Arc::clone(&self.counters.preview)), ..self.reading.clone() };
        // All of it before anything is begun: what is given up half-way would take the window's own memory.
        let mut rooms = Vec::new();
        for (_, layout) in &plans {
            let Some(overhead) = self.budget.try_take(layout.overhead) else { return Ok(None) };
            let Some(arena) = self.excerpts_shelf.take(&layout.documents)? else { return Ok(None) };
            rooms.push((arena, overhead));
        }
        let sketches = plans.into_iter().zip(&rooms).map(|((plan, layout), (arena, _))| {
            Loading::start(&self.run, plan, layout, (arena, None), &self.pool, &reading)
        });
        let sketches: Vec<_> = sketches.collect();
        let finish = |sketch: Loading| sketch.finish(&self.run, &self.cancel).map(Arc::new);
        let windows = Windows(sketches.into_iter().map(finish).collect::<Result<_>>()?);
        let needs = windows.needs(&self.run, lane_tokens(&self.run, &job.rows))?;
        let mut excerpts = Vec::new();
        for (window, needs) in windows.0.iter().zip(&needs) {
            let part = excerpt(&self.run, window, needs, &self.excerpts_shelf, &self.pool, &reading)?;
            let Some(part) = part else { return Ok(None) };
            excerpts.push(Arc::new(part));
        }
        self.counters.peak.store(self.budget.peak(), Ordering::Relaxed);
        Ok(Some(Windows(excerpts.into())))
    }

    /// The windows that a batch needs, decoded, and some more being decoded ahead.
    pub fn ready(&mut self, step: u64, needed: u64, assembler: &mut Assembler) -> Result<Windows> {
        while self.next <= needed {
            if !self.plan_next(false)? {
                self.shrink(step, assembler)?;
                self.plan_next(true)?;
            }
        }
        self.plan_ahead(needed)?;
        let windows = self.finish(needed)?;
        // With the windows done there may be room for the next.
        self.plan_ahead(needed)?;
        Ok(windows)
    }

    /// Keeps of the current windows only what is still to come from a step on, if that makes room for the next.
    fn shrink(&mut self, step: u64, assembler: &mut Assembler) -> Result<()> {
        let windows = self.finish(u64::MAX)?;
        let first = self.options.steps.row_of(step);
        let mut parts = Vec::new();
        let mut freed = self.budget.left() + self.windows_shelf.unused();
        for (number, window) in windows.0.iter().enumerate() {
            let alone = Windows(Arc::new([Arc::clone(window)]));
            let rest = window.lanes().map(|lane| (lane, self.run.rows().lane_token(lane, first)..u64::MAX));
            let needs = alone.needs(&self.run, rest)?.pop().unwrap_or_default();
            let layout = ExcerptLayout::new(&self.run, window, &needs);
            let (now, then) = (self.windows[number].1.tokens, layout.layout.bytes() as u64);
            // One that is mostly to come stays.
            if then < now / 2 {
                freed += now - then;
                parts.push((number, needs, layout));
            }
        }
        if self.planned.as_ref().is_none_or(|(_, layout)| layout.bytes() + layout.overhead > freed) {
            return Ok(());
        }
        assembler.forget();
        for (number, needs, layout) in parts {
            let tokens = layout.layout.bytes() as u64;
            if self.budget.left() < tokens {
                self.windows_shelf.clear();
            }
            // Without room even for that, the next window goes to a spill file.
            let Some(arena) = self.excerpts_shelf.take(&layout.layout)? else { return Ok(()) };
            let excerpt = windows.0[number].excerpt(&needs, layout, &arena)?;
            let (window, holding) = &mut self.windows[number];
            *window = Ahead::Ready(Arc::new(excerpt));
            // The directory stays, and what is said beside it.
            holding.bytes = holding.bytes - holding.tokens + tokens;
            holding.tokens = tokens;
        }
        Ok(())
    }

    /// Waits for the windows up to one.
    fn finish(&mut self, needed: u64) -> Result<Windows> {
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
        Ok(Windows(windows.into()))
    }

    /// Plans windows beyond `needed`: one, more while they are small. Where the budget has no room for one, it waits
    /// until there is; but a store that answers slowly is asked in any case, and where even the current window lies on
    /// disk, so can the next.
    fn plan_ahead(&mut self, needed: u64) -> Result<()> {
        // Older ones are about to go, and their memory is to be used again: fresh pages cost more than what is in them.
        let older = self.windows.iter().take_while(|(window, _)| window.ordinal() < needed);
        if older.map(|(_, holding)| holding.bytes).sum::<u64>() >= AHEAD_BYTES {
            return Ok(());
        }
        let spill = self.run.index().store.is_remote() || self.windows.iter().any(|(_, holding)| holding.is_spilled);
        loop {
            let ahead = self.next.saturating_sub(needed + 1);
            let bytes: u64 = self.windows.iter().rev().take(ahead as usize).map(|(_, holding)| holding.bytes).sum();
            let end = self.run.rows().epochs.map(|epochs| epochs * self.run.order().windows());
            let stop = self.options.stop.is_some() || end.is_some_and(|end| self.next >= end);
            let stop = stop || ahead >= 1 && bytes >= AHEAD_BYTES || ahead >= AHEAD_WINDOWS;
            if stop || !self.plan_next(spill && ahead == 0)? {
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
        let (bytes, tokens) = (layout.bytes(), layout.tokens.bytes() as u64);
        let overhead = self.budget.try_take(layout.overhead);
        let room = if overhead.is_some() { Room::take(&layout, &self.windows_shelf)? } else { None };
        let room = match room {
            Some(room) => room,
            None if must => Room::spill(&layout, &self.options.spill)?,
            None => {
                self.planned = Some((plan, layout));
                return Ok(false);
            }
        };
        let count = |counter: &AtomicU64, by| counter.fetch_add(by, Ordering::Relaxed);
        count(&self.counters.windows, 1);
        count(&self.counters.spilled, u64::from(room.is_spilled));
        count(&self.counters.bytes, plan.bytes(self.run.column()));
        let arenas = (&room.documents, Some(&room.tokens));
        let loading = Loading::start(&self.run, plan, layout, arenas, &self.pool, &self.reading);
        self.counters.peak.store(self.budget.peak(), Ordering::Relaxed);
        let holding = Holding { bytes, tokens, is_spilled: room.is_spilled, _overhead: overhead };
        self.windows.push_back((Ahead::Loading(loading), holding));
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
    pub fn ordinal_of(&mut self, unit: u64) -> u64 {
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

/// The lanes that a rank reads while each of the steps' segments lasts.
fn own_lanes(run: &Run, options: &Options) -> Vec<LaneSet> {
    let segments = options.steps.segments().iter();
    if options.stop == Some(options.start + 1) {
        // For one step, only what its rows touch.
        let (row, batch) = (options.steps.row_of(options.start), options.steps.batch_of(options.start));
        let own = rank_rows(run.rows().lanes, row, batch, options.world, options.rank);
        let own = own.iter().map(|row| row % run.rows().lanes).map(|lane| lane..lane + 1);
        return vec![union_lanes(own.collect()); segments.len()];
    }
    let own = |row, batch| rank_lanes(run.rows().lanes, row, batch, options.world, options.rank);
    let ends = options.steps.segments().iter().skip(1).map(|next| next.step).chain([u64::MAX]);
    // What is past was shared out among other ranks, perhaps.
    let lanes = segments.zip(ends).map(|(segment, end)| match end <= options.start {
        true => LaneSet::new(),
        false => own(segment.row, segment.batch),
    });
    lanes.collect()
}

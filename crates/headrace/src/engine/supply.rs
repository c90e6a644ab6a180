//! Windows in time: which are decoded, which are on their way, and where their memory comes from.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::assemble::{Assembler, Job, lane_tokens};
use super::conductor::{Counters, LayOut, Means, Options};
use super::cursor::Windows;
use super::demand::Demand;
use super::drafts::{DraftShelves, Drafts};
use super::laying::{Laying, Outline};
use super::layout::{ExcerptLayout, WindowLayout};
use super::load::{Loading, Reading, Room, excerpt};
use super::memory::{ALIGN, Arena, Blocks, Budget, Held, Shelf};
use super::plan::WindowPlan;
use super::pool::Pool;
use super::run::Run;
use super::window::Window;
use crate::cancel::Cancel;
use crate::error::Result;
use crate::order::{LaneSet, Pass, union_lanes};

/// Windows smaller than this are decoded several ahead. Unit: bytes of decoded windows under way. Scope: a rank; the
/// sources of a mixture share it.
pub const AHEAD_BYTES: u64 = 64 << 20;
/// But not more than this many: each has a cost of its own.
const AHEAD_WINDOWS: u64 = 32;
/// The first batch does not wait for its window if that holds so many tokens, and so many times those of the batch.
/// Evidence: two threads decode two million tokens in three milliseconds.
const PREVIEW_TOKENS: u64 = 2 << 20;
const PREVIEW_TIMES: u64 = 8;

/// Windows of which the tokens take less are used where they were decoded, and so are those that take less than one part
/// in this many of what is decoded ahead: laid out is one at a time. Unit: bytes. Evidence: of a mixture of eight sources
/// with windows of 16 MB most of the cost is fresh memory, and below 4 MB it does not come in huge pages.
const LAID_BYTES: u64 = 4 << 20;
const LAID_PART: u64 = 4;
/// So are those whose drafts would take more than one part in this many of their tokens.
const DRAFTS_PART: u64 = 2;
/// Blocks beyond those of a window, with which the next one is begun: one in so many.
const SLACK_PART: u64 = 16;

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
    Laying(Laying),
    Ready(Arc<Window>),
}

/// What a window takes that is to be laid out.
struct Desk {
    overhead: Held,
    numbers: Arc<Arena>,
    drafts: Arc<Drafts>,
}

/// The plan of a window, and how it is to lie in memory: by storage, or if there is an outline by use.
struct Planned {
    plan: WindowPlan,
    layout: WindowLayout,
    outline: Option<Outline>,
}

impl Planned {
    /// What it takes of the budget before anything is decoded, beside blocks: bytes of arenas, and what is not in them.
    fn bytes(&self) -> u64 {
        self.layout.bytes() + self.layout.overhead
    }
}

impl Ahead {
    fn ordinal(&self) -> u64 {
        match self {
            Self::Loading(loading) => loading.ordinal(),
            Self::Laying(laying) => laying.ordinal(),
            Self::Ready(window) => window.ordinal(),
        }
    }

    fn end(&self) -> u64 {
        match self {
            Self::Loading(loading) => loading.end(),
            Self::Laying(laying) => laying.end(),
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
    /// Of windows in the order of use: their tokens, and chunks on the way there.
    blocks: Option<Arc<Blocks>>,
    drafts: Option<Arc<Drafts>>,
    draft_shelves: Arc<DraftShelves>,
    /// The current windows and those ahead, with neighbouring ordinals; and what each holds.
    windows: VecDeque<(Ahead, Holding)>,
    /// The ordinal of the next window to plan.
    next: u64,
    /// Its plan, if it was made before there was room.
    planned: Option<Planned>,
    /// The passes used last: windows ahead may be of the next one.
    passes: VecDeque<Arc<Pass>>,
    /// Own lanes while each of the steps' segments lasts.
    lanes: Vec<LaneSet>,
    /// Tokens that are needed at a time, at most: so many, and so many of each lane.
    most_tokens: (u64, u64),
    /// Windows smaller than this are decoded several ahead.
    ahead_bytes: u64,
}

impl Supply {
    /// Begins with the window that is needed first.
    pub fn new(run: &Arc<Run>, options: &Arc<Options>, demand: &Demand, means: Means) -> Self {
        let Means { pool, budget, loans, drafts, block, ahead_bytes, counters, cancel, .. } = means;
        let unit = demand.first_unit();
        let pass = Arc::new(run.order().pass(run.order().passes().of(unit)));
        Self {
            // The two arenas of a window.
            windows_shelf: Shelf::new(&budget, 2),
            excerpts_shelf: Shelf::new(&budget, 0),
            budget,
            blocks: None,
            drafts: None,
            draft_shelves: drafts,
            windows: VecDeque::new(),
            next: run.order().ordinal_of(&pass, unit),
            planned: None,
            passes: VecDeque::from([pass]),
            lanes: demand.lanes(),
            most_tokens: demand.most_tokens(),
            ahead_bytes,
            reading: Reading { block, loans, counter: None, cancel: cancel.clone() },
            pool,
            counters,
            cancel,
            options: Arc::clone(options),
            run: Arc::clone(run),
        }
    }

    /// Begins to decode the first window before it is needed, if there is memory for it.
    pub fn begin(&mut self, demand: &Demand) -> Result<()> {
        if self.windows.is_empty() && self.options.stop.is_none() {
            self.plan_next(demand, false)?;
            self.admit(demand, None)?;
        }
        Ok(())
    }

    /// Lets go of windows that end before a unit.
    pub fn retire(&mut self, unit: u64) {
        while let Some((window, _)) = self.windows.pop_front_if(|(window, _)| window.end() <= unit) {
            // What a thread is at goes on in its drafts for a while: the next window has others.
            if matches!(&window, Ahead::Laying(laying) if !laying.is_done()) {
                self.drafts = None;
            }
        }
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
        let chunks = plans.iter().flat_map(|planned| &planned.plan.chunks);
        let tokens: u64 = chunks.map(|chunk| chunk.most_tokens(self.run.column()) as u64).sum();
        let batch = job.rows.iter().map(|&row| self.run.rows().row_tokens(row)).sum();
        if tokens < PREVIEW_TOKENS || tokens / PREVIEW_TIMES < batch {
            return Ok(None);
        }
        let reading = Reading { counter: Some(Arc::clone(&self.counters.preview)), ..self.reading.clone() };
        // All of it before anything is begun: what is given up half-way would take the window's own memory.
        let mut rooms = Vec::new();
        for Planned { layout, .. } in &plans {
            let Some(overhead) = self.budget.try_take(layout.overhead) else { return Ok(None) };
            let Some(arena) = self.excerpts_shelf.take(&layout.documents)? else { return Ok(None) };
            rooms.push((arena, overhead));
        }
        let sketches = plans.into_iter().zip(&rooms).map(|(Planned { plan, layout, .. }, (arena, _))| {
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
    pub fn ready(&mut self, demand: &Demand, needed: u64, assembler: &mut Assembler) -> Result<Windows> {
        while self.next <= needed {
            if !self.plan_next(demand, false)? {
                self.shrink(demand, assembler)?;
                self.plan_next(demand, true)?;
            }
        }
        self.plan_ahead(demand, needed)?;
        let windows = self.finish(demand, needed)?;
        // With the windows done there may be room for the next.
        self.plan_ahead(demand, needed)?;
        self.admit(demand, None)?;
        Ok(windows)
    }

    /// Keeps of the current windows only what is still to come from a step on, if that makes room for the next.
    fn shrink(&mut self, demand: &Demand, assembler: &mut Assembler) -> Result<()> {
        let windows = self.finish(demand, u64::MAX)?;
        let mut parts = Vec::new();
        let mut freed = self.budget.left() + self.windows_shelf.unused();
        for (number, window) in windows.0.iter().enumerate() {
            // What is laid out goes as it is used.
            if window.laid.is_some() {
                continue;
            }
            let alone = Windows(Arc::new([Arc::clone(window)]));
            let rest = window.lanes().map(|lane| (lane, demand.lane_token(lane)..u64::MAX));
            let needs = alone.needs(&self.run, rest)?.pop().unwrap_or_default();
            let layout = ExcerptLayout::new(&self.run, window, &needs);
            let (now, then) = (self.windows[number].1.tokens, layout.layout.bytes() as u64);
            // One that is mostly to come stays.
            if then < now / 2 {
                freed += now - then;
                parts.push((number, needs, layout));
            }
        }
        if parts.is_empty() || self.planned.as_ref().is_none_or(|planned| planned.bytes() > freed) {
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
    fn finish(&mut self, demand: &Demand, needed: u64) -> Result<Windows> {
        self.admit(demand, Some(needed))?;
        let (mut ready, mut windows) = (Vec::new(), Vec::new());
        while let Some((window, holding)) = self.windows.pop_front_if(|(window, _)| window.ordinal() <= needed) {
            let window = match window {
                Ahead::Ready(window) => window,
                Ahead::Loading(loading) => Arc::new(loading.finish(&self.run, &self.cancel)?),
                Ahead::Laying(laying) => Arc::new(laying.finish(&self.run, &self.cancel)?),
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
    fn plan_ahead(&mut self, demand: &Demand, needed: u64) -> Result<()> {
        // Older ones are about to go, and their memory is to be used again: fresh pages cost more than what is in them.
        let older = self.windows.iter().take_while(|(window, _)| window.ordinal() < needed);
        if older.map(|(_, holding)| holding.bytes).sum::<u64>() >= self.ahead_bytes {
            return Ok(());
        }
        let spill = self.run.index().store.is_remote() || self.windows.iter().any(|(_, holding)| holding.is_spilled);
        loop {
            let ahead = self.next.saturating_sub(needed + 1);
            let bytes: u64 = self.windows.iter().rev().take(ahead as usize).map(|(_, holding)| holding.bytes).sum();
            let end = self.run.rows().epochs.map(|epochs| self.run.order().passes().first_window(epochs));
            let stop = self.options.stop.is_some() || end.is_some_and(|end| self.next >= end);
            let stop = stop || ahead >= 1 && bytes >= self.ahead_bytes || ahead >= AHEAD_WINDOWS;
            if stop || !self.plan_next(demand, spill && ahead == 0)? {
                return Ok(());
            }
        }
    }

    /// Plans the next window; `false` if there is no memory for it and it need not be yet.
    fn plan_next(&mut self, demand: &Demand, must: bool) -> Result<bool> {
        let mut planned = match self.planned.take() {
            Some(planned) => planned,
            None => self.plan(self.next)?,
        };
        if let Some(outline) = planned.outline.take() {
            // One at a time, so that it has all drafts.
            if self.windows.iter().any(|(window, _)| matches!(window, Ahead::Laying(laying) if !laying.is_done())) {
                if !must {
                    self.planned = Some(Planned { outline: Some(outline), ..planned });
                    return Ok(false);
                }
                self.finish(demand, u64::MAX)?;
            }
            match self.desk(&outline)? {
                Some(desk) => return self.lay_out(planned.plan, outline, desk).map(|()| true),
                None if !must => {
                    self.planned = Some(Planned { outline: Some(outline), ..planned });
                    return Ok(false);
                }
                // Then as other windows for which there is no memory.
                None => {}
            }
        }
        let Planned { plan, layout, .. } = planned;
        let (bytes, tokens) = (layout.bytes(), layout.tokens.bytes() as u64);
        let overhead = self.budget.try_take(layout.overhead);
        let mut room = if overhead.is_some() { Room::take(&layout, &self.windows_shelf)? } else { None };
        if let (None, Some(blocks)) = (&room, &self.blocks) {
            blocks.trim();
            room = if overhead.is_some() { Room::take(&layout, &self.windows_shelf)? } else { None };
        }
        let room = match room {
            Some(room) => room,
            None if must => Room::spill(&layout, &self.options.spill)?,
            None => {
                self.planned = Some(Planned { plan, layout, outline: None });
                return Ok(false);
            }
        };
        self.count(&plan, room.is_spilled);
        let arenas = (&room.documents, Some(&room.tokens));
        let loading = Loading::start(&self.run, plan, layout, arenas, &self.pool, &self.reading);
        self.counters.peak.store(self.budget.peak(), Ordering::Relaxed);
        let holding = Holding { bytes, tokens, is_spilled: room.is_spilled, _overhead: overhead };
        self.windows.push_back((Ahead::Loading(loading), holding));
        self.next += 1;
        Ok(true)
    }

    fn count(&self, plan: &WindowPlan, is_spilled: bool) {
        let count = |counter: &AtomicU64, by| counter.fetch_add(by, Ordering::Relaxed);
        count(&self.counters.windows, 1);
        count(&self.counters.spilled, u64::from(is_spilled));
        count(&self.counters.bytes, plan.bytes(self.run.column()));
    }

    /// What a window takes before its first chunk is decoded, if the budget has it.
    fn desk(&mut self, outline: &Outline) -> Result<Option<Desk>> {
        let Some(overhead) = self.budget.try_take(outline.overhead) else { return Ok(None) };
        let Some(numbers) = self.windows_shelf.take(&outline.numbers)? else { return Ok(None) };
        if !self.drafts.as_ref().is_some_and(|drafts| drafts.hold(outline.drafts)) {
            // There is no other window on its way, whose drafts they are.
            if let Some(drafts) = self.drafts.take() {
                drafts.close();
            }
            self.drafts = Drafts::new(outline.drafts, &self.budget, &self.draft_shelves);
        }
        Ok(self.drafts.clone().map(|drafts| Desk { overhead, numbers, drafts }))
    }

    /// Begins the next window in the order of use.
    fn lay_out(&mut self, plan: WindowPlan, outline: Outline, desk: Desk) -> Result<()> {
        self.count(&plan, false);
        let wanted = self.blocks_wanted(&outline);
        let each = self.block_bytes(&outline);
        let blocks = self.blocks.get_or_insert_with(|| Blocks::new(&self.budget, each));
        // Those that the budget does not have now may come back to it before they are needed.
        blocks.extend(wanted.saturating_sub(blocks.count()))?;
        self.counters.laid.fetch_add(1, Ordering::Relaxed);
        let bytes = outline.bytes + outline.numbers.bytes() as u64;
        let Desk { overhead, numbers, drafts } = desk;
        let laying = Laying::start(&self.run, plan, outline, (&numbers, drafts), &self.reading);
        self.counters.peak.store(self.budget.peak(), Ordering::Relaxed);
        let holding = Holding { bytes, tokens: 0, is_spilled: false, _overhead: Some(overhead) };
        self.windows.push_back((Ahead::Laying(laying), holding));
        self.next += 1;
        Ok(())
    }

    /// Has the chunks of windows decoded for which there are blocks, and in any case those of windows up to `needed`.
    fn admit(&mut self, demand: &Demand, needed: Option<u64>) -> Result<()> {
        let Some(blocks) = &self.blocks else { return Ok(()) };
        if self.windows.iter().any(|(window, _)| matches!(window, Ahead::Laying(laying) if !laying.is_admitted())) {
            // No later step needs what lies before this one's rows, whoever had it.
            for (window, _) in &self.windows {
                if let Ahead::Ready(window) = window {
                    window.release(|lane| demand.lane_token(lane));
                }
            }
        }
        for (window, holding) in &mut self.windows {
            let Ahead::Laying(laying) = window else { continue };
            if laying.admit(blocks, &self.pool) {
                continue;
            }
            if needed.is_none_or(|needed| laying.ordinal() > needed) {
                break;
            }
            // Blocks that are in use will be needed after this window: no others come back before.
            let short = laying.blocks_wanted(blocks).saturating_sub(blocks.free());
            let mut extended = blocks.extend(short)?;
            if !extended {
                self.windows_shelf.clear();
                extended = blocks.extend(short)?;
            }
            if !extended {
                let mut taken = blocks.take(blocks.free()).unwrap_or_default();
                taken.extend(blocks.spilled(short, &self.options.spill)?);
                laying.admit_rest(taken, blocks, &self.pool);
                holding.is_spilled = true;
                self.counters.spilled.fetch_add(1, Ordering::Relaxed);
            }
            laying.admit(blocks, &self.pool);
            self.counters.peak.store(self.budget.peak(), Ordering::Relaxed);
        }
        Ok(())
    }

    fn block_bytes(&self, outline: &Outline) -> usize {
        match (&self.blocks, self.options.layout) {
            (Some(blocks), _) => blocks.block_bytes(),
            (None, LayOut::Always(bytes)) => bytes.max(1).next_multiple_of(ALIGN),
            (None, _) => outline.block_bytes(),
        }
    }

    /// Blocks for a window, and for what may still be in use of the one before when it is needed.
    fn blocks_wanted(&self, outline: &Outline) -> usize {
        let each = self.block_bytes(outline);
        let (window, lanes) = (outline.blocks(each), outline.lanes() as u64);
        // What is needed at a time; and lanes begin and end in the middle of a block.
        let tokens = self.most_tokens.0.saturating_add(self.most_tokens.1.saturating_mul(lanes));
        let bytes = tokens.saturating_mul(size_of::<i32>() as u64);
        let rest = (bytes / each as u64).saturating_add(2 * lanes).min(window as u64) as usize;
        window.saturating_add(rest.max(window / SLACK_PART as usize))
    }

    /// Whether it pays to lay a window out, and there is always room for it and for the beginning of the next. In the
    /// order of storage two windows take `stored` bytes each for their tokens: less where bos or eos is of more than 16
    /// bits and the others are not.
    fn suits(&self, outline: &Outline, stored: u64) -> bool {
        let blocks = (self.blocks_wanted(outline) as u64).saturating_mul(self.block_bytes(outline) as u64);
        let pays = match self.options.layout {
            LayOut::Never => false,
            LayOut::Always(_) => true,
            LayOut::Auto => {
                // Those that share memory for drafts use the same, mostly.
                let drafts = outline.draft_bytes() / self.draft_shelves.sharers();
                let saves = blocks.saturating_add(drafts) < stored.saturating_mul(2);
                let is_large = outline.bytes >= LAID_BYTES.max(self.ahead_bytes / LAID_PART);
                saves && is_large && drafts <= outline.bytes / DRAFTS_PART
            }
        };
        // A shelf gives a little more than it is asked for.
        let numbers = outline.numbers.bytes() as u64 / 32 * 33 + outline.overhead;
        let bytes = blocks.saturating_add(outline.draft_bytes()).saturating_add(numbers.saturating_mul(2));
        pays && bytes <= self.budget.total()
    }

    fn plan(&mut self, ordinal: u64) -> Result<Planned> {
        let (epoch, number) = self.run.order().passes().of_window(ordinal);
        let pass = self.pass(epoch);
        let lanes = self.lanes_of(&pass, number);
        let plan = WindowPlan::new(self.run.order(), &pass, number, lanes);
        let layout = WindowLayout::new(&self.run, &plan)?;
        let stored = layout.tokens.bytes() as u64;
        let outline = match self.options.layout {
            LayOut::Never => None,
            _ => Outline::new(&self.run, &plan, self.options.workers).filter(|outline| self.suits(outline, stored)),
        };
        Ok(Planned { plan, layout, outline })
    }

    /// The window that holds a unit of the dealt line, counted through all passes.
    pub fn ordinal_of(&mut self, unit: u64) -> u64 {
        let pass = self.pass(self.run.order().passes().of(unit));
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

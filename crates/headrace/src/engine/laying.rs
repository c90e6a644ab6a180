//! A window on its way into the order of use: chunks are decoded one after another, and the worker that has decoded
//! the last one of a slice lays that out.
//!
//! A chunk that is decoded but not yet laid out is a draft. How many there are at once is bounded: chunks are begun in
//! their order, and not too far ahead of the first that is still needed.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::decode::Scratch;
use super::documents::{Documents, TokenRegion, Tokens};
use super::drafts::Drafts;
use super::keep::{ChunkSlots, Keep};
use super::laid::{Laid, LaidSlice, Source};
use super::load::{Reading, Reads, read_ahead};
use super::memory::{Arena, Block, Blocks, Layout, Region, SlotMut};
use super::plan::{ChunkPlan, WindowPlan};
use super::pool::{POLL, Pool, guarded};
use super::run::Run;
use super::window::Window;
use crate::cancel::Cancel;
use crate::error::{Error, Result};

/// A slice has this many blocks, about: of the current window each lane keeps half a block that it has used already, and
/// of the next one half a block stays empty. Evidence: 1/64 of a window.
const BLOCKS_A_SLICE: u64 = 64;
/// Unit: bytes of a block, at least (a page) and at most (a part of a huge page).
const SMALLEST_BLOCK: u64 = 4 << 10;
const LARGEST_BLOCK: u64 = 1 << 20;

/// How a window will be laid out: what is known before any of it is read.
#[derive(Debug)]
pub struct Outline {
    slices: Vec<SlicePlan>,
    /// Which slices have tokens of each chunk.
    shares: Vec<Range<usize>>,
    /// Of the arena for where pieces come from.
    pub numbers: Layout,
    pieces: Region<u32>,
    /// Bytes of the tokens of all slices.
    pub bytes: u64,
    /// Drafts at once, at most; bytes of each.
    pub drafts: (usize, usize),
    /// Bytes of what is kept of chunks and lanes beside blocks and arenas.
    pub overhead: u64,
}

#[derive(Debug)]
struct SlicePlan {
    lane: u64,
    tokens: u64,
    /// Which of the plan's chunks hold a token of it.
    chunks: Range<usize>,
    /// Whether its tokens can be kept in 16 bits.
    is_narrow: bool,
}

impl SlicePlan {
    fn bytes(&self) -> u64 {
        self.tokens.saturating_mul(if self.is_narrow { 2 } else { 4 })
    }

    /// Blocks of `each` bytes that it takes.
    fn blocks(&self, each: usize) -> usize {
        self.bytes().div_ceil(each as u64) as usize
    }
}

impl Outline {
    /// An outline of a planned window; `None` for one that is used in the order of storage, or too large to count.
    pub fn new(run: &Run, plan: &WindowPlan, workers: usize) -> Option<Self> {
        let column = run.column();
        let ends: Vec<u64> = plan.chunks.iter().map(|chunk| chunk.at + chunk.need.end).collect();
        let specials = run.specials();
        let fit = [specials.bos, specials.eos].into_iter().flatten().all(|token| u16::try_from(token).is_ok());
        let mut shares: Vec<Range<usize>> = vec![0..0; plan.chunks.len()];
        let (mut slices, mut span) = (Vec::new(), 1);
        for lane in plan.lanes.iter().flat_map(Clone::clone) {
            let range = plan.span.slice(lane);
            let first = ends.partition_point(|&end| end <= range.start);
            let end = plan.chunks.partition_point(|chunk| chunk.at + chunk.need.start < range.end).max(first);
            let chunks = if range.is_empty() { 0..0 } else { first..end };
            span = span.max(chunks.len());
            for share in &mut shares[chunks.clone()] {
                let number = slices.len();
                *share = if share.start == share.end { number..number + 1 } else { share.start..number + 1 };
            }
            let is_narrow = |chunk: &ChunkPlan| column.chunks.is_narrow(chunk.chunk as usize);
            let is_narrow = fit && plan.chunks[chunks.clone()].iter().all(is_narrow);
            slices.push(SlicePlan { lane, tokens: range.end - range.start, chunks, is_narrow });
        }
        let fits = slices.iter().all(|slice| u32::try_from(slice.tokens).is_ok());
        if !run.order().spec().shuffle || !fits {
            return None;
        }
        let most = plan.chunks.iter().map(|chunk| chunk.most_documents(column));
        let documents = most.fold(slices.len(), usize::saturating_add);
        let mut numbers = Layout::new();
        let pieces = numbers.add(documents.saturating_mul(LaidSlice::NUMBERS));
        let largest = plan.chunks.iter().map(|chunk| draft(run, chunk).0.bytes()).max().unwrap_or(0);
        // Those that workers are at, and their neighbours with which they share slices.
        let drafts = (workers + 2 * span).min(plan.chunks.len());
        // A little more, so that the next window, a little larger, still fits.
        let largest = largest.next_multiple_of((largest / 8).max(1).next_power_of_two());
        let a_slice = size_of::<SlicePlan>() + size_of::<SliceState>() + size_of::<LaidSlice>();
        let a_chunk = 2 * size_of::<ChunkPlan>() + size_of::<ChunkState>() + size_of::<Range<usize>>();
        let bytes = slices.iter().map(SlicePlan::bytes).fold(0, u64::saturating_add);
        let overhead = (slices.len() * a_slice + plan.chunks.len() * a_chunk) as u64;
        Some(Self { slices, shares, numbers, pieces, bytes, drafts: (drafts, largest), overhead })
    }

    /// Own lanes.
    pub fn lanes(&self) -> usize {
        self.slices.len()
    }

    /// Bytes of a block that suits it.
    pub fn block_bytes(&self) -> usize {
        let mean = self.bytes / (self.slices.len() as u64).max(1);
        (mean / BLOCKS_A_SLICE).next_power_of_two().clamp(SMALLEST_BLOCK, LARGEST_BLOCK) as usize
    }

    /// Blocks of `each` bytes that it takes.
    pub fn blocks(&self, each: usize) -> usize {
        self.slices.iter().map(|slice| slice.blocks(each)).fold(0, usize::saturating_add)
    }

    /// Bytes of its drafts.
    pub fn draft_bytes(&self) -> u64 {
        Drafts::bytes(self.drafts)
    }
}

/// The regions of a chunk's draft.
type DraftRegions = (TokenRegion, Region<u64>, Region<u32>);

fn draft(run: &Run, plan: &ChunkPlan) -> (Layout, DraftRegions) {
    let (column, mut layout) = (run.column(), Layout::new());
    let documents = plan.most_documents(column);
    let tokens = TokenRegion::add(&mut layout, plan.most_tokens(column), column.chunks.is_narrow(plan.chunk as usize));
    let regions = (tokens, layout.add(documents), layout.add(documents));
    (layout, regions)
}

/// A window that is being laid out.
#[derive(Debug)]
pub struct Laying {
    ordinal: u64,
    shared: Arc<Shared>,
    /// Chunks of which the work is queued: for the slices that end there, there are blocks.
    admitted: usize,
}

#[derive(Debug)]
struct Shared {
    run: Arc<Run>,
    plan: WindowPlan,
    slices: Vec<SlicePlan>,
    shares: Vec<Range<usize>>,
    drafts: Arc<Drafts>,
    reading: Reading,
    reads: Mutex<Reads>,
    state: Mutex<State>,
    complete: Condvar,
}

#[derive(Debug)]
struct State {
    /// Whether nobody waits for it any more: steps that are passed over may leave out a window that is on its way.
    is_abandoned: bool,
    /// The first chunk that was not begun.
    next: usize,
    /// Chunks that were to be begun when there were too many drafts.
    put_off: usize,
    /// The first chunk whose draft is still needed, or which has none yet.
    oldest: usize,
    chunks: Vec<ChunkState>,
    slices: Vec<SliceState>,
    /// Where what is kept of pieces goes.
    numbers: Option<SlotMut<u32>>,
    /// Chunks to be decoded, and slices to be laid out.
    unfinished: usize,
}

#[derive(Debug, Default)]
struct ChunkState {
    draft: Option<Arc<(Documents, Tokens)>>,
    failed: Option<Error>,
    is_decoded: bool,
    /// Slices of it that are not laid out.
    users: usize,
}

#[derive(Debug, Default)]
struct SliceState {
    /// Chunks of it that are not decoded.
    missing: usize,
    blocks: Vec<Block>,
    laid: LaidSlice,
}

/// A slice of which all chunks are decoded.
struct Complete {
    slice: usize,
    sources: Vec<Source>,
    blocks: Vec<Block>,
}

impl Laying {
    /// Begins a window; nothing is read before it is admitted. `numbers` is an arena of the outline's layout.
    pub fn start(
        run: &Arc<Run>,
        plan: WindowPlan,
        outline: Outline,
        (numbers, drafts): (&Arc<Arena>, Arc<Drafts>),
        reading: &Reading,
    ) -> Self {
        let Outline { slices, shares, pieces, .. } = outline;
        // Between two of its slices there may be empty ones.
        let users =
            |share: &Range<usize>| slices[share.clone()].iter().filter(|slice| !slice.chunks.is_empty()).count();
        let state = State {
            is_abandoned: false,
            next: 0,
            put_off: 0,
            oldest: 0,
            chunks: shares.iter().map(|share| ChunkState { users: users(share), ..ChunkState::default() }).collect(),
            slices: slices
                .iter()
                .map(|slice| SliceState { missing: slice.chunks.len(), ..SliceState::default() })
                .collect(),
            numbers: Some(numbers.carve(pieces)),
            unfinished: shares.len() + slices.iter().filter(|slice| !slice.chunks.is_empty()).count(),
        };
        let shared = Shared {
            run: Arc::clone(run),
            slices,
            shares,
            drafts,
            reading: reading.clone(),
            reads: Mutex::default(),
            state: Mutex::new(state),
            complete: Condvar::new(),
            plan,
        };
        Self { ordinal: shared.plan.ordinal(run.order()), shared: Arc::new(shared), admitted: 0 }
    }

    /// The window's number, counted through all passes.
    pub fn ordinal(&self) -> u64 {
        self.ordinal
    }

    /// The unit of the dealt line behind the window.
    pub fn end(&self) -> u64 {
        self.shared.plan.span.end()
    }

    /// Whether it is laid out, so that its drafts are free for the next.
    pub fn is_done(&self) -> bool {
        self.shared.state().unfinished == 0
    }

    /// Whether all of its chunks are decoded or queued to be.
    pub fn is_admitted(&self) -> bool {
        self.admitted == self.shared.plan.chunks.len()
    }

    /// Has further chunks decoded, as far as there are blocks for the slices that they complete; says whether those are
    /// all.
    pub fn admit(&mut self, blocks: &Arc<Blocks>, pool: &Pool) -> bool {
        while self.admitted < self.shared.plan.chunks.len() {
            let Some(taken) = blocks.take(self.blocks_for(self.admitted..self.admitted + 1, blocks)) else {
                return false;
            };
            self.admit_one(taken, blocks, pool);
        }
        true
    }

    /// Has all chunks decoded, with so many further blocks as [`Laying::blocks_wanted`] says.
    pub fn admit_rest(&mut self, mut taken: Vec<Block>, blocks: &Blocks, pool: &Pool) {
        while self.admitted < self.shared.plan.chunks.len() {
            let count = self.blocks_for(self.admitted..self.admitted + 1, blocks);
            let rest = taken.split_off(count.min(taken.len()));
            self.admit_one(taken, blocks, pool);
            taken = rest;
        }
    }

    /// Blocks that are wanted for what is not admitted.
    pub fn blocks_wanted(&self, blocks: &Blocks) -> usize {
        self.blocks_for(self.admitted..self.shared.plan.chunks.len(), blocks)
    }

    /// Blocks of the slices that are complete with one of some chunks.
    fn blocks_for(&self, chunks: Range<usize>, blocks: &Blocks) -> usize {
        chunks.flat_map(|chunk| self.completed(chunk)).map(|slice| slice.1.blocks(blocks.block_bytes())).sum()
    }

    fn completed(&self, chunk: usize) -> impl Iterator<Item = (usize, &SlicePlan)> {
        let share = self.shared.shares[chunk].clone();
        let slices = share.clone().zip(&self.shared.slices[share]);
        slices.filter(move |(_, slice)| slice.chunks.end == chunk + 1)
    }

    fn admit_one(&mut self, taken: Vec<Block>, blocks: &Blocks, pool: &Pool) {
        let (chunk, mut taken) = (self.admitted, taken.into_iter());
        let mut state = self.shared.state();
        for (number, slice) in self.completed(chunk) {
            state.slices[number].blocks = taken.by_ref().take(slice.blocks(blocks.block_bytes())).collect();
        }
        drop(state);
        self.admitted += 1;
        let shared = Arc::clone(&self.shared);
        pool.later(move |scratch| shared.work(scratch));
    }

    /// Waits until the window is laid out, which was admitted whole. Of several faults the first in the window's order
    /// is reported.
    pub fn finish(self, run: &Run, cancel: &Cancel) -> Result<Window> {
        let shared = &self.shared;
        let mut state = shared.state();
        while state.unfinished > 0 {
            cancel.check()?;
            state = shared.complete.wait_timeout(state, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
        if let Some(error) = state.chunks.iter_mut().find_map(|chunk| chunk.failed.take()) {
            return Err(error);
        }
        let slices = state.slices.iter_mut().map(|slice| std::mem::take(&mut slice.laid)).collect();
        Ok(Window::in_order(run, shared.plan.clone(), Laid { slices }))
    }
}

impl Drop for Laying {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.is_abandoned = true;
        state.slices.iter_mut().for_each(|slice| slice.blocks.clear());
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the next chunk, if there is memory for its draft; and then those that were put off for want of it.
    fn work(&self, scratch: &mut Scratch) {
        loop {
            let mut state = self.state();
            if state.is_abandoned {
                return;
            }
            let number = state.next;
            if number >= state.oldest + self.drafts.count() {
                // Whoever has a draft laid out that is in the way goes on here.
                state.put_off += 1;
                return;
            }
            state.next += 1;
            drop(state);
            let decoded = guarded(|| self.decode(number, scratch));
            for complete in self.decoded(number, decoded) {
                self.lay(complete);
            }
            let mut state = self.state();
            if state.put_off == 0 || state.next >= state.oldest + self.drafts.count() {
                return;
            }
            state.put_off -= 1;
        }
    }

    fn decode(&self, number: usize, scratch: &mut Scratch) -> Result<(Documents, Tokens)> {
        let (run, reading) = (&self.run, &self.reading);
        reading.cancel.check()?;
        let plan = &self.plan.chunks[number];
        let (layout, (tokens, ends, rows)) = draft(run, plan);
        let mut ahead = read_ahead(&self.reads, run, &self.plan.chunks, number, reading);
        let mut open = || ahead.take().unwrap_or_else(|| reading.open(run, plan.chunk));
        let arena = self.drafts.take(layout)?;
        let slots = ChunkSlots { tokens: Some(tokens.carve(&arena)), ends: arena.carve(ends), rows: arena.carve(rows) };
        let mut keep = Keep::new(run, plan, run.place(plan.chunk), slots);
        let all = scratch.decode(run, plan.chunk, &mut keep, &mut open, &reading.loans, &reading.cancel)?;
        keep.finish(all)
    }

    /// Notes a chunk, and gives the slices that are complete with it.
    fn decoded(&self, number: usize, decoded: Result<(Documents, Tokens)>) -> Vec<Complete> {
        let mut state = self.state();
        let chunk = &mut state.chunks[number];
        chunk.is_decoded = true;
        match decoded {
            Ok(draft) => chunk.draft = Some(Arc::new(draft)),
            Err(error) => chunk.failed = Some(error),
        }
        let mut complete = Vec::new();
        for slice in self.shares[number].clone().filter(|&slice| !self.slices[slice].chunks.is_empty()) {
            state.slices[slice].missing -= 1;
            if state.slices[slice].missing == 0 {
                let blocks = std::mem::take(&mut state.slices[slice].blocks);
                let chunks = self.slices[slice].chunks.clone();
                // Where one failed there is nothing to lay out, and the window will not be used.
                let sources = chunks.filter_map(|chunk| {
                    Some((self.plan.chunks[chunk].at, Arc::clone(state.chunks[chunk].draft.as_ref()?)))
                });
                complete.push(Complete { slice, sources: sources.collect(), blocks });
            }
        }
        self.one_less(state);
        complete
    }

    /// Lays a slice out, and lets go of the drafts that are of no more use.
    fn lay(&self, complete: Complete) {
        let Complete { slice: number, sources, blocks } = complete;
        let slice = &self.slices[number];
        let laid = guarded(|| {
            if sources.len() < slice.chunks.len() {
                return Ok(LaidSlice::default());
            }
            LaidSlice::new(&self.run, (&self.plan.span, slice.lane), &sources, (blocks, slice.is_narrow), |count| {
                let mut state = self.state();
                let numbers = state.numbers.take()?;
                if numbers.len() < count {
                    return None;
                }
                let (own, rest) = numbers.split_at(count);
                state.numbers = Some(rest);
                Some(own)
            })
        });
        // Before they are counted as gone.
        drop(sources);
        let mut state = self.state();
        match laid {
            Ok(laid) => state.slices[number].laid = laid,
            Err(error) => state.chunks[slice.chunks.start].failed = Some(error),
        }
        for chunk in &mut state.chunks[slice.chunks.clone()] {
            chunk.users -= 1;
            if chunk.users == 0 {
                chunk.draft = None;
            }
        }
        while state.chunks.get(state.oldest).is_some_and(|chunk| chunk.is_decoded && chunk.users == 0) {
            state.oldest += 1;
        }
        self.one_less(state);
    }

    fn one_less(&self, mut state: MutexGuard<'_, State>) {
        state.unfinished -= 1;
        if state.unfinished == 0 {
            self.complete.notify_all();
        }
    }
}

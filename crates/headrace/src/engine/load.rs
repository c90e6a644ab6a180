//! A window being decoded, whole or in part: its chunks are tasks, read ahead where the store is remote.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use super::decode::{Loans, Scratch};
use super::documents::{Documents, Stretches, Tokens};
use super::keep::{ChunkSink, Keep, Pick};
use super::layout::{ExcerptLayout, WindowLayout};
use super::memory::{Arena, Shelf, SlotMut};
use super::plan::{ChunkPlan, WindowPlan};
use super::pool::{Pending, Pool};
use super::run::Run;
use super::window::Window;
use crate::cancel::Cancel;
use crate::error::Result;
use crate::store::ByteStream;

/// Blocks that reads started before a thread gets to their chunks may hold. Scope: a window. Evidence: a store answers
/// after some 30 ms, in which 20 Gbit/s bring ten blocks; and what two threads take meanwhile is there already.
const BLOCKS_AHEAD: u64 = 24;
/// Chunks of which that is so. Scope: a window. Evidence: as many as the requests that are under way in a process, by
/// default; more would only wait for their turn. A chunk of a megabyte takes one.
const CHUNKS_AHEAD: usize = 32;
/// Blocks of a chunk that are under way beyond the one in use, for remote stores. So most chunks are asked for whole, in
/// the order of use: a block that is asked for late would wait behind those of later chunks.
const BLOCKS_BEHIND: usize = 3;
/// Local files are read page by page, but not less than this at once: small pages come many at a time.
const LOCAL_BLOCK: usize = 256 << 10;
/// Where only some pages are wanted, this: a page's header and its levels, mostly.
const LOCAL_FRONT: usize = 32 << 10;

/// How chunks are read.
#[derive(Debug, Clone)]
pub struct Reading {
    /// Bytes of one read.
    pub block: usize,
    /// For large pages.
    pub loans: Arc<Loans>,
    /// Of a preview, which wants some pages only: counts the bytes that are read, beside what the store counts.
    pub counter: Option<Arc<AtomicU64>>,
    /// Stops everything.
    pub cancel: Cancel,
}

impl Reading {
    /// Blocks that reads started ahead may hold: of the chunks ahead, and of those that `workers` threads are at.
    pub fn ahead_blocks(run: &Run, workers: u64) -> u64 {
        let at_work = workers * (BLOCKS_BEHIND as u64 + 1);
        if run.index().store.is_remote() { BLOCKS_AHEAD + at_work } else { 0 }
    }

    /// Bytes of a chunk that are asked for when its reads are started.
    fn first_bytes(&self, run: &Run, chunk: u32) -> u64 {
        run.column().chunks.bytes(chunk as usize).min((BLOCKS_BEHIND as u64 + 1) * self.block as u64)
    }

    /// Requests to a remote store that a chunk takes in blocks of so many bytes; 0 to a local disk.
    pub(super) fn requests(run: &Run, chunk: u32, block: usize) -> u64 {
        let bytes = run.column().chunks.bytes(chunk as usize);
        if run.index().store.is_remote() { bytes.div_ceil(block as u64) } else { 0 }
    }

    /// The bytes of a chunk.
    pub(super) fn open(&self, run: &Run, chunk: u32) -> ByteStream {
        let store = Arc::clone(&run.index().store);
        let (block, ahead) = match (store.is_remote(), self.counter.is_some()) {
            (true, _) => (self.block, BLOCKS_BEHIND),
            (false, true) => (LOCAL_FRONT, 0),
            (false, false) => (LOCAL_BLOCK, 0),
        };
        let group = run.index().row_groups.get(chunk as usize);
        let object = run.index().files[group.file as usize].object.clone();
        let chunk = run.chunk(chunk);
        let stream = ByteStream::new(
            store,
            object,
            chunk.start..chunk.start + chunk.len,
            block as u64,
            ahead,
            self.cancel.clone(),
        );
        match &self.counter {
            Some(counter) => stream.counted(Arc::clone(counter)),
            None => stream,
        }
    }
}

/// A window's memory.
#[derive(Debug)]
pub struct Room {
    /// For where documents lie.
    pub documents: Arc<Arena>,
    /// For their tokens.
    pub tokens: Arc<Arena>,
    /// Whether that is a file that the system may write out.
    pub is_spilled: bool,
}

impl Room {
    /// Anonymous memory, if the budget has it.
    pub fn take(layout: &WindowLayout, shelf: &Arc<Shelf>) -> Result<Option<Self>> {
        // The larger one first: what it leaves is used again more often.
        let Some(tokens) = shelf.take(&layout.tokens)? else { return Ok(None) };
        let Some(documents) = shelf.take(&layout.documents)? else {
            // Back on the shelf it would be of no use to anything else.
            drop(tokens);
            shelf.clear();
            return Ok(None);
        };
        Ok(Some(Self { documents, tokens, is_spilled: false }))
    }

    /// Spill files in `folder`.
    pub fn spill(layout: &WindowLayout, folder: &Path) -> Result<Self> {
        let (documents, tokens) = (Arena::spilled(&layout.documents, folder)?, Arena::spilled(&layout.tokens, folder)?);
        Ok(Self { documents, tokens, is_spilled: true })
    }
}

/// A window whose chunks are being decoded.
#[derive(Debug)]
pub struct Loading {
    ordinal: u64,
    plan: WindowPlan,
    pieces: SlotMut<u32>,
    chunks: Pending<(Documents, Tokens)>,
}

impl Loading {
    /// Queues the decoding of a window's chunks; without memory for their tokens, only of the documents' lengths.
    pub fn start(
        run: &Arc<Run>,
        plan: WindowPlan,
        layout: WindowLayout,
        (documents, tokens): (&Arc<Arena>, Option<&Arc<Arena>>),
        pool: &Pool,
        reading: &Reading,
    ) -> Self {
        let (slots, pieces) = layout.carve(documents, tokens);
        let chunks: Arc<[ChunkPlan]> = plan.chunks.as_slice().into();
        let reads = Arc::new(Mutex::new(Reads::default()));
        let tasks = slots.into_iter().enumerate().map(|(number, slots)| {
            let (run, reads, chunks, reading) =
                (Arc::clone(run), Arc::clone(&reads), Arc::clone(&chunks), reading.clone());
            move |scratch: &mut Scratch| {
                reading.cancel.check()?;
                let plan = &chunks[number];
                let mut ahead = read_ahead(&reads, &run, &chunks, number, &reading);
                let mut open = || ahead.take().unwrap_or_else(|| reading.open(&run, plan.chunk));
                let mut keep = Keep::new(&run, plan, run.place(plan.chunk), slots);
                let all = scratch.decode(&run, plan.chunk, &mut keep, &mut open, &reading.loans, &reading.cancel)?;
                keep.finish(all)
            }
        });
        Self { ordinal: plan.ordinal(run.order()), chunks: pool.decode(tasks), plan, pieces }
    }

    /// The window's number, counted through all passes.
    pub fn ordinal(&self) -> u64 {
        self.ordinal
    }

    /// The unit of the dealt line behind the window.
    pub fn end(&self) -> u64 {
        self.plan.span.end()
    }

    /// Waits until the window is decoded. Of several faults the first in the window's order is reported.
    pub fn finish(self, run: &Run, cancel: &Cancel) -> Result<Window> {
        Ok(Window::new(run, self.plan, self.chunks.finish(cancel)?, self.pieces))
    }
}

/// Decodes stretches of a window's tokens, given for each of its chunks, and nothing else; `None` without memory.
pub fn excerpt(
    run: &Arc<Run>,
    window: &Window,
    needs: &[Stretches],
    shelf: &Arc<Shelf>,
    pool: &Pool,
    reading: &Reading,
) -> Result<Option<Window>> {
    let layout = ExcerptLayout::new(run, window, needs);
    let Some(arena) = shelf.take(&layout.layout)? else { return Ok(None) };
    let tasks = layout.tokens.into_iter().zip(needs).zip(window.chunks()).map(|((region, wanted), chunk)| {
        let (run, reading, slot, wanted) = (Arc::clone(run), reading.clone(), region.carve(&arena), wanted.clone());
        move |scratch: &mut Scratch| {
            let mut pick = Pick::new(run.place(chunk), wanted, slot);
            if !pick.has_all() {
                let mut open = || reading.open(&run, chunk);
                scratch.decode(&run, chunk, &mut pick, &mut open, &reading.loans, &reading.cancel)?;
            }
            pick.finish()
        }
    });
    // All at once, for the tasks are counted.
    let tasks: Vec<_> = tasks.collect();
    Ok(Some(window.with_tokens(pool.decode(tasks.into_iter()).finish(&reading.cancel)?)))
}

/// Reads that were started ahead.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// Streams that were opened before a thread got to them, by the chunk's place in the plan.
    streams: HashMap<usize, ByteStream>,
    /// Bytes that these have asked for.
    bytes: u64,
    /// The first chunk of which no read was started.
    next: usize,
}

/// Starts the reads of the chunks that follow, and returns the stream of `number` if it was started before.
pub(super) fn read_ahead(
    reads: &Mutex<Reads>,
    run: &Run,
    chunks: &[ChunkPlan],
    number: usize,
    reading: &Reading,
) -> Option<ByteStream> {
    if !run.index().store.is_remote() {
        return None;
    }
    let mut reads = reads.lock().unwrap_or_else(PoisonError::into_inner);
    let own = reads.streams.remove(&number);
    if own.is_some() {
        reads.bytes -= reading.first_bytes(run, chunks[number].chunk);
    }
    reads.next = reads.next.max(number + 1);
    while reads.next < chunks.len().min(number + 1 + CHUNKS_AHEAD) && reads.streams.len() < CHUNKS_AHEAD {
        let (next, chunk) = (reads.next, chunks[reads.next].chunk);
        let bytes = reading.first_bytes(run, chunk);
        if reads.bytes + bytes > BLOCKS_AHEAD * reading.block as u64 {
            break;
        }
        let mut stream = reading.open(run, chunk);
        stream.start();
        reads.streams.insert(next, stream);
        reads.bytes += bytes;
        reads.next += 1;
    }
    own
}

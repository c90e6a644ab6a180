//! A window being decoded: its chunks are tasks, read ahead where the store is remote.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::decode::{ChunkDocs, Loans};
use super::memory::{Arena, Shelf, SlotMut};
use super::plan::{ChunkPlan, WindowPlan};
use super::pool::{Pool, guarded};
use super::run::Run;
use super::window::{Window, WindowLayout};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::store::ByteStream;

/// Chunks whose reads are started before a thread gets to them. Scope: a window. Evidence: a store answers after some
/// 30 ms, in which two threads decode a few chunks of a megabyte.
const CHUNKS_AHEAD: usize = 8;
/// Blocks of a chunk that are under way beyond the one in use, for remote stores.
const BLOCKS_AHEAD: usize = 2;

/// How chunks are read.
#[derive(Debug, Clone)]
pub struct Reading {
    /// Bytes of one read.
    pub block: usize,
    /// For large pages.
    pub loans: Arc<Loans>,
    /// Stops everything.
    pub cancel: Cancel,
}

impl Reading {
    /// Blocks that reads started ahead may hold: of the chunks ahead, and of those that `workers` threads are at.
    pub fn ahead_blocks(run: &Run, workers: u64) -> u64 {
        let streams = CHUNKS_AHEAD as u64 + workers;
        if run.index().store.is_remote() { streams * (BLOCKS_AHEAD as u64 + 1) } else { 0 }
    }

    fn open(&self, run: &Run, plan: &ChunkPlan) -> ByteStream {
        let store = Arc::clone(&run.index().store);
        let ahead = if store.is_remote() { BLOCKS_AHEAD } else { 0 };
        let group = run.index().row_groups[plan.chunk as usize];
        let object = run.index().files[group.file as usize].object.clone();
        let chunk = run.chunk(plan.chunk);
        ByteStream::new(
            store,
            object,
            chunk.start..chunk.start + chunk.len,
            self.block as u64,
            ahead,
            self.cancel.clone(),
        )
    }
}

/// Where a window's memory comes from.
#[derive(Debug)]
pub enum Room {
    /// The budget.
    Anonymous(Arc<Arena>),
    /// A file that the system may write out.
    Spilled(Arc<Arena>),
}

impl Room {
    /// Anonymous memory, or a spill file in `folder` if the budget does not have it and `must` is set.
    pub fn take(layout: &WindowLayout, shelf: &Arc<Shelf>, must: bool, folder: &Path) -> Result<Option<Self>> {
        if let Some(arena) = shelf.take(&layout.layout)? {
            return Ok(Some(Self::Anonymous(arena)));
        }
        if must { Arena::spilled(&layout.layout, folder).map(|arena| Some(Self::Spilled(arena))) } else { Ok(None) }
    }
}

/// A window whose chunks are being decoded.
#[derive(Debug)]
pub struct Loading {
    ordinal: u64,
    shared: Arc<Shared>,
    plan: WindowPlan,
    pieces: SlotMut<u32>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// What is read ahead.
    ahead: Mutex<Reads>,
}

#[derive(Debug, Default)]
struct Reads {
    /// Streams that were opened before a thread got to them, by the chunk's place in the plan.
    streams: HashMap<usize, ByteStream>,
    /// The first chunk of which no read was started.
    next: usize,
}

#[derive(Debug)]
struct State {
    left: usize,
    done: Vec<Option<Result<ChunkDocs>>>,
}

impl Loading {
    /// Queues the decoding of a window's chunks.
    pub fn start(
        run: &Arc<Run>,
        plan: WindowPlan,
        layout: WindowLayout,
        room: Room,
        pool: &Pool,
        reading: &Reading,
    ) -> Self {
        let (Room::Anonymous(arena) | Room::Spilled(arena)) = room;
        let (slots, pieces) = layout.carve(&arena);
        let count = slots.len();
        let shared = Arc::new(Shared {
            state: Mutex::new(State { left: count, done: (0..count).map(|_| None).collect() }),
            changed: Condvar::new(),
            ahead: Mutex::default(),
        });
        let chunks: Arc<[ChunkPlan]> = plan.chunks.as_slice().into();
        for (number, slots) in slots.into_iter().enumerate() {
            let (run, shared, chunks, reading) =
                (Arc::clone(run), Arc::clone(&shared), Arc::clone(&chunks), reading.clone());
            pool.regular(move |scratch| {
                let docs = guarded(|| {
                    reading.cancel.check()?;
                    let mut ahead = shared.read_ahead(&run, &chunks, number, &reading);
                    let mut open = || ahead.take().unwrap_or_else(|| reading.open(&run, &chunks[number]));
                    scratch.decode(&run, &chunks[number], slots, &mut open, &reading.loans, &reading.cancel)
                });
                let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
                state.done[number] = Some(docs);
                state.left -= 1;
                if state.left == 0 {
                    shared.changed.notify_all();
                }
            });
        }
        Self { ordinal: plan.ordinal(run.order()), shared, plan, pieces }
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
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.left > 0 {
            cancel.check()?;
            let wait = Duration::from_millis(20);
            state = self.shared.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
        let chunks = std::mem::take(&mut state.done).into_iter();
        let missing = || Error::Internal("a chunk without a result".to_owned());
        let chunks = chunks.map(|docs| docs.ok_or_else(missing)?).collect::<Result<Vec<_>>>()?;
        Ok(Window::new(run, self.plan, chunks, self.pieces))
    }
}

impl Shared {
    /// Starts the reads of the chunks that follow, and returns the stream of `number` if it was started before.
    fn read_ahead(&self, run: &Run, chunks: &[ChunkPlan], number: usize, reading: &Reading) -> Option<ByteStream> {
        if !run.index().store.is_remote() {
            return None;
        }
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let own = ahead.streams.remove(&number);
        ahead.next = ahead.next.max(number + 1);
        while ahead.next < chunks.len().min(number + 1 + CHUNKS_AHEAD) && ahead.streams.len() < CHUNKS_AHEAD {
            let next = ahead.next;
            let mut stream = reading.open(run, &chunks[next]);
            stream.start();
            ahead.streams.insert(next, stream);
            ahead.next += 1;
        }
        own
    }
}

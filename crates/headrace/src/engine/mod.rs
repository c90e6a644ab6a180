//! Moving it: plan, read, decode, assemble, hand over; bounded by one memory budget.
//!
//! One [`Engine`] feeds one rank from one step on. Its conductor thread ([`conductor`]) has windows planned ([`plan`])
//! and supplied in time ([`supply`]): their chunks are read and decoded by worker threads ([`load`], [`decode`],
//! [`keep`], [`leave_out`]) into one arena for where documents lie and one for their tokens ([`layout`], [`documents`], [`window`]).
//! Large windows are decoded to drafts instead and laid out in the order in which lanes use them ([`laying`], [`laid`]).
//! Then it has batches assembled, some at a time, from the lanes' cursors ([`cursor`], [`assemble`]) into memory that
//! is used again once nobody refers to it ([`memory`]). They wait in a bounded channel.
//!
//! The next window is decoded while this one is used: where it is laid out, as far as blocks of this one are free
//! again; in the order of storage, where the budget ([`shares`]) holds both. Where it does not, the rest of this one is
//! copied out first, and a window that does not fit at all goes to a spill file. The first batch
//! comes before its window, from what it needs of it. Completion order never reaches the output.
//!
//! Rows of one width need none of this: they are gathered from open files, wherever they lie ([`gather`]), records of
//! several fields to an array for each ([`fields`]). Where their items are found by arithmetic alone ([`stored`],
//! [`open_files`], [`objects`]), batches of them are made ahead of use ([`row_feed`]).
//!
//! Not here: which tokens come next ([`crate::order`]), how bytes become documents ([`crate::format`]).

mod assemble;
mod batch;
mod board;
mod conductor;
mod cursor;
mod decode;
mod demand;
mod documents;
mod drafts;
mod fetching;
mod fields;
mod gather;
mod keep;
mod laid;
mod laying;
mod layout;
mod leave_out;
mod load;
mod memory;
mod mixed;
mod objects;
mod open_files;
mod plan;
mod pool;
mod report;
mod row_feed;
mod run;
mod shares;
mod stored;
mod supply;
mod window;

#[cfg(test)]
mod large;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};

pub use batch::{Array, ArrayKind, Batch, Numbers};
pub use conductor::{Counters, LayOut, Options};
pub use demand::Part;
pub use fetching::fetch;
pub use fields::{Field, Fields};
pub use gather::{Gather, Row, Values, Whole};
pub use memory::{Plain, Slot};
pub use mixed::{MixedEngine, mixed_sources};
pub use objects::StoredObject;
pub use open_files::{OpenFiles, StoredFile};
pub use plan::{ChunkPlan, WindowPlan};
pub use report::{Report, report};
pub use row_feed::{Fed, FeedMeans, RowBatch, RowFeed, Stretch};
pub use run::{Changes, PackSpec, Run};
pub use shares::Shares;
pub use stored::{Piece, RowShape, RowsKept, Stored, StoredRows};

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::pack::Span;

/// What [`Engine::next`] found.
#[derive(Debug)]
pub enum Next {
    /// The next batch.
    Batch(Box<Batch>),
    /// None within the time; ask again.
    Pending,
    /// There is none: the run, or the steps that were asked for, have ended.
    End,
}

/// Feeds one rank. Dropping it ends its threads.
#[derive(Debug)]
pub struct Engine {
    /// Batches come in groups: whoever waits is woken once for all of them.
    groups: Option<Receiver<Result<Vec<Batch>>>>,
    /// What is left of the last one.
    batches: Mutex<std::vec::IntoIter<Batch>>,
    cancel: Cancel,
    counters: Arc<Counters>,
    thread: Option<JoinHandle<()>>,
    /// The process that its threads live in.
    process: u32,
}

impl Engine {
    /// Starts to read for a rank.
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget is too small for one step.
    pub fn start(run: Arc<Run>, options: Options) -> Result<Self> {
        let (cancel, counters) = (Cancel::new(), Arc::new(Counters::default()));
        let shares = Shares::new(&run, &options)?;
        let means = conductor::Means::new(&options, &shares, Arc::clone(&counters), cancel.clone())?;
        let conductor = conductor::Conductor::new(&run, &Arc::new(options), means);
        // Batches are charged in `fixed`: no more are alive before they are handed over.
        let shelf = memory::Shelf::new(&memory::Budget::new(u64::MAX), shares.ready + shares.group);
        let (sender, groups) = bounded(shares.groups_ahead());
        let thread = std::thread::Builder::new()
            .name("headrace-lead".to_owned())
            .spawn(move || conductor.lead(shelf, &sender))
            .map_err(|error| Error::Internal(format!("cannot start a thread: {error}")))?;
        let (batches, process) = (Mutex::default(), std::process::id());
        Ok(Self { groups: Some(groups), batches, cancel, counters, thread: Some(thread), process })
    }

    /// Waits up to `timeout` for the next batch. After an error there is nothing more. For one thread at a time: another
    /// one waits for the first.
    pub fn next(&self, timeout: Duration) -> Result<Next> {
        let Some(groups) = &self.groups else { return Ok(Next::End) };
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(batch) = batches.next() {
                return Ok(Next::Batch(Box::new(batch)));
            }
            match groups.recv_timeout(timeout) {
                Ok(group) => *batches = group?.into_iter(),
                Err(RecvTimeoutError::Timeout) => return Ok(Next::Pending),
                Err(RecvTimeoutError::Disconnected) => return Ok(Next::End),
            }
        }
    }

    /// Counts of what was done so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            // In a forked child its threads are not there, and what they had locked stays locked for ever.
            let batches = std::mem::take(self.batches.get_mut().unwrap_or_else(PoisonError::into_inner));
            std::mem::forget((self.groups.take(), batches, self.thread.take()));
            return;
        }
        self.cancel.cancel();
        // The conductor may be waiting for room in the channel.
        self.groups = None;
        if let Some(thread) = self.thread.take() {
            // A panic on it was sent as an error or has nobody left to tell.
            drop(thread.join());
        }
    }
}

/// Where each row of one step of one rank comes from. Reads the slices that the rows touch, and nothing else.
pub fn sources(run: Arc<Run>, options: Options, cancel: &Cancel) -> Result<Vec<Vec<Span>>> {
    let stop = Some(options.start + 1);
    let engine = Engine::start(run, Options { stop, skip: Vec::new(), prefetch: 1, ..options })?;
    loop {
        cancel.check()?;
        match engine.next(Duration::from_millis(20))? {
            Next::Batch(batch) => return Ok((0..batch.rows.len()).map(|row| batch.sources(row).to_vec()).collect()),
            Next::Pending => {}
            Next::End => return Ok(Vec::new()),
        }
    }
}
